"Deep-DxSearch: does paying for what was found teach better diagnoses than paying for the answer alone?"
from functools import partial

from _attempts import compared, turns
from claims import Claim

START = dict(steps=500, pool=2048, noise=.3)
SIZES = dict(steps=60, groups=12, group_size=4, test_tasks=0, max_turns=6, lr=7e-4)
WEIGHTS = {'deep-dxsearch': (.8, .05, .15), 'answer': (0., 0., 1.), 'refer': (1., 0., 0.)}

def row(arm: str, seed: int) -> dict:
    from agentlab.env import Diagnosis
    from agentlab.train import recipes
    world, made = Diagnosis(), recipes.deep_dxsearch(**SIZES, seed=seed)
    made = recipes.deep_dxsearch(**SIZES, seed=seed, reward=partial(made.reward, weights=WEIGHTS[arm]))
    after, before, rows = compared(world, world, world, made, seed, START, 200, samples=1, max_tokens=8)
    last, share = after.last_turns(), lambda x: round(x.double().nan_to_num().mean().item(), 5)
    return dict(success=share(after.episodes.success), before=share(before.episodes.success),
        **{part: share(after.turns[part][last]) for part in ('refer', 'searched', 'answered', 'listed')},
        turns=turns(after), won=[round(one['success'], 3) for one in rows[::5]])

CLAIM = Claim(
    key='deep-dxsearch', says='Paying for what was found teaches better diagnoses than paying for the answer alone.',
    row=row, arms=('deep-dxsearch', 'answer', 'refer'), control='answer', measure='success', margin=.05,
    budget='60 updates of 48 games in every arm',
    world='Diagnosis, 12 diseases in a clinic, at most 6 turns; success is the right disease and no other, sampled on '
    '200 held-out patients', settings=dict(start=START, recipe=SIZES, weights=WEIGHTS))
