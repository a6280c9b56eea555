"""SLEA-RL: tips of the place against the same words in random order, for a policy that has learned to read tips. Every
arm is tested with what it was trained to read (arm none: with tips of the place), and without: what is gained only with
them is retrieval, what is gained without them has gone into the weights."""
from _tips import ARMS, ROOM, START, WORLD, begun, compared
from claims import Claim

RUN = dict(steps=24, groups=8, group_size=8, lr=1e-3, max_turns=8, max_tokens=6, test_tasks=0)
TESTS = dict(tests=80, each=3)

def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.train import recipes
    env = KeyDoor(**WORLD)
    return compared(arm, seed, env, begun(env, seed), lambda memory: recipes.slea(memory=memory, seed=seed, **RUN),
        **TESTS)

CLAIM = Claim(
    key='slea-rl', says='Tips of the place are worth more than the same words in random order.', row=row,
    arms=tuple(ARMS), control='shuffled', measure='success', margin=.05,
    budget='the same start and 24 updates of 64 games in every arm',
    world='KeyDoor(closed=0, horizon=8); success on 80 held-out houses, each played three times',
    settings=dict(start=START, run=RUN, library=ROOM, tests=TESTS))
