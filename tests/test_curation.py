"""Filters against loops written from the papers, on random batches; rollouts that play again; windows; runs that use
them and are resumed."""
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from agentlab.credit import grpo
from agentlab.env import Isolated, KeyDoor, TextEnv, check_env
from agentlab.env.wrappers import Wrapper
from agentlab.episodes import Batch
from agentlab.rollout import filters as cu, play
from agentlab.rollout.resampling import Repair, dynamic_sampling, refused, retry_failures, splice, with_rollback
from agentlab.rollout.turns import Timed, TurnLimit, UnaryFeedback, costs, scaling_inter, turn_percentile
from agentlab.rollout.windows import with_summaries
from small import Paying, same_batch, same_run, sent_whole, small_policy, train_small  # noqa: F401 (a fixture)

quick = settings(max_examples=60, deadline=None)
outcomes = st.lists(st.lists(st.sampled_from([0., 0., 1., 1., .5, -1.]), min_size=1, max_size=6), min_size=1,
    max_size=7)

def batch_of(groups, keys=None):
    "One turn of one token an episode; the group numbers are the places, or `keys`."
    keys = keys or range(len(groups))
    frame = pd.DataFrame([dict(group=k, outcome=x) for k, group in zip(keys, groups) for x in group])
    b = Batch.from_turns(frame.assign(episode=range(len(frame)), t=0))
    return b.with_episodes(number=torch.arange(len(b)), success=b.episodes.outcome > 0).with_action(
        entropy=torch.linspace(1, 2, len(b)))

def kept(filter, b):
    "Numbers of the groups (their places) that a filter leaves."
    try: return filter(b).episodes.number.tolist()
    except cu.CurationError: return []

def numbers(groups, chosen):
    "Numbers of the episodes of the chosen groups."
    owner = [g for g, group in enumerate(groups) for _ in group]
    return [i for i, g in enumerate(owner) if g in chosen]

def deviation(group):
    if len(group) < 2: return None
    mean = sum(group)/len(group)
    return (sum((x - mean)**2 for x in group)/(len(group) - 1))**.5

def best_first(scores):
    "Group numbers, the largest score first, equal ones as they came."
    return sorted((g for g, s in enumerate(scores) if s is not None), key=lambda g: -scores[g])

@given(groups=outcomes)
@quick
def test_keep_mixed(groups):
    chosen = [g for g, group in enumerate(groups) if len(group) == 1 or max(group) > min(group)]
    assert kept(cu.keep_mixed, batch_of(groups)) == numbers(groups, chosen)
    # halves and ones have no rounding
    assert kept(partial(cu.keep_mixed, faithful=True), batch_of(groups)) == numbers(groups, chosen)

@given(groups=outcomes, share=st.sampled_from([.1, .25, .5, .75, .99]))
@quick
def test_starpo_s(groups, share):
    scores = [deviation(g) for g in groups]
    for faithful in (True, False):
        count = max(int(share*len(groups)), 0 if faithful else 1)
        assert kept(partial(cu.starpo_s, share=share,
            faithful=faithful), batch_of(groups)) == numbers(groups, best_first(scores)[:count])

@given(groups=outcomes, p=st.sampled_from([.1, .5, .9, .99]))
@quick
def test_top_p(groups, p):
    scores = [deviation(g) for g in groups]
    total, chosen, held = sum(s for s in scores if s), [], 0.
    for g in best_first(scores):
        if scores[g] <= 0 or (chosen and held >= p*total - .01 - 1e-12): break
        chosen.append(g)
        held += scores[g]
    assert kept(partial(cu.keep_groups, choose=partial(cu.top_p, p=p)), batch_of(groups)) == numbers(groups, chosen)

def released_counts(positives, negatives, keep):
    "The counts as the release writes them, with Python's round."
    size = positives + negatives
    down, up = round(negatives*keep/size), round(positives*keep/size)
    if down <= min(2, negatives):
        down = min(2, negatives)
        up = keep - down
    if up <= min(2, positives):
        up = min(2, positives)
        down = keep - up
    return up, down

