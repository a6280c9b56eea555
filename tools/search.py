"""Record what a search before every move is worth: games won against environment steps, with two kinds of prior.

    python tools/search.py                      how many rows there are
    python tools/search.py --all --seeds 0 1    plays those that are missing

A row is a world, an arm, a number of visits and a seed; it stands in assets/results/search.json.xz as soon as it is
made.
The policy of a seed has watched some updates of imitation, the same for all arms; how many, and the discount, were
chosen on seed 100, where without a search it wins .20 of the games of KeyDoor and .28 of HopSearch.
"""
import sys
import time
from argparse import ArgumentParser
from functools import lru_cache

from claims import recorded
from notebooks import ROOT

OUT, SEEDS = ROOT/'assets'/'results', (0, 1, 2, 3, 4)
# updates of imitation, and the limits of a game
WORLDS = dict(keydoor=(300, dict(max_turns=24)), hopsearch=(150, dict(max_turns=12, max_tokens=12)))
VISITS, ARMS, PLAIN, TASKS, GAMMA = (2, 4, 8, 16, 32, 64), ('own prior', 'uniform'), 'no search', 24, .95
COLORS = {'own prior': '#2f6db5', 'uniform': '#d9822b'}

@lru_cache(1)
def begun(world: str, seed: int):
    "The environment, and the policy of a seed."
    from agentlab.env import load_env
    from agentlab.policy import tiny_policy
    env = load_env(world)
    policy = tiny_policy(env, steps=WORLDS[world][0], pool=2048, seed=seed, progress=False)
    env.split = 'test'
    return env, policy

def played(world: str, arm: str, visits: int, seed: int) -> dict:
    "Held-out tasks, with so many visits before every move."
    from agentlab.episodes import derive
    from agentlab.rollout import Trees, evenly, legal, play, puct, sampled
    (env, policy), limits = begun(world, seed), WORLDS[world][1]
    seeds, start = [derive(seed, 'search', task) for task in range(TASKS)], time.process_time()
    mean = lambda found: round(sum(found)/TASKS, 4)
    if arm == PLAIN:
        games = play(policy, env, seeds, 1, seed=seed, **limits)
        steps, tokens = [len(e.turns) for e in games], [sum(len(t.ids) for t in e.turns) for e in games]
    else:
        ways = dict(propose=legal, prior=evenly) if arm == 'uniform' else dict(propose=sampled)
        trees = Trees(policy, env, seeds, seed=seed, **ways, **limits)
        games = trees.play(visits, choose=puct, gamma=GAMMA)
        trees.close()
        steps, tokens = ([spent[what] for spent in trees.spent] for what in ('steps', 'tokens'))
    return dict(success=mean([e.success for e in games]), steps=mean(steps), tokens=mean(tokens),
        seconds=round(time.process_time() - start, 1))

def rows() -> dict:
    "What is recorded: 'world, arm, visits, seed' -> row."
    return recorded('search', OUT).get('rows', {})

def record(world: str, arm: str, visits: int, seed: int) -> dict:
    "A row of the record, made where it is missing."
    from agentlab.bench import circumstances, keep
    key = f'{world}, {arm}, {visits}, {seed}'
    if key in (found := rows()): return found[key]
    row = played(world, arm, visits, seed)
    facts = circumstances('python tools/search.py --all') | dict(worlds=WORLDS, tasks=TASKS, gamma=GAMMA)
    keep(facts | dict(rows=rows() | {key: row}), OUT, 'search', packed=True)
    return row

LABELLED = [visits if visits in (2, 8, 64) else '' for visits in VISITS]     # in HopSearch the others would overlap
CELLS = ((PLAIN, 0), *((arm, visits) for visits in VISITS for arm in ARMS))

def measured() -> dict:
    "(world, arm, visits) -> the rows of its seeds, of every cell that has some."
    found = rows()
    seeds = {cell: [found[key] for seed in SEEDS if (key := ', '.join(map(str, (*cell, seed)))) in found]
        for cell in ((world, *cell) for world in WORLDS for cell in CELLS)}
    return {cell: there for cell, there in seeds.items() if there}

def of(seeds: list[dict], what: str) -> list[float]: return [row[what] for row in seeds]

def shown(ends: dict) -> str:
    "A mean with its interval, where there is one."
    return '{mean:.2f}'.format(**ends) + ('' if ends['low'] is None else ' [{low:.2f}, {high:.2f}]'.format(**ends))

def table():
    "A row a cell: success with its interval over the seeds, environment steps and tokens of a task."
    import pandas as pd
    from results import interval
    return pd.DataFrame([{
        'world': world, 'visits': visits, 'prior': arm, 'success': shown(interval(of(seeds, 'success'), 1.)),
        'steps': round(sum(of(seeds, 'steps'))/len(seeds)), 'tokens': round(sum(of(seeds, 'tokens'))/len(seeds)),
        'seeds': len(seeds)} for (world, arm, visits), seeds in measured().items()])

def picture():
    "Success against environment steps, a panel for each world."
    from plotly.subplots import make_subplots
    from agentlab.view.web import LOOK
    from results import interval
    figure = make_subplots(1, len(WORLDS), subplot_titles=list(WORLDS), shared_yaxes=True, horizontal_spacing=.05)
    found = measured()
    for at, world in enumerate(WORLDS, 1):
        for arm in ARMS:
            there = [found[world, arm, visits] for visits in VISITS if (world, arm, visits) in found]
            ends = [interval(of(seeds, 'success'), 1.) for seeds in there]
            steps = [sum(of(seeds, 'steps'))/len(seeds) for seeds in there]
            sure = [(e['low'] or 0., e['mean'], e['high'] or e['mean']) for e in ends]
            error = dict(array=[high - mean for _, mean, high in sure],
                arrayminus=[mean - low for low, mean, _ in sure], symmetric=False, thickness=1)
            figure.add_scatter(x=steps, y=[e['mean'] for e in ends], error_y=error, name=arm, legendgroup=arm,
                mode='lines+markers+text', text=LABELLED, textposition='top left', showlegend=at == 1,
                line=dict(color=COLORS[arm]), row=1, col=at)
        plain = interval(of(found[world, PLAIN, 0], 'success'))['mean']
        figure.add_hline(plain, line=dict(dash='dot', color='#777'), annotation_text='no search',
            annotation_position='bottom right', row=1, col=at)
    figure.update_xaxes(type='log', title='environment steps of a task')
    figure.update_yaxes(range=[-.05, 1.1], title='games won', col=1)
    return figure.update_layout(height=330, width=820, margin=dict(l=50, r=10, t=30, b=40), template=LOOK,
        legend=dict(orientation='h', x=.4, y=1.22))

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--seeds', nargs='+', type=int, default=list(SEEDS))
    parser.add_argument('--all', action='store_true', help='make the rows that are missing')
    given = parser.parse_args()
    for seed in given.seeds if given.all else ():
        for world in WORLDS:
            for arm, visits in CELLS:
                print(world, arm, visits, seed, record(world, arm, visits, seed), flush=True)
    print(table().to_string(index=False) if rows() else 'nothing is recorded yet')
    return 0

if __name__ == '__main__': sys.exit(main())
