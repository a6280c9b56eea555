"Hi-Agent: sub-goals of one state compared by what comes of them, against outcomes of games, at equal turns."
from _delegate import GAMES, House, start, success
from _runs import learned
from claims import Claim

from agentlab.credit import grpo
from agentlab.rollout import Delegate
from agentlab.rollout.delegate import house_script, room_alone
from agentlab.train import recipes

TURNS, SIZES = 12000, dict(steps=100, test_tasks=0, max_turns=40, lr=5e-4)

def by_task(batch):
    "The same scores, compared inside a task: groups of a state are 1000 a game, and a task has two."
    return grpo(batch.with_episodes(group=batch.episodes.group//2000))

def row(arm, seed):
    world = Delegate(House(horizon=16), budget=4, sees=room_alone, script=house_script)
    policy = start(world, noise=.2)
    before = success(policy, world, seed)
    make, changes = ((recipes.grpo, dict(groups=8, group_size=8)) if arm == 'grpo'
        else (recipes.hi_agent, dict(groups=4, group_size=2)))
    if arm == 'by_task': changes['credit'] = by_task
    recipe = make(**SIZES | dict(seed=seed) | changes)
    rows = learned(policy, world, recipe, TURNS)
    return dict(success=success(policy, world, seed), start=before, updates=len(rows),
        dead_groups=sum(r['dead_groups'] for r in rows)/len(rows))

CLAIM = Claim(
    key='hi-agent', says='Sub-goals compared at their state by what comes of them learn more than outcomes of games.',
    row=row, arms=('hi-agent', 'grpo', 'by_task'), control='grpo', measure='success', margin=.05,
    budget='12000 turns, those of the clones counted; 25600 demonstrated games',
    world='KeyDoor of 3x3 rooms for two seats, errands of 4 turns; success on 200 held-out houses',
    settings=dict(start=GAMES, recipe=SIZES, turns=TURNS))
