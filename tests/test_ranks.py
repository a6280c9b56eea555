"""Several processes give the run that one process gives: weights within 1e-5 after every update, the same episodes,
rows and tests; and what goes wrong in one of them ends all.

The processes are real and speak gloo. Most are forked with the variables that a launcher sets; the command line is
started by the launcher that its page names.
"""
import json, math, os, re, shutil, signal, socket, subprocess, sys, time
from pathlib import Path

import pytest
import torch

import ranks_work as work
import small
from agentlab.cli import main as command
from agentlab.episodes import Batch, Episode, Turn
from agentlab.train import Run, ranks, trainer
from agentlab.train.runs import load_checkpoint
from small import facts, small_policy, train_small

pytestmark = pytest.mark.xdist_group('forks')
CONFIG = small.ROOT/'assets'/'accelerate'/'two_cpus.yaml'
# in every test run; the others with --slow
OFTEN = ('grpo', 'ppo', 'replay', 'league', 'few', 'skip', 'outside', 'judged')

# ---- processes

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def processes(function, *arguments, log, count=2):
    "Exit status and output of `count` processes of one run."
    port, started = free_port(), []
    for i in range(count):
        place = dict(RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count),
            MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        started.append(small.fork(function, *arguments, log=f'{log}-{i}', **place))
    try: return [small.finish(p, f'{log}-{i}') for i, p in enumerate(started)]
    finally:
        for p in started: p.kill()

def fine(ended):
    for status, said in ended: assert status == 0, said[-3000:]

def launched(*arguments, path=small.ROOT/'tests', seconds=240):
    "A command under `accelerate launch` with the configuration that the page names; `path` is searched for modules."
    line = [sys.executable, '-m', 'accelerate.commands.launch', '--config_file', str(CONFIG), *map(str, arguments)]
    place = os.environ | dict(OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join([str(small.ROOT), str(path)]))
    ended = subprocess.run(line, env=place, capture_output=True, timeout=seconds)
    # with the carriage returns of a progress bar
    ended.stdout, ended.stderr = ended.stdout.decode(), ended.stderr.decode()
    return ended

# ---- comparing

def near(one, two, name=''):
    "Equal, floating-point numbers within 1e-5."
    if isinstance(one, dict):
        assert set(one) == set(two), name
        for key in one: near(one[key], two[key], f'{name} {key}')
    elif isinstance(one, list):
        assert len(one) == len(two), name
        for i, (x, y) in enumerate(zip(one, two)): near(x, y, f'{name} {i}')
    elif isinstance(one, float) and isinstance(two, float):
        assert (one == two or (math.isnan(one) and math.isnan(two))
            or abs(one - two) <= 1e-5*max(1, abs(one))), (name, one, two)
    else: assert one == two, (name, one, two)

def same_story(one, two, counted=True):
    "The same weights after every update, episodes, rows and tests; and something did move."
    one, two = Run(one), Run(two)
    assert one.steps() == two.steps() and len(one.rows()) == len(two.rows()) > 1
    for step in one.steps():
        a, b = one.episodes(step), two.episodes(step)
        for table, columns in dict(tokens=('id', 'row'), turns=('t', 'episode', 'origin', 'reward'),
                                   episodes=('group', 'game', 'seat', 'outcome')).items():
            for column in columns:
                assert torch.equal(getattr(a, table)[column], getattr(b, table)[column]), (step, table, column)
    # padding: each process pads its own share
    without = lambda rows: [{k: v for k, v in row.items() if k != 'computed'} for row in rows]
    near(without(facts(one)), without(facts(two)))
    near(one.tests(), two.tests())
    kept = [[torch.load(folder.folder/f'weights-{row["step"]}.pt') for row in one.rows()
        if (folder.folder/f'weights-{row["step"]}.pt').exists()] for folder in (one, two)]
    assert len(kept[0]) == len(kept[1]) > 1
    for before, after in zip(*kept):
        for name, x in before.items(): torch.testing.assert_close(after[name], x, rtol=0, atol=1e-5)
    assert max(float((kept[0][0][name] - x).abs().max()) for name, x in kept[0][-1].items()) > 1e-3

def agree(folder, count=2):
    "Every process has seen the same rows and holds the same weights, bit for bit."
    held = [json.loads((Path(folder)/f'held-{i}.json').read_text()) for i in range(count)]
    assert held[0] and all(h == held[0] for h in held)

# ---- the same run

@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    "A function that gives the folder of a story told by one process."
    folder, told = tmp_path_factory.mktemp('alone'), set()
    def get(name, **changes):
        if name not in told:
            work.tell(name, folder, **changes)
            told.add(name)
        return folder/name
    return get

@pytest.fixture(scope='module')
def two(tmp_path_factory):
    "The stories that are told in every test run, by two processes."
    folder = tmp_path_factory.mktemp('two')
    fine(processes(work.main, folder, *OFTEN, log=folder/'log'))
    return folder

