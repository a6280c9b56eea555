"""MUA-RL: trained with users of every mood, the members of a group each with another one, against trained with one
scripted user who says everything at once and means it; tested with users of two moods at a time, whom nobody met."""
from _attempts import compared
from claims import Claim

START = dict(steps=300, pool=2048, noise=.25)
SIZES = dict(steps=30, groups=12, group_size=4, test_tasks=0, max_turns=12, max_tokens=8, lr=1e-3)
PLAIN = ()


def row(arm: str, seed: int) -> dict:
    from agentlab.env import Service
    from agentlab.rollout import play
    from agentlab.train import recipes
    shown, world = Service(level=LEVEL), Service(level=LEVEL)
    if arm == 'fixed': world = Service(level=LEVEL, personas=(PLAIN,))
    how = dict(rollout=play) if arm == 'one_user_a_group' else {}
    after, before, rows = compared(shown, world, shown, recipes.mua_rl(**SIZES, seed=seed, **how), seed, START, 200,
                                   samples=1, max_tokens=8, max_turns=12)
    share = lambda b: round(b.episodes.success.double().mean().item(), 5)
    return dict(success=share(after), before=share(before), won=[round(one['success'], 3) for one in rows[::5]])


LEVEL = 2
CLAIM = Claim(
    key='mua-rl', says='Trained with users who differ, a policy serves users whom it has never met better than one '
    'trained with a single scripted user.', row=row, arms=('mua-rl', 'fixed', 'one_user_a_group'), control='fixed',
    measure='success', margin=.05, budget='30 updates of 48 games in every arm',
    world='Service of level 2; success on 200 held-out tasks with users of two moods at once, 12 turns at most',
    settings=dict(start=START, recipe=SIZES, level=LEVEL))
