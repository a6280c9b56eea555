"""tools/install.py, with programs in the place of uv and pip that write down how they were called: which of them is
asked, in which order, what is said before, and what is refused."""
import json
import os
import subprocess
import sys

import pytest

import install
from notebooks import ROOT

# `python -m pip` of the process and of its children: `config list` says what PIP_SAYS holds; `--target` brings a uv.
PIP = '''
import os, shutil, sys
words = sys.argv[1:]
if words == ['config', 'list']: sys.exit(print(os.environ.get('PIP_SAYS', '')))
with open(os.environ['LOG'], 'a') as log: print('pip', *words, file=log)
if '--target' in words:
    if os.environ.get('NO_UV'): sys.exit(1)
    folder = words[words.index('--target') + 1] + '/bin'
    os.makedirs(folder)
    shutil.copy(os.environ['UV'], folder + '/uv')
elif os.environ.get('PIP_FAILS'): sys.exit(3)
'''
UV = '''#!/bin/sh
echo uv "$@" >> "$LOG"
echo "uv finds ${UV_FIND_LINKS:-nothing}" >> "$LOG"
test -z "$UV_FAILS"
'''
RUN = '''
import sys, types
sys.platform = 'linux'
sys.path.insert(0, {tools!r})
import install
install.has_gpu = lambda: {gpu}
install.shutil.disk_usage = lambda place: types.SimpleNamespace(free={free} * 1e9)
sys.argv = ['install', '-e', '.']
sys.exit(install.main())
'''
TORCH, OURS = '-c constraints.txt torch setuptools>=77', '-c constraints.txt --no-build-isolation -e .'

@pytest.fixture
def installs(tmp_path):
    "A function that runs it: exit status, what was said, the calls."
    site, programs = tmp_path/'site', tmp_path/'bin'
    for folder in (site/'pip', programs, tmp_path/'kept'): folder.mkdir(parents=True)
    (site/'pip'/'__init__.py').write_text('')
    (site/'pip'/'__main__.py').write_text(PIP)
    uv = tmp_path/'kept'/'uv'
    uv.write_text(UV)
    uv.chmod(0o755)
    def run(with_uv=True, gpu=False, torch=False, free=1000, **env):
        log = tmp_path/'log'
        log.write_text('')
        (programs/'uv').unlink(missing_ok=True)
        if with_uv: (programs/'uv').symlink_to(uv)
        if torch: (site/'torch.py').write_text('')
        clean = {name: value for name, value in os.environ.items() if not name.startswith(('PIP_', 'UV_'))}
        script = RUN.format(tools=str(ROOT/'tools'), gpu=gpu, free=free)
        done = subprocess.run([sys.executable, '-S', '-c', script], text=True, capture_output=True, cwd=tmp_path,
            env=clean | dict(PATH=f'{programs}:/usr/bin:/bin', PYTHONPATH=str(site), LOG=str(log),
            UV=str(uv)) | env)
        return done.returncode, done.stdout + done.stderr, log.read_text().splitlines()
    return run

def by(program, calls): return [line.removeprefix(program + ' ') for line in calls if line.startswith(program + ' ')
                                and not line.startswith('uv finds')]

def test_uv_on_the_path_takes_the_cpu_build(installs):
    status, said, calls = installs()
    cpu = f"about {install.gigabytes('cpu'):.1f} GB (torch's CPU build: no GPU was found)"
    assert status == 0 and cpu in said and not by('pip', calls)
    first, second = by('uv', calls)
    assert first.endswith(f'--torch-backend=auto {TORCH}') and second.endswith(f'--torch-backend=auto {OURS}')
    assert f'pip install --quiet --python {sys.executable}' in first

def test_where_uv_does_not_get_through_pip_goes_on(installs):
    status, said, calls = installs(UV_FAILS='1')
    assert status == 0 and len(by('uv', calls)) == 1  # no second step after a first that failed
    assert [line.partition('-check ')[2] for line in by('pip', calls)] == [TORCH, OURS]
    assert said.index('CPU build') < said.index('uv did not get through') < said.index('with the libraries of CUDA')
    assert f"about {install.gigabytes('cuda'):.1f} GB" in said and 'PIP_INDEX_URL or PIP_FIND_LINKS' in said

