"""Steps that take time: ML engineering with durations and marks, tools called at once, a graph of thoughts, actions
that are foreseen; each mechanism is switched off and something changes."""
import copy
from random import Random
from threading import Barrier

import pytest
import torch

from agentlab import credit
from agentlab.env import KeyDoor, TextEnv, Toolbox, check_env, load_env, python_code, sql_query, text_search, workbench
from agentlab.env.workbench import Foreseen, Thoughts, Voting, Workbench, fitted
from agentlab.env.wrappers import Wrapper
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.policy.sampler import Completion
from agentlab.policy.tiny import warm_start
from agentlab.reward import format
from agentlab.rollout import Scripted, play
from agentlab.train import recipes, train

WAVES = 'waves', 'ac', 7
SMALL = dict(steps=1, groups=3, group_size=4, test_tasks=0, checkpoint_every=1, max_tokens=5)

@pytest.fixture(autouse=True, scope='module')
def one_thread(): torch.set_num_threads(1)

def trained(tmp_path, recipe, policy, world, **changes):
    "A run of one update on a copy of the policy; its row and its episodes."
    run = train(copy.deepcopy(policy), world, recipe(**SMALL | changes), tmp_path, progress=False)
    return run.rows()[0], run.episodes(0)

def shown(world, **how): return warm_start(tiny_policy(world, warm=False), world, **dict(steps=30, episodes=8,
                                                                                         pool=64, warmup=5) | how)

def played(env, *actions, task=None):
    "The last step of some actions."
    step = env.reset(0, task)
    for action in actions: step = env.step(action)
    return step

# ---- ML engineering

def test_models_are_fitted_and_take_their_time():
    "The quick one is no better than the mean where the data come in waves; the slow one is; and both on a plane."
    quick, slow = (fitted(*WAVES, 'ac', model, 2) for model in ('linear', 'kernel'))
    assert quick[1] < .3 < .8 < slow[1] and slow[2] > 50*quick[2]
    assert fitted('plane', 'ac', 7, 'ac', 'linear', 2)[1] > .8
    assert fitted(*WAVES, 'bd', 'kernel', 2)[1] < .2  # the other two features tell nothing
    columns = played(Workbench(), 'load', 'use a c', 'fit kernel 2', task=WAVES).info['columns']
    assert columns == dict(seconds=1 + slow[2]/workbench.pace)

def test_a_step_needs_the_one_before():
    env = Workbench()
    for action in ('fit kernel 2', 'submit', 'load now', '', 'use c a'):
        step = played(env, action, task=WAVES)
        assert step.info['invalid'] and step.info['milestone'] == 0 and step.info['columns']['seconds'] == 1
    assert played(env, 'load', 'submit', task=WAVES).info['invalid']
    assert played(env, 'load', 'fit kernel 2', 'use a c', 'validate', task=WAVES).info['invalid']  # to be fitted anew
    step = played(env, *['load']*7, task=WAVES)
    assert step.done and not step.info['success'] and step.reward == dict(player=0) and step.info['milestone'] == .2

def test_the_grade_is_a_share_of_the_best():
    def grade(*fit): return played(Workbench(), 'load', 'use a c', *fit, 'submit', task=WAVES)
    best, worse, none = grade('fit kernel 2'), grade('fit kernel 3'), grade('fit linear 2')
    assert best.reward['player'] == 1 > worse.reward['player'] > .5 > none.reward['player'] > -1
    assert best.info['success'] and not none.info['success']

@pytest.mark.parametrize('task', [('waves', 'ac'), ('cubes', 'ac', 7), ('waves', 'ca', 7), ('waves', 'ac', -1)])
def test_what_is_no_problem_is_refused(task):
    with pytest.raises(ValueError, match='a task is'): Workbench().reset(0, task)
    with pytest.raises(ValueError, match='horizon=4'): Workbench(horizon=4)

@pytest.fixture(scope='module')
def engineers():
    world = load_env('mle')
    return world, shown(world, noise=.3)

def test_rl_mle_plays_and_updates(engineers, tmp_path):
    row, batch = trained(tmp_path, recipes.rl_mle, engineers[1], engineers[0])
    assert row['grad_norm'] > 0 and batch.turns.seconds.min() >= 1 and row['reward'] >= -10

