"CoDA: success against the context limit, for a planner and an executor and for one who reads everything."
from _delegate import GAMES, start, success
from _runs import learned
from claims import Claim

from agentlab.env import HopSearch
from agentlab.groups import compare
from agentlab.rollout import hops_of_two
from agentlab.train import recipes

LIMITS, SIZES = (96, 128, 256), dict(steps=20, groups=6, group_size=8, test_tasks=0, max_turns=24, lr=5e-4)


def all_rows(batch):
    "Every turn of planner and executors votes."
    return batch.spread(compare(batch.of_turn('outcome'), batch.of_turn('group')))


def row(arm, seed):
    if arm == 'flat':
        world, recipe = HopSearch(2, results=4), recipes.grpo(**SIZES | dict(seed=seed, group_size=18))
    else:
        world = hops_of_two(2, 4)
        recipe = recipes.coda(**SIZES, seed=seed, **dict(credit=all_rows) if arm == 'all_rows' else {})
    policy = start(world, max_context=512)
    learned(policy, world, recipe)
    found = {}
    for limit in LIMITS:
        policy.max_context = limit
        found[f'at_{limit}'] = success(policy, world, seed)
    return found | dict(fall=found[f'at_{LIMITS[-1]}'] - found[f'at_{LIMITS[0]}'])


CLAIM = Claim(
    key='coda', says='With contexts of their own, planner and executor lose nothing where the context is short.',
    row=row, arms=('coda', 'flat', 'all_rows'), control='flat', measure='at_96', margin=.1,
    budget='20 updates of about 340 sampled turns: 48 games of two seats or 108 of one; 25600 demonstrated games',
    world='HopSearch of two hops, four pages a search; success on 200 held-out questions with 96, 128, 256 tokens',
    settings=dict(start=GAMES, recipe=SIZES))
