"""Record what the README shows: KeyDoor learned from the same warm start by several recipes and seeds, with intervals.

`make results` plays everything and writes assets/results/keydoor.json.xz and keydoor.png. Runs are kept in
runs/results/RECIPE-SEED: a second call goes on
where the first was killed, and a run of other settings is refused, not mixed in (remove its folder). `make results
ARGS="--quick"` takes the whole path
in a minute on a smaller house and writes beside its runs; its numbers mean nothing.
"""
import json
import shlex
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

from agentlab.bench import T_95
from notebooks import ROOT

ASSETS = ROOT/'assets'/'results'
CURVE = 'success', 'entropy'  # metrics that are kept for every update; the reward is the success
TESTS = 'test_greedy', 'test_sampled'
POINTS = 100                  # most points of a curve
COLORS = dict(gigpo='217,114,46', grpo='59,131,181')  # orange and blue: told apart with any colour vision
GREY = '#7d8288'

# of every picture: grey on nothing reads on light and dark
CLEAR = dict(width=980, paper_bgcolor='rgba(0,0,0,0)', plot_bgcolor='rgba(0,0,0,0)', font=dict(color=GREY, size=13))

def headed(**facts) -> dict:
    "A record: when, by which command and on what it was made, then what was found."
    from agentlab.bench import circumstances
    words = shlex.join(sys.argv[1:])
    return dict(schema_version=1) | circumstances('make results' + (f' ARGS="{words}"' if words else '')) | facts

def shade(name: str) -> str: return COLORS.get(name, '125,130,136')

def interval(values: list[float], most: float = None, least: float = 0.) -> dict:
    """Mean and 95 % t interval over seeds, its ends cut to `least` and `most`; one seed has no interval, so its ends
    are None. More seeds than T_95 knows get its last number, which is a little wide."""
    count, mean = len(values), sum(values)/len(values)
    found = dict(mean=round(mean, 5), low=None, high=None, lowest=min(values), seeds=count)
    if count == 1: return found
    half = T_95[min(count - 2, len(T_95) - 1)]*(sum((value - mean)**2 for value in values)/(count - 1)/count)**.5
    return found | dict(low=round(max(least, mean - half), 5),
        high=round(mean + half if most is None else min(most, mean + half), 5))

def intervals(found: list[dict], most: float = None, least: float = 0.) -> dict:
    "`interval` of every number that the seeds found, and what each of them found."
    return {what: interval(values, most, least) | dict(seeds_of=values) for what in found[0]
        for values in [[one[what] for one in found]]}

class Clock:
    "CPU seconds of a run in cpu.jsonl, one line an update; of an update that was made twice the last line counts."
    def __init__(self, folder: Path): self.path, self.last = folder/'cpu.jsonl', time.process_time()
    def __call__(self, row: dict) -> None:
        now = time.process_time()
        with open(self.path, 'a') as file:
            file.write(json.dumps(dict(step=row['step'], cpu=round(now - self.last, 3))) + '\n')
        self.last = now
        print(f"{self.path.parent.name} update {row['step']}: success {row['success']:.2f}, entropy "
            f"{row['entropy']:.2f}", flush=True)
    def total(self) -> float:
        rows = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith('}')]
        return round(sum({row['step']: row['cpu'] for row in rows}.values()), 1)

def place(asked) -> tuple:
    "The house, and a function that gives its warm-started policy anew: training changes the weights."
    from agentlab.env import KeyDoor
    from agentlab.policy import tiny_policy
    world = KeyDoor(size=2, closed=1) if asked.quick else KeyDoor()
    warm = dict(steps=20, pool=64) if asked.quick else {}
    return world, lambda **other: tiny_policy(world, progress=False, **warm, **other)