@given(positives=st.integers(0, 40), negatives=st.integers(0, 40), keep=st.integers(2, 32))
@example(positives=4, negatives=20, keep=15)
@settings(max_examples=400, deadline=None)
def test_roc_counts(positives, negatives, keep):
    if positives + negatives <= keep: return
    as_tensor = lambda x: torch.tensor(float(x), dtype=torch.float64)
    released = released_counts(positives, negatives, keep)
    assert tuple(map(int, cu.roc_counts(as_tensor(positives), as_tensor(negatives), keep, faithful=True))) == released
    up, down = map(int, cu.roc_counts(as_tensor(positives), as_tensor(negatives), keep))
    assert up + down == keep and 0 <= up <= positives and 0 <= down <= negatives
    # else the release may round both down, or both up
    if negatives*keep/(positives + negatives) % 1 != .5: assert (up, down) == released

@given(groups=st.lists(st.lists(st.tuples(st.sampled_from([1., 0., -1.]), st.integers(0, 3)), min_size=1, max_size=12),
    min_size=1, max_size=4), keep=st.integers(2, 6), seed=st.integers(0, 3))
@quick
def test_roc(groups, keep, seed):
    b = batch_of([[score for score, _ in group] for group in groups])
    dirt = torch.tensor([d for group in groups for _, d in group], dtype=torch.float64)
    penalty, start, chosen, legal = (lambda b: dirt[b.episodes.number]), 0, [], True
    for group in groups:
        ups = [i for i, (score, _) in enumerate(group) if score > 0]
        downs = [i for i, (score, _) in enumerate(group) if score <= 0]
        if len(group) == keep: chosen += [start + i for i in range(keep)]
        if len(group) > keep:
            up, down = released_counts(len(ups), len(downs), keep)
            legal &= up + down == keep
            chosen += [start + i for i in sorted(sorted(ups, key=lambda i: group[i][1])[:up] + downs[:down])]
        start += len(group)
    if legal: assert kept(partial(cu.roc, keep=keep, penalty=penalty, faithful=True), b) == chosen
    else:
        with pytest.raises(ValueError, match='both fractions end in .5'): cu.roc(b, keep, penalty, faithful=True)
    drawn = kept(partial(cu.roc, keep=keep, penalty=penalty, seed=seed), b)
    group = b.episodes.group.tolist()
    assert all(sum(group[i] == g for i in drawn) == (keep if len(x) >= keep else 0) for g, x in enumerate(groups))
    assert drawn == kept(partial(cu.roc, keep=keep, penalty=penalty, seed=seed), b)

@given(ids=st.lists(st.integers(0, 2), max_size=60), n=st.integers(1, 21),
    cuts=st.lists(st.integers(0, 59), max_size=2))
@settings(max_examples=150, deadline=None)
def test_repeats(ids, n, cuts):
    by = [sum(i >= c for c in cuts) for i in range(len(ids))]
    grams = [(by[i], *ids[i:i + n]) if i + n <= len(ids) and by[i] == by[i + n - 1] else None for i in range(len(ids))]
    assert (cu.repeats(torch.tensor(ids, dtype=torch.int64), torch.tensor(by, dtype=torch.int64), n).tolist()
        == [0 if g is None else grams.count(g) for g in grams])

FILTERS = dict(mixed=cu.keep_mixed, starpo=partial(cu.starpo_s, share=.5), p=cu.keep_groups,
    nucleus=partial(cu.keep_groups, choose=cu.nucleus), min_p=partial(cu.keep_groups, choose=cu.min_p),
    simpletir=cu.simpletir_reject, roc=partial(cu.roc, keep=3, penalty=lambda b: b.episodes.outcome.abs()),
    truncated=cu.mask_truncated, overlong=partial(cu.mask_overlong, longest=2),
    repeated=partial(cu.mask_repeated, n=1, times=2), certain=partial(cu.mask_certain, share=.6),
    multiple=partial(cu.keep_multiple, of=3), void=partial(cu.mask_void, column='frame_row'),
    entropy=partial(cu.keep_groups, choose=partial(cu.top_share, share=.5), score=cu.mean_entropy),
    length=partial(cu.keep_groups, choose=cu.min_p, score=cu.mean_length))

