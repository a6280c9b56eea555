"""Measures against loops, shapes and memories under permutation and resume, losses under micro-batching and by
finite differences."""
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.entropy.control import (AdaptiveCoefficient, EntropyHistory, additive, entropy_penalty, epo_schedule,
    log_gradient, phase_weight)
from agentlab.entropy.detectors import (collapse, dead, detect, explosion, repeated_actions, repeated_words, row_of,
    turn_gap)
from agentlab.entropy.measures import (after_response, covariance, entropy_rise, episode_entropy, perplexity,
    predicted_change, token_entropy, top_k_entropy,
    turn_entropy, turn_profile)
from agentlab.entropy.shaping import (OutcomeHistory, aepo_advantage, dcpo_advantage, entropy_threshold,
    high_entropy_steps, high_entropy_tokens, kept_weighted,
    merged, spread_weighted)
from agentlab.episodes import Batch, Episode, Turn
from agentlab.objective import clip, loss_weights
from agentlab.objective.entropy_bonuses import entropy_bonus, epo
from agentlab.policy.core import take_rows

quick = settings(max_examples=50, deadline=None)
entropies = st.one_of(st.sampled_from([0., .5, .7]), st.floats(0, 4, width=32), st.just(math.nan))
plays = st.lists(st.lists(st.lists(entropies, max_size=4), max_size=4), max_size=6)  # episodes of turns of entropies
solid = st.lists(st.lists(st.lists(st.floats(0, 4, width=32), min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1, max_size=6)
nan = math.nan

def same_numbers(found, wanted, eps=1e-6):
    found, wanted = (torch.as_tensor(x, dtype=torch.float64) for x in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=eps, atol=eps, equal_nan=True)

def mean(values):
    values = [x for x in values if x == x]
    return sum(values)/len(values) if values else nan

def batch_of(episodes, order=None, seed=0):
    "Played episodes in this order; outcome, state, weight and old_logp depend on the episode, not on its place."
    made = []
    for i in range(len(episodes)) if order is None else order:
        g = torch.Generator().manual_seed(1000*seed + i)
        turns = [Turn(t=t, text=f'{i % 2}', state=[i % 3, t % 2], context_ids=[1, 2],
            ids=[3 + k % 2 for k in range(len(turn))], logps=(-torch.rand(len(turn), generator=g)).tolist(),
            entropies=turn, window=t // 2)
            for t, turn in enumerate(episodes[i])]
        made.append(Episode(group=i % 2, outcome=float(torch.randint(3, (1,), generator=g)), turns=turns))
    batch = Batch.from_episodes(made)
    chosen = torch.tensor([(h*1000 + i + k) % 5 > .5 for i in (range(len(episodes)) if order is None else order)
        for turn in episodes[i] for k, h in enumerate(turn)], dtype=torch.bool)
    return batch.with_action(weight=chosen.float(), old_logp=batch.action('sampler_logp'))

def per_token(episodes, order, values):
    "Cut values of the tokens into one list for each episode, under the episode's own number."
    sizes = [sum(map(len, episodes[i])) for i in order]
    return dict(zip(order, torch.as_tensor(values).split(sizes))) if sizes else {}

# ---- measures

@given(episodes=plays, first=st.sampled_from([None, 1, 2, 3]))
@quick
def test_measures_against_a_loop(episodes, first):
    batch = batch_of(episodes)
    turns = [mean(turn[:first]) for turns in episodes for turn in turns]
    opening = [mean(turns[0][:first]) for turns in episodes for _ in turns]
    later = [t > 0 for turns in episodes for t in range(len(turns))]
    same_numbers(turn_entropy(batch, first), turns)
    if first:
        same_numbers(after_response(batch, first), [x if late else nan for x, late in zip(turns, later)])
        same_numbers(entropy_rise(batch, first), [x-o if late else nan for x, o, late in zip(turns, opening, later)])
    same_numbers(episode_entropy(batch), [mean([h for turn in turns for h in turn]) for turns in episodes])
    same_numbers(episode_entropy(batch, 'turn'), [mean([mean(turn) for turn in turns]) for turns in episodes])
    for rows, read in (('token', lambda turns: mean([h for turn in turns for h in turn])),
                       ('turn', lambda turns: mean(map(mean, turns)))):
        by_number = [(t, [turns[t][:first] for turns in episodes if len(turns) > t]) for t in range(4)]
        wanted = [(t, read(found)) for t, found in by_number if read(found) == read(found)]
        profile = turn_profile(batch, first, rows)
        assert profile.t.tolist() == [t for t, _ in wanted]
        same_numbers(profile.entropy, [x for _, x in wanted])
        assert profile.tokens.tolist() == [sum(h == h for turn in found for h in turn) for t, found in by_number
            if t in profile.t.tolist()]
    same_numbers(perplexity(batch), [math.exp(-mean(x.tolist())) if len(x) else nan
        for x in batch.action('sampler_logp').split(batch.turn_lengths().tolist())]
        if len(batch.turns) else [])

@given(seed=st.integers(0, 999), width=st.floats(.1, 8), k=st.integers(1, 20))
@quick
def test_bounds_of_the_top_k_hold_and_tighten(seed, width, k):
    logps = (width*torch.randn(4, 20, generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64)).log_softmax(1)
    truth = torch.special.entr(logps.exp()).sum(1)
    found = top_k_entropy(logps.topk(k).values, 20)
    assert (found.partial <= truth+1e-9).all() and (found.partial <= found.low+1e-9).all()
    assert (found.low <= truth+1e-6).all() and (truth <= found.high+1e-6).all()
    if k < 20:
        more = top_k_entropy(logps.topk(k+1).values, 20)
        assert (more.low >= found.low-1e-6).all() and (more.high <= found.high+1e-6).all()
    shuffled = logps.topk(k).values[:, torch.randperm(k, generator=torch.Generator().manual_seed(seed))]
    for one, two in zip(found, top_k_entropy(shuffled, 20)): same_numbers(one, two, 1e-9)

@given(seed=st.integers(0, 999), n=st.integers(1, 30), keys=st.integers(1, 5))
@quick
def test_covariance_against_a_loop_and_under_other_keys(seed, n, keys):
    g = torch.Generator().manual_seed(seed)
    logp, advantage, by, counts = (torch.randn(n, generator=g), torch.randn(n, generator=g),
        torch.randint(keys, (n,), generator=g), torch.rand(n, generator=g) < .7)
    wanted = []
    for i in range(n):
        peers = [j for j in range(n) if by[j] == by[i] and counts[j]]
        wanted.append(float((logp[i]-logp[peers].double().mean())*(advantage[i]-advantage[peers].double().mean()))
            if counts[i] else 0.)
    same_numbers(covariance(logp, advantage, by, counts), wanted, 1e-5)
    same_numbers(covariance(logp, advantage, 10**12 - 7*by, counts), wanted, 1e-5)
    same_numbers(covariance(logp + 5, 3*advantage - 2, by, counts), [3*x for x in wanted], 1e-4)

def test_covariance_predicts_the_change_of_entropy():
    "Of a natural step, to first order: the error falls fourfold when the step is halved, for 20 policies."
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        logits, advantage = (torch.randn(6, generator=g, dtype=torch.float64) for _ in range(2))
        entropy = lambda z: float(torch.special.entr(z.softmax(0)).sum())
        drawn = torch.multinomial(logits.softmax(0), 20000, replacement=True, generator=g)
        exact = float((logits.softmax(0)*covariance_exact(logits, advantage)).sum())
        errors = [abs(entropy(logits + lr*advantage) - entropy(logits) + lr*exact) for lr in (.02, .01)]
        assert 3 < errors[0]/errors[1] < 5 or errors[0] < 1e-7
        assert abs(predicted_change(logits.log_softmax(0)[drawn], advantage[drawn], 1.) + exact) < .1

def covariance_exact(logits, advantage):
    p, logp = logits.softmax(0), logits.log_softmax(0)
    return (logp-(p*logp).sum())*(advantage-(p*advantage).sum())

# ---- shapes

SHAPES = [aepo_advantage, partial(aepo_advantage, coefficient=2.), high_entropy_tokens,
    partial(high_entropy_tokens, share=.5), high_entropy_steps, partial(high_entropy_steps, share=.3),
    spread_weighted, kept_weighted]

@given(episodes=plays, data=st.data(), seed=st.integers(0, 99))
@quick
def test_shapes_do_not_depend_on_the_order_of_episodes(episodes, data, seed):
    order = data.draw(st.permutations(range(len(episodes))))
    plain, moved = batch_of(episodes, seed=seed), batch_of(episodes, order, seed)
    advantage = torch.randn(len(plain.actions), generator=torch.Generator().manual_seed(seed))
    own = per_token(episodes, list(range(len(episodes))), advantage)
    carried = torch.cat([own[i] for i in order]) if order else advantage
    for shape in SHAPES:
        one, two = (per_token(episodes, o, shape(b, a))
            for o, b, a in ((list(range(len(episodes))), plain, advantage), (order, moved, carried)))
        for i in order: same_numbers(one[i], two[i])

@given(episodes=plays, seed=st.integers(0, 99))
@quick
def test_shapes_keep_type_length_and_input(episodes, seed):
    batch = batch_of(episodes, seed=seed)
    advantage = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(seed))
    before = advantage.clone()
    for shape in SHAPES:
        found = shape(batch, advantage)
        assert found.dtype == advantage.dtype and len(found) == len(advantage) and found.isfinite().all()
        assert torch.equal(advantage, before)
        assert not ((found*advantage) < 0).any()  # no shape turns praise into blame

@given(episodes=solid, share=st.sampled_from([.05, .2, .3, .5, .9, 1.]), seed=st.integers(0, 99))
@quick
def test_high_entropy_tokens_and_steps_against_torch(episodes, share, seed):
    batch = batch_of(episodes, seed=seed)
    counts, entropy = batch.action('weight') > 0, token_entropy(batch)
    if not counts.any(): return
    threshold = entropy[counts].quantile(1-share)
    same_numbers(entropy_threshold(batch, share), threshold, 1e-9)
    kept = high_entropy_tokens(batch, torch.ones(len(counts)), share) > 0
    assert not kept[~counts].any() and kept.sum() >= share*counts.sum() - 1
    means = [mean([h for h, c in zip(turn, count) if c]) for turn, count in zip(
        [turn for turns in episodes for turn in turns], counts.split(batch.turn_lengths().tolist()))]
    ranked = sorted((x for x in means if x == x), reverse=True)
    last = ranked[max(math.floor(share*len(ranked) + 1e-9), 1)-1]
    steps = high_entropy_steps(batch, torch.ones(len(counts)), share) > 0
    chosen = list(zip(steps.tolist(), (means[t] for t in batch.action_turn.tolist())))
    # two ways to a mean differ in their last digits
    assert all(taken == (x > last) for taken, x in chosen
        if abs(x - last) > 1e-12) and any(taken for taken, x in chosen if abs(x - last) <= 1e-12)

@given(episodes=solid, seed=st.integers(0, 99), c=st.floats(0, 3))
@quick
def test_aepo_against_the_formula(episodes, seed, c):
    batch = batch_of(episodes, seed=seed)
    counts, entropy = batch.action('weight') > 0, token_entropy(batch)
    inside = entropy[counts]
    flat = len(inside) < 2 or float(inside.max()-inside.min()) <= 1e-9*float(inside.max())
    z = torch.zeros_like(entropy) if flat else torch.where(counts, (entropy-inside.mean())/inside.std(), 0)
    same_numbers(aepo_advantage(batch, -torch.ones(len(counts)).double(), c), -(1+c*z).clamp(min=0))
    if counts.sum() != 1:
        same_numbers(aepo_advantage(batch, -torch.ones(len(counts)).double(), c, faithful=True), -(1+c*z))
    else: assert aepo_advantage(batch, torch.ones(len(counts)), c, faithful=True)[counts].isnan().all()

@given(entropy=st.floats(0, 4), history=st.one_of(st.just(nan), st.floats(0, 4)), alpha=st.floats(.1, 5),
    low=st.floats(0, 1), high=st.floats(1, 3))
@quick
def test_penalty_against_the_formula(entropy, history, alpha, low, high):
    found = [float(entropy_penalty(torch.tensor([entropy], dtype=torch.float64),
        torch.tensor([history], dtype=torch.float64), alpha, low, high, faithful))
        for faithful in (False, True)]
    if history != history:
        assert found == [0, 0]
        return
    assert found[0] == pytest.approx(alpha*max(low*history-entropy, entropy-high*history, 0), abs=1e-9)
    assert found[1] == (0 if low*history < entropy < high*history else alpha)

@given(outcomes=st.lists(st.lists(st.sampled_from([0., .5, 1., nan]), min_size=2, max_size=5), min_size=1, max_size=3),
    seen=st.integers(0, 9), m=st.floats(0, 1), s=st.floats(0, 1))
@quick
def test_dcpo_against_the_formulas(outcomes, seen, m, s):
    flat = [x for group in outcomes for x in group]
    batch = Batch.from_episodes([
        Episode(group=g, outcome=x, turns=[Turn(t=0, context_ids=[1], ids=[2, 3], logps=[-1.]*2, entropies=[1.]*2)])
        for g, group in enumerate(outcomes) for x in group])
    full = lambda x: torch.full((len(flat),), float(x), dtype=torch.float64)
    found = dcpo_advantage(batch.with_episodes(seen=full(seen), seen_mean=full(m if seen else nan),
        seen_std=full(s if seen else nan)))
    wanted = []
    for group in outcomes:
        known = [x for x in group if x == x]
        new_m = mean(known) if known else 0.
        new_s = math.sqrt(sum((x-new_m)**2 for x in known)/(len(known)-1)) if len(set(known)) > 1 else 0.
        k, old_m, old_s = seen, m if seen else 0., s if seen else 0.
        total_m, total_s = (k*old_m + new_m)/(k+1), math.sqrt((k*old_s**2 + new_s**2 + k/(k+1)*(new_m-old_m)**2)/(k+1))
        for x in group:
            if x != x:
                wanted += [0.]
                continue
            new, total = (x-new_m)/new_s if new_s else 0., (x-total_m)/total_s if total_s else 0.
            wanted.append(min((total/(k+1) + (1-1/(k+1))*new, new/(k+1) + (1-1/(k+1))*total), key=abs))
    same_numbers(found[::2].abs(), [abs(x) for x in wanted], 1e-7)  # a tie of magnitudes may have either sign
    assert torch.equal(found[::2], found[1::2])

# ---- memories

@given(steps=st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0., .5, 1.])), min_size=1, max_size=5),
    min_size=1, max_size=6), cut=st.integers(0, 6))
