"LMRL-Gym: six ways to learn, in Twenty Questions."
from _lmrl import SHARED, row

from claims import Claim

CLAIM = Claim(key='lmrl-gym', row=row, world='Twenty Questions, 8 things, 12 turns; return between chance (0) and the '
    'best player (1)', **SHARED)
