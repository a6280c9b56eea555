"UFO: to be asked again, and paid less for late and repeated answers, against training on single answers."
from functools import partial

from _attempts import compared, turns_per_success, turns_trained, within
from claims import Claim

START, STEPS, LR = dict(steps=150, pool=2048, noise=.4), 40, 1e-3
# answers in training, penalty of a repetition, groups: single answers get as many turns as five attempts can take
ARMS = dict(ufo=(5, .5, 64), single=(1, .5, 320), unpunished=(5, 0., 64))

def distinct(b)->float:
    "Share of the valid answers of an episode that were not said before in it, mean over the episodes."
    valid = ~b.turns.invalid.bool()
    shares = [len(set(said))/len(said) for e in range(len(b))
        if (said := b.turns.action[valid & (b.turns.episode == e)].tolist())]
    return round(sum(shares)/len(shares), 5)

def row(arm: str, seed: int)->dict:
    from agentlab.env import GuessNumber
    from agentlab.rollout.again import play_again
    from agentlab.rollout.turns import UnaryFeedback
    from agentlab.train import recipes
    attempts, repetition, groups = ARMS[arm]
    game, asked = GuessNumber(1, 12), UnaryFeedback(GuessNumber(1, 12))
    around = partial(play_again, around=partial(UnaryFeedback, attempts=attempts, repetition=repetition))
    # many tasks and no filter: a group shares its number, and of two numbers an update nothing is learned but these
    recipe = recipes.ufo(rollout=around, curate=None, groups=groups, group_size=4, steps=STEPS, lr=LR, seed=seed,
        max_tokens=4, max_turns=8, test_tasks=0)
    b, first, rows = compared(asked, game, asked, recipe, seed, START, 70, samples=8, max_tokens=4, max_turns=8)
    by = within(b)
    return dict(success_5=by[-1], success_1=by[0], distinct=distinct(b), turns_per_success=turns_per_success(b),
        turns_trained=turns_trained(rows), by_attempts=by,
        before=within(first)[-1], distinct_before=distinct(first))

CLAIM = Claim(
    key='ufo', says='A policy that is trained with five attempts and unary feedback solves more tasks within five '
    'attempts than one that is trained on single answers, and its first attempts are not worse.',
    row=row, arms=tuple(ARMS), control='single', measure='success_5', margin=.03,
    budget=f'{STEPS} updates of 256 episodes of up to five answers; the control plays five times as many of one answer',
    world='GuessNumber 1-12 without its hints; held-out ranges, five attempts at temperature 1',
    settings=dict(start=START, steps=STEPS, lr=LR, arms=ARMS, group_size=4))
