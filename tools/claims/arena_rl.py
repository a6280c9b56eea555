"""ArenaRL: places before a judge of pairs, against marks of the same judge. Both see quality through the same noise; a
mark is a whole number near 7, asked for four times, so that both are asked about as often (28 and 32 times a group)."""
from functools import partial
from random import Random

import torch
from _attempts import turns
from _hops import SIZES, START, searched
from claims import Claim

SIZES = SIZES | dict(groups=6, group_size=8)
NOISE, VOTES = .5, 4

def quality(e)->float:
    "What is to be judged: how far the search came, whether it was right, how long it took."
    return e.success + .5*max((turn.milestone for turn in e.turns), default=0.) - .05*len(e.turns)

def heard(e, *about)->float:
    "Through noise, the same for the same question."
    return quality(e) + Random(str((e.game, e.step, *about))).gauss(0, NOISE)

def which(one, other): return heard(one, 'first', other.game) - heard(other, 'second', one.game)
def odds(differences): return 4*torch.tensor(differences, dtype=torch.float64)

def mark(sides: dict)->float:
    "The mean of some marks of 0 to 10, most of them near 7."
    (e,) = sides.values()
    return sum(min(10, max(0, round(6.5 + heard(e, vote)))) for vote in range(VOTES))/VOTES

def exact(sides: dict)->float: return quality(*sides.values())

def row(arm: str, seed: int) -> dict:
    from agentlab.reward.judged import play_ranked
    from agentlab.rollout import play
    from agentlab.rollout.delegate import play_scored
    from agentlab.train import recipes
    scored = partial(play_scored, by=play)
    rollout = {'arena-rl': partial(play_ranked, judge=odds, ask=which), 'marks': partial(scored, score=mark),
        'exact': partial(scored, score=exact)}[arm]
    found, after, _ = searched(recipes.arena_rl(**SIZES, seed=seed, rollout=rollout), seed)
    return found | dict(turns=turns(after))

CLAIM = Claim(
    key='arena-rl', says='Places in a tournament before a judge of pairs teach more than marks of the same judge.',
    row=row, arms=('arena-rl', 'marks', 'exact'), control='marks', measure='area', margin=.03,
    budget='40 updates of 48 games, 28 judgements a group (marks: 32; exact: the quality without noise)',
    world='HopSearch of two hops, 13 people, a quality heard through noise; mean success of all games of the run',
    settings=dict(start=START, recipe=SIZES, noise=NOISE, votes=VOTES))
