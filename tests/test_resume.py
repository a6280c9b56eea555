"""A run that was killed with SIGKILL and resumed is the run that was not: weights, rows, tests and episodes, bit for
bit.

Kills come at random moments, and in the middle of every kind of disk operation: the n-th write, flush, rename or
removal is half done and is the last.
"""
import builtins, errno, json, os, random, shutil, signal, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import small
from agentlab.train import Run, runs, trainer
from agentlab.train.runs import load_checkpoint
from small import exactly, facts, finish, fork, same_run, small_policy, train_small

pytestmark = pytest.mark.xdist_group('forks')
# checkpoints after 2, 4 and 5 updates, of which two are kept
settings = dict(steps=5, checkpoint_every=2, test_every=3, test_tasks=1)

# ---- a process that kills itself in the middle of a disk operation

class Scissors:
    """Counts disk operations; the one that `at` names, as (kind, how many of that kind before it), is done by half
    and is the last thing that the process does."""
    def __init__(self, at): self.at, self.seen = at, []
    def cut(self, kind, half=lambda: None):
        if (kind, self.seen.count(kind)) == self.at:
            half()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(kind)

    def around(self, owner, name, kind, half=None):
        "Replace `owner.name` by a function that may be cut. `half` does half of its work."
        whole = getattr(owner, name)
        def call(*a, **k):
            self.cut(kind, lambda: half and half(whole, *a, **k))
            return whole(*a, **k)
        setattr(owner, name, call)

    def everywhere(self):
        import pyarrow.parquet
        from agentlab.policy.core import Policy
        for owner, name in ((os, 'fsync'), (os, 'replace'), (os, 'truncate'), (os, 'unlink'), (os, 'mkdir')):
            self.around(owner, name, name)
        self.around(shutil, 'rmtree', 'rmtree', half_tree)
        self.around(Path, 'write_bytes', 'checkpoint', lambda whole, path, data: whole(path, data[:len(data)//2]))
        self.around(Path, 'write_text', 'json', lambda whole, path, text: whole(path, text[:len(text)//2]))
        self.around(pyarrow.parquet, 'write_table', 'parquet', half_parquet)
        self.around(Policy, 'save_pretrained', 'policy', half_policy)
        runs.open = self.open
    def open(self, path, mode='r', *a, **k):
        "For the row log: a line that is written by half."
        file = builtins.open(path, mode, *a, **k)
        if 'a' not in mode: return file
        scissors = self
        class Log:
            def __enter__(self): return self
            def __exit__(self, *error): file.close()
            def __getattr__(self, name): return getattr(file, name)
            def write(self, data):
                scissors.cut('row', lambda: (file.write(data[:len(data)//2]), file.flush()))
                return file.write(data)
        return Log()

def half_tree(whole, path, *a, **k):
    for file in sorted(p for p in Path(path).rglob('*') if p.is_file())[:1]: os.remove(file)

def half_parquet(whole, table, path, *a, **k):
    whole(table, path, *a, **k)
    os.truncate(path, os.path.getsize(path)//2)

def half_policy(whole, policy, folder):
    whole(policy, folder)
    os.truncate(Path(folder)/'model.safetensors', 1000)

# ---- what a restored run must not forget: each of these takes one thing away

def restore_nothing(training, run):
    "The step and the rows come back, weights and optimizer do not."
    found = load_checkpoint(run)
    step = found[0] if found else 0
    runs.rewind(run, step)
    return step

mutations = dict(
    nothing=lambda: setattr(trainer, 'restore_training', restore_nothing),
    no_weights=lambda: setattr(torch.Tensor, 'copy_', lambda self, other, *a: self),
    no_optimizer=lambda: setattr(torch.optim.AdamW, 'load_state_dict', lambda self, state: None),
    no_rewind=lambda: setattr(trainer, 'rewind', lambda run, step: None),
    no_checkpoint=lambda: (setattr(trainer, 'load_checkpoint', lambda run: None),
    setattr(trainer, 'rewind', lambda run, step: None)),
    carried_seed=lambda: setattr(trainer, 'derive', carried(random.Random(0))))

def carried(numbers):
    "A `derive` that forgets its parts: the next number of one generator."
    return lambda *parts: numbers.getrandbits(63)

def attempt(out, at=None, mutation=None, seen=None):
    "One process of a run: begin or go on, until the end or until the disk operation `at`."
    if mutation: mutations[mutation]()
    scissors = Scissors(at)
    scissors.everywhere()
    start = time.monotonic()
    train_small(out, resume=True, **settings)
    if seen: builtins.open(seen, 'w').write(json.dumps(dict(seen=scissors.seen, seconds=time.monotonic() - start)))

def go(folder, **how):
    "Exit status and output of one attempt."
    log = folder.with_suffix('.log')
    return finish(fork(attempt, folder, *(how.get(k) for k in ('at', 'mutation', 'seen')), log=log), log)

def to_the_end(folder, mutation=None):
    status, said = go(folder, mutation=mutation)
    assert status == 0, said[-3000:]
    return Run(folder)

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "The run that nobody killed, the names of its disk operations in their order, and how long it took."
    folder = tmp_path_factory.mktemp('whole')
    status, said = go(folder/'run', seen=str(folder/'seen.json'))
    assert status == 0, said
    run = Run(folder/'run')
    vars(run).update(json.loads((folder/'seen.json').read_text()))
    return run

def test_the_run_learns(whole):
    "What is compared below does change from step to step; otherwise nothing would be tested."
    rows = whole.rows()
    assert [row['step'] for row in rows] == [0, 1, 2, 3, 4] and all(row['grad_norm'] > .01 for row in rows)
    assert len({row['entropy'] for row in rows}) == 5
    assert [test['step'] for test in whole.tests()] == [0, 3, 5]
    before = dict(small_policy().model.named_parameters())
    assert any(not torch.equal(before[name], p) for name, p in load_checkpoint(whole)[1]['model'].items())
    assert set(whole.seen) == kinds

kinds = {'fsync', 'replace', 'row', 'parquet', 'checkpoint', 'json', 'rmtree', 'unlink', 'mkdir', 'policy'}

def killed_at(folder, at):
    "Go on in `folder` until the operation `at`; False if the run ended before it."
    status, said = go(folder, at=at)
    assert status in (0, -signal.SIGKILL), said[-3000:]
    return status != 0

@pytest.mark.parametrize('kind', sorted(kinds))
def test_killed_in_the_middle_of_a_write(whole, tmp_path, kind):
    """At the first of its kind, then in the resumed run at another one, and so on: the repairs of a resumed run are
    cut short, too."""
    folder, last = tmp_path/'run', whole.seen.count(kind) - 1
    assert killed_at(folder, (kind, 0))
    for number in sorted({min(2, last), last//2}): killed_at(folder, (kind, number))
    same_run(whole, to_the_end(folder))

@pytest.mark.slow
def test_killed_at_every_disk_operation(whole, tmp_path):
    for kind in sorted(kinds):
        for number in range(whole.seen.count(kind)):
            folder = tmp_path/f'{kind}{number}'
            assert killed_at(folder, (kind, number))
            same_run(whole, to_the_end(folder))

@pytest.mark.parametrize('seed', range(2))
def test_killed_at_random_moments(whole, tmp_path, seed):
    chance, folder, log, status, deaths = random.Random(seed), tmp_path/'run', tmp_path/'log', None, 0
    while status != 0 or not deaths:
        if status == 0: shutil.rmtree(folder)  # it was faster than its killer
        process = fork(attempt, folder, log=log)
        # longer and longer, so that it ends on a busy machine too
        process.join(chance.uniform(.1, .8)*whole.seconds*(1 + deaths/3))
        if process.exitcode is None: process.kill()  # which may find that it has just ended: os.kill would raise
        status, said = finish(process, log)
        assert status in (0, -signal.SIGKILL), said[-3000:]
        deaths += status != 0
    assert deaths
    same_run(whole, Run(folder))

# ---- would it be noticed?

@pytest.fixture(scope='module')
def killed(whole, tmp_path_factory):
    "A run killed in its fourth step, whose checkpoint has two updates behind it."
    folder = tmp_path_factory.mktemp('killed')/'run'
    assert killed_at(folder, ('row', 5))  # rows: test, 0, 1, 2, test, 3, 4, test
    assert load_checkpoint(Run(folder))[0] == 2 and len(Run(folder).rows()) == 3
    return folder

def test_the_killed_run_resumes(whole, killed, tmp_path):
    same_run(whole, to_the_end(Path(shutil.copytree(killed, tmp_path/'run'))))

@pytest.mark.parametrize('mutation', list(mutations))
def test_what_is_not_restored_is_noticed(whole, killed, tmp_path, mutation):
    "Take one thing away from resuming: the comparison above fails."
    run = to_the_end(Path(shutil.copytree(killed, tmp_path/'run')), mutation)
    with pytest.raises(AssertionError): same_run(whole, run)

# ---- damaged checkpoints

def cut(file): os.truncate(file, os.path.getsize(file) - 1)
def empty(file): os.truncate(file, 0)
def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data)//2] ^= 1
    file.write_bytes(data)

@pytest.fixture(scope='module')
def short(tmp_path_factory):
    "A run of two steps with two checkpoints, in this process."
    return train_small(tmp_path_factory.mktemp('short')/'run', steps=2)

@pytest.mark.parametrize('damage', [cut, empty, flip, os.remove])
@pytest.mark.parametrize('name', ['model.safetensors', 'optimizer.safetensors', 'state.json'])
def test_a_damaged_checkpoint_is_left_out(short, tmp_path, name, damage):
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    damage(run.folder/'checkpoints'/'000002'/name)
    with pytest.warns(UserWarning, match='000002 is damaged'): step, tensors, _ = load_checkpoint(run)
    assert step == 1
    for key, weight in load_checkpoint_of(short, 1)['model'].items(): exactly(weight, tensors['model'][key], key)

def load_checkpoint_of(run, step): return runs._read_checkpoint(run.folder/'checkpoints'/f'{step:06d}')[1]

def test_resumed_from_the_one_before(short, tmp_path):
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    cut(run.folder/'checkpoints'/'000002'/'model.safetensors')
    with pytest.warns(UserWarning, match='damaged'): same_run(short, train_small(run.folder, steps=2, resume=True))

def test_no_whole_checkpoint_at_all(short, tmp_path):
    "Then the run begins again, and ends the same."
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    for folder in (run.folder/'checkpoints').iterdir(): empty(folder/'model.safetensors')
    with pytest.warns(UserWarning, match='damaged'): same_run(short, train_small(run.folder, steps=2, resume=True))

def test_damaged_checkpoints_do_not_push_out_whole_ones(short, tmp_path):
    "Two are kept; a run that begins again keeps its first, although two damaged ones have higher numbers."
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    for name in ('000001', '000002'): empty(run.folder/'checkpoints'/name/'state.json')
    for name in ('000001', '000002'):
        os.rename(run.folder/'checkpoints'/name, run.folder/'checkpoints'/f'00000{int(name) + 5}')
    with pytest.warns(UserWarning, match='damaged'):
        train_small(run.folder, steps=2, resume=True, should_stop=iter([False, True]).__next__)
    assert load_checkpoint(run)[0] == 1

def test_more_steps(short, tmp_path):
    "A finished run goes on when it is given more steps, as if it had had them from the start."
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    train_small(run.folder, steps=3, resume=True)
    once = train_small(tmp_path/'once', steps=3)
    assert facts(run) == facts(once)
    for key, weight in load_checkpoint(once)[1]['model'].items():
        exactly(weight, load_checkpoint(run)[1]['model'][key], key)

def test_half_a_removed_checkpoint_is_none(short, tmp_path, monkeypatch):
    """The process dies while it removes the oldest of three: what is left of it is not counted, and is gone after
    the next one."""
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    def half(path, *a, **k):
        half_tree(None, path)
        raise InterruptedError('killed here')
    with monkeypatch.context() as only:
        only.setattr(shutil, 'rmtree', lambda path, *a, **k: half(path) if Path(path).exists() else None)
        with pytest.raises(InterruptedError): train_small(run.folder, steps=3, resume=True)
    places = run.folder/'checkpoints'
    assert ([p.name for p in sorted(places.iterdir()) if not p.name.startswith('.')] == ['000002', '000003']
        and load_checkpoint(run)[0] == 3)
    train_small(run.folder, steps=4, resume=True)
    assert sorted(p.name for p in places.iterdir()) == ['000003', '000004']

@pytest.mark.parametrize('step', [0, 1])
def test_a_folder_that_is_removed_meanwhile(tmp_path, step):
    "The run ends with an error that says so, not with exit 0 and a folder that is no run."
    def remove(row):
        if row['step'] == step: shutil.rmtree(tmp_path/'run')
    with pytest.raises(FileNotFoundError, match='run.json is gone: somebody removed or moved'):
        train_small(tmp_path/'run', steps=2, on_row=remove)
    assert not (tmp_path/'run'/'policy').exists()

def test_what_is_left_is_said_as_it_is(tmp_path):
    "Before the first checkpoint nothing is called whole."
    def full(row): raise OSError(errno.ENOSPC, 'No space left on device')
    with pytest.raises(RuntimeError, match='has no checkpoint yet: .* begin again'):
        train_small(tmp_path/'run', steps=4, checkpoint_every=3, on_row=full)
    with pytest.raises(RuntimeError, match='The checkpoints in .* are whole: .* go on'):
        train_small(tmp_path/'other', steps=4, checkpoint_every=1, on_row=full)

# ---- one writer

def slowly(out, beat):
    "A run that leaves a sign of every step, and takes its time."
    train_small(out, steps=60, resume=True, on_row=lambda row: (beat.write_text(str(row['step'])), time.sleep(.2)))

def test_a_folder_has_one_writer(tmp_path):
    "The second is told who is there, and changes nothing; a killed one leaves no lock behind."
    folder, beat, log = tmp_path/'run', tmp_path/'beat', tmp_path/'log'
    process = fork(slowly, folder, beat, log=log)
    until = time.monotonic() + 90
    while not beat.exists() and time.monotonic() < until: time.sleep(.05)
    with pytest.raises(BlockingIOError, match=f'process {process.pid} on .*, since 20..-'):
        train_small(folder, steps=60, resume=True)
    with pytest.raises(BlockingIOError): train_small(folder, steps=60)
    assert process.exitcode is None
    os.kill(process.pid, signal.SIGKILL)
    finish(process, log)
    done = len(Run(folder).rows())
    run = train_small(folder, steps=done + 1, resume=True)
    assert [row['step'] for row in run.rows()] == list(range(done + 1))

def test_a_fault_gives_the_folder_back(tmp_path):
    def fail(row): raise KeyError('no')
    with pytest.raises(KeyError): train_small(tmp_path/'run', steps=2, on_row=fail)
    assert len(train_small(tmp_path/'run', steps=2, resume=True).rows()) == 2

def test_threads_are_writers_too(tmp_path):
    "A notebook that trains in the background and trains again in front."
    with runs.alone(tmp_path), ThreadPoolExecutor(1) as pool:
        with pytest.raises(BlockingIOError): pool.submit(train_small, tmp_path, steps=1).result()

def test_a_drive_without_locks(tmp_path, monkeypatch):
    "There a file stands for the lock; one that a dead process of this machine left is no obstacle."
    fcntl = pytest.importorskip('fcntl')
    def refuse(*a): raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(fcntl, 'flock', refuse)
    with runs.alone(tmp_path):
        with pytest.raises(BlockingIOError, match='is in use'): runs.alone(tmp_path).__enter__()
    with runs.alone(tmp_path): left = (tmp_path/'.lock.held').read_bytes()
    (tmp_path/'.lock.held').write_bytes(left.replace(str(os.getpid()).encode(), b'%d' % dead_process()))
    with runs.alone(tmp_path, wait=5.): pass

def dead_process():
    process = subprocess.Popen([sys.executable, '-c', ''])
    process.wait()
    return process.pid

# ---- folders that hold something else

def contents(folder): return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}

@pytest.mark.parametrize('changes, said',
    [(dict(lr=.5), r'recipe\.lr=0\.001, you asked for 0\.5'), (dict(seed=7), r'recipe\.seed=0'),
    (dict(make=small.recipes.rloo), r'recipe\.credit='),
    (dict(env=small.Paying(horizon=5)), r'env\.horizon=4, you asked for 5')])
def test_another_recipe_is_refused(short, changes, said):
    "Nothing in the folder is touched."
    before = contents(short.folder)
    with pytest.raises(ValueError, match=said): train_small(short.folder, **dict(steps=2, resume=True) | changes)
    assert contents(short.folder) == before

def test_a_run_is_not_overwritten(short):
    before = contents(short.folder)
    with pytest.raises(FileExistsError, match='already holds a run.*resume'): train_small(short.folder, steps=2)
    assert contents(short.folder) == before

def test_a_newer_run_is_refused(short, tmp_path):
    run = Run(shutil.copytree(short.folder, tmp_path/'run'))
    info = json.loads((run.folder/'run.json').read_text())
    (run.folder/'run.json').write_text(json.dumps(info | dict(schema_version=99)))
    with pytest.raises(ValueError, match='schema_version 99'): train_small(run.folder, steps=2, resume=True)

def test_resume_without_a_run_begins_one(tmp_path):
    assert len(train_small(tmp_path/'new', resume=True).rows()) == 1
