"""Success replay and self-imitation against loops written from their rules, on random batches; their state comes
back bit for bit."""
import math
import random as rnd
import statistics
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import grpo
from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Table, derive, state_key
from agentlab.policy import tiny_policy
from agentlab.replay.self_imitation import (SelfImitation, acted, as_many, group_levels, middle, power_of_two,
    recalibrated, warm_up, worth_keeping)
from agentlab.replay.success import (SuccessReplay, by_prompt, by_start, draw_same, everything, failed, first_of,
    success_pool, swap_in)
from agentlab.rollout import play
from agentlab.train import recipes
from small import Paying, same_batch, small_policy

quick = settings(max_examples=25, deadline=None)
scores = st.sampled_from([0., 0., 0., 1., .15, .1, -1., math.nan])
outcomes = st.lists(st.lists(scores, min_size=1, max_size=5), min_size=1, max_size=6)

def batch_of(groups, step=0, keys=None, task=None):
    "One to three turns of two tokens an episode; group g starts in the state task[g], its place by default."
    keys, task = keys or range(len(groups)), task or range(len(groups))
    rows = [dict(group=k, episode=f'{g} {i}', t=t, outcome=x, state=task[g] if t == 0 else f'on {t}', n_tokens=2,
        step=step)
        for (g, group), k in zip(enumerate(groups), keys) for i, x in enumerate(group)
        for t in range(1 + (g + i) % 3)]
    b = Batch.from_turns(pd.DataFrame(rows))
    id = torch.arange(len(b.tokens)) + 1000*step
    return b.with_tokens(id=id, old_logp=-id.float()/1000).with_episodes(number=torch.arange(len(b)))

def spread(values): return statistics.pstdev(values) if values else None
def seen(group): return [x for x in group if not math.isnan(x)]
def lost(group): return bool(seen(group)) and spread(seen(group)) < .05 and statistics.fmean(seen(group)) < .2

@given(groups=outcomes)
@quick
def test_failed_and_first(groups):
    b = batch_of(groups)
    found, place, firsts = failed(b).tolist(), 0, []
    for group in groups:
        assert found[place:place + len(group)] == [lost(group)]*len(group)
        if lost(group): firsts.append(place)
        place += len(group)
    assert first_of(b, failed(b)).tolist() == firsts

@given(groups=outcomes, seed=st.integers(0, 999))
@quick
def test_swap_in_changes_what_was_named_and_nothing_else(groups, seed):
    b, past = batch_of(groups), batch_of([[1.]*6], step=7)
    where = sorted(rnd.Random(seed).sample(range(len(b)), rnd.Random(seed).randint(0, min(len(b), 6))))
    joined = swap_in(b, past.select(range(len(where))), where)
    assert len(joined) == len(b)
    stay = [i for i in range(len(b)) if i not in where]
    same_batch(joined.select(range(len(stay))), b.select(stay), labels=False)
    new = joined.select(range(len(stay), len(b)))
    assert (new.episodes.group.tolist() == b.episodes.group[where].tolist()
        and new.episodes.game.tolist() == b.episodes.game[where].tolist())
    assert new.action('old_logp').tolist() == past.select(range(len(where))).action('old_logp').tolist()
    assert (new.turns.origin == torch.arange(len(new.turns))).all()
    assert joined.episodes.group.bincount().tolist() == b.episodes.group.bincount().tolist()

