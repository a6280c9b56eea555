"""The field's objectives: gradients, micro-batches and plans, extremes, names; and the loss and gradient of TRL's
own trainers on the same tensors."""
import json
import pickle
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.episodes import Batch, Episode, Turn, state_key
from agentlab.objective import clip, loss_weights
from agentlab.objective.correction import corrected, dart_weights, icepop, importance_weights, truncated
from agentlab.objective.covariance_clips import clip_cov, kl_cov, spear_clip
from agentlab.objective.sequence import (cispo, each_episode, each_row, each_token, each_turn, gmpo, gspo, gspo_episode,
    gspo_turn, sapo)
from agentlab.objective.trust import aepo_clip, dcpo_clip, dppo_kl, dppo_tv, dro, hispo, reinforce
from agentlab.policy.core import take_rows
from agentlab.recipe import import_path
from later import deferred

quick = settings(max_examples=25, deadline=None)
some = dict(share=.2, least=.1)  # high enough that small batches have eligible tokens
family = dict(clip_cov=(clip_cov, some), kl_cov=(kl_cov, dict(share=.2)),
    spear_clip=(spear_clip, dict(some, replay=(.3, .1, 9.))), gspo=(gspo, {}), gspo_wide=(gspo, dict(low=.2, high=.3)),
    gspo_turn=(gspo_turn, dict(low=.2, high=.3)),
    gspo_episode=(gspo_episode, dict(low=.2, high=.3)), gmpo=(gmpo, {}), sapo=(sapo, {}), cispo=(cispo, {}),
    dppo_tv=(dppo_tv, {}), dppo_kl=(dppo_kl, {}), dcpo_clip=(dcpo_clip, {}), aepo_clip=(aepo_clip, {}), dro=(dro, {}),
    reinforce=(reinforce, {}),
    hispo=(hispo, dict(sequence=.3)), tis=(deferred(lambda: corrected(clip)), {}),
    tis_turn=(deferred(lambda: corrected(gspo, truncated, unit=each_turn)), {}),
    tis_mean=(deferred(lambda: corrected(clip, truncated, normalize=True)), {}),
    icepop=(deferred(lambda: corrected(sapo, icepop)), {}),
    dart=(deferred(lambda: corrected(gspo, dart_weights, faithful=True)), {}),
    planned_twice=(deferred(lambda: corrected(clip_cov, truncated, normalize=True, unit=each_episode)), some))
every = pytest.mark.parametrize('name', family)

def played(seed=0, size=8):
    "Episodes with several turns and windows, some replayed, and random columns at their action tokens."
    g = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high + 1, (1,), generator=g))
    episodes = []
    for number in range(size):
        window, turns = 0, []
        for t in range(draw(1, 4)):
            window, n = window + draw(0, 1), draw(1, 4)
            turns.append(Turn(t=t, context_ids=[1, 2], ids=[draw(0, 9) for _ in range(n)], logps=[-1.]*n,
                entropies=[1.]*n, window=window))
        episodes.append(Episode(turns=turns, source='replay' if number % 3 == 0 else 'policy', step=7))
    batch = Batch.from_episodes(episodes)
    normal = lambda scale: scale*torch.randn(len(batch.actions), generator=g, dtype=torch.float64)
    old = -normal(1).exp() - .05
    batch = batch.with_action(old_logp=old, sampler_logp=old + normal(.1),
        weight=(torch.rand(len(old), generator=g) < .9).float())
    return batch, (old + normal(.4)).clamp(max=-1e-3), normal(1.5)

def plan(name, batch, logp, advantage):
    "What the trainer does first: columns for the whole minibatch."
    f, keywords = family[name]
    return batch.with_action(**f.plan(logp, batch, advantage, **keywords)) if hasattr(f, 'plan') else batch

def loss_and_slope(name, batch, logp, advantage):
    f, keywords = family[name]
    logp = logp.clone().requires_grad_()
    loss = f(logp, batch, advantage, **keywords)
    return loss.detach(), torch.autograd.grad(loss.sum(), logp)[0]

