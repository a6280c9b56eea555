"""SLEA-RL with SmolLM2-135M and an adapter, primed with tips. Projected from one update, a row takes a quarter of an
hour on one idle core (OMP_NUM_THREADS=1); none has been played."""
from _tips import ROOM, compared
from claims import Claim

WORLD = dict(size=2, closed=1, horizon=7)
PRIMED = dict(steps=20, episodes=8, noise=.2)
RUN = dict(steps=6, groups=4, group_size=4, max_turns=7, max_tokens=8, test_tasks=0, checkpoint_every=6)
TESTS = dict(tests=12, each=1)


def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.policy import pretrained, prime
    from agentlab.replay.experience import Tipped
    from agentlab.train import recipes
    from agentlab.train.trainer import for_pretrained
    env = KeyDoor(**WORLD)
    policy = prime(pretrained('smollm2', source='package', seed=seed), Tipped(env), seed=seed, progress=False, **PRIMED)
    how = {name: RUN[name] for name in ('groups', 'group_size', 'max_tokens')}
    return compared(arm, seed, env, policy, lambda memory: for_pretrained(
        recipes.slea(memory=memory, seed=seed, **RUN), **how), **TESTS)


CLAIM = Claim(
    key='slea-rl-real', says='SmolLM2 gains more by tips of the place than by the same words in random order.', row=row,
    arms=('step', 'shuffled', 'none'), control='shuffled', measure='success', margin=.05, model='SmolLM2-135M',
    seeds=(0, 1, 2), budget='20 supervised updates with tips and 6 updates of 16 games in every arm',
    world='KeyDoor(size=2, closed=1, horizon=7); success on 12 held-out houses',
    settings=dict(primed=PRIMED, run=RUN, library=ROOM, tests=TESTS))
