"Every group operation against a slow reference made of a dictionary and a loop."
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab import groups
from agentlab.groups import (compare, group_constant, group_count, group_max, group_mean, group_min, group_std,
    group_sum,
    leave_one_out, rank, recur, same, shift)

quick = settings(max_examples=60, deadline=None)
key = st.sampled_from([-2**63, -7, 0, 1, 2, 10**6, 2**62])  # gaps, ties, both ends of int64
score = st.one_of(st.integers(-40, 40).map(lambda i: i/8), st.just(math.nan))
rows = st.lists(st.tuples(score, key, key), max_size=24)
decays = st.sampled_from([0., .5, .95, 1., -1., 2.])

def columns(table, *kinds):
    "The columns of a list of tuples as tensors."
    parts = zip(*table) if table else [()]*len(kinds)
    return [torch.tensor(part, dtype=kind) for part, kind in zip(parts, kinds)]

def near(got, want, tolerance=1e-9):
    "Equal length, NaN in the same places, and everything else within `tolerance`."
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=torch.float64), rtol=tolerance, atol=tolerance,
        equal_nan=True)

def members(by):
    "key -> indices, in the given order"
    found = defaultdict(list)
    for i, k in enumerate(by): found[k].append(i)
    return found

def votes(table, i, by_unit):
    "The scores that count in the group of row i."
    mine = [row for row in table if row[1] == table[i][1] and not math.isnan(row[0])]
    if not by_unit: return [row[0] for row in mine]
    units = defaultdict(list)
    for value, _, unit in mine: units[unit].append(value)
    return [sum(v)/len(v) for v in units.values()]

def deviation(v, ddof):
    if len(v) <= ddof: return math.nan
    mean = sum(v)/len(v)
    return math.sqrt(sum((s-mean)**2 for s in v)/(len(v)-ddof))

def level(v): return max(v)-min(v) <= 1e-9*max(abs(max(v)), abs(min(v))) if v else True

statistics = dict(
    count=(group_count, len), sum=(group_sum, sum), mean=(group_mean, lambda v: sum(v)/len(v) if v else math.nan),
    min=(group_min, lambda v: min(v, default=math.nan)), max=(group_max, lambda v: max(v, default=math.nan)),
    sample=(group_std, lambda v: deviation(v, 1)),
    population=(lambda *a, **k: group_std(*a, ddof=0, **k), lambda v: deviation(v, 0)))

@pytest.mark.parametrize('name', statistics)
@given(table=rows, by_unit=st.booleans())
@quick
def test_statistics(name, table, by_unit):
    x, by, unit = columns(table, torch.float64, torch.int64, torch.int64)
    fast, slow = statistics[name]
    near(fast(x, by, unit=unit if by_unit else None), [slow(votes(table, i, by_unit)) for i in range(len(table))],
        1e-7 if fast is group_std else 1e-9)

@given(table=rows, by_unit=st.booleans())
@quick
def test_constant(table, by_unit):
    x, by, unit = columns(table, torch.float64, torch.int64, torch.int64)
    assert group_constant(x, by, unit if by_unit else None).tolist() == [level(votes(table, i, by_unit))
        for i in range(len(table))]

def slow_compare(table, i, by_unit, scale, ddof, eps, singleton):
    value, v, elements = table[i][0], votes(table, i, by_unit), votes(table, i, False)
    if math.isnan(value): return 0.
    if len(v) == 1 and singleton == 'zero': return 0.
    if len(v) == 1: return value/(1+eps) if scale else value
    if level(v if scale else elements): return 0.
    result = value - sum(v)/len(v)
    return result/(deviation(v, ddof)+eps) if scale else result

@given(table=rows, by_unit=st.booleans(), scale=st.sampled_from(['std', None]), ddof=st.sampled_from([0, 1]),
    eps=st.sampled_from([0., 1e-6, 1e-4]), singleton=st.sampled_from(['raw', 'zero']))
@quick
def test_compare(table, by_unit, scale, ddof, eps, singleton):
    x, by, unit = columns(table, torch.float64, torch.int64, torch.int64)
    got = compare(x, by, scale, ddof, eps, singleton, unit if by_unit else None)
    near(got, [slow_compare(table, i, by_unit, scale, ddof, eps, singleton) for i in range(len(table))], 1e-6)

def slow_leave_one_out(table, i, by_unit, singleton):
    value, unit = table[i][0], table[i][2]
    if math.isnan(value): return 0.
    n = len(votes(table, i, by_unit))
    if n == 1: return value if singleton == 'raw' else 0.
    if level(votes(table, i, False)): return 0.
    own = (lambda j: table[j][2] == unit) if by_unit else (lambda j: j == i)
    others = [row for j, row in enumerate(table) if row[1] == table[i][1] and not own(j)]
    others = votes([(math.nan, table[i][1], unit)] + others, 0, by_unit)
    return value - sum(others)/len(others)

