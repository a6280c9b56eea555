"""The views without a browser: what a model wrote cannot leave its place, a page is complete in itself, and the
dashboard's logic holds."""
import asyncio, json, math, re, subprocess, sys, threading, time, unicodedata
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from agentlab import view
from agentlab.episodes import Batch, Episode
from agentlab.view.dashboard import Dashboard, Tail, status_text, time_left
from agentlab.view.run_report import (collect, group_html, integrity, letters, pick_group, report, row_findings, thin,
    ticks)
from agentlab.view.web import attribute, clip, safe, visible
from view_data import HOSTILE, hostile_batch, played, turn, write_run

VOID = {'meta', 'br', 'img', 'input', 'link', 'hr'}
TAGS = {'section', 'style', 'h1', 'h2', 'h3', 'p', 'div', 'span', 'em', 'b', 'i', 'u', 'small', 'strong', 'bdi',
    'table', 'caption', 'thead', 'tbody', 'tr', 'th', 'td', 'a', 'details', 'summary', 'code',
    'dl', 'dt', 'dd', 'html', 'head', 'body', 'meta', 'title', 'main', 'header', 'nav', 'figure', 'figcaption',
    'svg', 'g', 'line', 'path', 'circle', 'rect', 'text'}
ATTRIBUTES = {'class', 'id', 'style', 'title', 'open', 'href', 'aria-label', 'role', 'tabindex', 'scope', 'lang',
    'charset', 'name', 'content', 'http-equiv', 'viewbox', 'width', 'height', 'x', 'y', 'x1', 'x2', 'y1',
    'y2',
    'cx', 'cy', 'r', 'd', 'text-anchor', 'fill-opacity'}

class Reader(HTMLParser):
    """Start tags with attributes, the text a reader sees, and whether every tag is closed by its own end."""
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open, self.crossed = [], [], [], []
        self.feed(page)
        self.close()
    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))
        if tag not in VOID: self.open.append(tag)
    def handle_startendtag(self, tag, attributes): self.tags.append((tag, attributes))
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag: self.crossed.append(tag)
    def handle_data(self, data):
        if 'style' not in self.open: self.text.append(data)
    @property
    def attributes(self):
        return [(tag, name, value or '') for tag, attributes in self.tags for name, value in attributes]

def assert_harmless(page):
    """Only our own tags and attributes, all closed; links stay on the page; nothing is loaded; ids are unique; no
    raw control or bidi character."""
    read = Reader(page)
    assert not read.crossed and not read.open
    assert {tag for tag, _ in read.tags} <= TAGS
    assert {name for _, name, _ in read.attributes} <= ATTRIBUTES
    assert all(value.startswith('#') for _, name, value in read.attributes if name == 'href')
    assert all(re.fullmatch(r'[-\w:;#.,% ()]*', value) and 'url' not in value for _, name, value in read.attributes
        if name == 'style')
    ids = [value for _, name, value in read.attributes if name == 'id']
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r'[\w-]+', i) for i in ids)
    assert {value[1:] for _, name, value in read.attributes if name == 'href'} <= set(ids)
    assert not [c for c in page if c != '\n' and unicodedata.category(c) in {'Cc', 'Cf', 'Cs', 'Zl', 'Zp'}]
    page.encode('utf-8')
    return read

# --- text

