"""BugRepair, InjectBug and self-play with bugs: what an agent may write, what a sandbox may do, and a run that is
killed."""
import copy, json, pickle
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from later import needs
needs('pydantic_monty', reason="pydantic-monty is not installed: pip install -e '.[python]'")
from agentlab.env import bug_repair as module
from agentlab.env.bug_repair import (Artifact, BugRepair, BugWork, InjectBug, Tester as Runner, changed, code_of,
    consistency, difference, draw_program, errors, failing, frame, inputs, levels,
    lines_of, names_of, places, read_put, solver_task, taken_back,
    tests_of as looked_at, vocabulary, with_word, words)
from agentlab.env.isolation import Isolated
from agentlab.env.protocol import EnvError, check_env, random_states, split_of, splits
from agentlab.env.sandbox import MontySandbox, Result
from agentlab.episodes import Batch, Episode
from agentlab.policy import Policy
from agentlab.policy.core import word_tokenizer
from agentlab.policy.tiny import demonstrate, tiny_model, warm_start
from agentlab.rollout import play
from agentlab.selfplay.bugs import (BugPool, artifact_task, bug_reward, higher_order, judged, kind_of, self_play)
from agentlab.selfplay.proposers import trr_pp
from agentlab.train import Recipe, train

few = settings(max_examples=60, deadline=None)
run = Runner()
ONE, TWO = 'f = x + 2 ; g = f * y ; h = g - 3', 'f = x ; while f > 3 : f = f - 2 ; g = f * y'
EXPECTED = run(ONE)
programs = st.integers(0, 10**6).map(lambda seed: draw_program(Random(seed), splits[seed % 3]))

def mutant(program, data, most=4):
    "The program with some words replaced."
    for _ in range(data.draw(st.integers(0, most))):
        program = with_word(program, data.draw(st.integers(0, len(places(program)) - 1)),
            data.draw(st.sampled_from(words)))
    return program

# ---- programs and tests

def python_says(program):
    "The values by Python itself, for programs that were drawn here."
    found = []
    for name, k in looked_at(program):
        values, (x, y) = {}, inputs[k]
        for line in program.split(';'):
            exec(line.strip(), dict(x=x, y=y) | values, values) if 'while' not in line else exec(line.strip(), values)
        found.append(str(values[name]))
    return tuple(found)

@few
@given(programs)
def test_the_sandbox_says_what_python_says(program): assert run(program) == python_says(program)

@few
@given(programs)
def test_places_are_the_words_right_of_an_equals_sign_or_in_a_condition(program):
    said = program.split()
    assert len(places(program)) == len(lines_of(program)) == (9 if 'h' in names_of(program) else 10)
    assert all(said[i] in words for i in places(program)) and len(looked_at(program)) == 8
    assert set(lines_of(program)) == set(names_of(program))

@few
@given(programs, st.data())
def test_a_difference_makes_the_other_program_and_can_be_taken_back(program, data):
    other = mutant(program, data)
    diff = difference(program, other)
    assert changed(program, diff) == other and changed(other, taken_back(diff)) == program
    assert lines_of(other) == lines_of(program) and names_of(other) == names_of(program)

@few
@given(programs, st.data())
def test_whatever_is_put_every_test_says_something_readable(program, data):
    found = run(mutant(program, data, most=8))
    assert len(found) == 8 and all(value in (*errors, 'True', 'False') or -1000 < int(value) < 1000 for value in found)

def test_originals_are_without_errors_and_small():
    for seed in range(200): assert not set(run(draw_program(Random(seed), 'train'))) & set(errors)

def test_splits_share_no_program():
    env = BugRepair(tester=run)
    named = {split: {task['program'] for task in env.tasks(split, 60)}
        | {task['program'] for task in InjectBug(tester=run).tasks(split, 60)} for split in splits}
    assert sum(map(len, named.values())) == len(set.union(*named.values()))
    assert all(split_of(['bug', program]) == split for split, some in named.items() for program in some)
    assert env.tasks('test', 20) == BugRepair().tasks('test',
        20) and env.tasks('test', 20) != env.tasks('test', 20, seed=1)
    assert json.loads(json.dumps(env.tasks('demo', 3))) == env.tasks('demo', 3)

