"""A run folder on a disk that changes a byte: what is lost is told, what is whole is shown, and no row goes without
a word."""
import json, os, random, shutil, warnings
from pathlib import Path

import pytest

from agentlab.train import Run, runs
from agentlab.train.runs import rewind
from agentlab.view import EntropyLab, TurnScope, open_run, report
from agentlab.view.dashboard import Tail
from small import ROOT, facts, finish, fork, same_batch, train_small

STEPS = 5

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp('whole')/'run', steps=STEPS, checkpoint_every=2, test_every=2,
        test_tasks=1)

@pytest.fixture
def run(whole, tmp_path): return Run(shutil.copytree(whole.folder, tmp_path/'run'))

def go_on(run):
    return train_small(run.folder, steps=STEPS + 1, checkpoint_every=2, test_every=2, test_tasks=1, resume=True)

def change(path, at):
    "Another byte at a place."
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)

def place(path, line, column=4):
    "Where a line begins in its file, and some."
    return sum(map(len, path.read_bytes().splitlines(keepends=True)[:line])) + column

# ---- the row log

@pytest.mark.parametrize('name', ['metrics.jsonl', 'tests.jsonl'])
@pytest.mark.parametrize('line, column', [(0, 0), (0, 9), (1, 4), (1, -3), (2, 20)])
def test_a_damaged_line_stops_a_resume_and_is_named(run, name, line, column):
    path = run.folder/name
    change(path, place(path, line, column) if column >= 0 else place(path, line + 1, column))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf'{name}: line {line + 1} is damaged.*{STEPS} updates'): go_on(run)
    assert path.read_bytes() == before == (run.folder/f'{name}.damaged').read_bytes()

def test_a_number_that_changed_is_noticed(run):
    "The line is good JSON: without its checksum nobody would know."
    path = run.folder/'metrics.jsonl'
    text = path.read_text()
    number = json.loads(text.splitlines()[1])['entropy']
    path.write_text(text.replace(str(number), str(number + 1)))
    with pytest.warns(UserWarning, match='left out: line 2'): assert [row['step'] for row in run.rows()] == [0, 2, 3, 4]
    with pytest.raises(ValueError, match='line 2 is damaged'): go_on(run)

def test_a_lost_line_is_noticed(run):
    path = run.folder/'metrics.jsonl'
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b''.join(lines[:1] + lines[2:]))
    with pytest.raises(ValueError, match='4 of the rows 0 to 4 are there'): go_on(run)
    path.unlink()
    with pytest.raises(ValueError, match='0 of the rows 0 to 4 are there'): go_on(run)

def test_the_mended_file_goes_on(run, whole):
    path = run.folder/'metrics.jsonl'
    change(path, 3)
    with pytest.raises(ValueError): go_on(run)
    shutil.copy(whole.folder/'metrics.jsonl', path)
    assert [row['step'] for row in go_on(run).rows()] == list(range(STEPS + 1))

def test_without_checkpoints_it_begins_again_and_keeps_a_copy(run, whole):
    change(run.folder/'metrics.jsonl', 3)
    shutil.rmtree(run.folder/'checkpoints')
    train_small(run.folder, steps=STEPS, checkpoint_every=2, test_every=2, test_tasks=1, resume=True)
    assert (run.folder/'metrics.jsonl.damaged').exists()
    assert facts(run) == facts(whole) and run.tests() == whole.tests()

def test_rows_that_are_made_again_need_not_be_whole(run, whole):
    change(run.folder/'metrics.jsonl', place(run.folder/'metrics.jsonl', 4))
    rewind(run, 4)
    assert run.rows() == whole.rows()[:4]

def test_half_a_line_is_no_damage(run, whole):
    with open(run.folder/'metrics.jsonl', 'ab') as f: f.write(b'{"step": 5, "rew')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert len(go_on(run).rows()) == STEPS + 1

def test_rows_of_an_older_run_have_no_checksum(run, whole):
    "They are read, and the run goes on; the new rows have one."
    for name in ('metrics.jsonl', 'tests.jsonl'):
        (run.folder/name).write_text(''.join(json.dumps(row) + '\n' for row in runs._rows(run.folder/name)))
    assert run.rows() == whole.rows() and run.tests() == whole.tests()
    lines = (go_on(run).folder/'metrics.jsonl').read_text().splitlines()
    assert ['blake2b' in line for line in lines] == [False]*STEPS + [True]
    assert Tail(run.folder/'metrics.jsonl').read() == run.rows()

