"Properties of the environments over random houses, games and seeds: what a notebook cell cannot show."
import json, os, random, subprocess, sys
from collections import deque
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env import (Env, EnvError, GuessNumber, KeyDoor, Step, TextEnv, check_env, check_seat_order, envs,
    load_env, split_of, splits)
from agentlab.env.keydoor import all_layouts, draw_layout, exits, layout_id, shortest
from agentlab.env.protocol import canonical, check_seed, random_states

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**64)
houses = st.sampled_from([dict(size=2, horizon=8, closed=0), dict(), dict(closed=4, horizon=20),
    dict(size=4, horizon=16, closed=5), dict(size=5, horizon=30, closed=16)])
games = st.one_of(houses.map(lambda options: KeyDoor(**options)),
    st.sampled_from([dict(), dict(low=0, high=40), dict(horizon=3)])
    .map(lambda options: GuessNumber(**options)))
texts = st.one_of(st.sampled_from(['go north', 'go south', 'go east', 'go west', 'take key', 'open chest', 'guess 8',
    'guess 3']), st.text('gonrthews aku17.\n\0\u00e9\U0001F511', max_size=20))

def play(env, seed, choose, task=None):
    "All steps of one episode."
    steps = [env.reset(seed, task)]
    while not steps[-1].done: steps.append(env.step(choose(steps[-1])))
    return steps

def random_legal(seed):
    generator = Random(seed)
    return lambda step: generator.choice(step.info['legal'])

# ---- every environment

@few
@given(games, seeds, seeds)
def test_same_seed_same_episode(env, seed, other):
    first = play(env, seed, random_legal(1))
    play(env, other, random_legal(2))
    assert play(env, seed, random_legal(1)) == first

@few
@given(games, seeds, st.lists(texts, max_size=40))
def test_any_text_is_played_and_the_horizon_holds(env, seed, actions):
    step, turns = env.reset(seed), 0
    for action in actions:
        if step.done: break
        before, legal = step.info['state'], step.info['legal']
        step, turns = env.step(action), turns + 1
        if action in legal: assert not step.info['invalid']
        if step.info['invalid']: assert step.info['state'] == before and step.observation.startswith('Nothing happens.')
        assert turns <= env.horizon
        assert step.done == (step.info['success'] or turns == env.horizon)
        assert not step.info['truncated']  # its horizon is a rule
        assert step.reward == {'player': float(step.info['success'])}
    if step.done:
        with pytest.raises(EnvError, match='call reset'): env.step('go north')

@few
@given(games, seeds, seeds, st.integers(0, 6))
def test_clones_are_independent(env, seed, other, turns):
    choose, step = random_legal(seed), env.reset(seed)
    for _ in range(turns):
        if not step.done: step = env.step(choose(step))
    twin, stray = env.clone(), env.clone()
    if step.done:
        with pytest.raises(EnvError): twin.step('go north')
        return
    stray.reset(other)
    stray.step('go north')
    action = choose(step)
    stray_was = stray.facts()
    assert twin.step(action) == env.step(action)
    assert stray.facts() == stray_was

@few
@given(games, seeds)
def test_global_random_state_is_untouched(env, seed):
    before = random_states()
    assert set(before) == {'random', 'numpy', 'torch'}
    play(env, seed, random_legal(seed))
    env.tasks('test', 5)
    env.reset(seed)
    env.expert(.5, Random(0)), env.clone()
    assert random_states() == before

@pytest.mark.parametrize('name', envs)
def test_registry_environments_keep_the_rules(name):
    for split in splits: assert set(check_env(load_env(name, split=split)).values()) == {'ok'}

@few
@given(games, seeds)
def test_expert_always_wins_and_noise_is_seeded(env, seed):
    if env.horizon > 3: assert play(env, seed, lambda step: env.expert())[-1].info['success']
    def noisy(number):
        generator = Random(number)
        return play(env, seed, lambda step: env.expert(.5, generator))
    assert noisy(3) == noisy(3)
    with pytest.raises(ValueError, match='noise needs a generator'): env.expert(.5)

@few
@given(games, seeds)
def test_vocabulary_covers_what_is_said(env, seed):
    import re
    words, generator = set(env.vocabulary()), Random(seed)
    steps = play(env, seed, lambda step: env.expert(.6, generator) if generator.random() < .8 else 'open chest')
    for step in steps:
        for text in [step.observation, *step.info['legal']]: assert set(re.findall(r'\w+|[^\w\s]', text)) <= words

