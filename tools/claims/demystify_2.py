"""Demystifying RL in agentic reasoning, its second finding: few deliberate calls beat many. A search costs 0, .02 or .1
of what the answer pays."""
from _attempts import begun, one_thread, turns
from _hops import SIZES, START, share
from _runs import learned
from claims import Claim

PRICES = '.02', '0', '.1'

def priced(world, price: float):
    "The world, and every search costs something."
    from agentlab.env.wrappers import Wrapper

    class Priced(Wrapper):
        def step(self, action):
            step = self.env.step(action)
            if action.startswith('search'): step.reward = {seat: paid - price for seat, paid in step.reward.items()}
            return step
    return Priced(world)

def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.train import recipes
    world = HopSearch(2, distractors=10)
    with one_thread():
        policy = begun(world, seed, **START)
        learned(policy, priced(world, float(arm)), recipes.grpo(**SIZES, seed=seed))
        success, test = share(policy, world, seed)
        return dict(success=success, turns=turns(test))

CLAIM = Claim(
    'demystify-2', 'An agent that pays a little for every call answers more questions than one whose calls are free.',
    row, arms=PRICES, control='0', measure='success', margin=.03, of='demystify',
    budget=f'the same start, {SIZES["steps"]} updates of {SIZES["groups"]*SIZES["group_size"]} games',
    world='HopSearch of two hops, 13 people', settings=dict(start=START, run=SIZES))
