"MINT with SmolLM2-135M and an adapter. The priming of a seed serves all its arms: nothing is trained in a test."
from functools import lru_cache

from mint import TESTS, shown, tested
from claims import Claim

PRIMED, HOW = dict(steps=40, episodes=8, noise=.35), TESTS | dict(tasks=48)

@lru_cache(1)
def primed(seed: int):
    from agentlab.policy import pretrained, prime
    return prime(pretrained('smollm2', source='package', seed=seed), shown(), seed=seed, progress=False, **PRIMED)

def row(arm: str, seed: int) -> dict: return tested(primed(seed), arm, seed, max_tokens=16, **HOW)

CLAIM = Claim(
    key='mint-real', says='With five turns a sentence of a teacher after a wrong answer is worth something to SmolLM2.',
    row=row, arms=('teacher', 'plain', 'no_tool'), control='plain', measure='at_5', margin=.05, model='SmolLM2-135M',
    seeds=(0, 1, 2), budget='320 demonstrated games; in each test the same turns and answers',
    world='HopSearch of two hops; 48 held-out questions for each budget of 1 to 5 turns, two answers at most',
    settings=dict(primed=PRIMED, tests=HOW))
