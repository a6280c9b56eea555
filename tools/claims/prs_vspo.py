"PRS and VSPO: what is badly formed earns its stage, and dead groups give their place to others."
from functools import partial

from _hops import AREA, SIZES, START, searched
from claims import Claim

def row(arm: str, seed: int) -> dict:
    from agentlab.reward.judged import as_drawn, drawn_by_value, staged, vspo
    from agentlab.train import recipes
    drawn = []
    def seen(b, **how):
        drawn.append((drawn_by_value(b) > 0).double().mean().item())
        return vspo(b, **how)
    make, changes = {'prs-vspo': (recipes.prs_vspo, dict(credit=seen)), 'grpo': (recipes.grpo, {}),
        'as_drawn': (recipes.prs_vspo, dict(credit=partial(seen, count=as_drawn))),
        'stages': (recipes.grpo, dict(reward=staged))}[arm]
    found, _, rows = searched(make(**SIZES, seed=seed, **changes), seed)
    mean = lambda xs: round(sum(xs)/max(len(xs), 1), 5)
    return found | dict(dead_groups=mean([one['dead_groups'] for one in rows]), drawn=mean(drawn))

CLAIM = Claim(
    key='prs-vspo', says='With stages for what is badly formed, and groups drawn by their value, agents learn sooner.',
    row=row, arms=('prs-vspo', 'grpo', 'as_drawn', 'stages'), control='grpo', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm',
    world=AREA, seeds=tuple(range(20)),  # five left it open, and a row is cheap
    settings=dict(start=START, recipe=SIZES))
