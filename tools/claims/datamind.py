"""DataMind: imitation that fades into reinforcement, against one after the other. Every arm plays the same number of
games and is shown the same demonstrations; what differs is their share of the loss."""
from functools import partial

import torch
from _attempts import compared, share_won
from claims import Claim

from agentlab.rollout.sql_seats import half_cosine, mixed, unsure

START = dict(steps=150, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=12, max_turns=6, test_tasks=0, lr=1e-3)

def first_half(step): return (step < SIZES['steps']//2).double()
def none(step): return torch.zeros_like(step, dtype=torch.float64)
def half(step): return none(step) + .5

def row(arm: str, seed: int) -> dict:
    from agentlab.env import SqlWorld
    from agentlab.train import recipes
    shares = dict(sft_then_rl=first_half, rl=none, half=half)
    share = shares.get(arm, partial(half_cosine, steps=SIZES['steps']))
    weighted = dict(objective_args=dict(weight=unsure)) if arm == 'unsure' else {}
    recipe = recipes.datamind(**SIZES, **weighted, seed=seed, shape=partial(mixed, mu=share))
    world = SqlWorld()
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=2, max_tokens=32)
    return dict(success=share_won(after), before=share_won(before),
        own=[round((x['success'] - .2)/.8, 3) for x in rows[::4]])

CLAIM = Claim(
    key='datamind', says='Imitation that fades into reinforcement ends higher than one after the other.', row=row,
    arms=('datamind', 'sft_then_rl', 'rl', 'half', 'unsure'), control='sft_then_rl', measure='success', margin=.03,
    budget='40 updates of 48 own games and 12 demonstrated ones in every arm',
    world='SqlWorld, all levels; success of two games on each of 200 held-out questions',
    settings=dict(start=START, recipe=SIZES))
