"""MaskSearch: passages whose gaps are filled by searching, and questions after them, against questions all the time.
Every arm begins with the same policy, which was shown some passages and some questions, and plays as many games."""
from _attempts import begun, one_thread, share_won, tested
from _runs import learned
from claims import Claim

START = dict(steps=300, pool=4096, noise=.3)
SHOWN = dict(steps=200, episodes=16, lr=1e-3, noise=.3)  # of questions, after the passages
LIMITS = dict(max_turns=6, max_tokens=12)
SIZES = dict(groups=12, group_size=8, test_tasks=0, lr=1e-3) | LIMITS
UPDATES = 20
ARMS = dict(masksearch=UPDATES//2, questions=0, passages=UPDATES)  # updates on passages; the others on questions

def questions(**options):
    from agentlab.env import HopSearch
    return HopSearch(1, distractors=12, **options)

def started(seed: int):
    from agentlab.env.seeking import ramp
    from agentlab.policy import prime
    return prime(begun(ramp(), seed, **START), questions(split='demo'), seed=seed, progress=False, **SHOWN)

def row(arm: str, seed: int) -> dict:
    from agentlab.env.seeking import ramp
    from agentlab.train import recipes
    worlds, rows = (ramp(), questions()), []
    def played(policy): return [tested(policy, world, 200, seed, samples=2, **LIMITS) for world in worlds]
    with one_thread():
        policy = started(seed)
        gaps_before, before = played(policy)
        for world, make, steps in zip(worlds, (recipes.masksearch, recipes.grpo), (ARMS[arm], UPDATES - ARMS[arm])):
            if steps: rows += learned(policy, world, make(**SIZES, steps=steps, seed=seed))
        gaps, after = played(policy)
    paid = lambda b: round(b.episodes.outcome.double().mean().item(), 5)
    return dict(success=share_won(after), before=share_won(before), gaps=paid(gaps), gaps_before=paid(gaps_before),
        won=[round(one['success'], 3) for one in rows[::3]])

CLAIM = Claim(
    key='masksearch', says='Filling gaps by searching first makes a better answerer than questions all the time.',
    row=row, arms=tuple(ARMS), control='questions', measure='success', margin=.03,
    budget='20 updates of 96 games in every arm',
    world='Passages of three sentences with 1 to 3 gaps; success of two games on each of 200 held-out questions of '
    'one hop (HopSearch among 14 people)',
    settings=dict(start=START, shown=SHOWN, recipe=SIZES, updates=UPDATES))
