"""Record what a pretrained model learns on this machine: the demo, and worlds x ways to learn x seeds.

    python tools/real.py demo      `agentlab demo --model smollm2`, a seed a row: told, primed, trained, greedy and sampled, and the seconds of each
    python tools/real.py grid      worlds x (grpo, gigpo, imitation) from the same priming; imitation sees as many games as the others play

`make results` makes both after the other parts and writes assets/results/real_demo.json and real_grid.json (make lm first). Every row is kept in
runs/real; a second call goes on where the first was killed. Nothing else should run on the machine: a row of the demo takes about twelve minutes.
"""
from argparse import ArgumentParser
import json
import os
from pathlib import Path
import subprocess
import sys
import time

from notebooks import ROOT
from results import intervals

SEEDS = 0, 1, 2
WORLDS = dict(guess=dict(steps=20), python_tool=dict(steps=40), clarify=dict(steps=40))     # world -> how it is primed
ARMS = 'grpo', 'gigpo', 'imitation'
UPDATES, GROUPS, GROUP_SIZE, TASKS = 12, 8, 6, 100
TESTS = 'test_greedy', 'test_sampled'


def once(place: Path, make) -> dict:
    "What was found before, else what `make` finds; kept at once."
    kept = place/'row.json'
    if not kept.exists():
        place.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(make()))
    return json.loads(kept.read_text())


def demo(seed: int, folder: Path) -> dict:
    "The command as a user types it, in a process of its own."
    place = folder/f'demo-{seed}'
    def make():
        run = place/'run'
        command = [sys.executable, '-m', 'agentlab', 'demo', '--model', 'smollm2', '--seed', str(seed), '--out', str(run), '--no-open']
        environment = {name: value for name, value in os.environ.items() if name != 'OMP_NUM_THREADS'}      # all cores
        began, load = time.monotonic(), os.getloadavg()[0]
        subprocess.run(command, check=True, env=environment)
        lines = lambda name: [json.loads(line) for line in (run/name).read_text().splitlines()]
        tests, rows = lines('tests.jsonl'), lines('metrics.jsonl')
        stages = dict(told=json.loads((run/'told.json').read_text()), primed=tests[0], trained=tests[-1])
        numbers = {f'{stage}_{name}': found[name] for stage, found in stages.items() for name in TESTS}
        facts = json.loads((run/'run.json').read_text())['facts']
        return numbers | dict(seed=seed, tasks=tests[0]['tasks'], success=[row['success'] for row in rows], seconds=round(time.monotonic() - began),
                              update_seconds=[round(row['seconds'], 1) for row in rows], weights=facts['weights'], load=load)
    return once(place, make)


def begun(world: str, seed: int, folder: Path) -> Path:
    "A primed policy, the same for all arms of a seed; its tests in row.json."
    from agentlab.env import load_env
    from agentlab.policy import pretrained, prime
    place = folder/f'{world}-primed-{seed}'
    def make():
        env = load_env(world)
        policy = prime(pretrained('smollm2', source='package', seed=seed), env, seed=seed, progress=False, **WORLDS[world])
        policy.save_pretrained(place/'policy')
        return dict(weights=policy.provenance) | tested(policy, env, seed)
    once(place, make)
    return place


def tested(policy, env, seed: int) -> dict:
    from agentlab.train import evaluate, recipes
    from agentlab.train.trainer import for_pretrained
    how = for_pretrained(recipes.grpo())
    budget = dict(tasks=TASKS, seed=seed, temperature=how.temperature, max_turns=how.max_turns, max_tokens=how.max_tokens)
    return {name: evaluate(policy, env, greedy=name == 'test_greedy', **budget) for name in TESTS} | dict(tasks=TASKS)


def arm(world: str, name: str, seed: int, folder: Path) -> dict:
    "One way to go on from the priming, for as many games."
    from agentlab.env import load_env
    from agentlab.policy import Policy, prime
    from agentlab.train import load_recipe, train
    from agentlab.train.trainer import for_pretrained
    place, start = folder/f'{world}-{name}-{seed}', begun(world, seed, folder)
    def make():
        env, policy, began = load_env(world), Policy.load(start/'policy', name=f'primed-{world}-{seed}'), time.monotonic()
        if name == 'imitation':
            prime(policy, env, steps=UPDATES*GROUPS*GROUP_SIZE//8, seed=1000 + seed, lr=2e-4, progress=False)
            curve = []
        else:
            recipe = for_pretrained(load_recipe(name, steps=UPDATES, seed=seed, test_tasks=0, checkpoint_every=1), groups=GROUPS, group_size=GROUP_SIZE)
            curve = [row['success'] for row in train(policy, env, recipe, place/'run', resume=True, progress=False).rows()]
        return dict(success=curve, seconds=round(time.monotonic() - began)) | tested(policy, env, seed)
    return once(place, make)


def record_demo(asked) -> None:
    from agentlab.bench import circumstances, keep
    rows = [demo(seed, asked.runs) for seed in asked.seeds]
    shares = intervals([{name: row[name] for name in row if name.endswith(TESTS)} for row in rows], most=1)
    keep(dict(schema_version=1) | circumstances('python tools/real.py demo') | dict(rows=rows, shares=shares), asked.out, 'real_demo')
    for name, found in shares.items(): print(f"{name:20} {found['mean']:.3f} [{found['low'] or 0:.3f}, {found['high'] or 0:.3f}]")


def record_grid(asked) -> None:
    from agentlab.bench import circumstances, keep
    cells = {}
    for world in asked.worlds:
        for name in ARMS:
            rows = [arm(world, name, seed, asked.runs) for seed in asked.seeds]
            cells[f'{world} {name}'] = intervals([{test: row[test] for test in TESTS} for row in rows], most=1) | dict(curves=[row['success'] for row in rows], seconds=[row['seconds'] for row in rows])
        before = [json.loads((begun(world, seed, asked.runs)/'row.json').read_text()) for seed in asked.seeds]
        cells[f'{world} primed'] = intervals([{test: row[test] for test in TESTS} for row in before], most=1) | dict(weights=before[0]['weights'])
        settings = dict(worlds=WORLDS, updates=UPDATES, groups=GROUPS, group_size=GROUP_SIZE)
        facts = circumstances('python tools/real.py grid') | dict(seeds=asked.seeds, settings=settings, cells=cells)
        keep(dict(schema_version=1) | facts, asked.out, 'real_grid')
    for name, cell in cells.items(): print(name, {test: f"{cell[test]['mean']:.3f} [{cell[test]['low'] or 0:.3f}, {cell[test]['high'] or 0:.3f}]" for test in TESTS})


def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('what', nargs='*', help='demo, grid (default: both)')
    parser.add_argument('--seeds', type=int, nargs='+', default=list(SEEDS))
    parser.add_argument('--worlds', nargs='+', default=list(WORLDS), choices=WORLDS)
    parser.add_argument('--runs', type=Path, default=ROOT/'runs'/'real')
    parser.add_argument('--out', type=Path, default=ROOT/'assets'/'results')
    asked = parser.parse_args()
    if unknown := set(asked.what) - {'demo', 'grid'}: parser.error(f'{unknown}: give demo, grid, or nothing for both')
    import torch
    from agentlab.policy.reader import installed
    if not installed():
        print('SmolLM2 is not installed: make lm', file=sys.stderr)
        return 1
    torch.set_num_threads(os.cpu_count())
    for name in asked.what or ['demo', 'grid']: dict(demo=record_demo, grid=record_grid)[name](asked)
    return 0


if __name__ == '__main__': sys.exit(main())
