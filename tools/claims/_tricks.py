"What the studies of tricks share: two starts, one to which the tasks are easy, and one to which they are hard."
from _practice import SETTINGS, UPDATES, house, one_thread, reinforced, share, shown, start, taught

DEMONSTRATIONS, STEPS = 38, 30
BUDGET = f'the same start and {UPDATES} updates of 64 games'
FACTS = SETTINGS | dict(demonstrations=DEMONSTRATIONS, steps=STEPS)

def both(names) -> tuple:
    "Arms: every name from the easy start, then from the hard one."
    return *names, *(f'{name}, hard' for name in names)

def tried(arm: str, seed: int, world, settings: dict, **how) -> dict:
    "A row: settings[name of the arm] are fields of the recipe; how: of the test."
    name, hard, _ = arm.partition(', hard')
    with one_thread():
        policy = start(seed)
        if not hard: taught(policy, shown(house(), policy, DEMONSTRATIONS, seed), STEPS, seed)
        before = share(policy, world, seed, **how)
        rows = reinforced(policy, world, seed, **settings[name])
        return dict(success=share(policy, world, seed, **how), before=before, entropy=round(rows[-1]['entropy'], 4),
            worst=min(one['success'] for one in rows))
