"The bench compares equal work, leaves nothing behind, and its command writes what the notebooks read."
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip('trl', minversion='1.16')
from agentlab.bench import training_step as bench

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def sides():
    with bench.open_sides(turns=2, episodes=4) as sides: yield sides


def test_work_is_equal(sides):
    work = bench.same_work(sides)
    assert work['sampled'] == work['trained'] == 2*4*bench.SAID
    assert work['advantage_gap'] < 1e-5 and work['gradient_gap'] < 1e-5
    assert any(advantage != 0 for *_, advantage in sides['agentlab'].work()) # else any gradient would agree


def test_every_step_repeats_the_first(sides):
    "Weights are put back: the second step plays the same tokens and earns the same."
    for name, side in sides.items():
        before = side.work()
        lap = side.step()
        assert side.work() == before, name
        assert lap['sampling'] > 0 and lap['update'] > 0, name


@pytest.mark.parametrize('name', bench.SIDES[1:])
def test_unequal_work_is_found(sides, name):
    side = sides[name]
    kept = side.scored
    try:
        for key, said in dict(completion_ids='other ids', tool_mask='other tokens', advantages='differ').items():
            side.scored = {k: v.clone() for k, v in kept.items()}
            if key == 'tool_mask': side.scored[key][0, 0] = 0
            else: side.scored[key][0] += 1
            with pytest.raises(AssertionError, match=said): bench.same_work(sides)
    finally: side.scored = kept


def test_forced_draws_leave_torch_as_it_was():
    draw = torch.multinomial
    with bench.forced(iter([torch.tensor([[7]])])): assert torch.multinomial(torch.ones(1, 9), num_samples=1).item() == 7
    with bench.forced(None): assert torch.multinomial is draw
    assert torch.multinomial is draw


def test_a_failing_side_says_so_and_ends():
    with bench.quiet():
        side = bench.TrlSide('rollout_func', 2, 4, ids=[])    # no ids to put in the place of the drawn ones
        with pytest.raises(StopIteration): side.step()
        side.close()
    assert not side.thread.is_alive()


def test_measure():
    before = threading.enumerate()
    found = bench.measure(turns=2, episodes=4, repeats=1)
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith('TRL')]
    for phases in found['shares'].values(): assert sum(sum(parts.values()) for parts in phases.values()) == pytest.approx(1)
    rows = bench.summary(dict(turns={'2': found}))
    assert [row['side'] for row in rows] == list(bench.SIDES) and rows[0]['ratio'] == 1
    assert json.loads(json.dumps(found, default=float))['work'] == found['work']


def test_summary_by_hand():
    lap = lambda sampling, update: dict(sampling=sampling, update=update)
    found = dict(seconds=dict(agentlab=[lap(1, 1), lap(1, 3)], rollout_func=[lap(5, 1), lap(7, 1)]), shares=dict(agentlab=dict(sampling=dict(matrix=.1), update=dict(matrix=.4))))
    ours, theirs = bench.summary(dict(turns={'8': found}))
    assert (ours['step'], theirs['step']) == (3, 7)
    assert (theirs['ratio'], theirs['least'], theirs['largest']) == (2.5, 2, 3) # 6/2 and 8/4, round by round
    assert bench.limits(dict(turns={'8': found}))[8] == pytest.approx(dict(matrix=.5, update=2/3, no_sampling=3.5, only_matrix=7/1.5))


def test_command(tmp_path):
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')
    run = lambda *words: subprocess.run([sys.executable, '-W', 'ignore', '-m', 'agentlab.bench', *words], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert '--turns' in run('--help').stdout
    said = run('--turns', '2', '--episodes', '4', '--repeats', '1', '--only', 'training_step')
    assert said.returncode == 0, said.stderr
    record = json.loads((tmp_path/'assets'/'bench'/'training_step.json').read_text())
    assert {'date', 'versions', 'command', 'machine', 'turns'} <= set(record)
    assert set(record['turns']['2']['memory']) == set(bench.SIDES) and min(record['turns']['2']['memory'].values()) > 0


def test_recorded_results_hold_what_is_claimed():
    "The record in the repository is complete; its claims are asserted in the notebook."
    record = json.loads((ROOT/'assets'/'bench'/'training_step.json').read_text())
    assert set(record['turns']) == {'4', '8', '16', '32'} and record['episodes'] == 64
    for turns, found in record['turns'].items():
        assert found['work']['sampled'] == found['work']['trained'] == int(turns)*64*bench.SAID
        assert all(len(laps) >= 5 for laps in found['seconds'].values())
        assert set(found['seconds']) == set(found['memory']) == set(bench.SIDES)
