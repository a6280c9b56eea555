"""The smallest run that trains, and child processes that start in no time.

`train_small(out)` takes a second and moves the weights: its house pays for what is said, so that an untrained policy
has a gradient (in KeyDoor it
earns nothing, every advantage is 0, and a test of resuming would pass whatever was restored).
`fork(function, ...)` runs a function in a process forked from a server that has torch, transformers and agentlab
imported.
"""
import multiprocessing, os, sys
from pathlib import Path

import pytest
import torch

from agentlab.env import KeyDoor
from agentlab.policy import tiny_policy
from agentlab.train import recipes, train
from agentlab.train.runs import load_checkpoint

ROOT = Path(__file__).resolve().parent.parent
TABLES = ('episodes', 'rows', 'turns', 'tokens')

class Paying(KeyDoor):
    "A house of four rooms that pays for the length of what is said, too."
    name = 'paying'
    def __init__(self, size=2, horizon=4, closed=0, split='train'): super().__init__(size, horizon, closed, split)
    def turn(self, action):
        observation, reward, done, info = super().turn(action)
        return observation, reward + len(action) % 7/8, done, info

@pytest.fixture
def sent_whole(request):
    """Environments of this file and of the test's go to other processes with their code: importing the files there,
    torch and all, would take each process seconds."""
    import cloudpickle
    modules = sys.modules[__name__], request.module
    for module in modules: cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules: cloudpickle.unregister_pickle_by_value(module)

def small_policy(env=None): return tiny_policy(env or Paying(), warm=False, progress=False)

def small_recipe(make=recipes.gigpo, **changes):
    "A recipe of a few short episodes; no tests on held-out tasks unless asked for."
    return make(**dict(steps=1, groups=2, group_size=2, max_tokens=3, test_tasks=0, checkpoint_every=1) | changes)

def train_small(out, make=recipes.gigpo, policy=None, env=None, resume=False, on_row=None, should_stop=None, **changes):
    env = env or Paying()
    return train(policy or small_policy(env), env, small_recipe(make, **changes), out, resume=resume, on_row=on_row,
        should_stop=should_stop, progress=False)

# ---- comparing

def exactly(one, two, name=''):
    "Equal dtype, shape and bits, NaN included."
    assert (one.dtype, one.shape) == (two.dtype, two.shape), name
    assert torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num()), name

def same_batch(one, two, labels=True):
    "Equal tables, column by column, whatever the order of the columns."
    for table in TABLES:
        first, second = getattr(one, table), getattr(two, table)
        assert set(first.columns) == set(second.columns), table
        for column in first.columns: exactly(first[column], second[column], f'{table}.{column}')
    if labels: assert one.labels == two.labels

def facts(run):
    "The rows of a run without the one number that may differ."
    return [{k: v for k, v in row.items() if k != 'seconds'} for row in run.rows()]

def files(run):
    """Names of all files of a run; without a third checkpoint, which a run that was killed while it removed it may
    have left."""
    old = sorted((run.folder/'checkpoints').glob('[0-9]*'))[:-2]
    return {str(p.relative_to(run.folder)) for p in run.folder.rglob('*') if not {p, *p.parents} & set(old)}

def same_run(one, two):
    "Equal weights, optimizer, rows, tests and episodes; and nothing half-written is left in the second."
    for name in ('model', 'optimizer'):
        first, second = (load_checkpoint(run)[1][name] for run in (one, two))
        assert set(first) == set(second)
        for key in first: exactly(first[key], second[key], f'{name} {key}')
    assert facts(one) == facts(two)
    assert one.tests() == two.tests()
    assert one.steps() == two.steps()
    for step in one.steps(): same_batch(one.episodes(step), two.episodes(step))
    assert files(one) == files(two)
    assert ((one.folder/'policy'/'model.safetensors').read_bytes() == (two.folder/'policy'/'model.safetensors')
        .read_bytes())

# ---- processes

_context = (multiprocessing.get_context('forkserver') if 'forkserver' in multiprocessing.get_all_start_methods()
    else None)

def _child(function, arguments, log, folder, environment):
    "What a forked process does: its output goes to a file, and an exception is its exit status 1."
    for stream in (1, 2): os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.update(environment)
    os.chdir(folder or ROOT)
    function(*arguments)

def fork(function, *arguments, log, folder=None, **environment):
    "A started process that calls `function`; join it, then read its `exitcode` and the file `log`."
    if _context is None: pytest.skip('this system cannot fork')
    _context.set_forkserver_preload(['warm'])
    before = os.environ.copy()
    # for the server, which starts with the first process
    os.environ.update(OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), str(ROOT)]))
    try:
        process = _context.Process(target=_child, args=(function, arguments, str(log), folder, environment),
            daemon=True)
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return process

def finish(process, log, seconds=120):
    "Exit status of a forked process and what it printed; it is killed when it takes too long."
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f'still running after {seconds} s:\n{Path(log).read_text()[-3000:]}')
    return process.exitcode, Path(log).read_text() if Path(log).exists() else ''

def as_main(arguments, errors):
    "What `python -m agentlab` does, in a forked process."
    import runpy
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ['agentlab', *arguments]
    runpy.run_module('agentlab', run_name='__main__', alter_sys=True)

def _type(folder, lines):
    "Type command lines of agentlab, in one process; answers.json holds status and output of each."
    import json
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO
    from agentlab import cli
    answers = []
    for line, typed in lines:
        said, sys.stdin = StringIO(), StringIO(typed)
        with redirect_stdout(said), redirect_stderr(said):
            try: status = cli.main(line.split())
            except SystemExit as e: status = e.code
        answers.append((status, said.getvalue()))
    (Path(folder)/'answers.json').write_text(json.dumps(answers))

def commanded(folder, *lines):
    """Command lines of agentlab, typed one after the other in a folder: (exit status, what was printed) of each. A line
    is a text, or (text, what is typed afterwards)."""
    import json
    lines = [line if isinstance(line, tuple) else (line, '') for line in lines]
    status, said = finish(fork(_type, str(folder), lines, log=folder/'log', folder=str(folder)), folder/'log', 300)
    assert status == 0, said[-3000:]
    return json.loads((folder/'answers.json').read_text())
