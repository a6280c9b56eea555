"""MUA-RL: trained with users of every mood, the members of a group each with another one, against trained with one
scripted user who says everything at once and means it; tested with users of two moods at a time, whom nobody met."""
from _service import AREA, LEVEL, SIZES, START, served
from claims import Claim

PLAIN = ()

def row(arm: str, seed: int) -> dict:
    from agentlab.rollout import play
    from agentlab.train import recipes
    how = dict(rollout=play) if arm == 'one_user_a_group' else {}
    customers = dict(personas=(PLAIN,)) if arm == 'fixed' else {}
    return served(recipes.mua_rl(**SIZES, seed=seed, **how), seed, **customers)[0]

CLAIM = Claim(
    key='mua-rl', says='Trained with users who differ, a policy serves users whom it has never met better than one '
    'trained with a single scripted user.', row=row, arms=('mua-rl', 'fixed', 'one_user_a_group'), control='fixed',
    measure='success', margin=.05, budget='30 updates of 48 games in every arm',
    world=AREA, settings=dict(start=START, recipe=SIZES, level=LEVEL))