@pytest.mark.parametrize('name', FILTERS)
@given(groups=outcomes)
@settings(max_examples=25, deadline=None)
def test_every_filter(name, groups):
    """Nothing is changed in place; masks leave advantages alone; the names of groups do not matter; an empty result
    is a CurationError."""
    b, filter = batch_of(groups), FILTERS[name]
    before = {t: {c: x.clone() for c, x in vars(getattr(b, t)).items()}
        for t in ('episodes', 'rows', 'turns', 'tokens')}
    renamed = batch_of(groups, [100 - 7*g for g in range(len(groups))])
    try: after = filter(b)
    except cu.CurationError as why:
        assert 'left none of' in str(why)
        with pytest.raises(cu.CurationError): filter(renamed)
        return
    for t, columns in before.items():
        for c, x in columns.items(): assert torch.equal(getattr(b, t)[c].nan_to_num(), x.nan_to_num())
    other = filter(renamed)
    assert torch.equal(after.episodes.number,
        other.episodes.number) and torch.equal(after.action('weight'), other.action('weight'))
    marks = getattr(filter, 'func', filter)
    if marks.does == 'mask':
        assert len(after) == len(b) and torch.equal(grpo(after), grpo(b)) and (after.action('weight') > 0).any()
    else: assert len(after) and (after.action('weight') == 1).all()

def test_masks_add_up():
    b = batch_of([[1., 0., 1., 0.]])
    # all but the first; the first two
    first, second = partial(cu.mask_void, column='frame_row'), partial(cu.mask_certain, share=.5)
    assert first(b).action('weight').tolist() == [1, 0, 0, 0] and second(b).action('weight').tolist() == [0, 0, 1, 1]
    for order in ((first, second), (second, first)):
        with pytest.raises(cu.CurationError): cu.chain(*order)(b)

def test_chain_says_the_same_everywhere():
    one = cu.chain(cu.keep_mixed, partial(cu.keep_groups, choose=partial(cu.top_p, p=.8)))
    assert (repr(one) == 'chain(agentlab.rollout.filters:keep_mixed, '
        'agentlab.rollout.filters:keep_groups(choose=agentlab.rollout.filters:top_p(p=0.8)))')
    assert isinstance(cu.CurationError('x'), ValueError)

def test_a_run_with_filters_is_resumed_bit_for_bit(tmp_path):
    fields = dict(steps=4, groups=3, group_size=4, schedule=partial(scaling_inter, turns=(2, 3), every=2),
        checkpoint_every=1,
        curate=cu.chain(cu.keep_mixed, partial(cu.roc, keep=3, penalty=cu.outcome_std),
        partial(cu.keep_multiple, of=2)))
    whole = train_small(tmp_path/'whole', **fields)
    rows = []
    train_small(tmp_path/'cut', **fields, on_row=rows.append, should_stop=lambda: len(rows) == 2)
    assert len(rows) == 2
    same_run(whole, train_small(tmp_path/'cut', **fields, resume=True))
    assert any(row['loss'] is not None for row in whole.rows())

# ---- playing again

def facts(episodes):
    return [(e.group, e.game, e.outcome, e.columns.get('round'), [t.ids for t in e.turns]) for e in episodes]

def test_dynamic_sampling_is_seeded_and_numbers_are_unique():
    house, policy = Paying(), small_policy()
    how = dict(group_size=2, groups=[7, 3, 5], max_tokens=3, seed=4,
        keep=partial(cu.keep_groups, choose=lambda scores: scores > .5))
    one, two = (dynamic_sampling(policy, house, [0, 1, 2], **how) for _ in range(2))
    assert facts(one) == facts(two)
    assert [e.group for e in one] == [7, 7, 3, 3, 5, 5] and len({e.game for e in one}) == 6
    assert {e.columns['round'] for e in one} != {0.}
    # what a group plays does not depend on the others
    alone = dynamic_sampling(policy, house, [1], **how | dict(groups=[3]))
    assert facts(alone) == facts(one[2:4])
    accepted = Batch.from_episodes([e for e in one if e.columns['accepted']])
    assert (cu.outcome_std(accepted) > .5).all()