@pytest.fixture(scope='module')
def two_games():
    "A slow success, and a game that ends after it has loaded."
    def say(game): return game.env.expert() if game.number == 0 else 'load'
    world, policy = Workbench(), tiny_policy(Workbench(), warm=False)
    speaker = Scripted(policy, say)
    return Batch.from_episodes(play(policy, world, [0], 2, [WAVES], sampler=speaker, on_reset=speaker.begin))

def test_rl_mle_counts_by_time(two_games):
    "Switched off, all turns of the success are worth the same."
    timed, plain = credit.by_duration(credit.grpo)(two_games), credit.grpo(two_games)
    mine = two_games.turns.episode[two_games.action_turn] == 0
    assert len(set(plain[mine].tolist())) == 1 < len(set(timed[mine].tolist()))
    slow = two_games.turns.seconds[two_games.action_turn] > 5
    assert timed[mine & slow].min() > plain[mine].max() > timed[mine & ~slow].max()

def test_rl_mle_pays_marks_of_a_failure(two_games):
    "Switched off, a failure is a failure, however far it came."
    paid = lambda **how: credit.instrumented(two_games, **how)[two_games.last_turns()].tolist()
    assert paid() == pytest.approx([1, -9.9]) and paid(mark=0.) == [1, -10] and paid(lost=0.) == pytest.approx([1, .1])
    assert credit.instrumented(two_games)[~two_games.last_turns()].abs().sum() == 0

# ---- tools at once

class Together(Wrapper):
    "A tool that answers when as many as are at the table have asked; those who ask alone lose patience."
    def __init__(self, env, table):
        super().__init__(env)
        self.table = table
    def step(self, action):
        self.table[0].wait()
        return super().step(action)
    def clone(self): return Together(self.env.clone(), self.table)

def test_verltool_calls_tools_of_all_episodes_at_once():
    "With threads every tool is asked before one has answered; without, the first one waits in vain."
    world = load_env('errands')
    policy = tiny_policy(world, warm=False)
    def faults(workers, seconds):
        speaker = Scripted(policy, lambda game: game.env.expert())
        env = Together(world, [Barrier(4, timeout=seconds)])
        found = play(policy, env, [0, 1, 2, 3], sampler=speaker, on_reset=speaker.begin, workers=workers)
        return [episode.error for episode in found if episode.error]
    assert not faults(4, 20) and len(faults(0, .1)) == 4

def test_verltool_one_api_for_code_search_and_sql():
    "Each call goes to the tool that it names; without that tool nothing is called."
    tools = [python_code(), text_search(lambda task: ['The bells were made by Bora.']),
        sql_query(lambda task: 'create table t (x); insert into t values (5);')]
    def said(text, some=tools):
        env = Toolbox(some, [dict(question='?', answer='5')])
        env.reset(0)
        return env.step(text).observation
    calls = {'python 2 + 3': '5', 'search bells': 'Bora', 'sqlite select x from t': '5'}
    for at, (call, answer) in enumerate(calls.items()):
        assert answer in said(call)
        assert said(call, tools[:at] + tools[at + 1:]) in ('Right.', 'Wrong.')  # the text is taken for the answer

def test_verltool_plays_and_updates(tmp_path):
    world = load_env('errands')
    row, batch = trained(tmp_path, recipes.grpo, shown(world), world, rollout_args=dict(workers=12), reward=format,
        max_tokens=12)
    assert isinstance(world, Toolbox) and row['grad_norm'] > 0 and batch.turns.calls.max() > 0

# ---- ARIES

def test_aries_actions_change_the_graph():
    env = Thoughts(length=4, slip=0.)
    digits = [3, 1, 2, 0]
    for actions, seen in {(): '0 open 4.', ('decompose 0',): '1 open 2. 2 open 2.', ('solve 0',): '1 sorted 4.',
                          ('solve 0', 'refine 1'): '2 sorted 4.', ('solve 0', 'reduce 1'): '',
                          ('decompose 0', 'solve 1', 'solve 2', 'aggregate 3 4'): '5 sorted 4.'}.items():
        assert played(env, *actions, task=digits).observation == seen
    assert [some for some, _ in env.nodes.values()] == [[0, 1, 2, 3]]
    assert played(env, 'solve 0', 'answer 1', task=digits).reward == dict(player=1 - .04)
    assert not played(env, 'decompose 0', 'solve 1', 'answer 3', task=digits).info['success']
    for action in ('aggregate 0 0', 'solve 7', 'answer 0', ''): assert played(env, action).info['invalid']
    assert set(check_env(Thoughts()).values()) == {'ok'}

