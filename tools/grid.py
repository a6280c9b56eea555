"""Record which estimator learns what: environments x recipes x seeds, all with the same number of episodes.

`make results` plays everything (after the curves of tools/results.py) and writes assets/results/grid.json.xz and
grid.png. Each run is kept in
runs/grid/ENV-RECIPE-SEED: a second call reads what is finished and goes on where the first was killed. Several runs are
played at once, each on one thread.
Where only some recipes are asked for, the cells of the others stay as they were, with the date of their record.
"""
import json
import os
import sys
import threading
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from notebooks import ROOT
from results import ASSETS, CLEAR, headed, interval, keep_picture

ENVS = 'keydoor', 'hopsearch', 'clarify'
RECIPES = 'grpo', 'rloo', 'lite_ppo', 'reinforce_pp', 'gigpo', 'hgpo', 'salt', 'ppo', 'igpo'
# the word before the true answer; KeyDoor has no answer, so igpo leaves it out
CLOSING = dict(hopsearch='answer', clarify='book')
TESTS = dict(test_greedy=True, test_sampled=False)

def planned(asked) -> list[tuple]:
    return [(env, name, seed) for env, name, seed in product(asked.envs, asked.recipes, asked.seeds) if name != 'igpo'
        or env in CLOSING]

def recipe_of(env: str, name: str, seed: int, steps: int):
    from agentlab.reward import measure_answers
    from agentlab.train import load_recipe
    answers = dict(columns=partial(measure_answers, closing=CLOSING[env])) if name == 'igpo' else {}
    return load_recipe(name, steps=steps, seed=seed, test_tasks=0, checkpoint_every=10, **answers)

def start(env: str, **warm):
    "A new environment and its warm-started policy, from the package or the cache; `warm`: of the warm start."
    import torch
    from transformers.utils.logging import disable_progress_bar
    from agentlab.env import load_env
    from agentlab.policy import tiny_policy
    disable_progress_bar()
    torch.set_num_threads(1)
    world = load_env(env)
    return world, tiny_policy(world, progress=False, **warm)

def tested(policy, world, tasks: int, max_tokens: int = 8) -> dict:
    from agentlab.train import evaluate
    return {name: evaluate(policy, world, tasks, greedy, max_turns=64, max_tokens=max_tokens)
        for name, greedy in TESTS.items()}

def found_in(place: Path, asked: dict, make) -> dict:
    """What `make(began)` finds for the run in this folder, beside what was asked; what was found for the same
    question before is read."""
    kept = place/'result.json'
    if kept.exists() and {key: (found := json.loads(kept.read_text()))[key] for key in asked} == asked: return found
    found = asked | make(time.process_time())
    kept.write_text(json.dumps(found))
    return found

def cpu_since(began: float) -> dict: return dict(cpu_seconds=round(time.process_time() - began, 1))

def one_run(env: str, name: str, seed: int, steps: int, tasks: int, folder: Path) -> dict:
    "Train (or finish) one run and test it."
    from agentlab.train import train
    place = folder/f'{env}-{name}-{seed}'
    def make(began):
        world, policy = start(env)
        rows = train(policy, world, recipe_of(env, name, seed, steps), place, resume=True, progress=False).rows()
        return (dict(success=[round(row['success'], 4) for row in rows]) | cpu_since(began)
            | tested(policy, world, tasks))
    return found_in(place, dict(env=env, recipe=name, seed=seed, steps=steps, tasks=tasks), make)

def before(env: str, tasks: int, warm: dict | None = None, **fields) -> dict:
    world, policy = start(env, **(warm or {}))
    return dict(policy=policy.name) | tested(policy, world, tasks, **fields)

def follow(parent: int) -> None:
    """In a worker: end with the process that started it, even if that was killed. Two workers in one run folder
    would mix their rows."""
    def watch():
        while os.getppid() == parent: time.sleep(1)
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()

def play(asked, plan: list[tuple], run) -> dict:
    "`run(*one)` of the plan, several at once; {(environment, recipe, seed): result}."
    found = {}
    with ProcessPoolExecutor(asked.processes, mp_context=get_context('spawn'), initializer=follow,
                             initargs=(os.getpid(),)) as pool:
        jobs = [pool.submit(run, *one) for one in plan]
        for count, job in enumerate(as_completed(jobs), 1):
            result = job.result()
            found[result['env'], result['recipe'], result['seed']] = result
            print(f"{count}/{len(plan)} {result['env']} {result['recipe']} seed {result['seed']}: "
                f"{result['test_sampled']:.1%} sampled, {result['cpu_seconds']} CPU-s", flush=True)
    return found

