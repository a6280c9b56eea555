"Faults of environments in worker processes: nothing hangs, nothing is left behind."
import ctypes, gc, os, pickle, re, signal, subprocess, sys, threading, time

import psutil
import pytest

from agentlab.env import EnvError, EnvTimeout, GuessNumber, Isolated, KeyDoor, Step, TextEnv, check_env, together

limit = .8
# one test looks through all processes of the machine for what another one starts
pytestmark = pytest.mark.xdist_group('isolation')

class Rogue(TextEnv):
    "Does what the action says."
    def start(self, seed, task=None):
        if task == 'hang': time.sleep(1000)
        return f'Seed {seed}.'
    def turn(self, action):
        faults = dict(sleep=lambda: time.sleep(1000), loop=self.loop, regex=lambda: re.match('(a+)+$', 'a'*60 + 'b'),
            lock=lambda: ctypes.PyDLL(None).sleep(1000), deaf=self.deaf,
            error=lambda: 1/0, leave=lambda: sys.exit(5), vanish=lambda: os._exit(3),
            crash=lambda: os.kill(os.getpid(), signal.SIGSEGV),
            print=lambda: (print('x'*100_000), os.write(1, b'raw'), sys.stderr.write('y')),
            family=lambda: subprocess.Popen(['sleep', '1000']) and self.loop())
        faults.get(action, lambda: None)()
        gift = dict(unpicklable=lambda: None, big=b'x'*3_000_000, trap=Trap()).get(action)
        return f'{action} done', 0., False, dict(gift=gift)
    def loop(self):
        while True: pass
    def deaf(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
        self.loop()

class Trap:
    "Pickles, and cannot be loaded."
    def __reduce__(self): return (int, ('not a number',))

@pytest.fixture(autouse=True)
def nothing_left_behind():
    "After every test: no child process (not even a zombie), no thread, no file descriptor more than before."
    me = psutil.Process()
    before = set(me.children(recursive=True)), threading.active_count(), me.num_threads(), me.num_fds()
    yield
    gc.collect()
    assert set(me.children(recursive=True)) == before[0]
    assert (threading.active_count(), me.num_threads(), me.num_fds()) == before[1:]

@pytest.fixture
def rogue():
    env = Isolated(Rogue(), limit=limit)
    yield env
    env.close()

def is_running(process):
    "True while a process lives; a zombie does not."
    try: return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess: return False

def wait_until_gone(process, seconds=5):
    deadline = time.monotonic() + seconds
    while is_running(process) and time.monotonic() < deadline: time.sleep(.02)
    return not is_running(process)

# ---- the same as in process

@pytest.mark.parametrize('env', [KeyDoor(), GuessNumber(high=30)])
def test_isolated_plays_like_the_original(env):
    apart = Isolated(env, limit=10)
    for seed in range(3):
        here, there = env.reset(seed), apart.reset(seed)
        while not here.done:
            action = env.expert()
            assert here == there and apart.call('expert') == action
            here, there = env.step(action), apart.step(action)
        assert here == there
    assert set(check_env(apart).values()) == {'ok'}
    apart.close()
    apart.close()  # harmless twice

def test_an_environment_defined_on_the_spot():
    class Local(TextEnv):
        def start(self, seed, task=None): return f'{seed} {task}'
    env = Isolated(Local(), limit=10)
    assert env.reset(3, task=('a', 1)).observation == "3 ('a', 1)" and env.name == 'local'
    env.close()

def test_a_clone_goes_its_own_way():
    env = Isolated(KeyDoor(), limit=10)
    env.reset(0)
    twin, action = env.clone(), env.call('expert')
    assert twin.step(action) == env.step(action)
    env.reset(1)
    assert twin.call('facts') != env.call('facts')
    twin.close()
    assert twin.reset(1) == env.reset(1)
    twin.close(), env.close()

# ---- faults

@pytest.mark.parametrize('fault', ['sleep', 'loop', 'regex', 'lock', 'deaf', 'family'])
def test_hanging_is_ended_at_the_limit(rogue, fault):
    rogue.reset(0)
    group = rogue.worker.process.pid
    began = time.monotonic()
    with pytest.raises(EnvTimeout, match=f'rogue: step took longer than {limit} s'): rogue.step(fault)
    assert limit <= time.monotonic() - began < limit + 2
    asleep = [child.pid for child in psutil.process_iter(['cmdline']) if child.info['cmdline'] == ['sleep', '1000']]
    assert wait_until_gone(group) and all(wait_until_gone(child) for child in asleep)
    with pytest.raises(EnvError, match='call reset'): rogue.step('anything')
    assert rogue.reset(7).observation == 'Seed 7.'

@pytest.mark.parametrize('fault, message', [('error', 'step raised ZeroDivisionError: division by zero'),
    ('leave', 'step raised SystemExit: 5'),
    ('unpicklable', 'the result of step cannot be sent .*return plain values'),
    ('trap', 'the result of step cannot be sent .*return plain values')])
def test_errors_come_back_and_the_episode_may_go_on(rogue, fault, message):
    rogue.reset(0)
    worker = rogue.worker
    with pytest.raises(EnvError, match=message) as caught: rogue.step(fault)
    if fault == 'error': assert any('1/0' in note for note in caught.value.__notes__)
    assert rogue.step('hello').observation == 'hello done' and rogue.worker is worker

@pytest.mark.parametrize('fault, code', [('vanish', 3), ('crash', -signal.SIGSEGV)])
def test_a_death_is_reported_with_its_exit_code(rogue, fault, code):
    rogue.reset(0)
    with pytest.raises(EnvError, match=fr'the process died in step \(exit code {code}\)'): rogue.step(fault)
    assert rogue.reset(1).observation == 'Seed 1.'

def test_prints_and_large_replies_do_no_harm(tmp_path):
    env = Isolated(Rogue(), limit=5, log=tmp_path/'log')
    env.reset(0)
    assert env.step('print').observation == 'print done'
    assert len(env.step('big').info['gift']) == 3_000_000
    assert env.step('z'*1_000_000).observation == 'z'*1_000_000 + ' done'
    env.close()
    assert (tmp_path/'log').read_bytes().count(b'x') == 100_000

def test_reset_can_hang_too(rogue):
    with pytest.raises(EnvTimeout, match='reset took longer'): rogue.reset(0, task='hang')
    assert rogue.reset(0).observation == 'Seed 0.'

def test_an_environment_that_cannot_be_loaded():
    class Unloadable(TextEnv):
        def __reduce__(self): return (eval, ('1/0',))
    env = Isolated(Unloadable(), limit=5)
    for _ in range(2):
        with pytest.raises(EnvError, match='ZeroDivisionError'): env.reset(0)
    assert env.worker is None

def test_slow_loading_has_a_limit_of_its_own():
    class Heavy(TextEnv):
        def __init__(self, seconds=1000.): self.seconds = seconds
        def __reduce__(self): return (eval, (f'__import__("time").sleep({self.seconds})',))
    with pytest.raises(EnvTimeout, match=f'starting took longer than {limit} s'):
        Isolated(Heavy(), limit=5, start_limit=limit).reset(0)
    class Late(Rogue):
        def __setstate__(self, state): time.sleep(2*limit)
        def __getstate__(self): return dict(some=1)
    env = Isolated(Late(), limit=limit)  # loading takes longer than a call may, and is not counted
    assert env.reset(0).observation == 'Seed 0.'
    env.close()

def test_a_worker_killed_between_calls(rogue):
    rogue.reset(0)
    os.kill(rogue.worker.process.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match=r'died in step \(exit code -9\)'): rogue.step('hello')
    assert rogue.reset(0).observation == 'Seed 0.'

# ---- two phases

def test_calls_overlap():
    envs = [Isolated(Nap(), limit=10) for _ in range(4)]
    together(envs, 'reset', [(seed,) for seed in range(4)])
    began = time.monotonic()
    steps = together(envs, 'step', [(str(number),) for number in range(4)])
    overlapped = time.monotonic() - began
    assert [step.observation for step in steps] == ['0', '1', '2', '3']
    plain = [Nap() for _ in range(4)]
    together(plain, 'reset', [(seed,) for seed in range(4)])
    began = time.monotonic()
    assert together(plain, 'step', [(str(number),) for number in range(4)]) == steps
    assert overlapped < .9 * (time.monotonic() - began)
    for env in envs: env.close()

class Nap(TextEnv):
    def start(self, seed, task=None): return ''
    def turn(self, action):
        time.sleep(.3)
        return action, 0., False, {}

def test_several_hanging_environments_cost_one_limit():
    envs = [Isolated(Rogue(), limit=limit) for _ in range(4)]
    together(envs, 'reset', [(0,)]*4)
    began = time.monotonic()
    results = together(envs, 'step', [('loop',), ('hello',), ('sleep',), ('vanish',)])
    assert time.monotonic() - began < 2*limit + 1
    assert [type(result) for result in results] == [EnvTimeout, Step, EnvTimeout, EnvError]
    for env in envs: env.close()

def test_phases_out_of_order(rogue):
    with pytest.raises(EnvError, match='nothing was posted'): rogue.collect()
    with pytest.raises(EnvError, match='call reset'): rogue.post('step', 'hello')
    rogue.reset(0)
    rogue.post('step', 'sleep')
    with pytest.raises(EnvError, match='step is still under way'): rogue.post('step', 'hello')
    assert rogue.reset(5).observation == 'Seed 5.'  # a reset gives up the unfinished call
    with pytest.raises(ValueError): together([rogue], 'step', [])

def test_an_unpicklable_request_leaves_the_worker_well(rogue):
    rogue.reset(0)
    with pytest.raises(Exception, match='pickle'): rogue.call('reset', 0, lambda: 0)
    assert rogue.reset(2).observation == 'Seed 2.'

@pytest.mark.parametrize('options', [dict(limit=0), dict(limit=-1), dict(limit='5'), dict(limit=float('nan')),
    dict(limit=float('inf')), dict(start_limit=0)])
def test_bad_limits(options):
    with pytest.raises(ValueError, match='must be a number of seconds'): Isolated(KeyDoor(), **options)
    with pytest.raises(TypeError, match='takes an environment such as'): Isolated(KeyDoor)

# ---- nothing outlives its owner

def test_a_forgotten_environment_is_collected():
    env = Isolated(Rogue(), limit=10)
    env.reset(0)
    env.post('step', 'loop')
    worker = env.worker.process.pid
    assert is_running(worker)
    del env
    gc.collect()
    assert not is_running(worker)

def test_close_lets_the_environment_close(tmp_path):
    class Polite(TextEnv):
        def start(self, seed, task=None): return ''
        def close(self): (tmp_path/'closed').write_text('yes')
    env = Isolated(Polite(), limit=10)
    env.reset(0)
    env.close()
    assert (tmp_path/'closed').read_text() == 'yes'

program = '''
import os, sys, time, threading
sys.path[:0] = {path!r}
from agentlab.env import Isolated
from test_isolation import Rogue
envs = [Isolated(Rogue(), limit=60) for _ in range(2)]
def begin():
    for env in envs: env.reset(0)
    envs[0].post('step', {fault!r})
# workers must outlive the thread that started them, and no longer than the process
thread = threading.Thread(target=begin)
thread.start(), thread.join()
time.sleep(.3)
assert envs[1].step('hello').observation == 'hello done'
print(*[env.worker.process.pid for env in envs], flush=True)
{then}
'''
ends = dict(killed='time.sleep(60)', exit='sys.exit()', abrupt='os._exit(1)', error='raise RuntimeError("expected")')

@pytest.mark.parametrize('end, fault', [('killed', 'loop'), ('killed', 'regex'), ('killed', 'lock'), ('exit', 'deaf'),
    ('abrupt', 'loop'), ('error', 'sleep')])
@pytest.mark.skipif(sys.platform != 'linux', reason='the lifeline needs Linux')
def test_workers_die_with_their_parent(end, fault):
    here = os.path.dirname(os.path.abspath(__file__))
    code = program.format(path=[here, os.path.dirname(here), *sys.path], fault=fault, then=ends[end])
    with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        if end == 'killed':
            assert all(map(is_running, workers))
            parent.kill()
        parent.wait(20)
    assert all(map(wait_until_gone, workers))

def test_a_worker_starts_light():
    "In .13 s on a free core: nothing large is imported."
    env = Isolated(KeyDoor(), limit=10)
    env.reset(0)
    assert not [part.path for part in psutil.Process(env.worker.process.pid).memory_maps() if 'torch' in part.path
        or 'numpy' in part.path]
    env.close()

# ---- a worker that was taken over

def liar(*replies):
    "An environment whose worker writes these bytes itself, as if they were its reply."
    class Liar(TextEnv):
        def start(self, seed, task=None): return 'Hello.'
        def turn(self, action):
            import struct
            pipes = [int(name) for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')
                and 'pipe' in os.readlink(f'/proc/self/fd/{name}')]
            for pipe in pipes:
                for reply in replies:
                    try: os.write(pipe, reply if isinstance(reply, bytes) else struct.pack('>Q', reply))
                    except OSError: pass
            time.sleep(60)
    return Liar()

class Command:
    "A pickle of it makes a folder where it is read."
    def __init__(self, folder): self.folder = str(folder)
    def __reduce__(self): return os.mkdir, (self.folder,)

def framed(message): return len(message).to_bytes(8, 'big') + message

@pytest.mark.skipif(sys.platform != 'linux', reason='looks for its pipes in /proc')
@pytest.mark.parametrize('what', ['pickle', 'form', 'nested', 'long', 'noise', 'names'])
def test_what_a_worker_says_is_data(tmp_path, what):
    "Whatever runs in there may write to the pipe; the parent reads no program, and not without end."
    replies = dict(pickle=framed(pickle.dumps(('result', Command(tmp_path/'ran')))), form=framed(b'["result"]'),
        nested=framed(b'[' * 10**6), long=2**62, noise=framed(os.urandom(1000)),
        names=framed(b'{"os": ["x"]}'))
    env = Isolated(liar(replies[what]), limit=5)
    env.reset(0)
    with pytest.raises(EnvError, match='cannot be read here'): env.step('go')
    assert not (tmp_path/'ran').exists() and env.worker is None
    assert env.reset(0).observation == 'Hello.'
    env.close()

def test_numbers_of_numpy_come_back_as_numbers():
    class Numpy(TextEnv):
        def start(self, seed, task=None): return 'Hello.'
        def turn(self, action):
            import numpy as np
            return 'Well.', np.float32(.5), np.bool_(True), dict(success=np.bool_(True), cost=np.int64(3),
                state=(np.int32(1), 'a'))
    env = Isolated(Numpy(), limit=10)
    env.reset(0)
    step = env.step('go')
    assert ((step.reward, step.done, step.info['cost'], step.info['state']) == (dict(player=.5), True, 3, (1, 'a'))
        and type(step.info['success']) is bool)
    env.close()
