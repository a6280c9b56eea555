"""Record what past episodes are worth where success is rare: recipes x seeds, each until it wins four games of five, or
until the budget is spent.

`make results` plays everything (after the other parts), writes assets/results/replay.json.xz and replay.png. The world
is the setting that success
replay was published for: a list of tasks that is gone through again and again. Here these are the first 16 training
houses of KeyDoor, eight an update,
and a policy that has watched somebody who goes at random three times out of four. Each run is kept in
runs/replay/keydoor-RECIPE-SEED: a second call
reads what is finished and goes on where the first was killed.
"""
import sys
from collections import deque
from functools import partial
from itertools import product
from pathlib import Path

from grid import TESTS, arguments, before, cpu_since, found_in, play, start, tested
from results import CLEAR, headed, interval, keep_picture

HOUSES, GROUPS = 16, 8  # tasks of the list; tasks of an update
WARM = dict(noise=.75)  # of who is watched: the policy begins below one win in ten
# success of the training episodes, mean over so many updates: each house was then visited five times
GOAL, WINDOW = .8, 10
RECIPES = 'grpo', 'clip_higher', 'success_replay', 'spear'
LIMIT = dict(max_tokens=8)

def tasks_of(step: int, houses: list) -> dict:
    "The houses of an update: the list, eight at a time."
    return dict(group_args=dict(tasks=[houses[(step*GROUPS + i) % len(houses)] for i in range(GROUPS)]))

def always(step: int) -> float: return 1.

def changes(name: str) -> dict:
    """What a recipe needs in this world: the key of a task is its first state; a buffer as small as successes are
    rare; the control has the clip of success replay."""
    from agentlab.replay import SelfImitation, SuccessReplay, by_start
    from agentlab.reward import paid
    from agentlab.rollout import play
    return dict(success_replay=dict(rollout=play, replay=partial(SuccessReplay, key=by_start)),
        clip_higher=dict(objective_args=dict(low=.2, high=.3)),
        spear=dict(reward=paid, replay=partial(SelfImitation, size=32, trigger=.25, tolerate=20,
        weight=always))).get(name, {})

class Goal:
    "Ends a run when its last `WINDOW` updates have won `GOAL` of their episodes."
    def __init__(self, rows: list[dict]): self.last = deque((row['success'] for row in rows), maxlen=WINDOW)
    def add(self, row: dict) -> None: self.last.append(row['success'])
    def reached(self) -> bool: return len(self.last) == WINDOW and sum(self.last)/WINDOW >= GOAL

def one_run(env: str, name: str, seed: int, steps: int, tasks: int, folder: Path) -> dict:
    "Train (or finish) one run until the goal, and test it."
    from agentlab.train import Run, load_recipe, train
    place = folder/f'{env}-{name}-{seed}'
    def make(began):
        world, policy = start(env, **WARM)
        schedule = partial(tasks_of, houses=world.tasks('train', HOUSES))
        recipe = load_recipe(name, steps=steps, seed=seed, test_tasks=0, checkpoint_every=10, groups=GROUPS,
            schedule=schedule, **changes(name))
        goal = Goal(Run(place).rows() if (place/'run.json').exists() else [])
        rows = train(policy, world, recipe, place, resume=True, on_row=goal.add, should_stop=goal.reached,
            progress=False).rows()
        return summed(rows, goal.reached()) | cpu_since(began) | tested(policy, world, tasks, **LIMIT)
    return found_in(place, dict(env=env, recipe=name, seed=seed, steps=steps, tasks=tasks), make)

def summed(rows: list[dict], reached: bool) -> dict:
    "What is kept of the rows of a run."
    share = lambda name: sum(row[name] or 0. for row in rows)/len(rows)
    return dict(reached=reached, episodes=sum(row['episodes'] for row in rows), replayed=round(share('replayed'), 4),
        dead_groups=round(share('dead_groups'), 4),
        success=[round(row['success'], 4) for row in rows], entropy=[round(row['entropy'], 4) for row in rows])

