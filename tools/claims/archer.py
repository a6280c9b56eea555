"""ArCHer: a critic of what was said that learns from old games too, against PPO's critic, which reads each game once,
and against GRPO, which has none.

The rate of the policy under ArCHer, and that its critic warms up for four updates, were chosen on seed 100: games won
over the run .20 with 1e-4, .17 with 3e-4, .27 with 1e-4 and the longer warm-up, .28 with 60 passes on 256 games. PPO
and GRPO have the rate of the other claims of this world, with which PPO wins .72 at the end on that seed."""
from functools import partial

from _critics import RUN, WHERE, watched
from _values import HOUSES, KEYDOOR
from claims import Claim

CRITIC = dict(lr=1e-3, passes=20, past=128, max_tokens=8)
RATES, WARMUP = dict(archer=1e-4, others=1e-3), 4

def recipe_of(arm: str, seed: int):
    from agentlab.replay import ArcherCritic, Buffer
    from agentlab.train import recipes
    if arm in ('ppo', 'grpo'): return getattr(recipes, arm)(lr=RATES['others'], seed=seed, **RUN)
    keep = partial(Buffer, episodes=RUN['groups']*RUN['group_size']) if arm == 'archer, new games only' else Buffer
    return recipes.archer(lr=RATES['archer'], critic_warmup=WARMUP, seed=seed, **RUN,
        critic=partial(ArcherCritic, keep=keep, **CRITIC))

def row(arm: str, seed: int) -> dict: return watched(recipe_of(arm, seed), seed)

CLAIM = Claim(
    key='archer', says='With a critic of what was said that learns from old games too, more games of a run are won '
    'than with the critic of PPO.', row=row, arms=('archer', 'ppo', 'grpo', 'archer, new games only'), control='ppo',
    measure='area', margin=.03, budget=f'the same start and {RUN["steps"]} updates of 64 games; those of warming up '
    'count', world=f'{WHERE}; mean success of all games of the run',
    settings=dict(start=KEYDOOR.start, run=RUN, world=HOUSES, critic=CRITIC, rates=RATES, warmup=WARMUP))
