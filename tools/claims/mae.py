"""Multi-Agent Evolve: one tiny policy asks, answers and judges, and earns what its own judgements say. The paper's
claim is about language models; the tiny one shows what the loop pays for, and what it does not."""
import copy
from functools import partial

from claims import Claim

SIZES = dict(steps=25, groups=32, group_size=3, lr=5e-4, max_tokens=6, max_turns=2, test_tasks=0)
SEEDS, TESTS = 64, 200

def truly(tasks: list)->list: return ['10' if one['right'] else '1' for one in tasks]

def tested(policy, world, seed: int)->dict:
    "Held-out questions, judgements of their answers, and questions that are asked."
    from random import Random
    from _society import DIGITS, accuracy, read
    from agentlab.selfplay.peers import Trio, near, read_number
    trio, draw = Trio(policy, world, read, None, 10**6 + seed, dict(max_tokens=6)), Random(seed)
    questions = [t['prompt'] for t in world.tasks('test', 120)]
    pairs = [dict(question=q, said=read(q)['answer'] if draw.random() < .5 else draw.choice(DIGITS))
        for q in questions]
    marks = [read_number(text, 10) for text in trio.say(2, pairs, 'judge')[1]]
    asked = trio.say(0, [dict(question='')]*TESTS, 'ask')[1]
    mean = lambda x: round(sum(x)/len(x), 4)
    return dict(accuracy=round(accuracy(policy, world, seed), 4),
        agrees=mean([near(mark, 10, trio.right(one)) for mark, one in zip(marks, pairs)]),
        marks=mean([1 if mark is None else mark for mark in marks]),
        readable=mean([read(q) is not None for q in asked]), distinct=len({*asked})/TESTS)

def begun(seed: int)->tuple:
    "The world, and a policy that has watched all roles."
    from _society import START, WORDS, Shown, largest, trio_script
    from agentlab.policy import tiny_policy
    world = largest()
    return world, copy.deepcopy(tiny_policy(Shown(trio_script(world), WORDS), seed=seed, progress=False, **START))

def evolving(world, seed: int, **changes):
    "The recipe of a run that begins with some questions; changes: arguments of `play_trio`."
    from _society import read
    from agentlab.selfplay.peers import Evolution, play_trio
    from agentlab.train import recipes
    known = [t['prompt'] for t in world.tasks('train', SEEDS)]
    return recipes.mae(**SIZES, rollout=partial(play_trio, read=read, **changes), seed=seed,
        memory=partial(Evolution, questions=known))

def row(arm: str, seed: int)->dict:
    from _attempts import one_thread
    from _runs import learned
    with one_thread():
        world, policy = begun(seed)
        before = tested(policy, world, seed)
        changes = dict(no_judge_update=dict(learns=('proposer', 'solver')), truth=dict(judge=truly),
            frozen=dict(players=dict(proposer=copy.deepcopy(policy)), learns=('solver', 'judge')))
        rows = [] if arm == 'none' else learned(policy, world, evolving(world, seed, **changes.get(arm, {})))
        return tested(policy, world, seed) | {f'{name}_before': x for name, x in before.items()} | dict(
            pool=[one['pool'] for one in rows[::4]])

CLAIM = Claim(
    key='mae', says='A policy that asks, answers and judges, and is paid by its own judgements alone, answers more '
    'held-out questions than before.', row=row, arms=('mae', 'none', 'no_judge_update', 'truth', 'frozen'),
    control='none', measure='accuracy', margin=.05,
    budget='25 updates of 32 messages of each role, from one start', world='the largest of three digits; 120 held-out '
    'questions', settings=dict(sizes=SIZES, seeds=SEEDS, tests=TESTS, start=dict(steps=400, noise=.4)))