@given(steps=st.lists(outcomes, min_size=1, max_size=4), per_task=st.integers(1, 3), shuffle=st.booleans())
@quick
def test_success_replay_is_the_rule(steps, per_task, shuffle):
    """Against a dictionary of lists; the drawn success is one of the newest `per_task` of its task, and everything
    else is the rule's."""
    replay, memory = SuccessReplay(None, 3, per_task=per_task), {}
    for step, groups in enumerate(steps):
        b = batch_of(groups, step, keys=[50*step + (7*g if shuffle else g) for g in range(len(groups))],
            task=[f'task {g % 4}' for g in range(len(groups))])
        joined, place = replay.join(b, step), 0
        replayed = dict(zip(joined.episodes.group.tolist(), joined.action('old_logp').tolist())) and {
            g: joined.select((joined.episodes.group == g) & (joined.episodes.source == state_key('replay')))
            for g in joined.episodes.group.unique().tolist()}
        swapped = 0
        for g, group in enumerate(groups):
            key, number = f'task {g % 4}', 50*step + (7*g if shuffle else g)
            back = replayed[number]
            assert len(back) == (lost(group) and key in memory)
            if len(back):
                swapped += 1
                assert back.tokens.id.tolist() in memory[key][-per_task:]
                assert back.tokens.old_logp.tolist() == (-back.tokens.id.float()/1000).tolist()
        for g, group in enumerate(groups):
            for x in group:
                if x > .1: memory.setdefault(f'task {g % 4}', []).append(b.select([place]).tokens.id.tolist())
                place += 1
        assert replay.keep(joined, None, step) == dict(failed=sum(map(lost, groups)), swapped=swapped,
            stored=sum(map(len, memory.values())))
        assert (len(joined) == len(b) and set(joined.tokens.columns) == set(b.tokens.columns)
            and set(joined.episodes.columns) == set(b.episodes.columns))

def test_the_recipe_gives_back_successes_of_the_same_task():
    """Tasks come round; whoever stands in a failed group began where the others began. With the next seeds of a run
    they never would."""
    env, recipe = KeyDoor(), recipes.success_replay()
    policy = tiny_policy(env, progress=False)
    replay, swapped, begun = recipe.replay(policy, 0), 0, set()
    for step in range(9):
        episodes = recipe.rollout(policy, env, [derive('test', step, i) for i in range(8)], 2,
            groups=[8*step + i for i in range(8)], max_tokens=8, seed=step, step=step)
        batch = Batch.from_episodes(episodes)
        joined = replay.join(batch.with_action(old_logp=batch.action('sampler_logp')), step)
        swapped += replay.row['swapped']
        begun |= set(by_start(batch).tolist())
        for group in joined.episodes.group.unique():
            assert len(by_start(joined.select(joined.episodes.group == group)).unique()) == 1
    assert swapped > 3 and 25 < len(begun) <= 32  # two tasks may be the same house

def test_hand_check_of_success_replay():
    replay = SuccessReplay(None, 0)
    replay.join(batch_of([[1.]], task=['x']), 0)
    joined = replay.join(batch_of([[0.]*4], step=1, task=['x']), 1)
    assert sorted(round(a, 4) for a in set(grpo(joined).tolist())) == [-.5, 1.5]
    assert grpo(batch_of([[0.]*4])).abs().sum() == 0

def test_nothing_stored_nothing_changes():
    replay, b = SuccessReplay(None, 0), batch_of([[0., 0.], [math.nan, math.nan], [0.]])
    assert replay.join(b, 0) is b and replay.join(b, 1) is b and replay.row == dict(failed=2, swapped=0)

def test_a_success_is_not_given_out_in_its_own_step_nor_stored_twice():
    b, replay = batch_of([[0., 0.], [1., 0.]], task=['x', 'x']), SuccessReplay(None, 0)
    assert replay.join(b, 0) is b
    for step in range(1, 4):
        assert replay.join(b, step).episodes.source.tolist().count(state_key('replay')) == 1
        assert len(replay.buffer) == step + 1

def test_stale_and_seat():
    young, b = SuccessReplay(None, 0, stale=1), batch_of([[1., 0.]], task=['x'])
    young.join(b, 0)
    none = batch_of([[0., 0.]], step=3, task=['x'])
    assert young.join(none, 3) is none
    other = SuccessReplay(None, 0)
    other.join(b, 0)
    turned = none.with_episodes(seat=torch.full((2,), state_key('other')))
    assert other.join(turned, 1) is turned

def test_draws_depend_on_seed_and_step_alone():
    one, two, other = SuccessReplay(None, 1), SuccessReplay(None, 1), SuccessReplay(None, 2)
    differ = 0
    for step in range(12):
        b = batch_of([[0., 0.]]*4 + [[1., 1.]], step, task=['x']*5)
        ids = [r.join(b if r is not two else b.with_episodes(group=9 - b.episodes.group), step).tokens.id.tolist()
            for r in (one, two, other)]
        torch.rand(3)  # the global generator has no say
        assert ids[0] == ids[1]
        differ += ids[0] != ids[2]
    assert differ > 6