@every
@given(seed=st.integers(0, 99), cut=st.integers(2, 4))
@quick
def test_the_same_under_every_micro_batching(name, seed, cut):
    "Losses and their gradients (weighted as the trainer does) do not depend on which whole rows share a part."
    batch, logp, advantage = played(seed)
    batch = plan(name, batch, logp, advantage)
    f, keywords = family[name]
    weight = loss_weights(batch, 'row')
    def slopes(batches):
        result = torch.zeros_like(logp)
        for part, which in batches:
            x = logp[which].clone().requires_grad_()
            (weight[which]*f(x, part, advantage[which], **keywords)).sum().backward()
            result[which] = x.grad
        return result
    order = torch.randperm(len(batch.rows), generator=torch.Generator().manual_seed(seed))
    whole = slopes([(batch, torch.arange(len(logp)))])
    torch.testing.assert_close(slopes([take_rows(batch, rows) for rows in order.tensor_split(cut) if len(rows)]), whole,
        rtol=1e-10, atol=1e-12)

@every
def test_a_plan_is_what_the_objective_does_alone(name):
    batch, logp, advantage = played(3)
    for alone, planned in zip(loss_and_slope(name, batch, logp, advantage),
                              loss_and_slope(name, plan(name, batch, logp, advantage), logp, advantage)):
        assert torch.equal(alone, planned)

@every
def test_gradient_at_ratio_one_is_the_policy_gradient(name):
    batch, logp, advantage = played(1)
    batch = batch.with_action(sampler_logp=batch.action('old_logp'), weight=torch.ones(len(logp)))
    row_wise = torch.randn(len(batch.rows), generator=torch.Generator().manual_seed(0),
        dtype=torch.float64)[each_row(batch)]
    f, keywords = family[name]
    # nothing is dropped
    keywords = keywords | {k: dict(share=1e-9, least=1e9, most=2e9).get(k, v) for k, v in keywords.items()
        if k in ('share', 'least')}
    if name == 'planned_twice' or 'cov' in name and name != 'kl_cov': keywords['most'] = 2e9
    if name == 'spear_clip': keywords |= dict(most=2e9, replay=(0., 1e9, 2e9))
    x = batch.action('old_logp').clone().requires_grad_()
    slope, = torch.autograd.grad((loss_weights(batch, 'row')*f(x, batch, row_wise, **keywords)).sum(), x)
    torch.testing.assert_close(slope, -loss_weights(batch, 'row')*row_wise, rtol=1e-9, atol=1e-12)

# no stop-gradient: the loss is what is differentiated
straight = ['clip_cov', 'kl_cov', 'spear_clip', 'gmpo', 'sapo', 'dcpo_clip', 'dro', 'reinforce', 'hispo', 'tis',
    'tis_mean', 'icepop', 'planned_twice']

@pytest.mark.parametrize('name', straight)
@pytest.mark.parametrize('seed', range(3))
def test_gradient_by_finite_differences(name, seed):
    batch, logp, advantage = played(seed)
    batch = plan(name, batch, logp, advantage)  # otherwise a step might move the choice of tokens
    f, keywords = family[name]
    total = lambda x: f(x, batch, advantage, **keywords).sum()
    steps = 1e-6*torch.eye(len(logp), dtype=torch.float64)
    numeric = torch.stack([(total(logp+d) - total(logp-d))/2e-6 for d in steps])
    torch.testing.assert_close(loss_and_slope(name, batch, logp, advantage)[1], numeric, rtol=1e-5, atol=1e-6)

