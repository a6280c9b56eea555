"""Behaviour priming where a wrong end is still an end: a search of two hops whose demonstrator finds everything and
then answers with a name on the way. Written after the houses of `behavior-priming` had been seen: there wrong traces
never show the action that wins, and nothing is ever won."""
from _attempts import begun, one_thread
from _hops import SIZES, START, share
from _practice import shown, taught
from _runs import learned
from behavior_priming import ARMS, NOISE, noise_of
from claims import Claim

COUNT, STEPS = 200, 60  # as of demystify-1

def wrong():
    from agentlab.env import HopSearch

    class Wrong(HopSearch):
        "Its demonstrator searches, and answers with the first person or the one between."
        def demonstrator(self, noise=0., generator=None):
            action, game = super().demonstrator(noise, generator), self.game
            if not action.startswith('answer'): return action
            facts, _ = game.world.chain(game.start, game.path)
            return f'answer {generator.choice([name for _, name in facts])}'
    return Wrong(2, distractors=10)

def demonstrations(arm: str, policy, seed: int) -> list:
    "As many of the kind as all arms have; of the right ones more are played than needed."
    from agentlab.env import HopSearch
    lost = arm.endswith('wrong')
    played = shown(wrong() if lost else HopSearch(2, distractors=10), policy, 4*COUNT, seed, noise_of(arm))
    return [game for game in played if arm == 'random' or game.success != lost][:COUNT]

def row(arm: str, seed: int) -> dict:
    from agentlab.env import HopSearch
    from agentlab.train import recipes
    world = HopSearch(2, distractors=10)
    with one_thread():
        policy = begun(world, seed, **START)
        used = demonstrations(arm, policy, seed)
        primed, _ = share(taught(policy, used, STEPS, seed), world, seed)
        learned(policy, world, recipes.grpo(**SIZES, seed=seed))
        return dict(success=share(policy, world, seed)[0], primed=primed, shown=len(used),
            won_shown=sum(bool(game.success) for game in used))

CLAIM = Claim(
    'behavior-priming-hops', 'After searches that behave well and end in a wrong answer, reinforcement gets further '
    'than after right ones without the behaviour.', row, arms=ARMS, control='right only', measure='success', margin=.03,
    of='behavior-priming', budget=f'{COUNT} demonstrations, {STEPS} updates on them, {SIZES["steps"]} updates of '
    f'{SIZES["groups"]*SIZES["group_size"]} games', world='HopSearch of two hops, 13 people',
    settings=dict(start=START, run=SIZES, count=COUNT, steps=STEPS, noise=NOISE))
