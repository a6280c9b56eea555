"""The exercises: those of the pages under nbs/, whose folded solutions are run, and the student edition of the course:
`make course` writes course/*.ipynb from tutorials/, without the solutions.

A lesson marks its cells: `#| exercise` (a stub to fill in), `#| solution` (assigns an answer where the stub is
untouched), `#| check` (fails until there
is one). tests/test_lessons.py runs each lesson as `proved` writes it: every check must fail before its solution and
pass after it. A page of
nbs/ has its solution folded in the text, and only there: `solved` runs it.
"""
import ast
import csv
import json
import re
import sys
from argparse import ArgumentParser
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from pathlib import Path

import agentlab.course
from notebooks import CLOSED, ROOT, cells_of, lessons, tidy

MARKS = 'exercise', 'solution', 'check'
FOLDED = re.compile(r'<details><summary>Solution.*?</details>', re.DOTALL)
PYTHON = re.compile(r'^```python\n(.*?)^```', re.DOTALL | re.MULTILINE)
REMARKS = '<details><summary>About the solution'
HEADER = '**Goal**', '**Time**', '**You need**'
SECTIONS = 'Exercises', 'What this does not show', 'References'  # headings, with or without a number
EXERCISES, EARLY = 3, 3  # least number of exercises; among how many first cells, without INSTALL, a result must stand
INSTALL = '''#| code-fold: true
#| hide
# Installs agentlab where it is missing: from a wheel here, its clone, or the package index.
import importlib.util
from pathlib import Path
if importlib.util.find_spec('agentlab') is None:
    here = Path.cwd().resolve()
    clones = [p for p in (here, *here.parents) if (p/'settings.ini').exists()]
    source = [*sorted(here.glob('agentlab_rl-*.whl')), *clones, 'agentlab-rl'][0]
    get_ipython().run_line_magic('pip', f'install -q "{source}[lab]"')
    importlib.invalidate_caches()
from agentlab.doctor import origin
print('agentlab from', origin())'''
MADE = '.made.json'  # what was written last, so that nobody's answers are overwritten

def source(cell: dict) -> str: return ''.join(cell['source'])

def mark(cell: dict) -> str:
    "What the cell is in an exercise: one of MARKS, or the empty string."
    found = re.match(r'#\s*\|\s*(\w+)', source(cell)) if cell['cell_type'] == 'code' else None
    return found[1] if found and found[1] in MARKS else ''

def is_remark(cell: dict) -> bool: return cell['cell_type'] == 'markdown' and source(cell).startswith(REMARKS)

def student(notebook: dict) -> dict:
    """The lesson without its solutions and outputs; Run All goes on past a check that fails, and one that passes is
    kept: agentlab.course."""
    made, number, solved = deepcopy(notebook), number_of(notebook), 0
    made['cells'] = [cell for cell in made['cells'] if mark(cell) != 'solution' and not is_remark(cell)]
    for cell in made['cells']:
        if cell['cell_type'] == 'code': cell['outputs'], cell['execution_count'] = [], None
        if mark(cell) != 'check': continue
        solved += 1
        kept = f'from agentlab.course import passed\npassed({number}, {solved})'
        cell |= dict(metadata=dict(tags=['raises-exception']), source=f'{source(cell)}\n\n{kept}')
    return made

def number_of(notebook: dict) -> int:
    "Of a lesson, from its title; 0 where there is none."
    found = re.match(r'# Lesson (\d+)', source(notebook['cells'][0])) if notebook['cells'] else None
    return int(found[1]) if found else 0

def must_fail(check: str, number: int) -> str:
    "The check as a cell that passes only if the check fails."
    body = '\n'.join('    ' + line for line in check.splitlines())
    return (f'try:\n{body}\nexcept Exception: untouched = True\nelse: untouched = False\n'
        f'assert untouched, "the check of exercise {number} passes on the untouched notebook"')

def proved(notebook: dict) -> dict:
    "The lesson with every check also placed before its solution, where it must fail."
    made, cells, number = deepcopy(notebook), [], 0
    for place, cell in enumerate(made['cells']):
        if mark(cell) == 'solution':
            number += 1
            check = next(later for later in made['cells'][place:] if mark(later) == 'check')
            cells.append(code_cell(must_fail(source(check), number), f'before{number}'))
        cells.append(cell)
    made['cells'] = cells
    return made

def answers(cell: dict) -> list[str]:
    "The code of each folded solution in a cell of text."
    if cell['cell_type'] != 'markdown': return []
    return [code for text in FOLDED.findall(source(cell)) if (code := '\n'.join(PYTHON.findall(text)).strip())]

def bound(code: str) -> set[str]:
    "The names that the code gives a value to, outside of its functions."
    body = ast.parse(code).body
    made = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return made | {part.id for node in body if isinstance(node, ast.Assign) for target in node.targets
        for part in ast.walk(target) if isinstance(part, ast.Name)}

def checks(code: str, names: set[str]) -> list[ast.stmt]:
    "The statements of a cell that look at an answer: `if answer: check(answer)`, `check_it(answer)`."
    return [node for node in ast.parse(code).body
        if isinstance(node, ast.If) or isinstance(node, ast.Expr) and ast.unparse(node).startswith('check_')
        if names & {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}]

