"""CoMAS with SmolLM2 as the scorer: four tiny agents solve and list errors, a model that reads says what is right. By
what it says, or by what it knows (see _judges)."""
from functools import partial

from comas import SIZES, alone, asked, begun
from claims import Claim

def row(arm: str, seed: int) -> dict:
    from _attempts import one_thread
    from _judges import judges
    from _runs import learned
    from agentlab.selfplay.peers import play_peers
    from agentlab.train import recipes
    with one_thread():
        (world, society), rows = begun(seed), []
        if arm != 'none':
            rollout = partial(play_peers, score=judges(3)[arm])
            rows = learned(society, world, recipes.comas(**SIZES, rollout=rollout, seed=seed))
        return alone(society, world, seed) | dict(second=asked(society, world, seed)['second'],
            right=[round(one['right'], 3) for one in rows[::4]],
            paid=[round(one['reward'], 3) for one in rows[::4]])

CLAIM = Claim(
    key='comas-judge', says='Scores by a model that reads, as it says them, are enough for tiny agents to learn from.',
    row=row, arms=('says', 'none', 'fitted'), control='none', measure='accuracy', margin=.05, of='comas',
    model='tiny agents, SmolLM2-135M as the scorer', seeds=(0, 1, 2),
    budget='25 updates of 8 problems, 4 solutions each in two rounds, from one start',
    world='the largest of three digits; 120 held-out questions to every agent alone',
    settings=dict(sizes=SIZES, start=dict(steps=400, noise=.4), known=150))