@given(st.text(st.characters(), max_size=60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_text_is_shown_as_it_is(text, lines):
    """Whatever the text, the HTML holds only our three tags, and what a reader sees is the visible text, character
    for character."""
    read = assert_harmless(safe(text, limit=100, lines=lines))
    assert {tag for tag, _ in read.tags} <= {'bdi', 'b', 'em'}
    assert ''.join(read.text) == visible(text, lines)
    (_, attributes), = Reader(f'<p title="{attribute(text, 100)}"></p>').tags
    assert attributes == [('title', visible(text))]

@given(st.text(max_size=200), st.integers(3, 50))
def test_clip_keeps_both_ends_and_counts(text, limit):
    """Head, tail and the number between them add up to the text."""
    head, cut, tail = clip(text, limit)
    assert text.startswith(head) and text.endswith(tail) and len(head) + cut + len(tail) == len(text)
    assert len(head) + len(tail) == min(limit, len(text))

def test_huge_text_is_cut_with_a_note():
    """100 kB become a line, and the line says how much is missing."""
    shown = safe('\u202e'*100_000, limit=160)
    assert len(shown) < 12_000 and '99,840 characters cut' in shown

# --- a group

def test_hostile_group_is_harmless_and_small():
    """Tokens, observations, states, endings, errors, seats and titles that attack the page stay text."""
    batch = hostile_batch()
    page = group_html(batch, torch.linspace(-1, 1, len(batch.actions)), title=HOSTILE[1], estimator=HOSTILE[0])
    text = ''.join(assert_harmless(page).text)
    for attack in HOSTILE[:2] + HOSTILE[8:10]: assert attack in text
    assert len(page) < 120_000

def test_missing_token_text_is_an_id_never_invented():
    """An id without a text is shown as #id; a batch from a table has no texts and no entropies."""
    batch = hostile_batch()
    assert '#999' in Reader(group_html(batch, torch.zeros(len(batch.actions)))).text
    import pandas as pd
    table = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 0, 1], t=[0, 1, 0], reward=[0., 1., 0.],
        n_tokens=[2, 1, 3])))
    assert Reader(group_html(table, torch.zeros(6))).text.count('#0') == 6

def test_tiles_are_links_to_their_turn_with_words():
    """Every tile names turn, advantage, tokens and what happened; its link leads to the turn below."""
    batch = played(1, .5)
    page = group_html(batch, batch.spread(batch.of_turn('outcome') - .5), group=0)
    tiles = [dict(attributes) for tag, attributes in Reader(page).tags
        if dict(attributes).get('class', '').startswith('al-tile')]
    assert len(tiles) == 20
    assert all(re.search(r'episode \d, turn \d, advantage [+−]0\.50, 2 tokens', tile['aria-label']) for tile in tiles)
    assert (sum('cut by a budget' in tile['aria-label'] for tile in tiles)
        == sum('al-cut-off' in tile['class'] for tile in tiles)
        == int(batch.select(batch.episodes.group == 0).episodes.truncated.sum()) > 0)
    assert any('reward +1.00' in tile['aria-label'] for tile in tiles)
    assert_harmless(page)

def test_scale_is_one_for_the_group_and_symmetric():
    """The largest absolute turn advantage has the full colour on both sides, zero is white, NaN is white and says
    so."""
    batch = played(1, .5, groups=1, size=4, turns=1)
    colours = re.findall(r'background-color:(#\w{6})">(?:<span '
        r'class=al-letter>\w+</span>)?(?:<span class="al-chip">[^<]*</span>)?<b>([^<]*)</b>',
        group_html(batch, torch.tensor([2., 2., -2., -2., 0., 0., math.nan, math.nan])))
    assert dict((number, colour) for colour, number in colours) == {'+2.00': '#4393c3', '−2.00': '#e08214',
        '0': '#ffffff', 'NaN': '#ffffff'}

def test_context_windows_and_many_tokens():
    """An episode of two windows keeps its turns in order; a turn beyond the budget says how many tokens are not
    drawn."""
    episode = Episode([turn(0, [8], [1]*500), turn(1, [9, 10], [2], window=1)])
    batch = Batch.from_episodes([episode, Episode([turn(0, [8], [])])])
    rollout = collect(batch, torch.zeros(501), 0)[0]
    assert [len(t.tokens) for t in rollout.tiles] == [500, 1] and rollout.tiles[1].context == [9, 10]
    text = ''.join(Reader(group_html(batch, torch.zeros(501), limit=60)).text)
    assert '480 more tokens are not drawn' in text and 'no action tokens' in text

def test_a_state_of_one_visit_has_no_letter():
    """Letters are for states that recur; turns without a state never share one."""
    batch = Batch.from_episodes([Episode([turn(0, [8], [1], state='x'),
        turn(1, [8], [1], state='y'), turn(2, [8], [1], state='x')]),
        Episode([turn(0, [8], [1]), turn(1, [8], [1])])])
    named = letters(collect(batch, torch.zeros(5), 0))
    assert [batch.labels['state'][key] for key in named] == ['x']

