"Studies of practice: games that end early, what a budget buys, what is imitated and what is played."
import copy
import math
import random
from pathlib import Path

import numpy as np
import pytest

from agentlab.env import GuessNumber, KeyDoor, TextEnv
from agentlab.env.adapters import from_textworld
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.policy.tiny import demonstrate, taught
from agentlab.rollout.turns import ExpertLimit, expert_turns
from agentlab.train import recipes, train
from agentlab.train.practice import cascade, divided, longest, proposed
from small import small_policy, small_recipe

@pytest.mark.parametrize('factor', [1, 1.5, 3])
def test_every_task_has_its_own_limit(factor):
    env, found = ExpertLimit(KeyDoor(), factor), set()
    for seed in range(8):
        env.reset(seed)
        way = expert_turns(env.env)
        found.add(env.limits[0])
        turns = 0
        while True:
            turns += 1
            step = env.step('wait')
            if step.done: break
        most = math.ceil(factor*way)
        assert turns == min(most, env.horizon) and not step.info['success']
        assert step.info['truncated'] == (most < env.horizon)  # else the house itself has ended it
    assert len(found) > 2

def test_the_limit_of_a_task_is_that_of_the_task():
    "A given task is counted, not the one that the seed would draw."
    env, house = ExpertLimit(KeyDoor(), 1), KeyDoor()
    for task in house.tasks('test', 5):
        house.reset(0, task)
        env.reset(0, task)
        assert env.limits == (expert_turns(house),)

def test_an_expert_that_never_ends():
    class Endless(KeyDoor):
        def expert(self, noise=0., generator=None): return 'wait'
    env = Endless()
    env.reset(1)
    with pytest.raises(ValueError, match='has not ended the game in 5 turns'): expert_turns(env, 5)
    with pytest.raises(TypeError, match='no expert'): ExpertLimit(TextEnv())
    for factor in (.9, math.nan):
        with pytest.raises(ValueError, match='factor='): ExpertLimit(GuessNumber(), factor)

def test_activevln_plays_and_updates(tmp_path):
    "Games of one update end at different turns, and what is learned from them changes the policy."
    from agentlab.train import load_recipe, train
    policy = tiny_policy(KeyDoor(), progress=False)
    before = [p.detach().clone() for p in policy.model.parameters()]
    made = load_recipe('grpo', steps=2, groups=4, group_size=4, max_turns=40, test_tasks=0)
    run = train(policy, ExpertLimit(KeyDoor(), 1), made, tmp_path, progress=False)
    lengths = np.bincount(run.episodes(0).turns.episode)
    assert lengths.max() <= KeyDoor().horizon and len(set(lengths)) > 1
    assert any((a != b).any() for a, b in zip(before, policy.model.parameters()))

def test_imitation_of_given_games_and_of_no_others():
    house = KeyDoor()
    policy = small_policy(house)
    games = demonstrate(house, policy.chat, range(3), noise=0.)
    batch = Batch.from_episodes(games)
    first = policy.logprobs(batch)[0].mean()
    taught(policy, games, 20, lr=3e-3, warmup=2)
    assert policy.logprobs(batch)[0].mean() > first/2  # nearer to 0
    with pytest.raises(ValueError, match='demos is empty'): taught(policy, [])

def test_the_longest_games_that_were_won():
    house = KeyDoor()
    games = demonstrate(house, small_policy(house).chat, range(40), noise=.3)
    chosen = longest(games, 5)
    assert all(game.success for game in chosen)
    left = [game for game in games if game.success and not any(game is one for one in chosen)]
    assert min(len(game.turns) for game in chosen) >= max(len(game.turns) for game in left)
    with pytest.raises(ValueError, match='count=50'): longest(games, 50)

