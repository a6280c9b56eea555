"Commons: what a step does, four metrics, programs that want to write on the world, and the loop that writes them."
import random
import sys
from pathlib import Path

import pytest

from agentlab.env import check_env
from agentlab.env.commons import (Cleanup, Commons, Gathering, Program, Seen, Synthesis, dense, self_play, society,
    sparse)

sys.path[:0] = [str(Path(__file__).resolve().parent.parent/'tools'/part) for part in ('', 'claims')]
STILL = 'def policy(seen): return 7'

def placed(world, cells, headings, seed=0):
    world.reset(seed)
    world.cells, world.headings = list(cells), list(headings)
    return world

def test_the_four_metrics_by_hand():
    assert society([[0, 1, 0, 0], [0, 0, 0, 0]], [[0]*4, [0, 0, 0, 1]]) == dict(
        efficiency=.25, equality=.5, sustainability=1., peace=1.75)
    assert society([[0, 0]], [[0, 0]]) == dict(efficiency=0., equality=1., sustainability=0., peace=1.)
    even = society([[1, 0, 1], [0, 2, 0]], [[0]*3]*2)
    assert even['equality'] == 1. and even['sustainability'] == 1.

@pytest.mark.parametrize('density, chance', [(0, .05), (.1, .0375), (.2, .025), (.3, .0125), (.4, 0.), (.9, 0.)])
def test_apples_need_a_clean_river(density, chance):
    world = Cleanup()
    world.reset(0)
    world.waste = set(world.river[:round(density*len(world.river))])
    assert world.chance() == pytest.approx(chance)

def test_without_a_cleaner_nothing_grows_and_no_waste_comes_beyond_the_limit():
    world = Cleanup(steps=300)
    world.reset(0)
    world.apples = set()
    for _ in range(300): world.step([7]*5)
    assert world.apples == set() and world.waste == set(world.dirty)  # .5 from the beginning
    world.waste = set()
    for _ in range(300): world.step([7]*5)
    assert world.density() == .4

def test_waste_comes_with_probability_one_half_on_free_cells():
    came = []
    for seed in range(400):
        world = placed(Cleanup(1, plan=('RRP',)), [6], [0], seed)
        world.step([7])
        assert world.waste <= {7}  # the agent stands on the other one
        came.append(len(world.waste))
    assert 160 < sum(came) < 240

def test_both_beams_of_cleanup_are_five_long_three_wide_and_cost_one():
    world = placed(Cleanup(3, plan=('HHHHHHHPPPH',)*5), [47, 46, 42], [3, 3, 3])  # row 3, columns 8, 7 and 3 of 13
    beam = world.beam(47, 3)
    assert beam == {13*row + column for row in (2, 3, 4) for column in range(3, 8)}
    assert world.step([6, 7, 7]) == [-1, -50, -50] and world.out == [0, 25, 25]  # everybody in it is hit
    before = set(world.waste)
    assert world.step([8, 7, 7])[0] == -1 and before - world.waste == before & beam

@pytest.mark.parametrize('kind, hits, paid', [(Gathering, 2, [0, 0]), (Commons, 2, [0, 0]), (Cleanup, 1, [-1, -50])])
def test_who_is_tagged_neither_acts_nor_collects_for_25_steps(kind, hits, paid):
    world = placed(kind(2, plan=('PA.P.',)), [8, 11], [1, 3])
    for _ in range(hits): assert world.step([6, 7]) == paid
    world.apples = {11}
    for left in range(24, 0, -1):
        assert world.step([7, 0]) == [0, 0] and world.out[1] == left and world.cells[1] == 11
    assert world.step([7, 7]) == [0, 1] and world.out[1] == 0
    assert sum(map(sum, world.absent)) == 25

def test_the_beam_of_gathering_is_a_line_of_twenty():
    world = placed(Gathering(2, plan=('P'*26,)*3), [2*28 + 1, 2*28 + 22], [1, 0])
    assert world.beam(57, 1) == set(range(58, 78)) and world.beam(57, 3) == set()
    assert {len(world.beam(cell, 0)) for cell in range(29, 55)} == {0}

