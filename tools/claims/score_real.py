"""SCoRe with SmolLM2-135M and an adapter, on sums of three numbers of two digits. No tool and nothing new to read: a
second attempt is better only if the model learns to look again. Measured with seed 100 and OMP_NUM_THREADS=1 on a busy
machine, in CPU-seconds: 49 an update of 36 episodes, 202 the priming, 31 a test of 48 sums, in which the start had .35
of its first attempts right, .40 of the second, .19 corrected, .15 spoiled. Projected, a row is 14 updates of 48, 66
each, the priming and two tests: 20 minutes on one idle core."""
from _runs import learned
from score import paid_as
from claims import Claim

PRIMED = dict(steps=40, episodes=8, noise=.3)
RUN = dict(steps=14, groups=8, group_size=6, max_turns=2, max_tokens=32, test_tasks=0, checkpoint_every=14)
STAGE, TASKS, TESTS = 5, 3000, dict(tests=64, each=1)

def chain(numbers: list, slip: int = 0) -> str:
    "Two at a time; a slip in the first sum is carried on."
    a, b, c = numbers
    return f'{a} + {b} = {a + b + slip}, {a + b + slip} + {c} = {a + b + slip + c}'

def sums():
    "The last number of a reply counts."
    from random import Random

    from agentlab.env.own_tasks import OwnTasks, number
    from agentlab.env.protocol import guide_text, noisy
    class Sums(OwnTasks):
        def expert(self, noise=0., generator=None):
            slip = generator.choice((-10, -1, 1, 10)) if noisy(noise, generator) else 0
            return chain(self.task['numbers'], slip)
    draw = Random('sums')
    guide = guide_text('Add three numbers, two at a time.', 'Write both sums.', chain([12, 34, 56]))
    drawn = {tuple(draw.randint(10, 99) for _ in range(3)) for _ in range(TASKS)}
    return Sums([dict(prompt=' + '.join(map(str, one)), numbers=list(one), answer=sum(one)) for one in sorted(drawn)],
        number, guide=guide, max_tokens=RUN['max_tokens'])

def twice(env):
    "The second attempt is not told whether the first was right."
    from agentlab.rollout.again import Again, Says, always
    return Again(env, goes_on=always, between=Says('Try again.'))

def row(arm: str, seed: int) -> dict:
    from agentlab.episodes import Batch
    from agentlab.policy import pretrained, prime
    from agentlab.rollout import play
    from agentlab.rollout.again import corrections
    from agentlab.train import recipes
    from agentlab.train.trainer import for_pretrained
    env = twice(sums())
    policy = prime(pretrained('smollm2', source='package', seed=seed), env, seed=seed, progress=False, **PRIMED)
    def tested():
        played = play(policy, env, range(TESTS['tests']), TESTS['each'], env.tasks('test', TESTS['tests']),
            max_turns=RUN['max_turns'], max_tokens=RUN['max_tokens'], seed=10**6 + seed)
        return {name: round(x, 5) for name, x in corrections(Batch.from_episodes(played)).items()}
    before = tested()
    sizes = {name: RUN[name] for name in ('group_size', 'max_tokens')}
    rows = learned(policy, env, for_pretrained(recipes.score(seed=seed, **RUN, **paid_as(arm, STAGE)), **sizes))
    after, kept = tested(), ('gain', 'first', 'second', 'corrected', 'spoiled', 'unchanged')
    return {name: after[name] for name in kept} | {f'{name}_before': before[name] for name in kept} | dict(
        unchanged_while_trained=[one['attempt_unchanged'] for one in rows])

CLAIM = Claim(
    key='score-real', says='Trained in two stages and paid for the change, SmolLM2 corrects more beyond what it spoils '
    'than with plain training of both attempts.', row=row, arms=('score', 'plain'), control='plain', measure='gain',
    margin=.03, model='SmolLM2-135M', seeds=(0, 1, 2),
    budget=f'the same {PRIMED["steps"]} supervised updates, then {RUN["steps"]} updates of 48 episodes of two attempts',
    world='OwnTasks: sums of three numbers of two digits; held-out sums, corrected minus spoiled',
    settings=dict(primed=PRIMED, run=RUN, stage=STAGE, tasks=TASKS, tests=TESTS))
