"ArCHer: the numbers of the page by hand and by a loop, and a critic that goes on exactly where it was killed."
import math
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.episodes import Batch, state_key
from agentlab.replay.buffer import Buffer
from agentlab.replay.utterance_critic import (ArcherCritic, TwinHeads, archer, archer_loss, archer_targets,
    closing_features, critic_step, follow, fresh_utterances,
    utterance_features)
from agentlab.reward import paid
from agentlab.rollout import play
from agentlab.train.runs import load_checkpoint
from small import Paying, exactly, same_run, small_policy, train_small

def table(**columns): return Batch.from_turns(pd.DataFrame(dict(dict(group=0, episode=0), **columns)))

def random_batch(seed=0):
    "Episodes of 1 to 6 turns, some of them silent, some cut off."
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: int(torch.randint(n, (1,), generator=generator))
    rows = [dict(group=e//4, episode=e, t=t, reward=draw(9)/8, n_tokens=draw(3), truncated=e % 3 == 0, last_value=.1*e)
        for e in range(12) for t in range(1 + draw(6))]
    return Batch.from_turns(pd.DataFrame(rows))

def by_loop(b, v, gamma, faithful):
    "Targets, one turn at a time."
    said, episode, found = b.turn_lengths().tolist(), b.turns.episode.tolist(), torch.zeros_like(v)
    for i in range(len(said)):
        if not said[i]: continue
        paid, j = b.turns.reward[i].item(), i + 1
        while j < len(said) and episode[j] == episode[i] and not said[j]:
            paid += b.turns.reward[j].item()
            j += 1
        e = episode[i]
        if j < len(said) and episode[j] == e: after = v[j]
        else:
            after = torch.full_like(v[i], b.episodes.last_value[e].item() if b.episodes.truncated[e] and not faithful
                else 0.)
        found[i] = paid + gamma*after
    return found

def test_the_spec_by_hand():
    pair = table(t=[0, 1], n_tokens=[1, 2], reward=[0., 1.], q1=[.7, 1.], q2=[.6, .9], v1=[.5, .8], v2=[.4, 1.])
    assert archer(pair)[1].tolist() == pytest.approx([.2, .1, .1])
    assert archer_targets(pair, torch.tensor([[.3], [.8]]))[:, 0].tolist() == pytest.approx([.76, 1.])

@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('faithful', (False, True))
def test_targets_are_those_of_a_loop(seed, faithful):
    b = random_batch(seed)
    assert (b.turn_lengths() == 0).any() and b.episodes.truncated.any()
    v = torch.randn(len(b.turns), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for gamma in (.95, 0., 1.):
        torch.testing.assert_close(archer_targets(b, v, gamma=gamma, faithful=faithful), by_loop(b, v, gamma, faithful))

def test_silent_turns_and_other_keys_do_not_matter():
    b = random_batch()
    v = torch.randn(len(b.turns), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    silent = (b.turn_lengths() == 0)[:, None]
    torch.testing.assert_close(archer_targets(b, torch.where(silent, 99., v)), archer_targets(b, v))
    zero = torch.zeros_like(v)
    assert archer_loss(b, torch.where(silent, 99., zero), zero, zero, zero) == 0
    torch.testing.assert_close(archer_targets(b.with_episodes(group=b.episodes.group*7 - 3), v), archer_targets(b, v))

def test_a_head_of_one_does_not_see_the_other():
    b = random_batch()
    v = torch.randn(len(b.turns), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(archer_targets(b, v)[:, :1], archer_targets(b, v[:, :1]))

def test_what_is_missing_is_named():
    for name in ('q1', 'q2', 'v1', 'v2'):
        columns = {c: [0.] for c in ('q1', 'q2', 'v1', 'v2') if c != name}
        with pytest.raises(ValueError, match=f"turns.{name}.*ArcherCritic"): archer(table(t=[0], **columns))
    with pytest.raises(ValueError, match='turns.reward'):
        archer_targets(table(t=[0], reward=[math.nan]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match='tau=2'): follow(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), 2)

def test_heads_begin_silent_and_apart_and_leave_the_global_state():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two, other = TwinHeads(3, 3, 0), TwinHeads(3, 3, 0), TwinHeads(3, 3, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.parameters(), two.parameters()): exactly(a.data, b.data)
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    x = torch.randn(4, 3)
    assert not one.q(x, x).any() and not one.v(x).any()
    assert not torch.equal(one.q_heads[0][0].weight, one.q_heads[1][0].weight)

def test_one_step_moves_all_four_heads_and_their_copies():
    b = table(episode=[0, 0, 1], t=[0, 1, 0], reward=[.5, 1., 1.])
    heads, slow = TwinHeads(3, 3, 0), TwinHeads(3, 3, 0)
    for p in slow.parameters(): torch.nn.init.constant_(p, .3)
    x, optimizer = torch.eye(3), torch.optim.SGD(heads.parameters(), .1)
    start = [p.clone() for p in slow.parameters()]
    before = [p.clone() for p in heads.parameters()]
    critic_step(heads, slow, optimizer, b, x, x, x, tau=.25)
    for kind in (heads.q_heads, heads.v_heads):
        for net in kind: assert net[-1].bias.abs() > 0
    for s, old, new in zip(start, slow.parameters(), heads.parameters()):
        torch.testing.assert_close(old.data, s + .25*(new.data - s))
    assert any(not torch.equal(a, b) for a, b in zip(before, heads.parameters()))

def test_the_state_after_a_cut_off_episode_is_the_next_one_of_a_longer_game():
    env, policy = Paying(horizon=6), small_policy()
    short, longer = (Batch.from_episodes(play(policy, env, [1, 2], max_turns=n, max_tokens=3, temperature=0.))
        for n in (2, 3))
    last, known = closing_features(policy, short)
    assert known.tolist() == [True, True]
    torch.testing.assert_close(last, utterance_features(policy, longer)[0][longer.turns.t == 2], atol=1e-4, rtol=1e-4)

def test_fresh_utterances_are_those_of_the_policy():
    "Greedy: in the states of a greedy game the policy says the same again."
    env, policy = Paying(), small_policy()
    b = Batch.from_episodes(play(policy, env, [1, 2], max_turns=3, max_tokens=3, temperature=0.))
    torch.testing.assert_close(fresh_utterances(policy, b, 0, max_tokens=3, temperature=0.),
        utterance_features(policy, b)[1], atol=1e-4, rtol=1e-4)

def test_replayed_episodes_are_not_kept_twice():
    policy = small_policy()
    b = Batch.from_episodes(play(policy, Paying(), [1, 2], max_turns=2, max_tokens=3))
    critic = ArcherCritic(policy, 0)
    read = critic.read(policy, b.with_episodes(source=torch.tensor([state_key('replay'), int(b.episodes.source[1])])),
        4096)
    assert len(critic.buffer) == 1 and {'q1', 'q2', 'v1', 'v2'} <= set(read.turns.columns)

def test_past_episodes_reach_the_critic():
    "Two critics that read the same batch last and differ in what they saw before end up with different values."
    policy = small_policy()
    one, two = (Batch.from_episodes(play(policy, Paying(), [s], group_size=2, max_turns=2, max_tokens=3, seed=s))
        for s in (1, 2))
    def after(*batches):
        critic = ArcherCritic(policy, 0, past=4, passes=3)
        for b in batches: critic.read(policy, b, 4096)
        critic.fit(None, 0)
        return critic.heads.v(utterance_features(policy, one)[0])
    exactly(after(one).detach(), after(one).detach())
    assert not torch.equal(after(two, one), after(one))

def doubled(b): return 2*paid(b)

def test_the_reward_of_the_recipe_is_learned():
    policy = small_policy()
    b = Batch.from_episodes(play(policy, Paying(), [1], group_size=2, max_turns=1, max_tokens=3))
    b = b.with_turns(reward=torch.ones_like(b.turns.reward)).with_episodes(truncated=torch.zeros_like(
        b.episodes.truncated))
    found = []
    for reward in (paid, doubled):
        critic = ArcherCritic(policy, 0, past=2, passes=1500, lr=.01, reward=reward)
        critic.read(policy, b, 4096)
        critic.fit(None, 0)
        found.append(critic.read(policy, b, 4096).turns.q1.mean().item())
    assert found == pytest.approx([1, 2], abs=.1)

@pytest.mark.parametrize('baseline', (False, True))
def test_a_run_goes_on_exactly_where_it_stopped(tmp_path, baseline):
    critic = partial(ArcherCritic, past=3, passes=2, lr=.01, baseline=baseline, keep=partial(Buffer, episodes=6))
    how = dict(credit=partial(archer, baseline='baseline') if baseline else archer, critic=critic, steps=3)
    whole = train_small(tmp_path/'whole', **how)
    calls = iter([False, False, True])
    train_small(tmp_path/'parts', should_stop=lambda: next(calls), **how)
    parts = train_small(tmp_path/'parts', resume=True, **how)
    assert all(row['skipped'] is None and math.isfinite(row['value_loss'])
        for row in whole.rows()) and whole.rows()[-1]['grad_norm'] > 0
    same_run(whole, parts)
    first, second = (load_checkpoint(run)[1]['critic'] for run in (whole, parts))
    assert set(first) == set(second) and any(name.startswith('buffer.') for name in first)
    for name in first:
        if not name.startswith('buffer.segment'): exactly(first[name], second[name], name)
