"""The state of every system of the atlas, derived from what names it: `python tools/atlas.py` writes it.

assets/papers.csv has a row for each system, assets/mechanisms.csv.xz a line for each mechanism that defines one which
has a page. `python tools/atlas.py --open` unpacks it as assets/mechanisms.csv; the next call without `--open` packs
what stands there, after it was edited. A line has the mechanism's functions, and the tests that switch it off and see
something change. A test is `tests/FILE.py::NAME`, `tests/FILE.py::NAME[CASE]`, or a cell that asserts,
`nbs/PAGE.ipynb#CELL`; it must use one of the functions, itself or through what it calls in its file. `plays` is a test
in which the system plays and updates with a gradient that is not zero; a recipe has one, `TRAINS`. `record` is
`FILE#KEY`, where FILE is the one of tools/claims.py, or `FILE.json#ARM|CONTROL`, places of an arm and its control in
another record. The counts on the front page are written too. `make check` refuses a state that is not the derived one,
and a name that leads nowhere.
"""
import ast
import csv
import json
import re
import sys
from argparse import ArgumentParser
from functools import cache, reduce
from io import StringIO
from operator import getitem
from pathlib import Path

import readme
from notebooks import ROOT, as_file, pack, unpacked

PAPERS, MECHANISMS, FRONT = 'assets/papers.csv', 'assets/mechanisms.csv.xz', 'nbs/index.ipynb'
TRAINS = 'tests/test_train.py::test_a_known_recipe_trains'
STATES = 'measured', 'runs', 'unit', 'part', ''
RECIPE = re.compile(r'^@recipe\(.*?^def (\w+?)_recipe\(', re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r'^#\|\s*(?:slow|gpu|lm|eval: *false)', re.MULTILINE)  # cells that `make test` leaves out
SEEDS, REAL_SEEDS = 5, 3  # that a record needs; the second for the real model, in records named real_...
FEW = 'seeds so far'
SHARED = 'budget', 'tokens', 'episodes', 'steps', 'settings'  # what a record says that all its arms have

def table(name: str) -> list[dict]:
    "The rows of a CSV file, packed or not."
    path = ROOT/name
    text = unpacked(path) if path.suffix == '.xz' else path.read_text(encoding='utf-8')
    return list(csv.DictReader(StringIO(text, newline='')))

def edited() -> Path:
    "Where the mechanisms stand while somebody edits them."
    return (ROOT/MECHANISMS).with_suffix('')

def unpack() -> None:
    "Lay the mechanisms out to be edited; those that are being edited already stay."
    if not edited().exists(): edited().write_text(unpacked(ROOT/MECHANISMS), encoding='utf-8')

def put_away() -> None:
    "Pack the mechanisms that were edited, if any."
    if not edited().exists(): return
    pack(ROOT/MECHANISMS, edited().read_text(encoding='utf-8'))
    edited().unlink()

# ---- names that lead somewhere

@cache
def recipes() -> set[str]:
    "What `@recipe` registers."
    return {name for path in (ROOT/'agentlab').rglob('*.py') for name in RECIPE.findall(path.read_text('utf-8'))}

@cache
def source(path: Path) -> ast.Module:
    "The code of a file; of a notebook the cells that are Python, with the cell's id as `cell` on each statement."
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py': return ast.parse(text)
    whole = ast.Module([], [])
    for cell in json.loads(text)['cells']:
        code = ''.join(cell['source'])
        if cell['cell_type'] != 'code' or NOT_RUN.search(code): continue
        try: statements = ast.parse(re.sub(r'^[%!].*$', 'pass', code, flags=re.MULTILINE)).body
        except SyntaxError: continue
        for node in statements: node.cell = cell.get('id')
        whole.body += statements
    return whole

def defined(node: ast.AST) -> list[str]:
    "The names that a statement gives something to."
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef): return [node.name]
    targets = getattr(node, 'targets', None) or [getattr(node, 'target', None)]
    return [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]

def function_exists(name: str) -> bool:
    "Whether `credit.step_groups.gigpo`, or a method of a class, is defined where it says."
    parts = name.split('.')
    for at in range(len(parts) - 1, 0, -1):
        path = ROOT.joinpath('agentlab', *parts[:at]).with_suffix('.py')
        if not path.exists(): continue
        body = source(path).body
        for part in parts[at:]:
            found = [node for node in body if part in defined(node)]
            if not found: return False
            body = getattr(found[0], 'body', [])
        return True
    return False

def words(node: ast.AST) -> set[str]:
    "Names, attributes and strings in a piece of code."
    return {getattr(part, field) for part in ast.walk(node) for kind, field in
        ((ast.Name, 'id'), (ast.Attribute, 'attr'), (ast.Constant, 'value'))
        if isinstance(part, kind) and isinstance(getattr(part, field), str)}

