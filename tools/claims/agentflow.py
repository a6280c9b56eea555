"AgentFlow: a planner trained inside a loop with frozen helpers, against one that reads everything and acts itself."
from random import Random

from _delegate import GAMES, search, start, success, walked
from _runs import learned
from claims import Claim

from agentlab.env import HopSearch
from agentlab.episodes import derive
from agentlab.rollout.delegate import Flow
from agentlab.train import recipes

ERROR, LIMIT = .1, 4
SIZES = dict(steps=20, groups=6, group_size=8, test_tasks=0, max_turns=10)

def verify(env):
    "Whether the chain is complete, wrong one time in ten."
    right = len(env.now.info['hops']) == len(env.env.game.path)
    return right != (Random(derive(env.question, *map(list, env.memory))).random() < ERROR)

def answer(env): return f'answer {walked(env)}'

class Loop(Flow):
    "A planner who is shown by an expert of the search, whose answer is left to the generator."
    def expert(self, noise=0., generator=None):
        said = self.env.expert(noise, generator)
        return said if said.startswith('search') else f'search mentor {said.partition(" ")[2]}'
    demonstrator = expert

def row(arm, seed):
    world = HopSearch(2) if arm == 'flat' else Loop(HopSearch(2), search, (lambda env: False) if arm == 'no_verifier'
        else verify, answer, LIMIT)
    policy = start(world, noise=.5)
    recipe = recipes.grpo if arm == 'flat' else recipes.agentflow
    before = success(policy, world, seed)
    rows = learned(policy, world, recipe(**SIZES, seed=seed)) if arm != 'start' else []
    return dict(success=success(policy, world, seed), start=before, turns=rows[-1]['turns'] if rows else 0.)

CLAIM = Claim(
    key='agentflow', says='A planner trained inside a loop of frozen helpers answers more than one that acts itself.',
    row=row, arms=('agentflow', 'flat', 'start', 'no_verifier'), control='flat', measure='success', margin=.05,
    budget='20 updates of 48 games, at most 4 searches in the loop and 6 turns without; 25600 demonstrated games',
    world='HopSearch of two hops; the verifier is wrong one time in ten; success on 200 held-out questions',
    settings=dict(start=GAMES | dict(noise=.5), recipe=SIZES, error=ERROR, limit=LIMIT))
