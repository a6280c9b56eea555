"What the claims about tips share: a start that has seen them, a miner of them, and texts that say nothing."
import copy
from random import Random

from agentlab.policy import tiny_policy
from agentlab.replay.experience import Experienced, Library, Tipped, strategies

WORLD = dict(closed=0, horizon=8)
START = dict(steps=250, episodes=16, pool=4000, noise=.2)     # how the tiny policy is shown tips


def begun(env, seed: int):
    "A policy that has seen tips, of which eight of ten are right; the seed is of its weights and of the games."
    return copy.deepcopy(tiny_policy(Tipped(env), seed=seed, progress=False, **START))


def shuffled(text: str) -> str:
    "The same words in random order; the same text, the same order."
    words = text.split()
    return ' '.join(Random(text).sample(words, len(words)))


class Examples(Library):
    "What was done at a place in a game that was won: nothing else is kept, and all wins of a batch are read."
    def evolve(self, episodes, **how): return super().evolve(episodes, top=len(episodes), limits=(10**6, 0), **how)
    def take_in(self, found, task): return super().take_in(found, task) if found.level == 'example' else 'rejected'


class Everywhere(Examples):
    "The best tips of all places at every place, as in the release without its headings."
    def best(self, task, golden, warning, fits): return super().best(task, golden, warning, lambda tip: True)


class OneTip(Experienced):
    "One tip at a time, as the start has seen them."
    def __init__(self, env, library): super().__init__(env, library, golden=1, warning=0)


class Shuffled(OneTip):
    "The words of the tip in random order: as much text, at the same places."
    def show(self, step):
        step = super().show(step)
        tip, found, said = step.observation.rpartition('\n\n')
        if found: step.observation = f'{shuffled(tip)}\n\n{said}'
        return step