@given(table=rows, by_unit=st.booleans(), singleton=st.sampled_from(['raw', 'zero']))
@quick
def test_leave_one_out(table, by_unit, singleton):
    x, by, unit = columns(table, torch.float64, torch.int64, torch.int64)
    got = leave_one_out(x, by, singleton, unit if by_unit else None)
    near(got, [slow_leave_one_out(table, i, by_unit, singleton) for i in range(len(table))])

@given(table=rows)
@quick
def test_rank(table):
    x, by, _ = columns(table, torch.float64, torch.int64, torch.int64)
    near(rank(x, by), [math.nan if math.isnan(v) else sum(u < v for u, k, _ in table if k == mine)
        for v, mine, _ in table])

@given(table=rows, k=st.integers(-5, 30), fill=st.sampled_from([0., -1., math.nan]))
@quick
def test_shift(table, k, fill):
    x, by, _ = columns(table, torch.float64, torch.int64, torch.int64)
    want = [fill]*len(table)
    for places in members(by.tolist()).values():
        for n, i in enumerate(places):
            if 0 <= n-k < len(places): want[i] = table[places[n-k]][0]
    near(shift(x, by, k, fill), want)

def slow_recur(x, decay, by, reverse):
    y = [0.]*len(x)
    for places in members(by).values():
        carried = 0.
        for i in reversed(places) if reverse else places:
            add = 0. if math.isnan(x[i]) else x[i]
            y[i] = carried = add + decay[i]*carried if decay[i] and carried != 0 else add
    return y

@given(table=st.lists(st.tuples(st.one_of(score, st.sampled_from([math.inf, -math.inf])), key, decays), max_size=40),
    reverse=st.booleans(), ordered=st.booleans())
@quick
def test_recur(table, reverse, ordered):
    if ordered: table = sorted(table, key=lambda row: row[1]) # the path without a sort
    x, by, decay = columns(table, torch.float64, torch.int64, torch.float64)
    near(recur(x, decay, by, reverse), slow_recur(x.tolist(), decay.tolist(), by.tolist(), reverse))

@given(table=st.lists(st.tuples(score, key), max_size=40), decay=decays, reverse=st.booleans())
@quick
def test_recur_with_one_decay(table, decay, reverse):
    x, by = columns(table, torch.float64, torch.int64)
    near(recur(x, decay, by, reverse), slow_recur(x.tolist(), [decay]*len(table), by.tolist(), reverse))

