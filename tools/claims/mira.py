"MiRA: turns paid for the progress that a critic has learned, against the same run without progress."
import torch
from _attempts import compared, turns_trained
from claims import Claim

START = dict(steps=200, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=48, group_size=1, test_tasks=0, max_turns=6, lr=1e-3)


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
    from agentlab.env import HopSearch
    from agentlab.train import recipes
    world = HopSearch(2, distractors=10)
    recipe = recipes.mira(**SIZES, seed=seed, credit_args=ARMS[arm])
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    area = round(sum(one['success'] for one in rows)/len(rows), 5)
    return dict(area=area, success=share(after), before=share(before),
                explained=rows[-1]['progress_explained'], turns_trained=turns_trained(rows))


CLAIM = Claim(
    key='mira', says='Paid for what they add to a learned progress, turns are learned sooner than by the outcome.',
    row=row, arms=tuple(ARMS), control='none', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm',
    world='HopSearch of two hops, 13 people, paid at the end only; mean success of all games of the run',
    settings=dict(start=START, recipe=SIZES))
