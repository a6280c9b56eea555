"""What only a browser can show: the live dashboard is wired to a real JupyterLab, and the report opens without a
script, an error or a request."""
from pathlib import Path
import pytest
from lab import Shown, browser, keep_focus, lab, page, show  # noqa: F401 (fixtures)
from view_data import hostile_batch, write_run

pytestmark = pytest.mark.browser

CELLS = dict(
    functions='''
import math, sys, time
from agentlab import view
def train(on_row, should_stop):
    for step in range(100_000):
        if should_stop(): return step
        on_row(dict(step=step, reward=math.sin(step/9), success=.5, entropy_by_turn=[1., .5], dead_groups=.1,
                    clip_fraction=.02, grad_norm=1., errors=0, seconds=.02))
        time.sleep(.02)
def fails(on_row, should_stop):
    on_row(dict(step=0, reward=1.))
    raise ArithmeticError("<img src=x onerror=window.hit=1> no tokens")
''',
    train='run = view.watch(train)',
    awaited='steps = await view.watch(train)',
    fails='failing = view.watch(fails)',
    # caught: after an error the kernel drops what is sent to it within the next moment, and that may be the next test's
    # cell
    raises='''
try: await failing
except ArithmeticError as e: print('raised', type(e).__name__)
''',
    follow='following = view.watch("metrics.jsonl")',
    group=f'''
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from view_data import hostile_batch
batch = hostile_batch()
view.group_html(batch, torch.linspace(-1, 1, len(batch.actions)))
''')

@pytest.mark.parametrize('cell,key', [('train', 'Enter'), ('awaited', None)],
    ids=['cell returns, keyboard', 'cell awaits, click'])
def test_dashboard_draws_and_stops(page, show, cell, key):
    """Points grow while the function runs; Stop ends it, whether the cell has returned or still awaits."""
    shown = show(cell)
    shown.wait(f'{Shown.points} > 3')
    shown.wait(f'{Shown.points} > {shown.get(Shown.points) + 10}')
    assert shown.get(Shown.status).startswith('running')
    assert shown.get("node.querySelectorAll('.al-db-live').length") == 1
    shown.press(key=key)
    shown.wait(f"{Shown.status}.startsWith('stopped')", timeout=20_000)
    stopped = shown.get(Shown.points)
    page.wait_for_timeout(600)
    assert shown.get(Shown.points) == stopped and shown.get("node.querySelector('.jupyter-button').disabled")

def test_error_reaches_label_and_await(page, show):
    """What the function raises stands in the status line as text, and the await in a cell raises it."""
    shown = show('fails')
    shown.wait(f"{Shown.status}.startsWith('failed')")
    assert '<img src=x onerror=window.hit=1> no tokens' in shown.get(Shown.status)
    show('raises').wait("node.querySelector('.jp-OutputArea').innerText.includes('raised ArithmeticError')")
    assert page.evaluate('() => window.hit') is None

def test_dashboard_follows_another_process(lab, show):
    """A row log that something else writes, with a half-written last line, grows in the picture."""
    log = lab.folder/'metrics.jsonl'
    log.write_text('{"step": 0, "reward": 0.1}\n')
    shown = show('follow')
    shown.wait(f'{Shown.points} == 1')
    with open(log, 'a') as f: f.write('{"step": 1, "reward": 0.2}\n{"step": 2, "rew')
    shown.wait(f'{Shown.points} == 2')
    with open(log, 'a') as f: f.write('ard": 0.3}\n')
    shown.wait(f'{Shown.points} == 3')
    shown.press(key=None)
    shown.wait(f"{Shown.status}.startsWith('stopped watching')", timeout=20_000)

def test_group_in_lab(page, show):
    """The static picture in a cell that has run: hostile text is text, nothing of it ran."""
    shown = show('group')
    shown.wait("node.querySelectorAll('.al-tile').length > 0")
    shown.get("node.querySelector('.al-more').open = true")
    assert '<script>window.hit=1</script>' in shown.get("node.querySelector('.al-more').innerText")
    assert page.evaluate('() => window.hit') is None

@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [1280, 480])
def test_report_page(browser, tmp_path, width, scheme):
    """The report loads from disk with no console message and no request, fits its width, and a tile opens its
    rollout by keyboard."""
    from agentlab.view import report
    path = report(write_run(tmp_path/'run'), estimator=lambda batch: batch.spread(batch.of_turn('outcome') - .5))
    page = browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme)
    said, asked = [], []
    page.on('console', lambda m: said.append(m.text))
    page.on('pageerror', lambda e: said.append(str(e)))
    page.on('request', lambda r: asked.append(r.url))
    page.goto(path.as_uri())
    assert len(page.screenshot(full_page=True)) > 20_000
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor")
        == dict(light='rgb(251, 250, 247)', dark='rgb(20, 22, 26)')[scheme])
    page.locator('.al-tile').first.focus()
    page.keyboard.press('Enter')
    assert page.locator('details.al-more:has(.al-turn:target)').first.evaluate('d => d.open')
    assert (said, asked) == ([], [path.as_uri()])
    page.close()

def test_hostile_text_is_shown_not_run(browser, tmp_path):
    """Scripts allowed, no policy to help: the picture itself must not run what a model wrote."""
    import torch
    from agentlab.view import group_html
    batch = hostile_batch()
    path = tmp_path/'group.html'
    path.write_text('<!doctype html><meta charset="utf-8">' + group_html(batch, torch.zeros(len(batch.actions))),
        encoding='utf-8')
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen = page.inner_text('body')
    for text in ('<script>window.hit=1</script>', '"><img src=x onerror="window.hit=1">', r'\u202e', '␛[31m'):
        assert text in seen
    assert page.evaluate('[window.hit, document.scripts.length, document.images.length]') == [None, 0, 0]
    page.close()

def test_the_microscope_redraws_finds_a_case_and_escapes(lab):
    "Keyboard alone: a slider moves the numbers, the button finds opposite signs, and a typed tag is text."
    with lab.open('microscope.ipynb', 'from agentlab import view\nscope = view.microscope()\nscope',
                  'scope.numbers') as page:
        lab.run(page, 0)
        page.wait_for_selector('.agentlab-microscope .al-ms-v', timeout=90_000)
        before = page.inner_text('.agentlab-microscope .al-ms table')
        for _ in range(20):  # until the sliders listen: on a busy machine that takes seconds
            page.wait_for_timeout(800)
            if page.inner_text('.agentlab-microscope .al-ms table') != before: break
            keep_focus(page, "document.querySelectorAll('.agentlab-microscope .widget-slider .noUi-handle')[2]")
            page.keyboard.press('ArrowLeft')
        assert page.inner_text('.agentlab-microscope .al-ms table') != before
        assert 'step_weight=0.' in page.inner_text('.agentlab-microscope .al-ms table')
        keep_focus(page, "[...document.querySelectorAll('.agentlab-microscope button')].find(b => "
            "b.innerText.startsWith('Make a case'))")
        page.keyboard.press('Enter')
        page.wait_for_function("() => document.querySelector('.agentlab-microscope "
            "[role=status]')?.innerText.includes('opposite signs')", timeout=30_000)
        cell = page.locator('.agentlab-microscope input[type=text]').nth(3)
        cell.fill('<img src=x onerror=window.hit=1>')
        cell.press('Tab')
        page.wait_for_function("() => document.querySelector('.agentlab-microscope .al-ms "
            "table').innerText.includes('<img src=x')", timeout=20_000)
        assert page.evaluate('window.hit') is None