def test_pick_group_prefers_mixed_outcomes():
    """Half and half before nearly all; spread of outcomes before none; an empty batch is refused."""
    def group(g, wins): return [Episode([turn(0, [8], [1])], group=g, outcome=float(w), success=bool(w)) for w in wins]
    assert (pick_group(Batch.from_episodes(group(3, [1, 1, 1, 1]) + group(4, [1, 1, 1, 0]) + group(7, [1, 1, 0, 0])))
        == 7)
    assert pick_group(Batch.from_episodes(group(3, [1, 1]) + group(5, [1, 1]))) == 3
    with pytest.raises(ValueError, match='no episodes'): pick_group(Batch.from_episodes([]))

# --- the page

def test_report_is_self_contained(tmp_path):
    """No script, no address, a policy that forbids both, every definition line, both ends of the run, held-out
    success with its tasks."""
    path = report(write_run(tmp_path/'run'),
        definitions=dict(success=('share that reached the goal', 'mean over episodes', '0-1')))
    page = path.read_text(encoding='utf-8')
    text = ' '.join(''.join(assert_harmless(page).text).split())
    assert path == tmp_path/'run'/'report.html' and len(page) < 300_000
    assert not re.search(r'https?:|//\w+\.|<script|@import|url\(', page)
    assert "default-src 'none'" in page
    assert ('gigpo on KeyDoor' in text and 'Success on 512 held-out tasks went from 27 % to 98 % (greedy) and from 25 '
        '% to 96 % (sampled).' in text)
    assert 'share that reached the goal · mean over episodes · 0-1' in text
    assert 'Step 0, at the start' in text and 'Step 3, at the end' in text and 'advantage by gigpo' in text

def test_report_uses_the_trainers_definitions(tmp_path):
    """Without a table of its own the page shows the one of the trainer."""
    from agentlab.metrics import METRICS
    text = ''.join(Reader(report(write_run(tmp_path/'run')).read_text(encoding='utf-8')).text)
    for name in ('success', 'entropy', 'dead_groups', 'grad_norm'): assert METRICS[name][0] in text

def test_report_of_a_hostile_run(tmp_path):
    """Names, settings, reasons and rollouts that attack the page stay text."""
    folder = write_run(tmp_path/'run', name=HOSTILE[0], note=HOSTILE[1])
    hostile_batch().save(folder/'episodes'/'step_000003.parquet')
    with open(folder/'metrics.jsonl', 'a') as f:
        f.write(json.dumps(dict(step=4, skipped=''.join(HOSTILE[:6]), reward=math.nan)) + '\n')
    page = report(folder, definitions=dict(success=HOSTILE[0])).read_text(encoding='utf-8')
    read = assert_harmless(page)
    assert HOSTILE[0] in ''.join(read.text) and HOSTILE[1] in ''.join(read.text)

def test_report_of_a_run_that_has_hardly_begun(tmp_path):
    """No row, no rollout, no test: a page that says so. A missing folder and a newer schema are refused."""
    (tmp_path/'run.json').write_text(json.dumps(dict(schema_version=1, facts={})))
    text = ''.join(assert_harmless(report(tmp_path).read_text(encoding='utf-8')).text)
    assert 'No success was recorded yet' in text and 'saved no episodes' in text
    with pytest.raises(FileNotFoundError, match='is no run folder'): report(tmp_path/'elsewhere')
    (tmp_path/'run.json').write_text(json.dumps(dict(schema_version=99)))
    with pytest.raises(ValueError, match='schema_version 99'): report(tmp_path)

def test_report_runs_no_code_that_a_folder_names(tmp_path):
    """run.json may come from anywhere: a credit function outside agentlab.credit is neither imported nor called;
    GRPO stands in and the page says so."""
    (tmp_path/'trap.py').write_text('raise SystemExit("imported")')
    folder = write_run(tmp_path/'run', credit='trap:spring')
    sys.path.insert(0, str(tmp_path))
    try: text = ''.join(Reader(report(folder).read_text(encoding='utf-8')).text)
    finally: sys.path.remove(str(tmp_path))
    assert "grpo (the recipe's own estimator is not in agentlab" in text and 'trap' not in sys.modules
    with pytest.raises(ValueError, match="estimator='nothing'"): report(folder, estimator='nothing')

