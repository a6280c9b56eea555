"""What the dashboard sends to a browser: whatever stands in the rows, it is JSON, bounded, no spike is lost, and of a
run that goes on only what is new."""
import json, math, random

import comm
import pytest

from agentlab.metrics import SPIKE
from agentlab.train.runs import Run
from agentlab.view import report
from agentlab.view.dashboard import PARTS, TURNS, Dashboard, Overlay, Plots, dashboard_html
from agentlab.view.dashboard import panes as declared
from agentlab.view.run_report import SMALLEST, curve_svg, powers
from view_data import HOSTILE, write_run

from later import needs
needs('anywidget', reason='needs the live widgets: pip install "agentlab-rl[lab]"')
BAD = (math.nan, math.inf, -math.inf, None, 'x', [1.], {}, True, 1e300)
METRICS = ('reward', 'success', 'entropy', 'dead_groups', 'clip_fraction', 'grad_norm', 'kl', 'kl_median', 'kl_max',
    'kl_reference_max')
ALWAYS = ['reward', 'success', 'entropy_by_turn', 'dead_groups', 'clip_fraction', 'grad_norm', 'kl']

def state(board):
    "All that a browser is told of the curves, as JSON; raises for what is none."
    names = 'head', *(f'part{k}' for k in range(PARTS))
    return json.dumps({name: getattr(board.figure, name) for name in names}, allow_nan=False)

def shown(rows):
    board = Dashboard(rows)
    board.widget
    return board

def panes(rows): return {pane['name']: pane for pane in shown(rows).figure.head['panes']}

@pytest.fixture
def messages(monkeypatch):
    "The states that widgets send from here on, as text."
    said = []
    def take(self, kind, data=None, *rest, **more):
        said.append(json.dumps((data or {}).get('state', {}), allow_nan=False))
    monkeypatch.setattr(comm.DummyComm, 'publish_msg', take)
    return said

def rows_with(value):
    "Logs in which a number is something else: everywhere, beside a number, as a step, as a turn."
    good, bad = dict.fromkeys(METRICS, .5), dict.fromkeys(METRICS, value)
    yield [bad]
    yield [good | dict(step=0), bad | dict(step=1)]
    yield [dict(step=value, reward=.5, entropy_by_turn=value)]
    yield [dict(step=0, reward=.5, entropy_by_turn=[value, .5])]

@pytest.mark.parametrize('value', BAD, ids=repr)
def test_whatever_a_row_says(value):
    "The picture and its twin are made, every axis has a width, and a number beside the odd one stays."
    for rows in rows_with(value):
        told = json.loads(state(shown(rows)))
        ends = [told['head']['ends'], *([pane['low'], pane['high']] for pane in told['head']['panes'])]
        assert all(low < high for low, high in ends)
        assert '<section' in dashboard_html(rows) and '>nan' not in dashboard_html(rows).lower()
    assert shown([dict(step=0, reward=.5), dict(step=1, reward=value)]).plots.line('reward')[0] == [0, .5]

def test_a_gap_is_a_gap():
    "None between two numbers; a metric that begins late is missing from the parts before."
    holed = shown([dict(step=i, reward=None if i == 1 else 1.) for i in range(3)])
    assert holed.plots.line('reward') == [[0, 1], [1, None], [2, 1]]
    late = shown([dict(step=i, success=.5 if i > 400 else None) for i in range(600)])
    known = [bool(parts[0].get('lines', {}).get('success')) for parts in late.plots.parts]
    assert known == [False]*2 + [True]*3 + [False]*3  # 148 rows a part
    assert {y for _, y in late.plots.line('success')} == {None, .5}

def test_no_row_and_one_row():
    "An empty log has its panes, and says that nothing is recorded; one row has a width."
    none = panes([])
    assert list(none) == ALWAYS and all(pane['empty'] for pane in none.values())
    assert shown([]).figure.head['note'] == ''
    one = shown([dict(step=7, reward=2.)])
    assert one.figure.head['ends'] == [6, 8] and one.plots.line('reward') == [[7, 2]]