@quick
def test_outcome_history_against_a_dictionary_and_resumed(steps, cut):
    memory, known, resumed = OutcomeHistory(), {}, None
    for number, episodes in enumerate(steps):
        batch = Batch.from_episodes([
            Episode(outcome=x, turns=[Turn(t=0, state=task, context_ids=[1], ids=[2], logps=[-1.], entropies=[1.])])
            for task, x in episodes])
        if number == cut:
            resumed = OutcomeHistory()
            resumed.restore({name: x.clone() for name, x in memory.tensors().items()})
        memory.read(batch, number)
        found = memory.read(batch, number).episodes  # reading twice counts once
        same_numbers(torch.stack([found.seen, found.seen_mean, found.seen_std], 1),
            [known.get(task, (0., 0., 0.)) for task, _ in episodes])
        if resumed: same_numbers(resumed.read(batch, number).episodes.seen_std, found.seen_std, 1e-12)
        for task in {task for task, _ in episodes}:
            mine = torch.tensor([x for t, x in episodes if t == task], dtype=torch.float64)
            k, m, s = known.get(task, (0., 0., 0.))
            known[task] = (k+1, *(float(x) for x in merged(
                *torch.tensor([k, m, s, mine.mean(), mine.std() if len(mine) > 1 else 0.], dtype=torch.float64))))
        for one in filter(None, (memory, resumed)): assert one.learn({}) == dict(tasks_seen=len(known))

