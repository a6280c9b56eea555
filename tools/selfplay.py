"""Record what a tiny policy learns from nothing but games against itself: Kuhn poker, five seeds.

`make results` plays everything (after the other parts) and writes assets/results/selfplay.json and selfplay.png. Each run is kept in
runs/selfplay/GAME-RECIPE-SEED: a second call reads what is finished and goes on where the first was killed.

The policy begins by watching somebody who moves at random. What is deployed is the mean of its weights over the second half of the run: in a game
without a pure equilibrium the present weights go round the equilibrium, and their mean is nearer to it.
"""
from functools import partial
from pathlib import Path
import shlex
import sys

from grid import arguments, cpu_since, found_in, play
from results import ASSETS, interval

WARM = dict(kuhn=dict(steps=200, episodes=32, pool=512, lr=3e-3))
HIDDEN = dict(kuhn=32)
EVERY = 20                      # updates between two measurements


class Mean:
    "The mean of a policy's weights from some update on: the memory of a run, and what is deployed in the end."
    def __init__(self, policy, seed: int, begin: int):
        self.policy, self.begin, self.count, self.weights = policy, begin, 0, {}
    def read(self, batch, step: int): return batch
    def learn(self, row: dict) -> dict:
        from agentlab.selfplay.snapshots import learned
        if row['step'] < self.begin: return {}
        self.count += 1
        for name, x in learned(self.policy.model).items(): self.weights[name] = x if name not in self.weights else self.weights[name] + (x - self.weights[name])/self.count
        return {}
    def tensors(self) -> dict:
        import torch
        return self.weights | dict(count=torch.tensor(self.count))
    def restore(self, tensors: dict) -> None:
        self.count, self.weights = int(tensors['count']), {name: x.clone() for name, x in tensors.items() if name != 'count'}
    def deployed(self):
        from agentlab.selfplay import Snapshot
        return Snapshot(self.policy, self.weights or None, 'mean of weights')


def start(game: str, seed: int) -> tuple:
    "The game, and a policy that has watched somebody who knows the rules and nothing else."
    import torch
    from agentlab.env import load_env
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model, warm_start
    torch.set_num_threads(1)
    world = load_env(game)
    tokenizer = word_tokenizer(world.vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 160, hidden=HIDDEN[game], seed=seed), tokenizer, name=f'{game}-{seed}')
    return world, warm_start(policy, world, seed=seed, **WARM[game])


def falling(step: int, steps: int, lr: float, kl: float, floor: float) -> dict:
    "Learning rate to a tenth, weight of the KL to its floor, both in a line."
    return dict(lr=lr*(1 - .9*step/steps), kl_coef=max(kl*(1 - step/steps), floor))


GAMES = dict(   # updates, groups and games of an update, learning rate, KL to the beginning: first and last weight
    kuhn=dict(steps=600, groups=48, group_size=8, lr=1e-3, kl=.2, floor=.03))


