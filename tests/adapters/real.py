"""The adapters against the real packages: `make test-adapters`, in an environment of its own. A package that is missing
there is a failure.

What was played, with which versions, and when, is written to assets/results/adapters.json.xz when all has passed;
where only some tests were run (-k), their part of it.
"""
import inspect
import json
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
from agentlab.bench import kept as recorded
from agentlab.env import RandomWins, heard, load_env
from agentlab.env.adapters import (environment_factory, from_gymnasium, from_openenv, from_openspiel, from_textarena,
    from_textworld, written)
from agentlab.env.cue_door import CueDoor
from agentlab.env.kuhn import Kuhn
from agentlab.env.protocol import check_env, check_random, check_step, random_states
from agentlab.env.two_seats import match, random_player
from agentlab.selfplay.exploitability import game_tree, nash_conv, uniform

ROOT = Path(__file__).parents[2]
# part of the record -> the distribution whose version it is of
PACKAGES = dict(gymnasium='gymnasium', minigrid='minigrid', textarena='textarena', openspiel='open-spiel',
    textworld='textworld', openenv='openenv', verifiers='verifiers', reasoning_gym='reasoning-gym',
    alfworld='alfworld', trl='trl')
record, ran = {}, {}  # part -> what was found; part -> what was run, in a sentence

@pytest.fixture(scope='module', autouse=True)
def kept(request):
    "Write what was found when no test has failed; parts that were not run stay as they are."
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed or not record: return
    now, path = circumstances('make test-adapters'), ROOT/'assets'/'results'/'adapters.json'
    old = recorded(path.parent, 'adapters')
    said = {PACKAGES[part]: dict(ran=ran[part], date=now['date']) for part in ran}
    now['packages'] = {name: old['packages'].get(name) for name in PACKAGES.values()
        if name in old['packages']} | {PACKAGES[part]: version(PACKAGES[part]) for part in ran}
    rest = {part: old[part] for part in (*PACKAGES, 'trained') if part in old}
    keep(now | dict(ran=old.get('ran', {}) | said) | rest | record, path.parent, 'adapters', packed=True)

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
    ran['gymnasium'] = f'{len(found)} environments keep the rules; known ways through three of them'

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

LIMIT = 30  # seconds for a game; some would wait for a download for ever

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

def told(error):
    "One short line, without paths of this machine."
    return re.sub(r'[\s*]+', ' ', re.sub(r'/\S*/', '', f'{type(error).__name__}: {error}'))[:110].strip()

def played(name):
    "One line on a game: how an episode went, or why it could not."
    try:
        with within(LIMIT): env = from_textarena(name, seats=None)
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
    ran['textarena'] = f'{len(good)} of {len(found)} games played to the end, twice alike'
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
    assert .45 < first['won'] < .72 and .2 < first['lost'] < .4  # .585 and .288 exactly, 200 games
    with pytest.raises(Exception, match='chance moves later'): game_tree(from_openspiel('leduc_poker'))
    record['openspiel'] = found
    ran['openspiel'] = 'eight games keep the rules; exact value of Kuhn poker; 200 random games of six of them'

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
    ran['textworld'] = 'a game written from a seed and compiled, won by its walkthrough, keeps the rules'
    record['textworld'] = dict(walkthrough=len(game.metadata['walkthrough']), report=dict(report))

# OpenEnv

def guessing():
    "An OpenEnv environment with typed actions and observations: (class, action, observation)."
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field
    class Say(Action):
        number: int = Field(ge=1, le=8)
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
    report = check_env(env, actions=tuple('12345678'))  # pydantic's ValidationError is a ValueError
    env.reset(2)
    assert env.step('four').info['invalid']
    step = env.step(str(env.inner.secret))
    assert step.info['success'] and step.reward == dict(player=1.)
    record['openenv'] = dict(report=dict(report))
    ran['openenv'] = 'an environment in this process and behind a server keeps the rules; by the address of the server'

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
        named = load_env(f'openenv:http://127.0.0.1:{port}?horizon=9')
        assert named.reset(3).observation == 'Guess a number from 1 to 8.' and 'number (integer)' in named.guide
        assert named.step('four').info['invalid'] and named.step(str(secret)).info['success']
        named.close()
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
    ran['trl'] = 'its trainer takes our environment as a tool'
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

# By name, and what a package says of itself

