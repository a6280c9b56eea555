"The leaderboard's places and their intervals, by hand."
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]/'tools'))
from leaderboard import board, ranks

def scored(**runs): return {recipe: dict(house=x, maze=x) for recipe, x in runs.items()}

def test_places_by_hand():
    places = ranks(*(dict(house=np.array(x), maze=np.array([.5])) for x in ([.9, .7], [.2, .4], [.8, .8])))
    assert places.tolist() == [1.5, 3., 1.5]  # two means of .65 share the first two places

def test_who_is_surely_ahead_keeps_its_place():
    rows = board(scored(grpo=[.1, .2, .3], ppo=[.7, .8, .9], rloo=[.1, .2, .3]))
    first, *others = rows
    assert first['recipe'] == 'ppo' and first['rank'] == (1., 1., 1.)
    assert first['ahead'].value == first['ahead'].low == 1
    for row in others:
        place, low, high = row['rank']
        assert place == 2.5 and 2 <= low <= place <= high <= 3 and row['ahead'].low <= .5 <= row['ahead'].high
