"""Demystify's recipe, once whole and once without each of its parts, against GRPO, from the easy start of the studies
of tricks. The penalty on length begins at 18 of the 24 action tokens that a game of these houses can have."""
from functools import partial

from _practice import WHERE, house
from _tricks import BUDGET, FACTS, tried
from claims import Claim

SHORT = dict(longest=24, buffer=6)
ARMS = 'demystify', 'grpo', 'no clip-higher', 'no length', 'no trying'

def settings() -> dict:
    "Fields of the recipe of every arm; four optimiser steps an update, so that ratios have time to move."
    from agentlab.reward.shaping import tried_and_short
    from agentlab.train import recipes
    whole, few = dict(make=recipes.demystify, minibatches=4), dict(longest=10**6, buffer=1)
    shaped = lambda **how: partial(tried_and_short, **SHORT | how)
    return dict(zip(ARMS, (whole | dict(reward=shaped()), dict(minibatches=4),
        whole | dict(reward=shaped(), objective_args=dict(high=.2)),
        whole | dict(reward=shaped(**few)), whole | dict(reward=shaped(bonus=0.)))))

def row(arm: str, seed: int) -> dict: return tried(arm, seed, house(), settings())

CLAIM = Claim(
    'demystify', 'Clip-higher, a price on length and a little for trying teach more than GRPO.', row, arms=ARMS,
    control='grpo', measure='success', margin=.03, budget=BUDGET, world=WHERE,
    settings=FACTS | dict(minibatches=4, short=SHORT))
