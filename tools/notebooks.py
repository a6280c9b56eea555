"""Every notebook of the project: find it, run it in a process of its own, tidy its file.

`python tools/notebooks.py NOTEBOOK [--save] [--flag gpu]` runs one; `make save` uses it. tests/test_notebooks.py runs
many: there a `Nursery`
imports once what nearly all of them import, which takes longer than many a notebook, and every notebook gets a fork of
it.
With JITTER=1 (or 2, ...) in the environment every training in them goes as it might on another processor: see `jitter`.
"""
import gc
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import chain, product
from pathlib import Path
from string import ascii_letters, digits

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = 'nbs', 'tutorials'
CLOSED = re.compile(r'#\s*\|\s*(solution\b|code-fold: *true)')
# plotly's renderers bring nbformat, and with it a grammar for web addresses: more than a second in every fork
COMMON = ('torch', 'transformers', 'transformers.models.qwen3', 'transformers.models.qwen3.modeling_qwen3', 'pandas',
    'plotly.graph_objects', 'plotly.subplots', 'plotly.io._renderers', 'execnb.shell', 'nbdev.test',
    'agentlab.train', 'agentlab.view')
KERNEL = dict(display_name='python3', language='python', name='python3')

def notebooks() -> list[Path]:
    "Every notebook, in reading order; files and folders that start with _ or . are drafts and checkpoints."
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT/folder).rglob('*.ipynb')]
    return sorted(path for path in found if not any(part[0] in '_.' for part in path.parts))

def lessons() -> list[Path]:
    "The lessons of the course."
    return [path for path in notebooks() if path.parts[0] == 'tutorials']

def cells_of(path: Path|str) -> list[dict]:
    "The cells of a notebook."
    return json.loads((ROOT/path).read_text(encoding='utf-8'))['cells']

def unpacked(path: Path) -> str:
    "The text of a file that `pack` wrote."
    return lzma.decompress(path.read_bytes()).decode()

def pack(path: Path, text: str) -> None:
    "Keep a text in a fifth of the room; pandas reads a table as it is."
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

def reads(path: Path) -> bool:
    "Whether some cells of the notebook need the pretrained model."
    return '"#| lm' in (ROOT/path).read_text(encoding='utf-8')

ID_LENGTH, SIGNS = 2, ascii_letters + digits  # of the names of cells, which are apart within a notebook
PLOTLY = 'application/vnd.plotly.v1+json'
NAMED = re.compile(r'<[\w.]+( object)?>|Html of [\d,]+ characters')  # plain text that names what stands beside it
TEXTS = 'text', 'text/plain', 'text/markdown', 'text/html'
# bitsandbytes, on a CPU with AVX512-BF16, when somebody imports it
ADVICE = re.compile(r'Failed to load CPU gemm_4bit_forward from kernels-community[^\n]*\n?$')

def as_file(page: dict) -> str:
    """What stands in the file of a notebook: a line for what a cell has put out, if anything, and one for its source,
    as one text. Spaces, line ends and marks between would be a twelfth of all notebooks. JupyterLab's names of cells,
    of 36 characters, shrink to one, or two where a notebook has more than 62."""
    taken = {name for cell in page['cells'] if len(name := cell.get('id', '')) <= ID_LENGTH}
    for cell in page['cells']: cell['id'] = short_id(cell['id'], taken)
    for output in (output for cell in page['cells'] for output in cell.get('outputs', [])):
        for part in output, output.get('data', {}):
            part.update({name: ''.join(part[name]) for name in TEXTS if name in part})
    short = dict(sort_keys=True, ensure_ascii=False, separators=(',', ':'))
    def written(cell):
        head = json.dumps({name: x for name, x in cell.items() if name != 'source'}, **short)
        line = '\n'*bool(cell.get('outputs'))
        return f'{head[:-1]},"source":{line}{json.dumps("".join(cell["source"]), **short)}}}'
    rest = json.dumps({name: x for name, x in page.items() if name != 'cells'}, **short)
    return '{"cells":[\n' + ',\n'.join(map(written, page['cells'])) + '\n],' + rest[1:] + '\n'

def short_id(name: str, taken: set[str]) -> str:
    "A name that is short already stays; for another the first that is free, which is added to those `taken`."
    if len(name) <= ID_LENGTH: return name
    short = next(x for x in chain(SIGNS, map(''.join, product(SIGNS, repeat=ID_LENGTH))) if x not in taken)
    taken.add(short)
    return short

