"""Self-play through the real trainer: leagues that are stopped and go on, seats that others play, and what a broken
opponent costs."""
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import dr_grpo
from agentlab.env import HopSearch, Kuhn, Signals, TicTacToe, expert_player, random_player
from agentlab.episodes import Batch
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.rollout import play_players
from agentlab.selfplay import League, SeatBaseline, Snapshot, newest, pfsp, spiral
from agentlab.selfplay.league import moving_baseline
from agentlab.selfplay.role_weights import Exchange, RoleWeights
from agentlab.train import recipes, train

def learner(game, hidden=16, seed=0):
    tokenizer = word_tokenizer(game.vocabulary())
    return Policy(tiny_model(len(tokenizer), 128, hidden=hidden, layers=1, seed=seed), tokenizer, name='learner')

def without_time(rows): return [{k: v for k, v in row.items() if k != 'seconds'} for row in rows]

@pytest.mark.parametrize('choose', [newest, pfsp])
def test_a_league_that_is_stopped_goes_on_with_the_same_opponents(choose, tmp_path):
    game = TicTacToe()
    def run(folder, **how):
        recipe = recipes.dr_grpo(name='league', steps=5, groups=4, group_size=2, minibatches=1, max_tokens=2,
            test_tasks=0, checkpoint_every=2, lr=1e-2, rollout=play_players,
            memory=partial(League, seats=game.seats, choose=choose, mirror=.25, every=2, most=2,
            groups=4))
        return train(learner(game), game, recipe, folder, progress=False, **how)
    whole, calls = run(tmp_path/'whole'), iter([False]*3 + [True])
    run(tmp_path/'parts', should_stop=lambda: next(calls))
    parts = run(tmp_path/'parts', resume=True)
    assert without_time(parts.rows()) == without_time(whole.rows())
    assert [row['snapshots'] for row in whole.rows()] == [1, 2, 2, 2, 2]
    for step in range(5):
        one, two = whole.episodes(step), parts.episodes(step)
        assert (torch.equal(one.tokens.id, two.tokens.id)
            and {one.labels['source'][k] for k in one.episodes.source.tolist()} == {'policy'})

def test_only_the_policys_own_seats_are_trained(tmp_path):
    "The gradient of a step with an opponent is that of the policy's episodes alone."
    game = TicTacToe()
    policy, other = learner(game), learner(game, seed=1)
    seated = play_players(policy, game, range(6), 2, players=dict(o=other), max_tokens=2)
    every = play_players(policy, game, range(6), 2, players=dict(o=other), max_tokens=2, keep=True)
    assert ({e.seat for e in seated} == {'x'} and [[t.ids for t in e.turns] for e in every if e.seat == 'x']
        == [[t.ids for t in e.turns] for e in seated])
    batch = Batch.from_episodes(seated)
    assert torch.isfinite(batch.action('sampler_logp')).all()

def test_spiral_trains_both_seats_and_remembers_their_baselines(tmp_path):
    game = Kuhn()
    run = train(learner(game), game, recipes.spiral(steps=3, groups=4, group_size=4, max_tokens=2, test_tasks=0,
        checkpoint_every=1), tmp_path/'run', progress=False)
    seats = {run.episodes(0).labels['seat'][k] for k in run.episodes(0).episodes.seat.tolist()}
    assert seats == set(game.seats) and all(not row['skipped'] and row['errors'] == 0 for row in run.rows())

def test_two_seats_of_a_search_are_played_by_two_policies():
    game = HopSearch(seats=('planner', 'searcher'))
    policy, other = learner(game), learner(game, seed=1)
    episodes = play_players(policy, game, range(2), 2, players=dict(searcher=other), keep=True, max_turns=4,
        max_tokens=4)
    assert ({(e.seat, e.source) for e in episodes} == {('planner', 'policy'), ('searcher', 'opponent')}
        and all(e.error is None for e in episodes))

def test_a_broken_opponent_costs_its_own_games_only(tmp_path):
    game = TicTacToe()
    def broken(env, generator): raise RuntimeError('no answer')
    class Mixed:
        def __init__(self, policy, seed): pass
        def plan(self, step):
            return dict(group_args=dict(players=[dict(x=broken), dict(x=expert_player), dict(x=random_player)]))
        def read(self, batch, step): return batch
        def learn(self, row): return {}
        def tensors(self): return {}
        def restore(self, tensors): pass
    rows = train(learner(game), game, recipes.dr_grpo(steps=2, groups=3, group_size=2, minibatches=1, max_tokens=2,
        test_tasks=0, rollout=play_players, memory=Mixed), tmp_path/'run',
        progress=False).rows()
    assert [(row['errors'], row['episodes']) for row in rows] == [(2, 6)]*2

@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.floats(-2, 2, allow_nan=False)), min_size=1, max_size=20),
    st.floats(0, .99), st.booleans())
@settings(max_examples=60, deadline=None)
def test_moving_baselines_are_those_of_a_loop(games, decay, update_first):
    seat, outcome = torch.tensor([s for s, _ in games]), torch.tensor([x for _, x in games], dtype=torch.float64)
    start = torch.tensor([.1, .2, .3], dtype=torch.float64)
    known, before, after = dict(enumerate(start.tolist())), [], []
    for s, x in games:
        old = known[s]
        known[s] = decay*old + (1 - decay)*x
        before.append(known[s] if update_first else old)
        after.append(known[s])
    found = moving_baseline(outcome, seat, start[seat], decay, update_first)
    for one, wanted in zip(found, (before, after)):
        torch.testing.assert_close(one, torch.tensor(wanted, dtype=torch.float64), atol=1e-9, rtol=1e-9)