def test_a_group_is_tried_again_from_its_own_seed():
    class Never(Paying):
        seen = []
        def start(self, seed, task=None):
            self.seen.append(seed)
            return super().start(seed, task)
    episodes = retry_failures(small_policy(), Never(), [10, 11], 2, attempts=3, max_tokens=2, max_turns=1)
    assert Never.seen == [10, 10, 11, 11]*3 and all(e.columns == dict(round=2., accepted=0.) for e in episodes)

class Stumble(Paying):
    "Refuses what has an even number of letters; raises at the second attempt where it is told to."
    raises = False
    def turn(self, action):
        observation, reward, done, info = super().turn(action)
        if self.raises and not info.get('invalid'): raise RuntimeError('out of order')
        return observation, reward, done, info | dict(invalid=len(action) % 2 == 0)

# each game and each fork of an isolated one is a process
@pytest.mark.parametrize('around, tasks', [(lambda env: env, 4), (Isolated, 1)], ids=['here', 'isolated'])
def test_rollback_keeps_the_context_clean(around, tasks, sent_whole):
    policy = small_policy()
    b = Batch.from_episodes(with_rollback(policy, around(Stumble()), range(tasks), 2, max_tokens=3, seed=1))
    assert not b.labels.get('error')
    now, spliced = policy.logprobs(b)[0], b.spread(b.turns.spliced) > 0
    gap = (now - b.action('sampler_logp')).abs()
    assert gap[~spliced].max() < 1e-5 < gap[spliced].max()
    last = torch.cat([b.turns.episode[1:] != b.turns.episode[:-1], torch.tensor([True])])
    # what stayed failed four times, or its game was over with it
    assert b.turns.invalid.any() and not b.turns.invalid[(b.turns.retries < 3) & ~last].any()
    assert (b.turns.retries <= 3).all() and torch.equal(b.turns.spliced > 0, b.turns.retries > 0)
    returns = torch.zeros(len(b), dtype=torch.float64).index_add(0, b.turns.episode, b.turns.reward)
    assert torch.allclose(returns, b.episodes.outcome)  # what a failure was paid is taken back, too

def test_rollback_without_failures_is_play():
    policy, house = small_policy(), Paying()
    one = with_rollback(policy, house, range(3), 2, max_tokens=3, seed=2, repair=Repair(failed=lambda step: False))
    assert [[(t.context_ids, t.ids, t.reward)
        for t in e.turns] for e in one] == [[(t.context_ids, t.ids, t.reward) for t in e.turns]
        for e in play(policy, house, range(3), 2, max_tokens=3, seed=2)]

def test_an_environment_that_raises_ends_its_own_game():
    class Bad(Stumble):
        raises = True
    episodes = with_rollback(small_policy(), Bad(), range(3), max_tokens=3)
    assert all(e.error is None or 'out of order' in e.error for e in episodes)

@given(i=st.integers(0, 4), j=st.integers(0, 4), similar=st.sampled_from([0., .5, 1.1]))
@quick
def test_splice(i, j, similar):
    old, new = (SimpleNamespace(ids=list(range(k, k + 5)), logprobs=[float(k)]*5, entropies=[0.]*5, finish='stop')
        for k in (0, 10))
    made = splice(old, new, lambda ids: 'x'*len(ids),
        Repair(call_at=lambda ids: i if ids is old.ids else j, similar=similar))
    alike = 2*min(5 - i, 5 - j)/(10 - i - j)
    assert made.ids == (old.ids[:i] + new.ids[j:] if alike >= similar
        else new.ids) and len(made.ids) == len(made.logprobs) == len(made.entropies)

# ---- turns and windows

