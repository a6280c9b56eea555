"Play ahead of learning: a calendar and no race, players that die or lie, nothing lost and nothing twice."
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from agentlab.env import KeyDoor
from agentlab.policy import Policy
from agentlab.rollout import Ahead, here, on_actors, play
from agentlab.rollout.ahead import Crew, Free, Here, Player, Ticket, weights_hash
from agentlab.train import load_recipe, train
from small import small_policy

ROOT = Path(__file__).resolve().parent.parent

def start(): return small_policy(KeyDoor())

def made(**changes):
    return load_recipe('grpo', **dict(steps=5, groups=3, group_size=2, max_turns=6, test_tasks=0, checkpoint_every=1,
        ahead=Ahead(2)) | changes)

def weights(policy): return dict(policy.model.named_parameters())

def trained(out, players=None, policy=None, env=None, resume=False, **changes):
    policy = policy or start()
    run = train(policy, env or KeyDoor(), made(**changes), out, players=players, resume=resume, progress=False)
    return run, weights_hash(weights(policy))

@pytest.mark.parametrize('lag', [0, 1, 3])
def test_lanes_change_no_bit(lag, tmp_path):
    one, other = (trained(tmp_path/str(lanes), here(lanes), ahead=Ahead(lag)) for lanes in (1, 4))
    assert one[1] == other[1]
    for step in range(5):
        version = one[0].episodes(step).turns.version
        assert version.unique().tolist() == [max(0, step - lag)]
        assert one[0].rows()[step]['lag'] == step - max(0, step - lag)

def test_lag_0_plays_what_a_run_without_it_plays(tmp_path):
    "The same tokens; log-probabilities may end in other bits, as the groups are computed alone."
    ahead, plain = trained(tmp_path/'a', ahead=Ahead(0), steps=1)[0], trained(tmp_path/'b', ahead=None, steps=1)[0]
    assert torch.equal(ahead.episodes(0).tokens.id, plain.episodes(0).tokens.id)
    assert 'version' not in plain.episodes(0).turns and plain.rows()[0]['lag'] is None

@pytest.mark.parametrize('stopped', [1, 2, 4])
def test_a_stopped_run_goes_on_to_the_same_bits(stopped, tmp_path):
    whole = trained(tmp_path/'whole', here(2))[1]
    trained(tmp_path/'cut', here(3), steps=stopped)
    run, end = trained(tmp_path/'cut', here(1), resume=True)
    assert end == whole and len(run.rows()) == 5

def test_a_checkpoint_of_another_lag_is_refused(tmp_path):
    trained(tmp_path, steps=2)
    with pytest.raises(ValueError, match='ahead.lag=2, you asked for 1'): trained(tmp_path, ahead=Ahead(1), resume=True)

@pytest.mark.parametrize('stopped', [1, 3])
def test_a_free_run_uses_every_group_once(stopped, tmp_path):
    "Also where it stopped in between."
    free = Ahead(2, free=True)
    trained(tmp_path, here(3), ahead=free, steps=stopped)
    run, _ = trained(tmp_path, here(3), ahead=free, steps=6, resume=True)
    groups = [g for step in range(6) for g in run.episodes(step).episodes.group.unique().tolist()]
    assert len(groups) == len(set(groups)) == 18
    assert max(groups) < 18 + 2*3 + sum(row['dropped'] for row in run.rows()) + 3
    for step in range(6): assert (run.episodes(step).episodes.step == step).all()

def test_new_weights_speak_in_the_middle_of_a_free_game():
    "The next turn is said by them, says so, and is what a fresh policy with these weights says."
    policy, env = start(), KeyDoor()
    old = {name: p.detach().clone() for name, p in weights(policy).items()}
    new = {name: p + .05*torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) for name, p in old.items()}
    asked = []
    def news():
        asked.append(None)
        return (0, old) if len(asked) < 3 else (7, new)
    how = dict(groups=[0], group_size=1, max_turns=5, max_tokens=8, seed=3)
    (episode,), spoke = Player(policy, env, play, news).play(Ticket(0, 0, ([1], how)), None)
    versions = [turn.columns['version'] for turn in episode.turns]
    assert versions == [0, 0] + [7]*(len(versions) - 2) and len(versions) > 2
    assert spoke == {0: weights_hash(old), 7: weights_hash(new)}
    fresh = start()
    with torch.no_grad(): [p.copy_(new[name]) for name, p in weights(fresh).items()]
    from agentlab.episodes import Batch
    batch = Batch.from_episodes([episode])
    said, late = batch.action('sampler_logp'), batch.turns.version[batch.action_turn] == 7
    torch.testing.assert_close(fresh.logprobs(batch)[0][late], said[late], atol=1e-4, rtol=0)

def test_what_hangs_is_dropped_and_replaced():
    from agentlab.episodes import Episode, Turn
    class Crew:
        given = []
        def know(self, version, weights): self.version = version
        def forget(self, before): pass
        def give(self, ticket): self.given.append(ticket)
        def take(self):
            ticket = next(t for t in self.given if t.number or self.version > 3)
            self.given.remove(ticket)
            return ticket, [Episode([Turn(0, ids=[1], logps=[0.], columns=dict(version=ticket.version))])]
    free, taken = Free(2, Crew(), lambda update: [([], {})]*2, 99), 0
    for step in range(8):
        taken += len(free.collect(step, {}))
        assert free.dropped == (step == 4)
    assert taken == 16 and free.given == 16 + 1 + len(free.open)

