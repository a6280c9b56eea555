"""The site of the documentation: `make docs` writes build/docs/html from the notebooks and the docstrings, and checks
every link inside.

The pages are the notebooks without their hidden cells and without live figures (their pictures stay); what stands
beside them is made by docs_pages.py and docs_gallery.py, style sheet, scripts and settings lie in tools/docs. The
reference is read from the source of agentlab/; maths is drawn by a MathJax that lies beside the pages. Nothing is
fetched when a page is read. This runs with the environment of the project, Sphinx in one of its own.
"""
import ast
import base64
import io
import json
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs_pages import MADE_FROM, cells, headings, with_terms, write_glossary, write_systems
from notebooks import CLOSED, ROOT, environment, notebooks
from readme import LINK, shown_source

SITE = ROOT/'build'/'docs'
FOLDERS = ('env', 'policy', 'rollout', 'reward', 'credit', 'objective', 'entropy', 'replay', 'prompt', 'selfplay',
    'train', 'view', 'bench', 'interop', 'cli')
PAGES, FILES = ('CHANGELOG.md', 'CONTRIBUTING.md'), ('LICENSE', 'CITATION.cff')
STATIC = 'site.css', 'terms.js', 'filter.js', 'scorer.js'
FIND = """**On this site**: [systems by name](systems.md), a [gallery of worlds](gallery/worlds.md), a
[gallery of runs](gallery/runs.md) that open without a kernel, the [glossary](glossary.md). A word with dots below it
tells what it means when you point at it."""

# JupyterLab keeps capitals and marks in the anchors of headings, MyST does not; of this page, and of another one
ANCHOR = re.compile(r'(?<=\]\()(?![a-z]+:)([^)#\s]*#)([^)\s]+)')
PAGE = re.compile(r'(href="(?![a-z]+:)[^"#]*)\.ipynb')  # a link in a table that a cell has written as HTML

def markdown(text: str) -> dict: return dict(cell_type='markdown', id=f'added{len(text)}', metadata={}, source=text)

def cleaned(notebook: dict) -> dict:
    """The notebook as a page: without hidden cells and directives, live figures and execution counts; solutions
    and what says so are folded away."""
    cells = []
    for cell in notebook['cells']:
        source, hidden = ''.join(cell['source']), False
        if cell['cell_type'] == 'code':
            folds = CLOSED.match(source)
            source, hidden, no_input = shown_source(source)
            tags = ['hide-input'] if folds else ['remove-input'] if no_input else []
            spoken = [about['alt'] for output in cell['outputs'] for about in output.get('metadata', {}).values()
                if 'alt' in about]
            outputs = list(map(still, cell['outputs']))
            picture = dict(alt=spoken[0]) if spoken else {}
            if any(map(see_through, outputs)): picture['classes'] = 'clear'
            shown = dict(image=picture) if picture else {}
            if folds and folds[1] != 'solution':
                shown |= dict(code_prompt_show='Show the code', code_prompt_hide='Hide the code')
            cell = cell | dict(metadata=dict(tags=tags) | (dict(mystnb=shown) if shown else {}),
                outputs=outputs, execution_count=None)
        else: source = ANCHOR.sub(lambda link: link[1] + re.sub(r'[^\w-]', '', link[2].lower()), source)
        if not hidden: cells.append(cell | dict(id=f'cell{len(cells)}', source=source))
    return notebook | dict(cells=cells)

def still(output: dict) -> dict:
    "An output without its live figure, whose links lead to pages of the site."
    data = {kind: value for kind, value in output.get('data', {}).items() if 'plotly' not in kind
        and 'widget' not in kind}
    if 'text/html' in data: data['text/html'] = PAGE.sub(r'\1.html', ''.join(data['text/html']))
    return output | dict(data=data) if 'data' in output else output

def see_through(output: dict) -> bool:
    "Whether it is a picture whose ground is the page's. A photograph of a page has a ground of its own."
    from PIL import Image
    png = base64.b64decode(''.join(output.get('data', {}).get('image/png', '')))
    return bool(png) and Image.open(io.BytesIO(png)).has_transparency_data

