"""OPTAGENT, in the spirit of: who listens to whom is edited by what the debates did. Scripted agents, so that what a
graph is worth is computed and not sampled; every arm may make as many calls for a question."""
from itertools import combinations
from random import Random

from claims import Claim

AGENTS, EDGES, Q = 5, 4, .7
CROWDS, ROUNDS, TASKS = 5, 30, 50  # of a row; of editing, each with so many questions whose answers are known
CALLS = AGENTS + EDGES  # of a question: an answer of everybody, and one more for everybody who listens

def crowd(seed, number):
    "How often each agent is right by itself: drawn evenly, so that nobody has put an expert among them."
    draw = Random(f'crowd {seed} {number}')
    return tuple(draw.uniform(.35, .9) for _ in range(AGENTS))

def edited(chances, draw, random=False):
    from itertools import permutations
    from agentlab.prompt.graphs import edit_graph, gains
    start = draw.sample([*permutations(range(AGENTS), 2)], EDGES)
    score = (lambda edges: [draw.random() for _ in edges]) if random else (
        lambda edges: gains(chances, edges, Q, TASKS, draw))
    return edit_graph(start, AGENTS, score, ROUNDS, draw)

def accuracy(arm, chances, draw):
    "The chance that the majority is right with CALLS calls."
    from itertools import permutations
    from agentlab.prompt.graphs import first_answers, graph_accuracy, majority
    if arm == 'vote': return majority(first_answers([*chances, *draw.sample(chances, EDGES)]))  # some answer twice
    if arm == 'all to all':  # three agents, nine calls
        some = [*combinations(chances, 3)]
        return sum(graph_accuracy(three, [*permutations(range(3), 2)], Q) for three in some)/len(some)
    if arm == 'best graph':
        graphs = combinations(permutations(range(AGENTS), 2), EDGES)
        return max(graph_accuracy(chances, edges, Q) for edges in graphs)
    if arm == 'best agent': return max(chances)
    return graph_accuracy(chances, edited(chances, draw, arm == 'random edits'), Q)

def row(arm, seed):
    found = [accuracy(arm, crowd(seed, k), Random(f'{arm} {seed} {k}')) for k in range(CROWDS)]
    return dict(accuracy=round(sum(found)/CROWDS, 5), lowest=round(min(found), 5))

CLAIM = Claim(
    'optagent', 'Where who listens to whom is edited by what debates did to listeners, the majority is right more '
    'often than a vote of as many answers.', row,
    arms=('edited', 'vote', 'all to all', 'random edits', 'best graph', 'best agent'), control='vote',
    measure='accuracy', margin=.01,
    budget=f'{CALLS} calls for a question in every arm but the best agent (1); editing, random or not: {ROUNDS} rounds '
    f'of {TASKS} questions', world=f'{CROWDS} crowds a seed of {AGENTS} scripted agents, each right by itself with a '
    f'chance drawn from .35 to .9, who believe a speaker with chance {Q}; exact accuracy', seeds=tuple(range(20)),
    settings=dict(agents=AGENTS, edges=EDGES, q=Q, crowds=CROWDS, rounds=ROUNDS, tasks=TASKS))
