"What the claims about tips share: a start that has seen them, a miner of them, and texts that say nothing."
import copy
from functools import partial
from random import Random

from _runs import learned

from agentlab.policy import tiny_policy
from agentlab.replay.experience import Experienced, Library, Tipped

WORLD = dict(closed=0, horizon=8)
START = dict(steps=250, episodes=16, pool=4000, noise=.2)  # how the tiny policy is shown tips

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

# arm -> the library, how it is read in training, and in the test
ARMS = dict(step=(Examples, OneTip, OneTip), everywhere=(Everywhere, OneTip, OneTip),
    shuffled=(Examples, Shuffled, Shuffled), none=(Examples, lambda env, library: env, OneTip))
ROOM = dict(warm_up=1, least=1, golden=2000, clusters=2000)

def compared(arm: str, seed: int, env, policy, recipe, tests: int, each: int) -> dict:
    "Train a policy as an arm does; what held-out houses come to, with tips and without. recipe: memory -> a recipe."
    from agentlab.replay import OwnLibrary
    from agentlab.rollout import play
    kind, trained, tested = ARMS[arm]
    library = kind(**ROOM)
    recipe = recipe(partial(OwnLibrary, library=lambda: library, around=trained))
    def success(world):
        played = play(policy, world, range(tests), each, env.tasks('test', tests), max_turns=recipe.max_turns,
            max_tokens=recipe.max_tokens, seed=10**6 + seed)
        return round(sum(e.success for e in played)/len(played), 5)
    start = success(env)
    rows = learned(policy, env, recipe)
    return dict(success=success(tested(env, library)), without=success(env), start=start, tips=len(library),
        last=rows[-1]['success'])
