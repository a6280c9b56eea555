"""What a user gets from the package index: the wheel and the sdist hold what they should, and the wheel works
without the repository."""
import os
import re
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
        'serve', 'mcp', 'trackers', 'inspect', 'all', 'dev'}
    entries = in_wheel(wheel, 'entry_points.txt')
    assert ('agentlab = agentlab.cli:main' in entries
        and '[verl.plugins]\nagentlab = agentlab.interop.verl_plugin' in entries)

def test_plotly_is_no_requirement_of_every_installation(wheel):
    "48 MB that `agentlab demo` and its report do not use; the extra lab has it."
    asked = message_from_string(in_wheel(wheel, 'METADATA')).get_all('Requires-Dist')
    assert [line for line in asked if line.startswith('plotly')] == ['plotly<8,>=6; extra == "lab"']
    assert not any('@' in line or '://' in line for line in asked)

def test_the_index_accepts_it(dist):
    "What the release workflow asks, too: the page can be rendered, and nothing is missing."
    pytest.importorskip('twine', reason="needs twine: pip install -e '.[dev]'")
    assert must(sys.executable, '-m', 'twine', 'check', '--strict', *dist.iterdir()).count('PASSED') == 2

def test_the_page_on_the_index_leads_nowhere_that_is_not_there(wheel):
    "No link and no picture of it needs the repository beside it; the words and the code are those of the README."
    page = message_from_string(in_wheel(wheel, 'METADATA')).get_payload()
    prose = re.sub(r'^```.*?^```$', '', page, flags=re.MULTILINE | re.DOTALL)
    assert not [path for path in re.findall(r'\]\(([^)\s]+)\)', prose) if not re.match(r'https?://|#', path)]
    assert 'make demo' in page and 'train.train(agent, house' in page and 'lesson 1' in page and len(page) > 3000
    assert 'TurnScope over a run: a group of eight episodes' in page  # of a picture, what it shows

def outside(repository):
    "The function of setup.py, without its call of setuptools."
    text = (ROOT/'setup.py').read_text(encoding='utf-8')
    found = dict(re=re, repository=repository)
    exec(re.search(r'^LINK = .*?$', text, re.MULTILINE)[0], found)
    exec(re.search(r'^def outside.*?(?=^class )', text, re.MULTILINE | re.DOTALL)[0], found)
    return found['outside']

def test_links_outside_the_repository():
    text = ('[a `b`](nbs/c.ipynb), ![two rooms](assets/d.png) and [e](https://example.org/e), [f](#f)\n'
        '```\n[x](y)\n```\n')
    code = '\n```\n[x](y)\n```\n'
    assert outside('')(text) == 'a `b`, *two rooms* and [e](https://example.org/e), [f](#f)' + code
    assert outside('https://host/us')(text) == (
        '[a `b`](https://host/us/blob/HEAD/nbs/c.ipynb), ![two rooms](https://host/us/raw/HEAD/assets/d.png) and '
        '[e](https://example.org/e), [f](#f)' + code)

def test_the_release_workflow_builds_checks_and_keeps_no_secret():
    import yaml
    jobs = yaml.safe_load((ROOT/'.github/workflows/release.yml').read_text(encoding='utf-8'))['jobs']
    steps = [step.get('run') or step['uses'].partition('@')[0] for step in jobs['build']['steps']]
    assert steps.index('python -m build') < steps.index('python -m twine check --strict dist/*')
    assert jobs['publish']['needs'] == 'build' and jobs['publish']['permissions'] == {'id-token': 'write'}
    assert [step['uses'].partition('@')[0] for step in jobs['publish']['steps']][-1] == 'pypa/gh-action-pypi-publish'
    assert 'secrets.' not in (ROOT/'.github/workflows/release.yml').read_text(encoding='utf-8')
    from agentlab import __version__
    named = next(step for step in steps if step.startswith('test "v$('))
    env = os.environ | dict(GITHUB_REF_NAME=f'v{__version__}')
    must('bash', '-c', named, cwd=ROOT, env=env)
    assert subprocess.run(['bash', '-c', named], cwd=ROOT, env=env | dict(GITHUB_REF_NAME='v9.9')).returncode

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
from agentlab.doctor import origin
print(agentlab.__file__, agentlab.__version__ == version("agentlab-rl"), defaults()["recipe"], origin())
'''
    said = must(sys.executable, '-c', script, cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(installed)))
    assert said.split() == [str(installed/'agentlab'/'__init__.py'), 'True', 'gigpo', *'a wheel file'.split()]

def test_console_script(installed, tmp_path):
    said = must(installed/'bin'/'agentlab', '--help', cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(installed)))
    assert 'demo' in said

WITHOUT = '''
import sys
for name in ('plotly', 'ipywidgets', 'anywidget', 'kaleido', 'nbdev', 'IPython'): sys.modules[name] = None    # missing
'''

def test_the_demo_runs_from_the_wheel_alone(installed, tmp_path):
    "Without the repository and without what only extras bring: the agent learns, and its report is written."
    script = WITHOUT + '''
import agentlab
import agentlab.train
from functools import partial
from agentlab.cli import main
agentlab.train.load_recipe = partial(agentlab.train.load_recipe, test_tasks=16)     # 512 of them take long
print(agentlab.__file__)
sys.exit(main(['demo', '--steps', '1', '--no-open']))
'''
    said = must(sys.executable, '-c', script, cwd=tmp_path,
        env=os.environ | dict(PYTHONPATH=str(installed), OMP_NUM_THREADS='1'))
    assert str(installed) in said and 'after   1 updates: success on 16 held-out tasks' in said
    assert '<html' in (tmp_path/'runs'/'demo'/'report.html').read_text(encoding='utf-8')

def test_a_figure_without_plotly_names_the_extra(installed, tmp_path):
    script = WITHOUT + '''
from agentlab.view import recorded_group, turn_grid
from agentlab.episodes import Batch
batch = Batch.from_turns(recorded_group().drop(columns='word'))
turn_grid(batch, {'reward': batch.turns.reward})
'''
    done = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, text=True, capture_output=True,
        env=os.environ | dict(PYTHONPATH=str(installed)))
    assert 'ImportError: turn_grid needs plotly' in done.stderr
    assert done.stderr.rstrip().endswith('which is not installed: pip install "agentlab-rl[lab]"')
