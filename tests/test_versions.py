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
                   '--python-version', '{}.{}'.format(*sys.version_info), '--python-platform', 'x86_64-manylinux_2_35']
        def resolve(*requirements):
            done = subprocess.run(command, input='\n'.join(requirements), env=env, cwd=folder, capture_output=True,
                                  text=True, timeout=600)
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


def test_the_set_that_CI_runs_is_the_one_without_vllm():
    "constraints.txt pins it."
    pinned = dict(line.split('==') for line in (ROOT/'constraints.txt').read_text().splitlines() if '==' in line
                  and not line.startswith('#'))
    check(pinned, '', [line for line in NO_VLLM if line.split('==')[0] in pinned])
    assert {'torch', 'transformers', 'trl'} <= pinned.keys() and not {'vllm', 'verl'} & pinned.keys()
