"""Trackers without their packages: what they are told, once for each run, and what a fault of theirs costs. The real
packages are run by tests/adapters/trackers.py."""
import json
import sys
import types
import warnings

import pandas as pd
import pytest

from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import tiny_policy
from agentlab.train import load_recipe, train
from agentlab.train.runs import Run, open_run
from agentlab.train.trackers import (TRACKERS, Sink, Tracker, flat_facts, numbers_of, report_to, run_name, turn_table)

class Recorder:
    "A tracker that keeps what it is told."
    def __init__(self, **faults): self.told, self.faults = [], faults
    def begin(self, run, step):
        self.hear('begin', run_name(run), step)
        return Sink(lambda numbers, step: self.hear('log', step, numbers), lambda failed: self.hear('finish', failed),
            lambda name, frame, step: self.hear('table', step, frame))
    def hear(self, kind, *what):
        if self.faults.get(kind): raise self.faults[kind]
        self.told.append((kind, *what))
    def kinds(self): return [kind for kind, *_ in self.told]

def reports(**recorders):
    return report_to(','.join(recorders), trackers={k: Tracker('json', r.begin) for k, r in recorders.items()})

def fit(folder, on_row, steps=2, **more):
    recipe = load_recipe('grpo', steps=steps, groups=2, group_size=2, test_tasks=2, checkpoint_every=1)
    return train(tiny_policy(KeyDoor()), KeyDoor(), recipe, folder, on_row=on_row, progress=False, **more)

@pytest.fixture
def run(tmp_path):
    "A run folder of three rows, without a training."
    run = open_run(tmp_path/'run', dict(recipe=dict(name='grpo', steps=3, seed=0), env=dict(env='a:B')))
    for step in range(3):
        run.append(dict(step=step, reward=step/2, skipped=None, entropy=.5, by_turn=[1, 2]))
        turn = Turn(0, context_ids=[0], ids=[1], logps=[-.1], entropies=[.2])
        run.save_episodes(step, Batch.from_episodes([Episode([turn], outcome=float(i)) for i in range(2)]))
    return run

def test_a_training_is_told_once(tmp_path):
    one = Recorder()
    made = fit(tmp_path/'run', reports(one=one))
    assert one.kinds() == ['begin', 'log', 'table', 'log', 'log', 'log', 'finish'] and one.told[-1] == ('finish', False)
    rows = {what[0]: what[1] for kind, *what in one.told if kind == 'log' and 'reward' in what[1]}
    assert {step: x['reward'] for step, x in rows.items()} == {row['step']: row['reward'] for row in made.rows()}
    # more updates, the same run; nothing of the first part is told again
    two = Recorder()
    fit(tmp_path/'run', reports(two=two), steps=3, resume=True)
    assert two.told[0] == ('begin', one.told[0][1], 2)
    assert [t[1] for t in two.told if t[0] == 'log' and 'reward' in t[2]] == [2]

def test_a_run_that_fails_is_ended_as_failed(tmp_path):
    one = Recorder()
    def stop(row): raise RuntimeError('power cut')
    listener = reports(one=one)
    class Both:
        open, close = listener.open, listener.close
        def __call__(self, row):
            listener(row)
            stop(row)
    with pytest.raises(RuntimeError, match='power cut'): fit(tmp_path/'run', Both())
    assert one.told[-1] == ('finish', True)
    heard = []
    assert len(fit(tmp_path/'plain', heard.append).rows()) == len(heard) == 2  # a plain function is a listener too

@pytest.mark.parametrize('kind', ['begin', 'log', 'table', 'finish'])
@pytest.mark.parametrize('fault', [ConnectionError('gone'), KeyError('x'), SystemError()])
def test_a_failing_tracker_costs_one_warning(run, kind, fault):
    good, bad = Recorder(), Recorder(**{kind: fault})
    listener = reports(bad=bad, good=good)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        listener.open(run)
        for row in run.rows(): listener(row)
        listener.close()
    assert len(caught) == 1 and 'bad is told of no more' in str(caught[0].message)
    assert good.kinds() == ['begin', 'log', 'table', 'log', 'log', 'finish']
    assert bad.kinds().count(kind) == 0

def test_other_processes_say_nothing(run):
    one = Recorder()
    listener = reports(one=one)
    listener.open(run, first=False)
    for row in run.rows(): listener(row)
    listener.close()
    assert one.told == []
    with pytest.raises(ValueError, match=r'call .open\(run\)'): reports(one=one)(dict(step=0))

