"""SLEA-RL with SmolLM2-135M and an adapter: 20 supervised updates with tips, then as many updates of games in every
arm. A row is made to take less than half an hour on two cores: OMP_NUM_THREADS=2."""
from _tips import ROOM, WORLD, compared
from claims import Claim

PRIMED = dict(steps=20, episodes=4, noise=.2)
RUN = dict(steps=5, groups=4, group_size=4, max_turns=8, max_tokens=8, test_tasks=0, checkpoint_every=5)
TESTS = dict(tests=20, each=1)


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
    seeds=(0, 1, 2), budget='20 supervised updates with tips and 5 updates of 16 games in every arm',
    world='KeyDoor(closed=0, horizon=8); success on 20 held-out houses',
    settings=dict(primed=PRIMED, run=RUN, library=ROOM, tests=TESTS))