@pytest.mark.parametrize('kind', [KeyDoor, GuessNumber])
def test_tasks_are_distinct_repeatable_and_of_their_split(kind):
    env, seen = kind(), {}
    for split in splits:
        tasks = env.tasks(split, 100)
        assert tasks == kind(split='demo').tasks(split, 100) != env.tasks(split, 100, seed=1)
        for task in tasks:
            assert seen.setdefault(canonical(task), split) == split
            env.reset(0, task)
        assert len({canonical(task) for task in tasks}) == 100
    with pytest.raises(ValueError, match='n=100000'):
        env.tasks('test', 100_000) if kind is GuessNumber else KeyDoor(size=2, closed=0).tasks('test', 100_000)
    with pytest.raises(ValueError, match='train, demo, test'): env.tasks('valid', 1)

def test_nothing_depends_on_the_hash_seed():
    code = ("from agentlab.env import *; import json; e = KeyDoor(); print(json.dumps([e.reset(s).info['state'] for s "
        "in range(20)] + e.tasks('test', 5) + [GuessNumber().reset(s).info['state'] for s in range(9)]))")
    runs = {subprocess.run([sys.executable, '-c', code],
        env=dict(os.environ, PYTHONHASHSEED=str(number), PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True, text=True, check=True).stdout for number in (1, 2)}
    assert len(runs) == 1 and len(json.loads(runs.pop())) == 34

def test_importing_environments_does_not_import_torch():
    code = ("import sys, agentlab.env; assert not {'torch', 'numpy', 'transformers', 'pandas'} & set(sys.modules), "
        "sorted(sys.modules)")
    subprocess.run([sys.executable, '-c', code], env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)), check=True)

# ---- KeyDoor

def search(env):
    "Fewest turns to success, by breadth-first search through clones: knows nothing of rooms or distances."
    frontier, seen = deque([(env.clone(), 0)]), {env.facts()['state']}
    while frontier:
        here, turns = frontier.popleft()
        for action in here.legal():
            there = here.clone()
            there.turns = 0  # search beyond the horizon too
            step = there.step(action)
            if step.info['success']: return turns + 1
            if step.info['state'] not in seen:
                seen.add(step.info['state'])
                frontier.append((there, turns + 1))

@settings(max_examples=25, deadline=None)
@given(houses, seeds)
def test_expert_takes_a_shortest_way(options, seed):
    env = KeyDoor(**options)
    steps = play(env, seed, lambda step: env.expert())
    env.reset(seed)
    assert len(steps) - 1 == shortest(env.layout) == search(env) <= env.horizon

@few
@given(houses, seeds, st.sampled_from(splits))
def test_layouts_belong_to_their_split_and_hold_together(options, seed, split):
    env = KeyDoor(split=split, **options)
    env.reset(seed)
    layout = env.layout
    assert split_of(layout) == split == split_of(json.loads(json.dumps(layout)))
    assert len({layout['start'], layout['key'], layout['chest']}) == 3 and len(set(layout['closed'])) == env.closed
    place = exits(env.size, tuple(layout['closed']))
    assert sum(map(len, place.values())) == 2*(2*env.size*(env.size - 1) - env.closed)
    back = dict(north='south', south='north', east='west', west='east')
    assert all(place[other][back[way]] == room for room, near in place.items() for way, other in near.items())

def test_splits_are_disjoint_and_drawn_evenly():
    everything = {layout_id(layout): split_of(layout) for layout in all_layouts()}
    assert len(everything) == 31_200
    drawn = [KeyDoor(closed=2, split=split).tasks(split, 700) for split in splits]
    names = [{layout_id(layout) for layout in some} for some in drawn]
    assert not (names[0] & names[1] or names[0] & names[2] or names[1] & names[2])
    for split, some in zip(splits, names): assert {everything[name] for name in some} == {split}
    starts = [sum(layout['start'] == room for some in drawn for layout in some) / 2100 for room in ('a1', 'b2', 'c3')]
    assert all(abs(share - 1/9) < .03 for share in starts)

def test_a_success_needs_the_key():
    env = KeyDoor(size=3)
    house = dict(size=3, start='a1', key='b1', chest='a2', closed=[])
    env.reset(0, house)
    assert env.step('go south').observation.startswith('You are in a2.')
    assert env.step('open chest').info['invalid']
    for action in ('go north', 'go east', 'take key'): env.step(action)
    assert env.step('take key').info['invalid'] and env.has_key  # there is only one key
    assert 'You hold the key.' in env.step('go west').observation
    env.step('go south')
    assert env.step('Open  chest.\n').reward == {'player': 1.}

@pytest.mark.parametrize('options, message', [(dict(size=1), 'size=.*whole'), (dict(size=27), 'size=.*whole'),
    (dict(size='3'), 'size=.*whole'), (dict(closed=-1), 'closed must'),
    (dict(size=2, closed=2), 'falls apart'), (dict(horizon=3), 'horizon=.*whole'),
    (dict(horizon=None), 'horizon=.*whole'), (dict(split='dev'), 'split must')])
