"A metric declares itself once: rows, report, dashboard and TurnScope find it there."
import math
import warnings

import pytest

from agentlab import metrics
from agentlab.metrics import MEASURES, METRICS, Metric, Panel, metric
from agentlab.view.dashboard import dashboard_html, panes
from agentlab.view.run_report import report, report_panels
from agentlab.view.turnscope_layout import strip_panels
from small import train_small

@pytest.fixture
def declared():
    "What a test declares is gone after it."
    before, measured = dict(METRICS), dict(MEASURES)
    yield
    for table, kept in ((METRICS, before), (MEASURES, measured)):
        table.clear()
        table.update(kept)

def test_one_declaration_reaches_row_report_dashboard_and_strip(tmp_path, declared):
    panel = Panel('longest <i>episode</i>', 'It falls & falls.', (0, None), 'turns', place=3, strip=True)
    @metric('longest', 'the longest episode of a step', 'maximum over the episodes', 'turns', panel)
    def longest(batch): return int((batch.turns.t + 1).max())
    run = train_small(tmp_path/'run', steps=2)
    assert [row['longest'] for row in run.rows()] == [4, 4]
    assert 'longest' in report_panels() and 'longest' in strip_panels() and 'longest' in [p.name for p in panes()]
    page = report(run.folder, tmp_path/'report.html').read_text(encoding='utf-8')
    assert 'Longest &lt;i&gt;episode' in page and '<i>episode' not in page and 'maximum over the episodes' in page
    assert 'longest' in dashboard_html(run) and '<i>episode' not in dashboard_html(run)

def test_a_panel_that_no_run_has_is_left_out(tmp_path, declared):
    run = train_small(tmp_path/'run', steps=1)
    metric('later', 'what only later runs have', 'counted', '-', Panel('later'))
    assert 'Later' not in report(run.folder, tmp_path/'report.html').read_text(encoding='utf-8')
    assert '>later<' not in dashboard_html(run)

def test_a_measure_that_fails_costs_its_number_and_not_the_run(tmp_path, declared):
    @metric('odd', 'what nobody can say', 'divided by zero', '-')
    def odd(batch): return 1/0
    with pytest.warns(UserWarning, match="metric 'odd' could not be measured: ZeroDivisionError"):
        rows = train_small(tmp_path/'run', steps=2).rows()
    assert [row['odd'] for row in rows] == [None, None] and all(math.isfinite(row['loss']) for row in rows)

def test_rows_begin_alike_whatever_was_imported_first(declared):
    first = list(metrics.empty_row(0))
    entries = list(METRICS.items())
    METRICS.clear()
    METRICS.update(reversed(entries))
    assert list(metrics.empty_row(0)) == first and first[0] == 'step'

def test_other_words_for_a_known_metric_are_noticed(declared):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        metric('kl', *METRICS['kl'])
    with pytest.warns(UserWarning, match="metric 'kl' was declared as 'how far this step moved"):
        metric('kl', 'the number of kilolitres', 'poured', 'kl')
    assert METRICS['kl'] == Metric('the number of kilolitres', 'poured', 'kl')

def test_every_metric_says_what_it_is():
    for name, one in METRICS.items():
        assert one.meaning and one.estimate and one.unit, name
        if one.panel: assert one.panel.heading and one.panel.look, name
    assert len({panel.place for name, panel in metrics.panels().items() if not panel.table_of}) == len(report_panels())
