"What the claims in the customer-service world share: the start, the world, and how well strangers are served."
from _attempts import compared, share_won

LEVEL, START = 2, dict(steps=300, pool=2048, noise=.25)
SIZES = dict(steps=30, groups=12, group_size=4, test_tasks=0, max_turns=12, max_tokens=8, lr=1e-3)
AREA = 'Service of level 2; success on 200 held-out tasks with users of two moods at once, 12 turns at most'

def served(recipe, seed: int, **customers):
    "(success after and before, games won on the way, as numbers of a row; episodes after); customers: of training."
    from agentlab.env import Service
    world = Service(level=LEVEL)
    after, before, rows = compared(world, Service(level=LEVEL, **customers), world, recipe, seed, START, 200, samples=1,
        max_tokens=8, max_turns=12)
    return dict(success=share_won(after), before=share_won(before),
        won=[round(one['success'], 3) for one in rows[::5]]), after