@pytest.mark.parametrize('length', [1, 2, 3, 63, 64, 65, 5000])
def test_recur_over_long_groups(length):
    x = torch.rand(3*length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    by = torch.arange(3).repeat_interleave(length)
    near(recur(x, .99, by), slow_recur(x.tolist(), [.99]*len(x), by.tolist(), True))

def test_infinity_stays_in_its_group():
    x, by = torch.tensor([1., math.inf, 2., -math.inf, 3., 4.]), torch.tensor([0, 0, 1, 2, 3, 3])
    for decay in (.5, torch.full((6,), .5)):
        assert recur(x, decay, by).tolist() == [math.inf, math.inf, 2., -math.inf, 5., 4.]
        assert recur(x, decay, by, reverse=False).tolist() == [1., math.inf, 2., -math.inf, 3., 5.5]
    assert compare(x, by)[[2, 4, 5]].isfinite().all() and compare(x, by)[:2].isnan().any() # and it is not hidden

@given(table=st.lists(st.tuples(st.one_of(score, st.just(-0.)), key, st.booleans()), max_size=24))
@quick
def test_same(table):
    x, by, flag = columns(table, torch.float64, torch.int64, torch.bool)
    got = same(x, by, flag).tolist()
    names = [('nan' if math.isnan(v) else v, k, f) for v, k, f in table]
    assert all((a == b) == (m == n) for a, m in zip(got, names) for b, n in zip(got, names))
    assert sorted(set(got)) == list(range(len(set(names))))
    order = sorted(range(len(table)), key=lambda i: (math.isnan(table[i][0]), 0 if math.isnan(table[i][0])
        else table[i][0], *table[i][1:]))
    assert [got[i] for i in order] == sorted(got)

def test_same_knows_one_zero_and_one_nan():
    assert same([0., -0., math.nan, -math.nan, -1.]).tolist() == [1, 1, 2, 2, 0]

def test_rows_of_equal_units_may_differ():
    "Two episodes with one mean: nothing to divide by, so 0; without a division the rows still lie above or below it."
    x, unit = [1., 3., 2., 2.], [0, 0, 1, 1]
    assert compare(x, unit=unit).tolist() == [0]*4
    assert compare(x, unit=unit, scale=None).tolist() == [-1, 1, 0, 0]

order_free = [group_count, group_sum, group_mean, group_std, group_min, group_max, compare, leave_one_out, rank]

@pytest.mark.parametrize('operation', order_free)
@given(data=st.data(), table=rows)
@quick
def test_order_of_rows_does_not_matter(operation, data, table):
    x, by, _ = columns(table, torch.float64, torch.int64, torch.int64)
    order = torch.tensor(data.draw(st.permutations(range(len(table)))), dtype=torch.int64)
    near(operation(x[order], by[order]), operation(x, by)[order], 1e-6)

@pytest.mark.parametrize('operation',
    [*order_free, shift, lambda x, by: recur(x, .9, by), lambda x, by: group_mean(x, None, by)])
@given(data=st.data(), table=rows)
@quick
def test_names_of_keys_do_not_matter(operation, data, table):
    x, by, _ = columns(table, torch.float64, torch.int64, torch.int64)
    old = sorted(set(by.tolist()))
    new = data.draw(st.lists(st.integers(-2**63, 2**63-1), min_size=len(old), max_size=len(old), unique=True))
    renamed = torch.tensor([dict(zip(old, new))[k] for k in by.tolist()], dtype=torch.int64)
    near(operation(x, renamed), operation(x, by), 1e-6)

@given(value=st.sampled_from([.1, .3, .6, .7, .9, -.7, 1e-12, 1e12]), size=st.integers(2, 20),
    noise=st.lists(st.integers(-3, 3), min_size=20, max_size=20),
    by_unit=st.booleans(), scale=st.sampled_from(['std', None]))
@quick
def test_a_group_of_equal_scores_gets_exactly_zero(value, size, noise, by_unit, scale):
    x = torch.tensor([value*(1+n*2.**-52) for n in noise[:size]], dtype=torch.float64)
    by, unit = torch.zeros(size, dtype=torch.int64), torch.arange(size)//2 if by_unit else None
    if by_unit and size == 2: return # one unit is a group of one, not a group of equals
    for kind in (x, x.float()):
        assert compare(kind, by, scale=scale, unit=unit).tolist() == [0.]*size
        assert leave_one_out(kind, by, unit=unit).tolist() == [0.]*size
        assert group_constant(kind, by, unit).all()

@pytest.mark.parametrize('kind', [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.bool])
def test_statistics_are_float64_whatever_came_in(kind):
    x = torch.tensor([1, 0, 0, 1], dtype=kind)
    for operation in (compare, group_mean, group_min, leave_one_out, rank, lambda x: recur(x, 1.)):
        assert operation(x).dtype == torch.float64
    near(compare(x, scale=None), [.5, -.5, -.5, .5])
    assert group_min(x).tolist() == [0]*4 and shift(x).dtype == kind

@given(table=rows)
@quick
def test_device_without_float64(table):
    "The CPU plays such a device: results come back in float32 and are as good as float32 can hold."
    x, by, unit = columns(table, torch.float32, torch.int64, torch.int64)
    operations = [compare, leave_one_out, group_std, group_min, group_mean, rank,
        lambda x, by, unit=None: recur(x, .9, by)]
    want = [operation(x, by).float() for operation in operations] + [compare(x, by, unit=unit).float()]
    before = set(groups._no_float64)
    try:
        groups._no_float64.add('cpu')
        got = [operation(x, by) for operation in operations] + [compare(x, by, unit=unit)]
    finally:
        groups._no_float64.clear()
        groups._no_float64.update(before)
    for a, b in zip(got, want):
        assert a.dtype == torch.float32 and torch.equal(a.nan_to_num(-99), b.nan_to_num(-99))

def test_lists_are_read_in_float64():
    near(compare([.1, .2, .6], scale=None), [-.2, -.1, .3], 1e-15)
    near(recur([0, 0, 1.], .1), [.1**2, .1, 1], 1e-15)

@pytest.mark.parametrize('call, words', [
    (lambda: compare([1., 2.], scale='max'), "scale='max'"), (lambda: compare([1., 2.], singleton=0), 'singleton=0'),
    (lambda: compare([1., 2.], ddof=2), 'ddof=2'),
    (lambda: compare([1., 2.], [0, 0, 1]), 'by has shape (3,) but x has (2,)'),
    (lambda: compare([1., 2.], unit=[0]), 'unit has shape (1,)'), (lambda: compare([[1., 2.]]), 'one dimension'),
    (lambda: group_mean([1., 2.], [.5, 1.]), 'by must hold integer keys'),
    (lambda: recur([1., 2.], [.5]), 'decay has shape (1,)'),
    (lambda: shift(torch.tensor([1, 2]), fill=.5), 'fill=0.5'), (lambda: same(), 'no columns'),
    (lambda: same([1], [1, 2]), 'one length'),
    (lambda: leave_one_out([1.], singleton='x'), "singleton='x'")])
def test_errors_name_argument_and_value(call, words):
    with pytest.raises(ValueError) as error: call()
    assert words in str(error.value)

def test_inputs_are_not_changed():
    x, by, decay = (torch.tensor([1., math.nan, 3.], dtype=torch.float64), torch.tensor([1, 0, 1]),
        torch.tensor([.5, .5, .5], dtype=torch.float64))
    copies = x.clone(), by.clone(), decay.clone()
    for operation in order_free: operation(x, by)
    shift(x, by)
    recur(x, decay, by)
    recur(x, decay, by, reverse=False)
    assert (torch.equal(x.nan_to_num(-1), copies[0].nan_to_num(-1)) and torch.equal(by, copies[1])
        and torch.equal(decay, copies[2]))
