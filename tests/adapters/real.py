"""The adapters against the real packages: `make test-adapters`, in an environment of its own. A package that is missing
there is a failure.

What was played, and with which versions, is written to assets/results/adapters.json when everything has passed.
"""
import inspect
import re
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from random import Random

import pytest

from agentlab.bench import circumstances, keep
from agentlab.env.adapters import (environment_factory, from_gymnasium, from_openenv, from_openspiel, from_textarena,
                                   from_textworld, written)
from agentlab.env.cue_door import CueDoor
from agentlab.env.kuhn import Kuhn
from agentlab.env.protocol import check_env, check_random, check_step, random_states
from agentlab.env.two_seats import match, random_player
from agentlab.selfplay.exploitability import game_tree, nash_conv, uniform

ROOT = Path(__file__).parents[2]
PACKAGES = 'gymnasium', 'textarena', 'open-spiel', 'textworld', 'openenv-core', 'trl'
record = {}


@pytest.fixture(scope='module', autouse=True)
def kept(request):
    "Write the record when no test has failed."
    failed = request.session.testsfailed
    yield
    # some tests only (-k), or a failure: the old record stays
    if request.session.testsfailed > failed or len(record) < 6: return
    keep(circumstances('make test-adapters') | dict(packages={name: version(name) for name in PACKAGES}) | record,
         ROOT/'assets'/'results', 'adapters')


def episode(env, seed, texts, turns=200, nonsense=.1):
    """Play one episode: (transcript, last step, invalid turns). A legal text where they are listed, else one that
    was shown in brackets, else (and in a share `nonsense` of the turns) any of `texts`."""
    generator, before = Random(seed), random_states()
    step = env.reset(seed)
    transcript = [check_step(step, env)]
    while not step.done and len(transcript) <= turns:
        legal = step.info.get('legal')
        # what stands in brackets is often an example of a move
        shown = list(dict.fromkeys(re.findall(r'\[[^\[\]]{1,20}\]', ' '.join(turn[1] for turn in transcript))))
        text = generator.choice(legal or shown or texts) if generator.random() >= nonsense else generator.choice(texts)
        step = env.step(text)
        transcript.append(check_step(step, env))
    check_random(before)
    return transcript, step, sum(bool(turn[5]) for turn in transcript)


# Gymnasium

MOVES = ['left', 'down', 'right', 'up']
TAXI = ['south', 'north', 'east', 'west', 'pick up', 'drop off']
GYM = {'FrozenLake-v1': (MOVES, dict(render_mode='ansi'), None), 'Taxi-v4': (TAXI, dict(render_mode='ansi'), None),
       'CliffWalking-v1': (['up', 'right', 'down', 'left'], dict(render_mode='ansi'),
                           lambda reward, terminated, info: terminated), 'Blackjack-v1': (['stick', 'hit'], {}, None)}

def test_gymnasium():
    "Four of its environments keep our rules, and the picture says where the agent is."
    found = {}
    for name, (words, options, success) in GYM.items():
        env = from_gymnasium(name, words, success=success, horizon=60, **options)
        report = check_env(env, turns=70)
        transcript, step, invalid = episode(env, 3, words)
        found[name] = dict(turns=len(transcript) - 1, invalid=invalid, report=dict(report))
        assert '\x1b' not in step.observation and step.done
        if options: assert ('x' if name.startswith('Cliff') else '[') in env.reset(0).observation
    record['gymnasium'] = found

def test_gymnasium_solved():
    "Known ways through: success, truncation and the mask mean what they should."
    lake = from_gymnasium('FrozenLake-v1', MOVES, render_mode='ansi', is_slippery=False)
    lake.reset(0)
    for word in 'down down right right down right'.split(): step = lake.step(word)
    assert step.reward == dict(player=1.) and step.info['success'] is True and step.info['state'] == 15
    assert '[G]' in step.observation
    cliff = from_gymnasium('CliffWalking-v1', ['up', 'right', 'down', 'left'], success=GYM['CliffWalking-v1'][2])
    cliff.reset(0)
    for word in ['up', *['right']*11, 'down']: step = cliff.step(word)
    assert step.info['success'] and step.reward == dict(player=-1.)
    taxi = from_gymnasium('Taxi-v4', TAXI)
    legal = taxi.reset(0).info['legal']
    assert 0 < len(legal) < 6 and 'drop off' not in legal
    assert taxi.step('drop off').info['invalid']
    for _ in range(200): step = taxi.step(taxi.legal()[0])
    assert step.done and step.info['truncated'] and not step.info['success']


