"""What only a browser can show of several runs, of Stop and Resume, and of the entropy lab: the buttons reach a run
that trains, here and in another process; sliders redraw."""
import os, subprocess, sys, time
from pathlib import Path
import pytest
from lab import ROOT, Shown, browser, lab, page, show  # noqa: F401 (fixtures)
from view_data import HOSTILE

pytestmark = pytest.mark.browser
HERE = str(Path(__file__).parent)

CELLS = dict(
    functions=f'''
import json, math, sys
sys.path.insert(0, {HERE!r})
from pathlib import Path
from agentlab import view
from agentlab.view.dashboard import Overlay
from agentlab.train import Run
from small import train_small
from agentlab.view.entropy_widget import entropy_lab
from view_data import HOSTILE, hostile_batch
def go(on_row, should_stop, resume=False):
    return train_small("trained", steps=300, checkpoint_every=200, on_row=on_row, should_stop=should_stop,
                       resume=resume)
def log(n, up):
    return [dict(step=i, reward=up*i/n, success=up*i/n, entropy=1., dead_groups=.1, clip_fraction=.02, grad_norm=1.,
                 seconds=.1) for i in range(n)]
''',
    train='run = view.watch(go, total=300)',
    overlay='''
overlay = Overlay({HOSTILE[0]: log(40, 1.), HOSTILE[1]: log(40, .5)})
overlay''',
    other='other = view.watch("elsewhere")',
    entropy='entropy_lab(hostile_batch(), move=.5)')

def test_stop_and_resume_of_a_training_run(lab, show):
    """The tiny model trains; Stop ends it within two seconds (the best of three tries: other tests share the
    machine), with a checkpoint; Resume goes on from there."""
    shown, took, stopped = show('train'), [], 2
    while not took or min(took) >= 2 and len(took) < 3:
        if took: shown.press(2)
        shown.wait(f'{Shown.points} > {stopped}')
        began = time.monotonic()
        shown.press(0)
        shown.wait(f"{Shown.status}.startsWith('stopped')", timeout=20_000)
        took.append(time.monotonic() - began)
        stopped = shown.get(Shown.points)
    assert min(took) < 2
    steps = sorted(p.name for p in (lab.folder/'trained'/'checkpoints').glob('[0-9]*'))
    assert len(steps) == 1 and int(steps[0]) >= stopped
    shown.press(2)
    shown.wait(f'{Shown.points} > {stopped + 2}')
    assert shown.get(Shown.status).startswith('running')
    edges = shown.get("node.querySelector('.al-db-pane[data-name=reward] "
        ".al-db-line').getAttribute('d').match(/(?<=[ML])[^,]+/g).map(Number)")
    # every update once, from one side to the other
    assert edges == sorted(set(edges)) and edges[0] == 0 and edges[-1] == 1000
    shown.press(0)
    shown.wait(f"{Shown.status}.startsWith('stopped')", timeout=20_000)

def test_an_overlay_shows_two_runs_and_hides_one(page, show):
    """Two lines in every pane; the box of a run takes its lines away, by keyboard; hostile names are text."""
    shown = show('overlay')
    lines = "node.querySelectorAll('.al-db-live .al-db-kind0').length"
    shown.wait(f'{lines} == 12')
    shown.wait("node.querySelectorAll('input[type=checkbox]').length == 2")
    page.wait_for_timeout(300)
    assert HOSTILE[0] in shown.get("node.querySelector('.agentlab-overlay').innerText")
    shown.focus("node.querySelectorAll('input[type=checkbox]')[1]")
    page.keyboard.press('Space')
    shown.wait(f'{lines} == 6')
    assert page.evaluate('() => window.hit') is None

def test_a_run_of_another_process_is_asked_to_stop(lab, show):
    """It stops within an update, answers, and the dashboard says so."""
    code = (f'import sys; sys.path.insert(0, {HERE!r}); from small import train_small; '
        f'train_small({str(lab.folder/"elsewhere")!r}, steps=3000, checkpoint_every=2000)')
    process = subprocess.Popen([sys.executable, '-c', code],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        log, end = lab.folder/'elsewhere'/'metrics.jsonl', time.monotonic() + 60
        while not (log.exists() and log.stat().st_size) and time.monotonic() < end: time.sleep(.1)
        shown = show('other')
        shown.wait(f'{Shown.points} > 2')
        shown.press(1)
        shown.wait(f"{Shown.status}.startsWith('stopped ·')", timeout=20_000)
        assert process.wait(20) == 0 and not (lab.folder/'elsewhere'/'stop').exists()
        shown.press(2)
        shown.wait("node.querySelector('.agentlab-hint code')?.innerText.includes('resume=True')", timeout=20_000)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()

def test_the_sliders_of_the_entropy_lab_redraw(page, show):
    """By keyboard: a higher bound gives silent tokens their gradient back, the border moves with it; another
    controller is a choice away; hostile tokens are text."""
    shown = show('entropy')
    shown.wait("node.querySelectorAll('.agentlab-entropy-lab .noUi-handle').length == 3")
    shown.wait("node.querySelector('.agentlab-entropy-lab').innerText.includes('no gradient above 1.2')")
    page.wait_for_timeout(800)  # until the sliders listen
    crosses = ("[...node.querySelectorAll('.al-el svg path title')].filter(t => "
        "t.textContent.startsWith('silent')).length")
    before = shown.get(crosses)
    assert before > 0
    for key in (0, 1):
        shown.focus(f"node.querySelectorAll('.noUi-handle')[{key}]")
        page.keyboard.press('End')
    shown.wait("node.querySelector('.agentlab-entropy-lab').innerText.includes('bounds set: low=1, high=2')",
        timeout=20_000)
    shown.wait(f'{crosses} == 0', timeout=20_000)
    shown.focus("node.querySelectorAll('.agentlab-entropy-lab select')[4]")
    page.keyboard.type('GSPO')
    shown.wait("[...node.querySelectorAll('.al-el figcaption')].at(-1)?.innerText.includes('GSPO by turn')",
        timeout=20_000)
    assert (HOSTILE[0] in shown.get("node.querySelector('.agentlab-entropy-lab').innerText")
        and page.evaluate('() => window.hit') is None)
