"""MasHost, in the spirit of: a policy says a graph of workers node by node. Does a small price on actions that change
nothing leave it with leaner graphs that are right as often?"""
from itertools import product

from claims import Claim

PRICE = .03  # of a node, in the measure; no arm is trained on it
START = dict(steps=150, episodes=16, pool=2000, noise=.7, max_context=96)
SIZES = dict(groups=12, group_size=8, steps=60, max_turns=6, max_tokens=4, test_tasks=0, lr=1e-3)
TESTS, TRIED = 400, 300  # held-out questions; questions of the training split on which fixed graphs are compared

def worth(graphs, tasks) -> dict:
    "Success, nodes, and success less the price of the nodes; a graph for each task."
    from _host import answers
    won = [[*answers(nodes, **task).values()][-1:] == [True] for nodes, task in zip(graphs, tasks)]
    success, size = sum(won)/len(tasks), sum(map(len, graphs))/len(tasks)
    return dict(worth=success - PRICE*size, success=success, nodes=size)

def fixed(seed):
    "The graph of at most four nodes that is worth most on training questions, whatever is asked."
    from _host import KINDS, ROLES, Host
    tasks, found = Host().tasks('train', TRIED, seed=seed), []
    for size in range(1, 5):
        parts = [[(role, edge) for role in ROLES for edge in range(at) if edge or role in KINDS.values()]
            for at in range(1, size + 1)]
        for nodes in product(*parts):
            if len(set(nodes)) == size and nodes[-1][1] in (0, size - 1):
                graph = dict(enumerate(nodes, 1))
                found.append((worth([graph]*60, tasks[:60])['worth'], graph))
    best = sorted(found, key=lambda one: -one[0])[:40]
    return max((graph for _, graph in best), key=lambda graph: worth([graph]*TRIED, tasks)['worth'])

def played(policy, tasks, seed):
    "Graphs that the policy builds, and actions of a game that changed nothing."
    from _host import Host
    from agentlab.rollout import play
    games = play(policy, Host(split='test'), range(len(tasks)), tasks=tasks, max_turns=6, max_tokens=4, seed=seed)
    won, size = (sum(x)/len(games) for x in ([g.success for g in games], [g.turns[-1].columns['nodes'] for g in games]))
    return dict(worth=won - PRICE*size, success=won, nodes=size, actions=sum(len(g.turns) for g in games)/len(games),
        redundant=sum(t.columns['redundant'] for g in games for t in g.turns)/len(games))

def row(arm, seed):
    from functools import partial

    from _attempts import begun, one_thread
    from _host import Host
    from _runs import learned
    from agentlab.prompt.graphs import hrpo
    from agentlab.train import Recipe
    tasks, zero = Host().tasks('test', TESTS, seed=seed), dict(actions=0., redundant=0.)
    if arm == 'fixed': return {k: round(x, 4) for k, x in (worth([fixed(seed)]*TESTS, tasks) | zero).items()}
    with one_thread():
        policy = begun(Host(), seed, **START)
        lam = dict(hrpo=.5, lambda_0=0.).get(arm)
        recipe = lambda: Recipe('hrpo', 'in the spirit of MasHost', credit=partial(hrpo, lam=lam), seed=seed, **SIZES)
        if lam is not None: learned(policy, Host(), recipe())
        return {k: round(x, 4) for k, x in played(policy, tasks, seed).items()}

CLAIM = Claim(
    'mashost', 'With a small price on actions that change nothing a policy builds graphs that are worth more: success '
    'less a price for each node.', row, arms=('hrpo', 'lambda_0', 'fixed', 'random'), control='lambda_0',
    measure='worth', margin=.02,
    budget=f"{SIZES['steps']} updates of {SIZES['groups']} groups of {SIZES['group_size']} from one start; fixed: all "
    f'graphs of at most four nodes, compared on {TRIED} training questions; random: the start',
    world=f'Host: {TESTS} held-out questions of three kinds, temperature 1; {PRICE} for a node',
    settings=dict(start=START, recipe=SIZES, price=PRICE, lam=.5, penalty=.1, exempt=2))
