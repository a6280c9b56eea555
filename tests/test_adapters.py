"""The adapters against stand-ins that misbehave as the real packages do: no optional package is needed (those are in
tests/adapters/real.py)."""
import copy
import inspect
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest

from agentlab.env.adapters import (Lent, available_moves, environment_factory, from_gymnasium, from_openenv,
    from_openspiel, from_textarena, from_textworld, plain)
from agentlab.env.cue_door import CueDoor
from agentlab.env.kuhn import Kuhn
from agentlab.env.protocol import EnvError, check_env, random_states
from agentlab.env.two_seats import match

@pytest.fixture(autouse=True)
def generators():
    "No test may leave the caller's generators elsewhere."
    before = random_states()
    yield
    assert random_states() == before

# stand-ins

class Gym:
    """Gymnasium's calls; actions count from 1, everything is drawn from the global numpy, the third step fails if
    asked to."""
    action_space, render_mode = SimpleNamespace(n=2, start=1), None
    def __init__(self, fails=False): self.fails, self.closed = fails, 0
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        self.turns, self.closed = 0, 0
        return dict(x=np.random.rand(2).round(3)), {}
    def step(self, action):
        assert action in (1, 2)
        self.turns += 1
        if self.fails and self.turns == 3: raise OSError('the simulator has crashed')
        return dict(x=np.random.rand(2).round(3)), np.float32(action == 2), self.turns == 4, False, {}
    def close(self): self.closed += 1

class Kind(SimpleNamespace): pass

class Bids:
    "TextArena's calls: the highest of several secret bids wins; the last seat may be eliminated; it can fail inside."
    def __init__(self, pays=True): self.pays = pays
    def reset(self, num_players, seed=None):
        random.seed(seed)
        self.n, self.mover, self.bids, self.prize, self.done = num_players, 0, [], random.randint(1, 9), False
        self.state = SimpleNamespace(game_info={i: {} for i in range(num_players)}, role_mapping=None)
    def get_observation(self):
        secret = Kind(name='GAME_MESSAGE')
        return self.mover, [(-1, f'Prize {self.prize}, luck {random.random():.2f}.', secret),
            (self.mover, 'my own words', Kind(name='PLAYER_ACTION')),
            (1 - self.mover, 'hello', Kind(name='PLAYER_ACTION'))]
    def step(self, action):
        if action == 'crash': raise KeyError('a bug in the game')
        self.bids.append(len(action))
        self.done = len(self.bids) == self.n
        self.mover = min(self.mover + 1, self.n - 1)
        return self.done, {}
    def close(self):
        best = max(self.bids)
        return (({i: np.int64(bid == best) for i, bid in enumerate(self.bids) if bid == best} if self.pays else None),
            self.state.game_info)

class Coin:
    """OpenSpiel's calls: chance flips a biased coin, seat 0 guesses; `late` flips once more afterwards; a guess of 3
    pays on the way."""
    def __init__(self, late=False, history=()): self.late, self.history = late, tuple(history)
    def clone(self): return Coin(self.late, self.history)
    def child(self, action): return Coin(self.late, (*self.history, action))
    def apply_action(self, action): self.history = (*self.history, action)
    def is_chance_node(self): return len(self.history) == 0 or self.late and len(self.history) == 2
    def chance_outcomes(self): return [(0, .75), (1, .25)]
    def is_terminal(self): return len(self.history) == (4 if self.late else 2)
    def current_player(self): return 0
    def legal_actions(self): return [0, 1]
    def action_to_string(self, player, action): return ('Bxc3', 'bxc3')[action]
    def observation_string(self, player): return f'seen {len(self.history)}'
    def returns(self):
        guesses = self.history[1:2] + self.history[3:4]
        right = sum(guess == coin for guess, coin in zip(guesses, self.history[0::2]))
        return [float(right), float(-right)]

