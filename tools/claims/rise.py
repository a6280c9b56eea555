"RISE: the best of several own attempts is imitated, with weights, against imitation of right first answers."
from functools import partial
from statistics import linear_regression

from _attempts import compared, within
from claims import Claim

START = dict(steps=150, pool=2048, noise=.4)
ITERATIONS, EPISODES, SAMPLES, UPDATES, LR = 3, 96, 8, 16, 2e-3
ARMS = ('rise', 'first', 'right_only', 'no_best')

def asked(attempts: int, goes_on):
    from agentlab.rollout.again import Again, spoken
    return partial(Again, attempts=attempts, goes_on=goes_on, ends=spoken, repeat=False)

def slope(by: list[float])->float:
    "Of success within k attempts over k, least squares."
    return round(linear_regression(range(len(by)), by).slope, 5)

def row(arm: str, seed: int)->dict:
    from agentlab.env import GuessNumber
    from agentlab.rollout.again import always, best_of_own, corrections, if_wrong, keep_attempts, keep_right, play_again
    from agentlab.train import recipes
    game = GuessNumber(1, 12)
    own = partial(best_of_own, samples=SAMPLES, around=asked(5, if_wrong))
    # as many sampled attempts in all arms: 1 and 4 times SAMPLES in an episode, or as many episodes of one or of five
    rollout, times = dict(first=(partial(play_again, around=asked(1, if_wrong)), 1 + 4*SAMPLES),
        no_best=(partial(play_again, around=asked(5, if_wrong)), 7)).get(arm, (own, 1))
    change = dict(curate=partial(keep_attempts, keep=keep_right)) if arm in ('first', 'right_only') else {}
    recipe = recipes.rise(rollout=rollout, groups=EPISODES*times, group_size=1, steps=ITERATIONS, minibatches=UPDATES,
        lr=LR, seed=seed, max_tokens=4, test_tasks=0, **change)
    env = asked(5, always)(game)
    b, first, rows = compared(env, game, env, recipe, seed, START, 70, max_tokens=4)
    by, before = within(b), within(first)
    return dict(slope=slope(by), success_1=by[0], success_5=by[-1], vote=round(corrections(b)['vote'], 5),
        by_attempts=by, before=before, slope_before=slope(before),
        episodes=sum(one['episodes'] for one in rows))

CLAIM = Claim(
    key='rise', says='Imitation of the best of its own later attempts, with weights, makes success rise faster with '
    'the attempts than imitation of right first answers, and the first attempt is not worse.',
    row=row, arms=ARMS, control='first', measure='slope', margin=.01,
    budget=f'{ITERATIONS} iterations of {UPDATES} updates; as many sampled attempts: {EPISODES} episodes of '
    f'1 + 4 x {SAMPLES}, or {EPISODES*(1 + 4*SAMPLES)} first attempts (no_best: {EPISODES*7} episodes of five)',
    world='GuessNumber 1-12 without its hints; held-out ranges, told incorrect after each of five answers',
    settings=dict(start=START, iterations=ITERATIONS, episodes=EPISODES, samples=SAMPLES, updates=UPDATES, lr=LR))