# TextArena: every game that needs no network

TEXTS = ['[0]', '[1]', '[2]', '[3]', '[4]', '[0 1]', '[1 2]', '[up]', '[left]', '[right]', '[w]', '[d]', '[check]',
         '[call]', '[bet]', '[fold]', '[cooperate]', '[defect]', '[rock]', '[paper]', '[pass]', '[a]', '[c4]', '[Call]',
         '[hit]', '[stand]', '[roll]', '[hold]', '[play 1]', '[Accept]', '[Deny]', '[submit 1 1 1]', '[A5 B5 C10]',
         '[e2e4]', '[continue]', 'xyzzy', '', 'I would rather talk about the weather.']

LIMIT = 15     # seconds for a game; some would wait for a download for ever

class Late(BaseException): "Not an Exception, so that no game catches it."

@contextmanager
def within(seconds):
    "Stop what takes longer."
    def ring(*_): raise Late
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try: yield
    except Late: raise TimeoutError(f'longer than {seconds} s') from None
    finally: signal.alarm(0)

def games():
    "One id of every TextArena game: the first that is registered with the suffix -raw."
    from textarena.envs.registration import ENV_REGISTRY
    first = {}
    for name, spec in ENV_REGISTRY.items():
        if name.endswith('-raw'): first.setdefault(str(spec.entry_point).split(':')[-1], name.removesuffix('-raw'))
    return sorted(first.values())

def seated(name):
    "The game with as many seats as it takes: 2, 1, 3, ... whichever begins."
    faults = []
    for seats in (2, 1, 3, 4, 5, 6):
        try:
            env = from_textarena(name, seats)
            env.reset(0)
            return env
        except Exception as error: faults.append(error)
    return max(faults, key=lambda error: (not isinstance(error, AssertionError), len(str(error))))

def told(error):
    "One short line, without paths of this machine."
    return re.sub(r'[\s*]+', ' ', re.sub(r'/\S*/', '', f'{type(error).__name__}: {error}'))[:110].strip()

def played(name):
    "One line on a game: how an episode went, or why it could not."
    try:
        with within(LIMIT): env = seated(name)
        if isinstance(env, Exception): raise env
    except Exception as error: return dict(fault=told(error))
    try:
        with within(LIMIT):
            one, step, invalid = episode(env, 1, TEXTS)
            two, *_ = episode(env, 1, TEXTS)
            ends = [episode(env, seed, TEXTS, nonsense=0)[1] for seed in range(8)]
    except Exception as error: return dict(seats=len(env.seats), fault=told(error))
    return dict(seats=len(env.seats), turns=len(one) - 1, invalid=invalid,
                without_forfeit=sum(end.done and not end.info['invalid'] for end in ends), done=step.done,
                repeats=one == two, legal='legal' in step.info or any('vailable' in turn[1] for turn in one))

def test_textarena(monkeypatch):
    "At least 20 games end, twice alike from one seed, and leave the caller's generators alone."
    import nltk
    def refuse(*_, **__): raise OSError('it wants to download a word list')
    monkeypatch.setattr(nltk, 'download', refuse)
    found = {}
    for name in games():
        found[name] = played(name)
        print(name, found[name], flush=True)
    good = [name for name, row in found.items() if row.get('done') and row.get('repeats')]
    fair = [name for name in good if found[name]['without_forfeit']]
    record['textarena'] = dict(tried=len(found), played_to_the_end=len(good),
                               with_an_episode_of_8_that_ends_without_forfeit=len(fair), not_ended_in_200_turns=sorted(
                                   name for name, row in found.items() if row.get('done') is False),
                               not_repeatable=sorted(name for name, row in found.items()
                                                     if row.get('repeats') is False),
                               failed=sorted(name for name, row in found.items() if 'fault' in row), games=found)
    print(Counter(row.get('fault', 'played')[:40] for row in found.values()))
    assert len(good) >= 20 and len(fair) >= 20, found
    assert not [row for row in found.values() if re.search('global generator', row.get('fault', ''))]