def test_the_dashboard_leaves_a_damaged_line_out(run):
    change(run.folder/'metrics.jsonl', place(run.folder/'metrics.jsonl', 1, 9))
    tail = Tail(run.folder/'metrics.jsonl')
    assert [row['step'] for row in tail.read()] == [0, 2, 3, 4] and tail.damaged == 1

# ---- episodes

@pytest.mark.parametrize('step', [0, 2, STEPS - 1])
def test_a_damaged_file_of_episodes_costs_its_own_step(run, step):
    path = run._episodes(step)
    change(path, path.stat().st_size//8)
    with pytest.warns(UserWarning, match=f'{path.name} is damaged'): assert len(go_on(run).rows()) == STEPS + 1
    page = report(run.folder).read_text()
    assert f'the files of the steps {step} are damaged and were left out' in page and 'Who gets the credit' in page
    scope, lab = TurnScope(run), EntropyLab(run)
    assert step not in (scope.played.step, lab.step, lab.later)
    scope.find_beside()
    with pytest.raises(ValueError, match=path.name): scope.choose_step(step)
    opened = open_run(run.folder)
    assert step not in opened.steps and any(path.name in note
        for note in opened.notes) and len(opened.summary()) == STEPS

@pytest.mark.parametrize('seed', range(4))
def test_a_byte_changes_nothing_or_is_noticed(run, seed):
    "Pages, names of columns and labels of a file of episodes have checksums."
    chance, path, batch = random.Random(seed), run._episodes(0), run.episodes(0)
    for _ in range(50):
        data = path.read_bytes()
        change(path, chance.randrange(len(data)))
        try: found = run.episodes(0)
        except ValueError as e: assert path.name in str(e)
        else: same_batch(batch, found)
        path.write_bytes(data)

def open_damaged(path, seed, tries):
    "Open a file with damage in its footer, again and again; what is no ValueError ends this process."
    chance, data = random.Random(seed), path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], 'little')
    for _ in range(tries):
        for _ in range(chance.choice([1, 1, 2, 8])): change(path, chance.randrange(footer, len(data)))
        try: open_run(path).summary()
        except ValueError as e: assert str(e)
        path.write_bytes(data)

@pytest.mark.parametrize('who', ['ours', 'trl'])
def test_a_damaged_footer_ends_no_process(run, tmp_path, who):
    "pyarrow aborts over some of them."
    path = (run._episodes(0) if who == 'ours'
        else Path(shutil.copy(ROOT/'tests/foreign/trl/chat/completions/completions_00001.parquet', tmp_path)))
    status, said = finish(fork(open_damaged, path, 0, 400, log=tmp_path/'log'), tmp_path/'log')
    assert status == 0, said[-2000:]

def test_where_all_are_damaged_it_says_so(run):
    for step in range(STEPS): os.truncate(run._episodes(step), 10)
    for look in (TurnScope, EntropyLab, lambda run: open_run(run.folder)):
        with pytest.raises(ValueError, match='step_00000. cannot be read|step_00000..parquet'): look(run)
    assert 'were left out' in report(run.folder).read_text()

# ---- a hundred damages

KEPT = ('metrics.jsonl', 'tests.jsonl', 'run.json', 'episodes', 'tests', 'checkpoints', 'policy')

@pytest.mark.parametrize('seed', range(10))
def test_random_damage_is_told_or_harmless(whole, tmp_path, seed):
    """A byte, a cut, or a file that is gone: the run ends as the one that was not damaged, or it says what is wrong.
    It never ends as another."""
    chance = random.Random(seed)
    for number in range(2):
        folder = Path(shutil.copytree(whole.folder, tmp_path/str(number)))
        path = chance.choice(sorted(p for p in folder.rglob('*') if p.is_file()
            and p.relative_to(folder).parts[0] in KEPT))
        size = path.stat().st_size
        what = chance.choice(['byte', 'cut', 'gone'])
        if what == 'byte' and size: change(path, chance.randrange(size))
        elif what == 'cut': os.truncate(path, chance.randrange(size) if size else 0)
        else: path.unlink()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            try: run = go_on(Run(folder))
            except (ValueError, OSError) as e:
                assert path.name in str(e) or folder.name in str(e), (path, what, e)
                continue
        assert [row['step'] for row in run.rows()] == list(range(STEPS + 1)), (path, what)
        assert run.rows()[:STEPS] == whole.rows() or said, (path, what)
