"""What tests, claims and the page about several minds share: a game whose sides have two levels, skills of Nim, a
demonstrator of the search in two corpora, and a slow mind that understands hints, beside a model that does not.
"""
import re
from dataclasses import replace
from math import exp, log

from agentlab.env.hopsearch import missing
from agentlab.env.kitchen import Kitchen, soups
from agentlab.env.protocol import Step, noisy, tidy
from agentlab.env.wrappers import Wrapper, with_columns
from agentlab.rollout.minds import SlowMind, corpora

SKILLS = dict(one=lambda game, move: move.endswith(' 1'), all=lambda game, move: move in whole(game),
    large=lambda game, move: move[:1] == max(whole(game), key=lambda x: int(x[2:]))[0])

def whole(game) -> list:
    "The moves of Nim that empty a heap."
    return [f'{letter} {stones}' for letter, stones in zip('abcdefgh', game.heaps) if stones]

class Skilled(Wrapper):
    """A game whose sides are a planner, who names a skill, and the skill, which makes its next `length` moves.

    `skills`: word -> function (game, move) -> whether the move is one of it, in the column `fits`. A word that names no
    skill is an illegal move.
    """
    def __init__(self, game, skills=SKILLS, length=2):
        super().__init__(game)
        self.skills, self.length = skills, length
    @property
    def seats(self): return (*self.env.seats, *map('{} skill'.format, self.env.seats))
    def reset(self, seed, task=None):
        self.options = {}  # side -> (skill, moves that it has left)
        return self.ask(self.env.reset(seed, task))
    def step(self, action):
        side, word = self.env.mover, tidy(action)
        skill, left = self.options.get(side, ('', 0))
        named = not left and word in self.skills and not self.env.over
        self.options = self.options | {side: (word, self.length) if named else (skill, max(left - 1, 0))}
        if named: return self.ask(replace(self.now, reward={}))
        fits = float(left > 0 and word in self.env.moves() and self.skills[skill](self.env, word))
        step = self.ask(self.env.step(action if left else ''))
        return with_columns(step, fits=fits) if left else step
    def ask(self, step):
        "The turn of a planner, or of the skill that it has named; both of a side are paid and win alike."
        self.now, side, (skill, left) = step, self.env.mover, self.options.get(self.env.mover, ('', 0))
        two = lambda of: {f'{one}{end}': x for one, x in of.items() for end in ('', ' skill')} if of else of
        info = step.info | dict(success=two(step.info['success']), state=(skill, left, step.info['state']), fresh=True)
        if left: return Step(f'{side} skill', f'{skill} {step.observation}', two(step.reward), step.done, info)
        legal = [] if step.done else [*self.skills]
        return Step(side, step.observation, two(step.reward), step.done, info | dict(legal=legal))
    def demonstrator(self, noise=0., generator=None):
        "Any skill, and a move that is one of it."
        skill, left = self.options.get(self.env.mover, ('', 0))
        moves = self.env.moves() if left else [*self.skills]
        own = [move for move in moves if not left or self.skills[skill](self.env, move)] or moves
        if noisy(noise, generator): own = moves
        return generator.choice(own) if generator else own[0]
    expert = demonstrator
    def vocabulary(self): return list(dict.fromkeys([*self.env.vocabulary(), *self.skills]))

def drilled(batch):
    "(turns,) Stage one: a skill is paid for every move that is its own."
    return batch.turns['fits'].nan_to_num(0.)

def any_skill(env, generator) -> str:
    "A planner of stage one."
    return generator.choice([*env.skills])

def consult(env, noise, generator) -> str:
    "A demonstrator of `Agents`: the planner asks the right agent for the next fact, who searches and says the name."
    game = env.env.game
    if env.moves == 'planner':
        known = {(relation, name): other for _, told in env.log
            for relation, name, other in re.findall(r'The (\w+) of ([\w ]+) is ([\w ]+)', told)}
        fact, name = missing(game.start, game.path, known)
        if fact is None: return f'answer {name}'
        agents = [agent for agent, own in corpora.items() if fact[0] in own or noisy(noise, generator)]
        return f"do {generator.choice([*agents, 'both']) if generator else agents[0]} {' '.join(fact)}"
    _, *fact = env.errand.split(' ', 2)
    if not env.spent: return f"search {' '.join(fact)}"
    found = any(fact[0] in own for agent, own in corpora.items() if env.errand.startswith(agent))
    return f"done {game.world.links.get(tuple(fact), 'nothing') if found else 'nothing'}"

def names_only(kitchen, heard, macro) -> float:
    "Mean log-probability of the words of a macro action: a small model that can make whatever it reads the name of."
    urge = {one: exp(30*kitchen.need(one, known=heard.split())) for one in kitchen.possible()}
    return log(urge[macro]/sum(urge.values()))/len(macro.split())

class Understanding(SlowMind):
    "A slow mind that has an expert, who knows what hints mean."
    def __init__(self, kitchen=None, model=names_only, **how): super().__init__(kitchen or Kitchen(), model, **how)
    def expert(self, noise=0., generator=None):
        if noisy(noise, generator): return generator.choice([*soups, 'none', 'wait'])
        if not self.intent: return next(soup for soup, hint in soups.items() if hint == self.demand)
        return 'wait' if soups.get(self.intent) in self.env.hints() else 'none'
