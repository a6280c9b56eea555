"""Demystifying RL in agentic reasoning, its third finding: many different tasks keep entropy up. As many games of 8, 32
or 128 houses; there are fewer than 256."""
from _practice import SETTINGS, UPDATES, WHERE, house, in_rounds, one_thread, reinforced, share, start
from claims import Claim

TASKS = '128', '8', '32'

def row(arm: str, seed: int) -> dict:
    world = house()
    with one_thread():
        policy = start(seed)
        rows = reinforced(policy, world, seed, schedule=in_rounds(world.tasks('train', int(arm), seed)))
        return dict(entropy=round(rows[-1]['entropy'], 4), success=share(policy, world, seed),
            trained=rows[-1]['success'])

CLAIM = Claim(
    'demystify-3', 'Reinforcement on many different tasks ends with more entropy than on a few.', row, arms=TASKS,
    control='8', measure='entropy', margin=.03, of='demystify',
    budget=f'the same start and {UPDATES} updates of 64 games', world=WHERE, settings=SETTINGS)