@given(steps=st.lists(plays, min_size=1, max_size=5), cut=st.integers(0, 5), faithful=st.booleans())
@quick
def test_entropy_history_against_lists_and_resumed(steps, cut, faithful):
    make = partial(EntropyHistory, faithful=faithful, max_turns=3)
    memory, resumed, past = make(), None, []
    for number, episodes in enumerate(steps):
        batch = batch_of(episodes)
        if number == cut:
            resumed = make()
            resumed.restore(memory.tensors())
        means = [mean([h for turns in episodes if len(turns) > t for h in turns[t]]) for t in range(4)]
        while means and means[-1] != means[-1]: means.pop()
        past.append(([0.]*(3-len(means)) + [0. if x != x else x for x in means[-3:]]) if faithful else means)
        wanted = [mean([step[t] for step in past if t < len(step)]) for t in range(max(map(len, past)))]
        read = lambda t: wanted[t] if t < len(wanted) else nan
        memory.read(batch)
        same_numbers(memory.read(batch).turns.entropy_history, [read(t) for t in batch.turns.t.tolist()])
        if resumed: same_numbers(resumed.read(batch).turns.entropy_history, [read(t) for t in batch.turns.t.tolist()])
        for one in filter(None, (memory, resumed)):
            row = one.learn({})['entropy_history']
            assert [x is None for x in row] == [x != x for x in wanted]
            same_numbers([x for x in row if x is not None], [x for x in wanted if x == x])

