"""SLEA-RL with SmolLM2-135M and an adapter. In the first world tried, KeyDoor, one row was played and nothing was won
in it: after 50 updates of priming (seed 100) the start wins .42 of its games with tips of the expert and none without,
so no tip is ever found. Hence a world of two turns, in which a tip is all that one can know. The priming of a seed is
the same for all its arms, so it is done once in a process; a row takes some minutes of one core (OMP_NUM_THREADS=1)."""
from functools import lru_cache
from itertools import permutations
from random import Random

from _tips import ROOM, compared
from claims import Claim

from agentlab.env.protocol import TextEnv, check_split, guide_text, noisy, split_of, tidy

COLOURS, MOVES = ('red', 'green', 'blue', 'white', 'black', 'yellow'), ('push', 'pull', 'turn')
RULE = ('turn', 'push', 'pull', 'push', 'turn', 'pull')
PRIMED = dict(steps=40, episodes=8, noise=0.)
RUN = dict(steps=6, groups=4, group_size=6, max_turns=2, max_tokens=8, test_tasks=0, checkpoint_every=6)
TESTS = dict(tests=8, each=8)

class Levers(TextEnv):
    "Each colour of a lamp has its move, which nobody tells; two lamps in a row are won by two right moves."
    name, horizon = 'levers', 2
    guide = guide_text('A lamp shows a colour, and every colour has its move. Two right moves win.',
        'Write push, pull or turn.', 'pull')
    def __init__(self, rule=None, split='train'):  # the move of each colour; None: another one in every game
        self.rule, self.split = rule, check_split(split)
    def start(self, seed, task=None):
        drawn = lambda: dict(lamps=self.random.choice(pairs(self.split)))
        self.task, self.won = drawn() if task is None else task, 0
        self.moves = dict(zip(COLOURS, self.rule or [self.random.choice(MOVES) for _ in COLOURS]))
        return self.look()
    def look(self): return f'The lamp is {self.task["lamps"][self.won]}. You can push, pull or turn.'
    def turn(self, action):
        if tidy(action) not in MOVES: return 'Nothing moves.', 0., True, dict(invalid=True)
        if tidy(action) != self.expert(): return 'It is stuck.', 0., True, {}
        self.won += 1
        return ('It opens.', 1., True, dict(success=True)) if self.won == 2 else (self.look(), 0., False, {})
    def expert(self, noise=0., generator=None):
        if noisy(noise, generator): return generator.choice(MOVES)
        return self.moves[self.task['lamps'][self.won]]
    def facts(self): return dict(legal=list(MOVES), state=(*self.task['lamps'], self.won))
    def tasks(self, split, n, seed=0): return [dict(lamps=pair) for pair in pairs(split)[:n]]

def pairs(split):
    "Two different lamps in a row, each pair in one split."
    every = [list(pair) for pair in permutations(COLOURS, 2) if split_of(['levers', *pair]) == split]
    return Random(split).sample(every, len(every))

@lru_cache(1)
def primed(seed: int):
    "A policy that has seen tips where each game has a rule of its own, and what it has learned."
    from agentlab.policy import pretrained, prime
    from agentlab.replay.experience import Tipped
    from agentlab.selfplay.snapshots import learned
    policy = pretrained('smollm2', source='package', seed=seed)
    prime(policy, Tipped(Levers()), seed=seed, progress=False, **PRIMED)
    return policy, learned(policy.model)

def row(arm: str, seed: int) -> dict:
    from agentlab.train import recipes
    from agentlab.train.trainer import for_pretrained
    policy, weights = primed(seed)
    policy.model.load_state_dict(weights, strict=False)
    how = {name: RUN[name] for name in ('groups', 'group_size', 'max_tokens')}
    return compared(arm, seed, Levers(RULE), policy, lambda memory: for_pretrained(
        recipes.slea(memory=memory, seed=seed, **RUN), **how), **TESTS)

CLAIM = Claim(
    key='slea-rl-real', says='SmolLM2 gains more by tips of the place than by the same words in random order.', row=row,
    arms=('step', 'shuffled', 'none'), control='shuffled', measure='success', margin=.05, model='SmolLM2-135M',
    seeds=(0, 1, 2), budget=f'{PRIMED["steps"]} supervised updates with tips and 6 updates of 24 games in every arm',
    world='Levers, two lamps of six colours, three moves; success on eight held-out pairs, each played eight times',
    settings=dict(primed=PRIMED, run=RUN, library=ROOM, tests=TESTS))
