"""What must hold of the files of this repository: `make check`. tests/test_drift.py runs the same functions.

Each function of CHECKS returns a list of problems, each with its remedy; its docstring says what holds when the list is
empty.
"""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from tokenize import STRING, generate_tokens

import atlas
import course
import readme
import replication
from imports import out_of_order
from notebooks import PLOTLY, ROOT, lessons, notebooks, tidy

OUTPUT_LIMIT = 500_000   # bytes of the outputs of one notebook
TREE_LIMIT = 15_000_000  # bytes of all tracked files
LINE_LIMIT = 40          # lines of one function of the package, signature and docstring included
STATEMENT_LIMIT = 25     # statements of one function of the package
WIDTH, LESSON_WIDTH = 120, 95  # characters of a line of code; a JupyterLab page of 1280 pixels shows 95
# What a file of its own should hold, kind -> what gives it away in a string. A few such places are a piece of it,
# more than PIECES a program, a style sheet or a page.
PIECES = 2
WEB = {
    'CSS': r'(?:^|[}>;/])\s*[.#:@*\[a-z][^{}<"\';]*\{\s*[-\w]+\s*:\s?[^{}]+\}',
    'JavaScript': r'\bfunction\s*\w*\(|=>\s*[\w({]|^\s*(?:const|let|var|export|import)\b.*;\s*$|^[^<>]*\w\);\s*$',
    'HTML': r'<!doctype|<(?:html|head|body|script|style|main|header)\b',
}
# Split, so that this file passes its own check.
HOSTS = [''.join(parts) for parts in [
    ('pypi.', 'org'), ('pythonhosted.', 'org'), ('npmjs.', 'org'), ('npmjs.', 'com'), ('download.', 'pytorch.org'),
    ('deb.', 'debian.org'), ('security.', 'debian.org'), ('conda.', 'anaconda.org'), ('proxy.', 'golang.org')]]
UNREPRODUCIBLE = {
    'a temporary path': r'/tmp/|/var/folders/|\\Temp\\',
    'a path of one machine': r'/(?:root|home/\w+|Users/\w+|work)/|/(?:site|dist)-packages/',
    'a wall time': r'Wall time|CPU times|\b\d+(?:\.\d+)?(?:it/s|s/it)\b|\b\d\d:\d\d<',
    'a memory address': r'\bat 0x[0-9a-f]{6,}',
}

def tracked() -> list[Path]:
    "The files of the repository: tracked, and untracked ones that git does not ignore."
    listed = subprocess.run(['git', 'ls-files', '-coz', '--exclude-standard'], cwd=ROOT, check=True,
        capture_output=True, text=True).stdout
    return [Path(name) for name in sorted(set(listed.split('\0'))) if name and (ROOT/name).is_file()]

@cache
def read(path: Path) -> str: return (ROOT/path).read_text(encoding='utf-8')

def cells(path: Path) -> list[dict]: return json.loads(read(path))['cells']

def outputs(path: Path) -> list[dict]: return [output for cell in cells(path) for output in cell.get('outputs', [])]

def exported(folder: Path) -> dict[str, str]:
    "Every module of the package in `folder`: {path: source}; not nbdev's index of names, which is not kept."
    return {path.relative_to(folder).as_posix(): path.read_text(encoding='utf-8')
        for path in (folder/'agentlab').rglob('*.py') if path.name != '_modidx.py'}

def export_is_current() -> list[str]:
    "Every module of agentlab/ is what its notebook exports."
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT/'nbs', copy/'nbs', ignore=shutil.ignore_patterns('.*'))
        (copy/'agentlab').mkdir()
        for name in 'pyproject.toml', 'agentlab/__init__.py': shutil.copy(ROOT/name, copy/name)
        # -P: nbdev finds agentlab.settings, which `export_procs` names, here and not in the empty copy
        command = [sys.executable, '-P', '-c', 'from nbdev.doclinks import nbdev_export; nbdev_export()']
        quiet = {name: value for name, value in os.environ.items() if name != 'IN_TEST'} | dict(PYTHONPATH=str(ROOT))
        subprocess.run(command, cwd=copy, env=quiet, check=True, stdin=subprocess.DEVNULL)
        fresh, ours = exported(copy), exported(ROOT)
    return [f'{name}: make export' if name in fresh else f'{name}: no notebook exports it; remove it'
        for name in sorted(fresh.keys() | ours.keys()) if fresh.get(name) != ours.get(name)]

def defaults_are_current() -> list[str]:
    "agentlab/lab.ini has the [lab] section of settings.ini."
    home, packaged = ConfigParser(interpolation=None), ConfigParser(interpolation=None)
    home.read(ROOT/'settings.ini', encoding='utf-8')
    packaged.read(ROOT/'agentlab'/'lab.ini', encoding='utf-8')
    return ([] if 'lab' in packaged and dict(home['lab']) == dict(packaged['lab'])
        else ['agentlab/lab.ini differs: make install'])

