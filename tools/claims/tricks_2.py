"""Tricks or Traps, its second finding: to let good tokens rise further (clip-higher) keeps up the entropy of a trained
start and helps it; a weak start gains little. Four optimiser steps an update, so that ratios have time to move."""
from _practice import WHERE, house
from _tricks import BUDGET, FACTS, both, tried
from claims import Claim

SETTINGS = {f'{high}': dict(minibatches=4, objective_args=dict(high=high)) for high in (.28, .2, .32)}

def row(arm: str, seed: int) -> dict: return tried(arm, seed, house(), SETTINGS)

CLAIM = Claim(
    'tricks-2', 'From a trained start good tokens that may rise by .28 learn more than such that may rise by .2.', row,
    arms=both(SETTINGS), control='0.2', measure='success', margin=.03, of='lite-ppo', budget=BUDGET, world=WHERE,
    settings=FACTS | dict(minibatches=4))
