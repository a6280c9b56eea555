"""A policy that is its own value: losses against slow versions, pairs that are forked, runs that go, and lambdas by
length."""
import math
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import (adaptive_lambda, descend, fork_once, fork_pairs, gae, mean_logp, refuel, refuel_updates,
    rover, rover_updates)
from agentlab.episodes import Batch
from agentlab.train import METRICS, recipes, train
from small import Paying, small_policy

tensor = partial(torch.tensor, dtype=torch.float64)

def batch(lengths, seed=0, tokens=2):
    "Two episodes a group, with random outcomes and log-probabilities; the second shares some turns of the first."
    rng = torch.Generator().manual_seed(seed)
    rows, start = [], 0
    for e, n in enumerate(lengths):
        shared = min(lengths[e - 1] - 1, n - 1, e % 3) if e % 2 else 0
        begun = start - lengths[e - 1] if e % 2 else start
        rows += [dict(group=e//2, episode=e, t=t, n_tokens=tokens, origin=begun + t if t < shared else start + t,
            outcome=e) for t in range(n)]
        start += n
    b = Batch.from_turns(pd.DataFrame(rows))
    b = b.with_episodes(outcome=torch.rand(len(b), generator=rng, dtype=torch.float64))
    return b.with_action(old_logp=-torch.rand(len(b.actions), generator=rng),
        mean_logp=-torch.rand(len(b.actions), generator=rng)), rng

lengths = st.lists(st.integers(1, 4), min_size=2, max_size=6).filter(lambda x: len(x) % 2 == 0)

@given(lengths=lengths, seed=st.integers(0, 99), eta=st.sampled_from([.1, 1., 5.]),
    ahead=st.sampled_from([1, math.inf]))
@settings(max_examples=30, deadline=None)
def test_refuel_is_the_loop(lengths, seed, eta, ahead):
    b, rng = batch(lengths, seed)
    logp = b.action('old_logp') + torch.randn(len(b.actions), generator=rng)
    moved, wanted = (logp - b.action('old_logp')).tolist(), []
    for one in range(0, len(b), 2):
        part = next((t for t in range(lengths[one + 1]) if b.turns.origin[sum(lengths[:one + 1]) + t].item()
            == sum(lengths[:one + 1]) + t), None)
        said = [sum(moved[k] for k, turn in enumerate(b.action_turn.tolist()) if b.turns.episode[turn] == e
            and part <= b.turns.t[turn] < part + ahead) for e in (one, one + 1)]
        outcome = b.episodes.outcome[[one, one + 1]].tolist()
        wanted.append((said[0] - said[1] - eta*(outcome[0] - outcome[1]))**2)
    found = refuel(logp, b, fork_pairs(b), eta, ahead).double()
    torch.testing.assert_close(found, tensor(wanted), rtol=1e-4, atol=1e-5)

@given(lengths=lengths, seed=st.integers(0, 99), share=st.sampled_from([0., .5, 1.]))
@settings(max_examples=30, deadline=None)
def test_rover_is_the_loop(lengths, seed, share):
    b, rng = batch(lengths, seed)
    logp, now, target = (torch.randn(len(b.actions), generator=rng).double() for _ in range(3))
    wanted, episode = [], b.turns.episode[b.action_turn].tolist()
    for i, old in enumerate(b.action('old_logp').tolist()):
        last = i + 1 == len(logp) or episode[i + 1] != episode[i]
        ahead = 0. if last else (now[i + 1] - b.action('mean_logp')[i + 1]).item()
        wanted.append((logp[i].item() - old - target[i].item() - share*ahead)**2)
    torch.testing.assert_close(rover(logp, b, target, now, share), tensor(wanted), rtol=1e-5, atol=1e-6)

def test_the_slope_is_that_of_the_loss():
    "Followed with plain gradient steps on the log-probabilities themselves, the loss falls to 0."
    b, _ = batch([2, 2, 3, 1])
    pairs, now, updates = fork_pairs(b), b.action('old_logp').double(), refuel_updates(b, None, passes=200, weigh=False)
    before = refuel(now, b, pairs).sum().item()
    chosen, advantage = next(updates)
    for _ in range(199):
        assert chosen.all() and advantage.isfinite().all()
        now = now + .1*advantage/len(now)
        chosen, advantage = updates.send(now)
    assert refuel(now, b, pairs).sum().item() < 1e-6*before

