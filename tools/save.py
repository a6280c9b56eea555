"""Run notebooks and keep their outputs, then tidy the files.

`make save` runs all of them; `make save NB=nbs/00_groups.ipynb` one; `python tools/save.py --tidy` runs none and only tidies.
A notebook whose run fails keeps its old outputs. Outputs are figures as PNG beside the live plotly data, so Chromium must be installed.
"""
from argparse import ArgumentParser
from pathlib import Path
import sys

from notebooks import ROOT, notebooks, run, tidy


def save(path: Path, only_tidy: bool) -> str:
    "Run and tidy the notebook at `path`; what went wrong, or the empty string."
    problem = '' if only_tidy else run(path, save=True)
    if problem: return problem
    file = ROOT/path
    old = file.read_text(encoding='utf-8')
    new = tidy(old)
    if new != old: file.write_text(new, encoding='utf-8')
    return ''


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('notebook', nargs='*', type=Path, help='default: every notebook')
    parser.add_argument('--tidy', action='store_true', help='leave the outputs, only tidy the file')
    asked = parser.parse_args()
    failed = 0
    for path in [path.resolve().relative_to(ROOT) for path in asked.notebook] or notebooks():
        problem = save(path, asked.tidy)
        print(f"{'FAILED' if problem else 'tidied' if asked.tidy else 'saved'} {path}\n{problem}".rstrip(), flush=True)
        failed += bool(problem)
    return 1 if failed else 0


if __name__ == '__main__': sys.exit(main())