def reached(tree: ast.Module, nodes: list) -> list:
    "Some statements of a file, and the definitions in it that they use, and those that these use in turn."
    makers = {}
    for node in tree.body:
        for name in defined(node): makers.setdefault(name, []).append(node)
    found, waiting = [], list(nodes)
    while waiting:
        node = waiting.pop()
        if any(node is one for one in found): continue
        found.append(node)
        waiting += [maker for name in words(node) for maker in makers.get(name, ())]
    return found

def can_fail(nodes: list) -> bool:
    "Whether these statements hold an assertion, `raises`, or `test_eq` and its like."
    parts = [part for node in nodes for part in ast.walk(node)]
    called = {getattr(part.func, 'attr', getattr(part.func, 'id', '')) for part in parts if isinstance(part, ast.Call)}
    return any(isinstance(part, ast.Assert) for part in parts) or bool(
        called & {'raises', 'assert_close', 'test_eq', 'test_close', 'test_fail', 'test_ne'})

def located(test: str) -> tuple[ast.Module, list, str]:
    "File, statements and fault of a test that is named."
    name, mark, inside = test.partition('::' if '::' in test else '#')
    path = ROOT/name
    if not mark or not path.is_file(): return None, [], 'no such file'
    tree = source(path)
    if mark == '#':
        nodes = [node for node in tree.body if node.cell == inside]
        return tree, nodes, '' if nodes else 'no such cell, or one that `make test` leaves out'
    inside, _, case = inside.rstrip(']').partition('[')
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == inside]
    marks = {word for node in nodes for mark in node.decorator_list for word in words(mark)}
    if not nodes: return tree, nodes, 'no such test'
    if marks & {'slow', 'gpu'}: return tree, nodes, 'CI leaves it out'
    if case and ('parametrize' not in marks or case not in recipes().union(*map(words, reached(tree, nodes)))):
        return tree, nodes, f'no such case: {case}'
    return tree, nodes, ''

def test_faults(test: str, names: list[str]) -> list[str]:
    "What is wrong with a test that shall be about one of these functions or recipes."
    tree, nodes, fault = located(test)
    if fault: return [f'{test}: {fault}']
    nodes = reached(tree, nodes)
    if not can_fail(nodes): return [f'{test}: nothing in it can fail']
    last = {name.split('.')[-1] for name in names}
    last |= {name.removesuffix('_recipe') for name in last}
    found = set(re.findall(r'\[(\w+)\]$', test)).union(*map(words, nodes))
    return [] if found & last else [f'{test}: it uses none of {", ".join(sorted(last))}']

# ---- records

def seeds_in(part) -> int:
    "On how many seeds the least of the measures in a part of a record was made; 0: it says none."
    if not isinstance(part, dict): return 0
    if 'mean' in part: return part.get('seeds', len(part.get('seeds_of', ())))
    return min(filter(None, map(seeds_in, part.values())), default=0)

def record_faults(key: str, said: str) -> list[str]:
    "What is missing for a record to count as measured."
    name, _, places = said.partition('#')
    from agentlab.bench import kept
    from claims import SHELF, record_of
    folder, stem = (ROOT/name).parent, Path(name).name.partition('.')[0]
    try: record = record_of(places, folder) if stem == SHELF else kept(folder, stem)
    except ValueError: record = {}
    if not record: return [f'{said}: no such record']
    try:
        if stem == SHELF: return claim_faults(key, name, record)
        both = min(seeds_in(reduce(getitem, place.split('/'), record)) for place in places.split('|'))
    except (KeyError, TypeError, ValueError, AttributeError): return [f'{said}: it has no such arms']
    least = REAL_SEEDS if Path(name).name.startswith('real_') else SEEDS
    few = [f'{said}: {both} of {least} {FEW}'] if both < least else []
    told = [record, *record['rows'].values()] if isinstance(record.get('rows'), dict) else [record]
    return few + ([] if any(one.keys() & set(SHARED) for one in told) else
        [f'{name}: it does not say what all its arms have'])

def claim_faults(key: str, name: str, record: dict) -> list[str]:
    "The same for a record of tools/claims.py, which may still be growing."
    if record['key'] != key: return [f'{name}: it is a record of {record["key"]}']
    system, control = record['arms'][0], record['control']
    if control not in record['arms'][1:] or not record['budget']: return [f'{name}: no control at an equal budget']
    seeds = lambda arm: {row['seed'] for row in record['rows'] if row['arm'] == arm}
    both = seeds(system) & seeds(control)
    least = SEEDS if record['model'] == 'tiny' else REAL_SEEDS
    return [f'{name}: {len(both)} of {least} {FEW}'] if len(both) < least else []

# ---- the state

def state(row: dict, mechanisms: list[dict]) -> str:
    "What the names of a row come to."
    mine = [line for line in mechanisms if line['key'] == row['key']]
    if not row['where']: return ''
    if not all(line['tests'] for line in mine) or not mine: return 'part'
    if row['record'] and not record_faults(row['key'], row['record']): return 'measured'
    return 'runs' if row['plays'] or row['recipe'] else 'unit'

