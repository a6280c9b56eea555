"""Record whether what a system claims holds in small: its arms and a control at an equal budget, several seeds.

    python tools/claims.py                    the claims, and how many of their rows there are
    python tools/claims.py score              plays the rows that are missing, seed by seed over all arms
    python tools/claims.py score rise --seeds 0 1 --arms score plain

`make results` makes all of them after the other parts. A claim is a file of tools/claims/ that names a `CLAIM`; it
says what is compared, by which measure and from which margin on before anything is played. A row is an arm and a seed;
it stands in assets/results/claims.json.xz, which holds the records of all claims, as soon as it is made, so that any
other call goes on from there; `--join FILE` adds the rows of such a file from another machine. Rows of other settings
are never mixed in: the call is refused, and says so. What all records say together stands, as text, in
assets/replication.csv.xz.
"""
import importlib.util
import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from notebooks import ROOT

FOLDER = Path(__file__).resolve().parent/'claims'
OUT, SHELF = ROOT/'assets'/'results', 'claims'
HOLDS, FAILS, OPEN = 'holds here', 'does not hold here', 'not decided'

@dataclass(frozen=True)
class Claim:
    "What is compared; `row(arm, seed)` plays one of them and returns numbers."
    key: str       # of assets/papers.csv, with -real for the real model; or see `of`
    says: str      # the claim of the paper, one sentence
    row: Callable  # (arm, seed) -> {measure: number, ...}
    arms: tuple    # names; the first one is the system
    control: str   # the arm that the first one is compared with
    measure: str   # of the numbers of a row: more is better
    margin: float  # the smallest difference that would count, said before anything is played
    budget: str    # what is equal in all arms
    world: str
    model: str = 'tiny'
    seeds: tuple = (0, 1, 2, 3, 4)
    settings: dict = field(default_factory=dict)  # what else a row depends on: a record of others is refused
    of: str = ''  # key of the system in assets/papers.csv, where this is a second claim of it

    def facts(self) -> dict:
        "What a record must agree with to be gone on with."
        names = 'key', 'says', 'arms', 'control', 'measure', 'margin', 'budget', 'world', 'model', 'settings'
        return json.loads(json.dumps({name: getattr(self, name) for name in names}))

def differences(rows: list[dict], arm: str, control: str, measure: str) -> list[float]:
    "Arm minus control on the seeds that both have played."
    found = {(row['arm'], row['seed']): row[measure] for row in rows}
    return [found[arm, seed] - found[control, seed] for one, seed in sorted(found) if one == arm
        and (control, seed) in found]

def verdict(rows: list[dict], claim: dict, least: int = 5) -> dict:
    """The difference over the seeds with its 95 % t interval, and what it says: `holds here` where the interval is
    above 0, `does not hold here` where it is below the margin, else `not decided`; so too with too few seeds."""
    from results import interval
    found = differences(rows, claim['arms'][0], claim['control'], claim['measure'])
    least = 3 if claim['model'] != 'tiny' else least
    if len(found) < least: return dict(verdict=OPEN, seeds=len(found))
    ends = interval(found, least=-float('inf'))
    word = HOLDS if ends['low'] > 0 else FAILS if ends['high'] < claim['margin'] else OPEN
    return dict(verdict=word, seeds=len(found), difference={name: ends[name] for name in ('mean', 'low', 'high')})

def tabled(rows: list[dict]) -> dict:
    "Rows as a record keeps them: column by column, which packs better; None where a row has no such value."
    names = dict.fromkeys(name for row in rows for name in row)
    return dict(columns={name: [row.get(name) for row in rows] for name in names})

def opened(record: dict) -> dict:
    "A record with a dict for every row."
    if 'columns' not in record: return record
    columns = record.pop('columns')
    some = lambda row: {name: value for name, value in zip(columns, row) if value is not None}
    return record | dict(rows=list(map(some, zip(*columns.values()))))