def recipe_of(world, game: str, name: str, seed: int):
    "Games of one deal are compared, seat by seat."
    from agentlab.train import load_recipe
    from agentlab.train.recipes import remember
    g = GAMES[game]
    memory = remember(partial(Mean, begin=g['steps']//2))
    return load_recipe(name, steps=g['steps'], groups=g['groups'], group_size=g['group_size'], lr=g['lr'], kl_coef=g['kl'], seed=seed, minibatches=1, max_tokens=2, test_tasks=0, checkpoint_every=50, loss_per='token',
                       memory=memory, budget=16384, schedule=partial(falling, steps=g['steps'], lr=g['lr'], kl=g['kl'], floor=g['floor']))


def exact(world, policy) -> dict:
    "Kuhn: NashConv of what the policy plays in all information sets, and its two bluffs."
    from agentlab.selfplay import game_tree, nash_conv, policy_strategy
    tree = game_tree(world)
    strategy = policy_strategy(tree, policy)
    bet = {tuple(one.state): float(strategy[i, list(one.legal).index('bet')]) for i, one in enumerate(tree.situations)}
    return dict(nash_conv=float(nash_conv(tree, strategy)), bluff_first=bet['first', 'J'], value_first=bet['first', 'K'], bluff_second=bet['second', 'J', 'pass'])


MEASURES = dict(kuhn=exact)


def one_run(game: str, name: str, seed: int, folder: Path) -> dict:
    "Train (or finish) one run, and measure the mean of its weights."
    from agentlab.train import Run, train
    from agentlab.train.runs import load_checkpoint
    place = folder/f'{game}-{name}-{seed}'
    def make(began):
        world, policy = start(game, seed)
        measure, curve = MEASURES[game], []
        before = measure(world, policy)
        def follow(row):
            if (row['step'] + 1) % EVERY == 0: curve.append([row['step'] + 1, *measure(world, policy).values()])
        recipe = recipe_of(world, game, name, seed)
        train(policy, world, recipe, place, resume=True, on_row=follow, progress=False)
        keeper = recipe.memory(policy, seed)
        keeper.restore(load_checkpoint(Run(place))[1]['memory'])
        found = measure(world, keeper.each[0].deployed())
        return dict(before=before, present=measure(world, policy), deployed=found, curve=curve, updates=len(Run(place).rows()), test_sampled=found['nash_conv']) | cpu_since(began)
    return found_in(place, dict(env=game, recipe=name, seed=seed), make)


RECIPES = dict(kuhn=('dr_grpo',))


def summary(results: list[dict]) -> dict:
    "Intervals over the seeds of what was measured before, at the end, and of what is deployed."
    part = lambda name: {what: interval([one[name][what] for one in results]) | dict(seeds_of=[one[name][what] for one in results]) for what in results[0][name]}
    return dict(before=part('before'), present=part('present'), deployed=part('deployed'), curves=[one['curve'] for one in results], updates=results[0]['updates'], most_cpu_seconds=max(one['cpu_seconds'] for one in results))


def record(asked) -> dict:
    from agentlab.bench import circumstances
    plan = [(game, name, seed, asked.runs) for game in asked.envs for name in RECIPES[game] if name in asked.recipes for seed in asked.seeds]
    found, words = play(asked, plan, one_run), shlex.join(sys.argv[1:])
    cells = {game: {name: summary([found[game, name, seed] for seed in asked.seeds]) for name in RECIPES[game] if name in asked.recipes} for game in asked.envs}
    return dict(schema_version=1) | circumstances('make results' + (f' ARGS="{words}"' if words else '')) | dict(seeds=asked.seeds, settings=GAMES, cells=cells)


def draw(record: dict):
    "Kuhn poker over updates: distance from the equilibrium, and how often the jack bluffs; a line for each seed, dotted where theory ends."
    from plotly.subplots import make_subplots
    figure = make_subplots(1, 2, subplot_titles=['NashConv (0: equilibrium)', 'first seat bets: jack (solid), king (dashed)'], horizontal_spacing=.08)
    looks = dict(dr_grpo='#0072B2')
    for name, cell in record['cells'].get('kuhn', {}).items():
        for number, curve in enumerate(cell['curves']):
            steps = [point[0] for point in curve]
            figure.add_scatter(x=steps, y=[point[1] for point in curve], name=name, legendgroup=name, showlegend=number == 0, line=dict(color=looks[name], width=1.4), row=1, col=1)
            if name == 'dr_grpo':
                for place, dash in ((2, 'solid'), (3, 'dash')): figure.add_scatter(x=steps, y=[point[place] for point in curve], showlegend=False, line=dict(color=looks[name], width=1.4, dash=dash), row=1, col=2)
    figure.add_hline(y=1/3, line=dict(color='#7d8288', dash='dot'), row=1, col=2)
    figure.update_xaxes(title_text='update', gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', rangemode='tozero')
    figure.update_layout(width=980, height=380, margin=dict(l=10, r=16, t=34, b=30), paper_bgcolor='rgba(0,0,0,0)', plot_bgcolor='rgba(0,0,0,0)', font=dict(color='#7d8288', size=13))
    return figure


def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, list(RECIPES), sorted({name for names in RECIPES.values() for name in names}), 'selfplay')
    found = record(asked)
    keep(found, asked.out, 'selfplay')
    draw(found).write_image(asked.out/'selfplay.png', scale=1)
    for game, cells in found['cells'].items():
        for name, cell in cells.items(): print(game, name, {what: f"{x['mean']:.3f} [{x['low'] or 0:.3f}, {x['high'] or 0:.3f}]" for what, x in cell['deployed'].items()}, f"{cell['most_cpu_seconds']} CPU-s at most")
    return 0


if __name__ == '__main__': sys.exit(main())