@pytest.mark.parametrize('heading', range(4))
def test_moves_are_relative_to_the_heading(heading):
    world = Gathering(1, plan=('...', '.P.', '...'))
    ways = (-5, 5, -1, 1), (1, -1, -5, 5), (5, -5, 1, -1), (-1, 1, 5, -5)
    for action, way in enumerate(ways[heading]):
        placed(world, [12], [heading]).step([action])
        assert world.cells == [12 + way] and world.headings == [heading]
    for action, turn in ((4, -1), (5, 1)):
        placed(world, [12], [heading]).step([action])
        assert (world.cells, world.headings) == ([12], [(heading + turn) % 4])
    placed(world, [6], [0]).step([0])
    assert world.cells == [6]  # a wall

def test_apples_of_gathering_come_back_after_25_steps():
    world = placed(Gathering(1, plan=('PA',)), [6], [3])
    assert [t for t in range(60) if world.step([7])[0]] == [0, 25, 50]

@pytest.mark.parametrize('left, chance', [(0, 0.), (1, .01), (2, .01), (3, .05), (4, .05), (5, .1), (9, .1)])
def test_apples_of_the_commons_need_neighbours(left, chance):
    world = Commons(1, plan=('AAAAA', 'AAAAA', 'AAAAA', 'AAAAA', 'AAAAA', 'P....'))
    centre, came = 3*7 + 3, 0
    others = [site for site in world.sites if site != centre]
    for seed in range(600):
        placed(world, [43], [0], seed).apples = set(random.Random(seed).sample(others, left))
        world.grow()
        came += centre in world.apples
    assert abs(came/600 - chance) < .04 and (chance or not came)

def test_neighbours_are_counted_within_two_cells():
    world = Commons(1, plan=('A..AA.P',))
    placed(world, [17], [0])
    world.apples, world.random = {10}, type('Draw', (), dict(random=lambda self: .005))()
    world.grow()
    assert world.apples == {10}  # the others stand three and four away
    world.apples = {13}
    world.grow()
    assert world.apples == {13, 14}

@pytest.mark.parametrize('kind', [Gathering, Commons, Cleanup])
def test_the_same_seed_is_the_same_episode(kind):
    def played(seed):
        world, draw = kind(), random.Random(7)
        world.reset(seed)
        for _ in range(80): world.step([draw.randrange(world.actions) for _ in range(5)])
        return world.seen(), world.paid
    state = random.getstate()
    assert played(3) == played(3) != played(4)
    assert random.getstate() == state

@pytest.mark.parametrize('actions', [[7], [7]*6, [9]*5, [-1]*5, ['7']*5, [True]*5, [7.]*5])
def test_what_is_no_action_is_refused(actions):
    world = Cleanup()
    world.reset(0)
    with pytest.raises(ValueError, match='whole numbers from 0 to 8'): world.step(actions)
    assert world.t == 0

# ---- programs

ATTACKS = dict(move="seen['cells'][seen['me']] = seen['apples'][0]", rivals="seen['out'][:] = [99999]*5",
    river="seen['waste'].clear()", apples="seen['apples'] += list(range(200))")
ATTACKS['all'] = '\n    '.join(ATTACKS.values())

def story(code, kind=Cleanup, steps=10):
    world, policy = kind(), Program(code)
    world.reset(1)
    for _ in range(steps): world.step([policy(world.seen()[0]), 0, 1, 2, 3])
    return world.seen(), world.paid

@pytest.mark.parametrize('kind', [Gathering, Cleanup])
@pytest.mark.parametrize('attack', ATTACKS)
def test_a_program_writes_on_its_copy_alone(attack, kind):
    assert story(f'def policy(seen):\n    {ATTACKS[attack]}\n    return 7', kind) == story(STILL, kind)

@pytest.mark.parametrize('code', [
    'env.waste', 'world.waste', 'seen.__class__', '().__class__.__mro__', 'eval("seen.__class__")', 'eval("env")',
    '__import__("os").getpid()', '__builtins__', 'globals()["env"]', '(lambda: 0).__globals__', 'open("/etc/passwd")',
    'open("/tmp/x", "w")', 'vars(seen)', '"7"', '7.0', 'None', '-1', '[7]'])