@pytest.mark.parametrize('place', [":env:.find-links='/wheels'", "global.index-url='somewhere'",
    "install.no-index='true'"])
def test_a_pip_that_was_told_where_packages_are_is_used_as_it_is(installs, place):
    status, said, calls = installs(with_uv=False, PIP_SAYS=place)
    assert status == 0 and not by('uv', calls) and len(by('pip', calls)) == 2
    assert 'CUDA' not in said and '--target' not in ' '.join(calls)

def test_other_settings_of_pip_say_nothing_about_places(installs):
    assert by('uv', installs(with_uv=False, PIP_SAYS=":env:.default-timeout='180'\nglobal.cert='x'")[2])

def test_uv_is_fetched_where_pip_would_take_cuda(installs):
    status, said, calls = installs(with_uv=False)
    fetch, = by('pip', calls)
    assert status == 0 and '--target' in fetch and fetch.endswith(' uv') and len(by('uv', calls)) == 2

def test_where_uv_cannot_be_fetched_the_size_is_said(installs):
    status, said, calls = installs(with_uv=False, NO_UV='1')
    assert status == 0 and not by('uv', calls) and len(by('pip', calls)) == 3 and 'with the libraries of CUDA' in said

def test_with_a_gpu_pip_is_enough(installs):
    status, said, calls = installs(with_uv=False, gpu=True)
    assert status == 0 and not by('uv', calls) and f"about {install.gigabytes('cuda'):.1f} GB" in said
    assert 'CPU build' not in said

def test_torch_that_is_here_stays(installs):
    "The second target, .full: nothing is said of sizes, and uv is not asked for another build."
    status, said, calls = installs(torch=True)
    assert status == 0 and said == '' and all('--torch-backend' not in line for line in by('uv', calls))

def test_uv_is_told_what_pip_was_told(installs):
    assert 'uv finds /wheels' in installs(PIP_FIND_LINKS='/wheels')[2]
    assert 'uv finds /own' in installs(PIP_FIND_LINKS='/wheels', UV_FIND_LINKS='/own')[2]

def test_a_failure_of_both_is_a_failure(installs):
    status, said, calls = installs(UV_FAILS='1', PIP_FAILS='1')
    assert status == 1 and len(by('pip', calls)) == 1

def test_a_full_disk_is_refused_before_anything_is_fetched(installs):
    status, said, calls = installs(free=.5)
    assert status == 1 and calls == [] and '0.5 GB are free' in said and 'VENV=' in said and 'Traceback' not in said
    status, said, calls = installs(free=2, UV_FAILS='1')  # enough for the CPU build, not for CUDA
    assert status == 1 and not by('pip', calls) and '2.0 GB are free' in said

def test_an_old_python_is_refused(monkeypatch):
    monkeypatch.setattr(install.sys, 'version_info', (3, 9, 1))
    with pytest.raises(SystemExit, match=r'this is Python 3\.9, agentlab needs 3\.11 or newer'): install.check('cpu')

def test_the_driver_is_what_says_that_there_is_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    assert not install.has_gpu(tmp_path)
    (tmp_path/'proc/driver/nvidia').mkdir(parents=True)
    (tmp_path/'proc/driver/nvidia/version').write_text('')
    assert install.has_gpu(tmp_path)

def test_the_sizes_were_measured():
    "The record holds an environment of each build, and the small one is the one that is promised."
    kept = json.loads(install.RECORD.read_text(encoding='utf-8'))
    assert kept['gigabytes']['cpu'] < 1.3 < 4 < kept['gigabytes']['cuda']
    assert kept['rows']['before']['megabytes'] > 3*max(kept['rows'][name]['megabytes'] for name in kept['rows']
        if name.startswith('after'))

def test_make_and_binder_use_it():
    assert '$(PY) tools/install.py -e .' in (ROOT/'Makefile').read_text()
    assert 'tools/install.py' in (ROOT/'.binder'/'postBuild').read_text()
