"MARS-SQL: a validator that was taught on the answers of the reinforced policy, against the majority of eight results."
from functools import partial

from _sql import ARMS, SIZES, START, TAUGHT, TEST, row
from claims import Claim

CLAIM = Claim(
    key='mars-sql', says='Of eight candidates the validator hands in a right one more often than the majority does.',
    row=partial(row, True), arms=ARMS, control='majority', measure='accuracy', margin=.02,
    budget='the same eight candidates of the same policy in every arm',
    world='SqlWorld for three seats, all levels; 10 updates of 36 games; accuracy on 150 held-out questions',
    settings=dict(start=START, recipe=SIZES, taught=TAUGHT, test=TEST))
