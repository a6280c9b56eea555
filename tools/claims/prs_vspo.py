"PRS and VSPO: what is badly formed earns its stage, and dead groups give their place to others."
from functools import partial

from _attempts import compared
from claims import Claim

START = dict(steps=200, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=12, group_size=4, test_tasks=0, max_turns=6, lr=1e-3)


def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.reward.judged import as_drawn, drawn_by_value, staged, vspo
    from agentlab.train import recipes
    world, drawn = HopSearch(2, distractors=10), []
    def seen(b, **how):
        drawn.append((drawn_by_value(b) > 0).double().mean().item())
        return vspo(b, **how)
    make, changes = {'prs-vspo': (recipes.prs_vspo, dict(credit=seen)), 'grpo': (recipes.grpo, {}),
                     'as_drawn': (recipes.prs_vspo, dict(credit=partial(seen, count=as_drawn))),
                     'stages': (recipes.grpo, dict(reward=staged))}[arm]
    recipe = make(**SIZES, seed=seed, **changes)
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    mean = lambda xs: round(sum(xs)/max(len(xs), 1), 5)
    return dict(area=mean([one['success'] for one in rows]), success=share(after), before=share(before),
                dead_groups=mean([one['dead_groups'] for one in rows]), drawn=mean(drawn))


CLAIM = Claim(
    key='prs-vspo', says='With stages for what is badly formed, and groups drawn by their value, agents learn sooner.',
    row=row, arms=('prs-vspo', 'grpo', 'as_drawn', 'stages'), control='grpo', measure='area', margin=.03,
    budget='40 updates of 48 games in every arm',
    world='HopSearch of two hops, 13 people, paid at the end only; mean success of all games of the run',
    settings=dict(start=START, recipe=SIZES))
