"""Tricks or Traps, its third finding: a weak start learns from the mean over tokens, a trained one from the mean over
sequences. Here a sequence is an episode."""
from _practice import WHERE, house
from _tricks import BUDGET, FACTS, both, tried
from claims import Claim

SETTINGS = {per: dict(loss_per=per) for per in ('episode', 'token')}

def row(arm: str, seed: int) -> dict: return tried(arm, seed, house(), SETTINGS)

CLAIM = Claim(
    'tricks-3', 'From a trained start a loss that counts episodes equally teaches more than one that counts tokens '
    'equally.', row, arms=both(SETTINGS), control='token', measure='success', margin=.03, of='lite-ppo', budget=BUDGET,
    world=WHERE, settings=FACTS)
