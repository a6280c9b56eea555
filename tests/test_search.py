"""A tree of games: counts and returns fit together, what it costs is counted, equal seeds give equal trees, chance and
faults of an environment stay where they are; and what is read off a tree."""
import math, random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env import Env, EnvError, KeyDoor, Nim, Step, check_env
from agentlab.episodes import Batch
from agentlab.rollout import (Choosing, Node, Replayed, Trees, edges, evenly, legal, likelihood, mask_edges,
    preference_q, puct, step_pairs, tree_figure, uct)
from agentlab.selfplay import dpo_credit
from small import small_policy
from test_branching import Seeded, Walk, walks
from test_rollout import reader, tokenizer

quick = settings(max_examples=40, deadline=None)

class Counting(Walk):
    "Counts the steps of all its copies."
    steps = 0
    def step(self, action):
        Counting.steps += 1
        return super().step(action)

def trees_of(env, seeds=(3, 4), **how):
    return Trees(reader(tokenizer=tokenizer), env, list(seeds), sampler=how.pop('sampler', None) or Seeded(),
        **dict(max_tokens=3, width=3) | how)

def story(trees):
    return [[(row['action'], row['visits'], row['parent'], row['q'] if row['visits'] else None) for row in edges(root)]
        for root in trees.roots]

# ---- the tree

@quick
@given(env=walks, choose=st.deferred(lambda: st.sampled_from([uct, puct])), visits=st.integers(1, 12),
    gamma=st.sampled_from([1., .5]), turns=st.sampled_from([9, 3]), seed=st.integers(0, 9))
def test_visits_and_returns_fit_together(env, choose, visits, gamma, turns, seed):
    trees = trees_of(env, max_turns=turns, seed=seed)
    trees.grow(visits, choose=choose, gamma=gamma)
    for root, played in zip(trees.roots, trees.played):
        assert root.visits == (0 if root.over else visits)
        for node in root.below():
            inner = sum(child.visits for child in node.children)
            if node is root: assert node.visits == inner
            elif node.children: assert node.visits == inner + 1    # the visit in which it was found
            if node.visits and node.parent:
                ends = [(way, game) for way, game in played if node in way.path]
                times = sum(way.visits if way.over else 1 for way, _ in ends)   # an end may be met again
                assert times == node.visits
        # undiscounted, Q is the mean of what the games below brought the seat that acted, from this action on
        for node in root.children if gamma == 1. else ():
            if not node.visits: continue
            seat, ends = root.game.step.seat, [(way, game) for way, game in played if node in way.path]
            worth = sum((game.sides[seat].outcome - root.game.sides[seat].outcome)*(way.visits if way.over else 1)
                for way, game in ends)
            assert node.worth == pytest.approx(worth)

@quick
@given(seats=st.sampled_from([('player',), ('red', 'blue')]), visits=st.integers(1, 9), seed=st.integers(0, 9))
def test_every_step_and_token_is_counted(seats, visits, seed):
    Counting.steps, sampler = 0, Seeded()
    tokens, sample = [], sampler.sample
    def counted(contexts, *given):
        said = sample(contexts, *given)
        tokens.extend(len(one.ids) for one in said)
        return said
    sampler.sample = lambda contexts, max_tokens, temperature, top_p, stop, seeds: counted(
        contexts, max_tokens, temperature, top_p, stop, seeds)
    trees = trees_of(Counting(seats), sampler=sampler, seed=seed)
    trees.grow(visits)
    trees.dive(1)
    assert sum(spent['steps'] for spent in trees.spent) == Counting.steps
    assert sum(spent['tokens'] for spent in trees.spent) == sum(tokens)

@quick
@given(env=walks, visits=st.integers(1, 9), seed=st.integers(0, 9))
def test_equal_seeds_give_equal_trees(env, visits, seed):
    one, other = (trees_of(env, seed=seed) for _ in range(2))
    for trees in (one, other): trees.grow(visits)
    assert story(one) == story(other)

def test_another_seed_gives_another_tree():
    one, other = (trees_of(Walk(most=9), seed=seed) for seed in (0, 1))
    for trees in (one, other): trees.grow(9)
    assert story(one) != story(other)

@quick
@given(env=walks, visits=st.integers(1, 9), dives=st.booleans(), seed=st.integers(0, 9))
def test_what_was_played_is_a_batch_whose_origins_hold(env, visits, dives, seed):
    trees = trees_of(env, seed=seed)
    trees.dive(visits) if dives else trees.grow(visits)
    episodes = trees.finished()
    if not any(e.turns for e in episodes): return
    batch = Batch.from_episodes(episodes)
    origin = batch.turns.origin
    assert origin[origin].equal(origin) and batch.turns.t[origin].equal(batch.turns.t)
    assert batch.of_turn('group', 'seat')[origin].equal(batch.of_turn('group', 'seat'))
    at = [batch.tokens.id[batch.tokens.turn == i].tolist() for i in range(len(origin))]
    assert all(at[i] == at[o] for i, o in enumerate(origin.tolist()))
    assert len(set(batch.episodes.game.tolist())) == len(episodes)//len(env.seats)

