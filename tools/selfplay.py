"""Record what a tiny policy learns from nothing but games against itself: Kuhn poker, five seeds.

`make results` plays everything (after the other parts) and writes assets/results/selfplay.json and selfplay.png. Each run is kept in
runs/selfplay/GAME-RECIPE-SEED: a second call reads what is finished and goes on where the first was killed.

The policy begins by watching somebody who moves at random. What is deployed is the mean of its weights over the second half of the run: in a game
without a pure equilibrium the present weights go round the equilibrium, and their mean is nearer to it.
"""
from functools import partial
from pathlib import Path
import sys

from grid import arguments, cpu_since, found_in, play
from results import CLEAR, headed, interval

GAME, RECIPE = 'kuhn', 'dr_grpo'
WARM = dict(steps=200, episodes=32, pool=512, lr=3e-3)
SETTINGS = dict(steps=600, groups=48, group_size=8, lr=1e-3, kl=.2, floor=.03)      # kl, floor: weight of the KL to the beginning, first and last
EVERY = 20                      # updates between two measurements


class Mean:
    "The mean of a policy's weights from some update on, which is deployed in the end, and now and then a measurement of the present ones: the memory of a run."
    def __init__(self, policy, seed: int, world, begin: int):
        self.policy, self.world, self.begin, self.count, self.weights = policy, world, begin, 0, {}
    def read(self, batch, step: int): return batch
    def learn(self, row: dict) -> dict:
        from agentlab.selfplay.snapshots import learned
        if row['step'] >= self.begin:
            self.count += 1
            for name, x in learned(self.policy.model).items(): self.weights[name] = x if name not in self.weights else self.weights[name] + (x - self.weights[name])/self.count
        return exact(self.world, self.policy) if (row['step'] + 1) % EVERY == 0 else {}
    def tensors(self) -> dict:
        import torch
        return self.weights | dict(count=torch.tensor(self.count))
    def restore(self, tensors: dict) -> None:
        self.count, self.weights = int(tensors['count']), {name: x.clone() for name, x in tensors.items() if name != 'count'}
    def deployed(self):
        from agentlab.selfplay import Snapshot
        return Snapshot(self.policy, self.weights or None, 'mean of weights')


def start(seed: int) -> tuple:
    "The game, and a policy that has watched somebody who knows the rules and nothing else."
    import torch
    from agentlab.env import load_env
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model, warm_start
    torch.set_num_threads(1)
    world = load_env(GAME)
    tokenizer = word_tokenizer(world.vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 160, hidden=32, seed=seed), tokenizer, name=f'{GAME}-{seed}')
    return world, warm_start(policy, world, seed=seed, **WARM)


def falling(step: int, steps: int, lr: float, kl: float, floor: float) -> dict:
    "Learning rate to a tenth, weight of the KL to its floor, both in a line."
    return dict(lr=lr*(1 - .9*step/steps), kl_coef=max(kl*(1 - step/steps), floor))


def recipe_of(world, name: str, seed: int):
    "Games of one deal are compared, seat by seat."
    from agentlab.train import load_recipe
    part = lambda *names: {one: SETTINGS[one] for one in names}
    return load_recipe(name, **part('steps', 'groups', 'group_size', 'lr'), kl_coef=SETTINGS['kl'], seed=seed, minibatches=1, max_tokens=2, test_tasks=0, checkpoint_every=50, loss_per='token', budget=16384,
                       memory=partial(Mean, world=world, begin=SETTINGS['steps']//2), schedule=partial(falling, **part('steps', 'lr', 'kl', 'floor')))


def exact(world, policy) -> dict:
    "NashConv of what the policy plays in all information sets, its two bluffs, and the bet that the first one hides behind."
    from agentlab.selfplay import game_tree, nash_conv, policy_strategy
    tree = game_tree(world)
    strategy = policy_strategy(tree, policy)
    bet = {tuple(one.state): float(strategy[i, list(one.legal).index('bet')]) for i, one in enumerate(tree.situations)}
    return dict(nash_conv=float(nash_conv(tree, strategy)), bluff_first=bet['first', 'J'], value_first=bet['first', 'K'], bluff_second=bet['second', 'J', 'pass'])


def one_run(game: str, name: str, seed: int, folder: Path) -> dict:
    "Train (or finish) one run, and measure the mean of its weights."
    from agentlab.train import Run, train
    from agentlab.train.runs import load_checkpoint
    place = folder/f'{game}-{name}-{seed}'
    def make(began):
        world, policy = start(seed)
        before, recipe = exact(world, policy), recipe_of(world, name, seed)
        rows = train(policy, world, recipe, place, resume=True, progress=False).rows()
        keeper = recipe.memory(policy, seed)
        keeper.restore(load_checkpoint(Run(place))[1]['memory'])
        found = exact(world, keeper.deployed())
        curve = [[row['step'] + 1, *(row[what] for what in found)] for row in rows if 'nash_conv' in row]
        return dict(before=before, present=exact(world, policy), deployed=found, curve=curve, updates=len(rows), test_sampled=found['nash_conv']) | cpu_since(began)
    return found_in(place, dict(env=game, recipe=name, seed=seed), make)


def summary(results: list[dict]) -> dict:
    "Intervals over the seeds of what was measured before, at the end, and of what is deployed."
    part = lambda name: {what: interval([one[name][what] for one in results]) | dict(seeds_of=[one[name][what] for one in results]) for what in results[0][name]}
    return dict(before=part('before'), present=part('present'), deployed=part('deployed'), curves=[one['curve'] for one in results], updates=results[0]['updates'], most_cpu_seconds=max(one['cpu_seconds'] for one in results))


def record(asked) -> dict:
    found = play(asked, [(GAME, name, seed, asked.runs) for name in asked.recipes for seed in asked.seeds], one_run)
    cells = {name: summary([found[GAME, name, seed] for seed in asked.seeds]) for name in asked.recipes}
    return headed(seeds=asked.seeds, settings={GAME: SETTINGS}, cells={GAME: cells})


def draw(record: dict):
    "Over updates: distance from the equilibrium, and how often the jack bluffs; a line for each seed, dotted where theory ends."
    from plotly.subplots import make_subplots
    figure = make_subplots(1, 2, subplot_titles=['NashConv (0: equilibrium)', 'first seat bets: jack (solid), king (dashed)'], horizontal_spacing=.08)
    for curve in record['cells'][GAME][RECIPE]['curves']:
        for value, column, dash in ((1, 1, 'solid'), (2, 2, 'solid'), (3, 2, 'dash')):
            figure.add_scatter(x=[point[0] for point in curve], y=[point[value] for point in curve], showlegend=False, line=dict(color='#0072B2', width=1.4, dash=dash), row=1, col=column)
    figure.add_hline(y=1/3, line=dict(color='#7d8288', dash='dot'), row=1, col=2)
    figure.update_xaxes(title_text='update', gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', rangemode='tozero')
    figure.update_layout(CLEAR, height=380, margin=dict(l=10, r=16, t=34, b=30))
    return figure


def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, [GAME], [RECIPE], 'selfplay')
    found = record(asked)
    keep(found, asked.out, 'selfplay')
    draw(found).write_image(asked.out/'selfplay.png', scale=1)
    for name, cell in found['cells'][GAME].items():
        print(name, {what: f"{x['mean']:.3f} [{x['low'] or 0:.3f}, {x['high'] or 0:.3f}]" for what, x in cell['deployed'].items()}, f"{cell['most_cpu_seconds']} CPU-s at most")
    return 0


if __name__ == '__main__': sys.exit(main())
