"""`agentlab doctor` where something is wrong: a package that is missing or out of bounds, an extra that somebody added,
a torch that does not load, an agentlab that nobody installed. Each says what to do, in one command."""
import os
import re
import subprocess
import sys
from configparser import ConfigParser

import pytest

from agentlab import doctor
from small import ROOT

METADATA = '''Metadata-Version: 2.4
Name: agentlab-rl
Version: 9.9
Requires-Python: >=3.11
Requires-Dist: numpy>=1
Requires-Dist: packaging<2
Requires-Dist: no-such-package<3,>=2
Provides-Extra: mine
Requires-Dist: another-one>=1; extra == "mine"
Provides-Extra: also
Requires-Dist: agentlab-rl[mine]; extra == "also"
'''

def told(*arguments, folder, begin=''):
    "`agentlab doctor` in a process: exit status, output, errors."
    script = f'import sys\n{begin}\nfrom agentlab.cli import main\nsys.exit(main(["doctor", *sys.argv[1:]]))'
    done = subprocess.run([sys.executable, '-c', script, *arguments], cwd=folder, capture_output=True, text=True,
        env=os.environ | dict(PYTHONPATH=f'{folder}{os.pathsep}{ROOT}',
        AGENTLAB_CACHE=str(folder/'cache')))
    return done.returncode, done.stdout, done.stderr

@pytest.fixture
def wrong(tmp_path):
    "A folder whose metadata of agentlab-rl ask for what is not there."
    (tmp_path/'agentlab_rl-9.9.dist-info').mkdir()
    (tmp_path/'agentlab_rl-9.9.dist-info'/'METADATA').write_text(METADATA)
    return tmp_path

def test_what_is_wrong_is_said_and_one_command_mends_it(wrong):
    status, said, errors = told(folder=wrong)
    assert status == 1 and errors == ''
    for line in (r'  ok       numpy \d\S* \(>=1\)', r'  outside  packaging \d\S* \(<2\)',
                 r'  missing  no-such-package \(<3,>=2\)', r'  extra    mine: lacks another-one \(>=1\)',
                 r'  extra    also: lacks another-one \(>=1\)', r'  tiny     0 policies, 0\.0 MB in '):
        assert re.search(f'^{line}', said, re.M), (line, said)
    command = said.rstrip().splitlines()[-1].removeprefix('to fix: ')
    assert command.endswith('"packaging<2" "no-such-package<3,>=2"')
    assert told('--fix', folder=wrong)[:2] == (0, f'{command}\n')

def test_an_extra_that_is_wanted_counts(wrong):
    assert told('--fix', '--extra', 'also', folder=wrong)[1].endswith('"no-such-package<3,>=2" "another-one>=1"\n')
    status, said, errors = told('--extra', 'other', folder=wrong)
    assert status == 2 and "extra='other' is unknown. Known: also, mine" in errors

def test_the_command_is_one_that_pip_understands(wrong):
    "It fails for the package that does not exist, and for nothing before."
    if not doctor.importlib.util.find_spec('pip'): pytest.skip('this environment has no pip')
    command = told('--fix', folder=wrong)[1].strip()
    done = subprocess.run(f'{command} --no-index --find-links {wrong} --dry-run', shell=True, text=True,
        capture_output=True, cwd=wrong)
    assert done.returncode and 'Could not find a version that satisfies the requirement' in done.stderr

def test_a_torch_that_does_not_load_does_not_end_the_report(tmp_path):
    status, said, errors = told(folder=tmp_path, begin="sys.modules['torch'] = None")
    assert 'device   cannot be told: ModuleNotFoundError' in said and '  browser  ' in said
    assert 'Traceback' not in errors

def test_what_nobody_installed_has_no_bounds(monkeypatch, capsys):
    def gone(name): raise doctor.PackageNotFoundError(name)
    monkeypatch.setattr(doctor.importlib.metadata, 'distribution', gone)
    for fix in (False, True):
        with pytest.raises(SystemExit): doctor.doctor(fix=fix)
        said = capsys.readouterr().out
        assert said.rstrip().endswith(f'-m pip install -e "{ROOT}"') and ('its bounds are not known' in said) != fix

def test_every_extra_of_settings_ini_is_known(capsys):
    "From the metadata of the installed package; no name is typed in the doctor."
    facts = ConfigParser(interpolation=None)
    facts.read(ROOT/'settings.ini', encoding='utf-8')
    extras = list(facts['extras'])
    lines = [f'{line}; extra == "{name}"' for name in extras for line in facts['extras'][name].split('\n')[1:]]
    found = doctor.published(facts['package']['requirements'].split('\n')[1:] + lines, extras)
    assert set(found) == {'', *extras} and all(found.values())
    assert {r.name for r in found['lora']} < {r.name for r in found['qlora']} < {r.name for r in found['gpu']}
    assert not any(r.name == doctor.OURS for wanted in found.values() for r in wanted)

def test_extras_that_name_each_other_end():
    found = doctor.published(['agentlab-rl[b]; extra == "a"', 'agentlab-rl[a]; extra == "b"', 'x; extra == "b"'],
        ['a', 'b'])
    assert [r.name for r in found['a']] == ['x']

@pytest.mark.parametrize('driver, cuda, words', [
    (True, None, "there is a GPU, but this is torch's CPU build: uv pip install --reinstall-package torch"),
    (True, '13.0', 'torch does not reach it: nvidia-smi'),
    (False, '13.0', 'torch brought CUDA along'), (False, None, 'cpu, ')])
def test_a_build_of_torch_that_does_not_fit_the_machine(monkeypatch, driver, cuda, words):
    import torch
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: False)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    monkeypatch.setattr(doctor.shutil, 'which', lambda name: '/bin/it' if driver and name == 'nvidia-smi' else None)
    monkeypatch.setattr(doctor.Path, 'exists', lambda self: False)
    said = doctor.device_line()
    assert words in said and (driver or cuda or ';' not in said)