def test_nothing_begins_before_the_first_row(run):
    one = Recorder()
    listener = reports(one=one)
    listener.open(run)
    listener.close(True)
    assert one.told == []

def test_tests_come_with_their_own_step(run):
    one = Recorder()
    listener = reports(one=one)
    run.append_test(dict(step=0, tasks=8, test_greedy=.5, test_sampled=.25))
    listener.open(run)
    rows = run.rows()
    for row in rows[:2]: listener(row)
    run.append_test(dict(step=3, tasks=8, test_greedy=.75, test_sampled=.5))
    listener(rows[2])
    listener.close()
    assert [(t[1], t[2].get('test_greedy')) for t in one.told if t[0] == 'log'] == [
        (0, None), (0, .5), (1, None), (2, None), (3, .75)]

def test_numbers_only():
    row = dict(step=3, a=1, b=.5, c=True, d='x', e=None, f=[1], g=float('nan'), h=float('inf'))
    assert numbers_of(row) == dict(a=1., b=.5)

def test_names(run, tmp_path):
    assert run_name(run).startswith('run-') and run_name(run) == run_name(Run(run.folder))
    assert flat_facts(run) == {'recipe.name': 'grpo', 'recipe.steps': '3', 'recipe.seed': '0', 'env.env': 'a:B'}
    other = open_run(tmp_path/'other'/'run', dict(recipe=dict(name='grpo', steps=3, seed=1), env=dict(env='a:B')))
    assert run_name(other) != run_name(run)
    with pytest.raises(ValueError, match="no tracker 'tensorbord'; known are tensorboard, trackio, wandb, mlflow"):
        report_to('tensorboard,tensorbord', trackers={**TRACKERS, 'tensorboard': Tracker('json', None)})
    with pytest.raises(ImportError, match=r'agentlab-rl\[trackers\]'):
        report_to('x', trackers=dict(x=Tracker('nosuchpackage', None)))

def test_turn_table():
    turns = lambda *acts: [Turn(t, context_ids=[5, 6 + t], ids=[act], logps=[-.1], entropies=[.2], reward=float(t))
        for t, act in enumerate(acts)]
    batch = Batch.from_episodes([Episode(turns(1, 2), group=3, outcome=1.), Episode(turns(2), group=3, outcome=1.),
        Episode(turns(1), group=8, outcome=0.), Episode(turns(2, 1), group=8, outcome=1.)])
    batch.labels.update(token={1: 'up', 2: 'down', 5: 'you', 6: 'wake', 7: '\udcff'}, between={0: ' '})
    frame = turn_table(batch)
    assert frame.group.unique().tolist() == [8] and frame.said.tolist() == ['up', 'down', 'up']
    assert frame.read.tolist() == ['you wake', 'you wake', 'you �'] and frame.outcome.tolist() == [0, 1, 1]
    assert frame.to_json() and len(turn_table(batch, rows=1)) == 1
    json.dumps(frame.to_dict('records'))

def fakes():
    "Modules that stand for Trackio, Weights & Biases and MLflow, as far as they are asked."
    told = []
    class Table:
        def __init__(self, dataframe): self.rows = len(dataframe)
    class Own:
        def log(self, numbers, step): told.append((step, {k: getattr(x, 'rows', x) for k, x in numbers.items()}))
        def finish(self, *code): told.append(('finish', *code))
    def init(*args, **how):
        told.append(('init', how.get('name', args[-1] if args else None), how['resume'], how.get('id')))
        return Own()
    package = types.SimpleNamespace(Table=Table, init=init)
    return told, package

@pytest.mark.parametrize('name', ['trackio', 'wandb'])
def test_what_trackio_and_wandb_are_told(run, monkeypatch, name):
    told, package = fakes()
    monkeypatch.setitem(sys.modules, name, package)
    sink = TRACKERS[name].begin(run, 0)
    sink.log(dict(reward=.5), 0)
    sink.table('turns', pd.DataFrame(dict(a=[1, 2])), 0)
    sink.finish(True)
    assert told[0][:3] == ('init', run_name(run), 'allow') and told[1:3] == [(0, dict(reward=.5)), (0, dict(turns=2))]
    assert told[-1] == (('finish', 1) if name == 'wandb' else ('finish',))

def test_the_command_refuses_before_anything_is_made(tmp_path, capsys):
    from agentlab.cli import main
    assert main(['train', '--report-to', 'nosuch', '--out', str(tmp_path/'run')]) == 2
    assert "no tracker 'nosuch'" in capsys.readouterr().err and not (tmp_path/'run').exists()
