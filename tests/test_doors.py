"What the pages of a family talk about is imported by the family, and what its modules export is found there."
import importlib
import inspect
import json
from pathlib import Path
import pkgutil
import re

import pytest

from agentlab.env import envs
import registries

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ('credit', 'entropy', 'objective', 'reward', 'rollout', 'replay', 'selfplay', 'prompt', 'policy', 'train',
            'env', 'view')
# a function of this name would hide the module
MODULES = {('train', 'fit')}
# `recipes` is a door itself (`agentlab.train.recipes.gigpo`); the adapters need numpy, and environments do not
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