@pytest.mark.parametrize('seed', range(3))
def test_gradient_in_closed_form(seed):
    "Objectives with a stop-gradient: the slope of each token, written out."
    batch, logp, advantage = played(seed)
    old = batch.action('old_logp')
    r, p, q = (logp-old).exp(), logp.exp(), old.exp()
    slopes = {name: loss_and_slope(name, batch, logp, advantage)[1]
        for name in ('cispo', 'dppo_tv', 'dppo_kl', 'aepo_clip', 'gspo_wide', 'gspo_turn', 'gspo_episode')}
    kl = q*(q/p).log() + (1-q)*((1-q)/(1-p)).log()
    want = dict(cispo=-r.clamp(max=5)*advantage,
        dppo_tv=torch.where(torch.where(advantage > 0, p-q <= .15, p-q >= -.15), -r*advantage, 0),
        dppo_kl=torch.where(torch.where(advantage > 0, (kl <= .05) | (p <= q), (kl <= .05) | (p >= q)),
        -r*advantage, 0))
    up, down, far = (advantage > 0) & (r > 1.2), (advantage < 0) & (r < .8), (advantage < 0) & (r > 3)
    want['aepo_clip'] = torch.where(up, -1.2*advantage, torch.where(down | far, 0, -r*advantage))
    counts = batch.action('weight') > 0
    for name, unit in (('gspo_wide', each_row), ('gspo_turn', each_turn), ('gspo_episode', each_episode)):
        s = torch.ones_like(r)
        for k in unit(batch).unique():
            inside = (unit(batch) == k) & counts
            if inside.any(): s[unit(batch) == k] = (logp-old)[inside].mean().exp()
        want[name] = torch.where(((advantage > 0) & (s > 1.3)) | ((advantage < 0) & (s < .8)), 0, -s*advantage)
    for name, slope in slopes.items(): torch.testing.assert_close(slope, want[name], rtol=1e-6, atol=1e-8)

@every
@pytest.mark.parametrize('kind', [torch.float32, torch.bfloat16, torch.float64])
def test_far_log_probabilities_stay_finite(name, kind):
    frame = pd.DataFrame(dict(group=0, episode=[0, 1], t=0, n_tokens=2))
    old, now = torch.tensor([0., -100, 0, -100], dtype=kind), torch.tensor([-100., 0, -100, 0], dtype=kind)
    for sampler in (old, now):
        for weight in (torch.ones(4), torch.zeros(4), torch.tensor([1., 0, 0, 0])):
            batch = Batch.from_turns(frame).with_action(old_logp=old, sampler_logp=sampler, weight=weight)
            for sign in (1., -1., 0.):
                loss, slope = loss_and_slope(name, plan(name, batch, now, sign*torch.ones(4)), now, sign*torch.ones(4))
                assert loss.isfinite().all() and slope.isfinite().all() and loss.dtype == slope.dtype == kind

@every
def test_inputs_are_not_changed_and_the_global_generator_is_not_touched(name):
    batch, logp, advantage = played(2)
    kept, state = [x.clone() for x in (logp, advantage, batch.action('old_logp'))], torch.get_rng_state()
    loss_and_slope(name, plan(name, batch, logp, advantage), logp, advantage)
    assert (all(torch.equal(a, b) for a, b in zip(kept, (logp, advantage, batch.action('old_logp'))))
        and torch.equal(state, torch.get_rng_state()))

@every
def test_facts_are_json_and_the_same_in_every_process(name):
    f, _ = family[name]
    told = import_path(f)
    assert ' at 0x' not in told and told.startswith('agentlab.objective.') and json.dumps(told)
    again = pickle.loads(pickle.dumps(f))
    assert import_path(again) == told and hasattr(again, 'plan') == hasattr(f, 'plan')

def test_the_draw_depends_on_seed_step_and_tokens_only():
    batch, logp, advantage = played(5, size=40)
    draw = lambda b=batch, **k: clip_cov.plan(logp, b, advantage, share=.1, least=.05, **k)['dropped']
    assert torch.equal(draw(), draw())
    others = [draw(seed=1), draw(batch.with_episodes(step=batch.episodes.step + 1)),
        draw(batch.with_tokens(id=batch.tokens.id.flip(0)))]
    assert all(not torch.equal(draw(), x) and x.sum() == draw().sum() for x in others)
    renumbered = batch.with_episodes(group=batch.episodes.group*31 + 5, game=batch.episodes.game - 10**9)
    assert torch.equal(draw(), draw(renumbered))
    share = torch.stack([draw(seed=s) for s in range(300)]).mean(0)  # uniform over the eligible tokens
    eligible = share > 0
    expected = draw().sum()/eligible.sum()
    assert ((share[eligible] - expected).abs() < 5*(expected*(1-expected)/300).sqrt()).all()