@pytest.mark.parametrize('name', [name for name in OFTEN if name not in ('outside', 'judged')])
def test_two_processes_give_the_run_of_one(alone, two, name):
    same_story(alone(name), two/name)
    agree(two/name)

def test_the_stories_are_not_empty(two):
    "What they are about does happen in them."
    rows = {name: Run(two/name).rows() for name in OFTEN}
    assert (rows['ppo'][-1]['value_loss'] > 0 and rows['replay'][-1]['replayed'] > .3
        and rows['league'][-1]['snapshots'] == 2 and rows['grpo'][-1]['kl_reference'] > 0)
    assert ([row['skipped'] is None for row in rows['skip']] == [True, False, True]
        and 'not finite' in rows['skip'][1]['skipped'])
    assert [test['step'] for test in Run(two/'grpo').tests()] == [0, 2]
    batch = Run(two/'few').episodes(0)
    assert len(batch) == 8 and rows['few'][0]['grad_norm'] > 0  # of which one episode was learned from, by one process

def test_a_group_stays_in_one_process_and_is_whole(two):
    e = Run(two/'grpo').episodes(1).episodes
    assert e.group.tolist() == [3, 3, 4, 4, 5, 5] and e.game.tolist() == [6, 7, 8, 9, 10, 11]

def test_a_judge_is_asked_once_and_a_memory_that_asks_outside_is_one(two):
    "Rewards and answers that nobody can repeat come from the first process; the others have the same."
    assert (two/'asked-0').exists() and not (two/'asked-1').exists()
    agree(two/'judged')
    agree(two/'outside')
    assert len({row['entropy_coef'] for row in Run(two/'outside').rows()}) == 3

@pytest.mark.slow
def test_the_other_stories(alone, tmp_path):
    names = [name for name in work.STORIES if name not in OFTEN]
    fine(processes(work.main, tmp_path, *names, log=tmp_path/'log'))
    for name in names:
        if name != 'adam': same_story(alone(name), tmp_path/name)
        agree(tmp_path/name)
    branched = Run(tmp_path/'branch').rows()[0]
    assert branched['sampled'] < branched['tokens']

@pytest.mark.slow
def test_three_processes(alone, tmp_path):
    fine(processes(work.main, tmp_path, 'grpo', 'replay', 'league', log=tmp_path/'log', count=3))
    for name in ('grpo', 'replay', 'league'):
        same_story(alone(name), tmp_path/name)
        agree(tmp_path/name, 3)

# ---- what goes wrong in one process

@pytest.fixture(scope='module')
def broken(tmp_path_factory):
    "A run of four updates whose second process was killed after the third; how the first one ended, and when."
    folder, start = tmp_path_factory.mktemp('broken'), time.monotonic()
    ended = processes(work.killed, folder, 'killed', 2, 1, log=folder/'log')
    return folder, ended, time.monotonic() - start

def test_a_killed_process_ends_the_others(broken):
    folder, ((first, said), (second, _)), seconds = broken
    assert second == -signal.SIGKILL and first == 1 and seconds < 60, said
    assert load_checkpoint(Run(folder/'killed'))[0] == 3

def test_resumed_with_as_many_processes_or_one(alone, broken, tmp_path):
    for count in (2, 1):
        folder = tmp_path/f'{count}'
        shutil.copytree(broken[0], folder)
        if count == 1: work.resumed(folder, 'killed')
        else: fine(processes(work.resumed, folder, 'killed', log=tmp_path/'log'))
        same_story(alone('killed'), folder/'killed')

@pytest.mark.slow
def test_a_run_of_one_process_goes_on_with_two(alone, tmp_path):
    stops = iter([False, False, True])
    real = trainer.Training.asked
    try:
        trainer.Training.asked = lambda self: next(stops)
        work.tell('killed', tmp_path)
    finally: trainer.Training.asked = real
    assert len(Run(tmp_path/'killed').rows()) == 2
    fine(processes(work.resumed, tmp_path, 'killed', log=tmp_path/'log'))
    same_story(alone('killed'), tmp_path/'killed')

def test_refused_alike_by_all_processes(two, tmp_path):
    "Weights that differ, and a folder that holds a run: every process says so and none waits for the others."
    for function, folder, wanted in ((work.other_weights, tmp_path/'run', 'differ in the weights they begin with'),
                                     (work.again, two, 'already holds a run')):
        for status, said in processes(function, folder, log=tmp_path/wanted[:5]):
            assert status == 1 and wanted in said, said
    assert not (tmp_path/'run').exists()

@pytest.mark.slow
def test_the_launcher_ends_all_when_one_fails(tmp_path):
    start = time.monotonic()
    ended = launched(small.ROOT/'tests'/'ranks_work.py', 'one_fails', tmp_path/'run')
    assert ended.returncode != 0 and 'the house burned down' in ended.stderr and time.monotonic() - start < 100

# ---- the command line

