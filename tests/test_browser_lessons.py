"""Every lesson opens in a real JupyterLab, runs all its cells without an error, shows its pictures and asks no other
server for anything. In light and in dark, at 1280 x 900, no line of code is cut off, no output is wider than the page,
no widget is empty and no figure has a ground of its own. LOOK=folder keeps what the screen showed, to be looked at.

Outputs are cleared first, and each check of an exercise also stands before its solution, where it must fail
(tools/course.py, `proved`).
"""
import json
import os
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit
import pytest
import course
from lab import ROOT, browser, lab  # noqa: F401 (fixtures)
from notebooks import lessons, reads

pytestmark = pytest.mark.browser
# a plot, a picture, a group, a microscope
SHOWN = '.js-plotly-plot, .al-db, .jp-RenderedImage img, section.al, .al-ms, .al-grid'

def cleared(notebook):
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code':
            # what fails is reported, and what follows still runs
            cell['outputs'], cell['execution_count'], cell['metadata']['tags'] = [], None, ['raises-exception']
    return notebook

def marked(number, path):
    """`make test` opens the first lesson, `make test-long` the others, half of them in each of its processes. One with
    the pretrained model takes five minutes of two cores: tests/test_notebooks.py runs its other cells."""
    longer = [pytest.mark.long, pytest.mark.xdist_group(f'lessons {number % 2}')]
    return pytest.param(path, marks=[pytest.mark.lm, pytest.mark.slow] if reads(path) else longer if number else [])

# What is wrong on the screen now, of the cells that are near it.
FAULTS = """() => {
  const found = [], page = window.jupyterapp.shell.currentWidget.node;
  const name = node => (node.closest('.jp-Cell')?.innerText ?? '').trim().slice(0, 60).replaceAll('\\n', ' ');
  for (const code of page.querySelectorAll('.jp-CodeCell:not(.jp-mod-noInput) .jp-InputArea-editor .cm-scroller'))
    if (code.clientWidth && code.scrollWidth > code.clientWidth + 2)
      found.push(`a line of code is cut off: ${name(code)}`);
  for (const out of page.querySelectorAll('.jp-OutputArea-output'))
    if (out.clientWidth && out.scrollWidth > out.clientWidth + 2)
      found.push(`an output is ${out.scrollWidth - out.clientWidth} too wide: ${name(out)}`);
  for (const one of page.querySelectorAll('.jp-OutputArea-output[data-mime-type*=widget-view] > *'))
    if (one.getBoundingClientRect().height < 8) found.push(`a widget is empty: ${name(one)}`);
  for (const plot of page.querySelectorAll('.js-plotly-plot .main-svg'))
    if (!['transparent', 'rgba(0, 0, 0, 0)'].includes(getComputedStyle(plot).backgroundColor))
      found.push(`a figure has a ground of its own: ${name(plot)}`);
  return found;
}"""

def looked_at(page, theme, cells, keep=None):
    "What is wrong from the first cell to the last in a theme; `keep`: where pictures of the screen are left."
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    page.wait_for_function("dark => document.body.dataset.jpThemeLight === (dark ? 'false' : 'true')",
        arg='Dark' in theme)
    found = {}
    for place in range(0, cells, 2):
        page.evaluate("i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i, 'start')", place)
        page.wait_for_timeout(150)
        if keep: page.screenshot(path=f'{keep}-{"dark" if "Dark" in theme else "light"}-{place:03}.png')
        found |= dict.fromkeys(page.evaluate(FAULTS))
    return [f'{theme}: {fault}' for fault in found]

@pytest.mark.parametrize('path', [*map(marked, count(), lessons())], ids=lambda path: path.stem)
def test_lesson_in_jupyterlab(lab, path):
    for name in ('assets', 'nbs'):
        if not (lab.folder/name).exists(): (lab.folder/name).symlink_to(ROOT/name)
    (lab.folder/'tutorials').mkdir(exist_ok=True)
    notebook = cleared(course.proved(json.loads((ROOT/path).read_text(encoding='utf-8'))))
    (lab.folder/path).write_text(json.dumps(notebook), encoding='utf-8')
    with lab.show(path.as_posix()) as page:
        asked = []
        page.on('request', lambda r: asked.append(r.url))
        page.set_viewport_size(dict(width=1280, height=900))
        assert not page.locator('.Toastify__toast').count(), 'JupyterLab asks about its news'
        failed, not_run = lab.run_all(page, 1200 if reads(path) else 300)
        assert (failed, not_run) == ([], [])
        shown = f"window.jupyterapp.shell.currentWidget.node.querySelectorAll('{SHOWN}').length"
        for place in range(0, len(notebook['cells']), 5):  # JupyterLab draws what comes near the window
            page.evaluate('i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i)', place)
            page.wait_for_timeout(120)
            if page.evaluate(shown): break
        assert page.evaluate(shown), 'no picture and no widget is on the screen'
        keep = Path(os.environ['LOOK'])/path.stem if os.environ.get('LOOK') else None
        found = [looked_at(page, f'JupyterLab {theme}', len(notebook['cells']), keep) for theme in ('Light', 'Dark')]
        assert found == [[], []]
        strangers = [url for url in asked if urlsplit(url).scheme in ('http', 'https')
            and urlsplit(url).hostname != '127.0.0.1']
        assert strangers == []
