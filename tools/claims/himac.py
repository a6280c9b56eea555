"HiMAC: blueprint and execution in turns, against both at once, one level, and three clocks."
from _delegate import GAMES, start, success
from _runs import learned
from claims import Claim

from agentlab.env import KeyDoor, Planned
from agentlab.rollout.delegate import Blueprint, house_script, room_alone
from agentlab.train import recipes

SIZES = dict(steps=20, groups=6, group_size=12, test_tasks=0, max_turns=40, lr=5e-4)

def house(): return KeyDoor(horizon=16)

def planned(): return Blueprint(house(), budget=8, sees=room_alone, script=house_script)

def row(arm, seed):
    world, recipe, changes = dict(himac=(planned(), recipes.himac, dict(group_size=6)),
        together=(planned(), recipes.grpo, dict(kl_coef=.01)),
        flat=(house(), recipes.grpo, dict(kl_coef=.01)),
        hae=(Planned(house()), recipes.hae, {}))[arm]
    policy = start(world, noise=.2)
    before = success(policy, world, seed)
    rows = learned(policy, world, recipe(**SIZES | dict(seed=seed) | changes))
    return dict(success=success(policy, world, seed), start=before,
        dead_groups=sum(r['dead_groups'] for r in rows)/len(rows))

CLAIM = Claim(
    key='himac', says='Planner and executor that move in turns learn more than both at once, and than one level.',
    row=row, arms=('himac', 'together', 'flat', 'hae'), control='together', measure='success', margin=.05,
    budget='20 updates of 72 games, those of phase A counted; 25600 demonstrated games',
    world='KeyDoor of 3x3 rooms, 16 turns; success on 200 held-out houses', settings=dict(start=GAMES, recipe=SIZES))