def toctree(names: list[str], caption: str = '', depth: int = 1) -> str:
    head = f':caption: {caption}\n' if caption else ''
    return '\n'.join(['```{toctree}', f':maxdepth: {depth}\n:hidden:\n{head}', *names, '```'])

def from_root(text: str) -> str:
    "The text of nbs/index with its links made relative to the root."
    return LINK.sub(lambda link: link[1] + ('' if link[2].startswith('../') else 'nbs/') + link[2].removeprefix('../'),
        text)

def start(notebook: dict) -> dict:
    "The first page: nbs/index, with links from the root, and the contents of the site."
    made = cleaned(notebook)
    for cell in made['cells']:
        cell['source'] = from_root(cell['source'])
        for output in cell.get('outputs', []):
            if 'text/markdown' in output.get('data', {}):
                output['data'] = {'text/markdown': from_root(''.join(output['data']['text/markdown']))}
    doors = next(i for i, cell in enumerate(made['cells']) if '## Three doors' in cell['source'])
    made['cells'].insert(doors + 1, markdown(FIND))
    alone = [path for path in notebooks() if path.parent == Path('nbs') and path.stem != 'index']
    made['cells'] += [markdown(toctree([path.with_suffix('').as_posix() for path in notebooks()
        if path.parts[0] == 'tutorials'], 'The course')),
        markdown(toctree(['systems', 'glossary', 'gallery/worlds', 'gallery/runs'], 'Find and look')),
        markdown(toctree([path.with_suffix('').as_posix() for path in alone] + ['metrics'], 'Foundations')),
        markdown(toctree([front(folder) for folder in FOLDERS], 'One choice, one folder')),
        markdown(toctree(['api/index', *(name.removesuffix('.md') for name in PAGES)], 'Reference'))]
    return made

def front(folder: str) -> str:
    "The first page of a folder."
    return (f'nbs/{folder}/index' if (ROOT/'nbs'/folder/'index.ipynb').exists()
        else next(path for path in notebooks() if path.parts[:2] == ('nbs', folder)).with_suffix('').as_posix())

def in_order(index: Path) -> list[str]:
    "The other pages of a folder as the tables of its first page list them, then those that it does not."
    lines = '\n'.join(text for kind, text in cells(index.as_posix()) if kind == 'markdown').splitlines()
    first_columns = [line.split(' | ')[0] for line in lines if line.startswith('| [')]
    listed = re.findall(r'\]\((\w+)\.ipynb', '\n'.join(first_columns))
    others = [path.stem for path in notebooks() if path.parent == index.parent and path != index]
    return sorted(others, key=lambda name: listed.index(name) if name in listed else len(listed))

def write_pages(folder: Path) -> None:
    "Every notebook, the text pages, and the pictures and files that pages show."
    for path in notebooks():
        notebook = json.loads((ROOT/path).read_text(encoding='utf-8'))
        page = start(notebook) if path == Path('nbs/index.ipynb') else cleaned(notebook)
        with_terms(page['cells'])
        is_front = (path.parts[0] == 'nbs' and len(path.parts) == 3
            and path.with_suffix('').as_posix() == front(path.parts[1]))
        others = in_order(path) if is_front else []
        if others: page['cells'].append(markdown(toctree(others)))
        target = folder/('index.ipynb' if path == Path('nbs/index.ipynb') else path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(page), encoding='utf-8')
    for name in PAGES + FILES: shutil.copy(ROOT/name, folder/name)
    shown = [path for path in (ROOT/'assets').rglob('*') if path.name.endswith(('.png', '.webp', '.csv', '.csv.xz'))]
    for path in [*shown, *(ROOT/'tools').rglob('*.py')]:  # pages of the bench lead to the code that they tell of
        (folder/path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder/path.relative_to(ROOT))

