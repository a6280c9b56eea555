"""LIMI: few demonstrations that were chosen, against few and many at random. The pool is of an imperfect demonstrator;
chosen are the longest games that were won, which hold the slips and how one recovers from them. Imitation alone."""
from _practice import IMITATION, SETTINGS, games, house, one_thread, share_won, shown, start, taught
from claims import Claim

WORLD, POOL, FEW, STEPS, NOISE = dict(closed=2, horizon=12), 3000, 30, 80, .25
ARMS = 'chosen', 'many', 'few', 'few, no slips'

def row(arm: str, seed: int) -> dict:
    from agentlab.train.practice import longest
    world = house(**WORLD)
    with one_thread():
        policy = start(seed)
        pool = shown(house(**WORLD), policy, POOL if arm in ('chosen', 'many') else FEW, seed,
            0. if arm == 'few, no slips' else NOISE)
        used = longest(pool, FEW) if arm == 'chosen' else pool
        test = games(taught(policy, used, STEPS, seed), world, seed)
        return dict(success=share_won(test), demonstrations=len(used),
            turns_shown=round(sum(len(game.turns) for game in used)/len(used), 2))

CLAIM = Claim(
    'limi', 'A few demonstrations that were chosen teach more than many at random.', row, arms=ARMS, control='many',
    measure='success', margin=.03,
    budget=f'the same start and {STEPS} updates of {IMITATION["episodes"]} games (of the chosen: of all {FEW})',
    world='KeyDoor of nine rooms, two doors shut, 12 turns',
    settings=SETTINGS | dict(pool=POOL, few=FEW, steps=STEPS, noise=NOISE))
