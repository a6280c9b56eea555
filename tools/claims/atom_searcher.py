"Atom-Searcher: atoms that are judged, with a weight that falls, under a sound judge and one that can be fooled."
from functools import partial

from _attempts import turns
from _hops import AREA, SIZES, START, searched
from claims import Claim

def searches(episode, i):
    "What the fooled judge likes: one more search."
    return episode.turns[i].text.startswith('search')

def constant(step): return step*0. + .5
def unweighted(step): return step*0.

def row(arm: str, seed: int) -> dict:
    from agentlab.reward.judged import asked_of, atom_reward, falling
    from agentlab.train import recipes
    weight = {'constant': constant, 'fooled_constant': constant, 'outcome': unweighted}.get(arm, partial(
        falling, steps=SIZES['steps']))
    fooled = dict(rollout_args=dict(ask=partial(asked_of, (searches,)))) if arm.startswith('fooled') else {}
    pleased = []
    def paid(b):
        pleased.append(b.turns.judged.nanmean().item())
        return atom_reward(b, weight=weight)
    found, after, rows = searched(recipes.atom_searcher(**SIZES, seed=seed, reward=paid, **fooled), seed)
    return found | dict(turns=turns(after), won=[round(one['success'], 3) for one in rows[::3]],
        pleased=[round(x, 3) for x in pleased[::3]])

CLAIM = Claim(
    key='atom-searcher', says='Atoms that are judged, with a weight that falls, teach sooner than the outcome alone.',
    row=row, arms=('atom-searcher', 'outcome', 'constant', 'fooled', 'fooled_constant'), control='outcome',
    measure='area', margin=.03, budget='40 updates of 48 games in every arm',
    world=AREA, seeds=tuple(range(20)),  # five left it open, and a row of the first two arms is cheap
    settings=dict(start=START, recipe=SIZES))
