"Agent-R: three rounds of its own tree, spliced at its own first errors, against imitating the good leaves alone."
from _attempts import one_thread
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


def leaves(trees, found, arm: str) -> list:
    "What an arm imitates: splices and good leaves, or good leaves alone."
    from agentlab.replay import unlike_winners
    from agentlab.rollout import revised
    judge = last_turn if arm == 'spliced at the end' else unlike_winners
    return [e for e in revised(trees, found, judge) if arm != 'good only' or e.source != 'spliced']


def a_round(policy, arm: str, seed: int, at: int):
    "Search with the policy as it is, and imitate what the arm takes from its leaves: the new policy, and what it was."
    from agentlab.episodes import Batch, derive
    from agentlab.replay import trained_only
    from agentlab.rollout import Trees
    tasks = [derive(seed, 'round', at, i) for i in range(TREES)]
    trees = Trees(policy, house(), tasks, seed=derive(seed, at), **LIMITS)
    trees.dive(DIVES)
    found = leaves(trees, None, arm)
    steps = sum(spent['steps'] for spent in trees.spent)
    trees.close()
    batch = apart(trained_only(Batch.from_episodes(found)))
    facts = dict(episodes=len(found), splices=sum(e.source == 'spliced' for e in found), steps=steps)
    return taught(policy, batch, imitating, LR, UPDATES, seed, 32, UPDATES), facts


def planted(policy, seed: int) -> float:
    "Games won in which the first moves are an expert's and the last of them a wrong turn, made in the agent's name."
    import random
    from agentlab.episodes import derive
    from agentlab.rollout import act_round, new_games, play_round, receive_all, spelt, within_budget
    env, draw = house('test'), random.Random(seed)
    tasks = env.tasks('test', PLANTED)
    games = new_games(env, range(PLANTED), 1, tasks, derive(seed, 'planted'))
    receive_all(games, [g.env.reset(g.seed, g.task) for g in games], policy, None)
    sampler = policy.sampler()
    how = dict(max_tokens=LIMITS['max_tokens'], temperature=1., top_p=1., stop=(policy.end_id,))
    moves = lambda g: [a for a in g.step.info['legal'] if a.startswith('go') and a != g.env.expert()]
    for wrong in (False, True):
        live = [g for g in games if not g.over and (not wrong or moves(g))]
        said = [spelt(policy, draw.choice(moves(g)) if wrong else g.env.expert()) for g in live]
        act_round(live, policy, said, sampler, how, None, None)
    budget = dict(max_turns=LIMITS['max_turns'], max_tokens=LIMITS['max_tokens'], token_budget=None)
    while live := [g for g in games if not g.over and within_budget(g, policy, **budget)]:
        play_round(live, policy, sampler, how, None, None)
    return round(sum(e.success for g in games for e in g.episodes())/PLANTED, 5)


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