def tidy(text: str) -> str:
    """The notebook file as `nbdev-clean` cleans it, with a kernel, so that JupyterLab opens it without a question, and
    no trace of jupytext.

    Solutions, and cells that say `#| code-fold: true`, are folded away, pictures have alternative text, the data of a
    live figure is left out where a picture of it stands beside; so is the plain text of pictures and of tables, which
    nothing shows. Tables of pandas are kept in Markdown until the cell runs again.
"""
    from fastcore.nbio import nb2dict
    from nbdev.clean import clean_nb
    nb = json.loads(text)
    nb['metadata'].pop('jupytext', None)
    nb['metadata']['kernelspec'] = dict(KERNEL)
    clean_nb(nb, allowed_cell_metadata_keys=['jupyter', 'tags'], allowed_out_metadata_keys=['image/png'])
    above = ''
    for cell in nb['cells']:
        said = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown': above = said
        elif CLOSED.match(said): cell['metadata'] = dict(jupyter=dict(source_hidden=True))
        else: cell['metadata'].pop('jupyter', None)
        if 'outputs' in cell:
            cell['outputs'] = [output for output in cell['outputs']
                if not ADVICE.match(''.join(output.get('text', '')))]
        for output in cell.get('outputs', []): shorten(output, above)
        if 'outputs' in cell: cell['outputs'] = [output for output in cell['outputs'] if output.get('data', True)]
    return as_file(nb2dict(nb))

def shorten(output: dict, above: str) -> None:
    "Leave out of an output what its picture or its table tells; `above` is the prose before it."
    data = output.get('data', {})
    table, picture = 'class="dataframe"' in ''.join(data.get('text/html', '')), 'image/png' in data
    if table and (lines := markdown_table(data['text/html'])):
        data['text/markdown'] = lines
        del data['text/html']
    elif table: data['text/html'] = short_table(data['text/html'])
    if 'text/markdown' in data: data['text/markdown'] = tight(''.join(data['text/markdown']))
    named = NAMED.fullmatch(''.join(data.get('text/plain', ''))) and len(data) > 1
    if table or picture or named: data.pop('text/plain', None)
    if not picture: return
    told = output.get('metadata', {}).get('image/png', {}).get('alt')
    alt = told if told and PLOTLY not in data else alternative(data, above)
    output['metadata'] = {'image/png': dict(alt=clipped(alt))}
    data.pop(PLOTLY, None)  # the live figure comes back when the cell runs; its picture is enough until then

def short_table(html: str | list[str]) -> str | list[str]:
    """A table of pandas in half the space: one line a row, and no style sheet, which GitHub drops and JupyterLab does
    not need; any other HTML as it is."""
    text = ''.join(html)
    if 'class="dataframe"' not in text: return html
    text = re.sub(r'<style scoped>.*?</style>\n?', '', text, flags=re.DOTALL)
    return re.sub(r'\n *(?=</?t[hd]\b|</tr>)', '', re.sub(r'\n +', '\n', text)).splitlines(keepends=True)

class Cells(HTMLParser):
    "The rows of an HTML table, of the head and of the body, and what stands below; `plain`: there is nothing else."
    def __init__(self, html: str):
        super().__init__()
        self.head, self.body, self.below, self.hanging = [], [], [], {}
        self.rows, self.cell, self.plain = [], None, True
        self.feed(html)
    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        if tag == 'thead': self.rows = self.head
        elif tag == 'tbody': self.rows = self.body
        elif tag == 'tr': self.rows.append([])
        elif tag in ('th', 'td'):
            row = self.rows[-1]
            while self.hanging.get(len(row), 0):  # a cell of a row above reaches down to here
                self.hanging[len(row)] -= 1
                row.append('')
            self.hanging[len(row)] = int(at.get('rowspan', 1)) - 1
            self.plain &= 'colspan' not in at
            self.cell = row
            row.append('')
        elif tag == 'p': self.cell = self.below
        else: self.plain &= tag in ('div', 'table')
        if tag == 'p': self.below.append('')
    def handle_endtag(self, tag):
        if tag in ('th', 'td', 'p'): self.cell = None
    def handle_data(self, data):
        if self.cell: self.cell[-1] += data

