"A remedy for a judge that can be fooled: its atoms count only in episodes that are won."
from functools import partial

from _attempts import turns
from _hops import SIZES, START, searched
from atom_searcher import searches
from claims import Claim

def only_won(b, weight):
    "The share of pleased atoms, where the outcome is above 0; what is lost earns its outcome."
    import torch

    from agentlab.reward.basic import outcome
    from agentlab.reward.judged import atom_reward
    return torch.where(b.of_turn('outcome') > 0, atom_reward(b, weight=weight), outcome(b))

def row(arm: str, seed: int) -> dict:
    from agentlab.reward.judged import asked_of, atom_reward, falling
    from agentlab.train import recipes
    weight = partial(falling, steps=SIZES['steps'])
    paid = partial(only_won if arm == 'gated' else atom_reward, weight=weight)
    recipe = recipes.atom_searcher(**SIZES, seed=seed, reward=paid,
        rollout_args=dict(ask=partial(asked_of, (searches,))))
    found, after, _ = searched(recipe, seed)
    return found | dict(turns=turns(after))

CLAIM = Claim(
    key='atom-searcher-gated', of='atom-searcher',
    says='A judge that is pleased by every search does less harm where it counts in won '
    'episodes only.', row=row, arms=('gated', 'open'), control='open', measure='success', margin=.05,
    budget='40 updates of 48 games in both arms, the same judge and the same falling weight',
    world='HopSearch of two hops, 13 people, paid at the end only; success on 200 held-out questions',
    seeds=tuple(range(20)),  # five left it open, and a row is cheap
    settings=dict(start=START, recipe=SIZES))
