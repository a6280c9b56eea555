"What the claims about a choice among candidates share: a policy, a validator taught on its answers, eight candidates."
import copy
from functools import lru_cache

import torch
from _attempts import begun, one_thread
from _runs import learned

START = dict(steps=300, pool=2048, noise=.5)
SIZES = dict(steps=10, groups=12, max_turns=8, test_tasks=0, lr=1e-3)
TAUGHT = dict(updates=40, questions=16, games=4, lr=2e-3)
TEST = dict(questions=150, candidates=8)

def taught(policy, world, seed: int, updates: int, questions: int, games: int, lr: float):
    "A copy that has imitated true verdicts about the answers of the policy, to questions of the training split."
    from agentlab.episodes import Batch, derive
    from agentlab.policy.tiny import imitate
    from agentlab.rollout.sql_seats import play_taught
    judge = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(judge.model.parameters(), lr=lr, betas=(.9, .95))
    for update in range(updates):
        seeds = [derive('taught', seed, update, i) for i in range(questions)]
        played = play_taught(policy, world, seeds, games, max_tokens=32, max_turns=8, seed=derive(seed, update))
        imitate(judge, Batch.from_episodes([e for e in played if e.seat == 'validator' and e.turns]))
        torch.nn.utils.clip_grad_norm_(judge.model.parameters(), 1.)
        optimizer.step()
        optimizer.zero_grad()
    return judge

@lru_cache(1)
def chosen(seed: int, reinforced: bool) -> dict:
    "What is handed in on the same candidates, by each way of choosing."
    from agentlab.env import SqlWorld
    from agentlab.rollout import play
    from agentlab.rollout.sql_seats import SqlSeats, picked, validator
    from agentlab.train import recipes
    world = SqlSeats(SqlWorld())
    with one_thread():
        policy = begun(world, seed, **START)
        judge = policy
        if reinforced:
            learned(policy, world, recipes.mars_sql(**SIZES, seed=seed))
            judge = taught(policy, world, seed, **TAUGHT)
        tasks = world.tasks('test', TEST['questions'])
        games = play(policy, world, range(len(tasks)), TEST['candidates'], tasks, max_tokens=32, seed=10**6 + seed)
        return picked(games, world, validator(judge, world))

def row(reinforced: bool, arm: str, seed: int) -> dict:
    found = chosen(seed, reinforced)
    return dict(accuracy=round(found[dict(zip(ARMS, NAMES))[arm]], 5), auc=round(found['auc'], 4))

ARMS, NAMES = ('mars-sql', 'majority', 'one', 'oracle'), ('validator', 'majority', 'one', 'oracle')
