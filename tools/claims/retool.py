"ReTool: when to call code is learned from the outcome; beside no tool, a forced call, and a price."
from functools import partial

from _attempts import begun, learned, one_thread

from agentlab.env.protocol import tidy
from agentlab.env.routing import Choices
from claims import Claim

START = dict(steps=300, pool=4096, noise=.5)
SIZES = dict(steps=60, groups=16, group_size=4, test_tasks=0, max_turns=3, max_tokens=12, lr=5e-4)
TASKS = 300

class Text(Choices):
    "No tool: code is not run."
    def turn(self, action):
        return super().turn('none' if tidy(action).startswith('code') else action)

class Forced(Choices):
    "Whoever has not called code cannot answer."
    def turn(self, action):
        return super().turn(action if self.ledger or tidy(action).startswith('code') else 'none')

WORLDS = dict(no_tool=Text, forced=Forced)

def row(arm: str, seed: int) -> dict:
    from agentlab.episodes import Batch
    from agentlab.reward.gates import routed
    from agentlab.rollout import play
    from agentlab.train import recipes
    world, more = WORLDS.get(arm, Choices)(), dict(reward=partial(routed, weight=.3)) if arm == 'priced' else {}
    def test(policy):
        those = world.tasks('test', TASKS, seed)
        b = Batch.from_episodes(play(policy, world, range(TASKS), 1, those, seed=10**6 + seed, max_tokens=12))
        won, needs = b.episodes.success.double(), b.turns.needs[b.last_turns()]
        calls = b.total(b.turns.cost.double())
        kinds = dict(hard=1., either=.5, easy=0.)
        return {f'{name}_{what}': round(x[needs == need].mean().item(), 4) for name, need in kinds.items()
            for what, x in dict(won=won, calls=calls).items()} | dict(success=round(won.mean().item(), 5))
    with one_thread():
        policy = begun(Choices(), seed, **START)
        before = test(policy)
        learned(policy, world, recipes.retool(**SIZES, seed=seed, **more))
        after = test(policy)
    return after | {f'{name}_before': x for name, x in before.items()}

CLAIM = Claim(
    key='retool', says='After a cold start, reinforcement learning with code in reach answers more than without it.',
    row=row, arms=('retool', 'no_tool', 'forced', 'priced'), control='no_tool', measure='success', margin=.05,
    budget='the same start, 60 updates of 64 games in every arm',
    world='Choices: products, the largest of three digits, legs of animals; 300 held-out tasks',
    settings=dict(start=START, recipe=SIZES, tasks=TASKS))
