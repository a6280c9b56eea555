"""Installs this repository into the environment of the Python that runs it: `python tools/install.py -e '.[lab]'`.
`make` and Binder call it; it needs the standard library alone.

Where there is no GPU, torch's CPU build is enough: a quarter of the size. uv knows where that is kept, so uv installs:
the one on the PATH, else one that pip fetches for the moment where pip by itself would take CUDA's libraries. Where uv
or what it asks cannot be reached, pip goes on with the settings that it has. No address stands here.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT/'assets'/'results'/'install.json'  # what an environment takes, measured
PIP = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-compile', '--disable-pip-version-check']
PLACES = 'index-url', 'extra-index-url', 'find-links', 'no-index'  # settings of pip that say where packages come from
OLDEST = 3, 11

def has_gpu(root: Path = Path('/')) -> bool:
    "Whether there is a driver of NVIDIA: uv looks for the same, and takes the build that fits."
    return bool(shutil.which('nvidia-smi')) or any((root/place).exists() for place in
        ('proc/driver/nvidia/version', 'sys/module/nvidia/version'))

def pip_has_places() -> bool:
    "Whether pip was told where packages come from, by its variables or its files: then it is used as it is."
    said = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], capture_output=True, text=True).stdout
    return any(line.partition('=')[0].rpartition('.')[2] in PLACES for line in said.splitlines())

def takes_cuda(gpu: bool) -> bool:
    "Whether plain pip would bring CUDA's libraries to a machine that has no use for them."
    return sys.platform == 'linux' and not gpu and not find_spec('torch') and not pip_has_places()

def for_uv() -> dict:
    "The environment of uv: what pip was told by variables, it is told too."
    env = dict(os.environ)
    for theirs, of_pip in (('SSL_CERT_FILE', 'PIP_CERT'), ('UV_DEFAULT_INDEX', 'PIP_INDEX_URL'),
                           ('UV_FIND_LINKS', 'PIP_FIND_LINKS')):
        if of_pip in env: env.setdefault(theirs, env[of_pip])
    return env

def uv_command(program: str) -> list:
    "uv in the place of pip; where torch is here already, it is left as it is."
    return [program, 'pip', 'install', '--quiet', '--python', sys.executable,
        *([] if find_spec('torch') else ['--torch-backend=auto'])]

def fetched(folder: str) -> str:
    "The path of a uv that pip has put into this folder; '' where it could not."
    subprocess.run([*PIP, '--retries', '1', '--target', folder, 'uv'], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    return shutil.which('uv', path=str(Path(folder)/'bin')) or ''

def gigabytes(build: str) -> float:
    "What an environment with this build of torch ('cpu' or 'cuda') took where it was measured."
    return json.loads(RECORD.read_text(encoding='utf-8'))['gigabytes'][build]

def check(build: str) -> None:
    "Refuse what cannot work before anything is fetched."
    if sys.version_info < OLDEST:
        sys.exit('install: this is Python {}.{}, agentlab needs {}.{} or newer: make PYTHON=python3.13 ...'
            .format(*sys.version_info[:2], *OLDEST))
    free, needed = shutil.disk_usage(sys.prefix).free/1e9, gigabytes(build)
    if free < needed and not find_spec('torch'):
        sys.exit('install: {:.1f} GB are free at {}, about {:.1f} are needed: make VENV=/elsewhere/venv ...'
            .format(free, sys.prefix, needed))

def run(command: list, wanted: list, constraints: str, env: dict) -> bool:
    """Whether both steps went through: torch first, alone, so that its pinned version may come from a folder of pip's;
    and setuptools, which then builds this repository."""
    pinned = ['-c', constraints] if constraints else []
    steps = [['torch', 'setuptools>=77'], ['--no-build-isolation', *wanted]]
    return all(subprocess.run([*command, *pinned, *step], cwd=ROOT, env=env).returncode == 0 for step in steps)

def say(text: str) -> None: print(text, flush=True)

def install(wanted: list, constraints: str) -> int:
    "uv, then pip. What is said comes before what it speaks of."
    gpu = has_gpu()
    cuda = takes_cuda(gpu)
    check('cuda' if gpu else 'cpu')
    if not find_spec('torch'):
        say('installing into {}: a few minutes the first time, about {:.1f} GB{}'.format(
            sys.prefix, gigabytes('cuda' if gpu else 'cpu'), '' if gpu else " (torch's CPU build: no GPU was found)"))
    with tempfile.TemporaryDirectory() as folder:
        uv = shutil.which('uv') or (fetched(folder) if cuda else '')
        if uv:
            if run(uv_command(uv), wanted, constraints, for_uv()): return 0
            say('uv did not get through, for the reason above; pip goes on with the settings that it has')
    if cuda:
        say('pip may take about {:.1f} GB, with the libraries of CUDA: no CPU build of torch could be reached. Where '
            'you have one, say so to pip (PIP_INDEX_URL or PIP_FIND_LINKS)'.format(gigabytes('cuda')))
        check('cuda')
    return 0 if run(PIP, wanted, constraints, dict(os.environ)) else 1

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('wanted', help="what to install: '.', '.[lab]', '.[all,dev]'")
    parser.add_argument('-e', action='store_true', help='editable: imports read this folder')
    parser.add_argument('-c', default='constraints.txt', help="file with pinned versions; '': none")
    given = parser.parse_args()
    return install([*(['-e'] if given.e else []), given.wanted], given.c)

if __name__ == '__main__': sys.exit(main())
