"""Record what a proposer and a solver learn from each other: Search Self-Play on HopSearch, five seeds, beside
controls.

`make results` plays everything (after the other parts), writes assets/results/ssp.json.xz and ssp.png. Each run is kept
in runs/ssp/ENV-CONDITION-SEED:
a second call reads what is finished and goes on where the first was killed. All runs begin with one policy, in
runs/ssp/start, that has watched both
roles played badly. Held-out: other people, other worlds. A proposal counts as valid where a sound lookup finds its
answer, whatever verified it in training.
"""
import math
import sys
from functools import partial
from pathlib import Path

from grid import arguments, cpu_since, found_in, play
from results import CLEAR, headed, interval, keep_picture

ENV = 'hopsearch'
WARM = dict(steps=900, pool=16384)
SETTINGS = dict(steps=48, groups=32, tries=5, lr=1e-3)
EVERY, ANSWERS = 8, 256  # updates between two measurements on the way; held-out answers and questions of each
FEW = 3  # seeds of the conditions that only show what breaks
WHO = 'valid', 'solver', 'solver_greedy', 'own', 'start'
WHOLE, COLLAPSED = ('ssp', 'scripted'), 'released'  # shown relation by relation; update by update

def half_busy(question: str, passages: list) -> str:
    "A verifier without time for half of the questions."
    from agentlab.episodes import state_key
    from agentlab.selfplay.proposers import hop_lookup
    if state_key(question) % 2: raise TimeoutError('no answer in time')
    return hop_lookup(question, passages)

def too_busy(question: str, passages: list) -> str:
    "A verifier without time for any question: where it fails open, there is no verification."
    raise TimeoutError('no answer in time')

def anybody(env, generator) -> str: return env.expert(generator=generator)

def conditions(beginner) -> dict:
    "What each condition changes, and of how many seeds it is made."
    from agentlab.selfplay import ProposeHop
    verified = lambda faithful, solve=half_busy: dict(asking=ProposeHop(solve=solve, faithful=faithful))
    return dict(ssp=({}, None), scripted=(dict(players=dict(proposer=anybody)), None), open=(verified(True), FEW),
        closed=(verified(False), FEW),
        unverified=(verified(True, too_busy), FEW), released=(dict(faithful=True), FEW),
        frozen=(dict(players=dict(proposer=beginner)), FEW))

def beginner_in(folder: Path):
    "The policy that every run begins with; made by the first who asks."
    import torch
    from transformers.utils.logging import disable_progress_bar
    from agentlab.policy import Policy, tiny_policy
    from agentlab.policy.tiny import warm_start
    from agentlab.selfplay.search import SearchRoles
    disable_progress_bar()
    torch.set_num_threads(1)
    place = folder/'start'
    def make(began):
        warm_start(policy := tiny_policy(SearchRoles(), warm=False, progress=False), SearchRoles(split='demo'), **WARM)
        policy.save_pretrained(place)
        return cpu_since(began)
    place.mkdir(parents=True, exist_ok=True)
    found = found_in(place, dict(env=ENV) | WARM, make)
    return Policy.load(place, name='search-roles'), found['cpu_seconds']

def scores(policy, world, answers: int, **others) -> dict:
    from agentlab.selfplay.search import search_scores
    return written(search_scores(policy, world, answers, max_tokens=8, **others))

def written(found):
    "The same with None for NaN, which JSON does not have."
    if isinstance(found, dict): return {what: written(x) for what, x in found.items()}
    return None if isinstance(found, float) and math.isnan(found) else found

def tested(policy, world, answers: int, beginner) -> dict:
    "Both roles, sampled; the solver greedy, too; `start`: the beginner on the policy's questions."
    from agentlab.train import evaluate
    return (scores(policy, world, answers, references=dict(start=beginner))
        | dict(solver_greedy=evaluate(policy, world, answers, max_tokens=8)))

def recipe_of(world, name: str, seed: int, beginner):
    from agentlab.selfplay.search import ProblemPool, search_fields
    from agentlab.train import recipes
    class Watched(ProblemPool):
        "The pool, and now and then both roles on what is held out."
        def __init__(self, policy, seed, **options):
            self.policy = policy
            super().__init__(policy, seed, **options)
        def learn(self, row):
            return super().learn(row) | (dict(scores=scores(self.policy, world, ANSWERS))
                if (row['step'] + 1) % EVERY == 0 else {})
    fields = search_fields(groups=SETTINGS['groups'], tries=SETTINGS['tries'], **conditions(beginner)[name][0])
    fields['memory'] = partial(Watched, **fields['memory'].keywords)
    return recipes.grpo(**fields | dict(steps=SETTINGS['steps'], lr=SETTINGS['lr'], seed=seed, minibatches=1,
        max_tokens=8, test_tasks=0, checkpoint_every=12, budget=16384))

