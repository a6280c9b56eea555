"""HALO: a tree over which role speaks next, against fixed workflows and a vote, at equal calls.

A call is a role that speaks, or the judge. In every arm but the vote the answer is the one that the judge approved most
often (of equals the first); in the vote every word of a role counts, and no judge is asked. The control is the vote:
the two fixed workflows lose wherever a question needs another order, which is how the world is made and no merit of the
tree. `any order`, which asks the judge about random conversations, says what the tree adds to that. The world was
chosen on seed 100; the claim is about the third of four budgets."""
import copy
import random
from collections import Counter
from itertools import cycle, product

from _attempts import one_thread
from claims import Claim

from agentlab.env import Env, Step

ROLES, TASKS, CALLS, DEPTH, RIGHT, ANSWERS, ERRS = ('read', 'reckon', 'check'), 200, (12, 24, 48, 96), 5, .8, 100, .2
USUAL, ALONE = ('reckon', 'check'), ('read', 'read')    # what .4 and .2 of the questions need
JUDGED = 'tree', 'any order', 'fixed order', 'best role'
ARMS = {one: (one, 0.) for one in (*JUDGED, 'vote')} | {f'{one}, judge errs': (one, ERRS) for one in JUDGED}

class Workflow(Env):
    """Which two roles have to speak last, in which order, is drawn with the question: then the second is right with
    chance RIGHT. Who speaks at another time says anything. `answer` ends it, and so do DEPTH roles, with what was said
    last; the judge pays 1 for a right answer, else 0, and errs with chance `errs`."""
    name, seats = 'workflow', ('player',)

    def __init__(self, errs: float = 0.): self.errs = errs

    def reset(self, seed, task=None):
        self.random = random.Random(seed)
        others = [pair for pair in product(ROLES, repeat=2) if pair not in (USUAL, ALONE)]
        self.needs = self.random.choices([USUAL, ALONE, *others], [.4, .2, *[.4/len(others)]*len(others)])[0]
        self.truth, self.spoke, self.said = self.random.randrange(ANSWERS), (), None
        return self.told('Who speaks?')

    def told(self, text: str, paid: float = 0., done: bool = False):
        info = dict(legal=[*ROLES, *['answer']*bool(self.spoke)], success=self.said == self.truth)
        return Step('player', text, dict(player=paid), done, info)

    def step(self, action):
        if (role := action.strip()) in ROLES:
            self.spoke = *self.spoke, role
            knows = self.spoke[-2:] == self.needs and self.random.random() < RIGHT
            self.said = self.truth if knows else self.random.randrange(ANSWERS)
            if len(self.spoke) < DEPTH: return self.told(f'{role} has spoken.')
        approved = (self.said == self.truth) != (self.random.random() < self.errs)
        return self.told('Thank you.', float(approved), True)

    def clone(self): return copy.copy(self)
    def vocabulary(self): return ['Who', 'speaks', 'has', 'spoken', 'Thank', 'you', '?', '.', *ROLES, 'answer']

class AnyRole:
    "A sampler that plays on with any role, or asks the judge."
    def __init__(self, policy): self.policy = policy

    def sample(self, contexts, seeds, **how):
        from agentlab.rollout.plain import spelt
        return [spelt(self.policy, random.Random(seed).choice([*ROLES, 'answer'])) for seed in seeds]

def tree(seeds: list[int], errs: float, seed: int, most: int) -> list[list]:
    "For every question the (answer, judgement) of the conversations of its tree; roles that spoke once are kept."
    from agentlab.policy import Policy, tiny_model, word_tokenizer
    from agentlab.rollout import Trees, evenly, legal
    words = word_tokenizer(Workflow().vocabulary())
    policy = Policy(tiny_model(len(words), 128, hidden=8, layers=1, heads=1), words)
    # the last conversation may take DEPTH calls and the judge's, which a full DEPTH has among its steps
    trees = Trees(policy, Workflow(errs), seeds, seed=seed, propose=legal, prior=evenly, sampler=AnyRole(policy),
        steps=most - DEPTH + 1)
    trees.grow(2*most)
    assert max(spent['steps'] for spent in trees.spent) <= most
    heard = [[(game.env.said, game.sides['player'].outcome) for _, game in played] for played in trees.played]
    trees.close()
    return heard

def conversations(order, errs: float, seed: int, most: int) -> list[tuple]:
    "[(answer, judgement)] of one conversation after the other, roles in this order, as many as there are calls for."
    world, heard, calls = Workflow(errs), [], 0
    while calls < most:
        world.reset(seed)
        world.random, done = random.Random(f'{seed} {calls}'), False
        while not done and calls < most:
            step, calls = world.step(next(order)), calls + 1
            done = step.done
        if done: heard.append((world.said, step.reward['player']))
    return heard

def spoken(seed: int, most: int) -> list[tuple]:
    "[(answer, 1)] of every role that spoke, in conversations of DEPTH; nobody is asked about them."
    world, heard, draw = Workflow(), [], random.Random(f'{seed} roles')
    for calls in range(most):
        if calls % DEPTH == 0:
            world.reset(seed)
            world.random = random.Random(f'{seed} {calls}')
        world.step(draw.choice(ROLES))
        heard.append((world.said, 1.))
    return heard

def any_order(seed: int):
    draw = random.Random(f'{seed} roles')
    while True:     # as the tree plays on
        yield draw.choice(ROLES)
        while (role := draw.choice([*ROLES, 'answer'])) != 'answer': yield role
        yield role

ORDERS = {'any order': any_order, 'fixed order': lambda one: cycle(('read', *USUAL, 'answer')),
    'best role': lambda one: cycle((*ALONE, 'answer'))}

def heard(arm: str, seeds: list[int], seed: int, most: int) -> list[list]:
    "For every question the (answer, judgement) that an arm heard."
    name, errs = ARMS[arm]
    if name == 'tree': return tree(seeds, errs, seed, most)
    if name == 'vote': return [spoken(one, most) for one in seeds]
    return [conversations(ORDERS[name](one), errs, one, most) for one in seeds]

def right(one: int, found: list[tuple]) -> bool:
    "Whether the answer that was approved most often, of equals the first, is the right one."
    world, votes = Workflow(), Counter()
    world.reset(one)
    for said, paid in found: votes[said] += paid
    return bool(votes) and max(votes, key=votes.get) == world.truth

def row(arm: str, seed: int) -> dict:
    from agentlab.episodes import derive
    seeds, out = [derive(seed, 'question', task) for task in range(TASKS)], {}
    with one_thread():
        for most in CALLS: out[f'success_{most}'] = sum(map(right, seeds, heard(arm, seeds, seed, most)))/TASKS
    return out

CLAIM = Claim(
    key='halo', says='A tree over which role speaks next answers more questions than a vote over what the roles say.',
    row=row, arms=tuple(ARMS), control='vote', measure='success_48', margin=.05,
    budget='48 calls of roles and judge for each question',
    world=f'Workflow: {len(ROLES)} noisy roles, questions that need two of them in an order; {TASKS} questions',
    settings=dict(calls=CALLS, depth=DEPTH, right=RIGHT, answers=ANSWERS, errs=ERRS))