def markdown_table(html: str | list[str]) -> list[str] | None:
    """A table of pandas in Markdown, a third of its HTML; numbers stand on the right. None for one that Markdown cannot
    say: columns below columns, HTML in its cells."""
    told = Cells(''.join(short_table(html)))
    head, *second = told.head
    if second and len(second[0]) == len(head):  # the names of the index, below those of the columns
        if len(second) == 1 and not any(a.strip() and b.strip() for a, b in zip(head, second[0])):
            head, second = [a.strip() or b.strip() for a, b in zip(head, second[0])], []
    if second or not told.plain or any(len(row) != len(head) for row in told.body): return None
    number = re.compile(r'[-+−]?[\d,.]+(e[-+]?\d+)?\s?%?|nan|NaN|[-+]?inf|')
    right = [all(number.fullmatch(row[i].strip()) for row in told.body) for i in range(len(head))]
    line = lambda row: '|' + '|'.join(map(as_markdown, row)) + '|'
    rule = '|' + '|'.join('--:' if side else '---' for side in right) + '|'
    return '\n'.join([line(head), rule, *map(line, told.body), *[f'\n{text}' for text in told.below]]).splitlines(True)

def as_markdown(text: str) -> str:
    "Text of a cell, such that Markdown shows its very letters."
    return re.sub(r'([\\`*\[\]<>|$~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;))', r'\\\1', ' '.join(text.split()))

def tight(text: str) -> str:
    "Markdown whose tables have no spaces beside their lines, which nobody sees."
    return re.sub(r'^ *\|.*$', lambda row: re.sub(r' *(?<!\\)\| *', '|', row[0]), text, flags=re.MULTILINE)

def clipped(text: str, longest: int = 84) -> str:
    "The text up to a word, where it is longer: whoever hears it has just heard the paragraph that it goes on with."
    return text if len(text) <= longest else text[:longest - 2].rsplit(' ', 1)[0] + ' …'

def alternative(data: dict, above: str) -> str:
    "What somebody hears who cannot see the picture: its titles, axes and curves, and the paragraph above it."
    figure = data.get(PLOTLY, {})
    layout = figure.get('layout', {})
    text = lambda value: re.sub(r'<[^>]+>', ' ',
        str((value or {}).get('text', '') if isinstance(value, dict) else value or ''))
    axes = [text(axis.get('title')) for name, axis in layout.items() if re.match('[xy]axis', name)]
    parts = dict(panels=[text(layout.get('title'))] + [text(note) for note in layout.get('annotations', [])][:6],
        axes=axes,
        shown=[str(trace.get('name') or '') for trace in figure.get('data', [])
        if trace.get('showlegend') is not False][:8])
    listed = [f'{name}: {", ".join(found)}' for name, values in parts.items()
        if (found := list(dict.fromkeys(filter(None, map(str.strip, values)))))]
    prose = re.sub(r'[*_`>#$|]|\[([^]]*)\]\([^)]*\)', lambda m: m[1] or '', above.strip().split('\n\n')[-1])
    return ' '.join(f'{"; ".join(listed) or "Picture"}. {prose}'.split())

def jitter(number: float) -> None:
    """Move each weight by about a millionth after every step of an optimizer; 0: leave it alone.

    Processors round in another order, and in a training the difference grows until another token is drawn: from there
    on it is another run. So does
    this. By how much a weight moves follows from the weight and the number: a run repeats itself bit for bit, and every
    number is another processor.
"""
    if not number: return
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    @torch.no_grad()
    def move(optimizer, *_):
        for weight in (w for group in optimizer.param_groups for w in group['params'] if w.grad is not None):
            weight.mul_(1 + 1e-6*torch.sin(1e4*number*weight))
    register_optimizer_step_post_hook(move)

def execute(path: Path, flags: list[str], save: bool) -> bool:
    "Run the notebook at `path` in this process, cells with a directive of `flags` too; whether every cell passed."
    from nbdev.config import get_config
    from nbdev.test import nb_test_cells, test_nb
    config = get_config(ROOT)
    skip = config.tst_flags.split()
    if not nb_test_cells(path, skip, flags):
        print(f'{path}: no code cell would run', file=sys.stderr)
        return False
    jitter(float(os.environ.get('JITTER') or 0))
    if save: draw_fast()
    with path_to_run(path, save) as run_path:
        passed, _ = test_nb(run_path, skip_flags=skip, force_flags=flags, basepath=ROOT, save=save,
            cell_timeout=config.cell_timeout)
    return passed

@contextmanager
def path_to_run(path: Path, save: bool):
    """The notebook itself; where it is tested a copy beside it, in which its solutions run too: of a lesson every
    check must fail before its solution, of a page the folded code is the solution."""
    folders = {ROOT/name for name in FOLDERS} & set(path.parents)
    if save or not folders:
        yield path
        return
    import course
    made = course.proved if ROOT/'tutorials' in folders else course.solved
    copy = path.with_name(f'.proved-{os.getpid()}-{path.name}')
    copy.write_text(json.dumps(made(json.loads(path.read_text(encoding='utf-8')))), encoding='utf-8')
    try: yield copy
    finally: copy.unlink()

