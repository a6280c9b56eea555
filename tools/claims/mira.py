"MiRA: turns paid for the progress that a critic has learned, against the same run without progress."
import torch
from _attempts import turns_trained
from _hops import AREA, SIZES, START, searched
from claims import Claim

SIZES = SIZES | dict(groups=48, group_size=1)

def nothing(b):
    "No progress anywhere."
    return torch.zeros_like(b.turns.reward), torch.zeros_like(b.episodes.outcome)

def given(b):
    "The progress of the environment, in place of a critic's."
    from agentlab.rollout.delegate import interpolated
    last = torch.zeros_like(b.episodes.outcome).scatter_reduce(0, b.turns.episode, b.turns.milestone, 'amax')
    return interpolated(b), last

ARMS = dict(mira={}, none=dict(progress=nothing), given=dict(progress=given), outcome=dict(lam=1.))

def row(arm: str, seed: int) -> dict:
    from agentlab.train import recipes
    found, _, rows = searched(recipes.mira(**SIZES, seed=seed, credit_args=ARMS[arm]), seed)
    return found | dict(explained=rows[-1]['progress_explained'], turns_trained=turns_trained(rows))

CLAIM = Claim(
    key='mira', says='Paid for what they add to a learned progress, turns are learned sooner than by the outcome.',
    row=row, arms=tuple(ARMS), control='none', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm',
    world=AREA, settings=dict(start=START, recipe=SIZES))
