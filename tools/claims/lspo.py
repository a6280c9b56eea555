"""LSPO in the spirit of its abstract: poker with talk. Does each iteration of clusters, regret and preferences lower
what a best answer gains, in the game of phrases?
"""
from claims import Claim

ROUND = dict(n=6, rounds=8, iterations=100, beta=.1, steps=20)
START, ROUNDS = .7, (1, 2, 3)

def honest(situation):
    "Weights of the legal texts: mostly what the card is worth."
    from agentlab.selfplay.phrases import PHRASES
    if situation.legal[0] not in PHRASES: return [1, 1]
    worth = dict(J=(0, 1), Q=(0, 0), K=(1, 0))[situation.state[1]]
    return [START/4 if PHRASES[text] == worth else (1 - START)/8 for text in situation.legal]

def changes(arm, generator):
    "What an arm does otherwise: arguments of `lspo`."
    import torch

    from agentlab.selfplay.phrases import kmeans
    shuffled = lambda x, k, g, weight: kmeans(x, k, g, weight)[torch.randperm(len(x), generator=g)]
    drawn = lambda score, talk: torch.rand(score.shape, generator=generator, dtype=torch.float64)
    return dict(lspo={}, random=dict(rate=drawn), permuted=dict(group=shuffled), far=dict(lr=10.),
        rarer=dict(rate=lambda score, talk: score/talk.clamp(min=1e-9)))[arm]

def row(arm, seed):
    "What best answers gain (NashConv) before and after each iteration, and how often an iteration lowered it."
    import torch

    from agentlab.selfplay.exploitability import cfr, game_tree, nash_conv, strategy_of
    from agentlab.selfplay.phrases import TalkedKuhn, lspo
    game, generator = TalkedKuhn(), torch.Generator().manual_seed(seed)
    tree = game_tree(game)
    talk, gains = strategy_of(tree, honest), []
    for number in ROUNDS if arm != 'raw' else ():
        before, talk = lspo(game, tree, talk, 2 + number, generator, **ROUND, **changes(arm, generator))
        gains += [nash_conv(tree, before)]*(not gains) + [nash_conv(tree, talk)]
    if arm == 'raw': gains = [nash_conv(tree, cfr(tree, ROUND['iterations']))]*(len(ROUNDS) + 1)
    lowered = sum(b < a for a, b in zip(gains, gains[1:]))/len(ROUNDS)
    found = dict(zip(('start', *(f'after {number}' for number in ROUNDS)), gains))
    return {name: round(x, 4) for name, x in (found | dict(fell=gains[0] - gains[-1], lowered=lowered)).items()}

CLAIM = Claim(
    'lspo', 'Preferences by regret over clusters of phrases lower exploitability more than random ones', row,
    arms=('lspo', 'random', 'permuted', 'far', 'rarer', 'raw'), control='random', measure='fell', margin=.02,
    budget='3 iterations, 8 rounds of 6 texts in each of 39 situations; raw: no talker, regret on the phrases',
    world='Kuhn poker with a phrase of each seat before the betting; NashConv in the game of phrases',
    seeds=tuple(range(20)), settings=dict(round=ROUND, start=START))
