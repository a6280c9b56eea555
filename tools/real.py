"""Record what a pretrained model learns on this machine: the demo, and worlds x ways to learn x seeds.

    python tools/real.py demo      `agentlab demo --model smollm2`, a seed a row: told, primed, trained, greedy and
    sampled, and the seconds of each
    python tools/real.py grid      worlds x (grpo, gigpo, imitation) from the same priming; imitation sees as many games
    as the others play. SQL, apps and routing: the priming, and one recipe from it, in fewer groups
    python tools/real.py hack      GuessNumber under a reward with a hole, beside the honest one: what is paid, what is
    won, what is said
    python tools/real.py knobs     how long to prime, how warm to play, how much of the vocabulary to cut off: valid,
    won, entropy, dead groups
    python tools/real.py entropy   of the demos' games: the first tokens of a turn, before any tool has answered and
    after

`make results` makes all of them after the other parts and writes assets/results/real_*.json (make lm first). Every row
is kept in runs/real; a second
call goes on where the first was killed. Rows of the grid stand in its record too, so that another machine can go on
from there. A row of the demo takes about a quarter of an hour, and nothing else should run meanwhile: it is timed.
The others are not; with OMP_NUM_THREADS=1, another --out and --seeds of their own, two calls make rows side by side,
and a last one the record.
"""
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from claims import recorded
from notebooks import ROOT
from results import intervals

SEEDS = 0, 1, 2
WORLDS = dict(guess=dict(steps=20), python_tool=dict(steps=30), clarify=dict(steps=20),
    errands=dict(steps=30), sql=dict(steps=30), apps=dict(steps=30), routing=dict(steps=30))
ARMS = 'grpo', 'gigpo', 'imitation'
RECIPES = dict(sql='grpo', apps='loop', routing='grpo')  # worlds in which one recipe is beside the priming
UPDATES, GROUPS, GROUP_SIZE, TASKS = 12, 8, 6, 100
SMALL = dict(groups=4, tasks=50)      # of these: their prompts are long, and an update should take a minute
# of the apps: at the world's own level, games of up to 14 turns, an update took 1 to 8 minutes (seed 0: .04, then .08).
# This is the level of the gallery, and its longest solution has six calls.
LEVEL = dict(apps=dict(level=1))      # arguments of the world
LIMIT = dict(apps=dict(max_turns=8))  # fields of the recipe
PLAIN = ('The harbour was quiet in the morning. Two boats came in, and the men carried the fish up to the market, '
    'where the first people were already '
    # English that no world speaks: how surprising it is shows what training does to the language
    'waiting with their baskets.')
LENGTHS, WARMTHS, MASSES = (5, 10, 20, 40), (.5, .7, 1.), (1., .9)  # updates of priming; temperatures; top_p
TRIED = 16  # tasks, of six games each, at every place of the knobs
FIRST = 8   # tokens of a turn whose entropy is compared
KNOBS = 'won', 'dead', 'valid', 'entropy'
TESTS = 'test_greedy', 'test_sampled'
CALLS = 'valid', 'right_tool'  # of the sampled tests, where a world tells which tool was the right one

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
        command = [sys.executable, '-m', 'agentlab', 'demo', '--model', 'smollm2', '--seed', str(seed), '--out',
            str(run), '--no-open']
        environment = {name: value for name, value in os.environ.items() if name != 'OMP_NUM_THREADS'}  # all cores
        began, load = time.monotonic(), os.getloadavg()[0]
        subprocess.run(command, check=True, env=environment)
        lines = lambda name: [json.loads(line) for line in (run/name).read_text().splitlines()]
        tests, rows = lines('tests.jsonl'), lines('metrics.jsonl')
        stages = dict(told=json.loads((run/'told.json').read_text()), primed=tests[0], trained=tests[-1])
        numbers = {f'{stage}_{name}': found[name] for stage, found in stages.items() for name in TESTS}
        facts = json.loads((run/'run.json').read_text())['facts']
        return numbers | dict(seed=seed, tasks=tests[0]['tasks'], success=[row['success'] for row in rows],
            seconds=round(time.monotonic() - began),
            told_seconds=stages['told']['seconds'],
            update_seconds=[round(row['seconds'], 1) for row in rows], weights=facts['weights'],
            load=load)
    return once(place, make)