# ---- the sandbox and its faults

def raising(code, names): raise OSError('no worker')

@pytest.mark.parametrize('broken',
    [raising, lambda *_: Result(True, ''), lambda *_: Result(True, 'all pass'),
    lambda *_: Result(True, "[['1']]"), lambda *_: Result(True, "[1, 2, 3, 4]"),
    lambda *_: Result(True, '(' * 500), lambda *_: Result(True, "[['1', '2', 3]]*4"),
    lambda *_: None, lambda *_: Result(False, '', 'RuntimeError: the interpreter stopped'),
    lambda *_: Result(False, '', 'MemoryError: too much'), lambda *_: Result(False)])
def test_a_sandbox_that_fails_gives_no_verdict(broken):
    tester = Runner(broken)
    with pytest.raises(EnvError, match='no test (was run|has a verdict)'): tester(ONE)
    assert not tester.known
    assert consistency(Artifact(ONE, EXPECTED, ((8, '3', '4'),),
        (5, 6, 7)), tester).startswith('the tests could not be run')
    with pytest.raises(EnvError): BugRepair(tester=tester).reset(0, dict(program=ONE, bug=with_word(ONE, 8, '4')))
    with pytest.raises(EnvError): InjectBug(tester=tester).reset(0, dict(program=ONE))

def test_a_sandbox_that_fails_in_the_middle_changes_nothing():
    box = MontySandbox(seconds=1.)
    calls = []
    def failing_later(code, names):
        calls.append(code)
        if len(calls) > 2: raise OSError('gone')
        return box(code, names)
    env = BugRepair(tester=Runner(failing_later))
    env.reset(0, dict(program=ONE, bug=with_word(ONE, 4, '-')))
    before = env.program
    with pytest.raises(EnvError, match='no test was run'): env.step('put + at 4')
    assert env.program == before and not env.over
    assert env.step('put * at 4').info['success']  # known already: this program was run

def test_a_program_that_hangs_or_raises_fails_its_tests():
    for place, word, reason in ((5, '+', 'Endless'), (5, '*', 'Endless'), (2, '<', None), (4, 'g', 'NameError'),
                                (0, '>', 'SyntaxError')):
        found = run(with_word(TWO, place, word))
        assert failing(found, run(TWO)) and (reason is None or reason in found), (place, word, found)

def test_a_real_clock_ends_what_is_not_counted(monkeypatch):
    monkeypatch.setattr(module, 'code_of', lambda program: 'while True: pass')
    tester = Runner(MontySandbox(seconds=.2))
    with pytest.raises(EnvError, match='TimeoutError.*no test has a verdict'): tester(ONE)
    assert not tester.known and 'could not be run' in consistency(GOOD, tester)

def test_programs_are_run_once():
    asked = []
    tester = Runner(lambda *call: asked.append(call) or run.sandbox(*call), most=3)
    for _ in range(3): tester(ONE), tester(TWO)
    assert len(asked) == 2
    for seed in range(5): tester(draw_program(Random(seed), 'demo'))
    assert len(tester.known) <= 3

# ---- what an agent may write

HOSTILE = ["put __import__('os') at 3", "put __import__ at 3", 'put import at 3', 'put = at 1', 'put ; at 1',
    'put : at 1', 'put while at 1', 'put - at 4\nimport os', 'put - at 4; import os', 'put -at 4',
    'put - at four', 'put - at 99', 'put - at -1', 'put - at ٤', 'put ／ at 4',
    'put (x:=9) at 0', 'put - at 4 put', 'drop __import__', 'put \x00 at 1', 'put turns at 0', 'put found at 0',
    'put x.y at 0', '', 'put', 'put - at', 'test test', 'PUT - AT 4', 'put 10**10 at 2', 'put 9 at 2']