def write_around(folder: Path, gallery: Path, mathjax: Path) -> None:
    "What is not made from notebooks: settings, style, scripts, words, systems, galleries, reference, metrics."
    (folder/'_static'/'mathjax').mkdir(parents=True)
    for name in STATIC: shutil.copy(ROOT/'tools'/'docs'/name, folder/'_static')
    shutil.copy(ROOT/'tools'/'docs'/'conf.py', folder)
    shutil.copy(mathjax, folder/'_static'/'mathjax')
    shutil.copytree(gallery/'runs', folder/'_extra'/'runs')
    (folder/'gallery').mkdir()
    for page in gallery.glob('*.md'): shutil.copy(page, folder/'gallery')
    for write in write_systems, write_glossary, write_reference, write_metrics: write(folder)

def signature(node: ast.AST) -> str:
    "The arguments of a function, on one line, without annotations."
    a = node.args
    for argument in filter(None, [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]):
        argument.annotation = None
    return f'({ast.unparse(a)})'

def head_of(node: ast.AST, lines: list[str]) -> str:
    "A definition as it stands in the source, with the comments beside its parameters, up to its docstring."
    first = node.body[0].lineno if node.body[0].lineno > node.lineno else node.lineno + 1
    return '\n'.join(lines[node.lineno - 1:first - 1]).rstrip()

def described(kind: str, name: str, node: ast.AST, lines: list[str], inner: str = '') -> str:
    "One entry of the reference."
    code = f'\n```python\n{head_of(node, lines)}\n```\n' if kind != 'class' else ''
    call = signature(node) if kind != 'class' else ''
    text = ast.get_docstring(node) or ''
    plain = re.sub(r'([*_<>\[\]|$\\{}])(?=(?:[^`]*`[^`]*`)*[^`]*\Z)', r'\\\1', text)  # but not inside `code`
    return (f'`````{{py:{kind}}} {name}{call}\n\n{plain}\n{code}\n{inner}\n`````\n' if kind != 'method'
        else f'````{{py:method}} {name}{call}\n\n{plain}\n{code}\n````\n')

def public(tree: ast.Module) -> list[str]:
    "`__all__` of a module."
    named = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
        and getattr(node.targets[0], 'id', '') == '__all__']
    return named[0] if named else []

def module_reference(path: Path) -> str:
    "The public functions and classes of one module."
    text = path.read_text(encoding='utf-8')
    tree, lines = ast.parse(text), text.splitlines()
    module, entries = '.'.join(path.relative_to(ROOT).with_suffix('').parts), []
    for node in tree.body:
        if getattr(node, 'name', None) not in public(tree): continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            entries.append(described('function', f'{module}.{node.name}', node, lines))
        elif isinstance(node, ast.ClassDef):
            methods = [described('method', m.name, m, lines) for m in node.body if isinstance(m, ast.FunctionDef)
                and not m.name.startswith('_') and ast.get_docstring(m)]
            entries.append(described('class', f'{module}.{node.name}', node, lines, '\n'.join(methods)))
    source = MADE_FROM.search(text)
    page = (f'From the page [{headings(source[1])[0][2]}](../{source[1]}).\n\n' if source
        and source[1] != 'nbs/index.ipynb' else '')
    return f'## {module}\n{page}' + '\n'.join(entries) if entries else ''

def write_reference(folder: Path) -> None:
    "A page for each package, and one for the modules that stand alone."
    api = folder/'api'
    api.mkdir(parents=True, exist_ok=True)
    alone = [path for path in sorted((ROOT/'agentlab').glob('*.py')) if not path.stem.startswith('_')]
    groups = {'core': alone} | {name: sorted(p for p in (ROOT/'agentlab'/name).glob('*.py')
        if not p.stem.startswith('_')) for name in FOLDERS
        if (ROOT/'agentlab'/name).is_dir()}
    for name, paths in groups.items():
        title = 'agentlab' if name == 'core' else f'agentlab.{name}'
        (api/f'{name}.md').write_text(f'# {title}\n\n' + '\n'.join(filter(None, map(module_reference, paths))),
            encoding='utf-8')
    lines = [f'- [agentlab{"" if name == "core" else "." + name}]({name}.md)' for name in groups]
    (api/'index.md').write_text('# Functions and classes\nRead from the source: signature, what stands beside each '
        'parameter, docstring. The page of each module tells the idea.\n\n'
        + '\n'.join(lines) + '\n\n' + toctree(list(groups)), encoding='utf-8')

