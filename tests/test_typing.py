"The package promises types (agentlab/py.typed): mypy accepts what a user writes, and refuses what does not exist."
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not find_spec('mypy'), reason='mypy is not installed: make install')
WRONG = '''
from agentlab.episodes import Batch
from agentlab.policy import Policy, TorchSampler
from agentlab.replay import Buffer
def wrong(batch: Batch, policy: Policy, buffer: Buffer, sampler: TorchSampler):
    batch.chosen([0])
    batch.select()
    batch.select([0]).save()
    policy.logits(batch)
    buffer.add(batch)
    sampler.sample([[1]])
'''

def mypy(file: Path, cache: Path) -> subprocess.CompletedProcess:
    "What mypy says of a file whose imports are those of this repository."
    command = [sys.executable, '-m', 'mypy', '--config-file', ROOT/'tests'/'typing'/'mypy.ini', '--cache-dir', cache,
        file]
    return subprocess.run(command, cwd=cache, env=os.environ | dict(MYPYPATH=str(ROOT)), capture_output=True, text=True)

def test_a_users_file_passes(tmp_path):
    found = mypy(ROOT/'tests'/'typing'/'user.py', tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr

def test_what_does_not_exist_is_refused(tmp_path):
    "Else the first test would pass because everything is Any."
    (tmp_path/'wrong.py').write_text(WRONG, encoding='utf-8')
    found = mypy(tmp_path/'wrong.py', tmp_path)
    refused = {int(line.split(':')[1]) for line in found.stdout.splitlines() if ': error:' in line}
    assert refused == set(range(6, 12)), found.stdout + found.stderr
