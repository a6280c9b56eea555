"""Environments by name, random play, and the training of what is adapted, against stand-ins (the real packages:
tests/adapters/real.py)."""
import importlib.metadata
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from agentlab.env import EnvError, RandomWins, check_env, heard, load_env
from agentlab.env import by_name
from agentlab.env.adapters import Typed, action_words, bare, documented, drawn, fields_told, from_openenv
from agentlab.env.protocol import Env, Step
from agentlab.policy import tiny_policy
from agentlab.policy.tiny import closed_tokenizer, demonstration_env
from agentlab.rollout import play
from small import small_recipe

class Lake:
    """Walk from S to G; H is a hole.

    A stand-in for a Gymnasium environment.

    ## Action Space
    - 0: Move left (west)
    - 1: Move down
    - 2: Move right
    - 3: Move up

    ## Rewards
    - 9: none
    """
    metadata, spec = dict(render_modes=['ansi', 'human']), SimpleNamespace(id='Toy/Lake-v0')
    rows = 'SFF', 'FHF', 'HFG'
    def __init__(self, render_mode=None, rows=None):
        self.render_mode, self.rows, self.action_space = render_mode, rows or self.rows, SimpleNamespace(n=4, start=0)
    def reset(self, *, seed=None, options=None):
        self.at = (0, 0)
        return 0, {}
    def step(self, action):
        down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[action]
        self.at = min(2, max(0, self.at[0] + down)), min(2, max(0, self.at[1] + right))
        field = self.rows[self.at[0]][self.at[1]]
        return 3*self.at[0] + self.at[1], float(field == 'G'), field in 'HG', False, {}
    def render(self):
        return '\n'.join(''.join(f'\x1b[41m{c}\x1b[0m' if (i, j) == self.at else c for j, c in enumerate(row))
            for i, row in enumerate(self.rows))
    def close(self): pass

@pytest.fixture
def gym(monkeypatch):
    "A module gymnasium that makes lakes."
    def make(name, **options):
        if name != 'Lake-v0': raise LookupError(f'no {name}')
        return Lake(**options)
    monkeypatch.setitem(sys.modules, 'gymnasium', SimpleNamespace(make=make))

# names

def test_a_name_is_enough(gym):
    env = load_env('gym:Lake-v0?horizon=7&rows=["SFF","FFF","FFG"]', penalty=-1)
    assert env.reset(0).observation == '[S]FF\nFFF\nFFG' and env.horizon == 7 and env.penalty == -1.
    assert env.words == ['move left', 'move down', 'move right', 'move up']  # the rest of the page is no action
    assert (env.called, env.name) == ('gym:Lake-v0?horizon=7&rows=["SFF","FFF","FFG"]', 'Toy-Lake-v0')
    assert 'Walk from S to G; H is a hole.' in env.guide and env.guide.endswith('Example: move left')
    assert set(check_env(load_env('gym:Lake-v0?horizon=9'), seeds=(0,)).values()) == {'ok'}

@pytest.mark.parametrize('name, said', [
    ('gym:Pond-v0', "cannot be made: LookupError: no Pond-v0"), ('gym:Lake-v0?depth=3', 'cannot be made: TypeError'),
    ('gym:Lake-v0?deep', 'write options as'), ('gym:', 'cannot be made'), ('gim:Lake-v0', 'package.module:name'),
    ('lake', 'words before the colon: gym, textarena'), ('openenv:localhost', 'write it as http'),
    ('alfworld:/nowhere', 'alfworld is not installed: pip install "agentlab-rl'),
    ('reasoning-gym:x', 'reasoning_gym is not installed: pip install "agentlab-rl'),
    ('verifiers:x', 'verifiers.v1 is not installed: pip install "agentlab-rl'), ('textworld:/nowhere/*.z8', 'tw-make')])
def test_what_cannot_be_made_says_why(gym, monkeypatch, name, said):
    for module in ('alfworld', 'reasoning_gym', 'verifiers'): monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, 'openenv', SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'openenv.core', SimpleNamespace())
    with pytest.raises(ValueError) as error: load_env(name)
    assert said in str(error.value)

