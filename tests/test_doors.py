"What the pages of a family talk about is imported by the family, and what its modules export is found there."
import importlib
import inspect
import json
import pkgutil
import pydoc
import re
from pathlib import Path
from types import ModuleType

import pytest

import registries
from agentlab.env import envs

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ('credit', 'entropy', 'objective', 'reward', 'rollout', 'replay', 'selfplay', 'prompt', 'policy', 'train',
    'env', 'view')
PACKAGES = ['agentlab', *(m.name for m in pkgutil.iter_modules([ROOT/'agentlab'], 'agentlab.') if m.ispkg)]
# a function of this name would hide the module
MODULES = {('train', 'fit')}
# `recipes` is a door itself (`agentlab.train.recipes.gigpo`); of adapters the functions are at the door
ASKED = {'recipes', 'adapters'}
# worlds register themselves: their class is at the door, and the door finds what else their page talks about
WORLDS = {kind.__module__ for kind in envs.values()}

def modules(package) -> dict:
    "Name -> module."
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith('_')]
    return {name: importlib.import_module(f'{package.__name__}.{name}') for name in names}

def told(family: str) -> dict:
    "Module -> words that stand in backticks in the prose of its page."
    found = {}
    for path in (ROOT/'nbs'/family).glob('*.ipynb'):
        cells = [(c['cell_type'], ''.join(c['source'])) for c in json.loads(path.read_text(encoding='utf-8'))['cells']]
        named = re.search(r'#\| default_exp \w+\.(\w+)', '\n'.join(text for kind, text in cells if kind == 'code'))
        spans = re.findall(r'`([^`\n]+)`', '\n'.join(text for kind, text in cells if kind == 'markdown'))
        if named: found[named[1]] = {word for span in spans for word in re.findall(r'[A-Za-z]\w*', span)}
    return found

@pytest.mark.parametrize('family', FAMILIES)
def test_what_pages_talk_about_is_at_the_door(family):
    package = importlib.import_module(f'agentlab.{family}')
    here, prose = modules(package), told(family)
    missing = [(name, word) for name, module in here.items() if name not in ASKED
        for word in prose.get(name, set()) & set(getattr(module, '__all__', ()))
        if word not in vars(package) and (family, word) not in MODULES
        and not (module.__name__ in WORLDS and hasattr(package, word))]
    assert not missing, f'import them in nbs/{family}/index.ipynb'

@pytest.mark.parametrize('family', FAMILIES)
def test_every_public_name_is_found(family):
    package = importlib.import_module(f'agentlab.{family}')
    here = modules(package)
    owners = {}
    for module in here.values():
        for name in getattr(module, '__all__', ()): owners.setdefault(name, []).append(getattr(module, name))
    alone = [name for name, values in owners.items() if len({id(v) for v in values}) == 1 and name not in here]
    lost = [name for name in alone if getattr(package, name) is not owners[name][0]]
    assert alone and lost in ([], ['recipes'])

@pytest.mark.parametrize('name', PACKAGES)
def test_no_name_hides_a_module(name):
    "`import agentlab.family.page as p` gives the attribute of the family: it must be the page."
    package = importlib.import_module(name)
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    hidden = {n for n in names if not isinstance(vars(package).get(n, package), ModuleType)}
    for one in names:
        try: importlib.import_module(f'{name}.{one}')
        except ImportError: continue  # needs a package that is not here
        if not isinstance(vars(package)[one], ModuleType): hidden.add(one)
    assert names and not hidden, f'call the pages of {name} otherwise than the functions at its door'

def told_in_parts() -> list:
    "(public class, private class of its module that holds a part of it)"
    found = []
    for package in map(importlib.import_module, PACKAGES):
        for one in pkgutil.iter_modules(package.__path__):
            try: module = importlib.import_module(f'{package.__name__}.{one.name}')
            except ImportError: continue
            kinds = [kind for name, kind in vars(module).items() if inspect.isclass(kind) and not name.startswith('_')]
            found += [(kind, part) for kind in kinds for part in kind.__mro__ if kind.__module__ == module.__name__
                and part.__module__ == module.__name__ and part.__name__.startswith('_')]
    return found

def test_help_and_messages_name_the_public_class():
    pairs = told_in_parts()
    wrong = [(kind, name) for kind, part in pairs for name, value in vars(part).items() if inspect.isfunction(value)
        and value.__module__ != 'dataclasses'  # `__replace__`, from Python 3.13 on
        and '<locals>' not in value.__qualname__ and (name not in vars(kind)
        or inspect.unwrap(value).__qualname__ != f'{kind.__qualname__}.{name}')]
    assert len(pairs) > 30 and not wrong, 'put `@in_parts` above the class (agentlab.settings)'
    from agentlab.replay import Buffer
    with pytest.raises(TypeError, match=r'^Buffer\.add\(\) missing 2'): Buffer().add()
    page = pydoc.plain(pydoc.render_doc(Buffer))
    assert ' add(self' in page and 'Methods inherited from _' not in page

def test_what_is_read_in_the_text_is_what_registers_itself():
    "The names of tests come from tests/registries.py: nothing is left out, and nothing else is told of it."
    from agentlab import objective
    from agentlab.credit import estimators
    from agentlab.train import recipes
    read = registries.estimators()
    assert registries.recipes() == list(recipes.known) and set(read) == set(estimators)
    for name, said in read.items():
        assert (said['peers'], said['needs']) == (estimators[name].peers, tuple(estimators[name].needs)), name
    asked = {name for name, f in vars(objective).items() if inspect.isfunction(f)
        and 'logp' in inspect.signature(f).parameters}
    assert set(registries.public_functions('objective', 'logp')) == asked
