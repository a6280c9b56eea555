"""The shape of the code, as a table in CONTRIBUTING.md: `make check` prints it, `python tools/shape.py` writes it.

The first column is from before "The house in order": widths, tree and collection as they were counted then, the rest by
the lines of this file at commit 85e4e55. What must hold of a number is a check of tools/check.py; this table says where
it stands.
"""
import ast
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from check import (LESSON_WIDTH, ROOT, WIDTH, assigned_methods, cells, exported, own_lines, read, statements, tracked,
    web_lines)
from notebooks import notebooks

BEGAN = {'lines of code over 120 characters': '13.5 %', 'lines of lessons over 95 characters': '25.1 %',
    'functions, median lines': '7', 'functions, longest': '38 lines, 25 statements',
    'modules, most lines': '1,751', 'methods put on a class from outside': '299',
    'lines of CSS, JavaScript and HTML in strings': '810', 'tracked files': '19.3 MB',
    'collecting the tests': '10 s'}
BETWEEN = '<!-- shape -->\n', '<!-- end of shape -->'

def wide(lesson: bool) -> str:
    "The share of wide lines of code of all notebooks, or of the lessons."
    found = [line for path in notebooks() if not lesson or path.parts[0] == 'tutorials' for cell in cells(path)
        if cell['cell_type'] == 'code' for line in own_lines(''.join(cell['source'])) if line.strip()]
    limit = LESSON_WIDTH if lesson else WIDTH
    return f'{100*sum(len(line) > limit for line in found)/len(found):.1f} %'

def functions() -> list[tuple[int, int]]:
    "(lines, statements) of every function of the package."
    trees = [ast.parse(source) for source in exported(ROOT).values()]
    return [(node.end_lineno - node.lineno + 1, statements(node)) for tree in trees for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

def collection() -> str:
    "How long it takes until the first test could run, without it."
    start = time.monotonic()
    command = [sys.executable, '-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider', 'tests']
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return f'{time.monotonic() - start:.0f} s'

def measured() -> dict[str, str]:
    "What is quick to measure."
    lines, counts = zip(*functions())
    longest = max(source.count('\n') for source in exported(ROOT).values())
    assigned = sum(len(assigned_methods(ast.parse(source))) for source in exported(ROOT).values())
    size = sum((ROOT/path).stat().st_size for path in tracked())
    values = (wide(False), wide(True), f'{median(lines):g}', f'{max(lines)} lines, {max(counts)} statements',
        f'{longest:,}', str(assigned), str(sum(web_lines().values())), f'{size/1e6:.1f} MB')
    return dict(zip(BEGAN, values))

def table(found: dict[str, str]) -> str:
    "The table in Markdown."
    rows = [f'| {name} | {BEGAN[name]} | {value} |' for name, value in found.items()]
    return '\n'.join(['| | before | now |', '|---|---|---|', *rows])

def main() -> None:
    if '--print' in sys.argv:  # without the last line, which takes a while
        print(table(measured()))
        return
    text = table(measured() | {'collecting the tests': collection()})
    path = ROOT/'CONTRIBUTING.md'
    begin, end = map(re.escape, BETWEEN)
    whole, count = re.subn(f'{begin}.*?{end}', lambda _: f'{BETWEEN[0]}{text}\n\n{BETWEEN[1]}', read(Path(path.name)),
        flags=re.DOTALL)
    if not count: raise SystemExit(f'CONTRIBUTING.md lacks the marks {BETWEEN}: put them where the table is to stand')
    path.write_text(whole, encoding='utf-8')
    print(text)

if __name__ == '__main__': main()