@pytest.mark.parametrize('action', HOSTILE)
def test_hostile_actions_are_never_run(action):
    asked = []
    tester = Runner(lambda *call: asked.append(call[0]) or run.sandbox(*call))
    env = BugRepair(tester=tester)
    env.reset(0, dict(program=ONE, bug=with_word(ONE, 1, '-')))
    inject = InjectBug(tester=tester)
    inject.reset(0, dict(program=ONE))
    count = len(asked)
    for one in (env, inject):
        before = one.program
        step = one.step(action)
        assert (step.info['invalid'] and step.observation == 'Nothing happens.' and one.program == before
            and step.reward == {one.seats[0]: 0.})
    assert len(asked) == count and read_put(action, ONE) is None

@few
@given(st.text(max_size=60))
def test_any_text_is_an_action(text):
    env = BugRepair(tester=run)
    env.reset(0, dict(program=ONE, bug=with_word(ONE, 4, '-')))
    assert set(env.step(text).info) >= {'legal', 'state', 'invalid',
        'milestone'} and set(env.program.split()) <= {*words, *frame}

@pytest.mark.parametrize('task', ['x', {}, dict(program=ONE, bug=with_word(ONE, 8, '4'), order=0),
    dict(program=ONE, bug=with_word(ONE, 8, '4'), dropped='5'), dict(program=ONE),
    dict(program=ONE, bug='import os'), dict(program="__import__('os')", bug=ONE),
    dict(program=ONE, bug=ONE), dict(program=ONE, bug=TWO),
    dict(program=ONE + ' ; import os', bug=ONE + ' ; import os'),
    dict(program=ONE, bug=ONE.replace('2', '(2)')),
    dict(program=ONE, bug=with_word(ONE, 8, '4'), dropped=[8]),
    dict(program=ONE, bug=with_word(ONE, 8, '4'), dropped=['os']),
    dict(program=ONE.replace('2', '9'), bug=ONE),
    dict(program=ONE, bug=ONE.replace(' ; ', '\n'))])
def test_tasks_that_are_none_are_refused(task):
    with pytest.raises(ValueError): BugRepair(tester=run).reset(0, task)

def test_code_is_made_of_known_words():
    for text in ("f = __import__('os')", 'f = x\nimport os', 'f = x ; import os', 'f = 9', 'f = x.y'):
        with pytest.raises(ValueError, match='a program is made of'): code_of(text)
    with pytest.raises(ValueError): run('f = open')

# ---- the two games

def test_a_repair_by_hand():
    env = BugRepair(tester=run)
    step = env.reset(0, dict(program=ONE, bug=with_word(ONE, 8, '4'), dropped=[5, 6, 7]))
    assert (step.observation == 'repair: f = x + 2 ; g = f * y ; h = g - 4. removed 5 6 7. h 2 5 gives 1 6 not 1 7. h '
        '5 1 gives 3 not 4.')
    assert step.info['milestone'] == 5/8 and step.info['answer'] == ONE
    assert env.step('test').observation == 'fail 5 6 7. h 4 3 gives 1 4 not 1 5. h 2 5 gives 1 6 not 1 7.'
    assert env.step('put _ at 8').observation.startswith('fail 0 1 2 3 4 5 6 7. f 2 5 gives SyntaxError not 4.')
    twin = env.clone()
    last = env.step('put 3 at 8')
    assert (last.reward, last.done, last.info['success'], last.observation) == ({'solver': 1.}, True, True, 'all pass.')
    with pytest.raises(EnvError): env.step('test')
    for _ in range(3): last = twin.step('put 5 at 8')
    assert (last.done and not last.info['truncated'] and not last.info['success']
        and last.observation == 'fail: f = x + 2 ; g = f * y ; h = g - 5.')
    assert 'pass' in env.render() and env.render().startswith(ONE)