def draw_fast() -> None:
    "One Chromium for all figures of a notebook: without it each saved figure starts its own."
    import kaleido
    import plotly.io
    plotly.io.defaults.headers = None  # plotly warns at every figure that a running server takes no options
    kaleido.start_sync_server(silence_warnings=True, mathjax=False)  # MathJax would be fetched from the network

def environment(save: bool) -> dict[str, str]:
    "The environment variables of a notebook's process: one thread, no network, and pictures only where they are kept."
    fixed = dict(OMP_NUM_THREADS='1', TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1')
    return os.environ | fixed | dict(PLOTLY_RENDERER='plotly_mimetype+png' if save else 'json')

def run(path: Path, flags: tuple[str, ...] = (), save: bool = False, seconds: float = 900) -> str:
    "Run the notebook in a new process; the empty string if it passed, else what it printed. Its children end with it."
    command = [sys.executable, __file__, str(path), *(['--save'] if save else []),
        *(word for flag in flags for word in ('--flag', flag))]
    child = subprocess.Popen(command, cwd=ROOT, env=environment(save), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try: said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired: said = f'{path}: still running after {seconds} seconds'
    finally:
        try: os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError: pass
    return '' if child.wait() == 0 else said or f'{path}: exit status {child.returncode}'

class Nursery:
    "A process that has imported what most notebooks import and forks for each; without `fork` each starts a new one."
    def __init__(self): self.server = None
    def run(self, path: Path, flags: tuple[str, ...] = (), seconds: float = 900) -> str:
        "As `run`, which does it where there is no Linux to fork."
        if sys.platform != 'linux': return run(path, flags, seconds=seconds)
        if self.server is None:
            self.server = subprocess.Popen([sys.executable, __file__, '--serve'], cwd=ROOT, env=environment(False),
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder)/'said'
            self.server.stdin.write(json.dumps(dict(path=str(path), flags=flags, seconds=seconds, said=str(said)))
                + '\n')
            self.server.stdin.flush()
            status, text = json.loads(self.server.stdout.readline()), said.read_text(errors='replace')
        if status is None: return f'{path}: still running after {seconds} seconds'
        return '' if status == 0 else text or f'{path}: exit status {status}'
    def close(self):
        if self.server: self.server.communicate()

def draw_first() -> None:
    "The first figure imports two hundred modules of plotly and its templates, a third of a second: before the forks."
    from plotly.subplots import make_subplots
    figure = make_subplots(1, 2)
    figure.add_scatter(x=[1], y=[1], row=1, col=1)
    figure.add_bar(x=[1], y=[1], row=1, col=2)
    figure.update_layout(template=dict()).to_json()

def serve() -> int:
    """Fork for every line that says what to run; in the fork, whether the notebook failed. Ends when there are no
    more lines."""
    from importlib import import_module
    for name in COMMON: import_module(name)
    draw_first()
    gc.freeze()  # a collection in a fork would copy all of it
    for line in iter(sys.stdin.readline, ''):
        asked = json.loads(line)
        child = os.fork()
        if not child: return born(**asked)
        print(json.dumps(awaited(child, asked['seconds'])), flush=True)
    return 0

def born(path: str, flags: list[str], said: str, seconds: float) -> int:
    "In a fork: as if the process had been started for this notebook alone."
    os.setsid()
    silent, spoken = os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_CREAT)
    for handle, place in ((silent, 0), (spoken, 1), (spoken, 2)): os.dup2(handle, place)
    sys.argv = [__file__, path, *(word for flag in flags for word in ('--flag', flag))]
    return 0 if execute(Path(path).resolve(), flags, False) else 1

def awaited(child: int, seconds: float) -> int | None:
    "Exit status of a child, None where it took too long; its own children end with it."
    end, status = time.monotonic() + seconds, None
    while status is None and time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT): status = 0
        else: time.sleep(.02)
    try: os.killpg(child, signal.SIGKILL)
    except ProcessLookupError: pass
    _, ended = os.waitpid(child, 0)
    return None if status is None else os.waitstatus_to_exitcode(ended)

def main() -> int:
    if sys.argv[1:] == ['--serve']: return serve()
    parser = ArgumentParser(description='Run one notebook.')
    parser.add_argument('notebook', type=Path)
    parser.add_argument('--save', action='store_true', help='keep the outputs, if every cell passed')
    parser.add_argument('--flag', action='append', default=[], help='run the cells that start with `#| FLAG` too')
    asked = parser.parse_args()
    return 0 if execute(asked.notebook.resolve(), asked.flag, asked.save) else 1

if __name__ == '__main__': sys.exit(main())
