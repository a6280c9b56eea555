"""Demystifying RL in agentic reasoning, its first finding: whole traces of an agent at work prime better than answers
into which tool calls were put. Real: won games of a demonstrator that slips and tries again. Stitched: the same
questions, the true searches of their paths in any order, then the true answer; what stitched means is our choice."""
from _attempts import begun, one_thread
from _hops import SIZES, START, share
from _practice import shown, taught
from _runs import learned
from claims import Claim

COUNT, STEPS, NOISE = 200, 60, .25

def stitched():
    from agentlab.env import HopSearch

    class Stitched(HopSearch):
        "Its demonstrator has the answer, and searches afterwards what led to it, in any order."
        plan = ()
        def demonstrator(self, noise=0., generator=None):
            if not self.game.turns:
                facts, answer = self.game.world.chain(self.game.start, self.game.path)
                calls = [f'search {relation} {name}' for relation, name in facts]
                generator.shuffle(calls)
                self.plan = *calls, f'answer {answer}'
            return self.plan[self.game.turns]
    return Stitched(2, distractors=10)

def demonstrations(arm: str, policy, seed: int) -> list:
    from agentlab.env import HopSearch
    world = stitched() if arm == 'stitched' else HopSearch(2, distractors=10)
    return [game for game in shown(world, policy, 4*COUNT, seed, NOISE) if game.success][:COUNT]

def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.train import recipes
    world = HopSearch(2, distractors=10)
    with one_thread():
        policy = begun(world, seed, **START)
        used = [] if arm == 'none' else demonstrations(arm, policy, seed)
        if used: taught(policy, used, STEPS, seed)
        primed, _ = share(policy, world, seed)
        learned(policy, world, recipes.grpo(**SIZES, seed=seed))
        return dict(success=share(policy, world, seed)[0], primed=primed, shown=len(used))

CLAIM = Claim(
    'demystify-1', 'Real traces before reinforcement lead further than answers with calls stitched in.', row,
    arms=('real', 'stitched', 'none'), control='stitched', measure='success', margin=.03, of='demystify',
    budget=f'the same start, {COUNT} demonstrations in {STEPS} updates (none: no such), {SIZES["steps"]} updates of '
    f'{SIZES["groups"]*SIZES["group_size"]} games', world='HopSearch of two hops, 13 people',
    settings=dict(start=START, run=SIZES, count=COUNT, steps=STEPS, noise=NOISE))
