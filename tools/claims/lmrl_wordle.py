"LMRL-Gym: six ways to learn, in Wordle."
from functools import partial

from _lmrl import SHARED, row

from claims import Claim

CLAIM = Claim(key='lmrl-gym-wordle', of='lmrl-gym', row=partial(row, name='wordle'),
    world='Wordle with 60 words; return between chance (0) and the best player (1)', **SHARED)