def test_by_prompt_is_what_was_read_before_the_first_action():
    env = Paying()
    b = Batch.from_episodes(play(small_policy(env), env, range(5), group_size=2, max_tokens=3))
    prompts = []
    for e in range(len(b)):
        one = b.select([e])
        prompts.append(tuple(one.tokens.id[:int(one.actions[0])].tolist()))
    keys = by_prompt(b).tolist()
    assert all((keys[i] == keys[j]) == (prompts[i] == prompts[j]) for i in range(len(b)) for j in range(len(b)))
    assert len(set(keys)) > 1 and by_prompt(b.select([3, 4])).tolist() == keys[3:5]
    assert by_start(b).tolist()[::2] == by_start(b).tolist()[1::2] and everything(b).tolist() == [0]*10

@pytest.mark.parametrize('faithful', (False, True))
def test_faithful_recomputes_what_is_replayed(faithful):
    "Behaviour log-probabilities by default, those of the policy as it is with `faithful`; fresh tokens keep theirs."
    env, policy = Paying(), small_policy()
    b = Batch.from_episodes(play(policy, env, [3], group_size=2, max_tokens=3))
    b = b.with_action(old_logp=b.action('sampler_logp') - 1.).with_episodes(outcome=torch.tensor([1., 0.]).double())
    replay = SuccessReplay(policy, 0, faithful=faithful)
    replay.join(b, 0)
    joined = replay.join(b.with_episodes(outcome=torch.zeros(2).double()), 1)
    back, rest = (joined.select(joined.episodes.source == state_key(s)) for s in ('replay', 'policy'))
    expected = policy.logprobs(back)[0] if faithful else b.select([0]).action('old_logp')
    assert torch.allclose(back.action('old_logp').double(), expected.double(), atol=1e-5)
    assert torch.equal(rest.action('old_logp'), b.select([1]).action('old_logp'))

@given(have=st.lists(st.integers(-3, 3), max_size=8), want=st.lists(st.integers(-4, 4), max_size=8),
    seed=st.integers(0, 99))
@quick
def test_draw_same(have, want, seed):
    found = draw_same(torch.tensor(have, dtype=torch.int64), torch.tensor(want, dtype=torch.int64),
        torch.Generator().manual_seed(seed)).tolist()
    assert all((have[i] == w) if i >= 0 else w not in have for i, w in zip(found, want)) and len(found) == len(want)

# ---- DART's pool

def pool_by_hand(rows, size, versions):
    "{task: (rows that are certain, rows of which the rest is drawn)}."
    newest, chosen = sorted({step for _, step, _, _ in rows})[-versions:], {}
    for task in {r[0] for r in rows}:
        candidates = [i for i, (k, step, x, used) in enumerate(rows) if k == task and step in newest and not used
            and not math.isnan(x) and x != -1]
        if len(candidates) < size: continue
        mean = statistics.fmean(rows[i][2] for i in candidates)
        if mean >= 1: continue
        if mean == 0:
            wins = [i for i, (k, _, x, _) in enumerate(rows) if k == task and x > 0]
            if not wins: continue
            candidates = [wins[-1]] + candidates[1:]
        chosen[task] = candidates
    return chosen

@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([0., 0., 1., -1., math.nan]),
    st.booleans()), max_size=40), size=st.integers(2, 4), seed=st.integers(0, 99))
@quick
def test_success_pool(rows, size, seed):
    rows = sorted(rows, key=lambda r: r[1])
    facts = Table(task=torch.tensor([r[0] for r in rows], dtype=torch.int64),
        step=torch.tensor([r[1] for r in rows], dtype=torch.int64),
        outcome=torch.tensor([r[2] for r in rows], dtype=torch.float64),
        used=torch.tensor([r[3] for r in rows], dtype=torch.bool))
    found, expected = (success_pool(facts, torch.Generator().manual_seed(seed), size).tolist(),
        pool_by_hand(rows, size, 2))
    for task, candidates in expected.items():
        mine = [i for i in found if rows[i][0] == task]
        assert len(mine) == len(set(mine)) == size and set(mine) <= set(candidates)
        for won in (True, False):
            if any((rows[i][2] > 0) == won for i in candidates): assert any((rows[i][2] > 0) == won for i in mine)
    assert {rows[i][0] for i in found} == set(expected)