# Python imports it when it starts, so what it registers is called last
AT_EXIT = """
import atexit, os
from pathlib import Path
def threads():
    names = [x.read_text().strip() for x in Path('/proc/self/task').glob('*/comm')]
    Path(__file__).with_name(f"threads-{os.environ['RANK']}").write_text(' '.join(names))
if 'RANK' in os.environ: atexit.register(threads)
"""

def test_the_command_under_its_launcher(tmp_path):
    """`accelerate launch --config_file assets/accelerate/two_cpus.yaml -m agentlab train ...`, and the same without
    a launcher. No thread of gloo is left when Python closes: it could abort the process."""
    (tmp_path/'sitecustomize.py').write_text(AT_EXIT)
    asked = ['train', '--recipe', 'grpo', '--env', 'keydoor', '--model', 'untrained', '--steps', '1', '--groups', '3',
        '--group-size', '2', '--test-tasks', '3']
    ended = launched('-m', 'agentlab', *asked, '--out', tmp_path/'two', path=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    left = [(tmp_path/f'threads-{i}').read_text() for i in range(2)]
    assert 'gloo' not in ' '.join(left) and (all(left) or sys.platform != 'linux'), left
    assert command([*asked, '--out', str(tmp_path/'one')]) == 0
    one, two = Run(tmp_path/'one'), Run(tmp_path/'two')
    # padding: each process pads its own share
    without = lambda rows: [{k: v for k, v in row.items() if k != 'computed'} for row in rows]
    near(without(facts(one)), without(facts(two)))
    near(one.tests(), two.tests())
    assert ended.stdout.count("greedy") == 2  # the first process alone says what came of it
    assert [len(run.rows()) for run in (one, two)] == [1, 1] and (two.folder/'policy'/'model.safetensors').exists()
    assert len(re.findall(r'grpo: 100%[^\r\n]*\n', ended.stderr)) == 1  # one bar was closed

# ---- the parts

SHARDED = [f'ACCELERATE_USE_{name}' for name in 'FSDP DEEPSPEED MEGATRON_LM PARALLELISM_CONFIG'.split()]

def test_no_launch_is_left_out(): assert list(ranks.SHARDED) == SHARDED

@pytest.mark.parametrize('name', SHARDED)
def test_a_launch_that_splits_the_model_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, 'true')
    with pytest.raises(ValueError, match=f'{name}=true.*keeps it whole.*two_cpus.*AgentGRPOTrainer'):
        train_small(tmp_path/'run')
    assert not (tmp_path/'run').exists()
    monkeypatch.setenv(name, 'false')
    ranks.refuse_sharded()

def test_what_a_launcher_says_of_accumulation_changes_no_gradient(tmp_path, monkeypatch):
    "Accelerate would divide every loss by it."
    plain = train_small(tmp_path/'a').rows()[0]['grad_norm']
    monkeypatch.setenv('ACCELERATE_GRADIENT_ACCUMULATION_STEPS', '4')
    assert train_small(tmp_path/'b').rows()[0]['grad_norm'] == plain > 0

class Fake:
    "One of several processes that are played one after the other; what they add up is kept."
    def __init__(self, rank, ranks, sums): self.rank, self.ranks, self.accelerator, self.sums = rank, ranks, self, sums
    def reduce(self, x, how):
        self.sums.append(x)
        return x

@pytest.mark.parametrize('count', [1, 2, 3, 5, 9])
def test_shares_add_up_to_the_whole(count):
    "Each row is asked for once, whatever the number of processes; those without a row add nothing."
    policy = small_policy()
    batch = Batch.from_episodes([Episode([Turn(t, context_ids=[1]*(2 + i), ids=[5, 6][:1 + (i + t) % 2],
        logps=[0.]*(1 + (i + t) % 2), entropies=[0.]*(1 + (i + t) % 2))
        for t in range(2)], i, i) for i in range(5)])
    whole, sums = policy.features(batch), []
    for rank in range(count):
        t = Fake(rank, count, sums)
        found = ranks.Together(t, policy).features(batch)
        if count == 1: torch.testing.assert_close(found, whole, rtol=0, atol=0)
    if count > 1:
        torch.testing.assert_close(sum(sums), whole, rtol=1e-5, atol=1e-5)
        assert (torch.stack([(x != 0).any(-1) for x in sums]).sum(0) == 1).all() and len(sums) == count

def test_the_key_of_weights_sees_every_bit():
    policy = small_policy()
    before = ranks.weights_key(policy.model)
    assert before == ranks.weights_key(small_policy().model)
    with torch.no_grad():
        p = next(policy.model.parameters()).view(-1)
        p[3] = torch.nextafter(p[3], p[3] + 1)
    assert ranks.weights_key(policy.model) != before
    assert ranks.weights_key(policy.model.to(torch.bfloat16)) != before

def test_a_policy_asked_together_is_the_policy_otherwise():
    import copy
    policy = small_policy()
    together = ranks.Together(Fake(0, 2, []), policy)
    assert together.chat is policy.chat and together.device == policy.device and copy.copy(together).policy is policy
    with pytest.raises(AttributeError): together.nothing