@pytest.mark.parametrize('rule', [additive, log_gradient, partial(additive, step=.5), partial(log_gradient, rate=50.)],
    ids=['additive', 'log gradient', 'additive, large steps', 'log gradient, large steps'])
def test_coefficient_moves_towards_the_target_inside_its_bounds_and_resumes(rule):
    memory, g = AdaptiveCoefficient(target=.4, rule=rule, start=.01, low=.001,
        high=.2), torch.Generator().manual_seed(0)
    batch = batch_of([[[.5, .5]]])
    for number, entropy in enumerate((2*torch.rand(60, generator=g)).tolist()):
        before = memory.coefficient
        assert memory.read(batch, number).action('entropy_coef').tolist() == pytest.approx([before]*2)
        assert memory.learn(dict(entropy=entropy)) == dict(entropy_coef=before)
        assert .001 <= memory.coefficient <= .2
        assert (memory.coefficient - before)*(.4 - entropy) >= 0
        back = AdaptiveCoefficient()
        back.restore(memory.tensors())
        assert back.coefficient == memory.coefficient

def test_phase_weight_is_the_released_curve():
    assert [round(phase_weight(e), 5) for e in (0, 75, 76, 150, 999)] == [1, .82707, .76863, .03983, .03983]
    values = [phase_weight(e) for e in range(151)]
    assert values == sorted(values, reverse=True) and all(phase_weight(e, k) > 0 for k in (0, 1, 2, 3)
        for e in range(5))
    # every run begins with the whole penalty, one of a single update too
    assert [phase_weight(0, k) for k in (0, 1, 2, 3, 150)] == [1]*5

