"""Record a leaderboard: recipes x worlds x seeds by `agentlab bench`, who is ahead, and how surely.

    python tools/leaderboard.py            plays what is missing of 300 runs, and writes the record
    python tools/leaderboard.py --cpus 1   one run at a time

The runs stay in runs/leaderboard; a second call goes on where the first was stopped. Recipes, worlds and sizes were
written down before anything was played: the baselines of the field, each with its own settings.
"""
import sys
from argparse import ArgumentParser

import numpy as np
from notebooks import ROOT
from results import ASSETS

RECIPES = ('grpo rloo reinforce_pp dr_grpo lite_ppo dapo clip_cov gspo gigpo hgpo salt ppo').split()
WORLDS = 'keydoor hopsearch clarify python_tool guess'.split()
SIZES = dict(seeds=5, steps=20, test_tasks=128)
FOLDER = ROOT/'runs'/'leaderboard'

def scores(table) -> dict:
    "recipe -> world -> held-out tasks won, sampled, at the end of the run of every seed."
    last = table[(table.metric == 'test_sampled') & (table.step == SIZES['steps'])]
    return {recipe: {world: [round(x, 5) for x in last[(last.recipe == recipe) & (last.env == world)]
        .sort_values('seed').value] for world in WORLDS} for recipe in RECIPES}

def before(table) -> dict:
    "world -> the same of the policy that all runs begin with."
    first = table[(table.metric == 'test_sampled') & (table.step == 0)]
    return {world: round(first[first.env == world].value.iloc[0], 5) for world in WORLDS}

def sampled(table) -> dict:
    "recipe -> world -> tokens that a run samples to learn from, mean over seeds."
    found = table[table.metric == 'sampled'].groupby(['recipe', 'env', 'seed']).value.sum()
    found = found.groupby(['recipe', 'env']).mean().round()
    return {recipe: {world: int(found[recipe, world]) for world in WORLDS} for recipe in RECIPES}

def tries() -> dict:
    """world -> groups that DAPO plays for one that it learns from. What it discards stands in no table of a run, so
    `sampled` leaves it out."""
    from agentlab.train import Run
    folders = {world: [FOLDER/world/'dapo'/str(seed) for seed in range(SIZES['seeds'])] for world in WORLDS}
    played = lambda run: [1 + run.episodes(step).episodes['round'].mean().item() for step in run.steps()]
    return {world: round(np.mean([played(Run(folder)) for folder in folders[world]]).item(), 2) for world in WORLDS}

def ranks(*samples) -> np.ndarray:
    "Place of every recipe by its mean over the worlds, 1 the best; of equal ones the mean of their places."
    from agentlab.bench.intervals import mean
    all_means = np.stack([mean(sample) for sample in samples], -1)
    ahead = (all_means[..., None, :] > all_means[..., None]).sum(-1)
    same = (all_means[..., None, :] == all_means[..., None]).sum(-1)
    return ahead + (same + 1)/2

def board(found: dict, against: str = 'grpo') -> list[dict]:
    "A row for every recipe, the best mean first: mean, chance of an improvement on `against`, rank, with intervals."
    from agentlab.bench.intervals import bootstrap, checked, improvement, interval, mean
    samples = [{world: np.asarray(runs) for world, runs in found[recipe].items()} for recipe in found]
    low, high = np.quantile(bootstrap(ranks, *samples), [.025, .975], axis=0)
    rows = [dict(recipe=recipe, mean=interval(mean, sample), ahead=interval(improvement, sample, found[against]),
        rank=(float(place), float(least), float(most)))
        for recipe, sample, place, least, most in zip(found, samples, ranks(*checked(*samples)), low, high)]
    return sorted(rows, key=lambda row: row['rank'][0])

def main() -> int:
    import pandas as pd
    from agentlab.bench import circumstances, keep
    from agentlab.bench.sweep import bench
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cpus', type=int, default=0, help='runs at once; 0: one for each core')
    bench(recipes=','.join(RECIPES), envs=','.join(WORLDS), out=str(FOLDER), cpus=parser.parse_args().cpus, **SIZES)
    table = pd.read_parquet(FOLDER/'sweep.parquet')
    found = circumstances('python tools/leaderboard.py') | SIZES | dict(before=before(table), scores=scores(table),
        tokens=sampled(table), tries=tries())
    print(keep(found, ASSETS, 'leaderboard', packed=True))
    for row in board(found['scores']):
        print(f"{row['recipe']:14}" + ''.join(f'  {a:.2f} [{b:.2f}, {c:.2f}]' for a, b, c in
            (row['mean'], row['ahead'], row['rank'])))
    return 0

if __name__ == '__main__': sys.exit(main())
