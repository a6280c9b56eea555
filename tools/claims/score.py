"SCoRe: paid for the change, after a stage that holds the first attempt, against plain training of two attempts."
from functools import partial

from _attempts import compared, turns_trained
from claims import Claim

START, STEPS, STAGE, LR = dict(steps=300, pool=2048, noise=.3), 40, 15, 1e-3
ARMS = ('score', 'plain', 'no_stage_one', 'no_bonus')

def either():
    "Questions of one hop and of two, in turn; the people of a world are as many in both."
    from agentlab.env import HopSearch
    class Either(HopSearch):
        name = 'either'
        def __init__(self, split='train'): super().__init__(hops=2, distractors=10, horizon=4, split=split)
        def reset(self, seed, task=None):
            self.hops = len(task['path']) if task else 1 + seed % 2
            return super().reset(seed, task)
        def tasks(self, split, n, seed=0):
            kinds = []
            for hops in (1, 2):
                self.hops = hops
                kinds.append(super().tasks(split, (n + 1)//2, seed))
            return [task for pair in zip(*kinds) for task in pair][:n]
    return Either()

def twice(env):
    "The first answer is due after one search; the second attempt is not told whether that was right."
    from agentlab.rollout.again import Again, Says, always
    return Again(env, goes_on=always, between=Says('Once again.'), limits=(2, 4))

def paid_as(arm: str, stage: int)->dict:
    "The fields of the recipe in which the arms differ."
    from agentlab.objective.policy_loss import kl_k3
    from agentlab.rollout.again import improved, kl_by_attempt, staged
    hold, both = (partial(kl_by_attempt, kl=kl_k3, first=f, later=l) for f, l in ((.1, 0.), (.01, .01)))
    reward = partial(improved, alpha=10. if arm in ('score', 'no_stage_one') else 0.)
    two = dict(reward=reward, kl=both)
    one = dict(reward=partial(improved, alpha=0., first=0.), kl=hold) if arm in ('score', 'no_bonus') else two
    return dict(reward=reward, schedule=partial(staged, stages=((0, one), (stage, two))))

def row(arm: str, seed: int)->dict:
    from agentlab.rollout.again import corrections, play_again
    from agentlab.train import recipes
    recipe = recipes.score(rollout=partial(play_again, around=twice), steps=STEPS, lr=LR, seed=seed, max_turns=8,
        test_tasks=0, **paid_as(arm, STAGE))
    env = twice(either())
    b, first, rows = compared(env, env, env, recipe, seed, START, 100, samples=2, max_tokens=8, max_turns=8)
    found, before = corrections(b), corrections(first)
    names = 'gain', 'first', 'second', 'corrected', 'spoiled', 'unchanged'
    after = {name: round(found[name], 5) for name in names}
    return after | {f'{name}_before': round(before[name], 5) for name in names if name in ('gain', 'first', 'second',
        'spoiled')} | dict(
        turns_trained=turns_trained(rows))

CLAIM = Claim(
    key='score', says='Trained in two stages and paid for the change, the second attempt gains more over the first '
    'than with plain training of both attempts.',
    row=row, arms=ARMS, control='plain', measure='gain', margin=.03,
    budget=f'{STEPS} updates of 64 episodes of two attempts in every arm',
    world='HopSearch of one and two hops, 13 people; the first answer due after one search, the second after three',
    settings=dict(start=START, steps=STEPS, stage=STAGE, lr=LR))
