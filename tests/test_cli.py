"The command line as a user meets it: `python -m agentlab` in a process of its own."
import json, os, re, signal, subprocess, sys
from pathlib import Path

import pytest

from small import ROOT, as_main, finish, fork

COMMANDS = ['demo', 'train', 'prime', 'play', 'report', 'view', 'stop', 'envs', 'recipes', 'runs', 'clean', 'tiny',
    'doctor', 'serve', 'fit', 'bench', 'eval', 'export', 'chat', 'push', 'verl-check']
pytestmark = pytest.mark.xdist_group('forks')

WORLD = '''
from agentlab.env import KeyDoor

class World(KeyDoor):
    "A house of four rooms."
    name = 'world'
    def __init__(self): super().__init__(size=2, horizon=4, closed=0)

class Mute:
    "Has no reset."

class Broken(World):
    def start(self, seed, task=None): raise OSError('the house burned down')

def plain(**changes):
    from agentlab.train.recipes import grpo
    return grpo(**changes | dict(name='plain', checkpoint_every=1, max_tokens=3))
'''
SHORT = ['--model', 'untrained', '--groups', '2', '--group-size', '2', '--test-tasks', '0']

def real(*arguments, folder=None, **environment):
    "`python -m agentlab ...` started from nothing: exit status, output, errors."
    done = subprocess.run([sys.executable, '-m', 'agentlab', *arguments], cwd=folder or ROOT, capture_output=True,
        text=True, timeout=120,
        env=os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1') | environment)
    return done.returncode, done.stdout, done.stderr

def agentlab(*arguments, folder, **environment):
    "The same without importing torch again: exit status, output, errors."
    log, errors = folder/'.out', folder/'.err'
    log.unlink(missing_ok=True)
    status, said = finish(fork(as_main, arguments, str(errors), log=log, folder=folder, **environment), log)
    return status, said, errors.read_text()

def refused(answer, *words):
    "Exit status 2 and one line, which names the command and holds the words; no traceback."
    status, said, errors = answer
    lines = [line for line in errors.strip().splitlines() if line.startswith('agentlab')]
    assert status == 2 and 'Traceback' not in errors, errors
    assert len(lines) == 1 and errors.strip().splitlines()[-1] == lines[0], errors
    for word in words: assert word in lines[0]

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A folder with a module of a user's own."
    folder = tmp_path_factory.mktemp('home')
    (folder/'world.py').write_text(WORLD)
    return folder

@pytest.fixture(scope='module')
def trained(home):
    "A run of two steps, made by the real program."
    status, said, errors = real('train', '--env', 'world:World', '--recipe', 'world:plain', '--steps', '2', '--out',
        'runs/one', *SHORT, folder=home)
    assert status == 0, errors
    assert 'run: runs/one' in said and 'next: agentlab report runs/one' in said
    return home/'runs'/'one'

# ---- what explains itself

def test_no_command_prints_the_usage(home):
    for arguments in ([], ['--help'], ['help']):
        status, said, errors = agentlab(*arguments, folder=home)
        assert (status, errors) == (0, '') and said.startswith('usage: agentlab COMMAND')
        assert re.findall(r'^  ([\w-]+) +\S', said, re.M) == COMMANDS

@pytest.mark.parametrize('command', COMMANDS)
def test_help(home, command):
    "Says what the command does and what each option is."
    status, said, errors = agentlab(command, '--help', folder=home, COLUMNS='200')
    assert (status, errors) == (0, '') and said.startswith(f'usage: agentlab {command}')
    options = re.findall(r'^  (--\w+|\w+)( [A-Z_]+)?(.*)$', said, re.M)
    assert ('--seed ' in said) == (command in ('demo', 'train', 'prime', 'play', 'serve', 'eval', 'chat'))
    for name, _, explained in options: assert len(explained.strip()) > 5, f'{command} {name} is not explained'

def test_the_version():
    import agentlab
    assert real('--version')[:2] == (0, agentlab.__version__ + '\n')

def test_an_unknown_command_lists_the_known_ones():
    status, said, errors = real('trian')
    assert status == 2 and "no command 'trian'" in errors and 'usage: agentlab COMMAND' in errors

def test_an_unknown_option_is_refused(home):
    status, said, errors = agentlab('train', '--stepz', '3', folder=home)
    assert status == 2 and 'stepz' in errors and 'Traceback' not in errors

def test_lists(home):
    from agentlab.env import envs
    from agentlab.train.recipes import known
    for command, names, own in (('envs', envs, '--env package.module:Class'),
                                ('recipes', known, '--recipe package.module:')):
        status, said, _ = agentlab(command, folder=home)
        assert status == 0 and own in said
        for name in names: assert re.search(rf'^{name} +\w', said, re.M)

def test_doctor(home):
    status, said, errors = agentlab('doctor', folder=home)
    assert status == 0 and errors == ''
    for line in (rf'python {sys.version.split()[0]}  agentlab from {ROOT}', r'  ok       torch \d', r'  browser  ',
                 r'  device   (cpu|cuda)'):
        assert re.search(line, said), line

# ---- what is refused

@pytest.mark.parametrize('arguments, words', [
    (['train', '--recipe', 'gigpoo'], ["recipe='gigpoo' is unknown", 'Known: adaptive, aepo, ', '; or your own']),
    (['train', '--recipe', 'world:nothing'], ["has no 'nothing'"]),
    (['train', '--env', 'keydor'], ["env='keydor' is not known", 'keydoor, guess']),
    (['train', '--env', 'nowhere:World'], ["no module 'nowhere'"]),
    (['train', '--env', 'world:Nobody'], ["has no 'Nobody'"]),
    (['train', '--env', 'world:Mute'], ['has no reset and step']),
    (['train', '--steps', '0'], ['steps=0: give a whole number from 1']),
    (['train', '--group-size', '1'], ['group_size=1', 'compare']),
    (['train', '--lr', '-1'], ['lr=-1']),
    (['train', '--env', 'world:World', '--test-tasks', '0', '--model', 'nowhere'], ['nowhere holds no config.json']),
    (['train', '--env', 'world:Broken', '--model', 'untrained', '--test-tasks', '0', '--groups', '2', '--group-size',
    '2', '--out', 'runs/broken'], ['all 4 episodes ended with an error', 'the house burned down']),
    (['train', '--env', 'world:World', '--model', 'untrained'],
    ["test_tasks=512: n=512: there are about"]),
    (['play', '--env', 'keydor'], ['keydoor, guess']),
    (['report', 'nowhere'], ['nowhere', 'agentlab runs']),
    (['view', 'nowhere'], ['nowhere', 'does not exist'])])
def test_one_line_says_what_is_wrong(home, arguments, words):
    refused(agentlab(*arguments, folder=home), f'agentlab {arguments[0]}: ', *words)

def test_where_it_was_raised(home):
    "For who debugs: AGENTLAB_DEBUG=1 shows the traceback."
    status, _, errors = agentlab('train', '--recipe', 'gigpoo', folder=home, AGENTLAB_DEBUG='1')
    assert status == 1 and 'Traceback' in errors

def test_a_fault_in_the_users_module_is_not_hidden(home):
    (home/'torn.py').write_text('import nothing_of_this_name\n')
    refused(agentlab('train', '--env', 'torn:World', folder=home), 'nothing_of_this_name')
    (home/'wrong.py').write_text('1/0\n')
    status, _, errors = agentlab('train', '--env', 'wrong:World', folder=home)
    assert status and ('ZeroDivisionError' in errors or 'division by zero' in errors)

# ---- a run from beginning to end

def test_a_run_folder(trained):
    assert [json.loads(line)['step'] for line in (trained/'metrics.jsonl').read_text().splitlines()] == [0, 1]
    facts = json.loads((trained/'run.json').read_text())['facts']
    assert facts['env']['env'] == 'world:World' and facts['recipe']['name'] == 'plain'

def test_runs(trained, home, tmp_path):
    status, said, errors = agentlab('runs', folder=home)
    assert status == 0 and re.search(r'^runs/one  plain on World  2/2 updates  success [01]\.\d\d$', said,
        re.M), said + errors
    status, said, _ = agentlab('runs', folder=tmp_path)
    assert status == 0 and 'no runs in runs' in said

def test_a_broken_run_does_not_hide_the_others(trained, home):
    (home/'runs'/'half').mkdir()
    try:
        for text in ('', '{}', '{"schema_version": 99}'):
            (home/'runs'/'half'/'run.json').write_text(text)
            status, said, errors = agentlab('runs', folder=home)
            assert 'runs/one  plain on World' in said and 'Traceback' not in errors, text
            assert 'runs/half' in said + errors
    finally:
        (home/'runs'/'half'/'run.json').unlink()
        (home/'runs'/'half').rmdir()

def test_report(trained, home):
    status, said, errors = agentlab('report', 'runs/one', folder=home)
    assert status == 0 and said.startswith('report: runs/one/report.html'), errors
    assert '<html' in (trained/'report.html').read_text()
    assert agentlab('report', 'runs/one', '--out', 'other.html', folder=home)[0] == 0 and (home/'other.html').exists()

def test_view_opens_our_runs_and_those_of_others(trained, home):
    status, said, errors = agentlab('view', 'runs/one', '--out', 'ours.html', folder=home)
    assert status == 0 and said.startswith('agentlab run') and said.endswith('page: ours.html\n'), errors
    for folder, kind in (('trl/text', 'trl'), ('verl', 'verl')):
        status, said, errors = agentlab('view', str(Path(__file__).parent/'foreign'/folder), '--out', f'{kind}.html',
            folder=home)
        assert (status == 0 and said.startswith(f'{kind} run') and 'missing' in said
            and '<html' in (home/f'{kind}.html').read_text()), errors

def test_a_run_is_not_overwritten_and_goes_on(trained, home):
    again = ['train', '--env', 'world:World', '--recipe', 'world:plain', '--out', 'runs/one', *SHORT]
    refused(agentlab(*again, '--steps', '3', folder=home), 'already holds a run', '--resume')
    refused(agentlab(*again, '--steps', '3', '--resume', '--lr', '.5', folder=home), 'lr=0.001, you asked for 0.5')
    status, said, errors = agentlab(*again, '--steps', '3', '--resume', folder=home)
    assert status == 0, errors
    assert [json.loads(line)['step'] for line in (trained/'metrics.jsonl').read_text().splitlines()] == [0, 1, 2]

def test_play_may_run_ahead(home):
    line = ['train', '--env', 'world:World', '--recipe', 'world:plain', '--steps', '3', '--out', 'runs/ahead', *SHORT]
    refused(agentlab(*line, '--lanes', '2', folder=home), 'they play ahead of learning. Give --lag')
    refused(agentlab(*line, '--lag', '-2', folder=home), 'lag=-2')
    status, said, errors = agentlab(*line, '--lag', '1', '--lanes', '2', folder=home)
    assert status == 0, errors
    assert [json.loads(line)['lag'] for line in (home/'runs'/'ahead'/'metrics.jsonl').read_text().splitlines()] == [
        0., 1., 1.]

def test_stop_leaves_a_request(trained, home):
    "A run is asked through its folder; what is no run is refused."
    assert agentlab('stop', 'runs/one', folder=home)[0] == 0 and (trained/'stop').exists()
    (trained/'stop').unlink()
    refused(agentlab('stop', 'nowhere', folder=home), 'agentlab stop: ', 'nowhere')

def test_play(trained, home):
    for model in ('untrained', 'runs/one'):
        status, said, errors = agentlab('play', '--env', 'world:World', '--model', model, '--seed', '3', folder=home)
        assert status == 0, errors
        assert re.search(r'^   0 player> .* p=[01]\.\d\d entropy=\d\.\d\d nats a token$', said,
            re.M) and re.search(r'^player: (no )?success, outcome', said, re.M)
    assert agentlab('play', '--env', 'world:World', '--model', 'runs/one', '--seed', '3', folder=home)[1] == said

def test_what_a_model_says_cannot_control_the_terminal():
    from agentlab.cli import _plain
    assert _plain('go \x1b[2Jnorth\r\x9b\u202e é\n') == 'go \\x1b[2Jnorth\\x0d\\x9b\\x202e é\n'

def test_an_environment_that_hangs_is_stopped(home):
    "In a process of its own; its episodes end with an error, and the run says so."
    (home/'slow.py').write_text("import time\nfrom world import World\nclass Slow(World):\n    name = 'slow'\n    def "
        "turn(self, action): time.sleep(600)\n    def render(self): return '\\x1b[2Jgone'\n")
    status, said, errors = agentlab('play', '--env', 'slow:Slow', '--model', 'untrained', '--limit', '.5', folder=home)
    assert status == 0 and 'step took longer than 0.5 s and was stopped' in said, said + errors
    refused(agentlab('train', '--env', 'slow:Slow', '--recipe', 'world:plain', '--steps', '1', '--out', 'runs/slow',
        '--isolate', '--limit', '.5', *SHORT, folder=home), 'all 4 episodes ended with an error',
        'longer than 0.5 s')

def test_isolated_or_not_it_is_the_same_run(home):
    how = ['train', '--env', 'world:World', '--recipe', 'world:plain', '--out', 'runs/apart', *SHORT]
    assert agentlab(*how, '--steps', '1', '--isolate', folder=home)[0] == 0
    status, said, errors = agentlab(*how, '--steps', '2', '--resume', folder=home)
    assert status == 0 and len((home/'runs'/'apart'/'metrics.jsonl').read_text().splitlines()) == 2, errors

def test_what_an_environment_draws_and_says_cannot_control_the_terminal(home):
    (home/'loud.py').write_text("from world import World\nclass Loud(World):\n    name = 'loud'\n    def render(self): "
        "return '\\x1b[2Jgone'\n    def turn(self, action): raise "
        "OSError('\\x1b]0;title\\x07')\n"
        "class Blank(World):\n    def render(self): raise KeyError('\\x1b[31m')\nclass "
        "Raw(World):\n    def __init__(self): raise ValueError('\\x1b[31m')\n")
    for name, shown in (('Loud', '\\x1b[2Jgone'), ('Blank', '(no picture: KeyError')):
        status, said, errors = agentlab('play', '--env', f'loud:{name}', '--model', 'untrained', folder=home)
        assert status == 0 and shown in said and '\x1b' not in said + errors, said + errors
    assert '\x1b' not in agentlab('play', '--env', 'loud:Raw', '--model', 'untrained', folder=home)[2]

def test_what_nobody_foresaw_is_one_line_and_a_file(home, monkeypatch):
    from agentlab import cli
    def unforeseen(): return {}['no such key']
    monkeypatch.setitem(cli.COMMANDS, 'envs', unforeseen)
    import contextlib, io
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors): assert cli.main(['envs']) == 2
    (line,) = errors.getvalue().splitlines()
    path = Path(re.search(r'All of it is in (\S+\.log)', line)[1])
    try:
        assert ("KeyError: 'no such key'. Nobody foresaw this." in line and 'Traceback' in path.read_text()
            and 'in unforeseen' in path.read_text())
    finally: path.unlink()
    with pytest.raises(KeyError): cli.main(['envs', '--debug'])