def settled(run) -> dict:
    """Share of the groups that were lost, and won, as a whole in the first, the middle and the last ten updates of a
    run: they teach nothing."""
    from agentlab.groups import group_constant
    count, found = len(run.rows()), {}
    for name, first in dict(first=0, middle=count//2 - WINDOW//2, last=count - WINDOW).items():
        e = [run.episodes(step).episodes for step in range(first, first + WINDOW)]
        same = [group_constant(x.outcome, x.group) for x in e]
        found[name] = [round(sum(((x.outcome > 0) == won)[flat].sum().item()
            for x, flat in zip(e, same))/sum(map(len, e)), 4) for won in (False, True)]
    return found

def summary(results: list[dict], plain: list[dict]) -> dict:
    """Intervals over the seeds: episodes until the goal (a run that did not reach it counts what it played: a lower
    bound), alone and over those of plain GRPO with the same seed."""
    spent = {one['seed']: one['episodes'] for one in plain}
    found = {test: interval([one[test] for one in results], most=1) for test in TESTS}
    return found | dict(episodes=interval([one['episodes'] for one in results]),
        ratio=interval([one['episodes']/spent[one['seed']] for one in results]),
        reached=sum(one['reached'] for one in results),
        groups={part: [round(sum(one['groups'][part][i] for one in results)/len(results), 4)
        for i in range(2)] for part in ('first', 'middle', 'last')},
        **{name: round(sum(one[name] for one in results)/len(results), 4)
        for name in ('replayed', 'dead_groups', 'cpu_seconds')},
        curves=[one['success'] for one in results])

def record(asked) -> dict:
    from agentlab.train import Run
    # also fills the cache, before several processes want it
    starts = {env: before(env, asked.test_tasks, WARM, **LIMIT) for env in asked.envs}
    plan = [(*one, asked.steps, asked.test_tasks, asked.runs)
        for one in product(asked.envs, asked.recipes, asked.seeds)]
    found = play(asked, plan, one_run)
    of = lambda env, name: [found[env, name, seed] | dict(groups=settled(Run(asked.runs/f'{env}-{name}-{seed}')))
        for seed in asked.seeds]
    cells = {env: {name: summary(of(env, name), of(env, asked.recipes[0])) for name in asked.recipes}
        for env in asked.envs}
    facts = dict(steps=asked.steps, houses=HOUSES, **WARM, goal=GOAL, window=WINDOW, test_tasks=asked.test_tasks,
        seeds=asked.seeds, before=starts, cells=cells)
    return headed(**facts)

STYLES = dict(grpo=('#7d8288', 'solid'), clip_higher=('#7d8288', 'dot'), success_replay=('#0072B2', 'dash'),
    spear=('#D55E00', 'longdash'))

def draw(record: dict):
    """Success of the training episodes over episodes played: thin lines are seeds (means over ten updates), ending
    where the goal is reached."""
    import plotly.graph_objects as go
    figure = go.Figure()
    for name, cell in record['cells']['keydoor'].items():
        color, dash = STYLES.get(name, ('#000000', 'solid'))
        for number, curve in enumerate(cell['curves']):
            smooth = [sum(curve[i - WINDOW:i])/WINDOW for i in range(WINDOW, len(curve) + 1)]
            figure.add_scatter(x=[64*i for i in range(WINDOW, len(curve) + 1)], y=smooth, name=name,
                line=dict(color=color, dash=dash, width=1.8), mode='lines', legendgroup=name,
                showlegend=number == 0)
            figure.add_scatter(x=[64*len(curve)], y=smooth[-1:], mode='markers',
                marker=dict(color=color, size=8, symbol='circle' if smooth[-1] >= GOAL else 'x'),
                showlegend=False)
    figure.add_hline(y=GOAL, line=dict(color='#7d8288', dash='dash', width=1))
    figure.update_xaxes(title_text='episodes played', gridcolor='rgba(128,128,128,.2)', rangemode='tozero')
    figure.update_yaxes(title_text='success, mean of 10 updates', tickformat='.0%', gridcolor='rgba(128,128,128,.2)',
        range=[0, 1])
    figure.update_layout(CLEAR, height=420, margin=dict(l=10, r=16, t=16, b=30),
        legend=dict(x=.99, xanchor='right', y=.05, yanchor='bottom'))
    return figure

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, ['keydoor'], RECIPES, 'replay',
        steps=(160, 'most updates of a run, of 64 episodes each'))
    found = record(asked)
    keep(found, asked.out, 'replay', packed=True)
    keep_picture(draw(found), asked.out/'replay.png')
    for name, cell in found['cells']['keydoor'].items():
        print(f"{name:15} {cell['reached']} of {len(asked.seeds)} seeds reach {GOAL:.0%} after "
            f"{cell['episodes']['mean']:,.0f} episodes, {cell['ratio']['mean']:.2f} "
            f"[{cell['ratio']['low'] or 0:.2f}, {cell['ratio']['high'] or 0:.2f}] of {asked.recipes[0]}")
    return 0

if __name__ == '__main__': sys.exit(main())
