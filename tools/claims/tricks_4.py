"""Tricks or Traps, its fourth finding: not to learn from games that a limit cut off helps where the limit is short, and
not where it is long. From the weak start; the world itself allows 24 turns, the budget of training 8 or 24."""
from _practice import house
from _tricks import BUDGET, FACTS, tried
from claims import Claim

MOST, LIMITS = 24, dict(short=8, long=24)
ARMS = 'filter short', 'none short', 'filter long', 'none long'

def settings() -> dict:
    from agentlab.rollout.filters import mask_truncated
    return {arm: dict(max_turns=LIMITS[arm.split()[1]], curate=mask_truncated if 'filter' in arm else None)
        for arm in ARMS}

def world():
    "Its limit is a budget, not a rule: whoever reaches it is cut off."
    made = house(horizon=MOST)
    made.deadline = False
    return made

def row(arm: str, seed: int) -> dict: return tried(f'{arm}, hard', seed, world(), settings(), max_turns=MOST)

CLAIM = Claim(
    'tricks-4', 'With a short limit it teaches more to leave out the games that were cut off.', row, arms=ARMS,
    control='none short', measure='success', margin=.03, of='lite-ppo', budget=BUDGET,
    world=f'KeyDoor of nine rooms, doors open, trained within 8 or {MOST} turns, tested within {MOST}',
    settings=FACTS | dict(most=MOST, limits=LIMITS))