# ---- self-imitation

def median_by_hand(values):
    values = [x for x in values if not math.isnan(x)]
    return statistics.median(values) if values else math.nan

@given(groups=outcomes, base=st.lists(scores, max_size=9))
@quick
def test_levels_and_recalibration(groups, base):
    b = batch_of(groups)
    levels = group_levels(b)
    for g, group in enumerate(groups):
        xs = seen(group)
        assert (math.isnan(levels.mean[g]) if not xs
            else levels.mean[g].item() == pytest.approx(statistics.fmean(xs), abs=1e-12))
        assert (math.isnan(levels.std[g]) if len(xs) < 2
            else levels.std[g].item() == pytest.approx(statistics.stdev(xs), abs=1e-12))
    means = torch.tensor(base, dtype=torch.float64)
    middle_ = median_by_hand(base)
    assert middle(means) == pytest.approx(middle_, nan_ok=True)
    expected = (b.episodes.outcome - middle_).nan_to_num()[b.turns.episode][b.action_turn]
    assert torch.allclose(recalibrated(b, means), expected)

def test_hand_checks_of_spear():
    means = torch.tensor([.25, .5, .75])
    b = batch_of([[1., .5]])
    assert middle(means) == .5 and recalibrated(b, means).unique().tolist() == [0., .5]
    assert warm_up(150, rise=300) == pytest.approx(.5) and warm_up(300, rise=300) == 1 and warm_up(0) == 0
    assert [power_of_two(n, 2048) for n in (0, 1, 2, 3, 5000)] == [0, 0, 2, 2, 2048]

@given(groups=outcomes, seed=st.integers(0, 99), zero=st.booleans())
@quick
def test_worth_keeping(groups, seed, zero):
    b = batch_of(groups)
    random = torch.Generator().manual_seed(seed)
    advantage = torch.randn(len(b.actions), generator=random)
    b = b.with_turns(invalid=torch.rand(len(b.turns), generator=random) < .6)
    for e, kept in enumerate(worth_keeping(b, advantage, or_zero=zero).tolist()):
        mine = (b.turns.episode[b.action_turn] == e)
        assert kept == (advantage[mine].double().mean().item() > 0
            and bool((~b.turns.invalid[b.turns.episode == e]).any()))
    assert worth_keeping(b, torch.zeros(len(b.actions)), lambda b: torch.ones(len(b.turns)),
        zero).tolist() == [zero]*len(b)
    assert acted(b).tolist() == (~b.turns.invalid).tolist()

wins = st.lists(st.lists(st.sampled_from([0., 0., 1., .4]), min_size=1, max_size=5), min_size=1, max_size=5)

@given(steps=st.lists(wins, min_size=1, max_size=6), size=st.integers(1, 4), trigger=st.sampled_from([0., .5, 1.5]),
    tolerate=st.integers(0, 3), faithful=st.booleans(), many=st.booleans())
@quick
def test_self_imitation_is_the_rule(steps, size, trigger, tolerate, faithful, many):
    "Against lists: what is stored, when an update comes, of how many, with which advantage, and what is forgotten."
    subset = as_many if many else power_of_two
    sil = SelfImitation(None, 5, size=size, trigger=trigger, tolerate=tolerate, subset=subset,
        weight=partial(warm_up, rise=0), faithful=faithful)
    stored, means = [], []  # (step, ids, outcome)
    for step, groups in enumerate(steps):
        b = batch_of(groups, step)
        advantage = grpo(b, scale=None)
        if not faithful: stored = [s for s in stored if s[0] >= stored[-1][0] - tolerate]
        above = [s for s in stored if s[2] - median_by_hand(means) > 1e-9]
        expected = subset(len(above), size) if len(above) > trigger*size else None
        found = sil.updates(b, advantage, step)
        assert len(found) == bool(expected)
        for past, fresh, fields in found:
            assert len(past) == expected and fields == dict(kl_coef=0.)
            ids = [past.select([i]).tokens.id.tolist() for i in range(len(past))]
            assert all(x in [s[1] for s in above] for x in ids) and len(set(map(tuple, ids))) == len(ids)
            assert torch.allclose(fresh.double(),
                (past.episodes.outcome - median_by_hand(means))[past.turns.episode][past.action_turn])
            assert torch.equal(past.action('old_logp'), -past.action('id').float()/1000)
        if expected or (expected == 0 and faithful): stored = []
        row = sil.keep(b, advantage, step)
        assert row['sil_above'] == len(above) and row['sil_trained'] == (expected or 0)
        means += [statistics.fmean(g) for g in groups]
        if faithful: stored = [s for s in stored if s[0] >= stored[-1][0] - tolerate]  # before the new ones come in
        good = worth_keeping(b, advantage).tolist()
        stored += [(step, b.select([e]).tokens.id.tolist(), b.episodes.outcome[e].item()) for e in range(len(b))
            if good[e]]

