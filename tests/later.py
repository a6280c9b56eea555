"""Collecting the tests takes their names, and no torch. While pytest collects, an import of a heavy package at the top
of a file in this folder binds a stand-in; before the first test of the file, `settle` puts what was imported in its
place. In the file itself nothing is different, but for what it computes at its top: that stands in `deferred`."""
import builtins
import sys
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
from packaging.version import Version

HERE = str(Path(__file__).resolve().parent)
HEAVY = set('accelerate agentlab bench fastapi httpx measured numpy openai pandas peft psutil pyarrow safetensors '
    'tokenizers torch transformers trl uvicorn replays vllm_server'.split())
LIGHT = 'agentlab.env', 'agentlab.cli', 'agentlab.metrics', 'agentlab.settings'  # imported at once: no torch in them
helpers = {}     # name of a file -> the files of this folder that it imports
collecting = []  # not empty while pytest collects
done = set()     # names of the files that are settled

class StandIn:
    "What a file imports or makes at its top. Whoever needs more than a name or an attribute of it, gets it at once."
    __slots__ = '_make', '_found', '__name__'  # no __dict__: vars() of a stand-in is an error, not a surprise

    def __init__(self, make, name=None): self._make, self.__name__ = make, name  # pytest reads the name for its ids

    def _real(self):
        if self._make: self._found, self._make = self._make(), None
        return self._found

    def __getattr__(self, name):
        if not collecting: return getattr(self._real(), name)
        if name.startswith('__') or name in ('pytestmark', '_pytestfixturefunction'): raise AttributeError(name)
        return StandIn(lambda: getattr(self._real(), name), name)

    def __call__(self, *args, **kwargs): return self._real()(*args, **kwargs)
    def __iter__(self): return iter(self._real())
    def __len__(self): return len(self._real())
    def __bool__(self): return bool(self._real())
    def __getitem__(self, key): return self._real()[key]
    def __dir__(self): return dir(self._real())
    def __or__(self, other): return self._real() | other
    def __ror__(self, other): return other | self._real()
    def __eq__(self, other): return self is other or self._real() == other
    def __hash__(self): return hash(self._real())
    def __mro_entries__(self, bases): return (self._real(),)

def deferred(make):
    "What `make()` gives: at once, or where pytest collects, before the first test of the file."
    return StandIn(make) if collecting else make()

def imported(module, name):
    "What `from module import name` binds."
    home = import_module(module)
    return getattr(home, name) if hasattr(home, name) else import_module(f'{module}.{name}')

def package(name):
    "What `import name` binds: the package, whatever module of it was asked for."
    import_module(name)
    return sys.modules[name.partition('.')[0]]

@contextmanager
def imports():
    "Within, heavy imports at the top of a file in this folder bind stand-ins."
    real = builtins.__import__

    def later(name, globals=None, locals=None, fromlist=(), level=0):
        at_top = locals is not None and locals is globals and str(globals.get('__file__')).startswith(HERE)
        if at_top and name.partition('.')[0] in HEAVY and not name.startswith(LIGHT):
            if not fromlist: return StandIn(partial(package, name), name)
            return SimpleNamespace(**{one: StandIn(partial(imported, name, one), one) for one in fromlist})
        module = real(name, globals, locals, fromlist, level)
        if at_top and str(getattr(module, '__file__', None)).startswith(HERE):
            helpers.setdefault(globals['__name__'], set()).add(name)
        return module

    builtins.__import__ = later
    collecting.append(True)
    try: yield
    finally:
        builtins.__import__ = real
        collecting.pop()

def settled(value):
    "A value without stand-ins. Lists, dicts and partials change in place: others may hold them too."
    if isinstance(value, StandIn): return value._real()
    if type(value) is list: value[:] = map(settled, value)
    elif type(value) is dict: value.update({key: settled(held) for key, held in value.items()})
    elif type(value) is tuple:
        new = tuple(map(settled, value))
        if any(one is not held for one, held in zip(new, value)): return new
    elif type(value) is partial:
        value.__setstate__((settled(value.func), settled(value.args), settled(value.keywords), vars(value)))
    return value

def settle(module):
    """Put what was imported in the place of the stand-ins of a file, and of the helpers that it imports. A stand-in in
    a place that nobody looks at, such as a closure, goes on to stand for it."""
    if module.__name__ in done: return
    done.add(module.__name__)
    for name in helpers.get(module.__name__, ()): settle(sys.modules[name])
    scope = vars(module)
    for name, value in list(scope.items()):
        if not name.startswith('__'): scope[name] = settled(value)
    for value in [held for held in scope.values() if getattr(held, '__module__', None) == module.__name__]:
        if isinstance(value, FunctionType):
            value.__defaults__, value.__kwdefaults__ = settled(value.__defaults__), settled(value.__kwdefaults__)
        elif isinstance(value, type):
            for name, held in list(vars(value).items()):
                if isinstance(held, StandIn): setattr(value, name, held._real())

def needs(name, least=None, reason=None):
    "Skip the file where a package is missing or too old, without importing it."
    if not find_spec(name): pytest.skip(reason or f'{name} is not installed', allow_module_level=True)
    if least and Version(version(name)) < Version(least):
        pytest.skip(f'{name} {version(name)} is older than {least}', allow_module_level=True)
