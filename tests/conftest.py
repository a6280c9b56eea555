"""Which tests run here: gpu, slow, lm, browser and node tests are skipped with the reason and the remedy (`-ra` prints
both)."""
import os
import shutil
import subprocess
import warnings

import pytest

# What passed here passes there: the examples follow from each test. HYPOTHESIS_PROFILE=default draws others every time.
try: from hypothesis import settings
except ImportError: pass        # the environment of the adapters has none
else:
    settings.register_profile('steady', derandomize=True)
    settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'steady'))


def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='run the slow tests and the `#| slow` cells of notebooks too')


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


def skip_reasons(config, markers):
    "One reason for each of `markers` that cannot run here: {marker: reason}."
    checks = dict(
        gpu=lambda: 'no CUDA device' if no_gpu() else None,
        slow=lambda: None if config.getoption('slow') else 'slow: run with --slow',
        lm=no_model,
        browser=missing_for_browser,
        node=no_node)
    return {name: reason for name in markers & checks.keys() if (reason := checks[name]())}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    names = [{mark.name for mark in item.iter_markers()} for item in items]
    reasons = skip_reasons(config, set().union(*names))
    for item, marks in zip(items, names):
        for name in sorted(marks & reasons.keys()): item.add_marker(pytest.mark.skip(reason=reasons[name]))
        # one JupyterLab and one Chromium for all of them
        if 'browser' in marks: item.add_marker(pytest.mark.xdist_group('browser'))
    # the longest first: two workers then end together
    items.sort(key=lambda item: ('browser' not in item.keywords, item.path.name != 'test_notebooks.py'))
