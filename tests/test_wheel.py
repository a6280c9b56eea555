"""What a user gets from the package index: the wheel and the sdist hold what they should, and the wheel works
without the repository."""
import os
import shutil
import subprocess
import sys
import tarfile
from email import message_from_string
from zipfile import ZipFile

import pytest

from check import tracked
from notebooks import ROOT

pytestmark = pytest.mark.xdist_group('wheel')  # one worker: the wheel is built once

def must(*command, **kw):
    "The output of a command that must succeed; what it printed, if it does not."
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **kw)
    if done.returncode: pytest.fail(f'{command}\n{done.stdout}', pytrace=False)
    return done.stdout


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    "A copy of the tree, so that nothing is left in it; with nbdev's index of names, as after an export."
    folder = tmp_path_factory.mktemp('source')
    for path in tracked():
        (folder/path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/path, folder/path)
    (folder/'agentlab'/'_modidx.py').write_text('d = {}')
    return folder


@pytest.fixture(scope='module')
def dist(source, tmp_path_factory):
    "A folder with the sdist, and the wheel built from it."
    out = tmp_path_factory.mktemp('dist')
    must(sys.executable, '-m', 'build', '--no-isolation', '--outdir', out, source)
    return out


@pytest.fixture(scope='module')
def wheel(dist): return next(dist.glob('agentlab_rl-*.whl'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    "A folder with nothing but the installed wheel."
    folder = tmp_path_factory.mktemp('site')
    must(sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index', '--target', folder, wheel)
    return folder


def in_wheel(wheel, ending):
    with ZipFile(wheel) as file:
        return file.read(next(name for name in file.namelist() if name.endswith(ending))).decode()


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with ZipFile(wheel) as file: names = set(file.namelist())
    ours = {path.as_posix() for path in tracked() if path.parts[0] == 'agentlab'}
    assert {name for name in names if '.dist-info/' not in name} == ours
    assert {'agentlab/py.typed', 'agentlab/lab.ini', 'agentlab/credit/__init__.py'} <= ours


def test_metadata(wheel):
    facts = message_from_string(in_wheel(wheel, 'METADATA'))
    assert facts['Name'] == 'agentlab-rl' and facts['License-Expression'] == 'Apache-2.0'
    assert set(facts.get_all('Provides-Extra')) == {'lab', 'lora', 'qlora', 'ray', 'trl', 'python', 'llm', 'gepa',
                                                    'gym', 'minigrid', 'textarena', 'openspiel', 'textworld', 'openenv',
                                                    'verifiers', 'reasoning-gym', 'alfworld', 'gpu',
                                                    'all', 'dev'}
    entries = in_wheel(wheel, 'entry_points.txt')
    assert ('agentlab = agentlab.cli:main' in entries
            and '[verl.plugins]\nagentlab = agentlab.interop.verl_plugin' in entries)


def test_sdist_builds_without_the_repository(dist):
    with tarfile.open(next(dist.glob('agentlab_rl-*.tar.gz'))) as file:
        names = {name.partition('/')[2] for name in file.getnames()}
    assert {'settings.ini', 'setup.py', 'LICENSE', 'README.md', 'agentlab/py.typed'} <= names
    assert not any(name.startswith(('tests', 'nbs', 'tools')) or '_modidx' in name for name in names)


def test_a_wheel_from_the_folder_has_no_index_either(source, tmp_path):
    "As `pip install .` builds it: from the folder and not from the sdist."
    must(sys.executable, '-m', 'build', '--wheel', '--no-isolation', '--outdir', tmp_path, source)
    with ZipFile(next(tmp_path.glob('*.whl'))) as file:
        assert not any('_modidx' in name for name in file.namelist())


def test_wheel_works(installed, tmp_path):
    "The package in the folder answers, not the one in the repository."
    script = '''
import agentlab.cli, agentlab.credit, agentlab.env
from importlib.metadata import version
from agentlab.settings import defaults
print(agentlab.__file__, agentlab.__version__ == version("agentlab-rl"), defaults()["recipe"])
'''
    said = must(sys.executable, '-c', script, cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(installed)))
    assert said.split() == [str(installed/'agentlab'/'__init__.py'), 'True', 'gigpo']


def test_console_script(installed, tmp_path):
    said = must(installed/'bin'/'agentlab', '--help', cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(installed)))
    assert 'demo' in said
