"What the authors' own code computes, written down as plain loops, against ours: brackets, agents of one game, turns updated in order, old successes."
from random import Random

import pytest
import torch

from agentlab.reward.tournament import single_elimination


def knock_out(field, better):
    "Rounds of a knock-out as the authors play them: neighbours meet, and an odd one out stands first in the next round."
    rounds = []
    while len(field) > 1:
        pairs = [(field[i], field[i+1]) for i in range(0, len(field)-1, 2)]
        waits = [field[-1]] if len(field) % 2 else []
        rounds.append(pairs)
        field = waits + [i if better(i, j) else j for i, j in pairs]
    return rounds, field[0]


@pytest.mark.parametrize('n', range(2, 18))
def test_the_odd_one_out_goes_first_into_the_next_round(n):
    draw, met = Random(n), []
    strength = [draw.random() for _ in range(n)]
    def compare(i, j): met.append((i, j)); return strength[i], strength[j]
    rewards = single_elimination(compare, n, draw)
    seeds, slots = sorted(range(n), key=lambda p: -strength[p]), [0]
    while len(slots) < n: slots = [seed for k in slots for seed in (k, 2*len(slots)-1-k)]
    rounds, winner = knock_out([seeds[k] for k in slots if k < n], lambda i, j: strength[i] >= strength[j])
    assert met[n-1:] == [pair for pairs in rounds for pair in pairs] and rewards[winner] == 1
    if n in (5, 7, 9): assert set(met[-1]) == set(seeds[:2])