def readme_is_current() -> list[str]:
    "README.md and its pictures are what nbs/index.ipynb gives."
    if not readme.INDEX.exists(): return ['nbs/index.ipynb is missing']
    text, pictures = readme.render()
    wanted = {'README.md': text.encode(), **pictures}
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT/readme.PICTURES).rglob('*') if path.is_file()}
    stale = [name for name, content in wanted.items() if not (ROOT/name).exists()
        or (ROOT/name).read_bytes() != content]
    return [f'{name}: make readme' for name in stale + sorted(found - wanted.keys())]

def notebooks_are_tidy() -> list[str]:
    "Notebooks are clean: no execution counts, no stray metadata, the kernel is python3."
    return [f'{path}: python tools/save.py --tidy {path}' for path in notebooks() if tidy(read(path)) != read(path)]

def notebooks_are_valid() -> list[str]:
    "Every notebook has the form that Jupyter asks for."
    import nbformat  # a second, which a collection of the tests does not need
    found = []
    for path in notebooks():
        try: nbformat.validate(json.loads(read(path)))
        except nbformat.ValidationError as error: found.append(f'{path}: {str(error).splitlines()[0]}')
    return found

def cell_ids_are_unique() -> list[str]:
    "Every cell has an id of its own."
    ids = {path: [cell.get('id') for cell in cells(path)] for path in notebooks()}
    return [f'{path}: {[name for name in named if named.count(name) > 1 or not name]}' for path, named in ids.items()
        if len(set(named) - {None}) < len(named)]

def outputs_are_small() -> list[str]:
    "The outputs of a notebook take less than 500 kB."
    sizes = {path: sum(len(json.dumps(output)) for output in outputs(path)) for path in notebooks()}
    return [f'{path}: {size} bytes; draw fewer points or smaller figures' for path, size in sizes.items()
        if size >= OUTPUT_LIMIT]

def texts(output: dict) -> str:
    "What an output says, without its pictures."
    data = {kind: value for kind, value in output.get('data', {}).items() if not kind.startswith('image/')}
    return json.dumps([data, output.get('text', '')], ensure_ascii=False)

def outputs_are_reproducible() -> list[str]:
    "No output holds a temporary path, a wall time, a warning, an error or the JSON of a live figure."
    found = []
    for path in notebooks():
        for output in outputs(path):
            if output['output_type'] == 'error' or output.get('name') == 'stderr':
                found.append(f"{path}: {output.get('name', 'error')}: {texts(output)[:200]}")
            if PLOTLY in output.get('data', {}): found.append(f'{path}: the JSON of plotly: make save NB={path}')
            found += [f'{path}: {what}: {match[0]!r}' for what, pattern in UNREPRODUCIBLE.items()
                if (match := re.search(pattern, texts(output)))]
    return found

def no_registry_host() -> list[str]:
    "No file names the host of a package registry."
    found = []
    for path in tracked():
        content = (ROOT/path).read_bytes()
        found += [f'{path}: {host}' for host in HOSTS if host.encode() in content]
    return found

def lines_are_narrow() -> list[str]:
    """No line of code is wider than 120 characters, none of a lesson wider than 95; lines of a string of several lines
    may be."""
    found = []
    scripts = [path for path in tracked() if path.parts[0] in ('tests', 'tools') and path.suffix == '.py']
    code = [(path, ''.join(cell['source'])) for path in notebooks() for cell in cells(path)
        if cell['cell_type'] == 'code'] + [(path, read(path)) for path in scripts]
    for path, source in code:
        limit = LESSON_WIDTH if path.parts[0] == 'tutorials' else WIDTH
        found += [f'{path}: {len(line)} characters: {line.strip()[:60]}' for line in own_lines(source)
            if len(line) > limit]
    return found

def own_lines(source: str) -> list[str]:
    "The lines of Python: without those that lie in a string of several lines."
    lines = source.split('\n')
    for token in generate_tokens(StringIO(source).readline):
        begin, end = token.start[0], token.end[0]
        if token.type == STRING and end > begin: lines[begin-1:end] = ['']*(end - begin + 1)
    return lines

def ruff_finds_nothing() -> list[str]:
    "Ruff finds nothing in notebooks, tools and tests, with the rules of pyproject.toml and tutorials/ruff.toml."
    command = [sys.executable, '-m', 'ruff', 'check', '--no-cache', '--quiet', '--output-format', 'concise',
        'nbs', 'tutorials', 'tools', 'tests']
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode in (0, 1): return ran.stdout.splitlines()
    return [f'{ran.stderr.strip()}; a missing ruff comes with: make install']

def imports_are_in_order() -> list[str]:
    "Imports stand in the order of tools/imports.py: the standard library, other packages, agentlab, each by name."
    return [f'{line}; python tools/imports.py' for line in out_of_order()]

def functions_are_short() -> list[str]:
    """Every function of the package has at most 25 statements, docstring left out, and at most 40 lines with its
    signature."""
    found = []
    for path in sorted((ROOT/'agentlab').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef): continue
            lines, count = node.end_lineno - node.lineno + 1, statements(node)
            if lines > LINE_LIMIT or count > STATEMENT_LIMIT:
                found.append(f'{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines, {count} '
                    f'statements; split it')
    return found

