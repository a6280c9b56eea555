"""What the live views send to a browser is JSON: no NaN and no infinity, which JupyterLab answers with a red box,
whatever stands in the rows."""
import json, math
import comm
import pytest
import torch
from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Episode
from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.train.runs import Run
from agentlab.view.dashboard import Dashboard, Overlay
from agentlab.view.entropy_widget import entropy_lab
from agentlab.view.microscope_widget import Microscope
from agentlab.view.playing import Play
from agentlab.view.turnscope_widget import TurnScope
from view_data import turn, write_run

from later import needs
needs('anywidget', reason='needs the live widgets: pip install "agentlab-rl[lab]"')
LOGS = dict(
    unequal=[dict(step=0, reward=1., entropy_by_turn=[1., .5, .2]), dict(step=1, reward=2., entropy_by_turn=[.9])],
    missing=[dict(step=0, reward=None, success=None, entropy_by_turn=[1., None]), dict(step=1, grad_norm=.5)],
    wild=[dict(step=i, reward=x, success=x, entropy=x, dead_groups=x, grad_norm=x, entropy_by_turn=[.5, x])
    for i, x in enumerate((math.nan, math.inf, -math.inf, .5))],
    nothing_finite=[dict(step=0, reward=math.nan, success=None, entropy_by_turn=[math.nan, math.inf])],
    many=[dict(step=i, reward=math.nan if i % 3 else .5, entropy_by_turn=[.5]*(1 + i % 4)) for i in range(700)],
    no_row=[])

@pytest.fixture
def messages(monkeypatch):
    "All that widgets send from here on; each must be JSON, buffers apart."
    said = []
    def take(self, kind, data=None, *rest, **more):
        said.append(data)
        json.dumps(data, allow_nan=False)
    monkeypatch.setattr(comm.DummyComm, 'publish_msg', take)
    return said

def test_the_fixture_sees_what_is_not_json(messages):
    "A slider at infinity would be such a message."
    import ipywidgets
    with pytest.raises(ValueError, match='JSON compliant'): ipywidgets.FloatSlider(value=math.inf, max=math.inf)
    assert messages

@pytest.mark.parametrize('name', LOGS)
def test_dashboard_and_overlay(name, messages):
    "Drawn, and drawn again as the log grows; a gap is null, and the numbers arrive."
    rows = []
    board, several = Dashboard(rows), Overlay({'a': rows, 'b': LOGS['unequal']})
    board.widget, several.widget
    for row in LOGS[name]:
        if len(rows) % 100 < 4:
            board.draw(force=True)
            several.draw(force=True)
        rows.append(row)
    board.draw(force=True)
    several.draw(force=True)
    assert sum('head' in data.get('state', {}) for data in messages if data) >= 4
    sent = [x for plots in (board.plots, several.plots) for name in ('reward', 'entropy')
        for point in plots.line(name, plots.runs - 1) for x in point]
    assert all(x is None or math.isfinite(x) for x in sent) and (any(x is not None for x in sent))
    assert min(len(rows), 30) <= sum(len(parts[0].get('steps', [])) for parts in board.plots.parts) <= 300

def test_dashboard_keeps_the_numbers_beside_a_gap(messages):
    "The table of entropies: numbers where turns were reached, null elsewhere, and the scale from the finite ones."
    board = Dashboard(LOGS['wild'])
    board.widget
    assert board.figure.part0[0]['table'] == [[.5]*4,
        [None, None, None, .5]] and board.figure.head['panes'][2]['top'] == .5
    assert board.figure.part0[0]['lines']['reward'] == [[0, None], [1, None], [2, None], [3, .5]]

@pytest.mark.parametrize('name', LOGS)
def test_turnscope_and_entropy_lab(name, tmp_path, messages):
    "A run whose log and whose episodes hold what is not finite."
    folder = write_run(tmp_path/'run', steps=len(LOGS[name][:4]))
    (folder/'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in LOGS[name][:4]))
    wild = Batch.from_episodes([Episode([turn(0, [1], [2, 3], entropy=x, reward=x)], game=i, outcome=x, step=0)
        for i, x in enumerate((math.nan, math.inf, -math.inf, .5))])
    wild.labels['token'] = {}
    if LOGS[name]: wild.save(folder/'episodes'/'step_000000.parquet')
    scope = TurnScope(Run(folder))
    scope.widget
    for step in range(len(LOGS[name][:4])): scope.answer(dict(do='step', step=step))
    if LOGS[name]: entropy_lab(Run(folder)).widget
    assert messages

def test_microscope(messages):
    "An outcome that is not a number, typed in."
    scope = Microscope()
    scope.widget
    for box in scope.inputs[0].values(): box.value = 'nan'
    assert messages

@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_play_with_a_policy_whose_weights_diverged(value, messages):
    "Chances that are not numbers are shown as a dash."
    env = KeyDoor()
    tokenizer = word_tokenizer(env.vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 512, hidden=16, layers=1), tokenizer)
    table = Play(env, policy)
    table.widget
    with torch.no_grad(): next(policy.model.parameters()).fill_(value)
    table.switch(show_chances=True)
    assert ([move['p'] for move in table.table.state['moves']] == [None]*len(table.offered)
        and table.table.state['moves'][0]['share'] == '–')
