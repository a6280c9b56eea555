"""One JupyterLab and one Chromium for a test module, and the few moves that tests make in them.

Use: `from lab import browser, lab` in a test module, then `with lab.open(notebook) as page`. Both fixtures skip, and
name what to install,
where playwright, JupyterLab or Chromium is missing.
"""
import contextlib, importlib.util, json, os, secrets, shutil, socket, subprocess, sys, time
import urllib.error, urllib.request
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = (os.environ.get('CHROMIUM')
    or next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None))

def need(*modules, program=False):
    "Skip the test and say what to install."
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing: pytest.skip(f'needs {", ".join(missing)}: pip install {" ".join(missing)}')
    if program and not CHROMIUM: pytest.skip('needs Chromium: apt-get install chromium, or set CHROMIUM to its path')

# not the session: playwright's event loop counts as running until it is closed, and other tests look for one
@pytest.fixture(scope='module')
def browser():
    "A headless Chromium, one per test module."
    need('playwright', program=True)
    from playwright.sync_api import sync_playwright
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-dev-shm-usage'])
        yield chromium
        chromium.close()

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def notebook(*cells):
    "A notebook of code cells, as a dictionary."
    cell = lambda i, source: dict(cell_type='code', id=f'cell{i}', metadata={}, execution_count=None, outputs=[],
        source=source)
    return dict(nbformat=4, nbformat_minor=5,
        metadata=dict(kernelspec=dict(name='python3', display_name='Python 3', language='python')),
        cells=[cell(i, source) for i, source in enumerate(cells)])

class Lab:
    "A running JupyterLab and the browser that looks at it."
    def __init__(self, folder, port, token, browser):
        self.folder, self.url, self.token, self.browser = folder, f'http://127.0.0.1:{port}', token, browser
    @contextlib.contextmanager
    def open(self, name, *cells):
        "Write the cells as notebook `name`, open it, and wait until its kernel is idle; gives the page."
        (self.folder/name).write_text(json.dumps(notebook(*cells)))
        with self.show(name) as page: yield page
    @contextlib.contextmanager
    def show(self, name):
        "Open a notebook that lies in the folder, and wait until its kernel is idle; gives the page."
        page = self.browser.new_page(viewport=dict(width=1280, height=1000))
        page.goto(f'{self.url}/doc/tree/{name}?token={self.token}&reset', timeout=90_000)
        page.wait_for_function('''() => {
            const s = window.jupyterapp?.shell?.currentWidget?.sessionContext;
            const kernel = s?.session?.kernel;
            return s?.isReady && kernel?.connectionStatus === 'connected' && kernel.status === 'idle' }''',
            timeout=90_000)
        try: yield page
        finally:
            page.evaluate('async () => { await window.jupyterapp.shell.currentWidget?.sessionContext?.shutdown() }')
            page.close()
    def run_all(self, page, seconds=300):
        "Run all cells; what the cells that failed said, and the code cells that did not run."
        page.evaluate("() => { window.ran = window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => "
            "true, () => false); window.ran.then(() => window.over = true) }")
        page.wait_for_function('() => window.over', timeout=seconds*1000, polling=250)
        return page.evaluate('''() => {
            const page = window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON();
            const cells = page.cells.filter(c => c.cell_type === 'code');
            const errors = c => c.outputs.filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue);
            const left = cells.filter(c => c.execution_count === null && (c.source + '').trim());
            return [cells.flatMap(errors), left.map(c => c.source + '')] }''')
    def run(self, page, cell):
        """Run one cell by its number; gives the JavaScript expression of its node. The command is used, as a click
        on the menu is dropped now and then."""
        page.evaluate("i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; "
            "window.jupyterapp.commands.execute('notebook:run-cell') }", cell)
        return f'window.jupyterapp.shell.currentWidget.content.widgets[{cell}].node'

def answer(url):
    try: return urllib.request.urlopen(url, timeout=2).status
    except (urllib.error.URLError, OSError): return None

@pytest.fixture(scope='module')
def lab(browser, tmp_path_factory):
    "A JupyterLab with its own configuration, on a free port, one per test module."
    need('jupyterlab', 'ipykernel')
    folder, port, token = tmp_path_factory.mktemp('lab'), free_port(), secrets.token_hex(16)
    (folder/'work').mkdir()
    own = {f'JUPYTER_{kind}_DIR': str(folder/kind.lower()) for kind in ('CONFIG', 'DATA', 'RUNTIME')}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    own['JUPYTER_CONFIG_PATH'] = str(ROOT/'tools'/'jupyter')
    command = [sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root', '--ip=127.0.0.1', f'--port={port}',
        f'--IdentityProvider.token={token}',
        f"--ServerApp.root_dir={folder/'work'}", '--LabApp.expose_app_in_browser=True']
    with open(folder/'log', 'wb') as log:
        server = subprocess.Popen(command, cwd=folder,
            env={**os.environ, **own, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1',
            'TOKENIZERS_PARALLELISM': 'false', 'HF_HUB_OFFLINE': '1'}, stdout=log,
            stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 90
        while not answer(f'http://127.0.0.1:{port}/api?token={token}'):
            if server.poll() is not None or time.monotonic() > until:
                pytest.fail('JupyterLab did not start:\n' + (folder/'log').read_text()[-3000:])
            time.sleep(.2)
        yield Lab(folder/'work', port, token, browser)
    finally:
        server.terminate()
        try: server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

def keep_focus(page, element):
    """Focus an element, given as JavaScript, until it keeps the focus: JupyterLab takes it for itself a moment after
    a cell has run."""
    page.evaluate('() => { window.held = 0 }')
    page.wait_for_function(f'() => {{ const it = {element}; if (document.activeElement === it) return ++window.held > '
        f'4; it.focus(); window.held = 0; return false }}', timeout=20_000, polling=50)

class Shown:
    "What one cell of a notebook shows, in terms of its `node`: run the cell, look, wait."
    points = ("((node.querySelector('.al-db-pane[data-name=reward] .al-db-line')?.getAttribute('d') ?? "
        "'').match(/[ML]/g) ?? []).length")
    status = "(node.querySelector('.agentlab-status')?.innerText ?? '')"
    def __init__(self, lab, page, cell): self.page, self.node = page, lab.run(page, cell)
    def get(self, expression): return self.page.evaluate(f'() => {{ const node = {self.node}; return {expression} }}')
    def wait(self, expression, timeout=60_000):
        self.page.wait_for_function(f'() => {{ const node = {self.node}; return {expression} }}', timeout=timeout,
            polling=50)
    def focus(self, element): keep_focus(self.page, f'(() => {{ const node = {self.node}; return {element} }})()')
    def press(self, number=0, key='Enter'):
        "The button of this number, by keyboard, or with the pointer where `key` is None."
        button = f"node.querySelectorAll('button.jupyter-button')[{number}]"
        self.wait(f'{button}?.disabled === false')
        self.get(f"{button}.scrollIntoView({{block: 'center'}})")
        if key:
            self.focus(button)
            self.page.keyboard.press(key)
        else: self.page.evaluate_handle(f"() => {{ const node = {self.node}; return {button} }}").as_element().click()

@pytest.fixture(scope='module')
def page(lab, request):
    "The CELLS of the test module as one notebook with one kernel, the first of them run; each test runs its own."
    with lab.open('cells.ipynb', *request.module.CELLS.values()) as page:
        lab.run(page, 0)
        yield page

@pytest.fixture(scope='module')
def show(lab, page, request):
    "Runs the cell of that name in CELLS; gives what it shows."
    return lambda name: Shown(lab, page, list(request.module.CELLS).index(name))
