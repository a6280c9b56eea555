"""What the decorators of the package register, read in its text: names for tests, where the package itself would bring
torch. test_doors.py compares them with the registries."""
import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent/'agentlab'

@cache
def estimators():
    "Name -> what its decorator says: peers and needs."
    found = {}
    for path in sorted((PACKAGE/'credit').glob('*.py')):
        text = path.read_text()
        if '@estimator(' not in text: continue
        for node in ast.parse(text).body:
            for mark in getattr(node, 'decorator_list', ()):
                if getattr(getattr(mark, 'func', None), 'id', '') != 'estimator': continue
                said = [ast.literal_eval(value) for value in mark.args]
                said = dict(zip(('signal', 'peers', 'spread', 'paper', 'needs'), said))
                said |= {key.arg: ast.literal_eval(key.value) for key in mark.keywords}
                found[node.name] = dict(needs=()) | said
    return found

@cache
def recipes():
    "Names of the recipes, in alphabetical order."
    mark = re.compile(r'^@recipe\(.*?^def (\w+?)_recipe\(', re.MULTILINE | re.DOTALL)
    return sorted(name for path in PACKAGE.rglob('*.py') for name in mark.findall(path.read_text()))

@cache
def public_functions(family, parameter):
    "Names of the functions of a family that have this parameter, in alphabetical order."
    nodes = [node for path in (PACKAGE/family).glob('*.py') for node in ast.parse(path.read_text()).body]
    return sorted(node.name for node in nodes if isinstance(node, ast.FunctionDef) and not node.name.startswith('_')
        and parameter in [x.arg for x in node.args.args + node.args.kwonlyargs])
