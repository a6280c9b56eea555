"""Cleanup, and a writer who knows decision lists alone: does a writer who reads four metrics do at least as well as
one who reads the reward?

A list has five rules. Each belongs to a metric (our choice), and a new list is an old one with one rule changed, where
old lists are drawn by their rewards. The arms differ in which rule that is: `dense` changes one of the metric that is
worst of four, `sparse` any, `shuffled` one of the worst metric after the names were exchanged at random. What is kept
is decided by the reward in all of them. A metric is worst as a share of what a society of five could have: an apple a
step, everybody the same, rewards in the middle of the episode, all in the game."""
import random
from functools import lru_cache

from claims import Claim

WORLD = dict(agents=5, steps=1000)
EVALUATIONS, PLAYED, HELD_OUT = 16, 2, 10
METRICS = 'efficiency', 'equality', 'sustainability', 'peace'
RULES = dict(tag=('in sight', 'when apples are few', 'never'), cleaners=(0, 1, 2, 3, 5), above=(.3, .2, .1, 0.),
    who=('lowest numbers', 'nearest', 'in turns'), gather=('nearest', 'own rows', 'uncontested'))
OF = dict(efficiency=('gather',), equality=('who',), sustainability=('cleaners', 'above'), peace=('tag',))

class DecisionList:
    "The policy of five rules: tag, else clean, else gather, else stand at the bank."
    def __init__(self, world, rules: dict):
        w = self.width = world.width
        self.world, self.rules, self.beam = world, rules, lru_cache(None)(world.beam)
        self.bank = max(cell % w for cell in world.river) + 1
        self.near = lru_cache(None)(lambda cell: sorted(world.sites, key=lambda site: (self.apart(cell, site), site)))

    def apart(self, a: int, b: int) -> int:
        w = self.width
        return abs(a//w - b//w) + abs(a % w - b % w)

    def towards(self, seen, cell: int) -> int:
        "The move that shortens the way, rows first."
        w, me = self.width, seen.cells[seen.me]
        down, right = cell//w - me//w, cell % w - me % w
        if not down and not right: return 7
        heading = (0 if down < 0 else 2) if down else (1 if right > 0 else 3)
        return (0, 3, 1, 2)[(heading - seen.headings[seen.me]) % 4]

    def tags(self, seen) -> bool:
        if self.rules['tag'] == 'never': return False
        if self.rules['tag'] == 'when apples are few' and len(seen.apples) >= self.world.agents: return False
        beam = self.beam(seen.cells[seen.me], seen.headings[seen.me])
        return any(i != seen.me and not seen.out[i] and cell in beam for i, cell in enumerate(seen.cells))

    def cleans(self, seen) -> bool:
        "Whether this agent is one of the cleaners now."
        n, who, agents = self.rules['cleaners'], self.rules['who'], range(self.world.agents)
        if len(seen.waste) <= self.rules['above']*len(self.world.river): return False
        if who == 'in turns': return (seen.me + seen.t//25) % len(agents) < n
        if who == 'lowest numbers': return seen.me < n
        return seen.me in sorted(agents, key=lambda i: (seen.cells[i] % self.width, i))[:n]

    def clean(self, seen) -> int:
        "Fire at the waste, else turn to it, else walk to the nearest."
        cell, heading = seen.cells[seen.me], seen.headings[seen.me]
        dirty = [len(self.beam(cell, turned) & seen.waste) for turned in range(4)]
        if dirty[heading]: return 8
        best = max(range(4), key=lambda turned: dirty[turned])
        if dirty[best]: return 4 if (heading - best) % 4 == 1 else 5
        return self.towards(seen, min(seen.waste, key=lambda waste: (self.apart(cell, waste), waste)))

    def goal(self, seen) -> int:
        "The apple to walk to; where there is none, a place at the bank."
        cell, how = seen.cells[seen.me], self.rules['gather']
        there = [site for site in self.near(cell) if site in seen.apples]
        if not there: return cell//self.width*self.width + self.bank
        if how == 'own rows': return min(there, key=lambda site: site//self.width % self.world.agents != seen.me)
        first = lambda site: all(self.apart(cell, site) <= self.apart(other, site) for other in seen.cells)
        return next(filter(first, there), there[0]) if how == 'uncontested' else there[0]

    def __call__(self, seen) -> int:
        if self.tags(seen): return 6
        return self.clean(seen) if self.cleans(seen) else self.towards(seen, self.goal(seen))

def shares(score: dict) -> dict:
    "The metrics as parts of what a society could have, 0 to 1."
    could = dict(efficiency=1., equality=1., sustainability=WORLD['steps']/2, peace=WORLD['agents'])
    return {name: min(max(score[name]/could[name], 0.), 1.) for name in METRICS}

def named(arm: str, score: dict, draw) -> tuple:
    "The rules that an arm would change."
    if arm == 'sparse': return tuple(RULES)
    parts = shares(score)
    worst = min(METRICS, key=parts.get)
    if arm == 'shuffled': worst = draw.choice(METRICS)
    return OF[worst]

def search(arm: str, world, seed: int) -> tuple:
    "The list with the most reward of those that were played, and the efficiency of the best after each."
    import torch
    from agentlab.env.commons import self_play
    from agentlab.prompt import search_designs
    draw, guess, scores = random.Random(f'{arm} {seed}'), torch.Generator().manual_seed(seed), {}
    names, seeds = tuple(RULES), [10*seed + i for i in range(PLAYED)]

    def measure(rules):
        design = tuple(RULES[name].index(part) for name, part in rules.items())
        scores[design] = self_play(world, DecisionList(world, rules), seeds)
        return scores[design]['efficiency']

    def change(design, tried, sizes):
        "The list with another part for one of the rules; where all of these were played, of any rule."
        slots = named(arm, scores[design], draw)
        for at in map(names.index, draw.sample(slots, len(slots)) + draw.sample(names, len(names))):
            found = [(*design[:at], k, *design[at + 1:]) for k in range(sizes[at])]
            if fresh := [other for other in found if other not in scores]: return fresh
        return []
    tried = search_designs(
        RULES, measure, EVALUATIONS, seed, start=lambda sizes, rng: [tuple(map(rng.randrange, sizes))], labels=0,
        value=lambda tried, designs: torch.rand(2, len(designs), generator=guess, dtype=torch.float64),
        steps=(change,), beta=0.)
    best = max(tried, key=lambda one: one.score)
    so_far = [max(one.score for one in tried[:k]) for k in range(1, len(tried) + 1)]
    return {name: RULES[name][k] for name, k in zip(names, best.design)}, so_far

def row(arm: str, seed: int) -> dict:
    from agentlab.env.commons import Cleanup, self_play
    world = Cleanup(**WORLD)
    rules, so_far = search(arm, world, seed)
    score = self_play(world, DecisionList(world, rules), range(10**6 + HELD_OUT*seed, 10**6 + HELD_OUT*(seed + 1)))
    parts = shares(score)
    return (dict(mean=round(sum(parts.values())/4, 4)) | {name: round(score[name], 4) for name in METRICS}
        | {f'share_{name}': round(part, 4) for name, part in parts.items()}
        | dict(area=round(sum(so_far)/len(so_far), 4), rules=[RULES[name].index(rules[name]) for name in RULES]))

CLAIM = Claim(
    key='policy-synthesis', says='A writer of policies who reads four social metrics does at least as well as one who '
    'reads the reward.', row=row, arms=('dense', 'sparse', 'shuffled'), control='sparse', measure='mean', margin=.05,
    budget=f'{EVALUATIONS} lists of 540, each played in {PLAYED} episodes', seeds=tuple(range(20)),
    world='Cleanup, 5 agents, 1000 steps; mean of the four shares in 10 other episodes of the list with most reward',
    settings=dict(world=WORLD, played=PLAYED, held_out=HELD_OUT, rules=RULES, of=OF))
