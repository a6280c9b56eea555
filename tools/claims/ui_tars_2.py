"UI-TARS-2: plain PPO, then one part after the other: own targets, a lambda by length, a critic that comes first."
from functools import partial
from statistics import mean

from _attempts import begun, one_thread
from _runs import learned
from claims import Claim

START = dict(steps=150, pool=2048, noise=.3)
WORLD = dict(size=2, horizon=16)
SIZES = dict(steps=40, groups=24, group_size=1, test_tasks=0, max_turns=16, max_tokens=4, lr=1e-3)
WARM, GOAL, LAST = 5, .8, 3
# lambda of the advantages, lambda of the targets, updates in which the critic alone learns: their games count too
ARMS = {'ui-tars-2': ('by length', 1., WARM), 'plain': (.95, None, 0), 'decoupled': (.95, 1., 0),
    'adaptive': ('by length', 1., 0)}

def games_until(rows: list[dict]) -> int:
    "Games until the mean success of three updates in a row reaches the goal; all games where it never does."
    won = [row['success'] for row in rows]
    for i in range(LAST, len(won) + 1):
        if mean(won[i - LAST:i]) >= GOAL: return i*SIZES['groups']
    return (len(won) + 1)*SIZES['groups']

def row(arm: str, seed: int) -> dict:
    from agentlab.credit import adaptive_lambda
    from agentlab.env import KeyDoor
    from agentlab.train import recipes
    lam, lam_value, warm = ARMS[arm]
    lam = partial(adaptive_lambda, alpha=1.) if isinstance(lam, str) else lam
    world = KeyDoor(**WORLD)
    with one_thread():
        rows = learned(begun(world, seed, **START), world, recipes.ui_tars_2(
            **SIZES, seed=seed, critic_warmup=warm, credit_args=dict(lam=lam, lam_value=lam_value)))
    return dict(sooner=-games_until(rows), area=round(mean(one['success'] for one in rows), 5),
        first=rows[0]['success'], last=round(mean(one['success'] for one in rows[-5:]), 5),
        turns=round(rows[0]['turns'], 2), explained_at_0=round(rows[warm]['value_explained'] or 0., 4),
        explained=round(mean(one['value_explained'] or 0. for one in rows[-5:]), 4))

CLAIM = Claim(
    key='ui-tars-2', says='With a critic that learns returns before the policy moves, and a lambda that grows with the '
    'game, more games of a run are won than with plain PPO.', row=row, arms=tuple(ARMS),
    control='plain', measure='area', margin=.03, budget='40 updates of 24 games; those of warming up count',
    world='KeyDoor of 2x2 rooms, games of up to 16 turns, mean success of all games of the run',
    settings=dict(start=START, world=WORLD, recipe=SIZES, arms=ARMS, goal=GOAL))