@given(turns=st.lists(st.integers(1, 30), min_size=1, max_size=5), every=st.integers(1, 9),
    resumed=st.none() | st.integers(0, 30), ahead=st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_scaling_inter(turns, every, resumed, ahead):
    stage, counter = (0, 1) if resumed is None else (min(resumed//every, len(turns) - 1), resumed)
    for _ in range(ahead):
        if counter % every == 0: stage = min(stage + 1, len(turns) - 1)
        counter += 1
    assert scaling_inter((resumed or 0) + ahead, tuple(turns), every, resumed,
        faithful=True)['max_turns'] == turns[stage]

def test_wrappers_obey_the_protocol():
    for env in (TurnLimit(KeyDoor(), 3), TurnLimit(KeyDoor(), 2, 4, says=''), Timed(TurnLimit(KeyDoor(), 5)),
                UnaryFeedback(KeyDoor(), attempts=3)):
        check_env(env)
    assert costs(Batch.from_episodes(play(small_policy(), Timed(Paying()), [0, 1], max_tokens=2)),
        'seconds').loc['seconds', 'total'] > 0

def test_an_inner_game_that_ends_is_begun_again():
    "UnaryFeedback around a house whose clock runs out: five attempts count, not three turns."
    env = UnaryFeedback(KeyDoor(horizon=4))
    step = env.reset(0)
    seen = 0
    while not step.done:
        step = env.step(step.info['legal'][0])
        seen += 1
    assert seen == 5 and step.reward['player'] < 0 and step.observation == env.says

def test_limits_are_part_of_what_a_run_is():
    from agentlab.train.trainer import env_facts
    assert env_facts(TurnLimit(KeyDoor(), 3)) != env_facts(TurnLimit(KeyDoor(), 4))
    assert isinstance(TurnLimit(KeyDoor(), 3), Wrapper)

@pytest.mark.parametrize('window', [0, 40, 70, 10**6])
def test_windows_are_trained_as_they_were_read(window):
    policy, house = small_policy(), KeyDoor()
    b = Batch.from_episodes(with_summaries(policy, house, range(3), 2, window=window, summary_tokens=4,
        instruction='Key.', summaries=50, max_tokens=3, seed=window))
    logp, entropy = policy.logprobs(b)
    assert torch.allclose(logp, b.action('sampler_logp'), atol=1e-5,
        rtol=1e-5) and torch.allclose(entropy, b.action('entropy'), atol=1e-4)
    assert len(b.rows) == len(b) + int(b.turns.summary.sum())
    assert (b.turns.reward[b.turns.summary > 0] == 0).all()
    wide = torch.bincount(b.tokens.row).max()
    if window == 10**6:
        same_batch(b.replace(turns=b.turns), Batch.from_episodes(
            _with_summary_column(play(policy, house, range(3), 2, max_tokens=3, seed=window))))
    else: assert wide < window + 80 and b.turns.summary.sum() > 6

def _with_summary_column(episodes):
    for e in episodes:
        for t in e.turns: t.columns['summary'] = 0.
    return episodes

def test_every_row_of_a_rollout_has_its_advantage():
    policy = small_policy(Paying())
    b = Batch.from_episodes(with_summaries(policy, Paying(), range(2), 3, window=30, summary_tokens=4,
        instruction='Key.', max_tokens=3))
    advantage, episode = grpo(b), b.rows.episode[b.tokens.row[b.actions]]
    assert len(b.rows) > len(b) and all(len(advantage[episode == i].unique()) == 1 for i in range(len(b)))
    assert advantage[b.spread(b.turns.summary) > 0].abs().sum() > 0

def test_percentile_and_refused():
    b = Batch.from_turns(pd.DataFrame([dict(group=0, episode=i, t=t) for i, n in enumerate((10, 20, 30, 40))
        for t in range(n)]))
    assert turn_percentile(b) == 32.5 and turn_percentile(b, 0) == 10
    assert not refused(SimpleNamespace(info={}))
    assert issubclass(UnaryFeedback, Wrapper) and TextEnv is not None
