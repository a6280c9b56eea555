"""A sweep of runs: statistics by other routes, Ray with failing and dying workers, kills in the middle, and a page
that shows hostile names as text."""
import json, os, re, signal, sys, time
from functools import partial
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import small
from agentlab.bench import sweep as made
from agentlab.bench.intervals import band, bootstrap, difference, improvement, interval, iqm, mean, profile
from agentlab.bench.sweep import (bench, error_file, finished, in_turn, on_ray, plan, read_table, sweep,
    table_of)
from agentlab.bench.sweep_page import page_html
from agentlab.train import Run
from later import deferred
from small import finish, fork

# ---- statistics

A = deferred(lambda: np.array([[.801, .94, .532], [.831, .591, .6], [.372, .808, .759], [.403, .785, .468],
    [.741, .777, .602], [.655, .264, .296], [.779, .852, .736], [.84, .873, .888]]))
B = deferred(lambda: np.array([[.393, .488, .386], [.339, .228, .779], [.265, .381, .702], [.73, .714, .83],
    [.192, .528, .442], [.476, .327, .601], [.373, .568, .345], [.794, .549, .568]]))
FIVE = deferred(lambda: np.array([[.793, .697, .759], [.667, .885, .61], [.698, .486, .412], [.947, .865, .847],
    [.579, .259, .708]]))

def by_env(matrix): return dict(zip('xyz', matrix.T))

def test_as_the_papers_code():
    """Numbers of rliable 1.2.0 on the same scores (runs x environments): mean, IQM, probability of improvement,
    profile, and its intervals of 5,000 to 20,000 resamples."""
    a, b, five = by_env(A), by_env(B), by_env(FIVE)
    np.testing.assert_allclose([mean(a), iqm(a), iqm(a, faithful=True), improvement(a, b)],
        [.6747083333, .7195, .7195, .7447916667], atol=1e-9)
    np.testing.assert_allclose(iqm(five, faithful=True), .7064444444, atol=1e-9)
    bars = np.array([0, .25, .5, .75, .9])
    value, low, high = band(a, bars, times=5000)
    np.testing.assert_allclose(value, [1, 1, .7916666667, .5, .0416666667], atol=1e-9)
    # steps of one run in 24
    np.testing.assert_allclose([low, high], [[1, 1, .625, .333333, 0], [1, 1, .958333, .708333, .125]], atol=.0417)
    np.testing.assert_allclose(interval(iqm, a, times=20_000)[1:], [.614, .7878], atol=.006)
    np.testing.assert_allclose(interval(mean, a, times=20_000)[1:], [.5969, .7445], atol=.004)
    np.testing.assert_allclose(interval(improvement, a, b, times=5000)[1:], [.5988, .875], atol=.012)

