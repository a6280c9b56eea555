"""A practitioner's guide, its second finding: twice the turns of the shortest way are enough. What is gained from one
to two times, against what is gained from two to four; each of the three limits has a run, and a test, of its own."""
from _practice import SETTINGS, UPDATES, house, one_thread, reinforced, share, start
from claims import Claim

STEPS = dict(near=(1, 2), far=(2, 4))
MOST = 32  # turns: four times the longest way of these houses

def learned_within(factor: int, seed: int) -> float:
    "Held-out success of a policy that was trained, and is tested, with so many times the turns of the expert."
    from agentlab.rollout.turns import ExpertLimit
    policy, world = start(seed), ExpertLimit(house(horizon=MOST), factor)
    reinforced(policy, world, seed, max_turns=MOST)
    return share(policy, world, seed, max_turns=MOST)

def row(arm: str, seed: int) -> dict:
    with one_thread():
        before, after = (learned_within(factor, seed) for factor in STEPS[arm])
    return dict(gain=round(after - before, 5), before=before, after=after)

CLAIM = Claim(
    'practitioner-limit', 'From one to two times the turns of the shortest way more is gained than from two to four.',
    row, arms=tuple(STEPS), control='far', measure='gain', margin=.03, of='practitioner',
    budget=f'the same start and {UPDATES} updates of 64 games for every limit',
    world='KeyDoor of nine rooms, doors open; the turns of a game follow from its shortest way',
    settings=SETTINGS | dict(most=MOST))
