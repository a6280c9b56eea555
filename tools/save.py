"""Run notebooks and keep their outputs, then tidy the files.

`make save` runs all of them; `make save NB=nbs/00_groups.ipynb` one; `python tools/save.py --tidy` runs none and only
tidies.
A notebook whose run fails keeps its old outputs. Figures are kept as PNG, so Chromium must be installed; the live
figure comes back when its cell runs.
Pictures are kept with a palette of their own, which takes a sixth of the space; `--pictures` does only that, of other
PNG files too.
"""
import json
import math
import re
import sys
from argparse import ArgumentParser
from base64 import b64decode, b64encode
from io import BytesIO
from math import dist
from pathlib import Path

import numpy as np

from agentlab.policy.reader import installed
from notebooks import ROOT, notebooks, run, tidy

COLORS = 128  # of the first palette
# (share of the picture, distance): a color stays if it covers so much and no more frequent one is so near; the least
# shares are the edges of letters and lines
KEPT = (.01, 3), (.0025, 6), (.002, 20), (0, 60)
HALF = 16     # so few colors take half a byte
OWN = .003    # of a picture: so much that is opaque and so much that is not are two colors, however alike on white
GENTLE, NEAR = 12, 40  # fewer, while a pixel moves by no more (squared, mean of the picture), and only to a near color

def smaller(png: bytes) -> bytes:
    """The picture with a palette of as few colors as look the same, where that is shorter; a second time changes
    nothing."""
    from PIL import Image
    picture = Image.open(BytesIO(png))
    whole = picture.convert('RGBA')
    if whole.getextrema()[3][0] < 255: few = clear_colors(whole)
    else: few = fewer_colors(picture if picture.mode == 'P' else quantized(picture.convert('RGB')))
    return min(written(*few), packed(png), key=len)

def quantized(picture):
    "With a first palette; without dithering, so that lines and letters stay sharp."
    from PIL import Image
    return picture.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)

def clear_colors(picture) -> tuple:
    """The same as `fewer_colors` of a picture that is see-through somewhere: those that look the same on white, where
    pale colors and thin lines need the fewest. Again and again, until nothing changes."""
    from PIL import Image
    white = Image.new('RGBA', picture.size, 'white')
    for _ in range(9):
        shown = Image.alpha_composite(white, picture).convert('RGB')
        numbers, colors = through(fewer_colors(quantized(shown))[0], picture)
        fewer = Image.fromarray(np.array(colors, np.uint8)[np.array(numbers)], 'RGBA')
        if fewer.tobytes() == picture.tobytes(): break
        picture = fewer
    return numbers, colors

def through(numbers, whole) -> tuple:
    """A picture of the numbers of its colors, as on white, and these colors as `whole` has them: the mean of all pixels
    of a number, whose opacity weighs its color. A number that stands for much that is opaque and much that is
    see-through, as a white field on a ground of none, becomes two."""
    from PIL import Image
    at, pixels = np.array(numbers), np.array(whole).astype(float)
    solid, many = pixels[..., 3] > 127, OWN*at.size
    for i in range(at.max() + 1):
        part = solid & (at == i)
        if min(part.sum(), (at == i).sum() - part.sum()) > many: at[part] = at.max() + 1
    alpha = np.bincount(at.flat, pixels[..., 3].flat)
    sums = [np.bincount(at.flat, (pixels[..., i]*pixels[..., 3]).flat) for i in range(3)]
    mixed = [part/np.maximum(alpha, 1e-9) for part in sums] + [alpha/np.bincount(at.flat)]
    return Image.fromarray(at.astype(np.uint8), 'P'), [tuple(map(round, color)) for color in np.stack(mixed, 1)]

def seen(color: tuple) -> tuple:
    "Brightness, hue and opacity: a distance that tells a pale orange from a grey, as an eye does."
    red, green, blue, alpha = color
    bright = .3*red + .59*green + .11*blue
    return bright, 1.2*(red - bright), 1.2*(blue - bright), alpha