def test_a_baseline_for_each_seat_takes_the_first_movers_advantage_out():
    game = TicTacToe()
    policy = learner(game)
    batch = Batch.from_episodes([e for e in play_players(policy, game, range(300),
        players=dict(x=random_player, o=random_player), keep=True)])
    advantage = spiral(SeatBaseline(None, 0).read(batch, 0))
    shared = dr_grpo(batch.with_episodes(group=torch.zeros(len(batch), dtype=torch.int64),
        seat=torch.zeros(len(batch), dtype=torch.int64)))
    x = next(k for k, name in batch.labels['seat'].items() if name == 'x')
    late = (batch.episodes.game >= 100)[batch.turns.episode[batch.action_turn]]
    mine = (batch.episodes.seat == x)[batch.turns.episode[batch.action_turn]]
    assert shared[mine & late].mean() > .15 and abs(advantage[mine & late].mean()) < .1

def test_a_snapshot_does_not_learn_along(tmp_path):
    game = Kuhn()
    policy = learner(game)
    old = Snapshot(policy)
    before = {name: x.clone() for name, x in old.weights.items()}
    train(policy, game, recipes.spiral(steps=2, groups=4, group_size=2, max_tokens=2, test_tasks=0, lr=1e-2),
        tmp_path/'run', progress=False)
    assert all(torch.equal(x, before[name]) for name, x in old.weights.items())
    assert any(not torch.equal(p, before[name]) for name, p in policy.model.named_parameters())

def test_dead_groups_are_counted_seat_by_seat(tmp_path):
    """In a zero-sum game the two seats of a group never have equal outcomes; what teaches nothing is a group in
    which one seat always earns the same."""
    import pandas as pd
    from agentlab.train.trainer import dead_groups
    batch = Batch.from_turns(pd.DataFrame(dict(group=[0]*4 + [1]*4, game=[0, 0, 1, 1, 2, 2, 3, 3],
        seat=['first', 'second']*4, episode=range(8), t=[0, 1]*4,
        outcome=[1., -1, 1, -1, 1, -1, -1, 1])))
    assert dead_groups(batch) == .5

def speakers(game):
    "Weights of its own for each seat, from a policy that knows the words."
    from agentlab.policy.tiny import warm_start
    return RoleWeights(warm_start(learner(game), game, steps=20, episodes=16, pool=64), game.seats)

@pytest.mark.parametrize('memory', [None, partial(Exchange, every=2)])
def test_roles_with_weights_of_their_own_go_on_after_a_stop(memory, tmp_path):
    game = Signals(n=3)
    def run(folder, **how):
        policy = speakers(game)
        recipe = recipes.dr_grpo(name='pair', steps=5, groups=4, group_size=4, minibatches=2, max_tokens=2,
            test_tasks=8, checkpoint_every=2, lr=1e-2, kl_coef=.1, rollout=play_players,
            test_rollout=play_players, memory=memory)
        return policy, train(policy, game, recipe, folder, progress=False, **how)
    (first, whole), calls = run(tmp_path/'whole'), iter([False]*3 + [True])
    run(tmp_path/'parts', should_stop=lambda: next(calls))
    second, parts = run(tmp_path/'parts', resume=True)
    assert without_time(parts.rows()) == without_time(whole.rows()) and not any(row['skipped'] for row in whole.rows())
    for one, two in zip(first.model.parameters(), second.model.parameters()): assert torch.equal(one, two)
    assert sorted(path.name for path in (tmp_path/'whole'/'policy').iterdir()) == sorted(game.seats)
    assert any(not torch.equal(x, y) for x, y in zip(first.of['sender'].weights.values(),
        first.of['receiver'].weights.values()))

def test_the_gradient_of_roles_is_that_of_each_policy_alone(tmp_path):
    "A loss over both seats moves each role as its own tokens alone would move a policy of its own."
    game = Signals(n=3)
    pair = speakers(game)
    batch = Batch.from_episodes(play_players(pair, game, range(6), 4, max_tokens=2))
    pair.forward(batch)[0].sum().backward()
    for seat in game.seats:
        lone = batch.select(torch.tensor([batch.labels['seat'][k] == seat for k in batch.episodes.seat.tolist()]))
        found = torch.autograd.grad(pair.of[seat].forward(lone)[0].sum(), list(pair.of[seat].weights.values()),
            allow_unused=True)
        for x, wanted in zip(pair.of[seat].weights.values(), found):
            if wanted is not None: torch.testing.assert_close(x.grad, wanted, atol=1e-4, rtol=1e-4)

def test_roles_where_they_cannot_work_are_refused_before_a_game_counts(tmp_path):
    game = Signals(n=3)
    with pytest.raises(TypeError, match='play_players'):
        train(speakers(game), game, recipes.dr_grpo(steps=1, groups=2, group_size=2, test_tasks=0), tmp_path/'a',
            progress=False)
    with pytest.raises(ValueError, match='RoleWeights'):
        train(speakers(game), game, recipes.dr_grpo(steps=1, groups=2, group_size=2, test_tasks=0, lora=dict(r=2)),
            tmp_path/'b', progress=False)
    with pytest.raises(TypeError, match='one set of weights'):
        train(learner(game), game, recipes.dr_grpo(steps=1, groups=2, group_size=2, test_tasks=0, memory=Exchange),
            tmp_path/'c', progress=False)
    with pytest.raises(TypeError, match='one for each role'):
        train(speakers(game), game,
            recipes.dr_grpo(steps=1, groups=2, group_size=2, max_tokens=2, test_tasks=0, rollout=play_players,
            memory=partial(League, seats=game.seats, groups=2, mirror=0.)), tmp_path/'d',
            progress=False)