def test_a_cascade_leaves_no_task_in_two_parts():
    rates = np.random.default_rng(0).integers(0, 9, 500)/8
    sure, unsure = cascade(rates)
    dropped = np.setdiff1d(np.arange(500), np.concatenate([sure, unsure]))
    assert not set(sure) & set(unsure) and (rates[dropped] == 0).all()
    assert (rates[sure]*(1 - rates[sure])).max() < .11 and (rates[sure] > .8).all()

def test_the_cascades_tasks_are_played(tmp_path):
    "STAgent: reinforcement plays the unsure tasks alone."
    from agentlab.train import load_recipe, train
    house = KeyDoor()
    policy, tasks = small_policy(house), house.tasks('train', 6)
    _, unsure = cascade([0., .5, 1., .25, 0., 1.])
    chosen = [tasks[i] for i in unsure]
    made = load_recipe('grpo', steps=2, groups=2, group_size=3, max_turns=6, test_tasks=0,
        group_args=dict(tasks=chosen))
    seen = []
    class Seen(KeyDoor):
        def start(self, seed, task=None):
            seen.append(task)
            return super().start(seed, task)
    rows = train(policy, Seen(), made, tmp_path/'seen', progress=False).rows()
    assert all(task in chosen for task in seen if task) and len(seen) >= 12 and len(rows) == 2

@pytest.mark.parametrize('share, option, then', [(1., 0, 1), (1., 3, 3), (0., 0, 0), (0., 3, 2), (.5, 2, 2)])
def test_one_option_at_a_time(share, option, then): assert proposed(share, option, 4) == then

def test_every_split_costs_the_same():
    for share in np.linspace(0, 1, 11):
        demonstrations, updates = divided(share, 6400, 64)
        assert abs(10*demonstrations + 64*updates - 6400) <= 64

def test_limi_imitates_the_chosen_and_plays_on():
    from agentlab.rollout import play
    house = KeyDoor()
    policy = small_policy(house)
    pool = demonstrate(house, policy.chat, range(30), noise=.3)
    before = [p.detach().clone() for p in policy.model.parameters()]
    taught(policy, longest(pool, 4), 2)
    assert any((a != b).any() for a, b in zip(before, policy.model.parameters()))
    assert len(play(policy, house, range(3), max_turns=3, max_tokens=8)) == 3

def test_a_proposed_option_is_played_and_learned_from(tmp_path):
    "Game On: the houses of the second run are the longer ones, because the first ones were nearly all won."
    from agentlab.train import load_recipe, train
    policy, options, option = tiny_policy(KeyDoor(), progress=False), (4, 12), 0
    for part in range(2):
        made = load_recipe('grpo', steps=1, groups=4, group_size=4, seed=part, test_tasks=0, temperature=.3)
        run = train(policy, KeyDoor(horizon=options[option]), made, tmp_path/str(part), progress=False)
        option = proposed(run.rows()[-1]['success'], option, len(options), up=.3, down=.1)
        assert run.rows()[-1]['grad_norm'] > 0
    assert option == 1

def test_a_specialists_games_are_imitated_before_all_tools(tmp_path):
    "SpaceTools: a run with one tool only, its games and traces of all tools imitated, then a run with all tools."
    from agentlab.env.errands import Errands, draw_errand, tool_for
    from agentlab.rollout import play
    from agentlab.train import load_recipe, train
    one, every = Errands(), Errands()
    def drawn(generator, split):
        return next(task for task in iter(lambda: draw_errand(generator, split), None)
            if tool_for[task['kind']] == 'sqlite')
    one.draw = drawn
    assert {tool_for[task['kind']] for task in one.tasks('train', 12)} == {'sqlite'}
    policy, reward = small_policy(every), lambda b: b.turns.episode.double()
    made = load_recipe('grpo', steps=1, groups=2, group_size=3, max_turns=2, max_tokens=4, test_tasks=0, reward=reward)
    rows = train(policy, one, made, tmp_path/'one', progress=False).rows()
    played = play(policy, one, range(4), max_turns=2, max_tokens=4)
    taught(policy, [*played, *demonstrate(every, policy.chat, range(6), noise=0.)], 2)
    rows += train(policy, every, made, tmp_path/'all', progress=False).rows()
    assert all(row['skipped'] is None and row['grad_norm'] > 0 for row in rows)

