"""A practitioner's guide, its first finding: what is learned in small worlds helps in large ones. Four rooms against
nine; the start has been shown games in nine, weakly, so that every name of a room has been read."""
from _practice import SETTINGS, UPDATES, WHERE, house, one_thread, reinforced, share, start
from claims import Claim

WORLDS = dict(small=dict(size=2), large=dict(), shut=dict(closed=2, horizon=12))

def row(arm: str, seed: int) -> dict:
    with one_thread():
        policy = start(seed)
        if arm in WORLDS: reinforced(policy, house(**WORLDS[arm]), seed)
        return {f'on_{name}': share(policy, house(**how), seed) for name, how in WORLDS.items() if name != 'small'}

CLAIM = Claim(
    'practitioner-size', 'What is learned in small houses helps in large ones.', row,
    arms=('small', 'start', 'large', 'shut'), control='start', measure='on_large', margin=.03, of='practitioner',
    budget=f'the same start; {UPDATES} updates of 64 games, the start itself none',
    world=f'{WHERE}; trained in houses of four rooms (small), of nine (large), of nine with two doors shut',
    settings=SETTINGS)