# ---- losses

def numbers(episodes, seed):
    "(batch with history, logp, advantage, entropy), everything in float64."
    batch, g = batch_of(episodes, seed=seed), torch.Generator().manual_seed(seed)
    n = len(batch.actions)
    draw = lambda size: torch.randn(size, generator=g, dtype=torch.float64)
    history = torch.where(torch.rand(len(batch.turns), generator=g) < .2, nan, draw(len(batch.turns)).abs())
    batch = batch.with_turns(entropy_history=history).with_action(entropy_coef=draw(n)*.1,
        old_logp=batch.action('old_logp').double())
    return batch, batch.action('old_logp') + .4*draw(n), draw(n), draw(n).abs()

LOSSES = {'bonus': entropy_bonus,
    'bonus, number, dual': partial(entropy_bonus, coefficient=.3, dual=1.5), 'epo': partial(epo, bonus=.2),
    'epo, phase': partial(epo, bonus=.2, smooth=.5, phase=.7, alpha=3., within=(.5, 1.5), high=.28),
    'epo, released': partial(epo, bonus=.2, faithful=True)}

@given(episodes=solid, seed=st.integers(0, 99), per=st.sampled_from(['token', 'turn', 'row', 'episode', 3.]),
    name=st.sampled_from(list(LOSSES)[:4]), data=st.data())
