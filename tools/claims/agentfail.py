"In the spirit of AgentFail: do tags find the turn that lost a game?"
from _attempts import begun
from _hops import START

from claims import Claim

QUESTIONS, HOW = 200, dict(max_turns=6, max_tokens=8)

def row(arm: str, seed: int) -> dict:
    "A row: of the turns that an arm looks at, how many are decisive."
    import pandas as pd
    from agentlab.env import HopSearch
    from agentlab.reward.faults import roots, tagged
    from agentlab.rollout import play
    world = HopSearch(2, distractors=10)
    policy = begun(world, seed, **START)
    games = play(policy, world, range(QUESTIONS), 1, world.tasks('test', QUESTIONS), seed=seed, **HOW)
    lost = {i: e for i, e in enumerate(games) if not e.success}
    turns = pd.DataFrame([(i, k) for i, e in lost.items() for k in range(len(e.turns))], columns=['episode', 'turn'])
    every = roots(policy, world, games, turns, seed=seed, **HOW)
    known = tagged(games)[['episode', 'turn']].drop_duplicates().merge(every)
    share = dict(tags=known.decisive.mean(), random=every.groupby('episode').decisive.mean().mean())[arm]
    told = known.root.sum() if arm == 'tags' else every.root.sum()
    return dict(decisive=round(float(share), 5), lost=len(lost), roots=int(told))

CLAIM = Claim(
    key='agentfail', says='Of the turns that the tags name, more are decisive (their repair turns the loss into a win) '
    'than of turns that are drawn at random.', row=row, arms=('tags', 'random'), control='random', measure='decisive',
    margin=.05, budget='the same 200 games, 4 continuations of each turn with its action kept and 4 with it repaired',
    world='HopSearch of two hops, 13 people', settings=dict(start=START, questions=QUESTIONS))
