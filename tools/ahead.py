"""Record what playing ahead of learning is worth, and what it costs: clock, success against lag, throughput, kills.

    python tools/ahead.py                          how many rows there are of each part
    python tools/ahead.py lag clock --seeds 0 1    plays the rows of these parts that are missing
    python tools/ahead.py scale kills

A row stands in assets/results/ahead.json.xz as soon as it is made. `lag`: KeyDoor at equal episodes, weights 0 to 8
updates old, four losses (4: `python tools/claims.py asearcher`). `clock`: the same house behind a tool whose answers
take 10 to 500 ms (log-normal, spread 1, the same waits in every arm), synchronous and ahead. `scale`: episodes per
second against processes of Ray. `kills`: a run whose trainer and workers are killed (-9) at random moments must end
with the weights of one that nobody touched.
"""
import random
import subprocess
import sys
import time
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agentlab.env import Wrapper, load_env
from agentlab.episodes import derive
from claims import recorded
from notebooks import ROOT

OUT, SEEDS = ROOT/'assets'/'results', (0, 1, 2, 3, 4)
LAGS, LOSSES = (1, 2, 8), ('coupled', 'decoupled', 'truncated', 'none')
WAITS, LANES = (10, 50, 200, 500), 16
CLOCKED = dict(synchronous=None, lag1=(1, False), lag2=(2, False), lag4=(4, False), free4=(4, True))
SIZES = dict(steps=20, groups=4, group_size=8, test_tasks=0)
KILLS = 30

class Slow(Wrapper):
    "A house whose door answers when it likes: so many ms in the median, log-normal, drawn from the game's seed."
    def __init__(self, wait: float, spread: float = 1.):
        super().__init__(load_env('keydoor'))
        self.wait, self.spread = wait, spread
    def reset(self, seed, task=None):
        self.draw = random.Random(derive(seed, 'wait'))
        return self.env.reset(seed, task)
    def step(self, action):
        time.sleep(self.wait/1000*self.draw.lognormvariate(0., self.spread))
        return self.env.step(action)

def trained(env, ahead, players, seed: int, out, resume=False, on_row=None, **changes):
    "A run from the usual start: the run, the policy, and the seconds that it took."
    from agentlab.policy import tiny_policy
    from agentlab.train import load_recipe, train
    policy = tiny_policy(load_env('keydoor'), progress=False)
    made = load_recipe('grpo', seed=seed, ahead=ahead, **SIZES | changes)
    start = time.monotonic()
    run = train(policy, env, made, out, players=players, resume=resume, on_row=on_row, progress=False)
    return run, policy, time.monotonic() - start

def clocked(wait: int, arm: str, seed: int) -> dict:
    "Seconds of twenty updates and success after them; the synchronous trainer waits for all its games at once."
    from functools import partial

    from agentlab.rollout import Ahead, here, play
    how, many = CLOCKED[arm], dict(rollout=partial(play, workers=SIZES['groups']*SIZES['group_size']))
    with TemporaryDirectory() as out:
        run, policy, seconds = trained(Slow(wait), Ahead(*how) if how else None, here(LANES) if how else None, seed,
            out, **many)
        rows = run.rows()
    return dict(success=held_out(policy, seed),
        seconds=round(seconds, 2), dropped=sum(row.get('dropped') or 0 for row in rows),
        episodes=sum(row['episodes'] for row in rows),
        lag=None if how is None else mean_lag(rows))

def held_out(policy, seed: int) -> float:
    "Share of 200 held-out houses that are solved, sampled as in training."
    from agentlab.train import evaluate
    return evaluate(policy, load_env('keydoor'), 200, greedy=False, seed=seed, max_tokens=8)

def mean_lag(rows: list[dict]) -> float: return round(sum(row['lag'] for row in rows)/len(rows), 3)

def losses():
    "What an arm does about old weights, as fields of a recipe."
    from agentlab.objective import clip, corrected, icepop, truncated
    return {'decoupled': dict(recompute_old=True, objective=corrected(clip, icepop, low=0., high=5.)),
        'coupled': {}, 'synchronous': {}, 'none': dict(recompute_old=True),
        'truncated': dict(recompute_old=True, objective=corrected(clip, truncated))}

def lagged(lag: int, loss: str, seed: int) -> dict:
    "Success at equal episodes, and how far the weights that played were behind."
    from agentlab.rollout import Ahead
    with TemporaryDirectory() as out:
        run, policy, _ = trained(load_env('keydoor'), Ahead(lag), None, seed, out, **losses()[loss])
        rows = run.rows()
    return dict(success=held_out(policy, seed), lag=mean_lag(rows))

