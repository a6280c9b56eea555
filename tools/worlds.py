"""Record that every world of the gallery can be learned: a small policy, shown some games, before and after a recipe.

    python tools/worlds.py                     the worlds, and how many of their seeds there are
    python tools/worlds.py sql apps            plays the seeds that are missing
    python tools/worlds.py --all --seeds 0 1

`make results` makes all of them. A row is a world and a seed; it stands in assets/results/worlds.json.xz once it is
made, so that any other call goes on from there. A row of other settings is made again. Sizes are those of the claims
of these worlds, where there is one; those of sql, doctor, reco and the two word games (at the claims' learning rate
of .002 some of their seeds get lost) were tried before, on a seed that is not one of the five.
"""
import hashlib
import json
import sys
import time
from argparse import ArgumentParser

from claims import recorded
from notebooks import ROOT

sys.path.insert(0, str(ROOT/'tools'/'claims'))
OUT, SEEDS = ROOT/'assets'/'results', (0, 1, 2, 3, 4)
ALIKE = dict(groups=12, group_size=4, test_tasks=0)  # of every recipe, unless it says otherwise

def world(start: tuple, recipe: str, tasks: int = 150, samples: int = 1, env: dict | None = None, **sizes) -> dict:
    "How a world is learned. start: updates of imitation, games that are shown, chance of a slip in them."
    return dict(env=env or {}, start=dict(zip(('steps', 'pool', 'noise'), start)), recipe=recipe, tasks=tasks,
        samples=samples, sizes=ALIKE | sizes)

LEARNED = dict(
    sql=world((200, 2048, .5), 'grpo', steps=15, lr=1e-3, max_turns=6, max_tokens=32, minibatches=1),
    apps=world((300, 2048, .4), 'loop', env=dict(level=1), steps=30, lr=5e-4, max_turns=14, max_tokens=16),
    service=world((300, 2048, .25), 'mua_rl', env=dict(level=2), steps=30, lr=1e-3, max_turns=12, max_tokens=8),
    routing=world((300, 8192, .5), 'router_r1', steps=40, groups=16, lr=1e-3, max_turns=5, max_tokens=8),
    choices=world((300, 4096, .5), 'retool', steps=60, groups=16, lr=5e-4, max_turns=3, max_tokens=12),
    diagnosis=world((500, 2048, .3), 'deep_dxsearch', steps=60, lr=7e-4, max_turns=6, max_tokens=8),
    mle=world((150, 2048, .5), 'rl_mle', steps=12, groups=10, group_size=12, lr=1e-3, max_turns=7, max_tokens=5),
    wordle=world((400, 4096, .5), 'grpo', 6, 25, dict(words=60), steps=60, group_size=8, lr=5e-4, max_turns=6,
    max_tokens=6),
    twenty_questions=world((150, 4096, .5), 'grpo', 15, 10, dict(things=8, horizon=12), steps=60, group_size=8, lr=5e-4,
    max_turns=12, max_tokens=6),
    doctor=world((150, 2048, .5), 'grpo', steps=40, group_size=8, lr=1e-3, max_turns=10, max_tokens=6),
    reco=world((150, 2048, .5), 'grpo', steps=40, group_size=8, lr=1e-3, max_turns=12, max_tokens=4))

def learned(name: str, seed: int) -> dict:
    "Success and points on held-out tasks, sampled, before and after the recipe."
    from _attempts import compared

    from agentlab.env import load_env
    from agentlab.train import load_recipe
    how, began = LEARNED[name], time.process_time()
    env, sizes = load_env(name, **how['env']), how['sizes']
    budget = {limit: sizes[limit] for limit in ('max_turns', 'max_tokens')}
    after, before, _ = compared(env, env, env, load_recipe(how['recipe'], seed=seed, **sizes), seed, how['start'],
        how['tasks'], samples=how['samples'], **budget)
    mean = lambda x: round(x.double().mean().item(), 5)
    return dict(key=key_of(name), success=mean(after.episodes.success), before=mean(before.episodes.success),
        points=mean(after.episodes.outcome), points_before=mean(before.episodes.outcome),
        seconds=round(time.process_time() - began, 1))

def key_of(name: str) -> str:
    "What a row depends on, as a hash: a row of other settings has another one."
    return hashlib.blake2b(json.dumps(LEARNED[name], sort_keys=True).encode(), digest_size=8).hexdigest()

def rows() -> dict:
    "What is recorded: 'world seed' -> row."
    return recorded('worlds', OUT).get('rows', {})

def row_of(name: str, seed: int) -> dict:
    "A row of the record, made where it is missing or of other settings."
    from agentlab.bench import circumstances, keep
    key, there = f'{name} {seed}', rows()
    if there.get(key, {}).get('key') == key_of(name): return there[key]
    row = learned(name, seed)
    facts = circumstances('python tools/worlds.py --all') | dict(settings=LEARNED)
    keep(facts | dict(rows=rows() | {key: row}), OUT, 'worlds', packed=True)
    return row

def of(name: str) -> list[dict]:
    "The rows of a world that are recorded, in the order of the seeds."
    found = rows()
    return [found[key] for seed in SEEDS if (key := f'{name} {seed}') in found]

def change(seeds: list[dict]) -> dict:
    "Points after minus before, with the interval over the rows of a world."
    from results import interval
    return interval([row['points'] - row['points_before'] for row in seeds], least=-float('inf'))

def table():
    "A row a world: what it wins and earns before and after, and the change in points with its interval over the seeds."
    import pandas as pd
    shown = []
    for name, how in LEARNED.items():
        if not (seeds := of(name)): continue
        mean = lambda what: round(sum(row[what] for row in seeds)/len(seeds), 2)
        shown.append({'world': name, 'recipe': how['recipe'], 'wins before': mean('before'), 'after': mean('success'),
            'points before': mean('points_before'), 'points after': mean('points'), 'seeds': len(seeds),
            'change in points': '{mean:+.2f} [{low:+.2f}, {high:+.2f}]'.format(**change(seeds))})
    return pd.DataFrame(shown)

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('worlds', nargs='*', help=f'of {", ".join(LEARNED)}; without one: how far each is')
    parser.add_argument('--seeds', nargs='+', type=int, default=list(SEEDS))
    parser.add_argument('--all', action='store_true', help='every world')
    given = parser.parse_args()
    if unknown := [name for name in given.worlds if name not in LEARNED]:
        parser.error(f'{", ".join(unknown)}: not one of {", ".join(LEARNED)}')
    for name in LEARNED if given.all else given.worlds:
        for seed in given.seeds:
            row = row_of(name, seed)
            print(name, seed, {what: row[what] for what in row if what != 'key'}, flush=True)
    print(table().to_string(index=False) if rows() else 'nothing is recorded yet')
    return 0

if __name__ == '__main__': sys.exit(main())