def test_fifty_thousand_rows_and_a_spike():
    "At most 300 points a curve and 120 kB; the one spike is among them, and so are the first and the last row."
    draw = random.Random(0)
    rows = [dict.fromkeys(METRICS, 0.) | dict(step=i, reward=draw.random(), kl_max=draw.random())
        for i in range(50_000)]
    for row in rows: row['entropy_by_turn'] = [draw.random() for _ in range(12)]
    rows[31_417]['kl_max'] = 5150.
    rows[31_418]['kl_max'] = math.inf  # in the same bucket, and larger, but no number
    board = shown(rows)
    assert len(state(board)) < 120_000
    spike, steps = board.plots.line('kl_largest'), [x for x, _ in board.plots.line('reward')]
    assert [31_417, 5150] in spike and 150 <= len(spike) <= 300
    assert ((steps[0], steps[-1]) == (0, 49_999) and steps == sorted(set(steps))
        and board.figure.head['ends'] == [0, 49_999])

def test_very_many_turns():
    "The table is cut, and says so."
    board = shown([dict(step=i, entropy_by_turn=[.5]*1000) for i in range(300)])
    assert f'the first {TURNS} of 1000' in board.figure.head['panes'][2]['unit']
    assert len(state(board)) < 150_000

@pytest.mark.parametrize('block', [1, 7, 100, 5000])
def test_a_log_that_grows_is_what_it_would_be_at_once(block):
    "Row by row, in blocks or whole: the same parts."
    rows = [dict(step=i, reward=math.sin(i/9), grad_norm=None if i % 50 else 1., entropy_by_turn=[.1, i/1000])
        for i in range(700)]
    growing, whole = Plots(declared()), Plots(declared())
    for end in range(0, 700 + block, block): growing.renew(0, rows[:end], 0)
    whole.renew(0, rows, 0)
    assert growing.parts == whole.parts and len(whole.line('reward')) > 150

def test_a_log_that_was_cut_is_made_again():
    "As long as before, and other rows: none of the old parts stays."
    old, new = ([dict(step=i, reward=x) for i in range(200)] for x in (1., 2.))
    plots = Plots(declared())
    plots.renew(0, old, 0)
    plots.renew(0, new, 1)
    assert {y for _, y in plots.line('reward')} == {2.}

def test_only_what_is_new_is_sent(messages):
    "One row more: the head and one part, whatever the length of the run. Nothing more: no message with numbers."
    rows = [dict(step=i, reward=i/5000, entropy_by_turn=[.5]*12) for i in range(5000)]
    board = shown(rows)
    whole = len(state(board))
    messages.clear()
    rows.append(dict(step=5000, reward=3., entropy_by_turn=[.5]*12))
    board.draw(force=True)
    sent = [text for text in messages if 'part' in text]
    assert len(sent) == 1 and '"part4"' in sent[0] and sent[0].count('"part') == 1 and len(sent[0]) < whole/3
    messages.clear()
    board.draw(force=True)
    assert not any('part' in text for text in messages)

def test_a_log_that_was_cut_is_sent_anew(tmp_path):
    "A resumed run replaces its rows: no old point stays."
    folder = write_run(tmp_path/'run')
    board = Dashboard(folder)
    board.widget
    assert len(board.plots.line('success')) == 4
    (folder/'metrics.jsonl').write_text(''.join(json.dumps(dict(step=i, reward=9.)) + '\n' for i in range(3)))
    board.draw(force=True)
    assert board.plots.line('reward') == [[0, 9], [1, 9], [2, 9]] and board.plots.line('success') == []