def test_released_quirks_and_ours():
    b = batch_of([[1., 0., 0., 0.]])
    for faithful, stored in ((False, 2), (True, 1)):  # a power of two of one is nothing; the release forgets it
        sil = SelfImitation(None, 0, size=4, trigger=0., weight=partial(warm_up, rise=0), faithful=faithful)
        sil.keep(b, grpo(b), 0)
        assert sil.updates(b, grpo(b), 1) == [] and sil.keep(b, grpo(b), 1)['stored'] == stored
    assert (SelfImitation(None, 0, tolerate=30, faithful=True).tolerate == 10
        and SelfImitation(None, 0, tolerate=30).tolerate == 30)

@pytest.mark.parametrize('tolerate', (0, 1, 3))
def test_the_release_forgets_before_it_adds(tolerate):
    "A win in each of six steps, then two steps without one: the steps whose episodes an update may use."
    for faithful in (False, True):
        sil, kept = SelfImitation(None, 0, tolerate=tolerate, faithful=faithful), []
        for step in range(8):
            b = batch_of([[float(step < 6), 0., 0., 0.]], step)
            if faithful: kept = [s for s in kept if s >= kept[-1] - tolerate]
            kept += [step]*(step < 6)
            if not faithful: kept = [s for s in kept if s >= kept[-1] - tolerate]
            sil.keep(b, grpo(b), step)
            assert sil.buffer.facts.added[sil.stored()[0]].tolist() == kept
            if step == 5: assert len(kept) == tolerate + 1 + faithful

def test_baseline_bound_lets_whole_steps_go_before_it_adds():
    sil, kept = SelfImitation(None, 0, baselines=5), []
    for step, n in enumerate((3, 1, 4, 2, 7, 1, 1)):
        while sum(n for _, n in kept) > 5: kept.pop(0)
        kept.append((step, n))
        sil.remember(Table(mean=torch.zeros(n).double(), std=torch.zeros(n).double()), step)
        assert sil.baseline.step.tolist() == [s for s, n in kept for _ in range(n)]

@pytest.mark.parametrize('folder', (False, True))
@pytest.mark.parametrize('make', (SuccessReplay, partial(SelfImitation, size=4, weight=partial(warm_up, rise=0)),
    partial(SelfImitation, size=5, trigger=1., tolerate=1,
    weight=partial(warm_up, rise=0), faithful=True)))
def test_resume_is_bit_for_bit(make, folder, tmp_path):
    whole, resumed, wins = make(None, 4), make(None, 4), 0
    if folder: whole.open(tmp_path, True)
    def go(replay, step):
        b = batch_of([[0., 0.], [1., 0., 0.], [0.], [0., 1.]], step, task=['x', 'x', 'y', 'y'])
        joined = replay.join(b, step)
        updates = replay.updates(joined, grpo(joined), step)
        return joined, updates, replay.keep(joined, grpo(joined), step)
    for step in range(4): go(whole, step)
    tensors = {name: x.clone() for name, x in whole.tensors().items()}
    if folder: resumed.open(tmp_path, False)
    resumed.restore(tensors)
    for step in range(4, 9):
        one, two = go(whole, step), go(resumed, step)
        same_batch(one[0], two[0])
        assert one[2] == two[2] and len(one[1]) == len(two[1])
        for x, y in zip(one[1], two[1]):
            same_batch(x[0], y[0])
            assert torch.equal(x[1], y[1]) and x[2] == y[2]
        wins += len(one[1]) + one[2].get('swapped', 0)
    assert wins