def scaled(actors: int, wait: int) -> dict:
    "Episodes per second, after the first update, which waits for Ray to start."
    from agentlab.rollout import Ahead, on_actors
    stamps = []
    with TemporaryDirectory() as out:
        trained(Slow(wait), Ahead(4), on_actors(actors, 1), 0, out, on_row=lambda row: stamps.append(time.monotonic()),
            rollout_args=dict(workers=8), steps=12)
    spent = stamps[-4] - stamps[1]  # the ends apart: the first wait for workers, the last for nobody
    return dict(per_second=round((len(stamps) - 5)*SIZES['groups']*SIZES['group_size']/spent, 2))

def child(out: str):
    "The run that is killed: goes on with what is there, and says so when it has ended."
    from agentlab.rollout import Ahead, on_actors
    run, policy, _ = trained(Slow(5), Ahead(2), on_actors(2, 1), 0, out, resume=(Path(out)/'run.json').exists(),
        steps=40, checkpoint_every=1)
    (Path(out)/'ended').touch()

def workers(pid: int) -> list:
    "Processes of Ray's workers below a process."
    import psutil
    def plays(process) -> bool:
        try: return any('Actor' in x for x in process.cmdline())
        except psutil.Error: return False  # gone meanwhile
    try: return [process for process in psutil.Process(pid).children(recursive=True) if plays(process)]
    except psutil.NoSuchProcess: return []

def killed(seed: int) -> dict:
    "Runs until their end, trainer and workers killed in turn some seconds after they began, until there were KILLS."
    draw, kills, found = random.Random(seed), dict(trainer=0, worker=0), []
    while sum(kills.values()) < KILLS:
        with TemporaryDirectory() as out:
            while not (Path(out)/'ended').exists(): disturbed(out, draw, kills)
            found.append(compared(out))
    return kills | dict(runs=len(found), same_bits=all(one['same_bits'] for one in found),
        **{what: sum(one[what] for one in found) for what in ('lost', 'doubled')})

def disturbed(out: str, draw: random.Random, kills: dict):
    "One life of a trainer: its workers may be killed more than once, itself only once."
    import psutil
    process = subprocess.Popen([sys.executable, __file__, '--child', out], cwd=ROOT/'tools')
    while process.poll() is None:
        time.sleep(draw.uniform(.3, 5))
        there = workers(process.pid)
        if not there or process.poll() is not None or sum(kills.values()) >= KILLS: continue
        kind = 'worker' if kills['worker'] < kills['trainer'] else 'trainer'
        below = psutil.Process(process.pid).children(recursive=True)
        kills[kind] += 1
        if kind == 'worker': draw.choice(there).kill()
        else:
            process.kill()
            process.wait()
            for one in below:  # what it had started is nobody's
                with suppress(psutil.Error): one.kill()

def compared(out: str) -> dict:
    "Whether a run is, to the last bit, one that was left alone."
    import torch
    from agentlab.policy import Policy
    from agentlab.rollout import Ahead
    from agentlab.train import Run
    with TemporaryDirectory() as alone:
        trained(Slow(0), Ahead(2), None, 0, alone, steps=40, checkpoint_every=40)
        one, other = (dict(Policy.load(Path(x)/'policy').model.named_parameters()) for x in (out, alone))
        groups = [Run(x).episodes(step).episodes.group.unique().tolist() for x in (out, alone) for step in range(40)]
    return dict(same_bits=all(torch.equal(one[name], other[name]) for name in other), lost=len(
        set(range(160)) - {g for found in groups[:40] for g in found}),
        doubled=sum(map(len, groups[:40])) - len({g for found in groups[:40] for g in found}))

PARTS = dict(lag=(lagged, [(0, 'coupled'), *((lag, loss) for lag in LAGS for loss in LOSSES)], SEEDS),
    clock=(clocked, [(wait, arm) for wait in WAITS for arm in CLOCKED], SEEDS),
    scale=(scaled, [(actors, wait) for actors in (1, 2, 4) for wait in (0, 100)], None),
    kills=(killed, [(0,)], None))

def rows() -> dict:
    "What is recorded: 'part, ..., seed' -> row."
    return recorded('ahead', OUT).get('rows', {})

def of(part: str, *cell) -> list[dict]:
    "The recorded rows of a cell, in the order of the seeds."
    found, seeds = rows(), PARTS[part][2] or ('',)
    return [found[key] for seed in seeds if (key := named(part, cell, seed)) in found]