def test_other_words_may_do_as_well():
    env = BugRepair(tester=run)
    env.reset(0, dict(program='f = x * 1 ; g = f + y ; h = g - 3', bug='f = x * 1 ; g = h + y ; h = g - 3'))
    assert env.step('put x at 3').info['success']

def test_both_games_keep_the_rules_of_the_protocol():
    for env in (BugRepair(tester=run), BugRepair(level=3, changes=3, horizon=2, tester=run), InjectBug(tester=run),
                InjectBug(level=3, tester=run), InjectBug(allowed=words, tester=run),
                InjectBug(allowed=('_',), tester=run), BugWork(BugRepair(tester=run))):
        assert set(check_env(env, seeds=(0, 1)).values()) == {'ok'}

def test_experts_and_demonstrators():
    draw = Random(0)
    for level in levels:
        env, inject = BugRepair(level, tester=run), InjectBug(level, tester=run)
        for one in (env, inject):
            for task in one.tasks('demo', 15):
                step = one.reset(0, task)
                while not step.done: step = one.step(one.expert())
                assert step.info['success'], (level, task)
            one.reset(0)
            for act in (one.expert, one.demonstrator):
                with pytest.raises(ValueError, match='noise needs a generator'): act(.5)
                assert isinstance(act(.5, draw), str)

@pytest.mark.parametrize('make',
    [lambda: BugRepair(level=0), lambda: BugRepair(horizon=0), lambda: BugRepair(details=9),
    lambda: BugRepair(changes=True), lambda: BugRepair(split='dev'), lambda: InjectBug(horizon=1),
    lambda: InjectBug(level=True), lambda: InjectBug(allowed=()),
    lambda: InjectBug(allowed=('os',)), lambda: InjectBug(split='x'), lambda: BugWork(split='x'),
    lambda: InjectBug(tester=run).reset(0, dict(program=ONE, line='z')),
    lambda: InjectBug(tester=run).reset(0, -1), lambda: InjectBug(tester=run)
    .reset(0, dict(line='f')), lambda: InjectBug(tester=run).reset(-1)])
def test_bad_options(make):
    with pytest.raises(ValueError): make()

def test_a_copy_plays_alike_and_another_process_too():
    env = BugRepair(tester=run)
    env.reset(3)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        action = env.expert()
        assert twin.clone().step(action) == env.clone().step(action)
    far = Isolated(BugRepair(), limit=20.)
    try: assert far.reset(3).observation == env.reset(3).observation and far.step(env.expert()).info['success']
    finally: far.close()

def test_the_global_random_state_is_left_alone():
    before = random_states()
    BugRepair(tester=run).reset(5), InjectBug(tester=run).tasks('test', 5)
    assert random_states() == before

# ---- consistency

GOOD = Artifact(ONE, EXPECTED, ((8, '3', '4'),), (5, 6, 7))
def after(calls, other):
    count = iter(range(100))
    return lambda program: run(program) if next(count) < calls else other

@pytest.mark.parametrize('artifact, tests, why', [
    (GOOD, run, ''), (replace(GOOD, dropped=(0, 5, 6, 7)), run, ''), (replace(GOOD, dropped=tuple(range(8))), run, ''),
    (replace(GOOD, expected=('5', *EXPECTED[1:])), run, 'do not pass before'),
    (replace(GOOD, diff=(), dropped=()), run, 'breaks no test'),
    (replace(GOOD, diff=((8, '3', '3'),)), run, 'breaks no test'),
    (replace(GOOD, dropped=(5, 6)), run, 'notice the bug'),
    (replace(GOOD, dropped=()), run, 'notice the bug'), (GOOD, after(2, ('0',)*8), 'does not repair'),
    (replace(GOOD, diff=((8, '3', '4'), (0, 'x', 'x'))), run, 'place 0 makes no difference'),
    (replace(GOOD, diff=((8, '2', '4'),)), run, 'cannot be made'),
    (replace(GOOD, diff=((8, '3', 'os'),)), run, 'cannot be made'),
    (replace(GOOD, diff=((9, '3', '4'),)), run, 'cannot be made'),
    (replace(GOOD, diff=((-1, '3', '4'),)), run, 'cannot be made'),
    (GOOD, Runner(raising), 'could not be run'), (replace(GOOD, expected=EXPECTED[:7]), run, 'could not be run'),
    (replace(GOOD, program='import os', diff=()), run, 'could not be run'),
    (GOOD, lambda program: None, 'could not be run'), (GOOD, after(3, None), 'makes no difference'),
    (GOOD, after(1, None), 'could not be run')])