def test_minigrid():
    "MiniGrid by its text: mission, direction, what is around; its actions by their names; a way through."
    found = {}
    for name in ('MiniGrid-Empty-5x5-v0', 'MiniGrid-DoorKey-5x5-v0', 'BabyAI-GoToRedBallGrey-v0'):
        env = load_env(f'gym:{name}?horizon=40')
        first = env.reset(3).observation
        assert first.startswith('Mission: ') and 'You face ' in first and 'array' not in first
        assert 'forward: Move forward' in env.guide and {'left', 'right', 'forward'} <= set(first and env.legal())
        found[name] = dict(check_env(env, turns=50, seeds=(0,)))
    env = load_env('gym:MiniGrid-Empty-5x5-v0')
    step = env.reset(0)
    assert 'You see: green goal 2 ahead and 2 right.' in step.observation and 'pickup' not in step.info['legal']
    for word in 'forward forward right forward forward'.split(): step = env.step(word)
    assert step.done and step.info['success']
    door = load_env('gym:MiniGrid-DoorKey-5x5-v0')
    assert 'locked yellow door' in door.reset(1).observation
    record['minigrid'], ran['minigrid'] = found, 'three environments keep the rules, read as text; one way through'

def test_gymnasium_by_name():
    "Words and guides from the documentation; options in the name."
    words = {'FrozenLake-v1': 'move left', 'Taxi-v4': 'drop off passenger', 'Blackjack-v1': 'hit',
        'CartPole-v1': 'push cart to the right', 'Acrobot-v1': 'apply 0 torque to the actuated joint'}
    for name, word in words.items():
        env = load_env(f'gym:{name}')
        env.reset(0)
        assert word in env.words and word in env.guide and env.called == f'gym:{name}'
    lake = load_env('gym:FrozenLake-v1?is_slippery=False')
    assert lake.reset(0).observation.startswith('[S]FFF')
    for word in 'down down right right down right'.split(): step = lake.step(f'move {word}')
    assert step.info['success']
    with pytest.raises(ValueError, match='cannot be made: NameNotFound'): load_env('gym:NoSuchLake-v1')

def test_games_by_name():
    "Seats are found, parameters of a game are options, a shipped move is whole."
    assert load_env('textarena:TicTacToe-v0').seats == ('player0', 'player1')
    assert load_env('textarena:GuessTheNumber-v0').seats == ('player0',)
    assert len(load_env('openspiel:hex?board_size=3').reset(0).info['legal']) == 9
    assert '[0]' in heard(load_env('textarena:TicTacToe-v0'), games=2)['said']

def test_trained_by_name(tmp_path, monkeypatch):
    "A tiny policy in FrozenLake: words from random play, demonstrations from the games that it won; a run."
    from agentlab.policy import tiny_policy
    from agentlab.train import evaluate, load_recipe, train
    monkeypatch.setenv('AGENTLAB_CACHE', str(tmp_path/'cache'))
    lake = load_env('gym:FrozenLake-v1?is_slippery=False&horizon=20')
    wins = RandomWins(lake)
    step = wins.reset(5)
    while not step.done: step = wins.step(wins.demonstrator())
    assert step.info['success']
    fresh = tiny_policy(lake, warm=False)
    warm = tiny_policy(lake, steps=60, pool=64, progress=False)
    shares = [evaluate(policy, lake, tasks=16, greedy=False, max_turns=20) for policy in (fresh, warm)]
    run = train(fresh, lake, load_recipe('grpo', steps=2, groups=2, group_size=2, test_tasks=4, max_turns=8),
        tmp_path/'run', progress=False)
    assert len(run.rows()) == 2 and shares[1] > shares[0]
    record['trained'] = dict(environment=lake.called, wins_of_random_play=len(wins.wins), random_games=wins.tried,
        success_untrained=shares[0], success_after_imitating_the_wins=shares[1])

def test_textworld_by_name(tmp_path):
    "A game that tw-make compiled, by its path; a seed writes one where no path is given."
    import subprocess
    import sys
    path = tmp_path/'one.z8'
    subprocess.run([str(Path(sys.executable).parent/'tw-make'), 'custom', '--world-size', '2', '--nb-objects', '3',
        '--quest-length', '2', '--seed', '7', '--output', str(path)], check=True, capture_output=True,
        timeout=300)
    env = load_env(f'textworld:{path}?horizon=9')
    step = env.reset(0)
    assert '$$' not in step.observation and step.info['legal'] and not step.observation.rstrip().endswith('0/1')
    with pytest.raises(ValueError, match='tw-make'): load_env(f'textworld:{tmp_path}/*.ulx')

def test_reasoning_gym():
    "Questions, their own answers, wrong ones, splits without a question in common."
    found = {}
    for name in ('chain_sum?max_terms=3&max_digits=2', 'leg_counting', 'knights_knaves', 'mini_sudoku'):
        env = load_env(f'reasoning-gym:{name}')
        check_env(env, actions=('17', 'yes'))
        right = 0
        for task in env.tasks('test', 20):
            env.reset(0, task)
            right += env.step(env.expert()).info['success']
        env.reset(1)
        found[env.name] = dict(right_by_its_own_answers=right, of=20, wrong=env.step('nonsense').reward['player'])
        held, drawn = ({env.data[t['item']]['question'] for t in env.tasks(s, 30)} for s in ('test', 'train'))
        assert right == 20 and not held & drawn and len(held) == 30
    with pytest.raises(ValueError, match="no_such_set"): load_env('reasoning-gym:no_such_set')
    record['reasoning_gym'] = found
    ran['reasoning_gym'] = f'{len(found)} data sets keep the rules, their answers are right, splits share no question'

