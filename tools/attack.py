"""Attack agentlab by class, as much as `make attack` has time for, and write down what survived.

    python tools/attack.py                          every class; a table, assets/attack/attack.json, exit status 1
    unless all survived
    python tools/attack.py kills commands           some classes; the others keep the rows that they have in the record
    python tools/attack.py --every 10 --out /tmp    every tenth try

A class is a row of the record, written as soon as it is done. Hostile environments (here and isolated), sandboxed
programs (both sandboxes, where
bubblewrap works), damaged run folders, wrong command lines, kills (six recipes, replay, self-play, prompts, a sweep),
dumps of others, pages in a browser.
"""
import contextlib
import json
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT/'tests')]

@contextlib.contextmanager
def chromium():
    "A headless browser."
    from playwright.sync_api import sync_playwright
    from lab import CHROMIUM
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-dev-shm-usage'])
        yield browser
        browser.close()

def attempt(function) -> str:
    "'' if the try was survived, else why not."
    try: function()
    except Exception: return traceback.format_exc()[-1500:]
    return ''

def attacked(name: str, every: int) -> dict:
    "All tries of a class: how many, how many survived, and why the others did not."
    from attacks import CLASSES
    make, least = CLASSES[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        tries = make(Path(folder), held.enter_context(chromium())) if name == 'pages' else make(Path(folder))
        if len(tries) < least: sys.exit(f'{name}: {len(tries)} tries, {least} are promised')
        began, lost = time.monotonic(), {}
        for number, (title, function) in enumerate(tries[::every]):
            why = attempt(function)
            if why: lost[title] = why
            if why: print(f'{name}: {title}\n{why}', file=sys.stderr, flush=True)
    return dict(tries=number + 1, survived=number + 1 - len(lost), lost=list(lost),
        seconds=round(time.monotonic() - began))

def table(rows: dict) -> str:
    lines = [f"| {name} | {row['tries']} | {row['survived']} | {row['seconds']} |" for name, row in rows.items()]
    return '\n'.join(['| class | tries | survived | seconds |', '|---|---|---|---|', *lines])

def main() -> int:
    from attacks import CLASSES
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('classes', nargs='*', help=f'{", ".join(CLASSES)} (default: all)')
    parser.add_argument('--every', type=int, default=1, help='every how manieth try')
    parser.add_argument('--out', default=str(ROOT/'assets'/'attack'))
    asked = parser.parse_args()
    unknown = set(asked.classes) - set(CLASSES)
    if unknown or asked.every < 1: parser.error(f'known are {", ".join(CLASSES)}; --every is a number from 1')
    from agentlab.bench import circumstances, keep
    path = Path(asked.out)/'attack.json'
    for name in asked.classes or CLASSES:
        row = attacked(name, asked.every) | circumstances(f'python tools/attack.py {name}'
            + (f' --every {asked.every}' if asked.every > 1 else ''))
        # read late: another process may have made rows meanwhile
        rows = json.loads(path.read_text())['rows'] if path.exists() else {}
        rows = {kind: (rows | {name: row})[kind] for kind in CLASSES if kind in rows or kind == name}
        keep(dict(schema_version=1, rows=rows), asked.out, 'attack')
        print(table({name: row}).splitlines()[-1], flush=True)
    rows = json.loads(path.read_text())['rows']
    print('\n' + table(rows))
    return int(any(row['survived'] != row['tries'] for row in rows.values()))

if __name__ == '__main__': sys.exit(main())
