"""Stop Regressing: the critic of PPO as a classifier (HL-Gauss) against the same head with squared error. Each head has
the learning rate that was best for it on seed 100."""
from functools import partial

from _critics import RUN, WHERE, watched
from _values import HOUSES, KEYDOOR
from claims import Claim

RUN = RUN | dict(lr=1e-3)
HEADS = {'stop-regressing': dict(bins=101, lr=.01), 'regression': dict(bins=1, lr=.01)}

def row(arm: str, seed: int) -> dict:
    from agentlab.train import Critic, recipes
    return watched(recipes.ppo(critic=partial(Critic, **HEADS[arm]), seed=seed, **RUN), seed)

CLAIM = Claim(
    key='stop-regressing', says='A critic that learns a histogram by cross-entropy knows more of the returns to come '
    'than the same critic with squared error.', row=row, arms=tuple(HEADS), control='regression', measure='explained',
    margin=.03, budget=f'the same start and {RUN["steps"]} updates of 64 games; explained variance of the targets of '
    'games that the critic has not learned from yet, mean over the updates from the second on',
    world=f'{WHERE}; PPO with a value by turn',
    settings=dict(start=KEYDOOR.start, run=RUN, heads=HEADS, world=HOUSES))
