"What the claims about the critic of a run share: nine open rooms, a weak start, and what is measured of a run there."
from statistics import mean

from _attempts import compared, share_won
from _values import KEYDOOR

RUN = dict(steps=24, groups=8, group_size=8, test_tasks=0, **KEYDOOR.limits)
WHERE = 'KeyDoor of nine rooms, doors open, 8 turns'

def watched(recipe, seed: int) -> dict:
    """Share of games won over a run, after it and before; share of the variance of its targets that the critic explains
    before it learns from them, mean over the updates from the second on (0: there is no critic)."""
    env = KEYDOOR.made()
    after, before, rows = compared(env, env, env, recipe, seed, KEYDOOR.start, KEYDOOR.tasks, samples=2,
        **KEYDOOR.limits)
    known = [one['value_explained'] for one in rows[1:] if one.get('value_explained') is not None]
    return dict(area=round(mean(one['success'] for one in rows), 5), success=share_won(after),
        before=share_won(before), explained=round(mean(known), 5) if known else 0.)