def test_every_check_has_a_case_that_fails_it(artifact, tests, why):
    found = consistency(artifact, tests)
    assert why in found if why else found == '', found

def test_checks_come_in_order():
    worst = replace(GOOD, expected=('5', *EXPECTED[1:]), diff=(), dropped=())
    assert 'before' in consistency(worst, run) and 'no test' in consistency(replace(worst, expected=EXPECTED), run)

@few
@given(programs, st.data())
def test_what_is_accepted_can_be_played(program, data):
    other = mutant(program, data, most=3)
    broken = failing(run(other), run(program))
    artifact = Artifact(program, run(program), difference(program, other), broken)
    if consistency(artifact, run):
        assert not broken or any(run(with_word(other, place, old)) == run(other) for place, old, _ in artifact.diff)
    else:
        env = BugRepair(horizon=20, tester=run)
        step = env.reset(0, solver_task(artifact))
        while not step.done: step = env.step(env.expert())
        assert step.info['success']

# ---- self-play

def tiny(seed=0, warm=0):
    tokenizer = word_tokenizer(vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 256, hidden=32, seed=seed), tokenizer, name='tiny')
    return warm_start(policy, BugWork(BugRepair(tester=run), InjectBug(tester=run), split='demo'), steps=warm,
        episodes=16, pool=256, lr=8e-3, noise=.1, seed=seed) if warm else policy

@pytest.fixture(scope='module')
def able():
    "A policy that injects something now and then."
    return tiny(warm=90)

def scripted(monkeypatch, noise=0.):
    "The experts in place of the policy: `play` of self-play asks them."
    from agentlab.selfplay import bugs
    def plays(policy, env, seeds, group_size=1, tasks=None, groups=None, seed=0, step=0, name='', **how):
        episodes = []
        for i, group in enumerate(groups):
            for m in range(group_size):
                world, draw = env.clone(), Random(f'{seed} {group} {m}')
                now = world.reset(seeds[i], tasks[i])
                episode = Episode(group=group, game=group*group_size + m, seat=env.seats[0], task=tasks[i])
                while not now.done:
                    action = world.demonstrator(noise, draw)
                    episode.turns.append(module_turn(len(episode.turns), now, action))
                    now = world.step(action)
                episode.success, episode.final = now.info['success'], now.observation
                episodes.append(episode)
        return episodes
    monkeypatch.setattr(bugs, 'play', plays)

def module_turn(t, now, action):
    from agentlab.episodes import Turn
    return Turn(t, now.observation, action, [1], [2], [-.5], [.5], 0., now.info['state'])

def test_a_round_of_experts(monkeypatch):
    scripted(monkeypatch)
    env = BugRepair(tester=run)
    episodes = self_play(None, env, [5, 6, 7], group_size=2, groups=[10, 11, 12], tries=3)
    makers, solvers = [[e for e in episodes if e.seat == seat] for seat in ('injector', 'solver')]
    assert len(makers) == 6 and len(solvers) == 18 and all(e.success for e in episodes)
    assert [e.game for e in episodes] == sorted({e.game for e in episodes}) and len({e.game for e in episodes}) == 24
    assert {e.columns['solved'] for e in makers} == {1.} and all(kind_of(e.task) == e.columns['kind'] for e in episodes)
    assert {e.group for e in makers} == {30, 33, 36} and {e.group for e in solvers} == {31, 32, 34, 35, 37, 38}
    batch = Batch.from_episodes(episodes)
    paid = bug_reward(batch)
    for k, e in enumerate(episodes):
        assert abs(paid[batch.turns.episode == k].sum() - (1. if e.seat == 'solver' else -.8)) < 1e-9
    assert higher_order(batch) == []

