"PPR: turns paid for the principles that they meet, moved by the outcome, against the outcome alone."
import torch
from _hops import AREA, SIZES, START, searched
from claims import Claim

SIZES = SIZES | dict(groups=48, group_size=1)

def shuffled(b):
    "The same shares, each at some turn of the batch."
    from agentlab.reward.gates import renorm
    generator = torch.Generator().manual_seed(int(b.episodes.step.max()))
    order = torch.randperm(len(b.turns), generator=generator)
    return renorm(b.with_turns(judged=b.turns.judged[order]), 'judged')

def row(arm: str, seed: int) -> dict:
    from agentlab.reward.basic import outcome
    from agentlab.train import recipes
    paid = dict(shuffled=shuffled, outcome=outcome).get(arm)
    return searched(recipes.ppr(**SIZES, seed=seed, **dict(reward=paid) if paid else {}), seed)[0]

CLAIM = Claim(
    key='ppr', says='Paid for the principles that they meet, moved by the outcome, turns are learned sooner than by '
    'the outcome alone.', row=row, arms=('ppr', 'outcome', 'shuffled'), control='outcome', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm, a critic in each',
    world=AREA, seeds=tuple(range(20)),  # five left it open, and a row is cheap
    settings=dict(start=START, recipe=SIZES))