def test_budgets_end_a_tree_and_not_its_neighbours_work():
    trees = trees_of(Walk(most=9), seeds=range(4), steps=30)
    trees.grow(100)
    assert all(30 <= spent['steps'] < 45 for spent in trees.spent)      # the round in which it ran out is finished
    few = trees_of(Walk(most=9), seeds=range(4), tokens=10)
    few.grow(100)
    assert all(10 <= spent['tokens'] < 60 for spent in few.spent)
    assert trees_of(Walk(most=9), steps=0).best_first(5) == [None, None]

def test_two_players_each_want_to_win():
    "In Nim with heaps 1 and 2 the only move that wins is to make them equal."
    policy = small_policy(Nim((1, 2)))
    trees = Trees(policy, Nim((1, 2)), [0], propose=legal, prior=evenly)
    trees.grow(400)
    assert trees.roots[0].best.text == 'b 1'
    by = {row['action']: row for row in edges(trees.roots[0]) if row['parent'] == 0}
    assert by['b 1']['q'] > .5 > max(row['q'] for action, row in by.items() if action != 'b 1')
    assert [row['action'] for row in by.values() if row['chosen']] == ['b 1']

class Maze(Env):
    "A grid without walls; the way out is at a corner."
    name, seats = 'maze', ('player',)
    def reset(self, seed, task=None):
        self.at = (0, 0)
        return self.answer(0.)
    def answer(self, paid):
        info = dict(state=self.at, legal=['go east', 'go north'], success=paid > 0)
        return Step('player', f'{self.at[0]} {self.at[1]}', dict(player=paid), paid > 0 or max(self.at) > 3, info)
    def step(self, action):
        self.at = (self.at[0] + (action == 'go east'), self.at[1] + (action == 'go north'))
        return self.answer(float(self.at == (2, 2)))
    def vocabulary(self): return ['go', 'east', 'north', *map(str, range(9))]

def test_best_first_opens_every_state_once_and_stops_when_it_won():
    policy = small_policy(Maze())
    trees = Trees(policy, Maze(), [0], propose=legal, prior=evenly)
    won, = trees.best_first(99, score=lambda node: -len(node.path))     # breadth first
    opened = [node.game.step.info['state'] for node in trees.roots[0].below() if node.children]
    assert won.won and len(won.path) == 5 and len(opened) == len(set(opened))
    deep, = Trees(policy, Maze(), [0], propose=legal, prior=evenly).best_first(3, score=lambda node: len(node.path))
    assert deep is None                     # three places are too few

def test_dive_plays_nothing_out_and_closes_what_is_known():
    trees = Trees(small_policy(Maze()), Maze(), [0], propose=legal, prior=evenly)
    trees.dive(200)
    root = trees.roots[0]
    assert root.shut and trees.spent[0]['steps'] == sum(1 for _ in root.below()) - 1
    assert root.visits == len(trees.played[0]) == sum(node.over for node in root.below())
    wins = sum(node.won for node in root.below())
    assert root.worth == 0 and sum(child.worth for child in root.children) == wins > 1

# ---- faults

class Breaking(Walk):
    "Its copies break now and then."
    def clone(self):
        if getattr(self, 'left', 9) < 3 and self.random.random() < .5: raise MemoryError('no room')
        return super().clone()

def test_a_copy_that_breaks_ends_there():
    trees = trees_of(Breaking(most=6), seeds=range(6))
    trees.grow(20)
    assert all(root.visits == 20 for root in trees.roots)
    assert any('no room' in (game.error or '') for tree in trees.played for _, game in tree)

def test_what_cannot_be_copied_is_named_before_anything_is_played():
    class Body(KeyDoor):
        steps = 0
        def clone(self): raise NotImplementedError('a robot has one body')
        def step(self, action):
            Body.steps += 1
            return super().step(action)
    policy = small_policy(KeyDoor())
    with pytest.raises(EnvError, match='one body.*write clone.., or give Replayed'): Trees(policy, Body(), [0])
    assert Body.steps == 0
    trees = Trees(policy, Replayed(Body), [0])
    trees.grow(3)
    assert Body.steps == trees.spent[0]['steps'] > 0

def test_a_copy_that_shares_is_found_by_check_env():
    class Sharing(KeyDoor):
        def reset(self, seed, task=None):
            self.trail = []
            return super().reset(seed, task)
        def turn(self, action):
            self.trail.append(action)       # a list that the copies share
            said, *rest = super().turn(action)
            return f'{said} {len(self.trail)}', *rest
    with pytest.raises(EnvError, match='clone: .*copy every mutable attribute'): check_env(Sharing())

def test_replaying_is_copying_and_an_unfaithful_world_is_named():
    policy = small_policy(KeyDoor())
    copied, replayed = (Trees(policy, env, [5], seed=1) for env in (KeyDoor(), Replayed(KeyDoor)))
    for trees in (copied, replayed): trees.grow(6)
    assert story(copied) == story(replayed)
    class Fickle(KeyDoor):
        def turn(self, action):
            said, *rest = super().turn(action)
            return f'{said} {random.random()}', *rest
    with pytest.raises(EnvError, match='answers differently when step is replayed'):
        Trees(policy, Replayed(Fickle), [0]).grow(4)