def record_of(key: str, folder: Path = OUT) -> dict:
    "What is recorded of a claim, a dict for every row; empty where nothing is."
    from agentlab.bench import kept
    return opened(kept(folder, SHELF).get(key, {}))

def recorded(name: str, folder: Path = OUT) -> dict:
    "The same of a record that has a file of its own, as that of tools/ahead.py."
    from agentlab.bench import kept
    return opened(kept(folder, name))

def measured(key: str, arm: str, what: str) -> list:
    "What every recorded seed of an arm has of it, in the order of the seeds."
    return [row[what] for row in record_of(key)['rows'] if row['arm'] == arm]

def means(key: str, *what: str, digits: int = 3):
    "A table: a row for every arm, mean over its seeds."
    import pandas as pd
    mean = lambda found: sum(found)/len(found)
    return pd.DataFrame({arm: {name: mean(measured(key, arm, name)) for name in what}
        for arm in record_of(key)['arms']}).T.round(digits)

def told(key: str) -> str:
    "The verdict in words: the first arm less its control, with the interval."
    record = record_of(key)
    ends = record['difference']
    return (f"{record['verdict']}: {record['measure']} of {record['arms'][0]!r} less {record['control']!r} "
        f"{ends['mean']:+.3f} [{ends['low']:+.3f}, {ends['high']:+.3f}]")

def known(claim: Claim, folder: Path = OUT) -> list[dict]:
    "The rows that are recorded; a record of something else is refused."
    record = record_of(claim.key, folder)
    if not record: return []
    other = [name for name, fact in claim.facts().items() if record.get(name) != fact]
    if other:
        raise ValueError(f'the record of {claim.key} in {folder/SHELF}.json.xz was made with another '
            f'{", ".join(other)}: its rows cannot be compared with new ones. Give the claim another key, or take back '
            f'the change.')
    return record['rows']

def written(claim: Claim, rows: list[dict], folder: Path = OUT) -> dict:
    "The record with these rows and what they say."
    from agentlab.bench import circumstances, keep, kept
    order = {arm: at for at, arm in enumerate(claim.arms)}
    rows = sorted(rows, key=lambda row: (row['seed'], order[row['arm']]))
    record = (circumstances(f'python tools/claims.py {claim.key}') | claim.facts() | verdict(rows, claim.facts())
        | tabled(rows))
    keep(dict(sorted((kept(folder, SHELF) | {claim.key: record}).items())), folder, SHELF, packed=True)
    return record | dict(rows=rows)

def added(claim: Claim, new: list[dict], folder: Path = OUT) -> dict:
    "The record with these rows beside those it has, one process at a time; an arm and a seed stays what it was."
    from filelock import FileLock
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder/f'.{SHELF}.lock'):
        rows = known(claim, folder)
        there = {(row['arm'], row['seed']) for row in rows}
        return written(claim, rows + [row for row in new if (row['arm'], row['seed']) not in there], folder)

def join(path: Path, folder: Path = OUT) -> list[str]:
    "Add the rows of another file of records; the claims it has."
    from agentlab.bench import kept
    theirs, there = kept(path.parent, path.name.split('.')[0]), claims()
    for key in theirs.keys() & there.keys(): added(there[key], known(there[key], path.parent), folder)
    return sorted(theirs.keys() & there.keys())

def play(claim: Claim, arms, seeds, folder: Path = OUT) -> dict:
    "Make the rows that are missing, each kept at once."
    rows = known(claim, folder)
    for seed in seeds:
        for arm in arms:
            if any((row['arm'], row['seed']) == (arm, seed) for row in rows): continue
            began = time.process_time()
            row = dict(arm=arm, seed=seed) | claim.row(arm, seed)
            row |= dict(cpu_seconds=round(time.process_time() - began, 1))
            print(f'{claim.key} {row}', flush=True)
            rows = added(claim, [row], folder)['rows']
    return added(claim, [], folder) if rows else {}

