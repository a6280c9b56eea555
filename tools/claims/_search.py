"What the claims about trees share: a weak policy of KeyDoor, trees on training tasks, learning from what is stored."
import copy
from itertools import islice

import torch
from _attempts import begun, share_won, tested, turns

START, LIMITS, GAMMA, TESTED = dict(steps=300, pool=2048), dict(max_turns=24, max_tokens=8), .95, 150

def house(split: str = 'train'):
    from agentlab.env import KeyDoor
    return KeyDoor(split=split)

def weak(seed: int):
    "A policy that wins few of its games: .02 to .13 on the five seeds, .23 on seed 100."
    return begun(house(), seed, **START)

def grown(policy, tasks: int, visits: int, seed: int):
    "UCT trees on training tasks."
    from agentlab.episodes import derive
    from agentlab.rollout import Trees
    trees = Trees(policy, house(), [derive(seed, 'tree', i) for i in range(tasks)], seed=seed, **LIMITS)
    trees.grow(visits, gamma=GAMMA)
    return trees

def taught(policy, batch, loss, lr: float, epochs: int, seed: int, size: int = 64, updates: int | None = None):
    """A copy that has learned from stored groups, at most so many updates of `size` groups; loss: (log-probabilities,
    part of the batch) -> what is minimised."""
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=0.)
    group = batch.episodes.group.unique(return_inverse=True)[1]
    draw, count = torch.Generator().manual_seed(seed), int(group.max()) + 1
    parts = (part for _ in range(epochs) for part in torch.randperm(count, generator=draw).split(size))
    for some in islice(parts, updates):
        part = batch.select(torch.isin(group, some))
        optimizer.zero_grad()
        loss(policy.forward(part)[0], part).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.)
        optimizer.step()
    return policy

def imitating(logp, part):
    "Mean -log pi of the tokens that count."
    from agentlab.replay import imitation
    weight = part.action('weight').to(logp)
    return imitation(logp, part, weight).sum()/weight.sum().clamp_min(1)

def preferring(logp, part):
    "DPO by its gradient where the policy stands now, as the trainer takes it."
    from agentlab.selfplay import dpo_credit
    advantage = dpo_credit(part.with_action(old_logp=logp.detach())).to(logp)
    return -(advantage*logp).sum()

def apart(batch):
    "Every episode a group of its own, for `taught`."
    return batch.with_episodes(group=torch.arange(len(batch)))

def held_out(policy, seed: int, **how) -> dict:
    "Games won on held-out tasks, and their turns."
    b = tested(policy, house(), TESTED, seed, samples=1, **LIMITS, **how)
    return dict(success=share_won(b), turns=turns(b))
