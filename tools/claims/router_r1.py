"Router-R1: a router learned at four weights of the cost; with newcomers in the test, and without."
from functools import partial

from _attempts import begun, learned, one_thread

from claims import Claim

START = dict(steps=300, pool=8192, noise=.5)
SIZES = dict(steps=40, groups=16, group_size=4, test_tasks=0, max_turns=5, max_tokens=8, lr=1e-3)
WEIGHTS = {'router-r1': .3, 'free': 0., 'six': .6, 'nine': .9}
TASKS, UNIT = 300, .05  # of a test; what a unit of cost is worth in the measure, said before

def asked(policy, world, tasks, seed: int) -> dict:
    "Share right, cost and questions of an episode, share of first questions to the most skilled."
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    b = Batch.from_episodes(play(policy, world, range(len(tasks)), 2, tasks, seed=10**6 + seed, max_tokens=8))
    each = lambda x: x.double().sum().item()/len(b)
    return dict(success=each(b.episodes.success), cost=each(b.turns.cost), questions=each(b.turns.cost > 0),
        best=b.turns.right_tool.nanmean().item(), newcomer=(b.turns.newcomer == 1).sum().item()/len(b))

def row(arm: str, seed: int) -> dict:
    from agentlab.env.routing import Routing
    from agentlab.reward.gates import routed
    from agentlab.train import recipes
    world = Routing()
    known, new = world.tasks('train', TASKS, 10**6 + seed), world.tasks('test', TASKS, seed)
    with one_thread():
        policy = begun(world, seed, **START)
        before = asked(policy, world, known, seed)
        learned(policy, world, recipes.router_r1(**SIZES, seed=seed, reward=partial(routed, weight=WEIGHTS[arm])))
        after, other = asked(policy, world, known, seed), asked(policy, world, new, seed)
    found = after | {f'{name}_before': x for name, x in before.items()}
    found |= {f'{name}_new': x for name, x in other.items()}
    return {name: round(x, 4) for name, x in found.items()} | dict(
        worth=round(after['success'] - UNIT*after['cost'], 5))

CLAIM = Claim(
    key='router-r1', says='A weight on the cost buys cheaper questions for little accuracy.', row=row,
    arms=tuple(WEIGHTS), control='free', measure='worth', margin=.02, budget='40 updates of 64 games in every arm',
    world=f'Routing, three models, tasks of the known ones; worth: share right minus {UNIT} a unit of cost',
    settings=dict(start=START, recipe=SIZES, weights=WEIGHTS, tasks=TASKS))