@pytest.mark.parametrize('how, says', [(dict(width=0), 'width=0'), (dict(propose=legal), 'lists no actions')])
def test_bad_arguments(how, says):
    with pytest.raises((ValueError, EnvError), match=says): trees_of(Walk(), **how).grow(1)

def test_what_a_model_said_is_escaped_in_the_picture():
    root = Node(visits=2)
    root.children = [Node(root, text='<img src=x onerror=alert(1)>', visits=1, worth=1.), Node(root, visits=1)]
    labels = ' '.join(tree_figure(root).data[0].labels)
    assert '<img' not in labels and '&lt;img' in labels
    with pytest.raises(ValueError, match='grow it first'): tree_figure(Node())

# ---- what is read off a tree

def test_pairs_are_the_best_and_the_worst_that_were_tried_enough():
    trees = trees_of(Walk(most=6), seeds=range(6), width=4)
    trees.grow(60)
    pairs = step_pairs(trees, visits=3, gap=.2)
    known = {id(node.said): node for root in trees.roots for node in root.below() if node.said}
    assert len(pairs) > 4 and len(pairs) % 2 == 0
    for best, worst in zip(pairs[::2], pairs[1::2]):
        (one,), (other,) = best.turns, worst.turns
        assert one.context_ids == other.context_ids and best.group == worst.group
        assert one.reward == best.outcome >= worst.outcome + .2
    groups = [e.group for e in pairs]
    assert all(groups.count(g) == 2 for g in groups) and known
    for root in trees.roots:        # no action of such a place lies outside the pair
        for node in root.below():
            tried = [child.q for child in node.children if child.visits >= 3]
            mine = [e.outcome for e in pairs if tried and e.turns[0].context_ids == node.game.side.context
                and e.group >> 20 == node.game.group]
            if mine: assert max(mine) == max(tried) and min(mine) == min(tried)

def test_the_loss_of_a_pair_by_hand():
    "Log-ratios .4 and -.2, beta .5: -log sigma(.3) = .5544; its slope is beta sigma(-.3)."
    trees = trees_of(Walk(most=6), seeds=range(6), width=4)
    trees.grow(60)
    b = Batch.from_episodes(step_pairs(trees)[:2])
    share = torch.tensor([.4, -.2]).double()[b.turns.episode[b.action_turn]]/b.turn_lengths()[b.action_turn]
    b = b.with_action(old_logp=b.action('sampler_logp').double() + share, ref_logp=b.action('sampler_logp').double())
    slope = .5/(1 + math.exp(.3))
    expected = torch.tensor([slope, -slope]).double()[b.turns.episode[b.action_turn]]
    assert torch.allclose(dpo_credit(b, beta=.5), expected)

def test_choosing_takes_the_best_of_candidates_with_seeds_of_their_own():
    seen = []
    class Plain:
        def sample(self, contexts, max_tokens, seeds=0, **how):
            seen.append((contexts, seeds))
            return [SimpleNamespace(ids=[seed % 97], logprobs=[-float(seed % 89)]) for seed in seeds]
    best = Choosing(Plain(), likelihood, k=4).sample([[1], [2]], 3, seeds=[7, 8])
    (contexts, seeds), = seen
    assert contexts == [[1]]*4 + [[2]]*4 and len(set(seeds)) == 8
    assert [one.logprobs[0] for one in best] == [max(-float(seed % 89) for seed in seeds[i:i + 4]) for i in (0, 4)]
    with pytest.raises(ValueError, match='k=0'): Choosing(Plain(), likelihood, k=0)
    assert Choosing(Plain(), lambda contexts, said: [], k=2).sample([], 3, seeds=[]) == []

def test_q_of_a_copy_that_learned_nothing_is_0():
    policy = small_policy(KeyDoor())
    context = policy.chat.first('You are in a1.')
    said = policy.sampler().sample([context]*3, 4, seeds=[1, 2, 3], stop=(policy.end_id,))
    assert preference_q(policy, policy)([context]*3, said).tolist() == [0., 0., 0.]

def test_the_middle_half_by_hand():
    surprise = [.05, .1, .4, .7, 1., 1.3, 2.9, 6.]      # the quartiles are .325 and 1.7
    trees = trees_of(Walk(most=6), seeds=range(9))
    trees.grow(3)
    b = Batch.from_episodes([e for e in trees.finished() if e.turns])
    turn, whole = b.action_turn, len(b.turns)//8
    of = torch.tensor([surprise[i % 8] for i in range(len(b.turns))]).double()
    weight = mask_edges(b.with_action(sampler_logp=-of[turn])).action('weight')
    low, high = of.quantile(torch.tensor([.25, .75]).double())
    assert whole and torch.equal(weight > 0, (of >= low)[turn] & (of <= high)[turn])
    assert torch.tensor(surprise).quantile(torch.tensor([.25, .75])).tolist() == pytest.approx([.325, 1.7])