def test_bad_parameters_of_a_house(options, message):
    with pytest.raises(ValueError, match=message): KeyDoor(**options)

@pytest.mark.parametrize('change, message', [(dict(start='b1'), 'three different rooms'), (dict(key='z9'), 'a1 to c3'),
    (dict(closed=['a1-c3']), 'which is no door'),
    (dict(closed=['a1-a2', 'a1-b1']), 'cannot be reached'), (dict(size=4), 'KeyDoor'), (dict(size=None), 'size')])
def test_bad_layouts(change, message):
    house = dict(size=3, start='a1', key='b1', chest='a2', closed=[])
    with pytest.raises(ValueError, match=message): KeyDoor(size=3).reset(0, house | change)
    with pytest.raises(ValueError, match='layout lacks chest'):
        KeyDoor(size=3).reset(0, {part: value for part, value in house.items() if part != 'chest'})

def test_impossible_house_is_an_error_not_a_loop():
    with pytest.raises(ValueError, match='raise horizon'): draw_layout(Random(0), 6, 0, 3, 'test')

@pytest.mark.parametrize('seed, error', [(-1, ValueError), ('0', TypeError), (1.5, TypeError), (None, TypeError)])
def test_bad_seeds(seed, error):
    with pytest.raises(error, match='seed must'): KeyDoor().reset(seed)
    assert KeyDoor().reset(np.int64(3)) == KeyDoor().reset(3)

# ---- GuessNumber

@few
@given(st.integers(0, 20), st.integers(7, 60), seeds)
def test_halving_always_finds_the_number(low, width, seed):
    env = GuessNumber(low, low + width)
    for task in env.tasks('train', 10, seed=seed):
        steps = play(env, 0, lambda step: env.expert(), task)
        assert steps[-1].info['success']
        assert all(step.info['state'][3] <= task['secret'] <= step.info['state'][4] for step in steps)

@pytest.mark.parametrize('options, message', [(dict(low=5, high=6), 'at least 8'), (dict(low=-1), 'at least 8'),
    (dict(low=1.), 'whole numbers'), (dict(horizon=0), 'horizon=.*whole'),
    (dict(split='x'), 'split must')])
def test_bad_parameters_of_a_guess(options, message):
    with pytest.raises(ValueError, match=message): GuessNumber(**options)

def test_guess_parsing():
    env = GuessNumber()
    env.reset(0, dict(low=1, high=16, secret=5))
    for text in ('guess 17', 'guess 0', 'guess -3', 'guess \u0665', 'guess 5 6', 'guess', 'guess 99999999999999999999'):
        assert GuessNumber.step(env.clone(), text).info['invalid'], text
    assert env.step('GUESS 05').info['success']

# ---- the conformance test on games with several seats

class Nim(Env):
    "Take 1 or 2 of the stones in turn; who takes the last one wins, and the other pays."
    seats = ('first', 'second')
    def reset(self, seed, task=None):
        self.stones, self.seat = task or Random(check_seed(seed)).randint(4, 9), 0
        return Step('first', f'{self.stones} stones.',
            info=dict(state=(self.stones, 0), legal=['take 1', 'take 2'][:self.stones]))
    def step(self, action):
        if not self.stones: raise EnvError('nim: the game is over; call reset')
        taken = action in ('take 1', 'take 2') and min(int(action[-1]), self.stones) or 1
        self.stones -= taken
        mover, self.seat = self.seats[self.seat], 1 - self.seat
        reward = {mover: 1, self.seats[self.seat]: -1} if not self.stones else {}
        return Step(self.seats[self.seat], f'{self.stones} stones.', reward, not self.stones,
            dict(state=(self.stones, self.seat), legal=['take 1', 'take 2'][:self.stones]))

def test_several_seats_pass_and_their_order_is_checked():
    assert set(check_env(Nim(), in_turn=True).values()) == {'ok'}
    class Greedy(Nim):
        def step(self, action):
            step = super().step(action)
            self.seat = 0
            step.seat = 'first'
            return step
    assert set(check_env(Greedy()).values()) == {'ok'}  # a seat may move twice ...
    # ... unless the order is fixed
    with pytest.raises(EnvError, match='order: after .first'): check_env(Greedy(), in_turn=True)

def spoiled(**parts):
    "Nim whose steps have some parts replaced."
    class Spoiled(Nim):
        def step(self, action):
            step = super().step(action)
            vars(step).update(parts)
            return step
    return Spoiled()