@pytest.mark.parametrize('name, seats', [('TicTacToe-v0', 2), ('ConnectFour-v0', 2), ('KuhnPoker-v0', 2),
                                         ('ThreePlayerTicTacToe-v0', 3), ('GuessTheNumber-v0', 1)])
def test_textarena_keeps_the_rules(name, seats):
    "The protocol's check, with clones, on games of one, two and three seats."
    check_env(from_textarena(name, seats), actions=('[0]', '[1]', '[4]', '[7]', '[check]', '[bet]', '[call]', '[fold]'),
              turns=60)

def test_textarena_by_hand():
    "A won and a forfeited game of TicTacToe."
    env = from_textarena('TicTacToe-v0')
    first = env.reset(0)
    assert first.seat == 'player0' and first.info['legal'] == [f'[{i}]' for i in range(9)]
    for text in ('[0]', '[3]', '[1]', '[4]'): step = env.step(text)
    assert step.info['legal'] == ['[2]', '[5]', '[6]', '[7]', '[8]'] and 'You are Player' not in step.observation
    step = env.step('[2]')
    assert step.done and step.reward == dict(player0=1.,
                                             player1=-1.) and step.info['success'] == dict(player0=True, player1=False)
    env.reset(0)
    assert (step := env.step('nonsense')).info['invalid'] and not step.done and step.seat == 'player0'
    assert (step := env.step('[99]')).info['invalid'] and step.done and step.reward == dict(player0=-1., player1=1.)


# OpenSpiel

def test_openspiel():
    "Exact numbers of Kuhn poker, equal to those of our own game; random games of others."
    kuhn = from_openspiel('kuhn_poker')
    tree = game_tree(kuhn)
    assert len(tree.situations) == 12 and len(kuhn.deals()) == 6
    value = nash_conv(tree, uniform(tree))
    assert abs(value - 11/12) < 1e-12 and abs(value - nash_conv(game_tree(Kuhn()), uniform(game_tree(Kuhn())))) < 1e-12
    import pyspiel
    from open_spiel.python import policy
    from open_spiel.python.algorithms import exploitability
    game = pyspiel.load_game('kuhn_poker')
    theirs = exploitability.nash_conv(game, policy.UniformRandomPolicy(game))
    assert abs(value - theirs) < 1e-12
    found = dict(kuhn_nash_conv=value, kuhn_nash_conv_of_open_spiel=theirs)
    for name in ('kuhn_poker', 'tic_tac_toe', 'leduc_poker', 'connect_four', 'liars_dice', 'matrix_rps', 'backgammon',
                 'chess'):
        env = from_openspiel(name)
        check_env(env, turns=400 if name in ('backgammon', 'chess') else 50, seeds=(0,))
        if name not in ('backgammon', 'chess'): found[name] = match(env, dict.fromkeys(env.seats, random_player), 200)
    first = found['tic_tac_toe']['player0']
    assert .45 < first['won'] < .72 and .2 < first['lost'] < .4     # .585 and .288 exactly, 200 games
    with pytest.raises(Exception, match='chance moves later'): game_tree(from_openspiel('leduc_poker'))
    record['openspiel'] = found


# TextWorld

def test_textworld(tmp_path):
    "A game is written, compiled, played by its own walkthrough and checked."
    folder = str(tmp_path)
    env = from_textworld(folder=folder, nb_rooms=2, nb_objects=3, quest_length=3)
    path = written(1, folder, nb_rooms=2, nb_objects=3, quest_length=3)
    import textworld
    game = textworld.Game.load(path.replace('.z8', '.json'))
    step = env.reset(1)
    for command in game.metadata['walkthrough']:
        assert command in step.info['legal'], (command, step.info['legal'])
        step = env.step(command)
    assert step.done and step.info['success'] and step.reward['player'] > 0
    env.reset(1)
    assert env.step('sing a song').info['invalid']
    report = check_env(from_textworld([path], horizon=12), turns=15, seeds=(0,))
    record['textworld'] = dict(walkthrough=len(game.metadata['walkthrough']), report=dict(report))


# OpenEnv

