"Gradients by finite differences, weights against a loop, and the same loss under every micro-batching."
import inspect
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings, strategies as st

import registries
from agentlab import objective as objectives
from agentlab.episodes import Batch, Episode, Turn
from agentlab.objective import clip, clip_fraction, clipped, kl_k1, kl_k2, kl_k3, loss_weights

quick = settings(max_examples=60, deadline=None)
# episodes of turns: tokens, new window?
shape = st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=6)
per = st.sampled_from(['token', 'turn', 'row', 'episode', 5, 2.5])

def batch_of(episodes, seed=0):
    "Played episodes with context tokens and several windows, and random columns at the action tokens."
    played = []
    for turns in episodes:
        window, made = 0, []
        for t, (n, new) in enumerate(turns):
            window += new
            made.append(Turn(t=t, context_ids=[1, 2], ids=[3]*n, logps=[-1.]*n, entropies=[1.]*n, window=window))
        played.append(Episode(turns=made))
    batch = Batch.from_episodes(played)
    g, n = torch.Generator().manual_seed(seed), len(batch.actions)
    draw = lambda: torch.randn(n, generator=g, dtype=torch.float64)
    return batch.with_action(old_logp=draw(), ref_logp=draw(), advantage=draw(), logp=draw(),
        weight=(torch.rand(n, generator=g) < .8).float())

def loss_of(batch, logp, **keywords):
    return clip(logp, batch, batch.action('advantage'), **keywords) + .1*kl_k3(logp, batch)

@given(episodes=shape, seed=st.integers(0, 99), by=per)
@quick
def test_weights_against_a_loop(episodes, seed, by):
    batch = batch_of(episodes, seed)
    turn, row = batch.action_turn.tolist(), batch.tokens.row[batch.actions]
    parents = dict(token=[0]*len(turn), turn=turn, row=row.tolist(), episode=batch.rows.episode[row].tolist())
    parent, weight = parents[by if isinstance(by, str) else 'episode'], batch.action('weight').tolist()
    inside = Counter()
    for p, w in zip(parent, weight): inside[p] += w
    units = sum(w > 0 for w in inside.values())
    want = [w/((inside[p] if isinstance(by, str) else by)*units) if w else 0. for p, w in zip(parent, weight)]
    torch.testing.assert_close(loss_weights(batch, by), torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)

@given(episodes=shape, seed=st.integers(0, 99), by=per, data=st.data())
@quick
def test_loss_and_gradient_are_the_same_under_every_micro_batching(episodes, seed, by, data):
    batch = batch_of(episodes, seed)
    weighted = batch.with_action(share=loss_weights(batch, by))
    part = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(batch), max_size=len(batch))))
    def total(batches):
        value, slopes = 0., {}
        for number, b in enumerate(batches):
            logp = b.action('logp').requires_grad_()
            loss = (b.action('share')*loss_of(b, logp)).sum()
            loss.backward()
            value, slopes[number] = value + loss.item(), logp.grad
        return value, slopes
    value, slopes = total([weighted])
    split, pieces = total([weighted.select(part == k) for k in range(3)])
    assert split == pytest.approx(value, abs=1e-12)
    owner = part[batch.rows.episode[batch.tokens.row[batch.actions]]]
    for k in range(3): torch.testing.assert_close(pieces[k], slopes[0][owner == k], rtol=1e-12, atol=1e-12)

@pytest.mark.parametrize('keywords', [dict(), dict(low=.1, high=.28), dict(dual=1.5), dict(low=0., high=0., dual=3.)],
    ids=str)
