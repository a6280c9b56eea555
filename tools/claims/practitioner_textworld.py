"""A practitioner's guide, its fourth finding in TextWorld, with SmolLM2 and an adapter: of one budget, do games teach
more than demonstrations? The quest is told in words, and every game has rooms, things and a quest of its own; an expert
follows the walk-through of the game. The games are written and compiled here (`pip install textworld`; a second each).

Both arms begin with the same demonstrations. Then one plays, and the other is shown as many more as those games cost,
ten games each. Tried on seed 100: nothing is won before priming, .34 after 30 updates of it (7 CPU-minutes); an
update of 24 games takes 73 seconds."""
from functools import lru_cache

from claims import Claim

from agentlab.env.adapters import TextWorld, needed, written
from agentlab.env.protocol import noisy

OPTIONS = dict(nb_rooms=2, nb_objects=3, quest_length=2)
FIRST = dict(train=0, test=10_000, demo=20_000)  # number of the first game of a split
MANY, TURNS, PRICE = 128, 6, 10                  # games of a split; turns of a game; games that a demonstration costs
PRIMED = dict(episodes=8, noise=.25)
STEPS, TESTS = 30, 64
RUN = dict(steps=8, groups=4, group_size=6, max_turns=TURNS, max_tokens=12, test_tasks=0, checkpoint_every=8)
MORE = round(RUN['steps']*RUN['groups']*RUN['group_size']/PRICE/PRIMED['episodes'])  # updates that the games would buy

def opened(path: str):
    "A game that also says what is left of the walk-through."
    textworld = needed('textworld', 'textworld')
    names = 'feedback description inventory admissible_commands score won lost policy_commands'.split()
    return textworld.start(path, textworld.EnvInfos(**dict.fromkeys(names, True)))

def game(split: str, n: int) -> str: return written(FIRST[split] + n % MANY, **OPTIONS)

class Adventures(TextWorld):
    "Games of a split; its expert follows the walk-through."
    name, split = 'adventures', 'train'
    def __init__(self): super().__init__(lambda seed: game(self.split, seed), opened, TURNS, None)
    def expert(self, noise=0., generator=None):
        if noisy(noise, generator): return generator.choice(self.facts()['legal'])
        return (self.situation['policy_commands'] or ['look'])[0]
    def tasks(self, split, n, seed=0): return [game(split, i) for i in range(n)]

def shown(policy, steps: int, seed: int):
    "Supervised updates on demonstrations, in place."
    from agentlab.policy import prime
    world = Adventures()
    world.split = 'demo'
    return prime(policy, world, seed=seed, progress=False, steps=steps, **PRIMED)

@lru_cache(1)
def primed(seed: int):
    "A policy after the first demonstrations, its weights, and what it wins: once for both arms."
    from agentlab.policy import pretrained
    from agentlab.selfplay.snapshots import learned
    policy = shown(pretrained('smollm2', source='package', seed=seed), STEPS, seed)
    return policy, learned(policy.model), asked(policy, seed)

def asked(policy, seed: int) -> dict:
    "Held-out games."
    from _attempts import share_won, tested, turns
    test = tested(policy, Adventures(), TESTS, seed, samples=1, max_turns=TURNS, max_tokens=RUN['max_tokens'])
    return dict(success=share_won(test), turns=turns(test))

def row(arm: str, seed: int) -> dict:
    from _attempts import one_thread
    from _runs import learned
    from agentlab.train import recipes
    from agentlab.train.trainer import for_pretrained
    sizes = {name: RUN[name] for name in ('groups', 'group_size', 'max_tokens')}
    with one_thread():
        policy, weights, before = primed(seed)
        policy.model.load_state_dict(weights, strict=False)
        if arm == 'shown': shown(policy, MORE, 1000 + seed)
        else: learned(policy, Adventures(), for_pretrained(recipes.grpo(seed=seed, **RUN), **sizes))
        return asked(policy, seed) | {f'{name}_before': x for name, x in before.items()}

CLAIM = Claim(
    'practitioner-textworld', 'In TextWorld a budget that buys some demonstrations and leaves most for games teaches '
    'more than one that buys demonstrations alone.', row, arms=('played', 'shown'), control='shown', measure='success',
    margin=.03, of='practitioner', model='SmolLM2-135M', seeds=(0, 1, 2),
    budget=f'{STEPS} updates of {PRIMED["episodes"]} demonstrations, then {RUN["steps"]} updates of 24 games, or as '
    f'many more demonstrations as these cost at {PRICE} games each',
    world='TextWorld: two rooms, three things, a quest of two '
    f'commands, {TURNS} turns; {TESTS} held-out games',
    settings=dict(options=OPTIONS, primed=PRIMED, steps=STEPS, more=MORE, run=RUN, tests=TESTS, many=MANY))
