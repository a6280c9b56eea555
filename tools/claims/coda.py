"CoDA: success against the context limit, for a planner and an executor and for one who reads everything."
from _delegate import GAMES, start, success
from _runs import learned
from claims import Claim

from agentlab.env import KeyDoor
from agentlab.groups import compare
from agentlab.rollout import house_of_two
from agentlab.train import recipes

# the measure is success with the first of these limits, as it was before the world was changed from a search to a house
LIMITS, TURNS = (96, 128, 192, 384), 12000
SIZES = dict(steps=100, groups=6, group_size=8, test_tasks=0, max_turns=40, lr=5e-4)

def all_rows(batch):
    "Every turn of planner and executors votes."
    return batch.spread(compare(batch.of_turn('outcome'), batch.of_turn('group')))

def row(arm, seed):
    if arm == 'flat': world, recipe = KeyDoor(horizon=16), recipes.grpo(**SIZES, seed=seed)
    else:
        world = house_of_two(horizon=16, budget=4)
        recipe = recipes.coda(**SIZES, seed=seed, **dict(credit=all_rows) if arm == 'all_rows' else {})
    policy = start(world, noise=.2, max_context=512)
    learned(policy, world, recipe, TURNS)
    found = {}
    for limit in LIMITS:
        policy.max_context = limit
        found[f'at_{limit}'] = success(policy, world, seed)
    return found | dict(fall=found[f'at_{LIMITS[-1]}'] - found[f'at_{LIMITS[0]}'])

CLAIM = Claim(
    key='coda', says='With contexts of their own, planner and executor win more than one agent where the context is '
    'short.', row=row, arms=('coda', 'flat', 'all_rows'), control='flat', measure='at_96', margin=.1,
    budget='12000 turns, of both seats together; 25600 demonstrated games',
    world='KeyDoor of 3x3 rooms, 16 turns, errands of 4; success on 200 held-out houses with contexts of 96 to 384 '
    'tokens', settings=dict(start=GAMES | dict(noise=.2), recipe=SIZES, limits=LIMITS, turns=TURNS))
