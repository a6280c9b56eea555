"PPR: turns paid for the principles that they meet, moved by the outcome, against the outcome alone."
import torch
from _attempts import compared
from claims import Claim

START = dict(steps=200, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=48, group_size=1, test_tasks=0, max_turns=6, lr=1e-3)


def shuffled(b):
    "The same shares, each at some turn of the batch."
    from agentlab.reward.gates import renorm
    generator = torch.Generator().manual_seed(int(b.episodes.step.max()))
    order = torch.randperm(len(b.turns), generator=generator)
    return renorm(b.with_turns(judged=b.turns.judged[order]), 'judged')


def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.reward.basic import outcome
    from agentlab.train import recipes
    world, paid = HopSearch(2, distractors=10), dict(shuffled=shuffled, outcome=outcome).get(arm)
    recipe = recipes.ppr(**SIZES, seed=seed, **dict(reward=paid) if paid else {})
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    return dict(area=round(sum(one['success'] for one in rows)/len(rows), 5), success=share(after),
                before=share(before))


CLAIM = Claim(
    key='ppr', says='Paid for the principles that they meet, moved by the outcome, turns are learned sooner than by '
    'the outcome alone.', row=row, arms=('ppr', 'outcome', 'shuffled'), control='outcome', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm, a critic in each',
    world='HopSearch of two hops, 13 people, paid at the end only; mean success of all games of the run',
    settings=dict(start=START, recipe=SIZES))
