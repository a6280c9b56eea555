"""MINT, an evaluation: what a second answer is worth with a teacher's sentence, with none, and without the search. One
policy for all arms, which has seen a teacher in every other demonstrated game."""
from claims import Claim

from agentlab.env import HopSearch
from agentlab.env.hopsearch import missing
from agentlab.policy import tiny_policy
from agentlab.rollout.again import Again, by_budget
from agentlab.rollout.turns import TurnLimit

SHOWN = dict(steps=400, episodes=32, pool=6400, noise=.35)
TESTS = dict(tasks=200, budgets=[1, 2, 3, 4, 5], answers=2)
SAYS = 'Incorrect.'

class Blind(HopSearch):
    "A search that finds nothing: no tool."
    def search(self, words): return 'Nothing found.', 0., {}

def pages(game): return {fact: game.world.links[fact] for fact in game.found}

def teacher(k, one):
    "What has not been looked up, and never the answer."
    game = one.env.game
    fact, _ = missing(game.start, game.path, pages(game))
    return f'{SAYS} Look up the {fact[0]} of {fact[1]}.' if fact else f'{SAYS} Follow the pages that you read.'

def plain(k, one): return SAYS

def either(k, one):
    "A teacher in every other game."
    return (teacher if one.begun[0] % 2 else plain)(k, one)

class Taught(Again):
    "Its demonstrator goes on from the pages of its first answer, whatever it was told."
    def finish(self, step, right):
        self.pages = pages(self.env.game)
        return super().finish(step, right)
    def demonstrator(self, noise=0., generator=None):
        if not self.past: return self.env.demonstrator(noise, generator)
        game = self.env.game
        fact, name = missing(game.start, game.path, self.pages | pages(game))
        return f'search {fact[0]} {fact[1]}' if fact else f'answer {name}'

class AnyLimit(TurnLimit):
    "From 3 turns to 8, so that no number of turns that are left is new in a test."
    def reset(self, seed, task=None):
        self.limits = 3 + seed//2 % 6,
        return super().reset(seed, task)

def shown():
    "The world of the demonstrations."
    return AnyLimit(Taught(Words(2), TESTS['answers'], between=either), 8)

class Words(HopSearch):
    "HopSearch, with the teacher's words in its vocabulary."
    name = 'hopsearch_words'
    def vocabulary(self): return [*super().vocabulary(), *'Incorrect Look up Follow the pages that you read'.split()]

def tested(policy, arm, seed, **how):
    "Success for each budget, and the slope."
    env, feedback = (Blind if arm == 'no_tool' else HopSearch)(2), plain if arm == 'plain' else teacher
    found = by_budget(policy, env, feedback=feedback, seed=10**6 + seed, **how)
    return {f'at_{k}': round(found[k], 5) for k in how['budgets']} | dict(slope=round(found['slope'], 5),
        errors=found['errors'])

def row(arm, seed):
    return tested(tiny_policy(shown(), seed=seed, progress=False, **SHOWN), arm, seed, max_tokens=8, **TESTS)

CLAIM = Claim(
    key='mint', says='With five turns a sentence of a teacher after a wrong answer is worth something.', row=row,
    arms=('teacher', 'plain', 'no_tool'), control='plain', measure='at_5', margin=.05,
    budget='400 updates of 32 demonstrated games, 6400 in all; in each test the same turns and answers',
    world='HopSearch of two hops; 200 held-out questions for each budget of 1 to 5 turns, two answers at most',
    settings=dict(start=SHOWN, tests=TESTS))
