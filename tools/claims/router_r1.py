"Router-R1: what the weight of the cost buys, and what a router that is learned gains over rules."
from _attempts import begun, learned, one_thread

from claims import Claim

START = dict(steps=400, pool=4096, noise=.7)
SIZES = dict(steps=40, groups=16, group_size=4, test_tasks=0, max_turns=5, max_tokens=8, lr=1e-3)
WEIGHTS = dict(c3=.3, c0=0., c6=.6, c9=.9)


def numbers(b)->dict:
    "Share that is right, and the mean cost of an episode."
    cost = b.turns.cost.sum().item()/len(b)
    return dict(success=round(b.episodes.success.double().mean().item(), 5), cost=round(cost, 4))


def row(arm: str, seed: int) -> dict:
    from functools import partial
    from agentlab.env.routing import Routing
    from agentlab.episodes import Batch
    from agentlab.reward.prices import routed
    from agentlab.rollout import play
    from agentlab.train import recipes
    world = Routing()
    with one_thread():
        policy = begun(world, seed, **START)
        def test(): return numbers(Batch.from_episodes(play(policy, world, range(300), 2, world.tasks('test', 300), seed=10**6+seed, max_tokens=8)))
        before=test()
        rows = learned(policy, world, recipes.router_r1(**SIZES, seed=seed, reward=partial(routed, weight=WEIGHTS[arm])))
        found = test()
    print(before, [round(r['success'],2) for r in rows[::4]])
    return found

CLAIM = Claim(
    key='router-r1', says='x', row=row, arms=tuple(WEIGHTS), control='c0', measure='success', margin=.03, budget='', world='')
