"""What an install takes, and the suite under other Pythons and at both ends of the published bounds. Recorded.

    python tools/versions.py install --folder /tmp/venv     # time and size -> assets/results/install.json
    python tools/versions.py lower                          # writes constraints-lower.txt (needs uv)
    python tools/versions.py suite --folder /tmp/venv --python python3.12   # -> assets/results/versions.json.xz
    python tools/versions.py suite --folder /tmp/venv --python python3.11 --set lower
    python tools/versions.py suite --folder /tmp/venv --python python3.13 --set upper
    python tools/versions.py whole --folder /tmp/clone --python python3.12  # every test and page, in a fresh clone

Every environment is fresh, in --folder, and removed afterwards unless --keep.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from notebooks import ROOT

OUT = ROOT/'assets'/'results'
LOWER = ROOT/'constraints-lower.txt'
SETS = dict(ci='constraints.txt', lower='constraints-lower.txt', upper='')
EXTRAS = 'lora', 'python', 'llm', 'lab'  # of the lower set: what the tests of PART ask for
TOOLS = ['pytest>=8,<9.2', 'pytest-xdist', 'hypothesis', 'setuptools>=77', 'fastapi', 'uvicorn', 'pillow>=11', 'build']
# Tables, estimators, objectives, environments, formats, rollouts, metrics, pages, install; DEMO trains and reports.
PART = [f'tests/test_{name}.py' for name in ('groups', 'episodes', 'credit', 'objective', 'env', 'formats', 'rollout',
    'metrics', 'view', 'doors', 'install', 'doctor')]
DEMO = 'demo', '--steps', '1', '--no-open', '--out'
NAMES = 'torch', 'transformers', 'tokenizers', 'accelerate', 'numpy', 'pandas', 'pyarrow', 'fastcore', 'peft'
ALONE = dict(PIP_CONFIG_FILE=os.devnull)  # pip as on a machine where nobody has told it anything

def told_nothing() -> dict:
    "The environment of a pip without settings; certificates and time-outs stay."
    kept = {name: value for name, value in os.environ.items()
        if not name.startswith('PIP_') or name in ('PIP_CERT', 'PIP_DEFAULT_TIMEOUT')}
    return kept | ALONE

def fresh(python: str, folder: Path) -> Path:
    "The Python of a new environment."
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, '-m', 'venv', str(folder)], check=True)
    return folder/'bin'/'python'

def megabytes(folder: Path) -> int:
    "Millions of bytes that a folder takes on the disk."
    said = subprocess.run(['du', '-s', '--block-size=1000000', str(folder)], check=True, text=True, capture_output=True)
    return int(said.stdout.split()[0])

def installs(python: str, folder: Path) -> dict:
    "Time and size of a first install, each way in an environment of its own, without caches of pip and uv."
    uv = shutil.which('uv')
    places = dict(PIP_NO_CACHE_DIR='1', UV_NO_CACHE='1')
    arms = dict(before=('pip', ['.', 'plotly>=6'], told_nothing()), before_with_cpu_build=('pip', ['.', 'plotly>=6'],
        os.environ), after_pip=('pip', ['.'], os.environ), after_uv=('uv', ['.'], os.environ))
    rows = {}
    for name, (program, wanted, env) in arms.items():
        if program == 'uv' and not uv: continue
        there = fresh(python, folder)
        began, size = time.monotonic(), megabytes(folder)
        command = ([uv, 'pip', 'install', '--quiet', '--python', there] if program == 'uv' else
            [there, '-m', 'pip', 'install', '--quiet', '--no-compile', '--disable-pip-version-check'])
        env = dict(env) | places | (dict(UV_FIND_LINKS=env.get('PIP_FIND_LINKS', '')) if program == 'uv' else {})
        for step in (['torch', 'setuptools>=77'], ['--no-build-isolation', *wanted]):
            subprocess.run([*map(str, command), '-c', 'constraints.txt', *step], cwd=ROOT, env=env, check=True,
                stderr=subprocess.DEVNULL)
        rows[name] = dict(program=program, seconds=round(time.monotonic() - began), megabytes=megabytes(folder),
            of_the_empty_environment=size, torch=version_in(there, 'torch'))
        print(name, rows[name], flush=True)
        shutil.rmtree(folder)
    return rows

def version_in(python: Path, package: str) -> str:
    code = f'from importlib.metadata import version; print(version({package!r}))'
    done = subprocess.run([str(python), '-c', code], text=True, capture_output=True)
    return done.stdout.strip()

def write_lower() -> None:
    "The lowest versions that our bounds allow, of what we name ourselves."
    from configparser import ConfigParser
    facts = ConfigParser(interpolation=None)
    facts.read(ROOT/'settings.ini', encoding='utf-8')
    ours = [line for text in (facts['package']['requirements'], *(facts['extras'][name] for name in EXTRAS))
        for line in text.split('\n')[1:]]
    done = subprocess.run(['uv', 'pip', 'compile', '-', '--quiet', '--no-header', '--no-annotate', '--only-binary',
        ':all:', '--resolution', 'lowest-direct', '--python-version', '3.11', '--python-platform',
        'x86_64-manylinux_2_35'], input='\n'.join(ours), text=True, capture_output=True, check=True)
    named = {re.match(r'[\w-]+', line)[0] for line in ours}
    pins = [line for line in done.stdout.splitlines() if line.partition('==')[0] in named]
    LOWER.write_text('\n'.join(['# The lowest versions that settings.ini allows, Python 3.11. Made by `python '
        'tools/versions.py lower`; what ran with them: assets/results/versions.json.xz.',
        *pins, '']), encoding='utf-8')

def prepared(python: str, folder: Path, constraints: str) -> Path:
    "An environment with the package and what the tests of PART need."
    there = fresh(python, folder)
    uv = shutil.which('uv')
    command = ([uv, 'pip', 'install', '--quiet', '--python', str(there)] if uv else
        [str(there), '-m', 'pip', 'install', '--quiet', '--no-compile', '--disable-pip-version-check'])
    pinned = ['-c', constraints] if constraints else []
    for step in (['torch', 'setuptools>=77'], ['--no-build-isolation', '-e', f'.[{",".join(EXTRAS)}]', *TOOLS]):
        subprocess.run([*command, *pinned, *step], cwd=ROOT, check=True)
    return there

def suite(python: str, kind: str, folder: Path, tests: list) -> dict:
    "Run PART, or these tests, and DEMO: what passed, failed and was skipped, with which versions."
    there = prepared(python, folder, SETS[kind])
    began = time.monotonic()
    done = subprocess.run([str(there), '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *(tests or PART)], cwd=ROOT,
        text=True, capture_output=True,
        env=os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT)))
    (folder/'said.txt').write_text(done.stdout + done.stderr, encoding='utf-8')
    demo = subprocess.run([str(there), '-m', 'agentlab', *DEMO, str(folder/'run')], cwd=folder, capture_output=True)
    return dict(command=f'python tools/versions.py suite --python {Path(python).name} --set {kind} --folder ...',
        tests=tests or PART,
        date=time.strftime('%Y-%m-%d'), python=version_of(there), seconds=round(time.monotonic() - began),
        status=done.returncode or demo.returncode, **counted(done.stdout), demo=demo.returncode == 0,
        versions={name: version_in(there, name) for name in NAMES})

def counted(said: str) -> dict:
    "What pytest's last lines say: how many passed, failed and were skipped, and which failed."
    last = next((line for line in reversed(said.splitlines()) if re.search(r' in [\d.]+s', line)), '')
    counts = {kind: int(number) for number, kind in re.findall(r'(\d+) (passed|failed|skipped|errors?)', last)}
    return counts | dict(failures=re.findall(r'^(?:FAILED|ERROR) (\S+)', said, re.MULTILINE))

def whole(python: str, folder: Path) -> dict:
    "`make lm test` under this Python in a fresh clone of what is committed: every test, page and lesson."
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(folder)], check=True)
    began = time.monotonic()
    heard = folder.with_name(folder.name + '.txt')
    with open(heard, 'w', encoding='utf-8') as said:
        done = subprocess.run(['make', 'lm', 'test', f'PYTHON={python}'], cwd=folder, stdout=said, stderr=said,
            env={name: value for name, value in os.environ.items() if name != 'PYTHONPATH'})
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=folder, text=True, capture_output=True)
    there = folder/'.venv'/'bin'/'python'
    return dict(command=f'python tools/versions.py whole --python {Path(python).name} --folder ...',
        commit=commit.stdout.strip(), date=time.strftime('%Y-%m-%d'), python=version_of(there),
        seconds=round(time.monotonic() - began), status=done.returncode,
        **counted(heard.read_text(encoding='utf-8')),
        versions={name: version_in(there, name) for name in NAMES})

def version_of(python: Path) -> str:
    return subprocess.run([str(python), '-c', 'import platform; print(platform.python_version())'], text=True,
        capture_output=True, check=True).stdout.strip()

def known(name: str) -> dict:
    from agentlab.bench import kept
    return kept(OUT, name)

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('what', choices=['install', 'lower', 'suite', 'whole'])
    parser.add_argument('tests', nargs='*', help='of suite: other files than the core part')
    parser.add_argument('--python', default=sys.executable, help='the interpreter')
    parser.add_argument('--set', default='ci', choices=list(SETS))
    parser.add_argument('--folder', type=Path, required='lower' not in sys.argv, help='the environment; made anew')
    parser.add_argument('--keep', action='store_true', help='leave it there')
    given = parser.parse_args()
    from agentlab.bench import circumstances, keep
    if given.what == 'lower': write_lower()
    elif given.what == 'install':
        rows = installs(given.python, given.folder)
        sizes = dict(cuda=rows['before']['megabytes'], cpu=max(row['megabytes'] for name, row in rows.items()
            if name.startswith('after')))
        keep(circumstances('python tools/versions.py install') | dict(python=version_of(Path(given.python)), rows=rows,
            gigabytes={name: round(size/1000, 1) for name, size in sizes.items()}), OUT, 'install')
    else:
        row = (whole(given.python, given.folder) if given.what == 'whole' else
            suite(given.python, given.set, given.folder, given.tests))
        print(json.dumps(row, indent=1))
        kind = given.what if given.what == 'whole' else given.set
        rows = known('versions').get('rows', {}) | {f"{row['python'].rpartition('.')[0]} {kind}": row}
        keep(circumstances('python tools/versions.py suite') | dict(note=known('versions').get('note', ''), rows=rows),
            OUT, 'versions', packed=True)
        if not given.keep: shutil.rmtree(given.folder, ignore_errors=True)
        return row['status']
    return 0

if __name__ == '__main__': sys.exit(main())
