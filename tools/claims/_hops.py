"What the claims in a search of two hops share: the start, the world, and how soon a recipe learns."
from _attempts import compared, share_won, tested

START = dict(steps=200, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=12, group_size=4, test_tasks=0, max_turns=6, lr=1e-3)
AREA = 'HopSearch of two hops, 13 people, paid at the end only; mean success of all games of the run'

def searched(recipe, seed: int):
    """(area, success after and before, as numbers of a row; episodes of 200 held-out questions after the run; its
    rows)"""
    from agentlab.env import HopSearch
    world = HopSearch(2, distractors=10)
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    area = round(sum(one['success'] for one in rows)/len(rows), 5)
    return dict(area=area, success=share_won(after), before=share_won(before)), after, rows

def share(policy, world, seed: int):
    "(share of 200 held-out questions that are answered, sampled; the episodes)"
    test = tested(policy, world, 200, seed, samples=1, max_turns=SIZES['max_turns'], max_tokens=8)
    return share_won(test), test