def test_a_value_of_all_words_gets_no_slope():
    b, _ = batch([2, 2])
    now = torch.zeros(len(b.actions)).requires_grad_()
    logp = torch.zeros(len(b.actions)).requires_grad_()
    rover(logp, b, torch.ones(len(b.actions)), now).sum().backward()
    assert now.grad is None and logp.grad.isfinite().all() and logp.grad.abs().min() > 0

def test_equal_replies_have_no_slope_in_the_policy():
    "The same tokens behind the same context: what pushes one pushes the other back."
    policy = small_policy()
    game = Batch.from_episodes(fork_once(policy, Paying(), [3], max_tokens=4))
    one = game.select(torch.tensor([True, False]))
    twin = Batch.from_episodes([e for _ in range(2) for e in fork_once(policy, Paying(), [3], max_tokens=4)[:1]])
    twin = twin.with_action(old_logp=twin.action('sampler_logp')).with_episodes(outcome=tensor([1., 0]))
    advantage = next(refuel_updates(twin, None))[1]
    policy.model.zero_grad()
    (advantage*policy.forward(twin)[0]).sum().backward()
    assert len(one) == 1 and advantage.abs().max() > 0
    assert max(p.grad.abs().max() for p in policy.model.parameters() if p.grad is not None) < 1e-4

def test_forks_share_their_beginning_and_are_played_again_alike():
    policy = small_policy()
    b, again = (Batch.from_episodes(fork_once(policy, Paying(horizon=5), range(6), seed=4, max_tokens=4)) for _ in '01')
    assert len(b) == 12 and torch.equal(b.tokens.id, again.tokens.id)
    assert torch.equal(b.turns.origin, again.turns.origin)
    pairs, lp = fork_pairs(b), policy.logprobs(b)[0]
    assert len(pairs) == 6 and (pairs.t < pairs.turns).all()
    torch.testing.assert_close(lp, b.action('sampler_logp'), rtol=1e-4, atol=1e-4)
    other = Batch.from_episodes(fork_once(policy, Paying(horizon=5), range(6), seed=5, max_tokens=4))
    assert not torch.equal(fork_pairs(other).t, pairs.t)

@pytest.mark.parametrize('turns, tokens', [(1, None), (3, None), (64, 9)])
def test_a_budget_ends_both_games_of_a_pair(turns, tokens):
    b = Batch.from_episodes(fork_once(small_policy(), Paying(horizon=9), range(5), max_turns=turns, max_tokens=4,
        token_budget=tokens))
    assert len(b) == 10 and (b.episodes.error == -1).all() and b.turns.t.max() < turns
    assert (torch.bincount(b.turns.episode, minlength=10) > 0).all() and len(fork_pairs(b)) == 5

class Broken(Paying):
    "Fails at its second step, or at once."
    def __init__(self, at=1, **how):
        super().__init__(**how)
        self.at = at
    def reset(self, seed, task=None):
        if self.at == 0: raise OSError('nobody answers')
        return super().reset(seed, task)

def test_a_game_that_never_began_takes_its_partner_with_it():
    episodes = fork_once(small_policy(), Broken(0), range(3), max_tokens=4)
    assert len(episodes) == 6 and all('nobody answers' in e.error for e in episodes)

def test_what_cannot_be_forked_is_refused():
    from agentlab.env import Nim
    with pytest.raises(ValueError, match='group_size=3: fork_once plays pairs'):
        fork_once(small_policy(), Paying(), [0], 3)
    with pytest.raises(ValueError, match='fork_once needs one seat'): fork_once(small_policy(), Nim(), [0])
    with pytest.raises(ValueError, match='passes=0'): next(descend(batch([1, 1])[0], torch.sum, 0))
    with pytest.raises(ValueError, match='eta=-1'): refuel_updates(batch([1, 1])[0], None, eta=-1)
    three = Batch.from_turns(pd.DataFrame(dict(group=0, episode=range(3), t=0, outcome=0.)))
    with pytest.raises(ValueError, match='a group has 3 episodes'): fork_pairs(three)