@pytest.mark.parametrize('function', ['clip', 'kl_k1', 'kl_k2', 'kl_k3', 'corrected kl_k1', 'corrected kl_k3'])
def test_gradient_by_finite_differences(function, keywords):
    batch = batch_of([[(3, False)]*4]*20, seed=1)
    kinds = {'clip': lambda logp: clip(logp, batch, batch.action('advantage'), **keywords),
        'kl_k1': lambda logp: kl_k1(logp, batch), 'kl_k2': lambda logp: kl_k2(logp, batch),
        'kl_k3': lambda logp: kl_k3(logp, batch), 'corrected kl_k1': lambda logp: kl_k1(logp, batch, True),
        'corrected kl_k3': lambda logp: kl_k3(logp, batch, True)}
    value, step = kinds[function], 1e-6
    logp = batch.action('logp').requires_grad_()
    slope, = torch.autograd.grad(value(logp).sum(), logp)
    with torch.no_grad(): numeric = (value(logp+step) - value(logp-step))/(2*step)
    torch.testing.assert_close(slope, numeric, rtol=1e-5, atol=1e-7)

@given(seed=st.integers(0, 999), low=st.sampled_from([.1, .2]), high=st.sampled_from([.2, .4]),
    dual=st.sampled_from([None, 1.5, 3.]))
@quick
def test_clipped_tokens_are_those_without_a_gradient(seed, low, high, dual):
    batch = batch_of([[(3, False)]*3]*3, seed)
    advantage, logp = batch.action('advantage'), batch.action('logp').requires_grad_()
    advantage[::5] = 0. # no advantage, no gradient: not the clip's doing
    slope, = torch.autograd.grad(clip(logp, batch, advantage, low=low, high=high, dual=dual).sum(), logp)
    silent = clipped(logp, batch, advantage, low=low, high=high, dual=dual)
    assert torch.equal(silent, (slope == 0) & (advantage != 0))
    in_loss = batch.action('weight') > 0
    share = silent[in_loss].double().mean().nan_to_num(0.).item()
    assert clip_fraction(logp, batch, advantage, low=low, high=high, dual=dual).item() == pytest.approx(share, abs=1e-6)

@pytest.mark.parametrize('kind', [torch.float32, torch.bfloat16, torch.float64])
def test_far_log_probabilities_stay_finite(kind):
    batch = batch_of([[(4, False)]]).with_action(old_logp=torch.tensor([0., -900, 0, -900], dtype=kind),
        ref_logp=torch.tensor([0., -900, 0, -900], dtype=kind))
    logp = torch.tensor([-900., 0, -900, 0], dtype=kind, requires_grad=True)
    for value in (clip(logp, batch, torch.tensor([1., 1, -1, -1], dtype=torch.float64)), kl_k1(logp, batch),
                  kl_k2(logp, batch), kl_k3(logp, batch), kl_k3(logp, batch, True)):
        slope, = torch.autograd.grad(value.sum(), logp)
        assert value.dtype == kind and value.isfinite().all() and slope.isfinite().all()

@pytest.mark.parametrize('distance', [-25., -20., -19.9, -2.65, -2.6, -.5, 0., 3., 10.9, 11.1, 25.])
@pytest.mark.parametrize('corrected', [False, True])
def test_a_bounded_k3_is_the_one_of_verl(distance, corrected):
    "The log-ratio within 20, the result within 10; beyond it no gradient. Without a bound nothing is changed."
    batch = batch_of([[(1, False)]]).with_action(ref_logp=torch.tensor([-30.]).double(),
        old_logp=torch.tensor([-30. + distance - .1]).double())
    logp = torch.tensor([-30. + distance], dtype=torch.float64, requires_grad=True)
    moved = math.exp(.1) if corrected else 1.
    back = min(max(-distance, -20.), 20.)
    value = kl_k3(logp, batch, corrected, bound=10.)
    slope, = torch.autograd.grad(value.sum(), logp)
    k3 = math.exp(back) - 1 - back
    assert value.item() == pytest.approx(min(k3, 10.)*moved, rel=1e-5)
    assert slope.item() == pytest.approx((0 if k3 > 10 else 1 - math.exp(back))*moved + corrected*value.item(),
        rel=1e-4)
    if k3 < 10: assert kl_k3(logp, batch, corrected).item() == pytest.approx(value.item(), rel=1e-12)
    elif -20 < distance < 0:  # at -20 itself torch's clamp passes the slope on, and from 2.15 it does not
        free, = torch.autograd.grad(kl_k3(logp, batch).sum(), logp)
        assert free.item() == pytest.approx(1 - math.exp(-distance))