def test_a_package_that_does_not_load_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path/'gymnasium.py').write_text('import no_such_part_of_it\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'gymnasium', raising=False)
    with pytest.raises(ValueError) as error: load_env('gym:Lake-v0')
    assert 'is installed and does not load' in str(error.value) and 'no_such_part_of_it' in str(error.value)
    (tmp_path/'gymnasium.py').write_text('raise ImportError("libfoo.so.1: cannot open")\n')
    sys.modules.pop('gymnasium', None)
    with pytest.raises(ValueError, match='does not load: ImportError: libfoo'): load_env('gym:Lake-v0')

def test_another_package_joins(monkeypatch):
    "By an entry point, which is loaded when its word is asked for; a broken one says whose it is."
    class Point(SimpleNamespace):
        dist = SimpleNamespace(name='my-lakes')
        def load(self):
            if self.value.startswith('broken'): raise RuntimeError('half written')
            return lambda name, **options: Coin(int(name))
    points = dict(lakes=Point(value='my_lakes:make'), ponds=Point(value='broken:make'))
    monkeypatch.setattr(importlib.metadata, 'entry_points', lambda group, name: [points[name]]*(name in points))
    monkeypatch.setattr(by_name, 'families', dict(by_name.families))
    assert load_env('lakes:3').sides == 3 and by_name.families['lakes'].extra == 'my-lakes'
    with pytest.raises(ValueError, match='broken:make makes it and does not load: RuntimeError: half'):
        load_env('ponds:1')

def test_the_command_line_takes_names(gym, tmp_path, monkeypatch, capsys):
    from agentlab import cli
    from agentlab.view.dashboard import resume_command
    monkeypatch.chdir(tmp_path)
    name, out = 'gym:Lake-v0?horizon=5', str(tmp_path/'run')
    few = '--steps 1 --groups 1 --group-size 2 --test-tasks 1 --max-tokens 3 --recipe grpo --model untrained'.split()
    assert cli.main(['train', '--env', name, '--out', out, *few]) == 0
    facts = json.loads((tmp_path/'run'/'run.json').read_text())['facts']
    assert facts['env']['called'] == name
    assert f"--env '{name}'" in resume_command(out)
    assert cli.main(['envs']) == 0 and 'gym:FrozenLake-v1' in capsys.readouterr().out
    assert cli.main(['play', '--env', 'gym:Pond-v0']) == 2 and 'no Pond-v0' in capsys.readouterr().err

# words, guides, texts

def test_actions_have_names():
    class Bare: pass
    class Meanings: get_action_meanings = lambda self: ['NOOP', 'FIRE_UP']
    class Table:
        """## Action Space
        | Num | Name | Action |
        |-----|------|--------|
        | 0 | left | Turn left |
        | 1 | done | Unused |
        """
    class Units:
        """## Action Space
        | Num | Action | Unit |
        | 0 | push | N m |
        """
    assert action_words(Bare(), 2) == ['0', '1'] and action_words(Meanings(), 2) == ['noop', 'fire up']
    assert action_words(Meanings(), 3) == ['0', '1', '2']  # not all of them are named
    assert documented(Table()) == {0: ('left', 'Turn left'), 1: ('done', 'Unused')}
    assert documented(Units()) == {0: ('push', '')}

def test_minigrid_is_told_in_words(monkeypatch):
    kinds = 'unseen empty wall floor door key ball box goal lava agent'.split()
    numbers = SimpleNamespace(IDX_TO_OBJECT=dict(enumerate(kinds)), IDX_TO_COLOR={0: 'red', 1: 'green', 4: 'yellow'},
        STATE_TO_IDX=dict(open=0, closed=1, locked=2))
    monkeypatch.setitem(sys.modules, 'minigrid', SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'minigrid.core', SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'minigrid.core.constants', numbers)
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[:, :, 0] = 1
    tiles = {(3, 6): (5, 4, 0), (3, 5): (4, 4, 2), (2, 6): (2, 5, 0), (5, 4): (8, 1, 0), (3, 3): (9, 0, 0)}
    for at, tile in tiles.items(): image[at] = tile
    seen = dict(image=image, direction=np.int64(1), mission='find it')
    assert drawn(seen, SimpleNamespace(render_mode=None)).split('\n') == [
        'Mission: find it.', 'You face south. Ahead: locked yellow door. Left: wall. Right: empty.',
        'You carry yellow key.', 'You see: green goal 2 ahead and 2 right, lava 3 ahead.']

def test_textworld_without_its_banner():
    told = 'Welcome! Take the key.\n\n-= Hall =-\nA door.'
    assert bare(f'\n\n   ________\n  | $$$$ |\n  \\$$ $$\n\n{told}\n\n>   -= Hall =-0/1') == told
    assert bare('Taken for $5.') == 'Taken for $5.'

def test_actions_of_a_schema():
    number = Typed(dict(properties=dict(metadata={}, n=dict(type='integer', minimum=1, maximum=3)), required=['n']))
    assert (number('2'), number.legal) == (dict(n=2), ['1', '2', '3'])
    text = Typed(dict(properties=dict(message=dict(type='string', description='what to say'))))
    assert text(' hello ') == dict(message='hello') and 'message (string): what to say' in text.says and not text.legal
    both = Typed(dict(properties=dict(x={}, y={}), required=['x']))
    assert both('{"x": 1}') == dict(x=1)
    for action, wrong in ((number, '4'), (number, 'two'), (both, '{"y": 1}'), (both, '{"x": 1, "z": 2}'),
                          (both, '[1]')):
        with pytest.raises(ValueError): action(wrong)
    assert fields_told(dict(text='hi', reward=1, done=False)) == 'hi'
    assert fields_told(dict(a='x', b=[1])) == 'a: x\nb: [1]'
    with pytest.raises(TypeError, match='action= and text='): from_openenv(lambda: None)

# random play, and what is trained with it

class Coin(Env):
    "Guess `sides`; nothing else is said. Legal texts have marks."
    def __init__(self, sides=2, legal=True): self.sides, self.shown = sides, legal
    def say(self, **more):
        legal = dict(legal=[f'[{i}]' for i in range(self.sides)]) if self.shown else {}
        return Step('player', 'Guess.', info=dict(invalid=False, success=False, truncated=False) | legal | more)
    def reset(self, seed, task=None):
        self.right = seed % self.sides
        return self.say()
    def step(self, action):
        step = self.say(success=action == f'[{self.right}]', invalid=not action.startswith('['))
        step.reward, step.done = dict(player=float(step.info['success'])), True
        return step

def test_random_wins_are_played_again(gym):
    lake = load_env('gym:Lake-v0?horizon=30')
    wins = demonstration_env(lake)
    assert isinstance(wins, RandomWins) and wins.name == lake.name and len(wins.wins[0].actions) == 4
    for seed in range(6):
        step = wins.reset(seed)
        while not step.done: step = wins.step(wins.demonstrator(.5, None))
        assert step.info['success']
    assert [game.actions for game in RandomWins(lake).wins] == [game.actions for game in wins.wins]
    walled = load_env('gym:Lake-v0?horizon=9&rows=["SHF","HHF","HFG"]')
    with pytest.raises(ValueError, match='random games succeeded'): RandomWins(walled, tries=50)
    with pytest.raises(EnvError, match='does not list what is legal'): heard(Coin(legal=False))

def test_what_can_be_said_comes_out_as_it_went_in():
    "Marks inside a word would part it, and [ 0 ] is not [0]."
    tokenizer = closed_tokenizer(Coin(3))
    policy = tiny_policy(Coin(3), warm=False)
    for text in ('[0]', '[2]'): assert policy.text(policy.chat.text_ids(text)) == text
    assert len(tokenizer) == len(policy.tokenizer) < 20
    found = [e.turns[0].text for e in play(policy, Coin(3), list(range(60)), max_tokens=1)]
    assert set(found) & {'[0]', '[1]', '[2]'}

def test_two_seats_give_their_words():
    from agentlab.env.kuhn import Kuhn
    class Words(Kuhn): vocabulary = None
    policy = tiny_policy(Words(), warm=False)
    assert policy.text(policy.chat.text_ids('pass')) == 'pass'

def test_a_tiny_policy_learns_in_an_adapted_world(gym, tmp_path, monkeypatch):
    "Words and demonstrations from random play alone: imitated wins, then a few updates that move the weights."
    from agentlab.train import evaluate, recipes, train
    monkeypatch.setenv('AGENTLAB_CACHE', str(tmp_path))
    lake = load_env('gym:Lake-v0?horizon=12')
    fresh = tiny_policy(lake, warm=False)
    warm = tiny_policy(lake, steps=40, episodes=16, pool=32, progress=False)
    how = dict(tasks=12, greedy=False, max_turns=12, max_tokens=4)
    before, after = (evaluate(policy, lake, **how) for policy in (fresh, warm))
    assert after > before
    weights = [p.detach().clone() for p in warm.model.parameters()]
    run = train(warm, lake, small_recipe(recipes.grpo, steps=2, group_size=4, max_tokens=4, max_turns=8),
        tmp_path/'run', progress=False)
    assert len(run.rows()) == 2 and any(not p.equal(old) for p, old in zip(warm.model.parameters(), weights))
    again = tiny_policy(lake, steps=40, episodes=16, pool=32, progress=False)  # from the cache
    assert again.name == warm.name and again.name.startswith('Toy-Lake-v0-')

def test_a_reader_is_primed_from_wins(gym, tmp_path):
    "`prime` asks for demonstrations of a world that has none: what it is shown are wins, under the world's guide."
    from agentlab.policy import prime
    lake = load_env('gym:Lake-v0?horizon=12')
    policy = tiny_policy(lake, warm=False)
    before = [p.detach().clone() for p in policy.model.parameters()]
    prime(policy, lake, steps=2, episodes=2, progress=False)
    assert policy.provenance['primed'][0]['env'] == 'Toy-Lake-v0'
    assert any(not p.equal(old) for p, old in zip(policy.model.parameters(), before))
