"""CoMAS: agents solve, list errors and score each other, and nobody else pays. Four tiny agents with weights of their
own begin as one policy that has watched all roles slip: 40 % of what it was shown was drawn at random."""
import copy
from functools import partial
from random import Random

from claims import Claim

AGENTS = 'a', 'b', 'c', 'd'
SIZES = dict(steps=25, groups=8, group_size=4, lr=5e-4, max_tokens=4, max_turns=2, test_tasks=0)
ROUNDS, TESTS = 2, 80

def truly(own: list)->list: return ['3' if one['right'] else '1' for one in own]

def swapped(policy, env, seeds, seed: int = 0, **how)->list:
    "The same games, in which every solution is paid by the score of another one of the batch."
    from agentlab.selfplay.peers import peer_rewards, play_peers, read_number
    found = play_peers(policy, env, seeds, seed=seed, **how)
    n = len(found)//ROUNDS//3
    for begin in range(0, len(found), 3*n):
        scores = [read_number(e.turns[0].text if e.turns else '', 3) for e in found[begin + 2*n:begin + 3*n]]
        Random(seed).shuffle(scores)
        for k, score in enumerate(scores):
            for role, pay in enumerate(peer_rewards(score)): found[begin + role*n + k].regrade(pay)
    return found

def asked(society, world, seed: int)->dict:
    "Held-out problems: the first and the second answers, how near scores come to the truth, and what they pay."
    from agentlab.selfplay.peers import play_peers
    found = play_peers(society, world, range(TESTS), tasks=world.tasks('test', TESTS), max_tokens=4, seed=10**6 + seed)
    mean = lambda role, what, part: round(sum(x := [what(e) for e in part if e.columns['role'] == role])/len(x), 4)
    half = len(found)//ROUNDS
    right, agrees = (lambda e: e.columns['right']), (lambda e: e.columns['agrees'])
    return dict(first=mean(0, right, found[:half]), second=mean(0, right, found[half:]),
        agrees=mean(2, agrees, found), reward=mean(0, lambda e: e.outcome, found))

def begun(seed: int, agents: tuple = AGENTS)->tuple:
    "The world, and agents with weights of their own that begin as one policy."
    from _society import START, WORDS, Shown, largest, peers_script
    from agentlab.policy import tiny_policy
    from agentlab.selfplay.role_weights import RoleWeights
    world = largest()
    start = tiny_policy(Shown(peers_script(world), WORDS), seed=seed, progress=False, **START)
    return world, RoleWeights(copy.deepcopy(start), agents)

def alone(society, world, seed: int)->dict:
    "Held-out questions to every agent by itself."
    from _society import accuracy
    found = [accuracy(society.at(agent), world, 10*seed + k) for k, agent in enumerate(society.seats)]
    return dict(accuracy=round(sum(found)/len(found), 4), worst=min(found))

def row(arm: str, seed: int)->dict:
    from _attempts import one_thread
    from _runs import learned
    from agentlab.selfplay.peers import play_peers
    from agentlab.train import recipes
    with one_thread():
        world, society = begun(seed, AGENTS[:2] if arm == 'two' else AGENTS)
        before, rows = asked(society, world, seed), []
        rollout = dict(shuffled=swapped, truth=partial(play_peers, score=truly)).get(arm, play_peers)
        if arm != 'none': rows = learned(society, world, recipes.comas(**SIZES, rollout=rollout, seed=seed))
        return (alone(society, world, seed) | asked(society, world, seed)
            | {f'{name}_before': x for name, x in before.items()}
            | {f'{name}_trained': [None if (x := one[name]) is None else round(x, 3) for one in rows[::4]]
            for name in ('right', 'agrees')})

CLAIM = Claim(
    key='comas', says='Scores that agents give each other are enough to learn from: without any other reward they '
    'answer more held-out questions than with the same scores shuffled.', row=row,
    arms=('comas', 'shuffled', 'truth', 'none', 'two'), control='shuffled', measure='accuracy', margin=.05,
    budget='25 updates of 8 problems, 4 solutions each in two rounds, from one start',
    world='the largest of three digits; 120 held-out questions to every agent alone',
    settings=dict(sizes=SIZES, rounds=ROUNDS, tests=TESTS, start=dict(steps=400, noise=.4)))
