"""A practitioner's guide, its third finding: reward on the way is learned from sooner, and how much sooner depends on
the algorithm. The key pays half of what the chest pays; the group methods compare what a game has earned in all."""
from statistics import mean

from _practice import SETTINGS, UPDATES, WHERE, house, one_thread, reinforced, share, start
from claims import Claim

KEY = .5
ARMS = 'grpo dense', 'grpo', 'rloo dense', 'rloo', 'ppo dense', 'ppo'

def paid(world):
    "The world, and the key pays."
    from agentlab.env.wrappers import Wrapper

    class Paid(Wrapper):
        def step(self, action):
            had, step = self.env.has_key, self.env.step(action)
            if self.env.has_key and not had: step.reward = {seat: x + KEY for seat, x in step.reward.items()}
            return step
    return Paid(world)

def row(arm: str, seed: int) -> dict:
    from agentlab.train import recipes
    name, _, dense = arm.partition(' ')
    world = house()
    with one_thread():
        policy = start(seed)
        rows = reinforced(policy, paid(world) if dense else world, seed, make=getattr(recipes, name))
        return dict(area=round(mean(one['success'] for one in rows), 5), success=share(policy, world, seed))

CLAIM = Claim(
    'practitioner-density', 'Reward on the way is learned from sooner than reward at the end.', row, arms=ARMS,
    control='grpo', measure='area', margin=.03, of='practitioner',
    budget=f'the same start and {UPDATES} updates of 64 games',
    world=f'{WHERE}; mean success of all games of the run', settings=SETTINGS | dict(key=KEY))
