"Step-Q: of five candidates the one that a copy prefers that has learned from trees, against imitation of the trees."
from functools import lru_cache

from _attempts import one_thread
from _search import LIMITS, START, TESTED, apart, grown, held_out, imitating, preferring, taught, weak
from claims import Claim

TREES, VISITS, K, LR, EPOCHS = 64, 64, 5, 1e-3, 4
ARMS = ('q', 'imitated', 'likeliest', 'sampled', 'transferred', 'other likeliest')

@lru_cache(2)
def lessons(seed: int):
    "The policy, pairs and won games of its trees, the copy that learned the pairs, and what the trees cost."
    from agentlab.episodes import Batch
    from agentlab.rollout import step_pairs
    policy = weak(seed)
    trees = grown(policy, TREES, VISITS, seed)
    pairs = Batch.from_episodes(step_pairs(trees))
    pairs = pairs.with_action(ref_logp=policy.logprobs(pairs)[0].double())
    games = Batch.from_episodes(trees.finished())
    steps = sum(spent['steps'] for spent in trees.spent)
    trees.close()
    won = games.select(games.episodes.success)
    return policy, won, taught(policy, pairs, preferring, LR, EPOCHS, seed), pairs, steps

def ordered(student, policy, pairs) -> float:
    "Share of the pairs that the copy puts in the order of the tree."
    from agentlab.selfplay.preferences import episode_logp
    q = episode_logp(pairs, student.logprobs(pairs)[0].double() - pairs.action('ref_logp')).view(-1, 2)
    return round((q[:, 0] > q[:, 1]).double().mean().item(), 4)

def row(arm: str, seed: int)->dict:
    from agentlab.rollout import Choosing, likelihood, preference_q
    with one_thread():
        policy, won, student, pairs, steps = lessons(seed)
        agent = {'imitated': lambda: taught(policy, apart(won), imitating, LR/3, EPOCHS, seed, 32),
            'transferred': lambda: weak(seed + 1000), 'other likeliest': lambda: weak(seed + 1000)}.get(
            arm, lambda: policy)()
        score = preference_q(student, policy) if arm in ('q', 'transferred') else likelihood
        sampler = None if arm == 'sampled' else Choosing(agent.sampler(), score, K)
        return held_out(agent, seed, sampler=sampler) | dict(
            ordered=ordered(student, policy, pairs), pairs=len(pairs)//2, won_games=len(won), steps=steps)

CLAIM = Claim(
    key='step-q', says='Of five candidates, the one with the largest step-level Q wins more games than the likeliest '
    'of five by a policy that has imitated the won games of the same trees.',
    row=row, arms=ARMS, control='imitated', measure='success', margin=.05,
    budget=f'the same {TREES} trees of {VISITS} visits; {K} candidates a turn; {EPOCHS} passes over what is learned',
    world=f'KeyDoor 3 x 3, {TESTED} held-out houses, temperature 1',
    settings=dict(start=START, limits=LIMITS, trees=TREES, visits=VISITS, k=K, lr=LR, epochs=EPOCHS))