@pytest.mark.parametrize('parts, rule', [(dict(observation=3), 'types'), (dict(reward=1.), 'types'),
    (dict(done=1), 'types'), (dict(info=None), 'types'), (dict(info=dict(legal='take 1')), 'types'),
    (dict(seat='third'), 'seats'), (dict(reward=dict(third=0)), 'rewards'),
    (dict(reward=dict(first=float('inf'))), 'rewards'), (dict(reward=dict(first='1')), 'rewards'),
    (dict(reward=dict(first=None)), 'rewards'),
    (dict(info=dict(state=object())), 'state'), (dict(info=dict(state=b'a')), 'state'),
    (dict(info=dict(state=(1, frozenset()))), 'state')])
def test_each_spoiled_part_is_named(parts, rule):
    with pytest.raises(EnvError, match=f'^{rule}:'): check_env(spoiled(**parts))

@pytest.mark.parametrize('seats', [(), ['first', 'second'], ('first', 'first'), ('first', 2), None])
def test_bad_seats(seats):
    env = Nim()
    env.seats = seats
    with pytest.raises(EnvError, match='^seats:'): check_env(env)

@pytest.mark.parametrize('draw', [random.random, lambda: np.random.rand(), lambda: torch.rand(1)],
    ids=['random', 'numpy', 'torch'])
def test_every_global_generator_is_watched(draw):
    class Rolls(Nim):
        def step(self, action):
            draw()
            return super().step(action)
    with pytest.raises(EnvError, match='^random: an episode changed the global generator'): check_env(Rolls())

def test_unseeded_randomness_is_found():
    generator = Random(0)
    class Moody(Nim):
        def step(self, action):
            step = super().step(action)
            step.observation += f' {generator.random()}'
            return step
    with pytest.raises(EnvError, match='^seed: two episodes of seed 0 part at turn 1'): check_env(Moody())

def test_a_report_says_what_it_could_not_see():
    class Endless(TextEnv):
        def start(self, seed, task=None): return 'Go on.'
        def turn(self, action): return 'Go on.', 0, False, {}
        def clone(self): raise NotImplementedError
    report = check_env(Endless(), turns=5)
    assert (report['final'].startswith('not seen') and report['clone'].startswith('not offered')
        and report['state'].startswith('none given'))
    assert 'final     not seen' in repr(report) and report['seed'] == 'ok'

def test_textenv_says_what_is_missing():
    with pytest.raises(NotImplementedError, match='must define start'): TextEnv().reset(0)
    with pytest.raises(NotImplementedError, match='must define reset'): Env().reset(0)
    with pytest.raises(EnvError, match='call reset'): KeyDoor().step('go north')
    env = KeyDoor()
    env.reset(0)
    with pytest.raises(TypeError, match='takes a str'): env.step(3)

def test_check_seat_order_returns_the_step():
    step = Step('b', '', dict(a=np.float32(1.)))
    assert check_seat_order(step, ('a', 'b'), previous='a') is step

# ---- names

def test_load_env_errors(tmp_path, monkeypatch):
    (tmp_path/'my_worlds.py').write_text('import no_such_package_anywhere')
    (tmp_path/'my_world.py').write_text('from agentlab.env import TextEnv\nclass Mine(TextEnv):\n    def '
        '__init__(self, size=1): self.size = size')
    monkeypatch.syspath_prepend(tmp_path)
    assert load_env('my_world:Mine', size=4).size == 4
    for name, message in {'chess': 'known are keydoor, guess', 'my_worlds:Mine': 'no_such_package_anywhere',
                          'my_world:Yours': "has no 'Yours'", '': 'not known'}.items():
        with pytest.raises(ValueError, match=message): load_env(name)
    with pytest.raises(TypeError): load_env('keydoor', rooms=3)

class Named(TextEnv):
    "Sets its own name, and says its state as a list or a dictionary, as a Turn takes it."
    def __init__(self, state): self.name, self.said = 'mine', state
    def start(self, seed, task=None): return f'begin {seed}'
    def turn(self, action): return 'end', 1., True, {}
    def facts(self): return dict(state=self.said)

@pytest.mark.parametrize('state', [[1, ['a', None]], {'at': [0, 1], 'key': True}, ('a', 1)], ids=str)
def test_what_a_turn_takes_as_its_state_check_env_takes_too(state):
    from agentlab.episodes import state_key
    env = Named(state)
    assert env.name == 'mine' and TextEnv().name == 'textenv' and set(check_env(env).values()) == {'ok'}
    assert env.reset(0).info['state'] == state and isinstance(state_key(state), int)
    for wrong in ({1: 'a'}, [object()], {'a'}):
        with pytest.raises(EnvError, match='state: .* will not do'): check_env(Named(wrong))
