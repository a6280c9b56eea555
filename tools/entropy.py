"""Record what entropy control and adaptive rollouts do: environments x recipes x seeds, all with the same number of
sampled tokens.

`make results` plays everything (after tools/results.py and tools/grid.py) and writes assets/results/entropy.json and
entropy.png. Each run is kept in
runs/entropy/ENV-RECIPE-SEED: a second call reads what is finished and goes on where the first was killed. A run ends
with the update in which its
sampled tokens reach the budget; tokens that a branch copies were sampled once and count once.
"""
import sys
from itertools import product
from pathlib import Path

from grid import TESTS, arguments, before, cpu_since, found_in, play, say, start, tested
from results import CLEAR, headed, interval, keep_picture

ENVS = dict(hopsearch=dict(max_tokens=8), python_tool=dict(max_tokens=24))  # environment -> fields of every recipe
RECIPES = 'grpo', 'clip_higher', 'clip_cov', 'epo', 'arpo', 'aepo'
POINTS = 20  # of a curve, at equal shares of the budget

class Budget:
    "Ends a run after the update in which the sampled tokens of its rows reach `most`."
    def __init__(self, most: int, rows: list[dict]): self.most, self.spent = most, sum(row['sampled'] for row in rows)
    def add(self, row: dict) -> None: self.spent += row['sampled']
    def over(self) -> bool: return self.spent >= self.most

def one_run(env: str, name: str, seed: int, tokens: int, tasks: int, folder: Path) -> dict:
    "Train (or finish) one run and test it."
    from agentlab.train import Run, load_recipe, train
    place = folder/f'{env}-{name}-{seed}'
    def make(began):
        world, policy = start(env)
        recipe = load_recipe(name, steps=1000, seed=seed, test_tasks=0, checkpoint_every=10, **ENVS[env])
        budget = Budget(tokens, Run(place).rows() if (place/'run.json').exists() else [])
        rows = train(policy, world, recipe, place, resume=True, on_row=budget.add, should_stop=budget.over,
            progress=False).rows()
        learned = dict(curves=curves(rows, tokens), updates=len(rows), sampled=budget.spent,
            skipped=sum(bool(row['skipped']) for row in rows))
        return learned | cpu_since(began) | tested(policy, world, tasks, **ENVS[env])
    return found_in(place, dict(env=env, recipe=name, seed=seed, budget=tokens, tasks=tasks), make)

def curves(rows: list[dict], tokens: int) -> dict:
    "Success and entropy at equal shares of the budget: the last update that had begun by then."
    spent, last, found = 0, 0, dict(success=[], entropy=[])
    begun = []
    for row in rows:
        begun.append(spent)
        spent += row['sampled']
    for point in range(POINTS):
        while last + 1 < len(rows) and begun[last + 1] <= tokens*point/(POINTS - 1): last += 1
        for metric, values in found.items(): values.append(round(rows[last][metric], 4))
    return found

def summary(results: list[dict]) -> dict:
    "Intervals over the seeds of one environment and recipe, and the mean curves."
    mean = lambda values: round(sum(values)/len(values), 4)
    curve = {metric: [mean(point) for point in zip(*(result['curves'][metric] for result in results))]
        for metric in ('success', 'entropy')}
    last = interval([result['curves']['entropy'][-1] for result in results])
    return {test: interval([result[test] for result in results], most=1) for test in TESTS} | dict(
        entropy_last=last, curve=curve,
        **{name: mean([result[name] for result in results]) for name in ('updates', 'sampled', 'cpu_seconds')})

def record(asked) -> dict:
    # also fills the cache of warm starts, before several processes want it
    starts = {env: before(env, asked.test_tasks, **ENVS[env]) for env in asked.envs}
    plan = [(*one, asked.tokens, asked.test_tasks, asked.runs)
        for one in product(asked.envs, asked.recipes, asked.seeds)]
    found = play(asked, plan, one_run)
    cells = {env: {name: summary([found[env, name, seed] for seed in asked.seeds]) for name in asked.recipes}
        for env in asked.envs}
    return headed(tokens=asked.tokens, test_tasks=asked.test_tasks, seeds=asked.seeds, before=starts, cells=cells)

STYLES = dict(zip(RECIPES, (('#7d8288', 'solid'), ('#0072B2', 'dash'), ('#56B4E9', 'dot'), ('#009E73', 'dashdot'),
    ('#D55E00', 'solid'), ('#CC79A7', 'longdash'))))

def draw(record: dict):
    "Success (top) and entropy (bottom) over sampled tokens, means over the seeds; one column per environment."
    from plotly.subplots import make_subplots
    envs = list(record['cells'])
    figure = make_subplots(2, len(envs), shared_xaxes=True, subplot_titles=envs, vertical_spacing=.06,
        horizontal_spacing=.07)
    for column, env in enumerate(envs, 1):
        for row, metric in enumerate(('success', 'entropy'), 1):
            for name, cell in record['cells'][env].items():
                values, (color, dash) = cell['curve'][metric], STYLES.get(name, ('#000000', 'solid'))
                figure.add_scatter(x=[record['tokens']*i/(len(values) - 1)/1000 for i in range(len(values))], y=values,
                    name=name, line=dict(color=color, dash=dash, width=2),
                    showlegend=(row, column) == (1, 1), row=row, col=column)
        figure.update_xaxes(title_text='sampled tokens, thousands', row=2, col=column)
    figure.update_yaxes(tickformat='.0%', row=1)
    figure.update_yaxes(title_text='success', row=1, col=1)
    figure.update_yaxes(title_text='entropy, nats a token', row=2, col=1)
    figure.update_xaxes(gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', rangemode='tozero')
    figure.update_layout(CLEAR, height=560, margin=dict(l=10, r=16, t=34, b=30))
    return figure

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, ENVS, RECIPES, 'entropy', tokens=(40_000, 'sampled tokens of a run'))
    found = record(asked)
    keep(found, asked.out, 'entropy', packed=True)
    keep_picture(draw(found), asked.out/'entropy.png')
    say(found, lambda cell: f", entropy at the end {cell['entropy_last']['mean']:.2f}, {cell['updates']:.0f} updates")
    return 0

if __name__ == '__main__': sys.exit(main())