def opened(world: str):
    "The environment, at the level that is played here."
    from agentlab.env import load_env
    return load_env(world, **LEVEL.get(world, {}))

def begun(world: str, seed: int, folder: Path) -> Path:
    "A primed policy, the same for all arms of a seed; its tests in row.json."
    from agentlab.policy import pretrained, prime
    place = folder/f'{world}-primed-{seed}'
    def make():
        env = opened(world)
        policy = prime(pretrained('smollm2', source='package', seed=seed), env, seed=seed, progress=False,
            **WORLDS[world])
        policy.save_pretrained(place/'policy')
        return dict(weights=policy.provenance) | tested(policy, env, world, seed)
    once(place, make)
    return place

def arms_of(world: str) -> tuple:
    "The ways to learn that are compared in a world."
    return (RECIPES[world],) if world in RECIPES else ARMS

def sizes(world: str) -> dict:
    small = SMALL if world in RECIPES else {}
    return dict(groups=GROUPS, tasks=TASKS) | small | LEVEL.get(world, {}) | LIMIT.get(world, {})

def tested(policy, env, world: str, seed: int) -> dict:
    from agentlab.rollout import play
    from agentlab.train import recipes
    from agentlab.train.trainer import ends, for_pretrained, held_out, solved
    how, tasks = for_pretrained(recipes.grpo(), **LIMIT.get(world, {})), sizes(world)['tasks']
    budget = dict(temperature=how.temperature, max_turns=how.max_turns, max_tokens=how.max_tokens)
    games = {name: held_out(policy, env, tasks, name == 'test_greedy', seed, play, **budget) for name in TESTS}
    found = {name: solved(ends(played)) for name, played in games.items()}
    return found | choices(games['test_sampled']) | dict(tasks=tasks, english=surprise(policy))

def choices(episodes: list) -> dict:
    "Share of turns whose call is valid, and of first calls that name the right tool; {} where a world does not tell."
    turns = [turn for episode in episodes for turn in episode.turns]
    right = [turn.columns['right_tool'] for turn in turns if 'right_tool' in turn.columns]
    if not right: return {}
    return dict(valid=sum(not turn.invalid for turn in turns)/len(turns), right_tool=sum(right)/len(right))

def surprise(policy, text: str = PLAIN) -> float:
    "Mean of -log p over the tokens of a text, in nats."
    import torch
    from agentlab.policy import token_logps
    ids = torch.tensor(policy.tokenizer(text)['input_ids'])[None]
    with torch.no_grad(): logits = policy.model(input_ids=ids, use_cache=False).logits[0, :-1]
    return -token_logps(logits, ids[0, 1:])[0].mean().item()

