"Atom-Searcher: atoms that are judged, with a weight that falls, under a sound judge and one that can be fooled."
from functools import partial

from _attempts import compared
from claims import Claim

START = dict(steps=200, pool=2048, noise=.5)
SIZES = dict(steps=40, groups=12, group_size=4, test_tasks=0, max_turns=6, lr=1e-3)


def searches(episode, i):
    "What the fooled judge likes: one more search."
    return episode.turns[i].text.startswith('search')


def constant(step): return step*0. + .5
def unweighted(step): return step*0.


def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.reward.judged import asked_of, atom_reward, falling
    from agentlab.train import recipes
    world = HopSearch(2, distractors=10)
    weight = {'constant': constant, 'fooled_constant': constant, 'outcome': unweighted}.get(arm, partial(
        falling, steps=SIZES['steps']))
    fooled = dict(rollout_args=dict(ask=partial(asked_of, (searches,)))) if arm.startswith('fooled') else {}
    pleased = []
    def paid(b):
        pleased.append(b.turns.judged.nanmean().item())
        return atom_reward(b, weight=weight)
    recipe = recipes.atom_searcher(**SIZES, seed=seed, reward=paid, **fooled)
    after, before, rows = compared(world, world, world, recipe, seed, START, 200, samples=1, max_tokens=8)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    return dict(area=round(sum(one['success'] for one in rows)/len(rows), 5), success=share(after),
                before=share(before), turns=round(len(after.turns)/len(after), 4),
                won=[round(one['success'], 3) for one in rows[::3]], pleased=[round(x, 3) for x in pleased[::3]])


CLAIM = Claim(
    key='atom-searcher', says='Atoms that are judged, with a weight that falls, teach sooner than the outcome alone.',
    row=row, arms=('atom-searcher', 'outcome', 'constant', 'fooled', 'fooled_constant'), control='outcome',
    measure='area', margin=.03, budget='40 updates of 48 games in every arm',
    world='HopSearch of two hops, 13 people, paid at the end only; mean success of all games of the run',
    settings=dict(start=START, recipe=SIZES))