def one_run(world, make, name: str, seed: int, asked) -> dict:
    "Train (or finish, or only read) one run; what is kept of it."
    from agentlab.train import Run, load_recipe, train
    folder = asked.runs/f'{name}-{seed}'
    folder.mkdir(parents=True, exist_ok=True)
    done = len(Run(folder).rows())
    if done > asked.steps:
        raise ValueError(f'{folder} holds {done} updates, you asked for {asked.steps}. Remove the folder, or ask '
            f'for as many.')
    clock, recipe = Clock(folder), load_recipe(name, steps=asked.steps, seed=seed, test_tasks=asked.test_tasks)
    run = train(make(), world, recipe, folder, resume=True, on_row=clock, progress=False)
    tests, rows = run.tests(), run.rows()
    return dict(seed=seed, updates=len(rows), before={name: tests[0][name] for name in TESTS},
        after={name: tests[-1][name] for name in TESTS},
        curve=thinned(rows), cpu_seconds=clock.total(), seconds=round(sum(row['seconds'] for row in rows), 1))

def thinned(rows: list[dict]) -> dict:
    "The columns of a row log that are drawn: every n-th row, and the last."
    every = -(-len(rows)//POINTS)
    rows = [row for row in rows if row['step'] % every == 0 or row is rows[-1]]
    return {name: [row[name] if row[name] is None else round(row[name], 5) for row in rows]
        for name in ('step', *CURVE)}

def mean_curve(runs: list[dict]) -> dict:
    "Mean and interval over the seeds, update by update."
    found = dict(step=runs[0]['curve']['step'])
    for name in CURVE:
        over = [interval(list(values), most=1 if name == 'success' else None)
            for values in zip(*(run['curve'][name] for run in runs))]
        found[name] = {part: [point[part] for point in over] for part in ('mean', 'low', 'high')}
    return found

def one_recipe(world, make, name: str, asked) -> dict:
    "All seeds of a recipe."
    from agentlab.train import load_recipe
    runs = [one_run(world, make, name, seed, asked) for seed in asked.seeds]
    facts = load_recipe(name, steps=asked.steps, test_tasks=asked.test_tasks).facts()
    after = {test: interval([run['after'][test] for run in runs], most=1) for test in TESTS}
    return dict(facts={key: value for key, value in facts.items() if key != 'seed'}, after=after, runs=runs)

def before(world, make, asked) -> dict:
    "Success on the held-out houses of random weights and of the warm start, that is before any reinforcement learning."
    from agentlab.train import evaluate, load_recipe
    budget = {name: getattr(load_recipe(asked.recipes[0]), name) for name in ('max_turns', 'max_tokens')}
    policies = dict(untrained=make(warm=False), warm_start=make())
    return {name: dict(test_greedy=evaluate(policy, world, asked.test_tasks, **budget),
        test_sampled=evaluate(policy, world, asked.test_tasks, greedy=False, **budget))
        for name, policy in policies.items()}

def facts(world, make, asked) -> dict:
    "What was run, on what."
    from agentlab.train.trainer import env_facts
    policy = make()
    return headed(
        env=env_facts(world), policy=policy.name, parameters=policy.model.num_parameters(), steps=asked.steps,
        test_tasks=asked.test_tasks, seeds=asked.seeds,
        interval='mean over seeds and 95 % t interval, cut to 0..1 where it is a share',
        seconds='cpu_seconds: the whole run, both tests and every checkpoint included; seconds: wall time of '
        'its updates')

def bands(figure, record: dict, column: int, metric: str) -> None:
    "95 % interval over the seeds, behind everything else."
    for name, recipe in record['recipes'].items():
        curve = mean_curve(recipe['runs'])
        steps, part = curve['step'], curve[metric]
        if None in part['low']: continue
        figure.add_scatter(x=steps + steps[::-1], y=part['high'] + part['low'][::-1], fill='toself',
            fillcolor=f'rgba({shade(name)},.16)', line_width=0,
            hoverinfo='skip', showlegend=False, row=1, col=column)

def lines(figure, record: dict, column: int, metric: str) -> None:
    "A thin line for each seed, then the means on top."
    for name, recipe in record['recipes'].items():
        for run in recipe['runs']:
            figure.add_scatter(x=run['curve']['step'], y=run['curve'][metric],
                line=dict(color=f'rgba({shade(name)},.45)', width=1), mode='lines', showlegend=False,
                row=1, col=column)
    for name, recipe in record['recipes'].items():
        curve = mean_curve(recipe['runs'])
        figure.add_scatter(x=curve['step'], y=curve[metric]['mean'],
            line=dict(color=f'rgb({shade(name)})', width=3.5), name=name, mode='lines',
            showlegend=column == 1, row=1, col=column)

def draw(record: dict):
    """Success and entropy over updates: thin lines are seeds, thick ones their mean, the band its 95 % interval.
    Grey on nothing: it reads on light and dark."""
    from plotly.subplots import make_subplots
    figure = make_subplots(rows=1, cols=2, column_widths=[.62, .38], horizontal_spacing=.08,
        subplot_titles=['success of the training episodes', 'entropy, nats a token'])
    for column, metric in enumerate(('success', 'entropy'), 1):
        bands(figure, record, column, metric)
        lines(figure, record, column, metric)
    for name, tests in record['before'].items():
        figure.add_hline(y=tests['test_sampled'], line=dict(color=GREY, width=1.5, dash='dash'), row=1, col=1,
            annotation_text=name.replace('_', ' '), annotation_position='top right'
            if tests['test_sampled'] < .2 else 'bottom right')
    figure.update_xaxes(title='update', showgrid=False, zeroline=False)
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', zeroline=False)
    figure.update_yaxes(range=[-.03, 1.03], tickformat='.0%', row=1, col=1)
    figure.update_yaxes(rangemode='tozero', row=1, col=2)
    figure.update_annotations(font=dict(color=GREY, size=14))
    figure.update_layout(CLEAR, height=380, margin=dict(l=48, r=16, t=34, b=44),
        legend=dict(orientation='h', x=.02, xanchor='left', y=.2, yanchor='top', font_size=14))
    return figure

def keep_picture(figure, path: Path) -> None:
    "A figure as PNG with a palette, a quarter of the size."
    from save import smaller
    path.write_bytes(smaller(figure.to_image('png', scale=.85)))

def write(record: dict, folder: Path) -> None:
    "keydoor.json.xz and keydoor.png."
    from agentlab.bench import keep
    keep(record, folder, 'keydoor', packed=True)
    keep_picture(draw(record), folder/'keydoor.png')

def arguments():
    from agentlab.settings import defaults
    parser = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument('--recipes', nargs='+', default=['gigpo', 'grpo'],
        help='known names, or package.module:function')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2, 3, 4],
        help='one run of every recipe for each')
    parser.add_argument('--steps', type=int, default=defaults()['steps'], help='updates of a run')
    parser.add_argument('--test-tasks', type=int, default=512, help='held-out houses of the tests before and after')
    parser.add_argument('--quick', action='store_true',
        help='a 2x2 house and a warm start of seconds: only to see that it works')
    parser.add_argument('--runs', type=Path, help='folder of the run folders (runs/results, or runs/results-quick)')
    parser.add_argument('--out', type=Path, help='folder to write to (assets/results, or the folder of the runs)')
    asked = parser.parse_args()
    if not 1 <= len(set(asked.seeds)) == len(asked.seeds) <= len(T_95) + 1:
        parser.error(f'--seeds {asked.seeds}: give one to {len(T_95) + 1} different seeds')
    asked.runs = asked.runs or ROOT/'runs'/('results-quick' if asked.quick else 'results')
    asked.out = asked.out or (asked.runs if asked.quick else ASSETS)
    return asked

def say(name: str, after: dict) -> None:
    "One line a recipe."
    for test, found in after.items():
        ends = ('one seed' if found['low'] is None
            else f"95 % interval {found['low']:.1%} to {found['high']:.1%}, lowest {found['lowest']:.1%}")
        print(f"{name} {test.removeprefix('test_')}: {found['mean']:.1%}, {ends}")

def main() -> int:
    from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    asked = arguments()
    world, make = place(asked)
    try:
        record = facts(world, make, asked) | dict(before=before(world, make, asked), recipes={
            name: one_recipe(world, make, name, asked) for name in asked.recipes})
    except ValueError as why:  # other settings than the ones in the folders: nothing is written
        print(f'results: {why}', file=sys.stderr)
        return 1
    write(record, asked.out)
    for name, recipe in record['recipes'].items(): say(name, recipe['after'])
    print(f"{asked.out/'keydoor.json.xz'}, {asked.out/'keydoor.png'}")
    return 0

if __name__ == '__main__': sys.exit(main())
