"""SLEA-RL: tips of the place against the same words in random order, for a policy that has learned to read tips. Every
arm is tested with what it was trained to read (arm none: with tips of the place), and without: what is gained only with
them is retrieval, what is gained without them has gone into the weights."""
from functools import partial

from _runs import learned
from _tips import START, WORLD, Everywhere, Examples, OneTip, Shuffled, begun
from claims import Claim

RUN = dict(steps=24, groups=8, group_size=8, lr=1e-3, max_turns=8, max_tokens=6, test_tasks=0)
ROOM = dict(warm_up=1, least=1, golden=2000, clusters=2000)
TESTS, EACH = 80, 3
ARMS = dict(step=(Examples, OneTip, OneTip), everywhere=(Everywhere, OneTip, OneTip),
            shuffled=(Examples, Shuffled, Shuffled), none=(Examples, lambda env, library: env, OneTip))


def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.replay import OwnLibrary
    from agentlab.rollout import play
    from agentlab.train import recipes
    kind, trained, tested = ARMS[arm]
    env, library = KeyDoor(**WORLD), kind(**ROOM)
    policy = begun(env, seed)
    def success(world):
        played = play(policy, world, range(TESTS), EACH, env.tasks('test', TESTS), max_turns=RUN['max_turns'],
                      max_tokens=RUN['max_tokens'], seed=10**6 + seed)
        return sum(e.success for e in played)/len(played)
    start = success(env)
    rows = learned(policy, env, recipes.slea(memory=partial(OwnLibrary, library=lambda: library, around=trained),
                                             seed=seed, **RUN))
    return dict(success=success(tested(env, library)), without=success(env), start=start, tips=len(library),
                last=rows[-1]['success'])


CLAIM = Claim(
    key='slea-rl', says='Tips of the place are worth more than the same words in random order.', row=row,
    arms=tuple(ARMS), control='shuffled', measure='success', margin=.05,
    budget='the same start and 24 updates of 64 games in every arm',
    world='KeyDoor(closed=0, horizon=8); success on 80 held-out houses, each played three times',
    settings=dict(start=START, run=RUN, library=ROOM))