def test_spear_takes_replay_apart():
    batch, logp, advantage = played(4, size=30)
    replayed = (batch.episodes.source == state_key('replay'))[each_episode(batch)]
    numbers = dict(share=0., least=.1, replay=(.5, .1, 9.), low=1., high=9.)
    dropped = spear_clip.plan(logp, batch, advantage, **numbers)['dropped'] > 0
    assert (dropped[~replayed].sum() == 1 and dropped[replayed].sum() > 3
        and not dropped[batch.action('weight') == 0].any())
    other = torch.where(replayed, 5*advantage, advantage)  # what was replayed changes nothing for the others
    again = spear_clip.plan(logp, batch, other, **numbers)['dropped'] > 0
    assert torch.equal(dropped[~replayed], again[~replayed])

def test_units_against_a_loop():
    batch, _, _ = played(6)
    gap, counts = batch.action('old_logp') - batch.action('sampler_logp'), batch.action('weight') > 0
    for unit in (each_token, each_turn, each_row, each_episode):
        for mean in (False, True):
            want = torch.ones_like(gap)
            for k in unit(batch).unique():
                inside = (unit(batch) == k) & counts
                if inside.any(): want[unit(batch) == k] = (gap[inside].mean() if mean else gap[inside].sum()).exp()
            torch.testing.assert_close(importance_weights(batch, unit, mean), want)

def test_a_trained_run_does_not_depend_on_micro_batches(tmp_path):
    "Through the trainer's own plan: which tokens are dropped, and the mean of the weights, are the minibatch's."
    from small import train_small
    objective, rows = corrected(clip_cov, truncated, normalize=True, cap=3.), {}
    for budget in (4096, 4096, 64):
        seen = rows.setdefault(budget, [])
        train_small(tmp_path/f'{budget}-{len(seen)}', objective=objective, objective_args=dict(least=.01, share=.1),
            recompute_old=True, minibatches=2, budget=budget, on_row=lambda row: seen.append(row['loss']))
    (first, again), (parts,) = rows[4096], rows[64]
    assert first == again and parts == pytest.approx(first, rel=1e-4)
    plain = []
    train_small(tmp_path/'plain', recompute_old=True, minibatches=2, on_row=lambda row: plain.append(row['loss']))
    assert plain[0] != pytest.approx(first, rel=1e-3)

# The same loss and gradient as TRL's trainers.
try:
    from test_trl_parity import case, gradient, our_tensors, trl_loss
    from test_trl_parity import parts, rows, trainer, width  # noqa: F401 (fixtures)
except pytest.skip.Exception:
    @pytest.fixture
    def trainer(): pytest.skip('needs trl 1.16: pip install "trl>=1.16"')

pairs = [(dict(loss_type='grpo', importance_sampling_level='sequence', epsilon=e, epsilon_high=h),
    partial(gspo, low=e, high=h), 'row') for e, h in ((3e-4, 4e-4), (.1, .28), (.5, 1.))]
pairs += [(dict(loss_type='sapo'), sapo, 'row'),
    (dict(loss_type='sapo', sapo_temperature_pos=2., sapo_temperature_neg=3.),
    partial(sapo, tau_good=2., tau_bad=3.), 'row')]
pairs += [(dict(loss_type='cispo', epsilon_high=5.), cispo, 'token'),
    (dict(loss_type='cispo', epsilon_high=1.2), partial(cispo, high=.2), 'token')]

def equal(ours, theirs, c):
    "Loss and gradient are the same, and the comparison is not one of zeros."
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    slope = gradient(theirs, c)
    torch.testing.assert_close(gradient(ours, c), slope, rtol=1e-10, atol=1e-12)
    assert slope.count_nonzero() > 3

