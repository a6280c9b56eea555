"Collecting is quick because it imports little: what the tests need is imported before the first test that needs it."
import os
import subprocess
import sys
from pathlib import Path

import later

ROOT = Path(__file__).resolve().parent.parent
SLOW = 'torch', 'transformers', 'trl', 'peft', 'pandas'
LISTED = '''
import sys
def pytest_collection_finish(session):
    with open({out!r}, 'w') as out: print(len(session.items), *[n for n in {names} if n in sys.modules], file=out)
'''

def collected(folder, *arguments):
    "(number of tests, the slow packages that are imported) after pytest has collected."
    (folder/'listed.py').write_text(LISTED.format(out=str(folder/'out'), names=SLOW))
    there = os.environ | dict(PYTHONPATH=os.pathsep.join([str(folder), os.environ.get('PYTHONPATH', '')]))
    subprocess.run([sys.executable, '-m', 'pytest', '--collect-only', '-q', '-p', 'listed', '-p', 'no:cacheprovider',
        *arguments], cwd=ROOT, env=there, check=True, capture_output=True, timeout=600)
    count, *names = (folder/'out').read_text().split()
    return int(count), names

def test_collecting_imports_nothing_slow(tmp_path):
    count, names = collected(tmp_path)
    assert count > 4000
    assert not names, f'{names} are imported while pytest collects: see tests/later.py'

def test_a_file_that_computes_at_its_top_is_found(tmp_path):
    (tmp_path/'test_eager.py').write_text('import torch\nx = torch.ones(2)\ndef test_it(): pass\n')
    assert collected(tmp_path, str(tmp_path/'test_eager.py')) == (1, ['torch'])

# ---- the stand-ins themselves

FILE = '''
import math, torch
from functools import partial
from agentlab.objective import clip
from agentlab import credit
from later import deferred
def f(x, dtype=torch.float32, *, how=clip): return dtype, how
class Holder: kept = clip
made = deferred(lambda: torch.ones(2))
LIST, MAP, PAIR, PART = [clip], dict(a=(1, clip)), (clip, [made]), partial(clip, low=credit.grpo)
'''

def test_a_file_is_settled(tmp_path, monkeypatch):
    "Every name stands for the real thing afterwards, wherever the file has put it."
    import types
    monkeypatch.setattr(later, 'HERE', str(tmp_path))
    module = types.ModuleType('a_file_with_stand_ins')
    module.__file__ = str(tmp_path/'a_file.py')
    with later.imports(): exec(FILE, vars(module))
    assert isinstance(module.torch, later.StandIn) and not isinstance(module.math, later.StandIn)
    later.settle(module)
    import torch
    from agentlab import credit, objective
    assert module.torch is torch and module.clip is objective.clip and module.credit is credit
    assert module.f(1) == (torch.float32, objective.clip) and module.Holder.kept is objective.clip
    assert module.LIST == [objective.clip] and module.MAP == dict(a=(1, objective.clip))
    assert module.PAIR[1][0] is module.made and module.made.tolist() == [1., 1.]
    assert module.PART.func is objective.clip and module.PART.keywords == dict(low=credit.grpo)
