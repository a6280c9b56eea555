"""The trackers against the real packages, offline: `python -m pytest tests/adapters/trackers.py` where they are
installed (pip install tensorboard trackio wandb mlflow). One that is missing is skipped, and the reason says so.

Which ones were run, and with which versions, is written to assets/results/trackers.json when all four have passed.
"""
import importlib.util
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from agentlab.bench import circumstances, keep
from agentlab.env import KeyDoor
from agentlab.policy import tiny_policy
from agentlab.train import load_recipe, train
from agentlab.train.runs import Run
from agentlab.train.trackers import report_to, run_name

ROOT = Path(__file__).parents[2]
PACKAGES = 'tensorboard', 'trackio', 'wandb', 'mlflow'
record = {}

def needs(name): return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f'{name} is not installed')

@pytest.fixture(scope='module', autouse=True)
def kept(request):
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed or len(record) < len(PACKAGES): return
    keep(circumstances('python -m pytest tests/adapters/trackers.py') | dict(
        packages={name: version(name) for name in PACKAGES}) | record, ROOT/'assets'/'results', 'trackers')

@pytest.fixture
def told(tmp_path, monkeypatch):
    "A run of two updates, gone on with for a third, in two processes' worth of listeners."
    for name, value in dict(WANDB_MODE='offline', WANDB_SILENT='true', TRACKIO_DIR=str(tmp_path/'trackio'),
                            HF_HUB_OFFLINE='1', MLFLOW_TRACKING_URI=f'sqlite:///{tmp_path}/mlflow.db',
                            MLFLOW_DISABLE_TELEMETRY='true', DO_NOT_TRACK='true').items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    def run(names):
        for steps, resume in ((2, False), (3, True)):
            recipe = load_recipe('grpo', steps=steps, groups=2, group_size=4, test_tasks=4)
            train(tiny_policy(KeyDoor()), KeyDoor(), recipe, tmp_path/'run', resume=resume, progress=False,
                on_row=report_to(names, table_every=2))
        return Run(tmp_path/'run')
    return run

@needs('tensorboard')
def test_tensorboard(told, recwarn):
    run = told('tensorboard')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    seen = EventAccumulator(str(run.folder/'tensorboard')).Reload()
    steps = lambda name: [e.step for e in seen.Scalars(name)]
    assert steps('reward') == [0, 1, 2] and steps('test_greedy') == [0, 2, 3]
    assert [e.value for e in seen.Scalars('reward')] == pytest.approx([row['reward'] for row in run.rows()])
    assert not [w for w in recwarn if 'is told of no more' in str(w.message)]
    record['tensorboard'] = 'one folder for both parts'

@needs('trackio')
def test_trackio(told, recwarn):
    run = told('trackio')
    from trackio.sqlite_storage import SQLiteStorage
    assert SQLiteStorage.get_runs('agentlab') == [run_name(run)]
    rows = SQLiteStorage.get_logs('agentlab', run_name(run))
    assert [r['step'] for r in rows if 'reward' in r] == [0, 1, 2]
    assert [r['reward'] for r in rows if 'reward' in r] == pytest.approx([row['reward'] for row in run.rows()])
    assert [r['step'] for r in rows if 'test_greedy' in r] == [0, 2, 2, 3] and sum('turns' in r and not isinstance(
        r['turns'], (int, float)) for r in rows) == 2
    assert not [w for w in recwarn if 'is told of no more' in str(w.message)]
    record['trackio'] = 'one run for both parts, two tables'

@needs('wandb')
def test_wandb_offline(told, recwarn):
    run = told('wandb')
    folders = sorted((run.folder/'wandb').glob('offline-run-*'))
    assert len(folders) == 2 and len({p.name.rpartition('-')[2] for p in folders}) == 1  # one id for both parts
    tables = sorted((run.folder/'wandb').rglob('turns_*.table.json'))
    assert [p.name.split('_')[1] for p in tables] == ['0', '2'] and all(p.stat().st_size > 200 for p in tables)
    written = [next(p.glob('*.wandb')).read_bytes() for p in folders]
    assert all(name in data for name in (b'test_greedy', b'sampler_gap') for data in written)
    assert not [w for w in recwarn if 'is told of no more' in str(w.message)]
    record['wandb'] = 'offline, one id for both parts, tables'

@needs('mlflow')
def test_mlflow(told, recwarn):
    run = told('mlflow')
    import mlflow
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name('agentlab').experiment_id])
    assert len(found) == 1 and found[0].info.status == 'FINISHED' and found[0].data.params['recipe.name'] == 'grpo'
    history = client.get_metric_history(found[0].info.run_id, 'reward')
    assert [(m.step, m.value) for m in history] == pytest.approx([(r['step'], r['reward']) for r in run.rows()])
    assert [a.path for a in client.list_artifacts(found[0].info.run_id, 'turns')] == [
        f'turns/step_{s:06d}.json' for s in (0, 2)]
    assert not [w for w in recwarn if 'is told of no more' in str(w.message)]
    record['mlflow'] = 'one run for both parts, two tables'
    assert os.environ['MLFLOW_TRACKING_URI'].startswith('sqlite')
