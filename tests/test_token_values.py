"Values of tokens: hand checks, slow versions, what is refused, what moves and what does not."
import copy
import math

import pytest
import torch

from agentlab.episodes import Batch, Episode, Turn
from agentlab.replay import token_values as tv
from small import small_policy

def program(ids, human=0., verdict=0., context=(5, 6, 7), **columns):
    turn = Turn(0, context_ids=list(context), ids=list(ids), logps=[-1.]*len(ids), entropies=[0.]*len(ids))
    return Episode([turn], columns=dict(human=human, verdict=verdict) | columns)

def programs(seed=0, n=12):
    draw = torch.Generator().manual_seed(seed)
    return Batch.from_episodes([program(torch.randint(5, 9, (1 + i % 4,), generator=draw).tolist(), i % 2, i % 4)
        for i in range(n)])

def learned(policy=None, seed=3, **how):
    policy = policy or small_policy()
    return policy, tv.b_coder(policy, programs(), seed, **dict(steps=(4, 4), size=8) | how)

def weights(module): return [p.detach().clone() for p in module.parameters()]
def equal(xs, ys): return all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))

# ---- by hand

def test_the_spec_by_hand():
    logits = torch.tensor([[2., 1., 0.]]*3)
    torch.testing.assert_close(tv.dueling(logits, torch.arange(3)) + .3, torch.tensor([.3, -.7, -1.7]))
    b, value = Batch.from_episodes([program([0, 0])]), torch.tensor([9., .6])
    assert tv.token_targets(b, value, torch.tensor([0., -.2]))[0].item() == pytest.approx(.3996)
    assert tv.token_targets(b, value, torch.zeros(2)).tolist() == pytest.approx([.5994, 1.])
    found = tv.program_score(b, torch.tensor([.3, .8]), torch.tensor([.3, .9]))
    assert found.tolist() == pytest.approx([.2009])

def test_the_value_never_exceeds_its_cap_and_reaches_it():
    x = torch.linspace(-30, 30, 601).double().requires_grad_()
    v = tv.capped(x, .8)
    assert v.max().item() == pytest.approx(.8) and v.argmax() == 300 and v[0] < -13
    grad, = torch.autograd.grad(v.sum(), x)
    torch.testing.assert_close(grad, -torch.tanh(x.detach()/2)/2)

def slow(b, q, value, favoured, gamma, levels):
    "Targets and scores by a loop."
    targets, scores = [], []
    for e in range(len(b)):
        at = [k for k, turn in enumerate(b.action_turn.tolist()) if b.turns.episode[turn] == e]
        following = [(value[k] + favoured[k]).item() for k in at[1:]]
        targets += [gamma*x for x in following] + [levels[int(b.episodes.verdict[e])]]
        scores.append(sum(q[k].item() - gamma*(value[k + 1].item() if k != at[-1] else 0) for k in at))
    return targets, scores

@pytest.mark.parametrize('seed', range(3))
def test_targets_scores_and_loss_are_those_of_a_loop(seed):
    b, draw = programs(seed), torch.Generator().manual_seed(seed)
    said, levels, gamma, alpha = b.action('id'), (1., .5, 0., -2.), .9, .7
    logits = torch.randn(len(said), 9, generator=draw)
    value, favourite = torch.randn(len(said), generator=draw), torch.randint(9, (len(said),), generator=draw)
    q = tv.dueling(logits, said, alpha) + value
    targets, scores = slow(b, q, value, tv.dueling(logits, favourite, alpha), gamma, levels)
    found = tv.token_targets(b, value, tv.dueling(logits, favourite, alpha), gamma, levels)
    assert found.tolist() == pytest.approx(targets, abs=1e-5)
    assert tv.program_score(b, q, value, gamma).tolist() == pytest.approx(scores, abs=1e-5)
    loss = tv.b_coder_loss(b, logits, favourite, value, .1, .5, gamma, alpha, levels)
    human = [k for k, turn in enumerate(b.action_turn) if b.episodes.human[b.turns.episode[turn]]]
    td = sum((x.item() - y)**2 for x, y in zip(q, targets))/len(q)
    over = [alpha*(logits[k].max() - logits[k, said[k]]).item() for k in human]
    nats = [-logits[k].log_softmax(0)[said[k]].item() for k in human]
    assert loss.item() == pytest.approx(td + (.1*sum(over) + .5*sum(nats))/len(human), rel=1e-5)

