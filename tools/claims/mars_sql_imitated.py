"MARS-SQL before reinforcement: the errors of the candidates are those of a demonstrator, and all alike."
from functools import partial

from _sql import ARMS, START, TEST, row
from claims import Claim

CLAIM = Claim(
    key='mars-sql-imitated', of='mars-sql',
    says='Of eight candidates the validator hands in a right one more often than the majority, where errors are alike.',
    row=partial(row, False), arms=ARMS, control='majority', measure='accuracy', margin=.02,
    budget='the same eight candidates of the same policy in every arm',
    world='SqlWorld for three seats, all levels, after imitation alone; accuracy on 150 held-out questions',
    settings=dict(start=START, test=TEST))