@pytest.mark.parametrize('text', HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_texts_stay_behind(text):
    "A metric, a recipe, a step or a reason that holds HTML: the curves are told none of it, the status line as text."
    odd = {text: 1., 'step': text, 'success': text, 'entropy_by_turn': text, 'recipe': text, 'skipped': text}
    rows = [odd | {'reward': .5}, {'step': 1, 'reward': .6}]
    board = shown(rows)
    assert len(text) < 3 or json.dumps(text)[1:-1] not in state(board)
    for page in (board.label.value, dashboard_html(rows, title=text)):
        assert '<script' not in page and '<img' not in page
    overlay = Overlay({text: [dict(step=0, reward=1.)], 'other': []})
    overlay.widget
    assert len(text) < 3 or json.dumps(text)[1:-1] not in state(overlay)

def test_the_browser_says_when_it_has_drawn():
    "Only the frame that was sent last counts. After five seconds without an answer the next one goes out all the same."
    plots = shown([dict(step=0, reward=1.)]).plots
    for nonsense in (None, 'x', {}, dict(drawn='1'), dict(drawn=plots.frame - 1)): plots.heard(nonsense)
    assert not plots.painted and not plots.ready(plots.last + 4.9, 8) and plots.ready(plots.last + 5.1, 8)
    plots.heard(dict(drawn=plots.frame))
    assert plots.painted and plots.ready(plots.last + 1.1, 8)

def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match='points=31: give at least 32'): Dashboard([], points=31)

# ---- the KL: median and largest

OLD, NEW = dict(step=0, kl=200.), dict(step=1, kl=200., kl_median=.001, kl_max=5150.)

def test_rows_of_older_runs_have_their_mean():
    "Row by row, where there is neither median nor largest, in the picture and in its twin."
    plots = shown([OLD, NEW]).plots
    assert plots.line('kl_mean') == [[0, 200], [1, None]]
    assert plots.line('kl_median') == [[0, None], [1, .001]] and plots.line('kl_largest') == [[0, None], [1, 5150]]
    old, new = panes([OLD])['kl'], panes([NEW])['kl']
    assert ([label for _, label in old['lines']] == ['mean']
        and [label for _, label in new['lines']] == ['median', 'largest'])
    assert new['log'] and [text for _, text in new['ticks']] == ['10⁻³', '10⁻¹', '10¹', '10³', '10⁵']
    assert ('run 1, largest: 5,150 at update 1' in dashboard_html([NEW])
        and 'run 1, mean: 200 at' in dashboard_html([OLD]))
    assert SPIKE in dashboard_html([NEW]) and SPIKE not in dashboard_html([dict(step=0, reward=1.)])

def test_a_reference_is_drawn_where_there_is_one():
    assert 'kl_reference' not in panes([NEW])
    assert 'kl_reference' in panes([NEW | dict(kl_reference_median=.1, kl_reference_max=2.)])

def kl_card(folder, **more):
    "What the report of a run says of its KL, with these numbers in its rows."
    write_run(folder)
    rows = [row | more for row in Run(folder).rows()]
    (folder/'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    page = report(folder).read_text(encoding='utf-8')
    return next(card for card in page.split('<figure') if '<h3>Policy movement' in card).partition('</figure>')[0]

def test_the_report_says_what_a_spike_is(tmp_path):
    "Median and largest as two named curves on a log axis, with the sentence; an older run has its mean there."
    new, old = kl_card(tmp_path/'new', kl=200., kl_median=.001, kl_max=5150.), kl_card(tmp_path/'old', kl=200.)
    for text in (SPIKE, '>median</text>', '>largest</text>', '>10³</text>', '<code>kl_max</code>', '0.001 → 0.001'):
        assert text in new
    for text in (SPIKE, '<code>kl</code>', '200 → 200'): assert text in old
    assert '>median</text>' not in old

def test_zero_and_rounding_lie_on_the_lowest_line():
    "No distance at all, and the -1e-9 that rounding makes of it, are drawn, at the bottom."
    assert powers([0., -1e-9, 3.])[0] == SMALLEST
    svg = curve_svg({'kl': ([0, 1, 2], [0., -1e-9, 10.])}, 'kl', log=True)
    assert svg.count('cy="146.0" r="7"') == 2 and svg.count('<title>') == 3

@pytest.mark.parametrize('values', [[1.], [1., 1.], [1e-6], [1e300, 1e-300], [1e308], [-5.], [2., 30.]], ids=repr)
def test_powers_of_ten_enclose_the_values(values):
    found = powers(values)
    assert 2 <= len(found) <= 7 and found == sorted(set(found))
    assert found[0] <= max(min(*values, 1e300), SMALLEST)*1.001 and found[-1] >= min(max(values), 1e300)*.999
