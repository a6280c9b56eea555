"""AgentSwift: how many designs of the recorded table are measured until one within NEAR of the best is found.

Nothing is played: assets/results/designs.json (tools/designs.py) has the score of every design, so a row costs a moment
and there are twenty seeds, of what a search draws. What a search begins with and the labels of its value model count as
measured. The constants were set on made-up additive tables, before the table was made."""
import torch
from claims import Claim

NEAR, MOST, SEEDS = .02, 60, tuple(range(20))

def guessing(seed: int):
    "No value model: guesses are drawn."
    draw = torch.Generator().manual_seed(seed)
    return lambda tried, designs: torch.rand(2, len(designs), generator=draw, dtype=torch.float64)

def of_arm(arm: str, seed: int) -> dict:
    "What a search is told."
    from agentlab.prompt import new_part, shuffled
    if arm == 'random': return dict(start=shuffled)
    if arm == 'no uncertainty': return dict(beta=0., kappa=0.)
    alone = dict(start=lambda sizes, rng: shuffled(sizes, rng)[:1], labels=0, steps=(new_part,), beta=0.)
    return alone | dict(value=guessing(seed)) if arm == 'mutate' else {}

def row(arm: str, seed: int) -> dict:
    from agentlab.prompt import search_designs
    from designs import SLOTS, scores
    table = scores()
    found = search_designs(SLOTS, lambda design: table[tuple(design.values())], MOST, seed, **of_arm(arm, seed))
    best = max(table.values())
    took = next((k for k, one in enumerate(found, 1) if one.score >= best - NEAR), MOST)
    top = lambda k: round(best - max(one.score for one in found[:k]), 4)
    return dict(spared=-took, **{f'short_{k}': top(k) for k in (10, 20, 30, 40, 60)})

CLAIM = Claim(
    key='agentswift', says='A search with a value model and its uncertainty finds a good design in fewer measurements '
    'than one that changes good designs at random.', row=row,
    arms=('agentswift', 'random', 'mutate', 'no uncertainty'), control='mutate', measure='spared', margin=3.,
    budget=f'at most {MOST} measured designs of 144', seeds=SEEDS,
    world='Ways to play HopSearch: temperature x candidates x visits x turns, one table, common seeds',
    settings=dict(near=NEAR, most=MOST))