def name_faults(row: dict, mechanisms: list[dict]) -> list[str]:
    "Names of a row that lead nowhere."
    mine = [line for line in mechanisms if line['key'] == row['key']]
    if not row['where']:
        given = [name for name in ('recipe', 'plays', 'record') if row[name]] + ['mechanisms']*bool(mine)
        return [f'it names {", ".join(given)} and no page'] if given else []
    found = [f'{row["where"]}: no such page'] if not (ROOT/row['where']).is_file() else []
    if not mine: found.append(f'{MECHANISMS} has no line for it')
    if row['recipe'] and row['recipe'] not in recipes(): found.append(f'{row["recipe"]}: no such recipe')
    for line in mine:
        functions, tests = line['functions'].split(), line['tests'].split()
        found += [f'agentlab.{name}: no such function' for name in functions if not function_exists(name)]
        if tests and not functions: found.append(f'{line["mechanism"]}: a test, and no function')
        if bool(tests) == bool(line['lacks']): found.append(f'{line["mechanism"]}: either tests, or what lacks')
        for test in tests: found += test_faults(test, functions)
    names = [name for line in mine for name in line['functions'].split()] + row['recipe'].split()
    plays = row['plays'].split() or [f'{TRAINS}[{name}]' for name in row['recipe'].split()]
    for test in plays: found += test_faults(test, names)
    wrong = record_faults(row['key'], row['record']) if row['record'] else []
    return found + [fault for fault in wrong if not fault.endswith(FEW)]  # a record may still be growing

def faults() -> list[str]:
    "What is wrong with the two files: names that lead nowhere, lines of nobody, states that are not the derived ones."
    papers, mechanisms = table(PAPERS), table(MECHANISMS)
    keys = [row['key'] for row in papers]
    found = [f'{MECHANISMS}: {line["key"]} is no key of {PAPERS}' for line in mechanisms if line['key'] not in keys]
    for row in papers:
        found += [f'{row["key"]}: {fault}' for fault in name_faults(row, mechanisms)]
        due = state(row, mechanisms)
        if row['state'] != due:
            found.append(f'{row["key"]}: {row["state"] or "empty"}, and is {due or "empty"}: python tools/atlas.py')
    stale = front_page(papers) != (ROOT/FRONT).read_text(encoding='utf-8')
    if edited().exists(): found.append(f'{MECHANISMS} is being edited: python tools/atlas.py packs it')
    return found + [f'{FRONT} counts other states: python tools/atlas.py']*stale

def counts(papers: list[dict]) -> dict[str, int]:
    "How many systems are in each state."
    return {name: sum(row['state'] == name for row in papers) for name in STATES}

def told(papers: list[dict]) -> str:
    "The counts in one line, for the front page."
    count = counts(papers)
    works = sum(count[name] for name in ('measured', 'runs', 'unit'))
    return (f'Of the {len(papers)} systems of [the atlas](papers.ipynb) {works} work here: {count["measured"]} '
        f'measured beside a control at an equal budget, {count["runs"]} more that play and learn, {count["unit"]} '
        f'tested in their parts. {count["part"]} are half there, and each says what it lacks. Tests and records '
        f'say so: nobody types a state.')

def front_page(papers: list[dict]) -> str:
    "nbs/index.ipynb with the counts of now in the saved output of the cell that shows them: no need to run the page."
    page = json.loads((ROOT/FRONT).read_text(encoding='utf-8'))
    for cell in page['cells']:
        if 'atlas.told(' not in ''.join(cell['source']): continue
        for output in cell['outputs']: output['data']['text/markdown'] = [told(papers)]
    return as_file(page)

def write() -> list[dict]:
    "Write the derived states into the table, and their counts into the front page; the rows."
    papers, mechanisms = table(PAPERS), table(MECHANISMS)
    for row in papers: row['state'] = state(row, mechanisms)
    out = StringIO()
    writer = csv.DictWriter(out, list(papers[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(papers)
    (ROOT/PAPERS).write_text(out.getvalue(), encoding='utf-8')
    (ROOT/FRONT).write_text(front_page(papers), encoding='utf-8')
    return papers

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--open', action='store_true', help='unpack the mechanisms, to edit them')
    if parser.parse_args().open:
        unpack()
        print(edited().relative_to(ROOT))
        return 0
    put_away()
    papers = write()
    readme.main()
    for line in table(MECHANISMS):
        if line['lacks']: print(f'{line["key"]} lacks {line["lacks"]}')
    print(', '.join(f'{count} {name or "not yet"}' for name, count in counts(papers).items()))
    found = faults()
    print('\n'.join(found), end='\n' if found else '')
    return 1 if found else 0

if __name__ == '__main__': sys.exit(main())
