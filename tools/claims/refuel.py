"""REFUEL: the loss of a forked turn, against the same loss on pairs of whole games, DPO on the forked replies, and
GRPO. Recorded beside: how far the replies of a pair have moved apart after an update, and how far eta times
their outcomes are."""
import math
from functools import partial
from statistics import mean

from _hops import AREA, SIZES, START, searched
from claims import Claim

STEPS, PASSES, LR, BETA = 30, 4, 1e-3, .1
SIZES = SIZES | dict(steps=STEPS, lr=LR)
PAIRS = dict(groups=24, group_size=2)

def dpo(logp, b, pairs, eta):
    "(pairs,) DPO on the two replies of a fork, that of the better game against the other; 0 for a tie."
    import torch
    from agentlab.credit import gaps
    better = _apart(b, pairs).sign()
    return torch.where(better == 0, 0, -torch.nn.functional.logsigmoid(eta*better*gaps(logp, b, pairs)))

def _apart(b, pairs): return b.episodes.outcome[pairs.first] - b.episodes.outcome[pairs.second]

def watched(b, policy, loss, seen: list, ahead: float = 1, weigh: bool = True, eta: float = 1., **how):
    """As `refuel_updates`, for any loss of pairs; `seen` gets how far the replies have moved apart, and how far the
    outcomes are, as means over the pairs whose outcomes differ."""
    from agentlab.credit import descend, fork_pairs, gaps
    pairs = fork_pairs(b)
    weight = pairs.turns**float(weigh)
    found = yield from _sent(descend(b, lambda x: (weight*loss(x, b, pairs, eta, **how)).sum()/weight.sum(), PASSES))
    apart = _apart(b, pairs)
    moved = (gaps(found.double(), b, pairs, ahead)*apart.sign())[apart != 0]
    if len(moved): seen.append((moved.mean().item(), eta*apart[apart != 0].abs().mean().item()))

def _sent(updates):
    "Hand on what `updates` yields, and give back the log-probabilities after its last step."
    sent = None
    while True:
        try: sent = yield (next(updates) if sent is None else updates.send(sent))
        except StopIteration: return sent

def row(arm: str, seed: int) -> dict:
    from agentlab.credit import refuel
    from agentlab.rollout import play
    from agentlab.train import recipes
    seen = []
    of = dict(refuel=dict(loss=refuel), dpo=dict(loss=dpo, eta=BETA),
        whole=dict(loss=partial(refuel, ahead=math.inf), ahead=math.inf, weigh=False))
    if arm == 'grpo': recipe = recipes.grpo(**SIZES, seed=seed, minibatches=PASSES)
    else:
        changes = dict(rollout=play) if arm == 'whole' else {}
        recipe = recipes.refuel(**SIZES | PAIRS | changes, seed=seed, temperature=1.,
            updates=partial(watched, seen=seen, **of[arm]))
    found, _, _ = searched(recipe, seed)
    moved, wanted = map(mean, zip(*seen)) if seen else (0., 0.)
    return found | dict(moved=round(moved, 4), wanted=round(wanted, 4))

CLAIM = Claim(
    key='refuel', says='Two futures of one turn teach more than the same loss on whole games.', row=row,
    arms=('refuel', 'whole', 'dpo', 'grpo'), control='whole', measure='area', margin=.03,
    budget=f'{STEPS} updates of 48 games, {PASSES} optimiser steps each', world=AREA,
    settings=dict(start=START, recipe=SIZES, pairs=PAIRS, passes=PASSES, beta=BETA))