def one_run(env: str, name: str, seed: int, tasks: int, folder: Path) -> dict:
    "Train (or finish) one run and test both roles."
    from agentlab.env import load_env
    from agentlab.train import train
    place = folder/f'{env}-{name}-{seed}'
    def make(began):
        world, (beginner, _), (policy, _) = load_env(env), beginner_in(folder), beginner_in(folder)
        rows = train(policy, world, recipe_of(world, name, seed, beginner), place, resume=True, progress=False).rows()
        found = tested(policy, world, tasks, beginner)
        curve = [dict(update=row['step'] + 1) | row['scores'] for row in rows if 'scores' in row]
        return found | dict(curve=curve, train={what: [round(row[what], 3) if row[what] is not None else None
            for row in rows] for what in ('valid', 'solved', 'solver')},
            sampled=sum(row['sampled'] for row in rows),
            skipped=sum(bool(row['skipped']) for row in rows),
            test_sampled=found['solver']) | cpu_since(began)
    return found_in(place, dict(env=env, recipe=name, seed=seed, settings=SETTINGS, tasks=tasks), make)

def summary(name: str, results: list[dict]) -> dict:
    "Intervals over the seeds of what was measured at the end; of the curves of all seeds what pages show."
    shown = ('update', 'valid', 'solver')
    told = lambda point: {what: x for what, x in point.items() if name in WHOLE or what in shown}
    known = lambda what: [one[what] for one in results if one[what] is not None]
    ends = {what: (interval(known(what), most=1) if known(what) else None) for what in WHO}
    return ends | dict(seeds_of={what: [one[what] for one in results] for what in WHO},
        curves=[columns([told(point) for point in one['curve']]) for one in results],
        train=[one['train'] for one in results] if name == COLLAPSED else [],
        skipped=sum(one['skipped'] for one in results),
        sampled=round(sum(one['sampled'] for one in results)/len(results)),
        most_cpu_seconds=max(one['cpu_seconds'] for one in results))

def columns(found: list):
    "Numbers as they are, of dicts a list for each name."
    return {name: columns([one[name] for one in found]) for name in found[0]} if isinstance(found[0], dict) else found

def record(asked) -> dict:
    from agentlab.env import load_env
    beginner, seconds = beginner_in(asked.runs)
    seeds = {name: asked.seeds[:few] for name, (_, few) in conditions(beginner).items() if name in asked.recipes}
    before = tested(beginner, load_env(ENV), asked.test_tasks, beginner)
    found = play(asked, [(ENV, name, seed, asked.test_tasks, asked.runs) for name in seeds for seed in seeds[name]],
        one_run)
    cells = {name: summary(name, [found[ENV, name, seed] for seed in some]) for name, some in seeds.items()}
    return headed(seeds=asked.seeds,
        settings={ENV: SETTINGS | dict(warm=WARM, every=EVERY, answers=ANSWERS, test_tasks=asked.test_tasks)},
        warm_cpu_seconds=seconds, before={ENV: before}, cells={ENV: cells})

STYLES = dict(ssp=('#0072B2', 'solid', 'self-play'),
    scripted=('#7d8288', 'dash', 'questions drawn evenly, proposer untrained'),
    closed=('#009E73', 'dashdot', 'half-busy verifier, fails closed'),
    open=('#CC79A7', 'dot', 'half-busy verifier, fails open'), unverified=('#D55E00', 'longdash', 'no verification'))

def draw(record: dict):
    """Over updates: held-out success of the solver, valid questions of the proposer; thick, means over the seeds;
    thin, the seeds of self-play."""
    from plotly.subplots import make_subplots
    cells, start, updates = record['cells'][ENV], record['before'][ENV], record['settings'][ENV]['steps']
    figure = make_subplots(1, 2,
        subplot_titles=['solver: held-out questions', 'proposer: valid questions, held-out answers'],
        horizontal_spacing=.08, shared_yaxes=True)
    for name, (color, dash, said) in STYLES.items():
        if name not in cells: continue
        for column, what in ((1, 'solver'), (2, 'valid')):
            mean = [sum(points)/len(points) for points in zip(
                *([start[what]] + curve[what] for curve in cells[name]['curves']))]
            figure.add_scatter(x=[0] + cells[name]['curves'][0]['update'], y=mean, name=said,
                mode='lines', line=dict(color=color, dash=dash, width=2.4), showlegend=column == 1,
                row=1, col=column)
    for curve in cells['ssp']['curves'] if 'ssp' in cells else []:
        for column, what in ((1, 'solver'), (2, 'valid')):
            figure.add_scatter(x=[0] + curve['update'], y=[start[what]] + curve[what], mode='lines',
                line=dict(color='#0072B2', width=.7), opacity=.6, showlegend=False, row=1, col=column)
    figure.update_xaxes(title_text='update', range=[0, updates], gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(gridcolor='rgba(128,128,128,.2)', range=[0, 1.02], tickformat='.0%')
    figure.update_layout(CLEAR, height=400, margin=dict(l=10, r=16, t=34, b=30), legend=dict(orientation='h', y=-.18))
    return figure

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, [ENV], ['ssp', 'scripted', 'open', 'closed', 'unverified', 'released', 'frozen'], 'ssp')
    found = record(asked)
    keep(found, asked.out, 'ssp', packed=True)
    keep_picture(draw(found), asked.out/'ssp.png')
    print('start', {what: round(found['before'][ENV][what], 3) for what in WHO})
    for name, cell in found['cells'][ENV].items():
        print(name, {what: f"{x['mean']:.3f} [{x['low'] or 0:.3f}, {x['high'] or 1:.3f}]" for what, x in cell.items()
            if what in WHO and x}, f"{cell['most_cpu_seconds']} CPU-s at most")
    return 0

if __name__ == '__main__': sys.exit(main())
