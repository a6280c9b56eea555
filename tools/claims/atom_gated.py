"A remedy for a judge that can be fooled: its atoms count only in episodes that are won."
from functools import partial

from _attempts import compared
from atom_searcher import SIZES, START, searches
from claims import Claim


def only_won(b, weight):
    "The share of pleased atoms, where the outcome is above 0; what is lost earns its outcome."
    import torch

    from agentlab.reward.basic import at_end
    from agentlab.reward.judged import atom_reward
    worth = b.episodes.outcome.new_zeros(len(b)).index_add(0, b.turns.episode, atom_reward(b, weight=weight))
    return at_end(b, torch.where(b.episodes.outcome > 0, worth, b.episodes.outcome))


def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.reward.judged import asked_of, atom_reward, falling
    from agentlab.train import recipes
    world, weight = HopSearch(2, distractors=10), partial(falling, steps=SIZES['steps'])
    paid = partial(only_won if arm == 'gated' else atom_reward, weight=weight)
    recipe = recipes.atom_searcher(**SIZES, seed=seed, reward=paid,
                                   rollout_args=dict(ask=partial(asked_of, (searches,))))
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    return dict(success=share(after), before=share(before), turns=round(len(after.turns)/len(after), 4),
                area=round(sum(one['success'] for one in rows)/len(rows), 5))


CLAIM = Claim(
    key='atom-searcher-gated', says='A judge that is pleased by every search does less harm where it counts in won '
    'episodes only.', row=row, arms=('gated', 'open'), control='open', measure='success', margin=.05,
    budget='40 updates of 48 games in both arms, the same judge and the same falling weight',
    world='HopSearch of two hops, 13 people, paid at the end only; success on 200 held-out questions',
    settings=dict(start=START, recipe=SIZES))
