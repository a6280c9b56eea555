"""The replication table: what the field claims, and what this lab found, a row a claim.

    python tools/replication.py                  writes the table from the records
    python tools/replication.py --again rover --seeds 0 1   plays rows of a claim anew, beside what is recorded

The table is assets/replication.csv.xz, a CSV file that is packed: `pd.read_csv` reads it as it is.
A row is of a claim (a file of tools/claims/), or of an arm and its control in the record of a grid, or it needs more
than this lab; the last two kinds stand in tools/replication_rows.csv. Nothing is typed in twice: a difference, its
interval and its verdict are derived from the records, and `make check` refuses a table that is not the derived one.
"""
import csv
import sys
from argparse import ArgumentParser
from functools import reduce
from io import StringIO
from operator import getitem

from atlas import PAPERS, table
from claims import FAILS, HOLDS, OPEN, claims, play, record_of
from notebooks import ROOT, pack, unpacked
from results import T_95, interval

TABLE, ROWS = 'assets/replication.csv.xz', 'tools/replication_rows.csv'
MORE = 'needs more than this lab'
VERDICTS = HOLDS, FAILS, OPEN, MORE
COLUMNS = ('key', 'row', 'claim', 'arm', 'control', 'measure', 'world', 'model', 'seeds', 'difference', 'low', 'high',
    'interval', 'margin', 'verdict', 'date', 'command')
LEAST = dict(tiny=5)  # seeds of a verdict; the real model on a CPU has three
REAL_LEAST = 3
AGAIN = ROOT/'runs'/'replication'

def said(difference: dict, seeds: int, margin: float, model: str = 'tiny') -> str:
    """What an interval says: above zero, it holds; below zero, or wholly inside the margin, it does not."""
    if seeds < LEAST.get(model, REAL_LEAST) or difference['low'] is None: return OPEN
    if difference['low'] > 0: return HOLDS
    return FAILS if difference['high'] < max(margin, 0.) else OPEN

def half_width(part: dict) -> float:
    "Of a mean and its interval, whose ends may have been cut to what is possible, the half that was not cut."
    return max(part['mean'] - part['low'], part['high'] - part['mean'])

def welch(arm: dict, control: dict) -> dict:
    """The difference of two means with its 95 % interval, from their own intervals: Welch's t, for arms of whose seeds
    only mean and interval are recorded."""
    parts = [(half_width(one)/T_95[one['seeds'] - 2])**2 for one in (arm, control)]
    counts = [one['seeds'] for one in (arm, control)]
    spread = sum(parts)
    free = spread**2/sum(part**2/(count - 1) for part, count in zip(parts, counts)) if spread else min(counts) - 1
    half = T_95[min(max(int(free), 1), len(T_95)) - 1]*spread**.5
    mean = arm['mean'] - control['mean']
    return dict(mean=mean, low=mean - half, high=mean + half)

def paired(arm: list, control: list) -> dict:
    "The mean of the differences of seeds that both arms have, with its 95 % t interval."
    return interval([a - c for a, c in zip(arm, control)], least=-float('inf'))

def seeds_of(cell: dict, measure: str):
    "What every seed found, where the record has it."
    return cell[measure].get('seeds_of') or cell.get('seeds_of', {}).get(measure)

def of_claim(key: str) -> dict:
    "The row of a claim that is recorded."
    record = record_of(key)
    found = record.get('difference', dict(mean=None, low=None, high=None))
    return dict(key=record.get('of') or key, row=key, claim=record['says'], arm=record['arms'][0],
        control=record['control'], measure=record['measure'], world=record['world'], model=record['model'],
        seeds=record['seeds'], difference=found['mean'], low=found['low'], high=found['high'],
        interval='paired', margin=record['margin'], verdict=record['verdict'], date=record['date'],
        command=record['command'])