def test_a_group_may_get_a_bug_instead(monkeypatch):
    scripted(monkeypatch, noise=1.)
    env = BugRepair(tester=run)
    bug = env.tasks('train', 1)[0] | dict(order=2)
    episodes = self_play(None, env, [1, 2], groups=[0, 1], bugs=[bug, None], tries=12)
    assert ([e.task for e in episodes if e.group == 1] == [bug]*12
        and not any(e.seat == 'injector' and e.group == 0 for e in episodes))
    left = higher_order(Batch.from_episodes(episodes))
    assert {task['order'] for task in left if task['program'] == bug['program']} == {3}
    for task in left:
        assert failing(run(task['bug']), run(task['program'])) and task['bug'] not in (task['program'], bug['bug'])
    only = self_play(None, env, [1], groups=[0], bugs=[bug], tries=2)
    assert torch.isfinite(bug_reward(Batch.from_episodes(only))).all() and len(only) == 2
    with pytest.raises(ValueError, match='one per group'): self_play(None, env, [1, 2], bugs=[None])

def test_what_was_not_tried_is_not_learned_from():
    task = dict(program=ONE, line='h')
    made = [Episode(group=0, seat='injector', success=True, task=task),
        Episode(group=2, game=1, seat='injector', success=False, task=task)]
    tried = [Episode(group=1, game=2 + k, seat='solver', task=dict(program=ONE, bug=with_word(ONE, 8, '4')),
        error='the sandbox failed', success=False) for k in range(2)]
    judged(made, tried, 1)
    assert made[0].error and made[1].error is None and made[1].columns['valid'] == 0.
    tried[0].error, made[0].error = None, None
    judged(made, tried, 1)
    assert made[0].error is None and made[0].columns['solved'] == 0.

def test_an_artifact_is_what_the_actions_made():
    env, actions = InjectBug(tester=run), ['put - at 4', 'drop fail']
    episode = Episode([module_turn(t, env.reset(0, dict(program=ONE)), action) for t, action in enumerate(actions)],
        seat='injector', success=True, task=dict(program=ONE, line='g'))
    assert artifact_task(env, episode) == dict(program=ONE, bug=with_word(ONE, 4, '-'), dropped=[2, 3, 4, 5, 6, 7],
        order=1)
    assert (artifact_task(env, replace(episode, success=False)) is None
        and artifact_task(env, replace(episode, error='x')) is None)
    assert artifact_task(env, replace(episode, turns=episode.turns[1:])) is None  # it says success, the tests say no
    gone, dead = replace(episode), InjectBug(tester=Runner(raising))
    assert artifact_task(dead, gone) is None and 'no test was run' in gone.error
    longer = replace(episode, turns=episode.turns*2)
    assert artifact_task(env, longer) is None and longer.error

def ssr(steps, seed=0, **changes):
    return Recipe(**dict(name='ssr', paper='', credit=trr_pp, rollout=self_play, rollout_args=dict(tries=4),
        reward=bug_reward, memory=partial(BugPool, groups=6, share=.4), groups=6, group_size=1,
        steps=steps, lr=1e-3, minibatches=1,
        max_tokens=10, test_tasks=4, seed=seed, checkpoint_every=1) | changes)

def weights(policy): return torch.cat([p.detach().flatten() for p in policy.model.parameters()])