def test_lora_and_back(home):
    "A run with an adapter can be watched like any other."
    pytest.importorskip('peft')
    status, _, errors = agentlab('train', '--env', 'world:World', '--recipe', 'world:plain', '--steps', '1', '--out',
        'runs/lora', '--lora', '2', *SHORT, folder=home)
    assert status == 0, errors
    status, said, errors = agentlab('play', '--env', 'world:World', '--model', 'runs/lora', folder=home)
    assert status == 0, errors

def test_a_report_of_a_run_without_updates(home):
    "A run that ended before its first row."
    agentlab('train', '--env', 'world:Broken', '--recipe', 'world:plain', '--steps', '1', '--out', 'runs/none', *SHORT,
        folder=home)
    status, said, errors = agentlab('report', 'runs/none', folder=home)
    assert 'Traceback' not in errors and (status == 0 or errors.startswith('agentlab report: '))

# ---- caches

def test_clean(tmp_path):
    cache, run = tmp_path/'cache', tmp_path/'runs'/'one'
    for folder in (cache/'keydoor-1234', run): folder.mkdir(parents=True)
    (cache/'keydoor-1234'/'model.safetensors').write_bytes(b'x'*1_500_000)
    (run/'run.json').write_text('{}')
    status, said, _ = agentlab('clean', folder=tmp_path, AGENTLAB_CACHE=str(cache))
    assert status == 0 and re.search(r' 1\.5 MB  .*keydoor-1234',
        said) and (cache/'keydoor-1234').exists() and '--yes' in said
    status, said, _ = agentlab('clean', '--yes', folder=tmp_path, AGENTLAB_CACHE=str(cache))
    assert status == 0 and '1 cached removed' in said and not list(cache.iterdir()) and (run/'run.json').exists()
    assert agentlab('clean', folder=tmp_path, AGENTLAB_CACHE=str(tmp_path/'none'))[0] == 0

@pytest.mark.slow
def test_two_processes(home):
    "The command under torchrun: one run folder, as with one process."
    command = ['train', '--env', 'world:World', '--recipe', 'world:plain', '--steps', '2', *SHORT]
    torchrun = subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2',
        '-m', 'agentlab', *command, '--out', 'runs/two'], cwd=home, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
        | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', ACCELERATE_USE_CPU='true'))
    try: said = torchrun.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        os.killpg(torchrun.pid, signal.SIGKILL)
        raise
    assert torchrun.returncode == 0, said[-3000:]
    assert real(*command, '--out', 'runs/alone', folder=home)[0] == 0
    two, alone = ([json.loads(line) for line in (home/'runs'/name/'metrics.jsonl').read_text().splitlines()]
        for name in ('two', 'alone'))
    assert [row['step'] for row in two] == [0, 1] and [row['reward'] for row in two] == [row['reward'] for row in alone]
    assert [row['grad_norm'] for row in two] == pytest.approx([row['grad_norm'] for row in alone], rel=1e-3)
