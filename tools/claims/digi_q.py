"""Digi-Q: 4,000 stored games of a weak policy, nothing played. Best of N by a Q of frozen features, against
imitation of what was said, in won games or weighed by advantage, and best of N by a critic of Monte-Carlo returns."""
from functools import partial

from _values import BETA, GAMES, MOST, RUN, START, VALUES, WORLD, row_of
from claims import Claim

NS = {'digi-q': (16, 1), 'n4': (4, 1), 'n1': (1, 1), 'monte-carlo': (16, 99)}     # N, turns of a chunk

CLAIM = Claim(
    key='digi-q', says='From the same stored games, best of N by a Q that was learned step by step makes a better '
    'policy than imitation of the games that were won.', row=partial(row_of, ns=NS),
    arms=(*NS, 'won', 'awr'), control='won', measure='success', margin=.03,
    budget=f'{GAMES} stored games, {RUN["steps"]} updates on 8 of them (won: of the won ones), nothing played',
    world='KeyDoor of nine rooms, doors open, 8 turns; success on 80 held-out houses, each played five times',
    settings=dict(start=START, world=WORLD, values=VALUES, run=RUN, beta=BETA, most=MOST, ns=NS))