def test_one_trainer_moves_both_and_goes_on_where_it_was_killed(able, tmp_path):
    def fresh():
        policy = tiny()
        policy.model.load_state_dict(able.model.state_dict())
        return policy
    whole, cut = fresh(), fresh()
    done = train(whole, BugRepair(tester=run), ssr(3), tmp_path/'whole', progress=False)
    count = []
    train(cut, BugRepair(tester=run), ssr(3), tmp_path/'cut', progress=False, on_row=count.append,
        should_stop=lambda: len(count) == 2)
    cut = fresh()
    again = train(cut, BugRepair(), ssr(3), tmp_path/'cut', resume=True, progress=False)
    assert len(done.rows()) == len(again.rows()) == 3 and not torch.equal(weights(whole), weights(able))
    assert torch.equal(weights(whole), weights(cut))
    assert not any(row['skipped'] for row in done.rows()) and done.rows()[-1]['pool'] > 0
    same = ('valid', 'solved', 'solved_again', 'pool', 'success', 'loss')
    assert [[row[k] for k in same] for row in done.rows()] == [[row[k] for k in same] for row in again.rows()]
    assert any(row['valid'] > 0 for row in done.rows())

def test_a_round_in_which_nothing_is_injected_still_teaches(tmp_path):
    rows = train(tiny(), BugRepair(tester=run), ssr(1, test_tasks=0, groups=3, memory=partial(BugPool, groups=3)),
        tmp_path, progress=False).rows()
    assert rows[0]['valid'] == 0. and rows[0]['solved'] is None

def test_a_sandbox_that_dies_ends_its_episodes_and_not_the_run(able):
    count = []
    def dying(code, names):
        count.append(code)
        if len(count) % 7 == 0: raise OSError('no worker')
        return run.sandbox(code, names)
    env = BugRepair(tester=Runner(dying))
    episodes = play(able, env, list(range(8)), 2, [dict(task) for task in BugRepair(tester=run).tasks('train', 8)],
        max_tokens=10)
    assert len(episodes) == 16 and any(e.error and 'no test was run' in e.error
        for e in episodes) and not any(e.error and e.success for e in episodes)

def test_an_injector_is_not_blamed_for_the_sandbox():
    known = Runner()
    env = InjectBug(tester=known)
    env.reset(0, dict(program=ONE))
    env.step('put - at 4')
    known.known.clear()
    known.sandbox = raising
    with pytest.raises(EnvError, match='could not be run'): env.step('drop fail')

def test_self_play_goes_on_when_the_sandbox_dies(able):
    for every in (1, 3, 11):
        count = []
        def dying(code, names):
            count.append(code)
            if len(count) % every == 0: raise OSError('no worker')
            return run.sandbox(code, names)
        episodes = self_play(able, BugRepair(tester=Runner(dying)), list(range(6)), group_size=2, tries=2,
            max_tokens=10)
        makers = [e for e in episodes if e.seat == 'injector']
        assert len(makers) == 12 and not any(e.error and e.columns['valid']
            and e.columns['solved'] == e.columns['solved'] for e in makers)
        if every == 1: assert all(e.error for e in episodes)

def test_the_pool_forgets_the_oldest_and_the_deepest():
    games = demonstrate(BugRepair(tester=run), tiny().chat, list(range(40)), noise=1.)
    batch = Batch.from_episodes([replace(game, columns=dict(kind=0., order=float(1 + k % 2), valid=torch.nan,
        solved=torch.nan)) for k, game in enumerate(games)])
    pool = BugPool(groups=4, share=1., most=10, deepest=2)
    pool.read(batch, 0)
    assert len(pool.bugs) == 10 and {task['order'] for task in pool.bugs} == {2}
    seen = [json.dumps(task) for step in range(4) for task in pool.plan(step)['group_args']['bugs'] if task]
    assert len(seen) == len(set(seen)) == 10 and pool.bugs == []
    pool.restore(pool.tensors())
    assert pool.bugs == [] and pool.plan(9) == dict(group_args=dict(bugs=[None]*4))
    for bad in (dict(share=-.1), dict(most=0), dict(deepest=True), dict(groups=0)):
        with pytest.raises(ValueError): BugPool(**bad)