def fewer_colors(picture) -> tuple:
    """A picture with a palette, and its colors after each was replaced by a more frequent one that is near: the larger
    the area, the less a color may move."""
    from PIL import Image
    picture.apply_transparency()
    flat, counts = picture.getpalette('RGBA'), picture.histogram()
    colors = [tuple(flat[i:i+4]) if flat[i+3] else (0, 0, 0, 0) for i in range(0, len(flat), 4)]
    far = lambda one, other: dist(seen(one), seen(other))
    used = sorted((-counts[i], color, i) for i, color in enumerate(colors) if counts[i])
    kept = {}
    for count, color, _ in used:
        near = next(near for share, near in KEPT if -count >= share*sum(counts))
        if all(far(color, other) > near for other in kept): kept[color] = 0
    for count, color, _ in used: kept[min(kept, key=lambda other: far(color, other))] -= count
    kept = dict.fromkeys(halved(kept), 0)
    nearest = {i: min(kept, key=lambda other: far(color, other)) for _, color, i in used}
    for i, color in nearest.items(): kept[color] += counts[i]
    order = sorted(kept, key=lambda color: (-kept[color], color))  # frequent ones first: zlib needs 1 % less
    table = bytes(order.index(nearest[i]) if i in nearest else 0 for i in range(256))
    return Image.frombytes('P', picture.size, picture.tobytes().translate(table)), order

def halved(counts: dict) -> list:
    "Of colors and how often they occur, those that stay where the least is lost: near ones and rare ones go first."
    left, far = dict(counts), lambda a, b: dist(seen(a), seen(b))
    while True:
        many = len(left) > HALF
        pairs = [(far(a, b)**2*min(left[a], left[b]), *sorted((a, b), key=left.get))
            for a in left for b in left if a < b and (many or far(a, b) <= NEAR)]
        lost, rare, other = min(pairs, default=(math.inf, None, None))
        if not many and lost > GENTLE*sum(left.values()): break
        left[other] += left.pop(rare)
    return list(left)

def written(picture, colors: list[tuple]) -> bytes:
    "The PNG file of a picture of numbers of `colors`."
    picture.putpalette(bytes(part for color in colors for part in color), 'RGBA')
    out = BytesIO()
    picture.save(out, 'PNG', optimize=True, bits=next(bits for bits in (1, 2, 4, 8) if len(colors) <= 2**bits))
    return packed(out.getvalue())

def packed(png: bytes) -> bytes:
    "The same picture in an eighth less space, which takes a second."
    import oxipng
    return oxipng.optimize_from_memory(png, level=4, strip=oxipng.StripChunks.all(), deflate=oxipng.Deflaters.zopfli(5))

def shortened(text: str) -> str:
    """The notebook with its PNG outputs as `smaller` leaves them. What a cell gives is kept as what it displays, which
    looks the same and needs no number of a run; a style sheet is kept once, since it holds for the whole page."""
    notebook, sheets = json.loads(text), set()
    for output in (output for cell in notebook['cells'] for output in cell.get('outputs', [])):
        if output['output_type'] == 'execute_result':
            output['output_type'] = 'display_data'
            del output['execution_count']
        data = output.get('data', {})
        if 'text/html' in data: data['text/html'] = without_again(''.join(data['text/html']), sheets)
        if 'image/png' in data: data['image/png'] = b64encode(smaller(b64decode(data['image/png']))).decode()
    return tidy(json.dumps(notebook))

def without_again(html: str, sheets: set[str]) -> str:
    "HTML without the style sheets that the page has already, to which its own are added."
    for sheet in re.findall(r'<style\b.*?</style>', html, re.DOTALL):
        if sheet in sheets: html = html.replace(sheet, '')
        sheets.add(sheet)
    return html

def save(path: Path, only_tidy: bool, only_pictures: bool = False) -> str:
    "Run and tidy the notebook at `path`; what went wrong, or the empty string."
    problem = '' if only_tidy or only_pictures else run(path, ('lm',)*installed(source='package'), save=True)
    if problem: return problem
    file = ROOT/path
    if path.suffix == '.png':
        file.write_bytes(smaller(file.read_bytes()))
        return ''
    old = file.read_text(encoding='utf-8')
    new = tidy(old) if only_tidy else shortened(old)
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
