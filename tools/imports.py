"""Put the imports of notebooks, tools and tests in order, as ruff's rule I does, but without a line for every name.

    python tools/imports.py            writes
    python tools/imports.py --check    says where the order is another one (`make check`)

A block is a run of import statements without a blank line or a comment between them. In it the standard library comes
first, then other packages, then agentlab and the files beside; `import x` before `from x import y`, and each by name.
Front doors (`index.ipynb`) keep theirs: what a family registers, it lists in the order of its pages.
"""
import ast
import json
import sys
import textwrap
from pathlib import Path

from notebooks import ROOT, as_file, notebooks

OWN = {'agentlab', 'bench', *(path.stem for folder in ('tools', 'tests') for path in (ROOT/folder).glob('*.py'))}

def place(statement) -> tuple:
    "What an import is sorted by."
    several = sorted(name.name for name in statement.names)
    names = [statement.module or ''] if isinstance(statement, ast.ImportFrom) else several
    top = names[0].partition('.')[0]
    own = top in OWN or getattr(statement, 'level', 0) > 0
    section = 0 if top == '__future__' else 1 if top in sys.stdlib_module_names else 3 if own else 2
    return section, isinstance(statement, ast.ImportFrom), names[0].lower()

def by_kind(name: ast.alias) -> tuple:
    "Constants, classes, functions."
    text = name.name
    return 0 if text.isupper() and len(text) > 1 else 1 if text[:1].isupper() else 2, text.lower(), text

def rewritten(statement, source: str, width: int) -> str:
    "The statement with its names in order; as it stands where they are, or where a comment stands among them."
    from_module = isinstance(statement, ast.ImportFrom)
    ordered = sorted(statement.names, key=by_kind if from_module else lambda name: name.name)
    lines = source.split('\n')[statement.lineno-1:statement.end_lineno]
    if ordered == statement.names or '#' in ''.join(lines): return '\n'.join(lines)
    shown = ', '.join(f'{name.name} as {name.asname}' if name.asname else name.name for name in ordered)
    margin = ' '*statement.col_offset
    head = f"{margin}from {'.'*statement.level}{statement.module or ''} import " if from_module else f'{margin}import '
    if len(head + shown) <= width: return head + shown
    return textwrap.fill(f'({shown})', width, initial_indent=head, subsequent_indent=' '*len(head) + ' ')

def blocks(tree: ast.Module) -> list[list]:
    "Runs of import statements on neighbouring lines."
    found = []
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ('body', 'orelse', 'finalbody')):
            if not isinstance(body, list): continue
            for before, statement in zip([None, *body], body):
                if not isinstance(statement, ast.Import | ast.ImportFrom): continue
                follows = isinstance(before, ast.Import | ast.ImportFrom) and before.end_lineno + 1 == statement.lineno
                if follows: found[-1].append(statement)
                else: found.append([statement])
    return found

def in_order(source: str, width: int = 120) -> str:
    "The source with the imports of every block in order."
    lines = source.split('\n')
    # from below, so that the numbers of the lines above hold
    for block in sorted(blocks(ast.parse(source)), key=lambda block: block[0].lineno, reverse=True):
        first, last = block[0].lineno - 1, block[-1].end_lineno
        if lines[first][:block[0].col_offset].strip(): continue  # behind `try:`
        lines[first:last] = [rewritten(one, source, width) for one in sorted(block, key=place)]
    return '\n'.join(lines)

def sources(path: Path):
    "The code of a file, and how to write it back: a cell each, or the whole."
    if path.suffix == '.py': return [(path.read_text(encoding='utf-8'), None)], None
    page = json.loads(path.read_text(encoding='utf-8'))
    return [(''.join(cell['source']), cell) for cell in page['cells'] if cell['cell_type'] == 'code'], page

def mended(path: Path, write: bool) -> list[str]:
    "The first lines of what is out of order; it is written back where asked."
    found, width = [], 95 if path.parent.name == 'tutorials' else 120
    pieces, page = sources(path)
    for source, cell in pieces:
        try: new = in_order(source, width)
        except SyntaxError: continue  # a cell with a command of Jupyter
        if new == source: continue
        old = source.split('\n')
        found.append(next(line for line, other in zip(old, [*new.split('\n'), *old]) if line != other).strip())
        if cell is None: content = new
        else: cell['source'] = new.splitlines(keepends=True)
    if found and write:
        if page is not None: content = as_file(page)
        path.write_text(content, encoding='utf-8')
    return found

def out_of_order(write: bool = False) -> list[str]:
    "Where imports are out of order, over notebooks, tools and tests."
    scripts = [path for folder in ('tools', 'tests') for path in sorted((ROOT/folder).rglob('*.py'))]
    pages = [ROOT/page for page in notebooks() if page.name != 'index.ipynb']
    return [f'{path.relative_to(ROOT)}: {line}' for path in [*pages, *scripts] for line in mended(path, write)]

if __name__ == '__main__':
    found = out_of_order(write='--check' not in sys.argv)
    print(*found, sep='\n')
    sys.exit('--check' in sys.argv and bool(found))