def run_with(code: str, looks: list[ast.stmt], directives: str) -> str:
    "A cell that gives the answer and looks at it: what the check asks first must then be true."
    asked = [ast.unparse(part) for node in looks for part in
        ([ast.Assert(node.test, ast.Constant('the page does not see its own solution')), *node.body]
        if isinstance(node, ast.If) else [node])]
    return '\n'.join([*filter(None, [directives]), code, *asked])

def solved(notebook: dict) -> dict:
    """The page with every folded solution run: right after the first cell that looks at its answer, and then looked at
    again. So the page runs untouched and solved."""
    made, cells, waiting = deepcopy(notebook), [], []
    for cell in made['cells']:
        cells.append(cell)
        waiting += answers(cell)
        if cell['cell_type'] != 'code' or not waiting: continue
        text = source(cell)
        directives = '\n'.join(line for line in text.splitlines() if re.match(r'#\s*\|\s*(?!hide)', line))
        for code in list(waiting):
            if not (looks := checks(text, bound(code))): continue
            cells.append(code_cell(run_with(code, looks, directives), f'solved{len(cells)}'))
            waiting.remove(code)
    made['cells'] = cells + [code_cell(code, f'solved{k}') for k, code in enumerate(waiting)]
    return made

def code_cell(text: str, name: str) -> dict:
    return dict(cell_type='code', id=name, metadata={}, execution_count=None, outputs=[], source=text)

DRAWS = re.compile(r'(?:go\.Figure|make_subplots|update_layout)\(')
ASSERTS = re.compile(r'(?:(?:assert|test_\w+\().*|[ #)].*|\s*)')

def unfolded(cell: dict) -> bool:
    "Whether the cell only draws or only asserts, and stands open: a reader looks at the picture first."
    text = source(cell)
    if cell['cell_type'] != 'code' or CLOSED.match(text) or text.startswith('#|'): return False
    return bool(DRAWS.search(text)) or all(ASSERTS.fullmatch(line) for line in text.splitlines())

def faults(path: Path) -> list[str]:
    "What this lesson lacks of the form that all lessons have."
    cells = cells_of(path)
    text, number = '\n'.join(source(cell) for cell in cells if cell['cell_type'] == 'markdown'), int(path.name[:2])
    if len(cells) < 2: return ['there is no lesson here']
    found = ([] if source(cells[0]).startswith(f'# Lesson {number}: ')
        else [f'the first line is not "# Lesson {number}: ..."'])
    found += [f'the first cell has no line {name}' for name in HEADER if name not in source(cells[0])]
    if not source(cells[0]).endswith(map_of(number)): found.append('the map is not of today: tools/course.py --map')
    if source(cells[1]) != INSTALL: found.append('the second cell is not INSTALL of tools/course.py')
    if not any(cell.get('outputs') for cell in [cell for cell in cells if source(cell) != INSTALL][:EARLY]):
        found.append(f'none of the first {EARLY} cells shows a result')
    found += [f'no section "## {name}"' for name in SECTIONS
        if not re.search(rf'^## (?:\d+ )?{name}', text, re.MULTILINE)]
    found += [f'cell {cell["id"]} draws or asserts: fold it, "#| code-fold: true"' for cell in filter(unfolded, cells)]
    order = ' '.join(filter(None, map(mark, cells)))
    if not re.fullmatch(f'(?:{" ".join(MARKS)} ?){{{EXERCISES},}}', order):
        found.append(f'exercises: {EXERCISES} or more times {", ".join(MARKS)}, in this order; found {order!r}')
    return found

PARTS = {'Begin': (1, 3), 'Credit and loss': (4, 8), 'Stay healthy': (9, 11), 'Language': (12, 13),
    'Several players': (14, 16), 'Your own': (17, 18)}  # first and last lesson
MAP = re.compile(r'\n*<details><summary>Map of the course.*?</details>\n*', re.DOTALL)

@cache
def short_title(path: Path) -> str:
    "Title of a lesson up to its first comma or colon."
    head = source(cells_of(path)[0]).splitlines()[0]
    return re.split(r'[,:]', head.partition(': ')[2])[0]

def map_of(number: int) -> str:
    "The course on one screen, folded, with this lesson in bold: what the first cell of every lesson ends with."
    known = {int(path.name[:2]): (path.name, short_title(path)) for path in lessons()}
    def entry(n):
        name, title = known[n]
        return f'**{n} {title}**' if n == number else f'[{n} {title}]({name})'
    lines = [f'| {part} | {" · ".join(entry(n) for n in range(first, last + 1) if n in known)} |'
        for part, (first, last) in PARTS.items()]
    head = f'<details><summary>Map of the course: lesson {number} of {len(known)}</summary>\n'
    return '\n'.join([head, '| | |', '|---|---|', *lines, '\n</details>'])

def write_maps() -> None:
    "Put the map of today into every lesson."
    for path in lessons():
        notebook = json.loads((ROOT/path).read_text(encoding='utf-8'))
        head = notebook['cells'][0]
        head['source'] = f"{MAP.sub('', source(head))}\n\n{map_of(int(path.name[:2]))}"
        (ROOT/path).write_text(tidy(json.dumps(notebook)), encoding='utf-8')