@quick
def test_losses_are_the_same_under_every_micro_batching(episodes, seed, per, name, data):
    batch, logp, advantage, entropy = numbers(episodes, seed)
    share = loss_weights(batch, per)
    x, h = logp.clone().requires_grad_(), entropy.clone().requires_grad_()
    whole = (share*LOSSES[name](x, batch, advantage, h)).sum()
    whole.backward()
    part = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(batch.rows), max_size=len(batch.rows))))
    total, slopes = 0., (torch.zeros_like(logp), torch.zeros_like(logp))
    for k in range(3):
        some, which = take_rows(batch, (part == k).nonzero()[:, 0])
        y, z = logp[which].clone().requires_grad_(), entropy[which].clone().requires_grad_()
        loss = (share[which]*LOSSES[name](y, some, advantage[which], z)).sum()
        loss.backward()
        total += loss.item()
        for slope, grad in zip(slopes, (y.grad, z.grad)): slope[which] = grad
    assert total == pytest.approx(whole.item(), abs=1e-9)
    for slope, grad in zip(slopes, (x.grad, h.grad)): same_numbers(slope, grad, 1e-9)

@pytest.mark.parametrize('name', LOSSES)
@pytest.mark.parametrize('seed', range(5))
def test_gradients_by_finite_differences(name, seed):
    "In the log-probability and in the entropy of each token."
    batch, logp, advantage, entropy = numbers([[[1.]*3]*30]*2, seed)  # 30 turns, so that the released gate is open
    loss, step = LOSSES[name], 1e-6
    x, h = logp.clone().requires_grad_(), entropy.clone().requires_grad_()
    in_logp, in_entropy = torch.autograd.grad(loss(x, batch, advantage, h).sum(), (x, h))
    same_numbers(in_logp,
        (loss(logp+step, batch, advantage, entropy) - loss(logp-step, batch, advantage, entropy))/(2*step),
        1e-5)
    same_numbers(in_entropy,
        (loss(logp, batch, advantage, entropy+step) - loss(logp, batch, advantage, entropy-step))/(2*step),
        1e-5)

@given(episodes=solid, seed=st.integers(0, 99), smooth=st.floats(0, 3), alpha=st.floats(0, 5))
@quick
def test_epo_is_the_clip_minus_bonus_and_penalty_and_its_released_penalty_has_no_gradient(episodes, seed, smooth,
                                                                                          alpha):
    batch, logp, advantage, entropy = numbers(episodes, seed)
    late = batch.with_turns(t=batch.turns.t + 25)
    h = entropy.clone().requires_grad_()
    penalty = entropy_penalty(h, batch.spread(batch.turns.entropy_history), alpha)
    assert (penalty >= 0).all()
    same_numbers(epo(logp, batch, advantage, h, .1, smooth, alpha),
        clip(logp, batch, advantage, dual=3.) - .1*(h - smooth*penalty), 1e-9)
    plain = torch.autograd.grad(entropy_bonus(logp, late, advantage, h, coefficient=.1, dual=3.).sum(), h)[0]
    assert torch.equal(torch.autograd.grad(epo(logp, late, advantage, h, .1, smooth, alpha, faithful=True).sum(), h)[0],
        plain)
    early = epo(logp, batch, advantage, entropy, .1, smooth, alpha, faithful=True) # behind the gate there is no penalty
    same_numbers(early, entropy_bonus(logp, batch, advantage, entropy, coefficient=.1, dual=3.), 1e-12)

# ---- detectors

curves = st.lists(st.one_of(st.none(), st.floats(0, 3)), max_size=40)