def named(part: str, cell: tuple, seed) -> str:
    return ', '.join(map(str, (part, *cell, *([] if seed in (None, '') else [seed]))))

def record(part: str, cell: tuple, seed) -> dict:
    "A row of the record, made where it is missing."
    from agentlab.bench import circumstances, keep
    key = named(part, cell, seed)
    if key in (found := rows()): return found[key]
    row = PARTS[part][0](*cell, *([] if seed is None else [seed]))
    print(key, row, flush=True)
    facts = circumstances('python tools/ahead.py lag clock scale kills') | dict(sizes=SIZES, lanes=LANES)
    keep(facts | dict(rows=rows() | {key: row}), OUT, 'ahead', packed=True)
    return row

def faster(wait: int, arm: str) -> dict:
    "How many times as many episodes an hour as the synchronous trainer has, and the difference in success."
    from results import interval
    pairs = list(zip(of('clock', wait, arm), of('clock', wait, 'synchronous')))
    return dict(times=interval([b['seconds']/a['seconds'] for a, b in pairs]),
        success=interval([a['success'] - b['success'] for a, b in pairs], least=-1.)) if pairs else {}

def clock_table():
    "A row for every tool and arm: seconds, times as fast, success."
    import pandas as pd
    def ends(e, form):
        return f"{e['mean']:{form}}" + (f" [{e['low']:{form}}, {e['high']:{form}}]" if e['seeds'] > 1 else '')
    rows = []
    for wait in WAITS:
        for arm in CLOCKED:
            found = of('clock', wait, arm)
            if not found: continue
            more, mean = faster(wait, arm), lambda what: sum(row[what] or 0 for row in found)/len(found)
            rows.append({'ms': wait, 'arm': arm, 'seconds': round(mean('seconds')),
                'times as fast': ends(more['times'], '.2f'),
                'success': round(mean('success'), 3), 'less synchronous': ends(more['success'], '+.2f'),
                'lag': round(mean('lag'), 2), 'dropped': mean('dropped'), 'seeds': len(found)})
    return pd.DataFrame(rows)

def at_lag(lag: int, loss: str) -> list[float]:
    "Success of every seed; lag 4 is a claim of its own, and lag 0 needs no loss for old weights."
    from claims import measured
    if lag == 4: return measured('asearcher', loss, 'success')
    return [row['success'] for row in of('lag', lag, loss if lag else 'coupled')]

COLORS = {'coupled': '#2f6db5', 'decoupled': '#d9822b', 'truncated': '#3a9b6b', 'none': '#8a8f96'}

def picture():
    "Success against lag, a line for each loss, with intervals over the seeds."
    from plotly.graph_objects import Figure
    from agentlab.view.web import LOOK
    from results import interval
    figure = Figure()
    for at, loss in enumerate(LOSSES):
        lags = [lag for lag in (0, 1, 2, 4, 8) if len(at_lag(lag, loss)) > 1]
        ends = [interval(at_lag(lag, loss), 1.) for lag in lags]
        error = dict(array=[e['high'] - e['mean'] for e in ends], arrayminus=[e['mean'] - e['low'] for e in ends],
            symmetric=False, thickness=1)
        places = [(0, 1, 2, 4, 8).index(lag) + .05*at for lag in lags]  # beside each other
        figure.add_scatter(x=places, y=[e['mean'] for e in ends], error_y=error, name=loss, mode='lines+markers',
            line=dict(color=COLORS[loss]))
    figure.update_xaxes(title='weights that played were so many updates old', tickvals=[0, 1, 2, 3, 4],
        ticktext=['0', '1', '2', '4', '8'])
    figure.update_yaxes(range=[-.02, 1], title='success, held out')
    return figure.update_layout(height=320, width=700, margin=dict(l=50, r=10, t=10, b=40), template=LOOK)

def main():
    import torch
    torch.set_num_threads(1)
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('parts', nargs='*', choices=[*PARTS, []])
    parser.add_argument('--seeds', nargs='*', type=int, default=SEEDS)
    parser.add_argument('--cells', nargs='*', default=(), help='only cells that begin with one of these, as 200')
    parser.add_argument('--child', default='')
    asked = parser.parse_args()
    if asked.child: return child(asked.child)
    if not asked.parts: print({part: sum(key.startswith(part) for key in rows()) for part in PARTS})
    for part in asked.parts:
        _, cells, seeds = PARTS[part]
        for seed in asked.seeds if seeds else [None]:
            for cell in cells:
                if not asked.cells or str(cell[0]) in asked.cells: record(part, cell, seed)

if __name__ == '__main__': main()
