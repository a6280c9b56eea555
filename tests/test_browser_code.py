"The files that the browser runs: their pure functions in node, and their form (biome)."
import os
import subprocess
from pathlib import Path
import pytest
from notebooks import ROOT

pytestmark = pytest.mark.node

def passes(*command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode: pytest.fail(done.stdout, pytrace=False)

def test_functions():
    "Formatting, escaping, joins: tests/js."
    passes('node', '--test', *sorted((ROOT/'tests'/'js').glob('*.test.mjs')))

def test_form():
    "biome: no undeclared name, no unused one, one statement a line, lines of at most 120 characters."
    biome = Path(os.environ.get('BIOME', ROOT/'.venv-npm'/'node_modules'/'.bin'/'biome'))
    if not biome.exists(): pytest.skip('biome is not installed: make test-browser, where npm is')
    passes(biome, 'ci', '--error-on-warnings', 'agentlab/view/static', 'tests/js')