class CoinGame:
    def __init__(self, late=False): self.late = late
    def get_type(self):
        return SimpleNamespace(short_name='coin', dynamics=SimpleNamespace(name='SEQUENTIAL'),
            information=SimpleNamespace(name='IMPERFECT_INFORMATION'),
            provides_information_state_string=False)
    def new_initial_state(self): return Coin(self.late)
    def num_players(self): return 2
    def min_utility(self): return -2.
    def max_utility(self): return 2.

class Room:
    "TextWorld's calls; it remembers who was closed, and draws from the global generator."
    opened, shut = [], []
    def __init__(self, path):
        self.path = path
        Room.opened.append(path)
    def copy(self): return copy.copy(self)
    def close(self): Room.shut.append(self.path)
    def say(self, text):
        return dict(feedback=text, description=self.path, inventory='', admissible_commands=None, won=False,
            lost=self.left < 1)
    def reset(self):
        self.left = random.randint(2, 3)
        return self.say(f'{self.left} turns')
    def step(self, command):
        self.left -= 1
        return self.say(f'{command!r} {random.random():.2f}'), -self.left, self.left < 1

class Served:
    "OpenEnv's calls."
    def reset(self, seed=None, **rest):
        random.seed(seed)
        self.turns = 0
        return SimpleNamespace(done=False, reward=None, text=f'draw {random.random():.3f}')
    def step(self, action):
        self.turns += 1
        return SimpleNamespace(done=self.turns == 3, reward=action, text=f'draw {random.random():.3f}')

MAKE = dict(gymnasium=lambda: from_gymnasium(Gym(), ['wait', 'go']), textarena=lambda: from_textarena(Bids, 3),
    openspiel=lambda: from_openspiel(CoinGame()), late=lambda: from_openspiel(CoinGame(True)),
    textworld=lambda: from_textworld(['a', 'b'], start=Room),
    openenv=lambda: from_openenv(Served, float, lambda seen: seen.text))

# all of them

def some(step):
    "A text that can be played."
    return (step.info.get('legal') or ['1'])[0]

@pytest.mark.parametrize('name', MAKE)
def test_rules(name):
    "Every adapter keeps the protocol, also around code that draws from the global generators."
    report = check_env(MAKE[name](), actions=('1', '2', 'a long bid'), seeds=range(6))
    assert all(value == 'ok' for rule, value in report.items() if rule not in ('state', 'final')), report
    assert report['final'] == 'ok'

@pytest.mark.parametrize('name', MAKE)
def test_interleaved(name):
    "Two games played turn by turn beside each other are the games that each is alone."
    def alone(seed):
        env = MAKE[name]()
        steps = [env.reset(seed)]
        while not steps[-1].done: steps.append(env.step(some(steps[-1])))
        return steps
    envs = MAKE[name](), MAKE[name]()
    beside = [[env.reset(seed)] for seed, env in enumerate(envs)]
    while not all(steps[-1].done for steps in beside):
        for env, steps in zip(envs, beside):
            random.random(), np.random.rand()  # somebody else draws in between: not our business
            if not steps[-1].done: steps.append(env.step(some(steps[-1])))
    assert beside == [alone(0), alone(1)]

@pytest.fixture(autouse=True)
def drawn_back(generators):
    "`test_interleaved` draws by itself: put that back before the generators are compared."
    held = random.getstate(), np.random.get_state()
    yield
    random.setstate(held[0]), np.random.set_state(held[1])

@pytest.mark.parametrize('name', MAKE)
def test_refusals(name):
    "Before the first reset, after the end, a text that is none, a seed that is none."
    env = MAKE[name]()
    with pytest.raises(EnvError, match='reset'): env.step('1')
    with pytest.raises(ValueError, match='negative'): env.reset(-1)
    with pytest.raises(TypeError, match='whole number'): env.reset('one')
    step = env.reset(0)
    with pytest.raises(TypeError, match='takes a str'): env.step(None)
    while not step.done: step = env.step(some(step))
    with pytest.raises(EnvError, match='reset'): env.step('2')
    env.close(), env.close()
    assert not env.reset(1).done

