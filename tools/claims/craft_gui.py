"In the spirit of CRAFT-GUI: short tasks first, longer ones when they are won."
from functools import partial

from _attempts import begun, learned, one_thread, share_won

from claims import Claim

START, TURNS = dict(steps=250, pool=2048, noise=.5), dict(max_turns=12, max_tokens=4)
SIZES = dict(steps=40, groups=8, group_size=8, test_tasks=0, lr=1e-3, **TURNS)
COUNT, LONG = 96, 8  # tasks; turns that the expert needs at least in a test house

def memory_of(arm: str):
    "How an arm chooses its tasks."
    import torch
    from agentlab.replay.tasks import Stages
    how = dict(curriculum={}, uniform=dict(stages=1), reversed=dict(order=torch.neg),
        hard=dict(order=torch.neg, enough=1.))[arm]
    return partial(Stages, count=COUNT, **how)

def long_houses(world) -> list:
    "Held-out houses with a long solution."
    from agentlab.env.keydoor import shortest
    return [task for task in world.tasks('test', 400) if shortest(task) >= LONG][:60]

def row(arm: str, seed: int, start: dict = START) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    from agentlab.train import recipes
    world = KeyDoor(3)
    with one_thread():
        policy = begun(world, seed, **start)
        rows = learned(policy, world, recipes.craft_gui(**SIZES, seed=seed, memory=memory_of(arm)))
        houses = long_houses(world)
        b = Batch.from_episodes(play(policy, world, range(len(houses)), 4, houses, seed=10**6 + seed, **TURNS))
    return dict(success=share_won(b), stage=rows[-1]['stage'],
        area=round(sum(one['success'] for one in rows)/len(rows), 5))

CLAIM = Claim(
    key='craft-gui', says='Short tasks first, longer ones when they are won, is sooner good at the long ones than all '
    'tasks at once.', row=row, arms=('curriculum', 'uniform', 'hard', 'reversed'), control='uniform',
    measure='success', margin=.05, budget='40 updates of 64 games in every arm',
    world=f'KeyDoor of 3 x 3 rooms; success in held-out houses that need {LONG} turns or more',
    settings=dict(start=START, recipe=SIZES, tasks=COUNT))
