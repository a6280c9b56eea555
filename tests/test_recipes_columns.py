"""Recipes whose estimators need more than a rollout has by itself: what stands in the columns, and a run that goes
on where it was stopped."""
import pytest
import torch

from agentlab.credit.hierarchy import read_parts
from agentlab.env import HopSearch, KeyDoor
from agentlab.env.wrappers import BesideExpert, Planned, Tagged
from agentlab.episodes import Batch, derive
from agentlab.policy import tiny_policy
from agentlab.reward.step_tags import TAGS, read_tags
from agentlab.rollout import play
from agentlab.rollout.beside import play_beside_expert, play_beside_greedy
from agentlab.train import recipes, train
from agentlab.train.runs import load_checkpoint
from small import Paying, exactly, same_run, small_policy

AROUND = dict(hae=Planned, rlvmr=Tagged)
NAMES = ['remax', 'ui_s1', 'istar', 'spa', 'v05', 'hae', 'rlvmr']

class Coin(KeyDoor):
    "A small house that pays 1 for a long first word and else nothing: two outcomes, and an untrained policy gets both."
    name = 'coin'
    def __init__(self, size=2, horizon=4, closed=0, split='train'): super().__init__(size, horizon, closed, split)
    def turn(self, action):
        self.long = self.turns == 1 and len(action) % 2 == 1 or (self.turns > 1 and self.long)
        observation, _, done, info = super().turn(action)
        return observation, float(self.turns == self.horizon and self.long), done and self.turns == self.horizon, info

def short(name, out, steps=3, resume=False, should_stop=None, **changes):
    house = KeyDoor() if name == 'ui_s1' else Coin()  # the expert's actions are no accident
    env = AROUND.get(name, lambda inner: inner)(house)
    policy = tiny_policy(env) if name == 'ui_s1' else small_policy(env)
    recipe = recipes.known[name](**dict(steps=steps, groups=3, group_size=4, minibatches=1, max_tokens=4, test_tasks=0,
        checkpoint_every=1) | changes)
    return train(policy, env, recipe, out, resume=resume, should_stop=should_stop, progress=False)

@pytest.mark.parametrize('name', NAMES + ['vl_dac'])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, name):
    "The same rows, episodes and weights, and the same critic."
    whole = short(name, tmp_path/'whole')
    left = iter([False]*2 + [True]*9)
    short(name, tmp_path/'cut', should_stop=lambda: next(left))
    assert load_checkpoint(type(whole)(tmp_path/'cut'))[0] == 2
    cut = short(name, tmp_path/'cut', resume=True)
    same_run(whole, cut)
    assert any(row['grad_norm'] and row['grad_norm'] > 1e-5 for row in whole.rows())
    if recipes.known[name]().critic is None: return
    first, second = (load_checkpoint(run)[1]['critic'] for run in (whole, cut))
    assert set(first) == set(second) and any(x.abs().max() > 1e-4 for key, x in first.items() if key[0].isalpha())
    for key in first: exactly(first[key], second[key], key)

def test_the_bar_is_the_greedy_game_of_the_policy_of_that_step(tmp_path):
    run = short('remax', tmp_path/'run', steps=1, groups=6, group_size=2)
    b, env = run.episodes(0), Coin()
    games = play(small_policy(env), env, [derive(0, 0, 'tasks', i) for i in range(6)], temperature=0., max_tokens=4)
    assert b.episodes.greedy.tolist() == [g.outcome for g in games for _ in range(2)]
    assert len(b) == 12 == run.rows()[0]['episodes']