def guessing():
    "An OpenEnv environment with typed actions and observations: (class, action, observation)."
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    class Say(Action):
        number: int
    class Heard(Observation):
        text: str
    class Guessing(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        def reset(self, seed=None, episode_id=None, **rest):
            self.secret, self.left = Random(seed).randint(1, 8), 6
            return Heard(text='Guess a number from 1 to 8.')
        def step(self, action, timeout_s=None, **rest):
            self.left -= 1
            right = action.number == self.secret
            return Heard(text='right' if right else 'higher' if action.number < self.secret else 'lower',
                         done=right or not self.left, reward=float(right))
        @property
        def state(self): return State(step_count=6 - self.left)
    return Guessing, Say, Heard

def test_openenv():
    "An Environment of theirs in this process."
    Guessing, Say, Heard = guessing()
    env = from_openenv(Guessing, action=lambda text: Say(number=text), text=lambda heard: heard.text,
                       state=lambda env, heard: [env.state.step_count, heard.text])
    report = check_env(env, actions=tuple('12345678'))     # pydantic's ValidationError is a ValueError
    env.reset(2)
    assert env.step('four').info['invalid']
    step = env.step(str(env.inner.secret))
    assert step.info['success'] and step.reward == dict(player=1.)
    record['openenv'] = dict(report=dict(report))


def test_openenv_server():
    "The same through their client and a server on this machine."
    import uvicorn
    from openenv.core.env_server import create_app
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(*guessing(), max_concurrent_envs=4), host='127.0.0.1', port=port,
                                           log_level='error'))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started: time.sleep(.05)
    env = from_openenv(f'http://127.0.0.1:{port}', action=lambda text: dict(number=int(text)),
                       text=lambda heard: heard['text'])
    try:
        secret = Random(3).randint(1, 8)
        assert env.reset(3).observation.startswith('Guess') and env.step('four').info['invalid']
        step = env.step(str(secret))
        assert step.done and step.info['success'] and step.reward == dict(player=1.)
        assert env.reset(3).observation.startswith('Guess') and env.step(str(secret % 8 + 1)).reward == dict(player=0.)
    finally:
        env.close()
        server.should_exit = True
        thread.join(10)


# TRL

def test_trl():
    "The class is one that TRL's type describes, its tool has a schema, and the trainer takes it."
    from datasets import Dataset
    from transformers.utils import get_json_schema
    from trl import GRPOConfig, GRPOTrainer
    made = environment_factory(CueDoor)
    assert 'environment_factory' in inspect.signature(GRPOTrainer.__init__).parameters
    tools = [name for name, _ in inspect.getmembers(made, inspect.isfunction) if name not in ('reset', 'get_reward')
             and not name.startswith('_')]
    schema = get_json_schema(made().act)['function']
    assert (tools == ['act'] and schema['parameters']['required'] == ['action']
            and schema['parameters']['properties']['action']['type'] == 'string')
    trainer = trainer_of(GRPOTrainer, GRPOConfig, Dataset, made)
    assert [tool.__name__ for tool in trainer.tools] == ['act'] and trainer.reward_func_names == ['CueDoor']
    record['trl'] = dict(tools=tools, schema=schema, reward=trainer.reward_func_names)

def trainer_of(GRPOTrainer, GRPOConfig, Dataset, made):
    "TRL's trainer around a model of a few thousand weights, on a CPU; it is only built."
    import tempfile
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    words = ['<pad>', '<|im_end|>', '<unk>', 'wait', 'open']
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token='<unk>'))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token='<pad>', eos_token='<|im_end|>',
                                        unk_token='<unk>')
    from trl.chat_template_utils import qwen3_chat_template
    tokenizer.chat_template = qwen3_chat_template
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(words), hidden_size=16, intermediate_size=16,
                                         num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8))
    rows = Dataset.from_list([dict(prompt=[dict(role='user', content='Play. ')], seed=seed) for seed in range(4)])
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(folder, bf16=False, gradient_checkpointing=False, use_cpu=True, report_to='none',
                          num_generations=2, per_device_train_batch_size=2, max_completion_length=4)
        return GRPOTrainer(model, args=args, train_dataset=rows, processing_class=tokenizer, environment_factory=made)
