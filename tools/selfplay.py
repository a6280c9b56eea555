"""Record what a tiny policy learns from nothing but games against itself, five seeds: Kuhn poker and tic-tac-toe.

`make results` plays everything (after the other parts) and writes assets/results/selfplay.json.xz and a picture of each
game. Each run is kept in
runs/selfplay/GAME-RECIPE-SEED: a second call reads what is finished and goes on where the first was killed.

The policy begins by watching somebody who moves at random. What is deployed is the mean of its weights over the last
part of the run: in a game
without a pure equilibrium the present weights go round the equilibrium, and their mean is nearer to it.
"""
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grid import arguments, cpu_since, found_in, play
from results import CLEAR, headed, intervals, keep_picture

RECIPE = 'dr_grpo'

class Mean:
    """The mean of a policy's weights from some update on, which is deployed in the end, and now and then a
    measurement of the present ones: the memory of a run."""
    def __init__(self, policy, seed: int, measure: Callable, begin: int, every: int):
        self.policy, self.measure, self.begin, self.every, self.count, self.weights = (policy, measure, begin, every, 0,
            {})
    def read(self, batch, step: int): return batch
    def learn(self, row: dict) -> dict:
        from agentlab.selfplay.snapshots import learned
        if row['step'] >= self.begin:
            self.count += 1
            for name, x in learned(self.policy.model).items():
                self.weights[name] = (x if name not in self.weights
                    else self.weights[name] + (x - self.weights[name])/self.count)
        return self.measure(self.policy) if (row['step'] + 1) % self.every == 0 else {}
    def tensors(self) -> dict:
        import torch
        return self.weights | dict(count=torch.tensor(self.count))
    def restore(self, tensors: dict) -> None:
        self.count, self.weights = int(tensors['count']), {name: x.clone() for name, x in tensors.items()
            if name != 'count'}
    def deployed(self):
        from agentlab.selfplay import Snapshot
        return Snapshot(self.policy, self.weights or None, 'mean of weights')

def exact(policy) -> dict:
    """Kuhn poker: NashConv of what the policy plays in all information sets, its two bluffs, and the bet that the
    first one hides behind."""
    from agentlab.env import Kuhn
    from agentlab.selfplay import game_tree, nash_conv, policy_strategy
    tree = game_tree(Kuhn())
    strategy = policy_strategy(tree, policy)
    bet = {tuple(one.state): float(strategy[i, list(one.legal).index('bet')]) for i, one in enumerate(tree.situations)}
    return dict(nash_conv=float(nash_conv(tree, strategy)), bluff_first=bet['first', 'J'],
        value_first=bet['first', 'K'], bluff_second=bet['second', 'J', 'pass'])

def matches(policy, games: int = 100) -> dict:
    """Tic-tac-toe from the empty board, the likeliest move, `games` at each seat: shares against a random player,
    and against one that draws among all optimal moves."""
    from agentlab.env import TicTacToe, expert_player, random_player
    from agentlab.rollout import play_players
    world, found = TicTacToe(turned=True, numbered=True), {}
    for name, other in dict(random=random_player, optimal=expert_player).items():
        ends = {seat: [e.outcome for e in play_players(policy, world, range(games),
            players={rival: other}, max_tokens=2, temperature=0., seed=1)]
            for seat, rival in zip(world.seats, world.seats[::-1])}
        both = sum(ends.values(), [])
        found |= {f'lost_{name}': sum(x < 0 for x in both)/len(both), f'drawn_{name}': sum(x == 0 for x in both)/len(
            both)} | {f'lost_{name}_{seat}': sum(x < 0 for x in own)/games for seat, own in ends.items()}
    return found

@dataclass(frozen=True)
class Game:
    "What is played, how a policy begins, how it is trained, and what is measured."
    env: dict          # arguments of the environment
    measure: Callable  # policy -> numbers; the first of them is shown while the runs are played
    final: Callable    # the same at the end, where it may take longer
    warm: dict         # of the warm start
    model: dict        # of the tiny model
    every: int         # updates between two measurements
    mean_from: float   # the share of the run after which weights are averaged
    settings: dict     # of the run; kl, floor: weight of the KL to the beginning, first and last

GAMES = dict(
    kuhn=Game({}, exact, exact, dict(steps=200, episodes=32, pool=512, lr=3e-3), dict(hidden=32), 20, .5,
    dict(steps=600, groups=48, group_size=8, lr=1e-3, kl=.2, floor=.03, minibatches=1)),
    tictactoe=Game(dict(opening=7, turned=True, numbered=True), matches, partial(matches, games=500),
    dict(steps=300, episodes=32, pool=4096, lr=4e-3), dict(hidden=64, layers=1), 25, .8,
    dict(steps=200, groups=48, group_size=8, lr=3e-3, kl=.05, floor=.005, minibatches=6)))

def start(game: str, seed: int) -> tuple:
    "The game, and a policy that has watched somebody who knows the rules and nothing else."
    import torch
    from agentlab.env import load_env
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model, warm_start
    torch.set_num_threads(1)
    plan = GAMES[game]
    world = load_env(game, **plan.env)
    tokenizer = word_tokenizer(world.vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 160, **plan.model, seed=seed), tokenizer, name=f'{game}-{seed}')
    return world, warm_start(policy, world, seed=seed, **plan.warm)