def test_integrity_counts_over_batches():
    """Counts add up over batches; groups are told apart by seat too; an unknown stays unknown."""
    one = {f.name: (f.found, f.total) for f in integrity([played(0, .5)])}
    two = {f.name: (f.found, f.total) for f in integrity([played(0, .5), played(0, .5)])}
    for name, (found, total) in one.items(): assert two[name] == ((None, 0) if found is None else (2*found, 2*total))
    assert integrity([])[0].found is None
    rows = [dict(sampler_gap=1e-6), dict(sampler_gap=.7, skipped='NaN reward', reward=math.inf)]
    assert [f.found for f in row_findings(rows)] == [1, 1, 1]

@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=2000), st.integers(4, 300))
@settings(deadline=None)
def test_thin_keeps_extremes(values, points):
    """At most `points` points, both ends, the lowest and the highest value."""
    x, y = thin(np.arange(len(values)), values, points)
    assert len(x) <= max(points, 4) and x[0] == 0 and x[-1] == len(values) - 1 and (np.diff(x) > 0).all()
    if np.isfinite(values).any(): assert (np.nanmin(y), np.nanmax(y)) == (np.nanmin(values), np.nanmax(values))

@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9))
def test_ticks_cover_the_range(low, span):
    """Few round values that enclose the data."""
    values = ticks(low, low + span)
    assert (2 <= len(values) <= 12 and values[0] <= low + span*1e-6 + 1e-9
        and values[-1] >= low + span - span*1e-6 - 1e-9)

# --- the dashboard

def outside(work):
    """A coroutine in an event loop of its own."""
    with ThreadPoolExecutor(1) as pool: return pool.submit(asyncio.run, work).result()

def threads(): return [t for t in threading.enumerate() if t.name.startswith('agentlab-train')]

def counting(on_row, should_stop):
    for step in range(100_000):
        if should_stop(): return step
        on_row(dict(step=step, reward=step))
        time.sleep(.001)

def test_half_written_and_replaced_logs(tmp_path):
    """Cut at every byte, the rows come out once and whole; a file put in its place is read from the start."""
    lines = b''.join(json.dumps(dict(step=i, text='é')).encode() + b'\n' for i in range(3))
    for cut in range(len(lines)):
        log = tmp_path/f'{cut}.jsonl'
        log.write_bytes(lines[:cut])
        tail = Tail(log)
        rows = tail.read()
        with open(log, 'ab') as f: f.write(lines[cut:])
        assert [r['step'] for r in rows + tail.read()] == [0, 1, 2] and not tail.damaged
    other = tmp_path/'other'
    other.write_bytes(lines + lines)
    other.replace(log)
    assert len(tail.read()) == 6 and tail.restarted

def test_dashboard_of_a_folder_follows_and_restarts(tmp_path):
    """The folder's rows are drawn, total comes from run.json, and a resumed run replaces what it cut."""
    folder = write_run(tmp_path/'run')
    dashboard = Dashboard(folder)
    assert (len(dashboard.rows), dashboard.total) == (4, 4)
    dashboard.widget
    (folder/'metrics.jsonl').write_text('{"step": 0, "reward": 5.0}\n')
    dashboard.draw(force=True)
    assert dashboard.plots.line('reward') == [[0, 5.]] and len(dashboard.rows) == 1
    from agentlab.train.runs import Run
    assert len(Dashboard(Run(folder)).rows) == 1
    with pytest.raises(FileNotFoundError, match='does not exist'): Dashboard(tmp_path/'nowhere')

def test_button_only_sets_a_flag():
    """A click while running asks to stop; a click when nothing runs changes nothing on the screen."""
    dashboard = Dashboard([dict(step=0)])
    dashboard.widget
    assert dashboard.button.disabled
    dashboard.button.click()
    assert dashboard.state == 'idle'
    dashboard.state = 'running'
    dashboard.draw(force=True)
    assert not dashboard.button.disabled
    dashboard.button.click()
    assert dashboard.state == 'stopping' and dashboard._flag.is_set()

def test_stop_from_another_thread_ends_the_run():
    """The function returns its own result, every row it reported is in the log, and no thread is left."""
    async def main():
        dashboard, kept = Dashboard(), []
        dashboard._start(dashboard.run(counting, kept))
        dashboard.widget
        await asyncio.sleep(.1)
        threading.Thread(target=dashboard.button.click).start()
        return dashboard, kept, await dashboard
    dashboard, kept, steps = outside(main())
    assert dashboard.state == 'stopped' and steps == len(dashboard.rows) == len(kept) > 0
    time.sleep(.1)
    assert not threads()