GLOSSARY = ROOT/'assets'/'glossary.csv'
# what is no prose: code, formulas, tags, headings, and the words of a link, which lead to where they are explained
NO_PROSE = re.compile(r'```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|</?[a-z][^>]*>|^#.*?$|\[[^]]*\]\([^)]*\)', re.S | re.M)
# what a lesson says of itself before it begins: the lead, the table of aims, the table of parts
PROMISES = re.compile(r'^(?:> .*|\| \*\*(?:Goal|Time|You need)\*\* .*|\| part .*\n(?:\|.*\n?)*)$', re.MULTILINE)

def glossary() -> list[dict]:
    "The terms of the course: term, also (other forms, apart by ;), lesson (where it is explained), meaning."
    with open(GLOSSARY, encoding='utf-8', newline='') as file: return list(csv.DictReader(file))

def forms(term: dict) -> re.Pattern:
    "Finds the term in prose: one of its forms, or its plural."
    words = '|'.join(map(re.escape, filter(None, [term['term'], *term['also'].split(';')])))
    return re.compile(rf'(?<![\w-])(?:{words})s?(?![\w-])', re.IGNORECASE)

def prose(cells: list[dict]) -> str:
    "The prose of a lesson, without what only promises (its head, its table of parts) and without its references."
    text = '\n\n'.join(source(cell) for cell in cells if cell['cell_type'] == 'markdown').split('\n## References')[0]
    return NO_PROSE.sub(' ', PROMISES.sub(' ', MAP.sub('\n\n', text)))

def unexplained(pages: dict[int, str], terms: list[dict]) -> list[str]:
    """What is used before it is explained: in the prose of the lessons (number -> text) a term stands first in its own
    lesson, and there in bold letters."""
    found = []
    for term in terms:
        first = next(((n, hit, text) for n, text in sorted(pages.items()) if (hit := forms(term).search(text))), None)
        if first is None:
            found.append(f'{term["term"]}: no lesson uses it')
            continue
        number, hit, text = first
        bold = text[:hit.start()].count('**') % 2 == 1
        if number != int(term['lesson']) or not bold:
            said = ' '.join(text[max(hit.start() - 40, 0):hit.end() + 30].split())
            found.append(f'{term["term"]}: explained in lesson {term["lesson"]}, but first used, '
                f'{"bold" if bold else "not bold"}, in lesson {number}: "...{said}..."')
    return found

def terms_used_early() -> list[str]:
    "`unexplained` of the course as it is."
    return unexplained({int(path.name[:2]): prose(cells_of(path)) for path in lessons()}, glossary())

def digest(text: str) -> str: return blake2b(text.encode(), digest_size=8).hexdigest()

def write(folder: Path, again: bool = False) -> list[str]:
    "Write the student edition; what was done, line by line. A file that somebody has worked in is kept."
    folder.mkdir(parents=True, exist_ok=True)
    record = folder/MADE
    made = json.loads(record.read_text()) if record.exists() else {}
    said, exercises = [], {}
    for path in lessons():
        notebook = json.loads((ROOT/path).read_text(encoding='utf-8'))
        exercises[number_of(notebook)] = sum(mark(cell) == 'exercise' for cell in notebook['cells'])
        text, target = tidy(json.dumps(student(notebook))), folder/path.name
        kept = target.exists() and not again and digest(target.read_text(encoding='utf-8')) != made.get(path.name)
        if not kept:
            target.write_text(text, encoding='utf-8')
            made[path.name] = digest(text)
        said.append(f'kept, as it was worked in: {target} (--again writes it anew)' if kept else f'written: {target}')
    record.write_text(json.dumps(made, indent=1))
    agentlab.course.write(exercises, agentlab.course.read(folder)[1], folder)
    return said

def marks(folders: list[Path]) -> list[str]:
    "A line for each folder of lessons: how many exercises are solved there, and which lessons are done."
    found = []
    for folder in folders:
        exercises, done = agentlab.course.read(folder)
        whole = [n for n, count in sorted(exercises.items()) if all((n, k) in done for k in range(1, count + 1))]
        found.append(f'{folder}: {len(done)} of {sum(exercises.values())} exercises, lessons done: '
            f'{", ".join(map(str, whole)) or "none"}')
    return found

def main() -> int:
    parser = ArgumentParser(description='Write the student edition of the course, without solutions.')
    parser.add_argument('folder', nargs='?', type=Path, default=ROOT/'course', help='default: course')
    parser.add_argument('--again', action='store_true', help='also where a file was changed since it was written')
    parser.add_argument('--marks', nargs='+', type=Path, metavar='FOLDER', help='only tell how far these are')
    parser.add_argument('--map', action='store_true', help='only put the map of today into the lessons of tutorials/')
    asked = parser.parse_args()
    if asked.map: return write_maps() or 0
    print(*(marks(asked.marks) if asked.marks else write(asked.folder, asked.again)), sep='\n')
    return 0

if __name__ == '__main__': sys.exit(main())