def statements(function: ast.FunctionDef) -> int:
    "Statements of a function with what it defines inside, its docstring left out."
    return (sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
        - (ast.get_docstring(function) is not None))

def methods_stand_in_their_class() -> list[str]:
    "No module of the package puts a method on a class that it has defined before: type checkers would not see it."
    found = []
    for path in sorted((ROOT/'agentlab').rglob('*.py')):
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding='utf-8'))
        found += [f'{name}:{line} {what}: write it in the class, or in a base class of it'
            for line, what in assigned_methods(tree)]
    return found

def assigned_methods(module: ast.Module) -> list[tuple[int, str]]:
    "(line, Class.name) of what a module assigns to attributes of its own classes, outside of functions and classes."
    classes = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    assigned = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    targets = [part for node in assigned for target in getattr(node, 'targets', None) or [node.target]
        for part in ast.walk(target) if isinstance(part, ast.Attribute)]
    return [(part.lineno, ast.unparse(part)) for part in targets
        if isinstance(part.value, ast.Name) and part.value.id in classes]

def no_web_in_strings() -> list[str]:
    "No module of the package holds a style sheet, a script or a page in a string: they are files of agentlab/view."
    return [f'{name}:{line} {count} lines of {kind} in a string: put them into agentlab/view/static or templates'
        for name, source in sorted(exported(ROOT).items())
        for line, kind, count in web_strings(source)]

def web_strings(source: str) -> list[tuple[int, str, int]]:
    "(line, kind, number of lines) of every string of a module that holds more than PIECES pieces of one kind of WEB."
    tree, found = ast.parse(source), []
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
        if part is not node}
    for node in ast.walk(tree):
        if id(node) in inside or not isinstance(node, ast.JoinedStr | ast.Constant): continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = ''.join(part.value if isinstance(getattr(part, 'value', 0), str) else 'x' for part in parts)
        pieces = {kind: len(re.findall(pattern, text, re.IGNORECASE | re.MULTILINE)) for kind, pattern in WEB.items()}
        most = max(pieces, key=pieces.get)
        if pieces[most] > PIECES: found.append((node.lineno, most, text.strip().count('\n') + 1))
    return found

def web_lines() -> dict[str, int]:
    "Lines of CSS, JavaScript and HTML that still stand in strings of the package, by kind."
    found = [(kind, count) for source in exported(ROOT).values() for _, kind, count in web_strings(source)]
    return {kind: sum(count for k, count in found if k == kind) for kind in WEB}

def links_lead_somewhere() -> list[str]:
    "Every relative link of a page or notebook leads to a file."
    pages = {path: read(path) for path in tracked() if path.suffix == '.md'}
    pages |= {path: '\n'.join(''.join(cell['source']) for cell in cells(path) if cell['cell_type'] == 'markdown')
        for path in notebooks()}
    links = re.compile(r'\]\((?![a-z]+:|#)([^)#\s]+)')
    found = []
    for path, text in pages.items():
        plain = re.sub(r'```.*?```|`[^`\n]*`|\$\$?[^$]*\$\$?', '', text, flags=re.DOTALL)
        found += [f'{path}: {link}' for link in links.findall(plain) if not (ROOT/path.parent/link).exists()]
    return found

def lessons_have_one_form() -> list[str]:
    """Every lesson has its header, an early result, three exercises with a solution and a check, its limits and its
    references."""
    return [f'{path}: {fault}' for path in lessons() for fault in course.faults(path)]

def terms_are_explained_first() -> list[str]:
    "Every term of assets/glossary.csv stands first in the lesson that it names, in bold letters."
    return course.terms_used_early()

def atlas_is_derived() -> list[str]:
    "The states of assets/papers.csv are the derived ones, and what its rows name is there."
    return atlas.faults()

def replication_is_derived() -> list[str]:
    "assets/replication.csv.xz is what the records give."
    return replication.faults()

def tree_is_small() -> list[str]:
    "The files of the repository take less than 15 MB."
    size = sum((ROOT/path).stat().st_size for path in tracked())
    return [] if size < TREE_LIMIT else [f'{size} bytes; `git ls-files -z | xargs -0 du -b | sort -n | tail` shows '
        f'the largest']

CHECKS = [export_is_current, defaults_are_current, readme_is_current, notebooks_are_tidy, notebooks_are_valid,
    cell_ids_are_unique, outputs_are_small, outputs_are_reproducible, no_registry_host, ruff_finds_nothing,
    imports_are_in_order, functions_are_short, lines_are_narrow, methods_stand_in_their_class, no_web_in_strings,
    links_lead_somewhere, lessons_have_one_form, terms_are_explained_first, atlas_is_derived,
    replication_is_derived, tree_is_small]

def main() -> int:
    failed = 0
    for check in CHECKS:
        problems = check()
        said = ' '.join(check.__doc__.split())
        print('\n    '.join([f"{'FAILED' if problems else 'ok    '} {said}", *problems]), flush=True)
        failed += bool(problems)
    return 1 if failed else 0

if __name__ == '__main__': sys.exit(main())