@pytest.mark.parametrize('patches', [None, 0, 1, 3])
def test_who_plays_beside_the_expert(patches):
    """Untrained agents: at most `patches` actions are replaced, the first mismatch after them ends the episode, and
    nobody is called successful who was helped."""
    env = KeyDoor(size=2, horizon=6, closed=0)
    b = Batch.from_episodes(play_beside_expert(small_policy(env), env, range(8), 3, patches=patches, max_tokens=3))
    per = lambda x: torch.zeros(len(b), dtype=torch.float64).index_add(0, b.turns.episode, x.double())
    wrong, patched, turns = per(1 - b.turns.matched), per(b.turns.patched), per(torch.ones(len(b.turns)))
    assert wrong.max() > 0 and not (b.episodes.success & (patched > 0)).any()
    assert b.turns.invalid.any() and not (b.turns.invalid & (b.turns.matched > 0)).any()
    if patches is None: assert patched.sum() == 0 and turns.max() == 6
    else:
        assert ((patched == wrong.clamp(max=patches)).all() and wrong.max() == patches + 1
            and b.episodes.truncated[wrong > patches].all())

def test_two_seats_have_columns_of_their_own():
    env = HopSearch(seats=('planner', 'searcher'))
    policy = tiny_policy(env, warm=False)
    for b in (Batch.from_episodes(f(policy, env, range(3), 2, max_tokens=4))
              for f in (play_beside_greedy, play_beside_expert)):
        assert len(b) == 12
    assert not b.turns.matched.isnan().any() and 'greedy' not in b.episodes

def test_the_expert_is_not_disturbed_and_nobody_else_either():
    "Playing on without patches is the game itself, whoever looks on; a clone patches for itself."
    env = KeyDoor(size=2, horizon=6, closed=0)
    policy = small_policy(env)
    alone, beside = (Batch.from_episodes(f(policy, env, range(6), 2, max_tokens=3)) for f in (play, play_beside_expert))
    for table, column in (('tokens', 'id'), ('turns', 'reward'), ('turns', 'state'), ('turns', 'invalid'),
                          ('episodes', 'truncated')):
        exactly(getattr(alone, table)[column], getattr(beside, table)[column], column)
    one = BesideExpert(env, patches=1)
    one.reset(0)
    two = one.clone()
    assert one.step('nothing').info['columns']['patched'] == 1 and two.used == 0
    assert one.step('nothing').done and not two.step('nothing').done

def test_words_that_a_policy_cannot_say(tmp_path):
    for name, word in (('hae', 'switch'), ('rlvmr', 'planning')):
        with pytest.raises(ValueError,
                           match=f"no token for '{word}': put agentlab.env.wrappers.{AROUND[name].__name__}"):
            train(small_policy(), Paying(), recipes.known[name](steps=1, groups=2, group_size=2, test_tasks=0),
                tmp_path/name, progress=False)

def test_tags_and_parts_of_nonsense():
    "Whatever an untrained policy says: a column for every turn, and parts that follow from the words."
    for wrapper, read in ((Tagged, read_tags), (Planned, read_parts)):
        env = wrapper(Coin())
        policy = small_policy(env)
        b = Batch.from_episodes(play(policy, env, range(12), 4, max_tokens=4, temperature=2.))
        b = read(b, policy)
        if wrapper is Tagged:
            assert set(b.turns.tag.tolist()) <= set(TAGS.values()) and (b.turns.meta[b.turns.tag < 0] == 0).all()
        else:
            first = torch.cat([torch.tensor([True]), b.action_turn[1:] != b.action_turn[:-1]])
            words = [policy.tokenizer.decode([i]) for i in b.action('id').tolist()]
            assert ([w == 'switch' for w, f in zip(words, first.tolist()) if f] == b.turns.switch.tolist()
                and b.turns.switch.any())
            assert ([int(p) for p, f in zip(b.action('part').tolist(), first.tolist()) if f]
                == [1 if w in ('switch', 'keep') else 3 for w, f in zip(words, first.tolist()) if f])

def test_a_faulty_greedy_game_costs_its_group_only(tmp_path):
    class Odd(Coin):
        def step(self, action):
            if len(action) % 3 == 0 and self.turns == 2: raise RuntimeError('odd')
            return super().step(action)
    b = Batch.from_episodes(play_beside_greedy(small_policy(Odd()), Odd(), range(12), 2, max_tokens=4))
    lost = b.episodes.greedy.isnan()
    from agentlab.credit import remax
    advantage = remax(b.select(b.episodes.error == -1))
    assert lost.any() and not lost.all() and torch.isfinite(advantage).all()
