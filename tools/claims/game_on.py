"""Game On: a curriculum is proposed from what succeeded so far. The option is how far the chest may be, in turns of the
shortest way; every arm plays as many games, and is tested in houses of all lengths."""
import random
from statistics import mean

from _practice import RUN, SETTINGS, UPDATES, WHERE, house, one_thread, share, start
from claims import Claim

OPTIONS, EVERY = (4, 5, 6, 7, 8), 5

class Course:
    "A rollout that draws its houses from an option, and then chooses the next one."
    def __init__(self, choose, seed):
        self.choose, self.random, self.played = choose, random.Random(seed), []
        self.option = choose(self, None)
    def __call__(self, policy, env, seeds, *args, **how):
        from agentlab.rollout import play
        self.played.append(OPTIONS[self.option])
        games = play(policy, house(horizon=OPTIONS[self.option]), seeds, *args, **how)
        self.option = self.choose(self, mean(bool(game.success) for game in games))
        return games

def proposed(course, share):
    from agentlab.train.practice import proposed
    return 0 if share is None else proposed(share, course.option, len(OPTIONS))

RULES = {'game-on': proposed, 'fixed': lambda course, share: len(OPTIONS) - 1,
    'random': lambda course, share: course.random.randrange(len(OPTIONS)),
    'in order': lambda course, share: min(len(course.played)*len(OPTIONS)//UPDATES, len(OPTIONS) - 1)}

def row(arm: str, seed: int) -> dict:
    from _runs import learned
    from agentlab.train import recipes
    world, tests = house(), []
    with one_thread():
        policy, course = start(seed), Course(RULES[arm], seed)
        for part in range(UPDATES//EVERY):
            learned(policy, world, recipes.grpo(**RUN, steps=EVERY, seed=1000*seed + part, max_turns=8, rollout=course))
            tests.append(share(policy, world, seed))
        return dict(area=round(mean(tests), 5), success=tests[-1], option=round(mean(course.played), 2))

CLAIM = Claim(
    'game-on', 'A curriculum that goes up when most games are won, and down when few are, teaches more than the full '
    'range from the start.', row, arms=tuple(RULES), control='fixed', measure='area', margin=.03,
    budget=f'the same start and {UPDATES} updates of 64 games',
    world=f'{WHERE}; held-out success, mean of the tests after every {EVERY} updates',
    settings=SETTINGS | dict(options=OPTIONS, every=EVERY))