def test_nan_is_not_hidden():
    "A missing advantage or log-probability reaches the loss, where the trainer stops on it."
    batch = batch_of([[(3, False)]])
    logp, advantage = batch.action('logp'), batch.action('advantage')
    advantage[0], logp[1] = torch.nan, torch.nan
    for loss in (clip(logp, batch, advantage), clip(logp, batch, advantage, dual=3.)):
        assert loss.isnan().tolist() == [True, True, False]
    assert kl_k3(logp, batch).isnan().tolist() == [False, True, False]

def test_inputs_are_not_changed_and_advantage_takes_no_gradient():
    batch = batch_of([[(3, False)]])
    logp, advantage = batch.action('logp').requires_grad_(), batch.action('advantage')
    kept = logp.detach().clone(), advantage.clone()
    clip(logp, batch, advantage, dual=2.).sum().backward()
    kl_k3(logp, batch)
    loss_weights(batch)
    assert torch.equal(logp.detach(), kept[0]) and torch.equal(advantage, kept[1])

@pytest.mark.parametrize('call, words', [
    (lambda b, x: clip(x, b, x[:2]), 'logp has 3 and advantage 2'),
    (lambda b, x: clip(x[:2], b, x[:2]), 'logp has 2 values for 3 action tokens'),
    (lambda b, x: clip(x, b, x, low=1.5), 'low=1.5'), (lambda b, x: clip(x, b, x, high=-.1), 'high=-0.1'),
    (lambda b, x: clip(x, b, x, dual=1), 'dual=1'),
    (lambda b, x: clip(x, b, x, low=float('nan')), 'low=nan'),
    (lambda b, x: loss_weights(b, 'sequence'), "per='sequence'"), (lambda b, x: loss_weights(b, True), 'per=True'),
    (lambda b, x: loss_weights(b, -2), 'per=-2'), (lambda b, x: loss_weights(b, ['token']), "per=['token']")])
def test_errors_name_argument_and_value(call, words):
    batch = batch_of([[(3, False)]])
    with pytest.raises(ValueError) as error: call(batch, batch.action('logp'))
    assert words in str(error.value)

# ---- one number per action token

def called_alike():
    "Every public function of agentlab.objective that takes log-probabilities, by name."
    return {name: f for name, f in vars(objectives).items() if inspect.isfunction(f)
        and 'logp' in inspect.signature(f).parameters}

SQUARES = dict(column=lambda x: x[:, None], row=lambda x: x[None], list=lambda x: x.tolist(), number=lambda x: x.sum(),
    longer=lambda x: torch.cat([x, x]))

@pytest.mark.parametrize('name', registries.public_functions('objective', 'logp'))
@pytest.mark.parametrize('shape', SQUARES)
def test_what_is_not_one_number_per_token_is_refused(name, shape):
    "A second dimension would be stretched to a square of losses, and train on it."
    f, n = called_alike()[name], 4
    wanted = inspect.signature(f).parameters
    x = -torch.arange(1., n + 1)
    batch = Batch.from_episodes([Episode([Turn(0, context_ids=[1], ids=[2]*n, logps=x.tolist(), entropies=[.5]*n)])])
    batch = batch.with_action(old_logp=x, ref_logp=x, sampler_logp=x).with_turns(entropy_history=torch.ones(1))
    more = dict(advantage=torch.ones(n), entropy=torch.ones(n)) if 'advantage' in wanted else {}
    more = {name: value for name, value in (more | dict(coefficient=.1)).items() if name in wanted}
    f(x, batch, **more)
    for argument in ('logp', 'advantage') if 'advantage' in more and name != 'gspo_plan' else ('logp',):
        given = dict(logp=x) | more
        given[argument] = SQUARES[shape](given[argument])
        with pytest.raises(ValueError, match='one number per action token|give one per action token'):
            f(given.pop('logp'), batch, **given)
