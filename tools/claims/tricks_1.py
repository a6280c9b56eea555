"""Tricks or Traps, its first finding: with easy tasks the deviation of a group blows small differences up. Group mean
throughout; divided by the deviation of the group, of the batch, or by nothing; from a start that is taught, for which
the tasks are easy, and from a weak one."""
from functools import partial

from _practice import WHERE, house
from _tricks import BUDGET, FACTS, both, tried
from claims import Claim

ARMS = both(('batch', 'group', 'none'))

def settings() -> dict:
    from agentlab.credit import grpo, lite_ppo
    return {name: dict(credit=credit) for name, credit in zip(ARMS, (lite_ppo, grpo, partial(grpo, scale=None)))}

def row(arm: str, seed: int) -> dict: return tried(arm, seed, house(), settings())

CLAIM = Claim(
    'tricks-1', 'On easy tasks the deviation of the batch is the better divisor than that of the group.', row,
    arms=ARMS, control='group', measure='success', margin=.03, of='lite-ppo', budget=BUDGET, world=WHERE,
    settings=FACTS)
