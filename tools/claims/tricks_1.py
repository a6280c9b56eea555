"""Tricks or Traps, its first finding: with easy tasks the deviation of a group blows small differences up. Group mean
throughout; divided by the deviation of the group, of the batch, or by nothing; from a start that is taught, for which
the tasks are easy, and from a weak one."""
from functools import partial

from _practice import SETTINGS, UPDATES, WHERE, house, one_thread, reinforced, share, shown, start, taught
from claims import Claim

DEMONSTRATIONS, STEPS = 38, 30


def credit_of(name: str):
    from agentlab.credit import grpo, lite_ppo
    return dict(batch=lite_ppo, group=grpo, none=partial(grpo, scale=None))[name]


def row(arm: str, seed: int) -> dict:
    name, _, hard = arm.partition(', ')
    world = house()
    with one_thread():
        policy = start(seed)
        if not hard: taught(policy, shown(house(), policy, DEMONSTRATIONS, seed), STEPS, seed)
        before = share(policy, world, seed)
        rows = reinforced(policy, world, seed, credit=credit_of(name))
        return dict(success=share(policy, world, seed), before=before, worst=min(one['success'] for one in rows))


CLAIM = Claim(
    'tricks-1', 'On easy tasks the deviation of the batch is the better divisor than that of the group.', row,
    arms=('batch', 'group', 'none', 'batch, hard', 'group, hard', 'none, hard'), control='group', measure='success',
    margin=.03, of='lite-ppo', budget=f'the same start and {UPDATES} updates of 64 games', world=WHERE,
    settings=SETTINGS | dict(demonstrations=DEMONSTRATIONS, steps=STEPS))