def falling(step: int, steps: int, lr: float, kl: float, floor: float) -> dict:
    "Learning rate to a tenth, weight of the KL to its floor, both in a line."
    return dict(lr=lr*(1 - .9*step/steps), kl_coef=max(kl*(1 - step/steps), floor))

def recipe_of(game: str, name: str, seed: int):
    "Games of one deal or opening are compared, seat by seat."
    from agentlab.train import load_recipe
    plan = GAMES[game]
    part = lambda *names: {one: plan.settings[one] for one in names}
    memory = partial(Mean, measure=plan.measure, begin=int(plan.mean_from*plan.settings['steps']), every=plan.every)
    return load_recipe(name, **part('steps', 'groups', 'group_size', 'lr', 'minibatches'), kl_coef=plan.settings['kl'],
        seed=seed, max_tokens=2, test_tasks=0, checkpoint_every=50, loss_per='token', budget=16384,
        memory=memory, schedule=partial(falling, **part('steps', 'lr', 'kl', 'floor')))

def one_run(game: str, name: str, seed: int, folder: Path) -> dict:
    "Train (or finish) one run, and measure the mean of its weights."
    from agentlab.train import Run, train
    from agentlab.train.runs import load_checkpoint
    place, plan = folder/f'{game}-{name}-{seed}', GAMES[game]
    def make(began):
        world, policy = start(game, seed)
        before, recipe = plan.final(policy), recipe_of(game, name, seed)
        rows = train(policy, world, recipe, place, resume=True, progress=False).rows()
        keeper = recipe.memory(policy, seed)
        keeper.restore(load_checkpoint(Run(place))[1]['memory'])
        found = plan.final(keeper.deployed())
        curve = [[row['step'] + 1, *(row[what] for what in found)] for row in rows
            if row.get(next(iter(found))) is not None]
        return dict(before=before, present=plan.final(policy), deployed=found, curve=curve, updates=len(rows),
            test_sampled=next(iter(found.values()))) | cpu_since(began)
    return found_in(place, dict(env=game, recipe=name, seed=seed), make)

def summary(results: list[dict]) -> dict:
    "Intervals over the seeds of what was measured before, at the end, and of what is deployed."
    parts = {name: intervals([one[name] for one in results]) for name in ('before', 'present', 'deployed')}
    return parts | dict(curves=[one['curve'] for one in results], updates=results[0]['updates'],
        most_cpu_seconds=max(one['cpu_seconds'] for one in results))

def record(asked) -> dict:
    found = play(asked, [(game, name, seed, asked.runs) for game in asked.envs for name in asked.recipes
        for seed in asked.seeds], one_run)
    cells = {game: {name: summary([found[game, name, seed] for seed in asked.seeds]) for name in asked.recipes}
        for game in asked.envs}
    return headed(seeds=asked.seeds, settings={game: GAMES[game].settings for game in asked.envs}, cells=cells)

def draw_kuhn(cell: dict):
    """Over updates: distance from the equilibrium, and how often the jack bluffs; a line for each seed, dotted where
    theory ends."""
    return drawn(cell, ['NashConv (0: equilibrium)', 'first seat bets: jack (solid), king (dashed)'],
        [(1, 1, 'solid'), (2, 2, 'solid'), (3, 2, 'dash')], (1/3, 2))

def draw_tictactoe(cell: dict):
    """Over updates: games lost against a random player and drawn against an optimal one; a line for each seed,
    dotted where the aim is."""
    figure = drawn(cell, ['lost against a random player', 'drawn against an optimal player'],
        [(1, 1, 'solid'), (6, 2, 'solid')], (.05, 1))
    return figure.add_hline(y=.8, line=dict(color='#7d8288', dash='dot'), row=1, col=2).update_yaxes(tickformat='.0%')

def drawn(cell: dict, titles: list, lines: list, limit: tuple):
    "Two panels; `lines`: (place in a point of the curve, panel, dash); `limit`: (height, panel) of a dotted line."
    from plotly.subplots import make_subplots
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=.08)
    for curve in cell['curves']:
        for value, column, dash in lines:
            figure.add_scatter(x=[point[0] for point in curve], y=[point[value] for point in curve], showlegend=False,
                line=dict(color='#0072B2', width=1.4, dash=dash), row=1, col=column)
    figure.add_hline(y=limit[0], line=dict(color='#7d8288', dash='dot'), row=1, col=limit[1])
    figure.update_xaxes(title_text='update', gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', rangemode='tozero')
    return figure.update_layout(CLEAR, height=380, margin=dict(l=10, r=16, t=34, b=30))

PICTURES = dict(kuhn=('selfplay.png', draw_kuhn), tictactoe=('tictactoe.png', draw_tictactoe))

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, GAMES, [RECIPE], 'selfplay')
    found = record(asked)
    keep(found, asked.out, 'selfplay', packed=True)
    for game, cells in found['cells'].items():
        name, picture = PICTURES[game]
        keep_picture(picture(cells[RECIPE]), asked.out/name)
        for recipe, cell in cells.items():
            print(game, recipe, {what: f"{x['mean']:.3f} [{x['low'] or 0:.3f}, {x['high'] or 0:.3f}]"
                for what, x in cell['deployed'].items()}, f"{cell['most_cpu_seconds']} CPU-s at most")
    return 0

if __name__ == '__main__': sys.exit(main())
