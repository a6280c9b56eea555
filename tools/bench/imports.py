"""What `import agentlab.credit` adds to `import torch`, in fresh processes.

The page that explains it and shows what was found: nbs/bench/02_imports.ipynb.
"""
from __future__ import annotations
import json, os, subprocess, sys
from pathlib import Path

SCRIPT = '''
import importlib, json, sys, time
for name in sys.argv[2:]: importlib.import_module(name)
before, wall, cpu = set(sys.modules), time.perf_counter(), time.process_time()
importlib.import_module(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(json.dumps(dict(wall=wall, cpu=cpu, packages=sorted(new))))
'''

def import_cost(
    module: str = 'agentlab.credit',
    after: tuple = ('torch',),  # imported before the clock starts
    repeats: int = 5,           # processes
) -> dict:                      # wall and cpu: seconds, one per process; packages that the module brought in
    "What importing a module adds, in fresh processes."
    root = str(Path(__file__).resolve().parents[2])
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, (root, os.environ.get('PYTHONPATH')))))
    runs = [json.loads(subprocess.run([sys.executable, '-c', SCRIPT, module, *after], env=env, check=True,
        capture_output=True, text=True).stdout) for _ in range(repeats)]
    return dict(module=module, wall=[run['wall'] for run in runs], cpu=[run['cpu'] for run in runs],
        packages=sorted({p for run in runs for p in run['packages']}))