def test_a_turn_between_two_tokens_is_no_end():
    turns = [Turn(t, context_ids=[5], ids=[6], logps=[-1.], entropies=[0.]) for t in range(2)]
    b = Batch.from_episodes([Episode(turns, columns=dict(verdict=1.))])
    assert tv.token_targets(b, torch.tensor([5., .5]), torch.zeros(2), 1.).tolist() == pytest.approx([.5, -.3])

# ---- operators

def test_the_conservative_operator_asks_the_frozen_model_and_the_target_has_no_gradient():
    frozen, now = torch.eye(3), torch.eye(3).flip(0)
    assert tv.conservative(frozen, now).tolist() == [0, 1, 2]
    b, logits = Batch.from_episodes([program([1, 1, 1])]), now.clone().requires_grad_()
    value = torch.zeros(3, requires_grad=True)
    tv.b_coder_loss(b.with_episodes(human=torch.zeros(1)), logits, tv.conservative(frozen, now), value).backward()
    # A of what was said: -1, 0, -1; of the frozen model's favourites: -1, 0, -1
    target = torch.tensor([.999*0, .999*-1, 1])
    torch.testing.assert_close(value.grad, 2*(torch.tensor([-1., 0, -1]) - target)/3)
    assert logits.grad.isfinite().all()

def test_at_the_start_both_operators_see_the_value_alone():
    policy = small_policy()
    values = tv.TokenValues(policy)
    logits, favourite, value = values.read(programs())
    assert torch.equal(favourite, logits.argmax(1)) and not tv.dueling(logits, favourite).any()
    torch.testing.assert_close(value, tv.capped(torch.tensor(2.)).expand_as(value))

# ---- learning

def test_b_coder_plays_nothing_updates_and_the_same_seed_is_the_same():
    policy, values = learned()
    again, same = learned()
    assert equal(weights(policy.model), weights(again.model)) and equal(weights(values), weights(same))
    assert not equal(weights(policy.model), weights(small_policy().model))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.model.parameters())
    assert max(p.grad.abs().max() for p in policy.model.parameters()) > 0
    assert values.score(programs()).isfinite().all()
    other = learned(seed=4)[1]
    assert not equal(weights(values.phi), weights(other.phi))

def test_what_is_frozen_does_not_move():
    first = small_policy()
    policy, values = learned(steps=(4, 0))
    assert equal(weights(policy.model), weights(first.model))
    assert not values.residual(torch.ones(1, values.residual[0].in_features)).any()
    later = learned(steps=(4, 4))[1]
    assert equal(weights(values.phi), weights(later.phi)) and equal(weights(later.initial.model), weights(first.model))
    assert not equal(weights(values.residual), weights(later.residual))

def test_the_loss_falls():
    policy, b = small_policy(), programs()
    values = tv.TokenValues(copy.deepcopy(policy))
    before = tv.b_coder_loss(b, *values.read(b)).item()
    after = tv.b_coder_loss(b, *learned(policy, steps=(30, 30))[1].read(b)).item()
    assert after < before - .1

# ---- refused

@pytest.mark.parametrize('column', ['human', 'verdict'])
def test_a_missing_column_is_named(column):
    b = programs()
    b = b.replace(episodes=type(b.episodes)(**{k: x for k, x in vars(b.episodes).items() if k != column}))
    with pytest.raises(ValueError, match=column): tv.b_coder(small_policy(), b)

@pytest.mark.parametrize('wrong', [math.nan, 4., .5, -1.])
def test_a_verdict_that_is_none_is_refused_before_anything_moves(wrong):
    policy, b = small_policy(), programs()
    b.episodes.verdict[7] = wrong
    with pytest.raises(ValueError, match='verdict: 1 of 12'): tv.b_coder(policy, b)
    assert equal(weights(policy.model), weights(small_policy().model))

def test_one_sort_alone_and_nothing_are_refused():
    b = programs()
    for index in (b.episodes.human == 1, torch.zeros(len(b), dtype=torch.bool)):
        with pytest.raises(ValueError, match='give both sorts'): tv.b_coder(small_policy(), b.select(index))

def test_no_token_is_no_value():
    b, none = programs().select(torch.zeros(12, dtype=torch.bool)), torch.zeros(0)
    assert tv.token_targets(b, none, none).shape == tv.program_score(b, none, none).shape == (0,)
