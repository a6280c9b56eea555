"""Every notebook obeys nbs/notation.ipynb: its names exist, refused names are not used, and a letter without a fixed
meaning is explained where it is used."""
import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from notebooks import ROOT, notebooks

PAGE = Path('nbs/notation.ipynb')
LETTERS = ('alpha beta gamma delta epsilon varepsilon eta theta vartheta lambda mu nu rho sigma tau phi '
    'varphi psi omega kappa xi chi zeta Delta Phi Omega Gamma Theta Lambda Sigma Psi pi Pi').split()
GREEK = re.compile(rf'\\({"|".join(LETTERS)})(?![a-zA-Z])')
MATHS = re.compile(r'\$\$.*?\$\$|\$[^$\n]+\$', re.DOTALL)

@cache
def cells(path, kind):
    return [''.join(cell['source']) for cell in json.loads((ROOT/path).read_text(encoding='utf-8'))['cells']
        if cell['cell_type'] == kind]

def section(title):
    text = '\n'.join(cells(PAGE, 'markdown'))
    return re.search(rf'^## {title}\n(.*?)(?=^## |\Z)', text, re.MULTILINE | re.DOTALL)[1]

def table(title):
    return [[part.strip() for part in line.strip('|').split('|')] for line in section(title).splitlines()
        if line.startswith('|')][2:]

def names(text): return re.findall(r'`([^`]+)`', text)

REFUSED = {name: right for line, right in table('Words that are not used') for name in names(line)}
# pages that call other projects' functions by their names
ABROAD = {'nbs/bench/06_verl.ipynb', 'nbs/interop/01_verl.ipynb', 'nbs/view/03_foreign.ipynb',
    'nbs/view/11_foreign_formats.ipynb'}
FIXED = {letter for symbol, *_ in table('Symbols') for letter in GREEK.findall(symbol)} | {'theta', 'varepsilon'}
FREE = set(GREEK.findall(section('Symbols').split('**Free letters.**')[1]))

def own_names(source):
    "Names that a cell gives to arguments and variables."
    try: tree = ast.parse(re.sub(r'^\s*[%!].*$', 'pass', source, flags=re.MULTILINE))
    except SyntaxError: return set()
    found = ({node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)})
    return found - {'', None}

def refused(path): return {name for source in cells(path, 'code') for name in own_names(source) if name in REFUSED}

def unexplained(path):
    "Greek letters of the page's equations that have no fixed meaning, and that no sentence of the page mentions."
    text = '\n'.join(cells(path, 'markdown'))
    shown = {letter for maths in MATHS.findall(text) for letter in GREEK.findall(maths)}
    inline = {letter for maths in MATHS.findall(text) if not maths.startswith('$$') for letter in GREEK.findall(maths)}
    return shown - FIXED - inline, shown - FIXED - FREE

@pytest.mark.parametrize('path', notebooks(), ids=str)
def test_a_notebook_obeys(path):
    assert (str(path) in ABROAD
        or not refused(path)), f"{path}: { {name: REFUSED[name] for name in refused(path)} }; see {PAGE}"
    silent, unknown = unexplained(path)
    assert not silent, f'{path}: an equation has {silent}, and no sentence says what that is'
    assert not unknown, f'{path}: {unknown} stand neither among the symbols nor among the free letters of {PAGE}'

def test_the_names_are_real():
    "Every symbol is a column, an argument or a quantity where the table says so."
    from agentlab.env import KeyDoor
    from agentlab.episodes import Batch
    from agentlab.policy import tiny_policy
    from agentlab.rollout import play
    batch = Batch.from_episodes(play(tiny_policy(KeyDoor(), progress=False, steps=1), KeyDoor(), [0], group_size=2,
        seed=0))
    code = [ast.parse(path.read_text(encoding='utf-8')) for path in (ROOT/'agentlab').rglob('*.py')]
    functions = [node for tree in code for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    arguments = {a.arg for f in functions for a in f.args.args + f.args.kwonlyargs}
    variables = {f.name for f in functions} | {node.id for tree in code for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    later = {'value', 'old_logp', 'ref_logp'}  # columns that the trainer adds
    for symbol, name, where, *_ in table('Symbols'):
        name, = names(name)
        if where in ('episodes', 'turns', 'tokens'):
            assert name in getattr(batch, where) or name in later, f'{symbol}: {where} has no column {name}'
        else:
            assert name in (arguments if where == 'argument'
                else arguments | variables), f'{symbol}: nothing is called {name}'
    assert all({a.arg for f in functions for a in f.args.args + f.args.kwonlyargs} >= set(names(name))
        for name, *_ in table('Switches'))

def test_a_breach_is_found(tmp_path, monkeypatch):
    cell = lambda kind, source: dict(cell_type=kind, source=source)
    page = tmp_path/'page.ipynb'
    page.write_text(json.dumps(dict(cells=[cell('code', 'def f(adv, *, gae_lambda=.9): traj = adv'),
        cell('markdown', 'x\n$$\\alpha+\\vartheta+\\gamma$$')])))
    assert refused(page) == {'adv', 'gae_lambda', 'traj'}
    assert unexplained(page) == ({'alpha', 'vartheta'}, {'vartheta'})