def untouched(act, fault):
    "`act` raises, and the global generators are where they were."
    before = random_states()
    with pytest.raises(fault): act()
    assert random_states() == before

# each of them

def test_gymnasium():
    "Actions that count from 1, observations that are dictionaries, a simulator that crashes, options, closing."
    env = from_gymnasium(Gym(), ['Wait', 'GO now'])
    step = env.reset(3)
    assert (step.info['legal'] == ['wait', 'go now'] and step.info['state'][0][0] == 'x'
        and len(step.info['state'][0][1]) == 2)
    assert env.step(' go   NOW.').reward == dict(player=1.) and env.step('wait').reward == dict(player=0.)
    assert type(env.step('go now').reward['player']) is float
    assert env.step('wait').info['success'] is False  # terminated, but the last reward is 0
    env.close()
    assert env.inner.closed == 1
    crashing = from_gymnasium(Gym(fails=True))
    crashing.reset(0)
    for _ in range(2): crashing.step('1')
    untouched(lambda: crashing.step('1'), OSError)
    for words in (['a'], ['a', 'A'], ['a', 'b', 'c']):
        with pytest.raises(ValueError, match='give 2 different words'): from_gymnasium(Gym(), words)

def test_not_copied():
    "What cannot be copied says what to do instead; check_env reports it."
    inner = Gym()
    inner.handle = (part for part in ())
    env = from_gymnasium(inner)
    with pytest.raises(NotImplementedError, match='function that makes'): env.clone()
    assert 'not offered' in check_env(env)['clone']

def test_textarena():
    """Only new text, without the own echo; rewards at the end for those who get any; nothing paid at all; a bug of
    the game."""
    env = from_textarena(Bids, 2)
    step = env.reset(0)
    assert step.seat == 'player0' and 'my own words' not in step.observation and '[Player 1] hello' in step.observation
    assert env.step('long bid').reward == {} and (last := env.step('bid')).done
    assert last.reward == dict(player0=1., player1=0.) and last.info['success'] == dict(player0=True, player1=False)
    nothing = from_textarena(lambda: Bids(pays=False), 1)
    nothing.reset(0)
    assert (last := nothing.step('x')).reward == dict(player0=0.) and last.info['success'] is False
    swapped = from_textarena(Bids, 1)
    swapped.reset(0)
    swapped.game.close = lambda: ({0: 'Bad action.'}, swapped.game.state.game_info)
    untouched(lambda: swapped.step('x'), EnvError)
    env.reset(0)
    untouched(lambda: env.step('crash'), KeyError)
    assert env.reset(5).observation == from_textarena(Bids, 2).reset(5).observation

def test_available_moves():
    "With and without quotes, the last line counts, prose does not."
    assert available_moves("Available Moves: '[0]', '[1]'") == ['[0]', '[1]']
    assert available_moves('Valid moves: [a b] [c]\nmore [x]') == ['[a b]', '[c]']
    assert available_moves('Legal actions for Player 1: [check], [bet]') == ['[check]', '[bet]']
    assert available_moves('moves available [0]') == []

def test_openspiel():
    "Texts that differ in case only, unequal deals, payments on the way, no information states, chance in the middle."
    env = from_openspiel(CoinGame(True))
    assert env.reset(0).info['legal'] == ['Bxc3 #0', 'bxc3 #1']
    with pytest.raises(ValueError, match='not equally likely'): env.deals()
    env.reset(0, dict(chance=[1, 0]))
    step = env.step('BXC3 #1')
    assert step.reward == dict(player0=1., player1=-1.) and not step.done and step.observation == 'seen 3'
    assert env.step('bxc3 #0').reward == dict(player0=1., player1=-1.)
    with pytest.raises(EnvError, match='chance moves later'): (env.reset(0, dict(chance=[1])), env.step('bxc3 #1'))
    assert from_openspiel(CoinGame(), text=lambda state, seat: f'you are {seat}').reset(0).observation == 'you are 0'
    mean = match(from_openspiel(CoinGame()), dict.fromkeys(env.seats, lambda game, generator: game.moves()[0]),
        2000)['player0']['paid']
    assert abs(mean - .75) < 5*(.75*.25/2000)**.5

