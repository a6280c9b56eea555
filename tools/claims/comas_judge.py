"""CoMAS with SmolLM2 as the scorer: four tiny agents solve and list errors, a model that reads says what is right. By
what it says, or by what it knows (see _judges)."""
import copy
from functools import partial

from comas import AGENTS, SIZES, asked
from claims import Claim

def row(arm: str, seed: int) -> dict:
    from _attempts import one_thread
    from _judges import judges
    from _runs import learned
    from _society import START, WORDS, Shown, accuracy, largest, peers_script
    from agentlab.policy import tiny_policy
    from agentlab.selfplay.peers import play_peers
    from agentlab.selfplay.role_weights import RoleWeights
    from agentlab.train import recipes
    with one_thread():
        world, rows = largest(), []
        start = tiny_policy(Shown(peers_script(world), WORDS), seed=seed, progress=False, **START)
        society = RoleWeights(copy.deepcopy(start), AGENTS)
        if arm != 'none':
            rollout = partial(play_peers, score=judges(3)[arm])
            rows = learned(society, world, recipes.comas(**SIZES, rollout=rollout, seed=seed))
        alone = [accuracy(society.at(agent), world, 10*seed + k) for k, agent in enumerate(AGENTS)]
        return dict(accuracy=round(sum(alone)/len(alone), 4), worst=min(alone),
            second=asked(society, world, seed)['second'], right=[round(one['right'], 3) for one in rows[::4]],
            paid=[round(one['reward'], 3) for one in rows[::4]])

CLAIM = Claim(
    key='comas-judge', says='Scores by a model that reads, as it says them, are enough for tiny agents to learn from.',
    row=row, arms=('says', 'none', 'fitted'), control='none', measure='accuracy', margin=.05, of='comas',
    model='tiny agents, SmolLM2-135M as the scorer', seeds=(0, 1, 2),
    budget='25 updates of 8 problems, 4 solutions each in two rounds, from one start',
    world='the largest of three digits; 120 held-out questions to every agent alone',
    settings=dict(sizes=SIZES, start=dict(steps=400, noise=.4), known=150))