@pytest.mark.parametrize('trainer, objective, per', [pytest.param(*pair, id=str(pair[0])) for pair in pairs],
    indirect=['trainer'])
def test_loss_and_gradient_are_trls(trainer, objective, per):
    for seed in range(3):
        # GSPO: TRL differentiates the sequence ratio, see nbs/objective/02_sequence.ipynb
        for token_advantage in (False, True)[:1 if per == 'row' and 'gspo' in str(objective) else 2]:
            c = case(seed, token_advantage)
            logp, batch, advantage = our_tensors(c)
            ours, theirs = (loss_weights(batch, per)*objective(logp, batch, advantage)).sum(), trl_loss(trainer, c)
            equal(ours, theirs, c)

@pytest.mark.parametrize('trainer',
    [dict(loss_type='grpo', importance_sampling_level='sequence', epsilon=.1, epsilon_high=.28)],
    indirect=True)
def test_gspo_with_token_advantages_has_trls_loss_and_its_own_gradient(trainer):
    """The value is that of the sequence ratio; the gradient is the token's own, as in the paper's GSPO-token and in
    verl."""
    c = case(0, token_advantage=True)
    logp, batch, advantage = our_tensors(c)
    ours, theirs = ((loss_weights(batch, 'row')*gspo(logp, batch, advantage, low=.1, high=.28)).sum(),
        trl_loss(trainer, c))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(gradient(ours, c), gradient(theirs, c))

@pytest.mark.parametrize('bounds', [(.4, .4), (.1, .3)])
@pytest.mark.parametrize('trainer', [dict(loss_type='grpo')], indirect=True)
def test_gmpo_is_trls(trainer, bounds):
    from trl.experimental.gmpo import GMPOTrainer
    # it overrides _compute_loss alone
    trainer.__class__, (trainer.epsilon_low, trainer.epsilon_high) = GMPOTrainer, bounds
    for seed in range(3):
        c = case(seed)
        logp, batch, advantage = our_tensors(c)
        ours, theirs = ((loss_weights(batch, 'row')*gmpo(logp, batch, advantage, low=bounds[0], high=bounds[1])).sum(),
            trl_loss(trainer, c))
        equal(ours, theirs, c)

def trl_weights(c, mode, low, high):
    """TRL's `importance_sampling_ratio`, by the lines of its `_generate_and_score_completions` (which needs vLLM):
    the reference policy plays the sampler."""
    gap = (c['old'] - c['ref'])*c['mask']*c['tool']
    w = (gap.sum(-1, keepdim=True) if 'sequence' in mode else gap).exp()
    return w.clamp(min=low, max=high) if 'truncate' in mode else w.masked_fill((w < low) | (w > high), 0.)

rules = [('token_truncate', truncated, each_token), ('sequence_truncate', truncated, each_row),
    ('token_mask', icepop, each_token), ('sequence_mask', icepop, each_row)]

@pytest.mark.parametrize('mode, rule, unit', rules, ids=[mode for mode, *_ in rules])
@pytest.mark.parametrize('trainer', [dict(loss_type='dapo', epsilon_high=.28)], indirect=True)
def test_correction_is_trls(trainer, mode, rule, unit, monkeypatch):
    low, high = (None, 1.3) if rule is truncated else (.7, 1.4)
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    for seed in range(3):
        c = case(seed)
        logp, batch, advantage = our_tensors(c)
        batch = batch.with_action(sampler_logp=batch.action('ref_logp'))
        bounds = dict(cap=high) if rule is truncated else dict(low=low, high=high)
        ours = (loss_weights(batch, 'token')*corrected(clip, rule, unit=unit, **bounds)(
            logp, batch, advantage, high=.28)).sum()
        compute = type(trainer)._compute_loss
        monkeypatch.setattr(trainer, '_compute_loss', lambda model, inputs: compute(
            trainer, model, inputs | dict(importance_sampling_ratio=trl_weights(c, mode, low, high))))
        theirs = trl_loss(trainer, c)
        equal(ours, theirs, c)
