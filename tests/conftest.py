"""Which tests run here: gpu, slow, long, lm, browser and node tests are skipped with the reason and the remedy (`-ra`
prints both)."""
import os
import shutil
import subprocess
import warnings
from functools import cache

import pytest

import later

# What passed here passes there: the examples follow from each test. HYPOTHESIS_PROFILE=default draws others every time.
try: from hypothesis import settings
except ImportError: pass  # the environment of the adapters has none
else:
    settings.register_profile('steady', derandomize=True)
    settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'steady'))

def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='run the slow tests and the `#| slow` cells of notebooks too')
    parser.addoption('--long', action='store_true', help='run the tests of the longer part of CI too')

def pytest_configure(config):
    "JITTER=1: trainings in the tests go as they might on another processor."
    if os.environ.get('JITTER'):
        from notebooks import jitter
        jitter(float(os.environ['JITTER']))

def no_gpu():
    import torch
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # a driver that is too old is "no GPU" here
        return not torch.cuda.is_available()

def missing_for_browser():
    "What a browser test lacks on this machine, with the command that adds it; None if nothing."
    try: import playwright  # noqa: F401
    except ImportError: return "playwright is not installed: pip install -e '.[dev]'"
    return None if shutil.which('chromium') else 'no chromium on the PATH: apt-get install chromium'

def no_node():
    "Why the browser's files cannot be tested here; None if they can."
    if not shutil.which('node'): return 'no node on the PATH: apt-get install nodejs'
    version = subprocess.run(['node', '--version'], capture_output=True, text=True).stdout.strip()
    known = tuple(map(int, version.lstrip('v').split('.')[:2]))
    return None if known >= (20, 19) else f'node {version} is older than 20.19'

def no_model():
    "What a test of the pretrained model lacks on this machine; None if nothing."
    from agentlab.policy.reader import installed
    return None if installed(source='package') else 'SmolLM2 is not installed: make lm'

@pytest.fixture
def smollm2():
    "SmolLM2 from its package with an adapter, in float32 (the same on every machine), for `@pytest.mark.lm`."
    import torch
    from agentlab.policy import pretrained
    return pretrained('smollm2', source='package', dtype=torch.float32)

@cache
def lacking(marker):
    "What a test with this marker lacks on this machine; None if nothing."
    if marker == 'gpu': return 'no CUDA device' if no_gpu() else None
    return dict(lm=no_model, browser=missing_for_browser, node=no_node)[marker]()

def reason_to_skip(marker, config):
    "Why a test with this marker does not run here; None if it does."
    if marker == 'slow': return None if config.getoption('slow') else 'slow: run with --slow'
    if marker == 'long': return None if config.getoption('long') else 'in the longer part of CI: make test-long'
    return lacking(marker)

@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with later.imports(): return (yield)

@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        # one JupyterLab and one Chromium for all of them; each worker has its own for the longer part
        if item.get_closest_marker('browser') and not item.get_closest_marker('long'):
            item.add_marker(pytest.mark.xdist_group('browser'))
    # the longest first: two workers then end together
    items.sort(key=lambda item: ('browser' not in item.keywords, item.path.name != 'test_notebooks.py'))

@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item):
    marks = {mark.name for mark in item.iter_markers()}
    for name in sorted(marks & {'gpu', 'slow', 'long', 'lm', 'browser', 'node'}):
        if reason := reason_to_skip(name, item.config):
            item.add_marker(pytest.mark.skip(reason=reason))
            return
    later.settle(item.module)
    if hasattr(item, 'callspec'): later.settled(item.callspec.params)