def test_openspiel_forfeit():
    "The mover pays what was agreed."
    env = from_openspiel(CoinGame(), forfeit=-.5)
    env.reset(0)
    assert env.step('resign').reward == dict(player0=-.5, player1=2.)

def test_textworld():
    "Seeds choose among the games, a game is opened once, negative scores, no admissible commands, a limit of turns."
    Room.opened.clear(), Room.shut.clear()
    env = from_textworld(['a', 'b'], start=Room, horizon=2)
    for seed in (0, 2, 4): env.reset(seed)
    assert Room.opened == ['a']
    first = env.reset(1)
    assert (Room.opened, Room.shut, first.info['state']) == (['a', 'b'], ['a'], ('b', '')) and first.info['legal'] == []
    step = env.step('')
    assert step.observation.startswith("'wait'") and step.reward['player'] <= -1 and step.info['invalid']
    if not step.done: assert env.step('x').done
    twin = env.clone()
    assert twin.reset(0).info['state'][0] == 'a' and env.path == 'b'

def test_openenv():
    "Rewards of None, texts that are no action, a task as further arguments."
    env = from_openenv(Served, action=float, text=lambda seen: seen.text, penalty=-1., horizon=4)
    first = env.reset(0)
    refused = env.step('many')
    assert (refused.observation, refused.reward, refused.info['invalid']) == (first.observation, dict(player=-1.), True)
    assert env.step('.5').reward == dict(player=.5) and env.step('0').reward == dict(player=0.)
    assert (last := env.step('2')).done and last.info['success']
    with pytest.raises(TypeError, match='give a function'): from_openenv(Served(), float, str)

def test_for_trl():
    "One tool, rows and groups, after the end, several instances, a picklable sum; games of two seats are refused."
    made = environment_factory(CueDoor)
    public = {name for name, _ in inspect.getmembers(made, inspect.isfunction) if not name.startswith('_')}
    assert public == {'reset', 'act', 'get_reward'} and 'Args:' in made.act.__doc__
    one, two = made(), made()
    assert one.reset(seed=1, prompt='x', other=2) == two.reset(seed=1)
    task = CueDoor().tasks('test', 1)[0]
    assert one.reset(seed=0, task=task) == f"Cue {task['cue']}."
    one.act('wait'), one.act('wait'), one.act(one._env.expert())
    assert (one.get_reward() == 1. and one._won is True and one.act('wait') == 'The episode is over.'
        and one.get_reward() == 1.)
    assert two.get_reward() == 0. and pickle.dumps(two.get_reward())
    assert made().act('wait') == 'The episode is over.'  # never begun
    with pytest.raises(ValueError, match="'seed'"): one.reset(prompt='x')
    with pytest.raises(ValueError, match='TRL plays one'): environment_factory(Kuhn)()

def test_lent():
    "A loan goes on where it stopped, survives a copy and an error, and seeds numpy with what numpy takes."
    lent = Lent(2**40 + 1)
    def draw(): return random.random(), float(np.random.rand())
    with lent.out(): first = draw()
    twin = copy.deepcopy(lent)
    with pytest.raises(KeyError), lent.out():
        draw()
        raise KeyError
    with lent.out(): third = draw()
    with twin.out(): assert draw() != third and draw() == third
    again = Lent(2**40 + 1)
    with again.out(): assert draw() == first
    assert plain({'b': [np.float64(1)], 'a': {'c': (1, None)}}) == (('a', (('c', (1, None)),)), ('b', (1.,)))