def arm(world: str, name: str, seed: int, folder: Path) -> dict:
    "One way to go on from the priming, for as many games."
    from agentlab.policy import Policy, prime
    from agentlab.train import load_recipe, train
    from agentlab.train.trainer import for_pretrained
    place, start = folder/f'{world}-{name}-{seed}', begun(world, seed, folder)
    size = sizes(world)
    def make():
        env, policy = opened(world), Policy.load(start/'policy', name=f'primed-{world}-{seed}')
        if name == 'imitation':
            began = time.monotonic()
            prime(policy, env, steps=UPDATES*size['groups']*GROUP_SIZE//8, seed=1000 + seed, lr=2e-4, progress=False)
            curve, seconds = [], round(time.monotonic() - began)
        else:
            recipe = for_pretrained(load_recipe(name, steps=UPDATES, seed=seed, test_tasks=0, checkpoint_every=1),
                groups=size['groups'], group_size=GROUP_SIZE, **LIMIT.get(world, {}))
            rows = train(policy, env, recipe, place/'run', resume=True, progress=False).rows()
            curve = [round(row['success'], 4) for row in rows]
            seconds = round(sum(row['seconds'] for row in rows))  # those before a resume, too
        return dict(success=curve, seconds=seconds) | tested(policy, env, world, seed)
    return once(place, make)

def by_the_guess(batch):
    "A fifth for every valid guess: finding the number early is paid worst."
    return .2*(~batch.turns.invalid).double()

def hacked(name: str, seed: int, folder: Path) -> dict:
    """GRPO from the priming of the grid, under one of two rewards; games of its last update in words. The honest run
    is the grid's."""
    from agentlab.env import load_env
    from agentlab.policy import Policy
    from agentlab.reward import paid
    from agentlab.train import Run, load_recipe, train
    from agentlab.train.trainer import for_pretrained
    place, start = folder/f"hack-{name.replace(' ', '-')}-{seed}", begun('guess', seed, folder)
    def honest():
        arm('guess', 'grpo', seed, folder)
        return Run(folder/f'guess-grpo-{seed}'/'run')
    def by_guess(policy):
        recipe = load_recipe('grpo', steps=UPDATES, seed=seed, test_tasks=0, checkpoint_every=1, reward=by_the_guess)
        return train(policy, load_env('guess'), for_pretrained(recipe, groups=GROUPS, group_size=GROUP_SIZE),
            place/'run', resume=True, progress=False)
    def make():
        policy = Policy.load(start/'policy', name=f'primed-guess-{seed}')
        run = honest() if name == 'honest' else by_guess(policy)
        last = run.episodes(UPDATES - 1)
        said = [replies(last, i, policy.tokenizer) for i in range(0, GROUPS*GROUP_SIZE, GROUP_SIZE)]
        earned = [earned_by(run.episodes(step), paid if name == 'honest' else by_the_guess) for step in run.steps()]
        return dict(reward=earned, success=[row['success'] for row in run.rows()], said=said)
    return once(place, make)

def earned_by(batch, reward) -> float:
    "Mean over the episodes of what a reward pays them; the row log has what the environment paid."
    return batch.total(reward(batch).double()).mean().item()

def replies(batch, episode: int, tokenizer) -> list[str]:
    "What was said in an episode, a text a turn."
    turns = (batch.turns.episode == episode).nonzero()[:, 0].tolist()
    return [tokenizer.decode(batch.tokens.id[batch.tokens.turn == turn], skip_special_tokens=True) for turn in turns]

def record_hack(asked) -> None:
    from agentlab.bench import circumstances, keep
    rows = {name: [hacked(name, seed, asked.runs) for seed in asked.seeds] for name in ('honest', 'by the guess')}
    curves = {name: {what: [row[what] for row in found] for what in ('reward', 'success')}
        for name, found in rows.items()}
    ends = {name: intervals([{what: sum(row[what][-3:])/3 for what in ('reward', 'success')} for row in found])
        for name, found in rows.items()}
    facts = circumstances('python tools/real.py hack') | dict(seeds=asked.seeds, curves=curves, last_three=ends, said={
        name: found[0]['said'] for name, found in rows.items()})
    keep(dict(schema_version=1) | facts, asked.out, 'real_hack', packed=True)
    for name, found in ends.items():
        print(name, {what: f"{x['mean']:.2f} [{x['low'] or 0:.2f}, {x['high'] or 0:.2f}]" for what, x in found.items()})

def knob(steps: int, seed: int, folder: Path) -> dict:
    "GuessNumber, primed for so many updates, played at all temperatures and cuts."
    from agentlab.env import load_env
    from agentlab.episodes import Batch
    from agentlab.policy import pretrained, prime
    from agentlab.rollout import play
    from agentlab.train.trainer import measure_play
    def make():
        env, rows = load_env('guess'), []
        policy = prime(pretrained('smollm2', source='package', seed=seed), env, steps=steps, seed=seed, progress=False)
        for warmth in WARMTHS:
            for mass in MASSES:
                games = play(policy, env, list(range(TRIED)), GROUP_SIZE, tasks=env.tasks('test', TRIED),
                    temperature=warmth, top_p=mass, max_tokens=32, seed=seed)
                batch = Batch.from_episodes(games)
                found = measure_play(batch, batch)
                rows.append(dict(temperature=warmth, top_p=mass, won=found['success'], dead=found['dead_groups'],
                    entropy=found['entropy'],
                    valid=1 - batch.turns.invalid.double().mean().item()))
        return dict(rows=rows, english=surprise(policy))
    return once(folder/f'knobs-{steps}-{seed}', make)

def record_knobs(asked) -> None:
    from agentlab.bench import circumstances, keep
    table = []
    for steps in LENGTHS:
        found = [knob(steps, seed, asked.runs) for seed in asked.seeds]
        for rows in zip(*(one['rows'] for one in found)):
            place = dict(steps=steps, temperature=rows[0]['temperature'], top_p=rows[0]['top_p'])
            table.append(place | intervals([{what: row[what] for what in KNOBS} for row in rows]))
            print(place, {what: round(table[-1][what]['mean'], 3) for what in KNOBS}, flush=True)
    facts = circumstances('python tools/real.py knobs') | dict(seeds=asked.seeds, tasks=TRIED, group_size=GROUP_SIZE,
        table=table)
    keep(dict(schema_version=1) | facts, asked.out, 'real_knobs', packed=True)

def first_tokens(run) -> dict:
    "Mean entropy of the first tokens of a turn, by place: of turns before a tool's answer, and of those after one."
    import torch
    sums = {name: torch.zeros(2, FIRST, dtype=torch.float64) for name in ('before', 'after')}
    for step in run.steps():
        batch = run.episodes(step)
        turn = batch.tokens.turn[batch.actions]
        lengths = batch.turn_lengths()
        place = torch.arange(len(turn)) - (lengths.cumsum(0) - lengths)[turn]
        later = batch.turns.t[turn] > 0
        for name, which in (('before', ~later), ('after', later)):
            which = which & (place < FIRST)
            found = batch.action('entropy')[which].double()
            sums[name] += torch.stack([torch.zeros(FIRST, dtype=torch.float64).index_add(0, place[which], x)
                for x in (found, torch.ones_like(found))])
    return {name: (total/count).tolist() for name, (total, count) in sums.items()}

def record_entropy(asked) -> None:
    from agentlab.bench import circumstances, keep
    from agentlab.train import Run
    found = [first_tokens(Run(asked.runs/f'demo-{seed}'/'run')) for seed in asked.seeds]
    positions = {name: [intervals([dict(x=one[name][i]) for one in found])['x'] for i in range(FIRST)]
        for name in found[0]}
    change = intervals([dict(x=sum(one['after'])/FIRST - sum(one['before'])/FIRST) for one in found],
        least=-float('inf'))['x']
    facts = circumstances('python tools/real.py entropy') | dict(seeds=asked.seeds, positions=positions,
        difference=change)
    keep(dict(schema_version=1) | facts, asked.out, 'real_tool_entropy', packed=True)
    print(f"after minus before: {change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]")

def record_demo(asked) -> None:
    from agentlab.bench import circumstances, keep
    rows = [demo(seed, asked.runs) for seed in asked.seeds]
    shares = intervals([{name: row[name] for name in row if name.endswith(TESTS)} for row in rows], most=1)
    keep(dict(schema_version=1) | circumstances('python tools/real.py demo') | dict(rows=rows, shares=shares),
        asked.out, 'real_demo', packed=True)
    for name, found in shares.items():
        print(f"{name:20} {found['mean']:.3f} [{found['low'] or 0:.3f}, {found['high'] or 0:.3f}]")

def summed(rows: list[dict]) -> dict:
    "Shares with their intervals, and the surprise at English."
    shares = [what for what in (*TESTS, *CALLS) if all(what in row for row in rows)]
    return (intervals([{what: row[what] for what in shares} for row in rows], most=1)
        | intervals([dict(english=row['english']) for row in rows]))

def over(one: dict, other: dict) -> dict:
    "How much more of the sampled games one arm wins than another one of the same seed."
    pairs = zip(one['test_sampled']['seeds_of'], other['test_sampled']['seeds_of'])
    return intervals([dict(x=a - b) for a, b in pairs], least=-float('inf'))['x']

def row_of(world: str, name: str, seed: int, asked) -> dict:
    """A row of the grid: from its record where it is there, since the record outlives a machine and runs/ does not;
    else made, and written there."""
    key, how = f'{world} {name} {seed}', dict(updates=UPDATES, group_size=GROUP_SIZE) | sizes(world) | WORLDS[world]
    if row := grid_rows(asked.out, world, how).get(key): return row
    if name == 'primed': row = json.loads((begun(world, seed, asked.runs)/'row.json').read_text())
    else: row = arm(world, name, seed, asked.runs)
    return keep_row(key, world, how, row, asked.out)

def keep_row(key: str, world: str, how: dict, row: dict, folder: Path) -> dict:
    """Write a row into the record: what all rows of a world share stands there once, as do the weights that all of
    them began with."""
    from agentlab.bench import circumstances, keep
    record = recorded('real_grid', folder)         # read again: another process may have written meanwhile
    weights = row.pop('weights', None)
    if weights:     # world and seed of the priming stand in the name of the row, its updates in `how`
        weights = weights | dict(primed={name: weights['primed'][0][name] for name in ('episodes', 'lr', 'noise')})
    if weights and weights != record.get('weights', weights):
        raise ValueError(f"{folder}/real_grid.json.xz began with {record['weights']}, this row with {weights}; give "
            f'another --out')
    facts = circumstances('python tools/real.py grid')
    row |= dict(date=facts['date'])
    rows = grid_rows(folder, world, how) | {key: row}
    facts |= dict(seeds=list(SEEDS), weights=weights or record.get('weights'),
        settings=record.get('settings', {}) | {world: how}, rows=rows, cells=cells_of(rows))
    keep(dict(schema_version=3) | facts, folder, 'real_grid', packed=True)
    return row

def grid_rows(folder: Path, world: str = '', how: dict | None = None) -> dict:
    "The rows of the record, of a `world` only those that were made with the settings `how`."
    record = recorded('real_grid', folder)
    stale = world and record.get('settings', {}).get(world) != how
    return {key: row for key, row in record.get('rows', {}).items() if not (stale and key.split()[0] == world)}

def cells_of(rows: dict) -> dict:
    "World and arm -> shares over the seeds, of the worlds whose rows are all there."
    cells, names = {}, ('primed', *ARMS)
    for world in WORLDS:
        found = {name: [rows.get(f'{world} {name} {seed}') for seed in SEEDS] for name in names}
        if not all(all(seeds) for seeds in found.values()): continue
        cells[f'{world} primed'] = summed(found['primed'])
        for name in ARMS: cells[f'{world} {name}'] = summed(found[name])
        for name in ('grpo', 'gigpo'):
            cells[f'{world} {name}']['over_imitation'] = over(cells[f'{world} {name}'], cells[f'{world} imitation'])
    return cells

def record_grid(asked) -> None:
    for world in asked.worlds:
        for seed in asked.seeds:
            for name in ('primed', *arms_of(world)):
                row = row_of(world, name, seed, asked)
                told = {what: row[what] for what in (*TESTS, *CALLS) if what in row}
                print(f'{world} {name} {seed}', told, flush=True)
    for name, cell in cells_of(grid_rows(asked.out)).items():
        print(name, {test: f"{cell[test]['mean']:.3f} [{cell[test]['low'] or 0:.3f}, {cell[test]['high'] or 0:.3f}]"
            for test in TESTS})

def main() -> int:
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parts = dict(demo=record_demo, grid=record_grid, hack=record_hack, knobs=record_knobs, entropy=record_entropy)
    parser.add_argument('what', nargs='*', help=f'{", ".join(parts)} (default: all of them)')
    parser.add_argument('--seeds', type=int, nargs='+', default=list(SEEDS))
    parser.add_argument('--worlds', nargs='+', default=list(WORLDS), choices=WORLDS)
    parser.add_argument('--runs', type=Path, default=ROOT/'runs'/'real')
    parser.add_argument('--out', type=Path, default=ROOT/'assets'/'results')
    asked = parser.parse_args()
    if unknown := set(asked.what) - set(parts):
        parser.error(f'{unknown}: give {", ".join(parts)}, or nothing for all of them')
    import torch
    from agentlab.policy.reader import installed
    if not installed(source='package'):
        print('SmolLM2 is not installed: make lm', file=sys.stderr)
        return 1
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS') or os.cpu_count()))
    for name in asked.what or parts: parts[name](asked)
    return 0

if __name__ == '__main__': sys.exit(main())