def of_grid(asked: dict) -> dict:
    """The row of an arm and its control in the record of a grid. No margin was written down before these runs, so it
    is 0: such a row fails only where its interval is below zero."""
    from agentlab.bench import kept
    file, _, place = asked['record'].partition('#')
    path = ROOT/'assets'/'results'/file
    record = kept(path.parent, path.name.split('.')[0])
    arm, control = (reduce(getitem, place.format(one).split('/'), record) for one in (asked['arm'], asked['control']))
    measure, sign = asked['measure'], -1 if asked['better'] == 'less' else 1
    each = [seeds_of(cell, measure) for cell in (arm, control)]
    pairs = all(each) and len(each[0]) == len(each[1])
    found = paired(*each) if pairs else welch(arm[measure], control[measure])
    low, high = sorted(sign*found[end] for end in ('low', 'high'))
    ends = dict(mean=round(sign*found['mean'], 5), low=round(low, 5), high=round(high, 5))
    seeds = min(cell[measure]['seeds'] for cell in (arm, control))
    return dict(key=asked['key'], row=asked['row'], claim=asked['claim'], arm=asked['arm'], control=asked['control'],
        measure=measure + (' (less is better)' if sign < 0 else ''), world=asked['world'], model=asked['model'],
        seeds=seeds, difference=ends['mean'], low=ends['low'], high=ends['high'],
        interval='paired' if pairs else 'Welch', margin=0, verdict=said(ends, seeds, 0., asked['model']),
        date=record['date'], command=asked['command'])

def of_more(asked: dict) -> dict:
    "The row of a claim that is about a size which this lab does not have; its mechanism can be run by the command."
    return dict.fromkeys(COLUMNS, '') | {name: asked[name] for name in ('key', 'row', 'claim', 'measure', 'command')
        } | dict(verdict=MORE)

def derived() -> list[dict]:
    "Every row, in the order of the systems' keys; a claim that is not recorded yet has none."
    system = {key: claim.of or key.removesuffix('-real') for key, claim in claims().items()}
    rows = [of_claim(key) | dict(key=of) for key, of in system.items() if record_of(key)]
    rows += [of_grid(asked) if asked['record'] else of_more(asked) for asked in table(ROWS)]
    return sorted(rows, key=lambda row: (row['verdict'] == MORE, row['key'], row['row']))

def text(rows: list[dict]) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()

def faults() -> list[str]:
    "What is wrong with the table in the repository."
    path, remedy = ROOT/TABLE, 'run `python tools/replication.py`'
    rows = derived()
    known = {row['key'] for row in table(PAPERS)}
    wrong = [f'{ROWS}: {row["key"]} is no key of assets/papers.csv' for row in rows if row['key'] not in known]
    names = [row['row'] for row in rows]
    wrong += [f'{name}: a second row of this name; give it another one in {ROWS}'
        for name in sorted({name for name in names if names.count(name) > 1})]
    if not path.is_file() or unpacked(path) != text(rows): wrong.append(f'{TABLE} is old: {remedy}')
    return wrong

def again(key: str, seeds: list[int]) -> list[str]:
    "Play rows of a claim anew, in runs/replication/, and say each difference beside the recorded one."
    there = claims()
    if key not in there: raise ValueError(f'--again {key!r}: not one of the claims {", ".join(there)}')
    claim = there[key]
    strange = sorted(set(seeds) - set(claim.seeds))
    if strange: raise ValueError(f'--seeds {strange}: {key} has the seeds {list(claim.seeds)}')
    arms = claim.arms[0], claim.control
    new, old = play(claim, arms, seeds, AGAIN)['rows'], record_of(key).get('rows', [])
    lines = []
    for seed in seeds:
        one, other = (gap(rows, seed, claim) for rows in (new, old))
        lines.append(f'{key}, seed {seed}, {claim.measure}: {one:+.4f} now, '
            + ('not recorded' if other is None else f'{other:+.4f} recorded'))
    return lines

def gap(rows: list[dict], seed: int, claim):
    "First arm minus control on a seed; None where one of them is missing."
    found = {row['arm']: row[claim.measure] for row in rows if row['seed'] == seed}
    if not {claim.arms[0], claim.control} <= set(found): return None
    return found[claim.arms[0]] - found[claim.control]

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--again', metavar='CLAIM', help='play rows of this claim anew')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0], help='of --again (default: 0)')
    given = parser.parse_args()
    if given.again:
        try: print(*again(given.again, given.seeds), sep='\n')
        except ValueError as error: parser.error(str(error))
        return 0
    rows = derived()
    pack(ROOT/TABLE, text(rows))
    for word in VERDICTS: print(f'{sum(row["verdict"] == word for row in rows):3} {word}')
    return 0

if __name__ == '__main__': sys.exit(main())