def table(*keys: str):
    "What is recorded of these claims, a row an arm: mean of the measure, seeds, and what the comparison says."
    import pandas as pd
    rows = []
    for key in keys:
        record = record_of(key) or dict(arms=['-'], rows=[])
        ends, of = record.get('difference', {}), {arm: [] for arm in record['arms']}
        for row in record['rows']: of[row['arm']].append(row[record['measure']])
        for arm, found in of.items():
            first, shown = arm == record['arms'][0], '{mean:+.3f} [{low:+.3f}, {high:+.3f}]'
            rows.append(dict(claim=key if first else '', arm=arm, measure=record.get('measure', ''),
                mean=f'{sum(found)/len(found):.3f}' if found else '', seeds=len(found),
                over=record.get('control', '') if first else '',
                difference=shown.format(**ends) if first and ends else '',
                verdict=record.get('verdict', 'not recorded yet') if first else ''))
    return pd.DataFrame(rows).set_index('claim')

def figure_of(key: str, at: dict, x: str, join: bool = True):
    """Of a recorded claim, a plotly figure: a line an arm, `at` its points in order, {where on the x axis: measure}. A
    name in place of a number is a measure too: its mean over the seeds. Bars are 95 % t intervals over the seeds."""
    import plotly.graph_objects as go

    from agentlab.view.web import COLOURS, LOOK
    from results import interval
    record, figure = record_of(key), go.Figure()
    for arm, color in zip(record['arms'], COLOURS*len(record['arms'])):
        rows = [row for row in record['rows'] if row['arm'] == arm]
        mean = lambda where: (interval([row[where] for row in rows])['mean'] if isinstance(where, str) else where)
        ends = [interval([row[measure] for row in rows]) for measure in at.values()]
        figure.add_scatter(x=[mean(where) for where in at], y=[one['mean'] for one in ends], name=arm,
            mode='lines+markers' if join else 'markers', line_color=color, marker_size=8,
            error_y=dict(array=[one['high'] - one['mean'] for one in ends], symmetric=False, thickness=1,
            arrayminus=[one['mean'] - one['low'] for one in ends]))
    figure.update_layout(template=LOOK, width=640, height=320, margin=dict(l=50, r=20, t=20, b=45),
        xaxis_title=x, yaxis_title='success', yaxis_rangemode='tozero',
        legend=dict(orientation='h', y=1, yanchor='bottom'))
    return figure

def load(path: Path) -> Claim:
    "The `CLAIM` of a file; the file may import its neighbours."
    if str(FOLDER) not in sys.path: sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f'claim_{path.stem}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CLAIM

def claims() -> dict:
    "Every claim by its key; a file whose name begins with an underscore is shared by others."
    found = [load(path) for path in sorted(FOLDER.glob('[!_]*.py'))]
    return {claim.key: claim for claim in found}

def main() -> int:
    there = claims()
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('keys', nargs='*', help=f'of {", ".join(there)}; without one: how far each is')
    parser.add_argument('--seeds', nargs='+', type=int, help='of the seeds of a claim')
    parser.add_argument('--arms', nargs='+', help='of its arms')
    parser.add_argument('--all', action='store_true', help='every claim')
    parser.add_argument('--join', type=Path, metavar='FILE', help='a claims.json.xz with more rows')
    given = parser.parse_args()
    if given.join: print('joined:', *join(given.join))
    unknown = [key for key in given.keys if key not in there]
    if unknown: parser.error(f'{", ".join(unknown)}: not one of {", ".join(there)}')
    for key in there if given.all or not given.keys else given.keys:
        claim = there[key]
        if given.all or given.keys: play(claim, given.arms or claim.arms, given.seeds or claim.seeds)
        rows = known(claim)
        said = verdict(rows, claim.facts())
        print(f'{key}: {len(rows)} of {len(claim.arms)*len(claim.seeds)} rows, {said["verdict"]} '
            f'{said.get("difference", "")}')
    return 0

if __name__ == '__main__': sys.exit(main())
