"""Every lesson opens in a real JupyterLab, runs all its cells without an error, shows its pictures and asks no other
server for anything.

Outputs are cleared first, and each check of an exercise also stands before its solution, where it must fail
(tools/course.py, `proved`).
"""
import json
from itertools import count
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
        assert not page.locator('.Toastify__toast').count(), 'JupyterLab asks about its news'
        failed, not_run = lab.run_all(page, 1200 if reads(path) else 300)
        assert (failed, not_run) == ([], [])
        shown = f"window.jupyterapp.shell.currentWidget.node.querySelectorAll('{SHOWN}').length"
        for place in range(0, len(notebook['cells']), 5):  # JupyterLab draws what comes near the window
            page.evaluate('i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i)', place)
            page.wait_for_timeout(120)
            if page.evaluate(shown): break
        assert page.evaluate(shown), 'no picture and no widget is on the screen'
        strangers = [url for url in asked if urlsplit(url).scheme in ('http', 'https')
            and urlsplit(url).hostname != '127.0.0.1']
        assert strangers == []
