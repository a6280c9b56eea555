"""Environments that go wrong, one way each: for tests/test_hostile.py. A game is played well in a group of its own
beside every one of them."""
import os, sys, threading, time
from types import SimpleNamespace

from agentlab.env import Env, Step
from agentlab.env.protocol import EnvError

class Echo(Env):
    "Two turns, and the second word wins."
    guide = ''
    def reset(self, seed, task=None):
        self.turns = 0
        return Step('player', 'speak', info=dict(state=0))
    def step(self, action):
        self.turns += 1
        return Step('player', 'speak', dict(player=.5), self.turns == 2,
            dict(state=self.turns, success=self.turns == 2))

class Raises:
    "A value whose every use raises."
    def _no(self, *a, **k): raise RuntimeError('never')
    __float__ = __bool__ = __str__ = __repr__ = __eq__ = __hash__ = _no
    __len__ = __iter__ = __index__ = __int__ = __format__ = __getitem__ = _no

class LoudText(str):
    "A text that is none."
    def encode(self, *a, **k): raise RuntimeError('never')
    def split(self, *a, **k): raise RuntimeError('never')
    def __iter__(self): raise RuntimeError('never')
    def __str__(self): raise RuntimeError('never')

class SilentError(Exception):
    def __str__(self): raise RuntimeError('not even that')
    __repr__ = __str__

class Locked(Exception):
    "An exception that cannot be sent."
    def __init__(self, *a):
        super().__init__(*a)
        self.lock = threading.Lock()

class Odd(Step):
    "A Step that changes its mind."
    @property
    def done(self): raise RuntimeError('undecided')
    @done.setter
    def done(self, value): pass

def nested(depth=50_000):
    found = []
    for _ in range(depth): found = [found]
    return found

def selfish():
    found = {}
    found['me'] = found
    return found

def throw(error):
    def step(env, step): raise error() if isinstance(error, type) else error
    return step

class Later:
    "A value that is made where it is used: a worker that needs no torch does not import it."
    def __init__(self, make): self.make = make

def now(value): return value.make() if isinstance(value, Later) else value

def two():
    import numpy as np
    return np.ones(2)

def tensors():
    import torch
    return torch.ones(3)

def field(**parts):
    "A Step with other parts."
    def change(env, step):
        for name, value in parts.items():
            setattr(step, name, {k: now(v) for k, v in value.items()} if isinstance(value, dict) else now(value))
        return step
    return change

def info(**parts):
    def change(env, step):
        step.info.update({name: now(value) for name, value in parts.items()})
        return step
    return change

def returns(value): return lambda env, step: value

def recurse(env, step): return recurse(env, step)

def late(env, step):
    "What was returned is changed afterwards."
    def change():
        step.observation = None
        step.reward['nobody'] = object()
        step.info['state'] = object()
    env.change = change
    threading.Timer(.001, change).start()
    return step

def closes(env, step):
    os.close(1)
    raise OSError('no more output')

TEXTS = dict(surrogate='half \ud800', long='word '*300_000, bytes=b'speak', number=5, none=None,
    loud=LoudText('x\ud800'), list=['a'])
NUMBERS = dict(huge=10**400, text='a lot', none=None, complex=1j, two=Later(two), tensors=Later(tensors),
    raises=Raises(), list=[1.], object=object())
FLAGS = dict(two=Later(two), tensors=Later(tensors), raises=Raises())
ERRORS = dict(key=KeyError('x'), silent=SilentError, locked=Locked('x'), surrogate=ValueError('half \ud800'),
    long=ValueError('x'*10**7), stop=StopIteration(), exit=SystemExit('leave'), code=SystemExit(3),
    leave=GeneratorExit(), base=BaseException('odd'), memory=MemoryError(), recursion=RecursionError(),
    env=EnvError('a rule'), unicode=UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'odd'),
    group=ExceptionGroup('two', [ValueError(1), KeyError(2)]), escape=RuntimeError('\x1b[31mred\x07'),
    timeout=TimeoutError(), pipe=BrokenPipeError(), assertion=AssertionError())

WAYS = {f'observation {name}': field(observation=value) for name, value in TEXTS.items()}
WAYS |= {f'reward {name}': field(reward=dict(player=value)) for name, value in NUMBERS.items()}
WAYS |= {f'cost {name}': info(cost=value) for name, value in NUMBERS.items()}
WAYS |= {f'milestone {name}': info(milestone=value) for name, value in NUMBERS.items()}
WAYS |= {f'done {name}': field(done=value) for name, value in FLAGS.items()}
WAYS |= {f'{flag} {name}': info(**{flag: value}) for flag in ('invalid', 'truncated', 'success')
    for name, value in FLAGS.items()}
WAYS |= {f'raises {name}': throw(error) for name, error in ERRORS.items()}
WAYS |= {f'state {name}': info(state=value)
    for name, value in dict(nested=nested(), selfish=selfish(), object=object(), set={1}, bytes=b'x',
    raises=Raises(), tensor=Later(tensors), lock=SimpleNamespace()).items()}
WAYS |= {f'columns {name}': info(columns=value)
    for name, value in dict(own=dict(reward=1.), t=dict(t=1.), state=dict(state=1.), list=[1.], number={1: 1.},
    text=dict(mine='x'), huge=dict(mine=10**400), none=None).items()}
WAYS |= {f'answer {name}': info(answer=value) for name, value in dict(number=7, surrogate='\ud800', list=['a']).items()}
WAYS |= {f'success {name}': info(success=value)
    for name, value in dict(nobody=dict(nobody=True), seat=dict(player=Raises())).items()}
WAYS |= {f'returns {name}': returns(value) for name, value in dict(
    none=None, tuple=('speak', 1., False, {}), text='speak', step=Step, odd=Odd('player', 'speak'),
    exception=ValueError('returned'), raises=Raises(), generator=(x for x in ())).items()}
WAYS |= {f'seat {name}': field(seat=value)
    for name, value in dict(nobody='nobody', none=None, list=['player'], raises=Raises()).items()}
WAYS |= {f'{part} {name}': field(**{part: value}) for part in ('reward', 'info') for name, value in dict(
    none=None, list=[], text='x').items()} | {'reward nobody': field(reward=dict(nobody=1.))}
WAYS |= dict(recursion=recurse)
# in a process of its own only
ISOLATED = dict(exits=lambda env, step: os._exit(3), stdout=lambda env, step: sys.__stdout__.write('noise'*100)
    and throw(ValueError('x'))(env, step), closes=closes, sleeps=lambda env, step: time.sleep(60))

class Hostile(Echo):
    "Goes wrong at `at`, in the way of that name."
    def __init__(self, way, at): self.way, self.at = way, at
    def bad(self, step): return (WAYS | ISOLATED)[self.way](self, step)
    def reset(self, seed, task=None):
        step = super().reset(seed, task)
        return self.bad(step) if self.at == 'reset' else step
    def step(self, action):
        step = super().step(action)
        return self.bad(step) if self.at == 'step' and self.turns == 1 else step
