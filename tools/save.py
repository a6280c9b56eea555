"""Run notebooks and keep their outputs, then tidy the files.

`make save` runs all of them; `make save NB=nbs/00_groups.ipynb` one; `python tools/save.py --tidy` runs none and only
tidies.
A notebook whose run fails keeps its old outputs. Figures are kept as PNG, so Chromium must be installed; the live
figure comes back when its cell runs.
Pictures are kept with a palette of their own, which takes a quarter of the space; `--pictures` does only that.
"""
from argparse import ArgumentParser
from base64 import b64decode, b64encode
from io import BytesIO
import json
from pathlib import Path
import sys

from notebooks import ROOT, notebooks, run, tidy
from agentlab.policy.reader import installed


COLORS = 128        # of a palette; without dithering, so that lines and letters stay sharp


def smaller(png: bytes) -> bytes:
    "The picture with a palette, where that is shorter; a picture that has one stays."
    from PIL import Image
    picture = Image.open(BytesIO(png))
    if picture.mode == 'P': return png
    clear = picture.mode == 'RGBA' and picture.getextrema()[3][0] < 255
    picture = picture if clear else picture.convert('RGB')      # the method that knows transparency is the coarser one
    method = Image.Quantize.FASTOCTREE if clear else Image.Quantize.MEDIANCUT
    out = BytesIO()
    picture.quantize(COLORS, method=method, dither=Image.Dither.NONE).save(out, 'PNG', optimize=True)
    return min(out.getvalue(), png, key=len)


def with_smaller_pictures(text: str) -> str:
    "The notebook with its PNG outputs as `smaller` leaves them."
    notebook = json.loads(text)
    for data in (output.get('data', {}) for cell in notebook['cells'] for output in cell.get('outputs', [])):
        if 'image/png' in data: data['image/png'] = b64encode(smaller(b64decode(data['image/png']))).decode()
    return tidy(json.dumps(notebook))


def save(path: Path, only_tidy: bool, only_pictures: bool = False) -> str:
    "Run and tidy the notebook at `path`; what went wrong, or the empty string."
    problem = '' if only_tidy or only_pictures else run(path, ('lm',)*installed(source='package'), save=True)
    if problem: return problem
    file = ROOT/path
    old = file.read_text(encoding='utf-8')
    new = tidy(old) if only_tidy else with_smaller_pictures(old)
    if new != old: file.write_text(new, encoding='utf-8')
    return ''


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('notebook', nargs='*', type=Path, help='default: every notebook')
    parser.add_argument('--tidy', action='store_true', help='leave the outputs, only tidy the file')
    parser.add_argument('--pictures', action='store_true', help='run nothing, only make the pictures smaller')
    asked = parser.parse_args()
    failed = 0
    for path in [path.resolve().relative_to(ROOT) for path in asked.notebook] or notebooks():
        problem = save(path, asked.tidy, asked.pictures)
        print(f"{'FAILED' if problem else 'tidied' if asked.tidy or asked.pictures else 'saved'} "
              f"{path}\n{problem}".rstrip(), flush=True)
        failed += bool(problem)
    return 1 if failed else 0


if __name__ == '__main__': sys.exit(main())
