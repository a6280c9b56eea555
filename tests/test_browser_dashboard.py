"""The page of the dashboard, opened cold in a real JupyterLab: all cells run, and the picture holds what the rows say,
in
light and in dark, also on a busy machine."""
import contextlib, io, json, os, subprocess, sys
import numpy as np
import pytest
from lab import ROOT, browser, lab  # noqa: F401 (fixtures)

pytestmark = pytest.mark.browser
PAGE, UPDATES, TURNS = 'nbs/view/01_dashboard.ipynb', 60, 12
BLUE = (59, 131, 181)                                      # of a line
PURPLE = dict(Light=(122, 74, 158), Dark=(195, 162, 232))  # of the strongest cell of the table
LINES = '''() => {
    const points = line => line.getAttribute('d').match(/[ML]/g).length;
    const lines = pane => [...pane.querySelectorAll('.al-db-box .al-db-line')].map(points);
    const panes = [...document.querySelectorAll('.al-db-live .al-db-pane')];
    return Object.fromEntries(panes.map(pane => [pane.dataset.name, lines(pane)])) }'''
CELLS = '''() => [...document.querySelectorAll('.al-db-live .al-db-cell')]
    .reduce((n, p) => n + p.getAttribute('d').match(/M/g).length, 0)'''
RED = '''() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells
    .flatMap(c => c.outputs ?? [])
    .filter(o => o.output_type === 'error' || o.name === 'stderr').map(o => `${o.evalue ?? o.text}`)'''

@contextlib.contextmanager
def busy():
    "Every core counts for as long as it lasts."
    counting = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(os.cpu_count() or 2)]
    try: yield
    finally:
        for process in counting:
            process.kill()
            process.wait()

def of_the_page(message):
    "Whether an error is the page's own: its photograph stands in the repository, and this folder has the page alone."
    return message.type == 'error' and '/assets/view/' not in message.location['url']

@contextlib.contextmanager
def cold(lab, name):
    """A copy of the page without outputs, in a browser that has seen nothing: page, its complaints, place of the
    live widget."""
    notebook = json.loads((ROOT/PAGE).read_text(encoding='utf-8'))
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code': cell['outputs'], cell['execution_count'] = [], None
    (lab.folder/name).write_text(json.dumps(notebook), encoding='utf-8')
    sources, said = [''.join(cell['source']) for cell in notebook['cells']], []
    with lab.show(name) as page:
        page.on('console', lambda m: said.append(f"{m.text} {m.location['url']}") if of_the_page(m) else None)
        page.on('pageerror', lambda e: said.append(str(e)))
        page.set_viewport_size(dict(width=1280, height=900))
        yield page, said, sources.index('#| eval: false\ndashboard')

def pixels(page, pane):
    "(height, width, 3) of a pane as it is on the screen."
    from PIL import Image
    shot = page.locator(f'.al-db-live [data-name={pane}]').screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert('RGB')).astype(int)

def share(picture, colour): return (np.abs(picture - colour).max(-1) < 40).mean()

def look(page, live, theme):
    "Every pane of the live dashboard has its points on the screen, in the colours of the theme."
    page.evaluate("t => window.jupyterapp.commands.execute('apputils:change-theme', {theme: `JupyterLab ${t}`})", theme)
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=str(theme == 'Light').lower())
    page.evaluate('i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i)', live)
    page.wait_for_selector('.al-db-live .al-db-line', timeout=60_000)
    one = dict.fromkeys(('reward', 'success', 'dead_groups', 'clip_fraction', 'grad_norm'), [UPDATES])
    assert page.evaluate(LINES) == one | dict(entropy_by_turn=[], kl=[UPDATES]*2)
    assert page.evaluate(CELLS) == UPDATES*TURNS
    page.wait_for_timeout(500)  # until the theme is painted
    for name in ('reward', 'success', 'kl'):
        picture = pixels(page, name)
        assert share(picture, BLUE) > .002, f'no line on the screen in {name}'
        assert (picture.mean() > 200) == (theme == 'Light')
    assert share(pixels(page, 'entropy_by_turn'), PURPLE[theme]) > .002
    assert page.locator('.al-db-live [data-name=kl] .al-db-y').all_inner_texts() == ['10⁻³', '10⁻¹', '10¹', '10³']
    assert 'A spike' in page.locator('.al-db-live .al-db-note').inner_text()

def run_and_look(lab, name):
    with cold(lab, name) as (page, said, live):
        assert lab.run_all(page) == [[], []]
        for theme in ('Light', 'Dark'): look(page, live, theme)
        assert (page.evaluate(RED), said) == ([], [])
        assert page.get_by_text('Error displaying widget').count() == 0

def test_a_cold_page_is_drawn_in_light_and_dark(lab): run_and_look(lab, 'cold.ipynb')

@pytest.mark.slow
def test_a_cold_page_is_drawn_on_a_busy_machine(lab):
    with busy(): run_and_look(lab, 'busy.ipynb')

ROWS = '''from agentlab import view
rows = [dict(step=i, reward=i/7, success=None if i == 5 else .5, entropy_by_turn=[1., i/9], kl_median=.001,
             kl_max=5150.) for i in range(9)]
view.Dashboard(rows)'''

def test_the_pointer_and_the_keys_read_an_update(lab):
    "Its numbers stand in all panes: by pointer, by arrow keys, and in words for those who hear them; a gap is a gap."
    with lab.open('read.ipynb', ROWS) as page:
        lab.run(page, 0)
        page.wait_for_selector('.al-db-live .al-db-line', timeout=60_000)
        told = lambda name: page.locator(f'.al-db-live [data-name={name}] figcaption b').inner_text()
        assert told('reward') == '1.143' and told('kl') == 'median 0.001, largest 5150'
        box = page.locator('.al-db-live [data-name=reward] .al-db-box').bounding_box()
        page.mouse.move(box['x'] + box['width']*3.2/8, box['y'] + 40)
        assert told('reward') == 'update 3: 0.428571'  # six digits while it is read
        assert told('kl') == 'update 3: median 0.001, largest 5150'
        page.mouse.move(2, 2)
        page.locator('.al-db-live').focus()
        for key in ('Home', 'ArrowRight', 'ArrowRight'): page.keyboard.press(key)
        assert told('reward') == 'update 2: 0.285714'
        assert 'reward update 2: 0.285714' in page.locator('.al-db-heard').inner_text()
        page.keyboard.press('Escape')
        assert told('reward') == '1.143'
        assert page.locator('.al-db-live [data-name=success] .al-db-line').get_attribute('d').count('M') == 2

def test_a_narrow_window_has_one_pane_below_the_other(lab):
    with lab.open('narrow.ipynb', ROWS) as page:
        page.set_viewport_size(dict(width=560, height=900))
        lab.run(page, 0)
        page.wait_for_selector('.al-db-live .al-db-line', timeout=60_000)
        lefts = page.evaluate('() => [...document.querySelectorAll(".al-db-pane")].map(p => '
            'Math.round(p.getBoundingClientRect().left))')
        assert len(lefts) == 7 and len(set(lefts)) == 1
        assert page.evaluate('() => { const b = document.querySelector(".al-db-live"); return b.scrollWidth <= '
            'b.clientWidth + 1 }')