TASKSET = '''
import verifiers.v1 as vf
__all__ = ['Words', 'WordsEnv'][:{names}]
class Data(vf.TaskData):
    answer: str
class WordTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.)
    async def right(self, task, trace) -> float:
        said = [node.message.content for node in trace.nodes if node.sampled]
        return float(said[-1].strip() == task.answer)
class Config(vf.TasksetConfig):
    words: int = 40
class Words(vf.Taskset[WordTask, Config]):
    "Words to be said backwards."
    def load(self):
        for i in range(self.config.words):
            word = 'abcdefghijklmnop'[i % 11:i % 11 + 3] + str(i)
            yield WordTask(Data(prompt=f'Say {{word}} backwards.', answer=word[::-1]), self.config.task)
class EnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
class WordsEnv(vf.Env[EnvConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as it:
            segment = await it.turn()
            if segment.last_reply != task.data.answer: await it.turn('Once more.')
'''

def test_verifiers(tmp_path, monkeypatch):
    "A taskset alone, and one with an Env that talks; verifiers scores the trace."
    (tmp_path/'h3_words.py').write_text(TASKSET.format(names=1))
    (tmp_path/'h3_talk.py').write_text(TASKSET.format(names=2))
    monkeypatch.syspath_prepend(str(tmp_path))
    alone = load_env('verifiers:h3_words?answer=answer&words=30')
    assert len(alone.items) == 30 and 'Words to be said backwards.' in alone.guide
    report = check_env(alone, actions=('cba', 'x'))
    for task in alone.tasks('test', 3):
        alone.reset(0, task)
        last = alone.step(alone.expert())
        assert last.done and last.info['success'] and last.reward == dict(player=1.)
    talk = load_env('verifiers:h3_talk?answer=answer')
    check_env(talk, actions=('cba', 'x'))
    talk.reset(4)
    assert (step := talk.step('what?')).observation == 'Once more.' and not step.done
    assert talk.step(talk.expert()).info['success']
    with pytest.raises(ValueError, match='no_such_words'): load_env('verifiers:no_such_words')
    record['verifiers'] = dict(report=dict(report))
    ran['verifiers'] = 'a taskset of one turn and an Env of several, written for the test, keep the rules; it scores'

# the rules are ALFWorld's own; the house is ours, because its games are a download
HOUSE = '''(define (problem mug) (:domain alfred)
 (:objects agent1 - agent MugType - otype ShelfType DeskType - rtype
  Mug_bar_1 - object Shelf_bar_1 Desk_bar_1 - receptacle loc1 loc2 loc3 - location)
 (:init (= (total-cost) 0) (receptacleType Shelf_bar_1 ShelfType) (receptacleType Desk_bar_1 DeskType)
  (objectType Mug_bar_1 MugType) (canContain DeskType MugType) (canContain ShelfType MugType) (pickupable Mug_bar_1)
  (atLocation agent1 loc1) (receptacleAtLocation Shelf_bar_1 loc2) (receptacleAtLocation Desk_bar_1 loc3)
  (objectAtLocation Mug_bar_1 loc2) (inReceptacle Mug_bar_1 Shelf_bar_1) (wasInReceptacle Mug_bar_1 Shelf_bar_1))
 (:goal (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o MugType)
  (receptacleType ?r DeskType)))))
 (:metric minimize (total-cost)))'''

def test_alfworld(tmp_path, monkeypatch):
    "Its engine, rules and words on a house of ours; without games the error says what to run."
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    monkeypatch.setenv('ALFWORLD_DATA', str(tmp_path))
    with pytest.raises(ValueError, match='alfworld-download'): load_env('alfworld:train')
    place = tmp_path/'json'/'train'/'mug'
    place.mkdir(parents=True)
    grammar = Path(ALFRED_TWL2_PATH).read_text().replace('UNKNOWN GOAL', 'put a mug on the desk')
    (place/'game.tw-pddl').write_text(json.dumps(dict(pddl_domain=Path(ALFRED_PDDL_PATH).read_text(), grammar=grammar,
        pddl_problem=HOUSE, solvable=True)))
    env = load_env('alfworld:train?horizon=12')
    step = env.reset(0)
    assert 'you see a desk 1, and a shelf 1' in step.observation and 'put a mug on the desk' in step.observation
    for command in ('go to shelf 1', 'take mug 1 from shelf 1', 'go to desk 1', 'move mug 1 to desk 1'):
        assert command in step.info['legal'], (command, step.info['legal'])
        step = env.step(command)
    assert step.done and step.info['success'] and step.reward == dict(player=1.)
    report = check_env(env, turns=15, seeds=(0,))
    record['alfworld'] = dict(report=dict(report))
    ran['alfworld'] = 'its engine and rules, a house written for the test; its own games are a download, not had'
