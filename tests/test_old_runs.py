"""Runs that an earlier version wrote (tests/old_runs.py) open, report and resume."""
import json
import shutil

import pytest

from agentlab.train import Run
from agentlab.view import open as open_run
from agentlab.view.run_report import report
from old_runs import RUNS, go, old, told

NAMES = sorted(RUNS)


def kept(name: str) -> dict: return json.loads((old()/f'{name}.json').read_text())


@pytest.mark.parametrize('name', NAMES)
def test_an_old_run_opens(name):
    assert told(Run(old()/name)) == kept(name)
    opened = open_run(old()/name)
    assert len(opened.batch(0).episodes) == kept(name)['counts'][0]['episodes']


@pytest.mark.parametrize('name', NAMES)
def test_an_old_run_is_reported(name, tmp_path):
    run = shutil.copytree(old()/name, tmp_path/name)
    html = report(run).read_text()
    assert RUNS[name]()[1].name in html and f'{kept(name)["rows"][1]["reward"]:.2f}'.strip('0') in html


@pytest.mark.parametrize('name', NAMES)
def test_an_old_run_is_resumed(name, tmp_path):
    run = go(name, shutil.copytree(old()/name, tmp_path/name), steps=3, resume=True)
    rows, before = run.rows(), kept(name)['rows']
    assert rows[:2] == before, 'what was written stays'
    assert len(rows) == 3 and rows[2].keys() >= before[1].keys(), 'no metric is lost'