def test_aries_parts_are_solved_better():
    "Without decompose and aggregate the solver slips more often."
    def won(say):
        env, wins = Thoughts(slip=.01), 0
        for seed in range(60):
            step = env.reset(seed)
            while not step.done: step = env.step(say(env))
            wins += step.info['success']
        return wins
    assert won(lambda env: env.expert()) > 1.3*won(lambda env: 'solve 0' if 0 in env.nodes else 'answer 1')

class Coin:
    "A sampler that says 1 in two of three cases, and else 2."
    def sample(self, contexts, *, seeds, **how):
        return [Completion([1 + (Random(seed).random() < 1/3)], [0.], [0.], 'stop') for seed in seeds]

def test_aries_votes():
    "Of one vote a third is wrong, of eleven fewer."
    wrong = lambda votes: sum(c.ids == [2] for c in Voting(Coin(), votes).sample([[]]*300, seeds=[*range(0, 6000, 20)]))
    assert wrong(11) < .7*wrong(1)

def test_aries_plays_and_updates(tmp_path):
    world, how = Thoughts(length=4), dict(max_tokens=4, max_turns=4)
    policy = shown(world, noise=.2)
    row, batch = trained(tmp_path, recipes.grpo, policy, world, reward=format, **how)
    assert row['grad_norm'] > 0 and batch.turns.invalid.double().mean() < 1
    voted = play(policy, world, [0, 1], 2, sampler=Voting(policy.sampler(), 3), **how)
    assert voted != play(policy, world, [0, 1], 2, **how)

# ---- StarWM

class Next(TextEnv):
    "What would be read next? Situations of another world after some steps at random."
    name = 'next'
    def __init__(self, env, split='train'): self.env, self.split = env, split
    def start(self, seed, task=None):
        self.env.split = self.split
        step = self.env.reset(seed)
        for _ in range(self.random.randrange(6)):
            step = self.env.step(self.random.choice(self.env.legal()))
            if step.done: step = self.env.reset(seed)
        action = self.random.choice([*self.env.legal(), 'take key'])
        text, self.next = f'{step.observation} {action}', self.env.step(action).observation
        return text
    def turn(self, action): return '', float(action == self.next), True, dict(success=action == self.next)
    def expert(self, noise=0., generator=None): return self.next
    def vocabulary(self): return self.env.vocabulary()

class Model(Foreseen):
    "Predictions of a policy that was trained on `Next`."
    def predict(self, observation, action):
        said, = self.model.sampler().sample([self.model.chat.first(f'{observation} {action}', None)], seeds=[0],
            max_tokens=24, temperature=0., stop=(self.model.end_id,))
        return self.model.text(said.ids)

@pytest.fixture(scope='module')
def model():
    world = Next(KeyDoor(2, closed=0, horizon=8))
    return world, shown(world, steps=100, pool=400, noise=0.)

def fields(text): return [part.split() for part in text.rstrip('.').split('.')]

def test_starwm_predicts_more_than_it_reads(model):
    "Fields of the next observation in houses that were not shown; without training nothing is right."
    world, policy = model
    asker = Model(KeyDoor(2, closed=0))
    def right(policy, guess=None):
        hits = []
        for seed in range(40):
            *seen, = world.clone().reset(seed).observation.rpartition('.')
            env = world.clone()
            text = env.reset(seed).observation
            asker.model = policy
            said = guess(text) if guess else asker.predict(text, '').strip()
            hits += [a == b for a, b in zip(fields(env.next), fields(said) + [None]*9)]
        return sum(hits)/len(hits)
    copied = right(policy, lambda text: text.rpartition('.')[0])
    assert right(policy) > copied > right(tiny_policy(world, warm=False))

def test_starwm_simulates_before_it_acts(model):
    "The prediction is read and the world has not moved; without it every action is played."
    env = Foreseen(KeyDoor())
    plain, first = KeyDoor(), env.reset(0)
    plain.reset(0)
    action = env.expert()
    step = env.step(action)
    state = step.info['state']
    assert step.observation != first.observation and state == first.info['state'] and not step.reward
    assert step.observation == plain.step(action).observation == env.step(action).observation
    assert env.now.info['state'] != state

def test_starwm_plays_and_updates(model, tmp_path):
    world = Model(KeyDoor(2, closed=0, horizon=8))
    world.model = model[1]
    row, batch = trained(tmp_path, recipes.grpo, shown(world.env, steps=60), world, max_turns=6, reward=format)
    assert row['grad_norm'] > 0 and len(batch.turns) > len(batch)
