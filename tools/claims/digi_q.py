"""Digi-Q: 4,000 stored games of a weak policy, nothing played. Best of N by a Q of frozen features, against
imitation of what was said, in won games or weighed by advantage, and best of N by a critic of Monte-Carlo returns.

Settings were chosen on seed 100, where imitation of the won games wins .70 and best of 16 .16 (.14 with threshold 0;
N=1 .27 after 25 epochs in pieces of 256): none of them changes the order."""
from functools import partial

from _values import BETA, GAMES, KEYDOOR, MOST, RUN, row_of
from claims import Claim

NS = {'digi-q': (16, 1), 'n4': (4, 1), 'n1': (1, 1), 'monte-carlo': (16, 99)}     # N, turns of a chunk

CLAIM = Claim(
    key='digi-q', says='From the same stored games, best of N by a Q that was learned step by step makes a better '
    'policy than imitation of the games that were won.', row=partial(row_of, data=KEYDOOR, ns=NS),
    arms=(*NS, 'won', 'awr'), control='won', measure='success', margin=.03,
    budget=f'{GAMES} stored games, {RUN["steps"]} updates on 8 of them (won: of the won ones), nothing played',
    world='KeyDoor of nine rooms, doors open, 8 turns; success on 80 held-out houses, each played five times',
    settings=KEYDOOR.facts() | dict(beta=BETA, most=MOST, ns=NS))