def test_interrupted_cell_stops_and_waits():
    """Cancelling the task asks the function to stop and waits for it: no thread goes on training behind the reader's
    back."""
    async def main():
        dashboard = Dashboard()
        dashboard._start(dashboard.run(counting))
        await asyncio.sleep(.1)
        dashboard.task.cancel()
        with pytest.raises(asyncio.CancelledError): await dashboard
        return dashboard
    dashboard = outside(main())
    assert dashboard.state == 'stopped'
    time.sleep(.1)
    assert not threads()

def test_error_is_shown_escaped_and_raised():
    """What the function raises is raised where it is awaited, and stands in the label as text; rows before it are
    kept."""
    async def main():
        dashboard = Dashboard()
        def fails(on_row, should_stop):
            on_row(dict(step=0))
            raise KeyError(HOSTILE[1] + HOSTILE[5])
        with pytest.raises(KeyError): await dashboard.run(fails)
        return dashboard
    dashboard = outside(main())
    dashboard.widget
    assert dashboard.state == 'failed' and len(dashboard.rows) == 1
    assert {tag for tag, _ in Reader(dashboard.label.value).tags} == {'span'} and '\u202e' not in dashboard.label.value

def test_at_most_eight_frames_a_second():
    """Draw calls come far faster than frames; a frame that the browser has not drawn yet is waited for."""
    dashboard = Dashboard([])
    dashboard.widget
    began, frames = time.monotonic(), dashboard.frames
    dashboard.plots.send, dashboard.plots.painted = lambda *_: None, True  # a browser that draws at once
    while time.monotonic() - began < 1:
        dashboard._list.append(dict(step=len(dashboard._list)))
        dashboard.draw()
    assert 3 <= dashboard.frames - frames <= 9
    slow = Dashboard([])
    slow.widget
    frames = slow.frames
    began = time.monotonic()
    while time.monotonic() - began < 1:
        slow._list.append(dict(step=len(slow._list)))
        slow.draw()
    assert slow.frames - frames == 0  # nobody has reported the first frame as drawn

def test_long_runs_are_thinned():
    """20,000 rows: at most 300 points a curve and columns of the table, as JSON can hold them, in one message."""
    dashboard = Dashboard([dict(step=i, reward=math.sin(i), entropy_by_turn=[1.]*12, success=None)
        for i in range(20_000)])
    dashboard.widget
    lines = {name for parts in dashboard.plots.parts for name in parts[0].get('lines', ())}
    assert (max(len(dashboard.plots.line(name)) for name in lines) <= 300
        and sum(len(parts[0].get('steps', ())) for parts in dashboard.plots.parts) <= 300)
    json.dumps(dashboard.plots.parts, allow_nan=False)  # raises for what is no JSON

def test_status_and_time_left():
    """Errors and skipped updates are counted; the time left needs a total and seconds."""
    rows = ([dict(step=i, seconds=2., errors=1, success=.25) for i in range(5)]
        + [dict(step=5, seconds=None, errors=0, skipped='NaN loss', success=None)])
    assert time_left(rows, 10) == 8. and time_left([], 10) is None and time_left([dict(step=0)], 10) is None
    assert (status_text(rows, 'running', 10) == 'running · update 6 of 10 · 8 s left · 5 environment errors · 1 '
        'updates skipped, last: NaN loss')

def test_outside_a_notebook_and_without_the_extra(monkeypatch):
    """watch in a script says what to do instead; a missing package names the extra, and the report needs none of it."""
    with pytest.raises(RuntimeError, match='event loop of a notebook'): view.watch(counting)
    monkeypatch.setitem(sys.modules, 'anywidget', None)
    with pytest.raises(ImportError, match=r'needs anywidget.*agentlab-rl\[lab\]'): Dashboard([dict(step=0)]).widget
    assert 'run 1: 1 at update 0' in Dashboard([dict(step=0, reward=1.)]).static()

def test_front_door_is_light():
    """Importing agentlab.view loads neither plotly, ipywidgets nor torch."""
    code = ('import sys, agentlab.view; print([m for m in ("plotly", "ipywidgets", "anywidget", "torch", "pandas") if '
        'm in sys.modules])')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
        cwd=Path(view.__file__).parents[2])
    assert done.stdout.strip() == '[]', done.stdout + done.stderr
