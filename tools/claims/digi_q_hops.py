"Digi-Q on stored games of HopSearch, against imitation of the games that were won; settings as in KeyDoor."
from functools import partial

from _values import GAMES, HOPSEARCH, RUN, row_of
from claims import Claim

NS = {'digi-q': (16, 1), 'n1': (1, 1)}     # N, turns of a chunk

CLAIM = Claim(
    key='digi-q-hops', of='digi-q', says='From the same stored games, best of N by a Q that was learned step by step '
    'makes a better policy than imitation of the games that were won.', row=partial(row_of, data=HOPSEARCH, ns=NS),
    arms=(*NS, 'won'), control='won', measure='success', margin=.03,
    budget=f'{GAMES} stored games, {RUN["steps"]} updates on 8 of them (won: of the won ones), nothing played',
    world='HopSearch of two hops, 13 people; success on 80 held-out questions, each asked five times',
    settings=HOPSEARCH.facts() | dict(ns=NS))