def test_lost_games_prime_too():
    "Behaviour priming: demonstrations are imitated whether they were won or not."
    house = KeyDoor(horizon=4)
    policy = small_policy(house)
    lost = [game for game in demonstrate(house, policy.chat, range(20), noise=.9) if not game.success]
    before = [p.detach().clone() for p in policy.model.parameters()]
    taught(policy, lost, 2)
    assert lost and any((a != b).any() for a, b in zip(before, policy.model.parameters()))

def test_a_hard_start_is_shown_nothing(monkeypatch):
    "The studies of tricks: an arm that ends in `, hard` has the settings of its name, and no demonstrations."
    tools = Path(__file__).resolve().parents[1]/'tools'
    for folder in (tools, tools/'claims'): monkeypatch.syspath_prepend(str(folder))
    import _tricks
    seen = []
    for name, answer in dict(start=None, shown=[], share=.5, taught=None,
            reinforced=[dict(success=.25, entropy=1.)]).items():
        monkeypatch.setattr(_tricks, name, lambda *args, name=name, answer=answer, **how: seen.append((name, how)) or
            answer)
    settings = dict(wide=dict(high=.3))
    assert _tricks.tried('wide', 0, None, settings) == _tricks.tried('wide, hard', 0, None, settings)
    assert [name for name, _ in seen].count('taught') == 1 and seen[2][0] == 'taught'
    assert [how for name, how in seen if name == 'reinforced'] == [dict(high=.3)]*2

class Tale:
    "TextWorld's calls: a key, then a chest; what is said pays a little, so that an untrained policy has a gradient."
    def __init__(self, path): self.path = path
    def copy(self): return copy.copy(self)
    def close(self): pass
    def say(self, text):
        way = ['take key', 'open chest'][self.done:]
        return dict(feedback=text, description=f'A room with {self.done} things done.', inventory='', won=not way,
            admissible_commands=['look', *way], policy_commands=way, lost=False)
    def reset(self):
        self.done = self.score = 0
        return self.say('A room.')
    def step(self, command):
        said = self.say('')
        self.done += command == (said['policy_commands'] or [None])[0]
        self.score += len(command) % 7/8
        return self.say(f'You {command}.'), self.score, self.done == 2

def test_a_policy_is_reinforced_in_textworld(tmp_path):
    env = from_textworld(['a', 'b'], start=Tale, horizon=3)
    rows = train(small_policy(), env, small_recipe(recipes.grpo, group_size=4), tmp_path/'run', progress=False).rows()
    assert all(row['skipped'] is None and row['grad_norm'] > 0 for row in rows)

def test_textworlds_expert_follows_the_walk_through(monkeypatch):
    "The demonstrations of the study win unless they are disturbed, and splits have games of their own."
    tools = Path(__file__).resolve().parents[1]/'tools'
    for folder in (tools, tools/'claims'): monkeypatch.syspath_prepend(str(folder))
    import practitioner_textworld as study
    monkeypatch.setattr(study, 'written', lambda seed, **options: str(seed))
    monkeypatch.setattr(study, 'opened', Tale)
    games = {split: set(study.Adventures().tasks(split, study.MANY)) for split in study.FIRST}
    assert all(len(found) == study.MANY for found in games.values())
    assert not games['train'] & games['test'] and not games['train'] & games['demo']
    for noise, wins in ((0., True), (1., False)):
        world = study.Adventures()
        world.open = Tale
        step = world.reset(0)
        generator = random.Random(3)
        for _ in range(2): step = world.step(world.expert(noise, generator))
        assert bool(step.info.get('success')) == wins
