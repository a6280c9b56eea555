"LOOP in a small world of apps, against the imitation of what succeeded: the same games, the same two passes over them."
from _attempts import compared, share_won

from claims import Claim

START = dict(steps=300, pool=2048, noise=.4)
SIZES = dict(steps=30, groups=12, group_size=4, test_tasks=0, max_turns=14, max_tokens=16, lr=5e-4)
HABITS = 'informed', 'made_up', 'gave_up', 'collateral'

def winners(b, policy, passes: int = 2):
    "Rejection sampling: episodes that did the whole task, all alike."
    won = b.spread((b.of_turn('outcome') >= 1).double())
    for _ in range(passes): yield won > 0, won

def recipe_of(arm: str, seed: int):
    from agentlab.replay.splice import imitation
    from agentlab.train import recipes
    how = dict(loop={}, one_pass=dict(updates_args=dict(passes=1)),
        imitated=dict(updates=winners, objective=imitation))[arm]
    return recipes.loop(**SIZES, seed=seed, **how)

def row(arm: str, seed: int) -> dict:
    from agentlab.env import Apps
    world = Apps(1)
    after, before, rows = compared(world, world, world, recipe_of(arm, seed), seed, START, 150, samples=1,
        max_turns=14, max_tokens=16)
    habits = {name: round(after.turns[name].nanmean().item(), 4) for name in HABITS}
    was = {f'{name}_before': round(before.turns[name].nanmean().item(), 4) for name in HABITS[:3]}
    area = round(sum(one['success'] for one in rows)/len(rows), 5)
    return dict(success=share_won(after), before=share_won(before), area=area, **habits, **was)

CLAIM = Claim(
    key='loop', says='An agent that acts in stateful apps learns more from what an episode earned beyond the others of '
    'its group than from imitating the episodes that succeeded.', row=row, arms=('loop', 'imitated', 'one_pass'),
    control='imitated', measure='success', margin=.05, budget='30 updates of 48 games in every arm, two passes over '
    'each batch (one_pass: one)', world='Apps of level 1; success of 150 held-out tasks, sampled at temperature 1',
    settings=dict(start=START, recipe=SIZES))