@given(entropy=curves, seed=st.integers(0, 99))
@quick
def test_detectors_look_back_only(entropy, seed):
    "What was found in a prefix of a run is found in the whole run, at the same step."
    g = torch.Generator().manual_seed(seed)
    rows = [dict(step=i, entropy=x, success=float(torch.rand(1, generator=g)),
        dead_groups=float(torch.rand(1, generator=g)), entropy_by_turn=(2*torch.rand(3, generator=g)).tolist()
        if x is not None else None) for i, x in enumerate(entropy)]
    for detector in (collapse, explosion, dead, turn_gap):
        whole = detector(rows)
        for n in range(len(rows)+1):
            part = detector(rows[:n])
            assert part == whole if whole and whole[0].step < n else part == []
    assert [f.step for f in detect(rows)] == sorted(f.step for f in detect(rows))

@given(episodes=plays, n=st.integers(1, 4))
@quick
def test_repetition_against_a_loop(episodes, n):
    batch = batch_of(episodes)
    words = [[3 + k % 2 for k in range(len(turn))] for turns in episodes for turn in turns]
    count = lambda ids: max((sum(ids[j:j+n] == ids[i:i+n] for j in range(len(ids)-n+1)) for i in range(len(ids)-n+1)),
        default=0)
    wanted = [max((count([3 + k % 2 for k in range(len(turn))]) for turn in turns), default=0) for turns in episodes]
    assert len(words) == len(batch.turns) and repeated_words(batch, n).tolist() == wanted
    # the state has period 2, the action is constant
    same_numbers(repeated_actions(batch), [mean([float(t >= 2) for t in range(len(turns))]) for turns in episodes])

@given(episodes=solid)
@quick
def test_row_of_a_batch_agrees_with_the_trainer(episodes):
    from agentlab.train.trainer import measure_play
    batch = batch_of(episodes)
    mine, theirs = row_of(batch), measure_play(batch, batch)
    for name in ('success', 'entropy', 'dead_groups', 'entropy_by_turn'): same_numbers(mine[name], theirs[name])

FIELDS = dict(epo=dict(objective=epo, memory=EntropyHistory, schedule=partial(epo_schedule, bonus=.1)),
    released=dict(objective=partial(epo, faithful=True), memory=partial(EntropyHistory, faithful=True)),
    coefficient=dict(objective=entropy_bonus, memory=partial(AdaptiveCoefficient, target=5., start=.01)),
    dcpo=dict(memory=OutcomeHistory, shape=dcpo_advantage),
    aepo=dict(shape=aepo_advantage, shape_args=dict(coefficient=.5)), tokens=dict(shape=high_entropy_tokens),
    steps=dict(shape=high_entropy_steps), spread=dict(shape=spread_weighted), kept=dict(shape=kept_weighted))

@pytest.mark.parametrize('name', FIELDS)
def test_in_a_run_killed_and_resumed(tmp_path, name):
    from small import same_run, train_small
    whole = train_small(tmp_path/'whole', steps=3, **FIELDS[name])
    assert all(row['skipped'] is None and math.isfinite(row['loss']) for row in whole.rows())
    seen = []
    train_small(tmp_path/'cut', steps=3, on_row=seen.append, should_stop=lambda: len(seen) == 2, **FIELDS[name])
    same_run(whole, train_small(tmp_path/'cut', steps=3, resume=True, **FIELDS[name]))
    if name == 'coefficient':
        assert [row['entropy_coef'] for row in whole.rows()] == sorted({row['entropy_coef'] for row in whole.rows()})
    if name == 'epo': assert len(whole.rows()[-1]['entropy_history']) > 1

def test_entropy_needs_torch_alone():
    code = ("import sys; import agentlab.entropy.measures, agentlab.entropy.detectors, agentlab.entropy.shaping, "
        "agentlab.entropy.control, agentlab.objective.entropy_bonuses; "
        "print([m for m in ('transformers', 'pandas', 'plotly', 'trl', 'pyarrow') if m in sys.modules])")
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
        check=True).stdout.strip() == '[]'
