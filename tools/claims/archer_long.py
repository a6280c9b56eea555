"""ArCHer learns, slowly: three times the updates of the claim `archer`, against the policy that it began with."""
from statistics import mean

from _attempts import compared, share_won
from archer import RUN, START, WORLD, recipe_of
from claims import Claim

STEPS = 3*RUN['steps']


def row(arm: str, seed: int) -> dict:
    from dataclasses import replace

    from agentlab.env import KeyDoor
    env, recipe = KeyDoor(**WORLD), recipe_of('archer', seed)
    long = replace(recipe, sizes=replace(recipe.sizes, steps=STEPS if arm == 'archer' else 1))
    after, before, rows = compared(env, env, env, long, seed, START, 80, samples=2, max_tokens=8, max_turns=8)
    won = [one['success'] for one in rows]
    return dict(success=share_won(after if arm == 'archer' else before), last=round(mean(won[-12:]), 5))


CLAIM = Claim(
    key='archer-long', of='archer', says='Given three times the games, the policy that the critic of what was said '
    'praises and blames wins more than the one that it began with.', row=row, arms=('archer', 'start'),
    control='start', measure='success', margin=.05, budget=f'{STEPS} updates of 64 games, and none',
    world='KeyDoor of nine rooms, doors open, 8 turns; 80 held-out houses, each played twice',
    settings=dict(steps=STEPS))
