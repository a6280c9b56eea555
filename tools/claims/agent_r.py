"Agent-R: three rounds of its own tree, spliced at its own first errors, against imitating the good leaves alone."
from _attempts import one_thread, share_won, tested
from _search import LIMITS, START, apart, held_out, house, imitating, taught, weak
from claims import Claim

TREES, DIVES, ROUNDS, LR, UPDATES, PLANTED = 48, 4, 3, 3e-4, 24, 150
ARMS = ('spliced', 'good only', 'spliced at the end', 'not trained')

def last_turn(b):
    "A judge that calls the last turn before the end the error."
    import torch
    from agentlab.groups import cumcount
    size = torch.bincount(b.turns.episode, minlength=len(b))[b.turns.episode]
    return cumcount(b.turns.episode) == size - 2

def leaves(trees, arm: str) -> list:
    "What an arm imitates: splices and good leaves, or good leaves alone."
    from agentlab.replay import unlike_winners
    from agentlab.rollout import revised
    judge = last_turn if arm == 'spliced at the end' else unlike_winners
    return [e for e in revised(trees, judge=judge) if arm != 'good only' or e.source != 'spliced']

def a_round(policy, arm: str, seed: int, at: int):
    "Search with the policy as it is, and imitate what the arm takes from its leaves: the new policy, and what it was."
    from agentlab.episodes import Batch, derive
    from agentlab.replay import trained_only
    from agentlab.rollout import Trees
    tasks = [derive(seed, 'round', at, i) for i in range(TREES)]
    trees = Trees(policy, house(), tasks, seed=derive(seed, at), **LIMITS)
    trees.dive(DIVES)
    found = leaves(trees, arm)
    steps = sum(spent['steps'] for spent in trees.spent)
    trees.close()
    batch = apart(trained_only(Batch.from_episodes(found)))
    facts = dict(episodes=len(found), splices=sum(e.source == 'spliced' for e in found), steps=steps)
    return taught(policy, batch, imitating, LR, UPDATES, seed, 32, UPDATES), facts

def planted(policy, seed: int) -> float:
    "Games won in which the first move is an expert's and the second a wrong one, both made in the agent's name."
    import random
    from agentlab.rollout import act_round, spelt
    draw = random.Random(seed)
    moves = lambda g: [a for a in g.step.info['legal'] if a.startswith('go') and a != g.env.expert()]
    def plant(games):
        act_round(games, policy, [spelt(policy, g.env.expert()) for g in games], None, {}, None, None)
        live = [g for g in games if not g.over and moves(g)]
        act_round(live, policy, [spelt(policy, draw.choice(moves(g))) for g in live], None, {}, None, None)
    return share_won(tested(policy, house('test'), PLANTED, seed, samples=1, on_reset=plant, **LIMITS))

def row(arm: str, seed: int)->dict:
    with one_thread():
        policy, facts, curve = weak(seed), [], []
        curve.append(planted(policy, seed))
        for at in range(ROUNDS if arm != 'not trained' else 0):
            policy, found = a_round(policy, arm, seed, at)
            facts.append(found)
            curve.append(planted(policy, seed))
        return held_out(policy, seed) | dict(recovered=curve[-1], by_round=curve, steps=sum(f['steps'] for f in facts),
            episodes=[f['episodes'] for f in facts],
            splices=[f['splices'] for f in facts])

CLAIM = Claim(
    key='agent-r', says='After three rounds of search, splice and imitation an agent wins more games from an error '
    'that was planted than one that imitates the good leaves of as many trees.',
    row=row, arms=ARMS, control='good only', measure='recovered', margin=.05,
    budget=f'{ROUNDS} rounds of {TREES} trees of {DIVES} ways, each with the policy as it is; '
    f'{UPDATES} updates of 32 episodes each',
    world=f'KeyDoor 3 x 3, {PLANTED} held-out houses, one wrong move after one right one, temperature 1',
    settings=dict(start=START, limits=LIMITS, trees=TREES, dives=DIVES, rounds=ROUNDS, lr=LR, updates=UPDATES))