@pytest.mark.parametrize('seed', range(5))
def test_by_brute_force(seed):
    "IQM by repeating every run 4/n times, improvement and profile by loops, with unequal numbers of runs."
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 6, size=3)
    a, b = ({env: np.round(draw.random(n), 1) for env, n in zip('xyz', sizes[::order])} for order in (1, -1))
    # so many copies that a quarter is a whole number, and every environment has equally many
    whole = 4*len(a)*np.lcm.reduce(sizes)
    copies = np.sort(np.concatenate([np.repeat(x, whole//len(a)//len(x)) for x in a.values()]))
    assert len(copies) == whole
    np.testing.assert_allclose(iqm(a), copies[whole//4:-whole//4].mean())
    wins = [np.mean([1. if x > y else .5 if x == y else 0. for x in a[env] for y in b[env]]) for env in a]
    np.testing.assert_allclose(improvement(a, b), np.mean(wins))
    np.testing.assert_allclose(improvement(a, b) + improvement(b, a), 1)
    np.testing.assert_allclose(improvement(a, a), .5)
    assert profile(a, np.array([.45]))[0] == pytest.approx(np.mean([np.mean([x > .45 for x in a[env]]) for env in a]))
    for statistic in (mean, iqm):
        # a resample is a row
        assert statistic({env: np.stack([x, x]) for env, x in a.items()}) == pytest.approx([statistic(a)]*2)

def test_resamples_stay_in_their_environment():
    """Between 0 and 1 nothing is exchanged, however often one draws; and two samples are drawn apart unless they are
    paired."""
    apart = dict(easy=[1., 1., 1.], hard=[0., 0., 0.])
    assert set(bootstrap(mean, apart)) == {.5}
    x = dict(e=np.arange(6.))
    assert (bootstrap(difference, x, x, paired=True) == 0).all() and bootstrap(difference, x, x).std() > .5
    every = [np.mean(draw) for draw in product([0, 1, 5], repeat=3)]
    assert np.mean(bootstrap(mean, dict(e=[0, 1, 5]),
        times=30_000) <= 1) == pytest.approx(np.mean(np.array(every) <= 1), abs=.01)

def test_order_means_nothing():
    "Runs and environments in another order, a pair with its partner: the same interval to the last bit."
    draw = np.random.default_rng(0)
    order, turned = draw.permutation(8), dict(reversed(by_env(A).items()))
    a, b, c, d = (by_env(A), by_env(B), {env: x[order] for env, x in turned.items()},
        {env: x[order] for env, x in by_env(B).items()})
    assert interval(iqm, a) == interval(iqm, c)
    assert interval(difference, a, b, paired=True) == pytest.approx(interval(difference, c, d, paired=True), abs=1e-12)
    assert interval(improvement, a, b) == pytest.approx(interval(improvement, c, d), abs=1e-12)
    # other pairs
    assert interval(difference, a, b, paired=True) != interval(difference, a, {env: x[order] for env, x in b.items()},
        paired=True)

@pytest.mark.parametrize('statistic', [mean, iqm])
def test_interval_holds_the_truth(statistic):
    "Twenty runs in each of three environments; the truth from a million. Few runs are looked at on the page."
    draw, shapes = np.random.default_rng(5), [(4, 2), (2, 3), (6, 2)]
    truth = statistic({str(i): draw.beta(*shape, 300_000) for i, shape in enumerate(shapes)})
    found = [interval(statistic, {str(i): draw.beta(*shape, 20) for i, shape in enumerate(shapes)}, times=300, seed=n)
        for n in range(300)]
    assert .9 <= np.mean([low <= truth <= high for _, low, high in found]) <= .98

def test_simultaneous_band_holds_at_every_bar():
    """Of simulated profiles 95 of 100 lie within the simultaneous band at all bars; the pointwise one promises less
    and does less."""
    draw, bars = np.random.default_rng(1), np.linspace(0, 1, 51)
    truth = (draw.beta(4, 2, (200_000, 1)) > bars).mean(0)
    def holds(together):
        inside = []
        for n in range(200):
            _, low, high = band(dict(e=draw.beta(4, 2, 30)), bars, together=together, times=200, seed=n)
            inside.append(((low - 1e-9 <= truth) & (truth <= high + 1e-9))[(truth > .05) & (truth < .95)].all())
        return np.mean(inside)
    both, each = holds(True), holds(False)
    assert both >= .88 and each < both - .1

# ---- the page

class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []
    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

def numbers(recipes, envs, seeds, failed=()):
    "A table of made-up numbers."
    draw, rows = np.random.default_rng(0), []
    for env, recipe, seed in product(envs, recipes, range(seeds)):
        names = dict(env=env, recipe=recipe, seed=seed, error='')
        if (recipe, seed) in failed:
            rows.append(names | dict(metric='failed', step=2, value=2., error=f'OSError: {HOSTILE}'))
            continue
        rows += [names | dict(metric='success', step=step, value=draw.random()) for step in range(3)]
        rows += [names | dict(metric=metric, step=step, value=draw.random())
            for metric in ('test_greedy', 'test_sampled') for step in (0, 3)]
    return pd.DataFrame(rows, columns=list(made.COLUMNS)).astype(made.COLUMNS)

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e'

def test_hostile_names_are_text():
    "Recipe, environment, error, command and date come from somebody; none becomes markup."
    table = numbers(['grpo', HOSTILE], ['keydoor', HOSTILE + 'env'], 3, failed=[('grpo', 1)])
    page = page_html(table, dict(command=HOSTILE, date=HOSTILE, versions={HOSTILE: HOSTILE}, steps=HOSTILE,
        test_tasks=HOSTILE))
    found = Tags()
    found.feed(page)
    assert (not {'script', 'img', 'iframe', 'link'} & set(found.tags)
        and not [name for name in found.attributes if name.startswith('on') or name in ('src', 'href')])
    assert '\u202e' not in page and "default-src 'none'" in page
    assert page.count('&lt;script&gt;') > 10
    assert 'What failed' in page and 'OSError' in page

def test_pages_of_little():
    "One recipe, one seed, no finished run: a page each time, and no interval where there is none."
    one = page_html(numbers(['grpo'], ['keydoor'], 1), {})
    assert 'one run, no interval' in one and 'Who beats whom' not in one and '1 run of an environment' in one
    two = page_html(numbers(['grpo', 'gigpo'], ['keydoor'], 12), {})
    assert ('are too narrow' not in two and 'Who beats whom' in two and 'against <bdi>gigpo' in two
        and 'nan' not in re.sub('<style>.*?</style>', '', two, flags=re.S))
    none = page_html(numbers(['grpo'], ['keydoor'], 1, failed=[('grpo', 0)]), {})
    assert 'No run is finished' in none and 'What failed' in none
    assert page_html(table_of([]), {})

# ---- Ray

MODULE = '''
import os, signal
from pathlib import Path
from small import Paying
from agentlab.bench.sweep import play_cell
from agentlab.train import recipes

class World(Paying):
    name = 'world'

def mine(**changes): return recipes.dr_grpo(**changes)

def fragile(cell, folder):
    "One cell raises each time; one dies with its process, the first time."
    if cell.seed == 1: raise OSError(f'no disk for {cell}')
    tried = Path(folder)/'tried'
    if not tried.exists():
        tried.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    play_cell(cell)
'''
TINY = dict(steps=2, groups=2, group_size=2, max_tokens=3, test_tasks=1, checkpoint_every=1)

@pytest.fixture
def own(tmp_path, monkeypatch):
    "A module with an environment, a recipe and a function, in a folder that only this process knows."
    (tmp_path/'modules').mkdir()
    (tmp_path/'modules'/'sweep_world.py').write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path/'modules'))
    yield __import__('sweep_world')
    sys.modules.pop('sweep_world', None)

@pytest.mark.long
def test_on_ray(own, tmp_path):
    """Modules of the driver are found by the workers; a cell that raises and a worker that dies cost themselves;
    then the rows are those of a sweep in one process."""
    pytest.importorskip('ray')
    asked = dict(recipes=['sweep_world:mine'], envs=['sweep_world:World'], seeds=2, model='untrained', **TINY)
    cells, said = plan(out=tmp_path/'ray', **asked), []
    with on_ray(cpus=1) as play:  # every worker costs six seconds of CPU
        failed = sweep(cells, play, retries=1, say=said.append, function=partial(own.fragile, folder=str(tmp_path)))
        assert failed == [cells[1]] and str(failed[0]) == 'sweep_world:mine on sweep_world:World, seed 1'
        # the one that died was well the second time
        assert sum('try 1 of 2' in line for line in said) == 2 and sum('try 2 of 2' in line for line in said) == 1
        row = table_of(cells)[lambda t: t.metric == 'failed']
        assert row[['seed', 'value',
            'error']].values.tolist() == [[1, 2., f'OSError: no disk for {cells[1]}']]
        assert 'fragile' in json.loads(error_file(cells[1]).read_text())['traceback']
        written = Path(cells[0].folder)/'metrics.jsonl'
        kept = written.stat().st_mtime_ns
        assert sweep(cells, play, say=said.append) == [] and '1 of 2 runs are finished already' in said
    assert kept == written.stat().st_mtime_ns  # read, not played again
    here = plan(out=tmp_path/'here', **asked)
    assert sweep(here, in_turn, say=said.append) == []
    pd.testing.assert_frame_equal(table_of(cells), table_of(here))
    assert table_of(cells).query("metric == 'entropy'").value.nunique() > 2

def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ImportError, match=r'agentlab-rl\[ray\].*--here'):
        with on_ray(): pass

def test_storage_that_is_not_shared(tmp_path):
    "A player that says it has played, but left nothing here: another machine's disk."
    cells = plan(['gigpo'], ['small:Paying'], 1, tmp_path, 'untrained', **TINY)
    assert sweep(cells, lambda function, cells: ((cell, '') for cell in cells), retries=0, say=str) == cells
    assert 'must see the same storage' in table_of(cells).error[0]

# ---- kills

KILLED = dict(recipes='gigpo', envs='small:Paying', seeds=3, steps=10, groups=2, group_size=2, max_tokens=3,
    test_tasks=1, model='untrained', cpus=2)

def whole(out):
    bench(**KILLED, out=str(out), here=True)
    return read_table(out/'sweep.parquet')[0]

def driver(out, here):
    sys.path.insert(0, str(Path(small.__file__).parent))
    bench(**KILLED, out=str(out), here=here)

def interrupted(tmp_path, here, kill):
    """Start a sweep in another process and end it when one run is done and one has passed its first checkpoint; what
    was found then."""
    out, log = tmp_path/'killed', tmp_path/'log'
    process, deadline = fork(driver, out, here, log=log), time.monotonic() + 200
    def rows(): return sorted((len(Run(path.parent).rows()) for path in out.glob('*/*/*/metrics.jsonl')), reverse=True)
    while time.monotonic() < deadline and process.is_alive() and not (rows() and (
        here and rows()[0] == 10 and len(rows()) > 1 and rows()[1] >= 6 or not here and rows()[0] >= 6)):
        time.sleep(.01)
    assert process.is_alive(), log.read_text()
    os.kill(process.pid, kill)
    process.join(60)
    assert process.exitcode not in (0, None) and not (out/'sweep.parquet').exists(), log.read_text()
    return out

@pytest.mark.parametrize('here', [True, pytest.param(False, marks=pytest.mark.slow)], ids=['here', 'ray'])
def test_killed_and_gone_on(tmp_path, here):
    "SIGKILL in the middle of a run; the same command gives the rows of a sweep that nobody stopped."
    if not here: pytest.importorskip('ray')
    out = interrupted(tmp_path, here, signal.SIGKILL)
    if here: bench(**KILLED, out=str(out), here=True)
    else:
        process = fork(driver, out, False, log=tmp_path/'again') # at once: workers of the killed one may still be there
        assert finish(process, tmp_path/'again', 300)[0] == 0, (tmp_path/'again').read_text()
    pd.testing.assert_frame_equal(read_table(out/'sweep.parquet')[0], whole(tmp_path/'whole'))
    assert (out/'sweep.html').exists() and not list(out.rglob('*.tmp'))

@pytest.mark.slow
def test_ctrl_c_on_ray(tmp_path):
    "Ctrl-C ends Ray and the sweep, and leaves everything to go on with."
    pytest.importorskip('ray')
    out = interrupted(tmp_path, False, signal.SIGINT)
    assert 'KeyboardInterrupt' in (tmp_path/'log').read_text()
    bench(**KILLED, out=str(out), here=True)
    pd.testing.assert_frame_equal(read_table(out/'sweep.parquet')[0], whole(tmp_path/'whole'))

def test_settings_that_changed(tmp_path):
    """Refused before anything is played, for a finished run and for one under way; more steps and more seeds are not
    other settings."""
    asked = dict(recipes=['gigpo'], envs=['small:Paying'], out=tmp_path, model='untrained', **TINY)
    sweep(plan(seeds=1, **asked), say=str)
    before = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    for changes, message in ((dict(lr=.5), 'recipe.lr=0.001, you asked for 0.5'), (dict(steps=1), 'holds 2 updates'),
                             (dict(group_size=3), 'recipe.group_size=2'), (dict(max_tokens=4), 'recipe.max_tokens=3')):
        with pytest.raises(ValueError, match=message): plan(seeds=2, **asked | changes)
    with pytest.raises(ValueError, match='policy='):
        plan(seeds=1, **asked | dict(model=str(next((tmp_path/'start').iterdir()))))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    assert [finished(cell) for cell in plan(seeds=2, **asked)] == [True, False]
    assert [finished(cell) for cell in plan(seeds=1, **asked | dict(steps=3))] == [False]

def test_options():
    "The function is a command: every parameter is an option."
    from fastcore.script import anno_parser
    given = vars(anno_parser(bench, prog='agentlab bench').parse_args(
        '--recipes gigpo,grpo --envs keydoor,hopsearch --seeds 5 --steps 20 --out runs/bench --here'.split()))
    assert (given['recipes'], given['seeds'], given['steps'], given['here'],
        given['address']) == ('gigpo,grpo', 5, 20, True, '')
    assert (made.command_of(bench, {name: given[name] for name in given if name not in ('pdb', 'xtra')})
        == 'agentlab bench --recipes gigpo,grpo --envs keydoor,hopsearch --steps 20 --out runs/bench --here')
    words = '--recipes gpg --group-size 4 --max-tokens 3 --test-tasks 8'
    given = vars(anno_parser(bench, prog='agentlab bench').parse_args(words.split()))
    # what is kept with the results can be typed
    assert made.command_of(bench, {name: given[name] for name in given
        if name not in ('pdb', 'xtra')}) == f'agentlab bench {words}'