def test_an_empty_batch_has_no_pairs():
    nothing = Batch.from_episodes([]).with_action(old_logp=torch.zeros(0))
    assert len(fork_pairs(nothing)) == 0 and len(next(refuel_updates(nothing, None))[1]) == 0

@pytest.mark.parametrize('name', ['refuel', 'rover'])
def test_a_run_goes_and_is_the_same_again(tmp_path, name):
    runs = []
    for i in range(2):
        policy = small_policy()
        size = dict(groups=6) if name == 'refuel' else dict(groups=3, group_size=4)
        recipe = getattr(recipes, name)(steps=2, test_tasks=0, updates_args=dict(passes=3), max_tokens=4, **size)
        runs.append(train(policy, Paying(), recipe, tmp_path/f'{i}', progress=False).rows())
    one, two = ([{k: v for k, v in row.items() if 'second' not in k} for row in rows] for rows in runs)
    assert all(set(row) <= set(METRICS) and row['skipped'] is None and math.isfinite(row['loss']) for row in one)
    assert [row['grad_norm'] for row in one] == [row['grad_norm'] for row in two] and one[0]['grad_norm'] > 0

def test_the_first_step_of_rover_is_a_policy_gradient():
    "Before the first step nothing has moved: the advantage is twice the centred outcome."
    from agentlab.credit import dr_grpo
    from agentlab.rollout import play
    policy = small_policy()
    b = Batch.from_episodes(play(policy, Paying(), range(3), 4, max_tokens=4))
    b = b.with_action(old_logp=b.action('sampler_logp'))
    torch.testing.assert_close(next(rover_updates(b, policy))[1], 2*dr_grpo(b), rtol=1e-4, atol=1e-5)

def test_mean_logp():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    for t in (.5, 1., 2.):
        torch.testing.assert_close(mean_logp(logits, t), torch.log_softmax(logits/t, -1).mean(-1))
    assert (mean_logp(logits) <= -math.log(7)).all()

# ---- two lambdas, and lambdas by length

@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), level=st.sampled_from(['turn', 'token']),
    alpha=st.sampled_from([.2, 1.]), seed=st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_a_lambda_by_length_is_that_lambda_episode_by_episode(lengths, level, alpha, seed):
    rng = torch.Generator().manual_seed(seed)
    rows = [dict(group=0, episode=e, t=t, n_tokens=2, reward=torch.rand(1, generator=rng).item())
        for e, n in enumerate(lengths) for t in range(n)]
    b = Batch.from_turns(pd.DataFrame(rows))
    b = b.with_action(value=torch.rand(len(b.actions), generator=rng))
    how = dict(level=level, whiten=False, gamma=.9)
    targets, advantage = gae(b, lam=partial(adaptive_lambda, alpha=alpha), lam_value=1., **how)
    torch.testing.assert_close(targets, gae(b, lam=1., **how)[0])
    at = b.turns.episode[b.action_turn]
    for e, n in enumerate(lengths):
        lam = max(0., 1 - 1/(alpha*n*(1 if level == 'turn' else 2)))
        torch.testing.assert_close(advantage[at == e], gae(b, lam=lam, **how)[1][at == e])

def test_warming_up_moves_the_critic_alone(tmp_path):
    policy, seen = small_policy(), []
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    recipe = recipes.ui_tars_2(steps=3, groups=3, group_size=2, test_tasks=0, max_tokens=4, critic_warmup=2)
    moved = lambda: any(not torch.equal(before[name], p) for name, p in policy.model.named_parameters())
    rows = train(policy, Paying(), recipe, tmp_path, progress=False, on_row=lambda row: seen.append(moved())).rows()
    assert seen == [False, False, True] and rows[1]['value_loss'] > 0
