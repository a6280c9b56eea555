"What the claims about second attempts share: a policy to begin with, a run in a folder that goes, and a test."
import copy
from contextlib import contextmanager

import torch
from _runs import learned

@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try: yield
    finally: torch.set_num_threads(before)

def begun(env, seed: int, **how):
    "A policy that has been shown some games; the seed is of its weights and of the games."
    from agentlab.policy import tiny_policy
    return copy.deepcopy(tiny_policy(env, seed=seed, progress=False, **how))

def tested(policy, env, tasks: int, seed: int, samples: int = 4, rollout=None, **how):
    "Held-out tasks, sampled at temperature 1."
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    those = env.tasks('test', tasks)
    return Batch.from_episodes((rollout or play)(policy, env, range(tasks), samples, those, seed=10**6 + seed, **how))

def compared(shown, played, asked, recipe, seed: int, start: dict, tasks: int, **how):
    """(episodes of the held-out tasks after the run and before it, its rows): a policy begins in the world `shown`, is
    trained in `played` and tested in `asked`; how: of `tested`."""
    with one_thread():
        policy = begun(shown, seed, **start)
        rows = learned(policy, played, recipe)
        after, before = (tested(p, asked, tasks, seed, **how) for p in (policy, begun(shown, seed, **start)))
    return after, before, rows

def share_won(b)->float: return round(b.episodes.success.double().mean().item(), 5)
def turns(b)->float: return round(len(b.turns)/len(b), 4)

def turns_trained(rows: list[dict])->int: return round(sum(one['turns']*one['episodes'] for one in rows))

def within(b)->list[float]:
    "Success within 1, 2, ... attempts, over all episodes."
    from agentlab.rollout.again import attempts
    grid = attempts(b).nan_to_num()
    return [round(grid[:, :k + 1].amax(1).mean().item(), 5) for k in range(grid.shape[1])]

def turns_per_success(b)->float: return round(len(b.turns)/max(int(b.episodes.success.sum()), 1), 4)
