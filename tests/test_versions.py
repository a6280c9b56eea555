"""torch, transformers, TRL, verl and vLLM pin each other: the sets of versions that install together still do, and our
own bounds allow each.

Resolved by uv from the metadata of packages alone, for Linux on x86_64 and the Python that runs the test; nothing is
installed and no wheel is fetched whole.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from versions import EXTRAS

ROOT = Path(__file__).resolve().parent.parent
OURS = 'agentlab-rl'
NO_VLLM = 'torch==2.13.*', 'transformers==5.23.*', 'trl==1.16.*', 'peft==0.21.*', 'bitsandbytes==0.50.*'
TRL_VLLM = 'trl[vllm]==1.16.*', 'vllm==0.31.*', 'torch==2.13.*', 'transformers==5.17.*'
VERL = 'verl[vllm]==0.9.1', 'trl==1.16.*', 'torch==2.11.*', 'transformers==5.9.*', 'vllm==0.24.*'
SETS = dict(no_vllm=NO_VLLM, trl_vllm=TRL_VLLM, verl=VERL)
# what a user types; the resolver picks the rest
FREE = dict(trl_vllm=('trl[vllm]==1.16.*',), verl=('verl[vllm]==0.9.1', 'trl==1.16.*'))

def facts() -> ConfigParser:
    found = ConfigParser(interpolation=None)
    found.read(ROOT/'settings.ini', encoding='utf-8')
    return found

def listed(text: str) -> list[str]: return [line.strip() for line in text.splitlines() if line.strip()]

def bounds(extra: str = '') -> list[str]:
    "What we publish: the requirements, or those of an extra with the extras that it names."
    if not extra: return listed(facts()['package']['requirements'])
    found = []
    for line in listed(facts()['extras'][extra]):
        inner = re.fullmatch(re.escape(OURS) + r'\[(.*)\]', line)
        found += sum(map(bounds, re.split(r'\s*,\s*', inner[1])), []) if inner else [line]
    return found

def is_named(package: str, extra: str) -> bool: return any(re.match(rf'{package}\b', line) for line in bounds(extra))

@pytest.fixture(scope='module')
def uv():
    "A function: requirements -> (versions by package, what uv said). Skips where uv or an index is out of reach."
    with tempfile.TemporaryDirectory() as folder:
        program = shutil.which('uv') or f'{folder}/uv/bin/uv'
        if not shutil.which(program):
            subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--retries', '1', '--target',
                f'{folder}/uv', 'uv'], capture_output=True)
        if not shutil.which(program): pytest.skip('needs uv, and pip could not fetch it: pip install uv')
        env = os.environ | dict(UV_CACHE_DIR=f'{folder}/cache', UV_NO_CONFIG='1')
        for theirs, of_pip in (('SSL_CERT_FILE', 'PIP_CERT'), ('UV_DEFAULT_INDEX', 'PIP_INDEX_URL')):
            if of_pip in env: env.setdefault(theirs, env[of_pip])
        command = [program, 'pip', 'compile', '-', '--quiet', '--no-header', '--no-annotate', '--only-binary', ':all:',
            '--python-version', '{}.{}'.format(*sys.version_info), '--python-platform']
        def resolve(*requirements, system='x86_64-manylinux_2_35'):
            done = subprocess.run([*command, system], input='\n'.join(requirements), env=env, cwd=folder,
                capture_output=True, text=True, timeout=600)
            return dict(line.split('==') for line in done.stdout.splitlines() if '==' in line), done.stderr
        versions, said = resolve('packaging')
        if not versions:
            pytest.skip(f'no package index can be reached: '
                f'{said.strip().splitlines()[-1].strip() if said.strip() else "uv said nothing"}')
        yield resolve

def check(versions: dict, said: str, wanted) -> None:
    "Every pin of `wanted` stands in what was resolved."
    assert versions, said
    for line in wanted:
        name, version = re.match(r'([\w-]+)(?:\[\w+\])?==([\d.]+\d)', line).groups()
        assert (versions[name] + '.').startswith(version + '.'), (line, versions[name])

@pytest.mark.slow
@pytest.mark.parametrize('name', SETS)
def test_the_set_installs_together(uv, name): check(*uv(*SETS[name]), SETS[name])

@pytest.mark.slow
@pytest.mark.parametrize('name', FREE)
def test_what_a_user_types_gives_a_set_that_we_allow(uv, name):
    "Whatever the resolver picks, and with our bounds beside it."
    extras = [extra for extra in ('lora', 'trl', 'gpu') if extra in facts()['extras']]
    for beside in ([], bounds() + sum(map(bounds, extras), [])):
        versions, said = uv(*FREE[name], *beside)
        check(versions, said, FREE[name])
        print(name, {package: versions.get(package) for package in ('torch', 'transformers', 'trl', 'verl', 'vllm')})

@pytest.mark.slow
@pytest.mark.parametrize('name', SETS)
def test_our_bounds_allow_the_set(uv, name):
    """With every extra at once but `textworld`, one of whose parts has no wheel; without vLLM also but the extras
    that ask for it."""
    extras = [extra for extra in facts()['extras'] if extra != 'textworld'
        and (name != 'no_vllm' or not is_named('vllm', extra))]
    check(*uv(*SETS[name], *bounds(), *sum(map(bounds, extras), [])), SETS[name])

@pytest.mark.slow
@pytest.mark.parametrize('wanted', [('vllm==0.33.*', 'torch==2.13.*'), ('vllm==0.33.*', 'transformers==5.23.*'),
    ('verl==0.9.1', 'transformers>=5.16')], ids=' '.join)
def test_these_do_not_install_together(uv, wanted):
    "Should one of them begin to, the sets above can move on."
    versions, said = uv(*wanted)
    assert not versions and 'No solution found' in said, (versions, said)

# packages of which a new major version, or one below 1, comes every few months and has broken callers
MONTHLY = ('torch transformers tokenizers safetensors accelerate numpy pandas fastcore peft bitsandbytes vllm trl ray '
    'kaleido plotly').split()

def published(named=None) -> dict:
    "{package: our bounds}, of everything that settings.ini names; or of the requirements and these extras."
    extras = list(facts()['extras']) if named is None else named
    lines = bounds() + sum((listed(facts()['extras'][extra]) for extra in extras), [])
    return {r.name.lower(): r.specifier for r in map(Requirement, lines) if r.name != OURS}

def pins(path: str) -> dict:
    "{package: version} of a file with constraints."
    lines = (ROOT/path).read_text(encoding='utf-8').splitlines()
    return {name.lower().replace('_', '-'): version for name, _, version in
        (line.partition('==') for line in lines if line and not line.startswith('#'))}

def test_what_breaks_often_has_a_bound_above():
    open_above = [name for name, specifier in published().items() if name in MONTHLY
        and not any(part.operator == '<' for part in specifier)]
    assert not open_above and set(MONTHLY) <= published().keys()

def test_the_set_that_CI_runs_is_within_our_bounds():
    pinned, asked = pins('constraints.txt'), published()
    assert not [name for name, specifier in asked.items() if name in pinned and not specifier.contains(pinned[name])]

def test_the_lower_set_is_the_lower_end_of_our_bounds():
    "constraints-lower.txt, made by `python tools/versions.py lower`: the first version that each bound allows."
    pinned, asked = pins('constraints-lower.txt'), published(EXTRAS)
    assert pinned.keys() <= asked.keys() and {'torch', 'transformers', 'numpy', 'pandas'} <= pinned.keys()
    for name, version in pinned.items():
        lowest, = [part.version for part in asked[name] if part.operator == '>=']
        assert asked[name].contains(version) and (version + '.').startswith(lowest + '.')

def test_each_python_that_the_classifiers_name_ran_the_tests():
    "And each set of versions; the record says when, by which command, which tests, and what failed."
    from versions import known
    kept = known('versions')
    named = set(re.findall(r'Python :: (3\.\d+)', facts()['package']['classifiers']))
    assert named and {f'{python} ci' for python in named} <= kept['rows'].keys()
    assert {key.split()[1] for key in kept['rows']} == {'ci', 'lower', 'upper', 'whole'}
    for key, row in kept['rows'].items():
        assert row['python'].startswith(key.split()[0]) and row['date'] and row['command'] and row['passed'] > 100
        mended = row.get('again', dict(tests=[], status=1))  # the files that failed, run again after a repair
        assert row.get('demo', 'whole' in key) and (not row['failures'] or mended['status'] == 0), key
        assert {name.partition('::')[0] for name in row['failures']} <= {*mended['tests']}, key
    asked = published(EXTRAS)
    for row in kept['rows'].values():
        assert all(asked[name].contains(version.partition('+')[0]) for name, version in row['versions'].items())

BUILT = {'alfworld', 'reasoning-gym'}  # from source

@pytest.mark.slow
@pytest.mark.parametrize('system, without', [('windows', {'gpu', 'textworld'} | BUILT),
    ('aarch64-apple-darwin', {'gpu', 'textworld', 'qlora'} | BUILT)])
def test_what_doctor_says_of_other_systems(uv, system, without):
    "Every extra installs there from wheels, but those that doctor names."
    found = {extra for extra in facts()['extras'] if extra not in ('all', 'dev')
        and not uv(*bounds(), *bounds(extra), system=system)[0]}
    assert found == without

def test_the_set_that_CI_runs_is_the_one_without_vllm():
    "constraints.txt pins it."
    pinned = dict(line.split('==') for line in (ROOT/'constraints.txt').read_text().splitlines() if '==' in line
        and not line.startswith('#'))
    check(pinned, '', [line for line in NO_VLLM if line.split('==')[0] in pinned])
    assert {'torch', 'transformers', 'trl'} <= pinned.keys() and not {'vllm', 'verl'} & pinned.keys()