def declared_metrics() -> dict[str, list[str]]:
    "Name -> what it is, its estimate, its unit: every call of `metric` in the package, read from the source."
    found = {}
    for path in sorted((ROOT/'agentlab').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'metric':
                name, *words = map(ast.literal_eval, node.args[:4])
                found[name] = words
    return dict(sorted(found.items()))

def write_metrics(folder: Path) -> None:
    "The dictionary of metrics, from their declarations."
    escape = lambda part: part.replace('|', r'\|').replace('*', r'\*')
    lines = [f'| `{name}` | ' + ' | '.join(map(escape, words)) + ' |' for name, words in declared_metrics().items()]
    (folder/'metrics.md').write_text('# Metrics\nWhat a row of `metrics.jsonl` holds, one row an update (`tests.jsonl` '
        'where it says so). [The page of metrics](nbs/04_metrics.ipynb) tells how one declares itself.\n\n'
        '| name | is | estimated by | unit |\n|---|---|---|---|\n' + '\n'.join(lines) + '\n', encoding='utf-8')

class Links(HTMLParser):
    "What a page links to, what it loads, and its anchors."
    def __init__(self, text: str):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(text)
    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        self.anchors |= {at[name] for name in ('id', 'name') if at.get(name)}
        if tag == 'a' and at.get('href'): self.links.append(at['href'])
        elif tag == 'link' and at.get('href') and at.get('rel') in ('stylesheet', 'icon', 'preload'):
            self.loads.append(at['href'])
        elif tag != 'a' and at.get('src'): self.loads.append(at['src'])

def broken(site: Path) -> list[str]:
    "Links of the site that lead nowhere, and what its pages would load from another server."
    pages = {path: Links(path.read_text(encoding='utf-8')) for path in site.rglob('*.html')}
    found = []
    for path, page in pages.items():
        found += [f'{path.relative_to(site)} loads {url}' for url in page.loads
            if urlsplit(url).scheme in ('http', 'https') or url.startswith('//')]
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or url.startswith('//'): continue
            target = (path.parent/unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir(): target = target/'index.html'
            if not target.exists(): found.append(f'{path.relative_to(site)} -> {url}: no such file')
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f'{path.relative_to(site)} -> {url}: no such anchor')
    return sorted(set(found))

def mathjax_of(python: Path) -> Path:
    "tex-svg.js of MathJax, which the package sphinx-mathjax-offline brings into an environment."
    packages = python.parent.parent.glob('lib/python*/site-packages/sphinx-mathjax-offline')
    found = [script for one in packages if (script := one/'static'/'mathjax'/'tex-svg.js').exists()]
    if not found:
        raise SystemExit(f'the maths of the site needs MathJax: {python} -m pip install sphinx-mathjax-offline==0.0.2')
    return found[0]

def main() -> int:
    parser = ArgumentParser(description='Write the site.')
    parser.add_argument('python', type=Path, help='of the environment with Sphinx; this one plays for the galleries')
    python = parser.parse_args().python
    source, html, gallery = (SITE/name for name in ('source', 'html', 'gallery'))
    for folder in source, html: shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    playing = subprocess.Popen([sys.executable, ROOT/'tools'/'docs_gallery.py', gallery], env=environment(False))
    write_pages(source)
    if playing.wait(): raise SystemExit('the galleries were not made')
    write_around(source, gallery, mathjax_of(python))
    command = [python, '-m', 'sphinx', '--fail-on-warning', '--keep-going', '--quiet', '--jobs', '2',
        '--builder', 'html', '--doctree-dir', SITE/'doctrees', source, html]
    built = subprocess.run(command).returncode
    problems = broken(html) if html.exists() else ['nothing was built']
    print(*problems, f'{len(list(html.rglob("*.html")))} pages: {html/"index.html"}', sep='\n')
    return 1 if built or problems else 0

if __name__ == '__main__': sys.exit(main())