def test_a_fault_of_a_player_is_the_runs(tmp_path):
    class Broken(Player):
        def current(self): raise ZeroDivisionError('a fault of the rollout')
    class Link(Here):
        def make(self, lane): return Broken(self.policy, KeyDoor(), play)
    def players(policy, env, rollout, free):
        link = Link(policy, env, rollout, free, 1)
        link.policy = policy
        return link
    with pytest.raises(ZeroDivisionError, match='a fault of the rollout'): trained(tmp_path, players)

def test_an_environment_that_fails_ends_its_episode_only(tmp_path):
    class Failing(KeyDoor):
        def reset(self, seed, task=None):
            self.weak = seed % 2
            return super().reset(seed, task)
        def step(self, action):
            if self.weak: raise RuntimeError('the floor gives way')
            return super().step(action)
    run, _ = trained(tmp_path, here(2), env=Failing(), steps=3)
    assert len(run.rows()) == 3 and 0 < sum(row['errors'] for row in run.rows()) < 18

@pytest.mark.parametrize('fault, says', [
    (dict(ahead=None), 'players were given, and the recipe has no `ahead`'),
    (dict(memory=lambda policy, seed: type('Plans', (), dict(plan=lambda self, step: {}))()), 'the memory plans'),
])
def test_what_cannot_run_ahead_is_refused_before_anything_is_played(fault, says, tmp_path):
    with pytest.raises(ValueError, match=says): trained(tmp_path, here(), **fault)
    assert not (tmp_path/'metrics.jsonl').exists()

def test_an_engine_of_one_set_of_weights_is_refused(tmp_path):
    policy = start()
    policy.samples_by = type('Engine', (), dict(sync=lambda self, policy: policy.sampler))()
    with pytest.raises(ValueError, match='an engine that knows one set of weights'): trained(tmp_path, policy=policy)

def test_another_loop_refuses_it():
    trl = pytest.importorskip('agentlab.interop.trl')
    with pytest.raises(ValueError, match='TRL waits for its games'): trl.Guest(start(), KeyDoor(), made())

@pytest.mark.parametrize('call, says', [
    (lambda: Ahead(-1), 'lag=-1'), (lambda: Ahead(1.5), 'lag=1.5'), (lambda: Ahead(True), 'lag=True'),
    (lambda: here(0), 'lanes=0'), (lambda: here(True), 'lanes=True'), (lambda: on_actors(0), 'actors=0'),
    (lambda: on_actors(1, 1, patience=0), 'patience=0'),
])
def test_bad_numbers(call, says):
    with pytest.raises(ValueError, match=says): call()

def test_close_ends_a_game_that_goes_on():
    policy, env = start(), KeyDoor()
    link, before = Here(policy, env, play, False, 1), set(threading.enumerate())
    crew = Crew(link)
    crew.know(0, weights(policy))
    crew.give(Ticket(0, 0, ([0], dict(groups=[0], group_size=8, max_turns=10**6, max_tokens=8, seed=0))))
    while not link.made: time.sleep(.01)
    crew.close()
    until = time.monotonic() + 60
    while lanes := set(threading.enumerate()) - before: assert time.monotonic() < until, lanes
    assert crew.done.empty() and all(player.over for player in link.made)

CHILD = """if True:
    import sys
    sys.path.insert(0, 'tests')
    from test_ahead import *
    class Slow(KeyDoor):
        def step(self, action):
            time.sleep(.02)
            return super().step(action)
    trained(sys.argv[1], here(2), env=Slow(), resume=(Path(sys.argv[1])/'run.json').exists(), steps=6)"""

@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path):
    "Killed some moments after a row was written, and again; then left alone."
    from random import Random
    draw, log = Random(0), tmp_path/'killed'/'metrics.jsonl'
    lines = lambda: log.read_bytes().count(b'\n') if log.exists() else 0
    for kill in range(5):
        before = lines()
        child = subprocess.Popen([sys.executable, '-c', CHILD, str(tmp_path/'killed')], cwd=ROOT)
        while child.poll() is None and lines() <= before: time.sleep(.02)
        time.sleep(draw.uniform(0, .5))
        assert child.poll() in (None, 0)
        if kill < 4: os.kill(child.pid, signal.SIGKILL)
        child.wait()
    whole = trained(tmp_path/'whole', steps=6)[1]
    assert weights_hash(weights(Policy.load(tmp_path/'killed'/'policy'))) == whole

@pytest.mark.long
def test_processes_of_ray_and_one_that_is_killed(tmp_path):
    "Actors give the bits of threads; one that is killed is made again, and its groups are played again."
    pytest.importorskip('ray')
    import psutil
    class Slow(KeyDoor):
        def step(self, action):
            time.sleep(.05)
            return super().step(action)
    killed = []
    def acts(process):
        try: return any('Actor' in word for word in process.cmdline())
        except psutil.Error: return False  # it has just ended
    def kill(row):
        there = [process for process in psutil.Process().children(recursive=True) if acts(process)]
        if row['step'] in (0, 2) and there:
            there[row['step'] % len(there)].kill()
            killed.append(row['step'])
    policy = start()
    train(policy, Slow(), made(), tmp_path/'ray', players=on_actors(2, 2), on_row=kill, progress=False)
    assert killed == [0, 2] and weights_hash(weights(policy)) == trained(tmp_path/'here')[1]