def test_what_reaches_out_or_is_no_action_is_refused(code):
    world = Cleanup()
    with pytest.raises(ValueError, match='agent 2, step 0'):
        Program(f'def policy(seen): return {code}')(world.reset(0)[2])

@pytest.mark.parametrize('first', ['import subprocess', 'import socket', 'import agentlab', 'from os import system',
    'import os\nos.listdir("/")', 'import sys\nsys.modules["os"].system("ls")',
    'while True: pass', 'x = [0]*10**10', 'def f(): return f()\nf()'])
def test_imports_and_endless_programs_are_refused(first):
    with pytest.raises(ValueError, match='policy'): Program(f'{first}\n{STILL}')(Cleanup().reset(0)[0])

def test_a_function_of_ours_cannot_write_either():
    world = Cleanup()
    seen = world.reset(0)[0]
    for write in (lambda: seen.apples.clear(), lambda: seen.out.append(9), lambda: setattr(seen, 'waste', set())):
        with pytest.raises(AttributeError): write()
    assert not any(part is own for part in seen for own in vars(world).values() if isinstance(own, (list, set)))

def test_a_list_is_played_alike_as_function_and_as_program():
    code = 'def policy(seen): return (seen["me"] + seen["t"] + len(seen["apples"])) % 9'
    plain = lambda seen: (seen.me + seen.t + len(seen.apples)) % 9
    assert self_play(Cleanup(), Program(code), [0], 20) == self_play(Cleanup(), plain, [0], 20)

# ---- the loop

def test_the_loop_answers_every_text_and_ends_after_three():
    env = Synthesis(Cleanup(steps=60), seeds=[0, 1])
    env.reset(0)
    bad, late, good = (env.step(text) for text in (
        'nonsense', 'def policy(seen): return 7 if seen["t"] < 55 else 1/0', STILL))
    assert bad.observation.startswith('Refused: ') and bad.info['invalid'] and not bad.done
    assert 'step 55' in late.observation and late.info['invalid']
    assert good.done and good.info['truncated'] and good.reward == dict(player=0.)
    assert good.info['columns']['peace'] == 5.
    found = check_env(Synthesis(Cleanup(steps=5), seeds=[0]), actions=(STILL,))
    assert {found[rule] for rule in found if rule != 'state'} == {'ok'}

def test_sparse_tells_the_reward_and_dense_the_metrics():
    score = dict(efficiency=.5, equality=.9, sustainability=40., peace=5., reward=10.)
    assert sparse(score) == 'reward 10.00'
    assert dense(score) == 'efficiency 0.50, equality 0.90, sustainability 40.00, peace 5.00, reward 10.00'

def test_the_rule_of_the_worst_metric_is_changed():
    from policy_synthesis import OF, RULES, named
    draw, score = random.Random(0), dict(efficiency=.9, equality=.95, sustainability=100., peace=5.)
    assert named('dense', score, draw) == ('cleaners', 'above') and named('sparse', score, draw) == tuple(RULES)
    assert named('dense', score | dict(sustainability=500., peace=1.), draw) == ('tag',)
    assert named('dense', score | dict(sustainability=500., equality=-7.), draw) == ('who',)
    assert {named('shuffled', score, draw) for _ in range(50)} == set(OF.values())

@pytest.mark.parametrize('rule, part, other', [
    ('tag', 'in sight', 'never'), ('cleaners', 0, 2), ('above', .3, 0.), ('who', 'in turns', 'lowest numbers'),
    ('gather', 'own rows', 'nearest')])
def test_each_rule_of_a_list_matters(rule, part, other):
    from policy_synthesis import DecisionList
    rules, world = dict(tag='never', cleaners=1, above=.1, who='in turns', gather='nearest'), Cleanup(steps=200)
    one, two = (self_play(world, DecisionList(world, rules | {rule: given}), [0]) for given in (part, other))
    assert one != two

def test_seen_is_what_the_sandbox_gets():
    seen = Cleanup().reset(0)[3]
    assert Program('def policy(seen): return len(seen)')(seen) == len(Seen._fields)
    assert Program('def policy(seen): return seen["cells"][seen["me"]]')(seen) == seen.cells[3]
