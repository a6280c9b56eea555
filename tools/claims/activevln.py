"""ActiveVLN: games end after twice the turns of the expert's way. The turns that hopeless games would have gone on for
are played in other games; both arms play as many turns in all."""
from _attempts import share_won, turns
from _practice import SETTINGS, games, house, one_thread, reinforced, share, start
from claims import Claim

FACTOR, MOST, TURNS = 2, 24, 14_000
WINDOWS = dict(activevln=FACTOR, none=None, tight=1)

def row(arm: str, seed: int) -> dict:
    from agentlab.rollout.turns import ExpertLimit
    world = house(horizon=MOST)
    with one_thread():
        policy = start(seed)
        limited = ExpertLimit(world, WINDOWS[arm]) if WINDOWS[arm] else world
        rows = reinforced(policy, limited, seed, steps=200, turns=TURNS, max_turns=MOST)
        test = games(policy, world, seed, max_turns=MOST)
        won = test.select(test.episodes.success.bool())
        return dict(success=share_won(test), within=share(policy, house(), seed), updates=len(rows),
            turns=turns(test), turns_of_success=turns(won) if len(won) else 0.,
            trained_success=rows[-1]['success'])

CLAIM = Claim(
    'activevln', 'Games that end after twice the turns of the expert leave room for more games, and more is learned '
    'from as many turns.', row, arms=('activevln', 'none', 'tight'), control='none', measure='success', margin=.03,
    budget=f'the same start; {TURNS:,} turns of training',
    world=f'KeyDoor of nine rooms, doors open, {MOST} turns; within: 8 turns',
    settings=SETTINGS | dict(most=MOST, turns=TURNS, windows=WINDOWS))