def record(asked) -> dict:
    # also fills the cache of warm starts, before several processes want it
    starts = {env: before(env, asked.test_tasks) for env in asked.envs}
    found = play(asked, [(*one, asked.steps, asked.test_tasks, asked.runs) for one in planned(asked)], one_run)
    cells = {env: {name: cell for name in asked.recipes
        if (cell := summary([found[env, name, seed] for seed in asked.seeds if (env, name, seed) in found]))}
        for env in asked.envs}
    return headed(steps=asked.steps, episodes=asked.steps*64, test_tasks=asked.test_tasks, seeds=asked.seeds,
        before=starts, cells=cells)

def summary(results: list[dict]) -> dict:
    "Intervals over the seeds of one environment and recipe; empty where there are none."
    if not results: return {}
    curve = [[round(sum(step)/len(step), 4) for step in zip(*(result['success'] for result in results))]]
    return ({test: interval([result[test] for result in results], most=1) for test in TESTS}
        | dict(curve=curve[0], cpu_seconds=round(sum(result['cpu_seconds'] for result in results)/len(results), 1)))

def draw(record: dict):
    """Success after training, sampled: a dot and its 95 % interval for each recipe, a dashed line for the warm
    start; one panel per environment."""
    from plotly.subplots import make_subplots
    envs = list(record['cells'])
    figure = make_subplots(1, len(envs), shared_yaxes=True, subplot_titles=envs, horizontal_spacing=.03)
    for column, env in enumerate(envs, 1):
        cells = [(name, cell['test_sampled']) for name, cell in record['cells'][env].items()][::-1]
        mean, names = [cell['mean'] for _, cell in cells], [name for name, _ in cells]
        error = dict(type='data', symmetric=False,
            array=[(cell['high'] or cell['mean']) - cell['mean'] for _, cell in cells],
            arrayminus=[cell['mean'] - (cell['low'] or 0) for _, cell in cells], thickness=2)
        figure.add_scatter(x=mean, y=names, mode='markers', marker=dict(size=9, color='#3b83b5'), error_x=error,
            showlegend=False, row=1, col=column)
        figure.add_vline(x=record['before'][env]['test_sampled'], line=dict(color='#7d8288', dash='dash', width=1.5),
            row=1, col=column)
    figure.update_xaxes(range=[0, 1.02], tickformat='.0%', gridcolor='rgba(128,128,128,.2)', zeroline=False)
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)')
    figure.update_layout(CLEAR, height=360, margin=dict(l=10, r=16, t=34, b=30))
    return figure

def arguments(doc: str, envs, recipes, runs: str, **budget):
    "The options of a grid; `budget`: name=(default, help)."
    parser = ArgumentParser(description=doc, formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument('--envs', nargs='+', default=list(envs))
    parser.add_argument('--recipes', nargs='+', default=list(recipes))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2, 3, 4])
    for name, (default, said) in budget.items(): parser.add_argument(f'--{name}', type=int, default=default, help=said)
    parser.add_argument('--test-tasks', type=int, default=512, help='held-out tasks')
    parser.add_argument('--processes', type=int, default=max(1, os.cpu_count() or 1), help='runs at once')
    parser.add_argument('--runs', type=Path, default=ROOT/'runs'/runs, help='folder of the run folders')
    parser.add_argument('--out', type=Path, default=ASSETS, help='folder to write to')
    return parser.parse_args()

def say(record: dict, more=lambda cell: '') -> None:
    "The record in a few lines."
    for env, cells in record['cells'].items():
        print(f"{env}: warm start {record['before'][env]['test_sampled']:.1%}")
        for name, cell in cells.items():
            print(f"  {name:14} {cell['test_sampled']['mean']:.1%} [{cell['test_sampled']['low'] or 0:.1%}, "
                f"{cell['test_sampled']['high'] or 1:.1%}] sampled, {cell['test_greedy']['mean']:.1%} "
                f"greedy{more(cell)}")

def with_others(found: dict, old: dict) -> dict:
    """The record, and the cells of recipes that were not asked for from the record before; left out where that asked
    for something else."""
    if any(old.get(fact) != found[fact] for fact in ('steps', 'test_tasks', 'seeds')): return found
    stay = lambda env: {name: dict(date=old['date']) | cell for name, cell in old['cells'].get(env, {}).items()}
    cells = {env: {name: both[name] for name in RECIPES if name in both} for env in ENVS
        if (both := stay(env) | found['cells'].get(env, {}))}
    return found | dict(before=old['before'] | found['before'], cells=cells)

def main() -> int:
    from agentlab.bench import keep, kept
    asked = arguments(__doc__, ENVS, RECIPES, 'grid', steps=(30, 'updates of 64 episodes'))
    found = with_others(record(asked), kept(asked.out, 'grid'))
    keep(found, asked.out, 'grid', packed=True)
    keep_picture(draw(found), asked.out/'grid.png')
    say(found)
    return 0

if __name__ == '__main__': sys.exit(main())
