"""Record what a pretrained model makes of the guides: the share of valid actions in every world, told only and primed.

    python tools/guides.py                             every world that has no row yet
    python tools/guides.py --worlds guess keydoor      some of them; `keydoor+listed` ends every observation with what
    can be done

Greedy, on held-out tasks. A world is a row of assets/results/guides.json.xz, written as soon as it is made; a row of
the same model, guide and settings is not made again. Versions and machine stand beside the rows, once for all of a day.
Every world is primed with as many updates as `agentlab demo --model smollm2`, of half as many demonstrations: with all
of them KeyDoor alone took a core ten minutes.
"""
import hashlib
import json
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# no slips: what is asked is form, not skill
SETTINGS = dict(episodes=12, max_turns=8, updates=30, lr=1e-3, demonstrations=4, noise=0.)
# worlds that are also played with their actions listed
LISTED = ('keydoor', 'guess', 'tictactoe', 'nim', 'kuhn', 'leduc')
EXAMPLES = 3  # invalid answers that are kept

def worlds() -> list:
    "Names of the rows."
    from agentlab.env import envs, games
    return [*envs, *games, *(f'{name}+listed' for name in LISTED)]

def made(name: str, split: str):
    "The world of a row, on the tasks of a split where it has any."
    from agentlab.env import Listed, load_env
    env = load_env(name.removesuffix('+listed'))
    if hasattr(env, 'split'): env.split = split
    return Listed(env) if name.endswith('+listed') else env

def held_out(env, count: int) -> list:
    "Tasks of the test split; None each, where a world has no tasks."
    from agentlab.env import EnvError
    try: return env.tasks('test', count)
    except (AttributeError, ValueError, EnvError): return [None]*count

def longest(env) -> int:
    "Tokens of an action: twice what a word tokenizer needs."
    return 2*max(getattr(env, 'max_tokens', 0), 12)

def played(policy, env) -> dict:
    "Share of valid actions and of won episodes in greedy games, and some invalid answers."
    from agentlab.episodes import derive
    from agentlab.rollout import play
    count, began = SETTINGS['episodes'], time.monotonic()
    seeds = [derive('guides', i) for i in range(count)]
    episodes = play(policy, env, seeds, tasks=held_out(env, count), temperature=0., max_tokens=longest(env),
        max_turns=SETTINGS['max_turns'])
    turns = [turn for episode in episodes for turn in episode.turns]
    wrong = list(dict.fromkeys(turn.text[:200] for turn in turns if turn.invalid))
    won = [episode.success for episode in episodes]
    return dict(valid=1 - sum(bool(turn.invalid) for turn in turns)/len(turns), turns=len(turns),
        success=sum(won)/len(won),
        errors=sum(bool(episode.error) for episode in episodes), invalid=wrong[:EXAMPLES],
        seconds=round(time.monotonic() - began, 1))

def primed(policy, name: str) -> tuple:
    "The policy after its imitation, and what was done."
    from agentlab.policy import prime
    began = time.monotonic()
    prime(policy, made(name, 'demo'), steps=SETTINGS['updates'], episodes=SETTINGS['demonstrations'], lr=SETTINGS['lr'],
        noise=SETTINGS['noise'], progress=False)
    return policy, dict(updates=SETTINGS['updates'], prime_seconds=round(time.monotonic() - began, 1))

def row_of(name: str, policy, told_only: bool) -> dict:
    "What is measured of a world."
    from agentlab.rollout import told
    env = made(name, 'test')
    guides = {seat: told(env, policy.chat, seat) for seat in env.seats}
    tokens = {seat: len(policy.chat.text_ids(text)) for seat, text in guides.items()}
    row = dict(guide_tokens=max(tokens.values()), told=played(policy, env))
    if not told_only:
        policy, done = primed(policy, name)
        row['primed'] = done | played(policy, env)
    return row | dict(model=policy.weights) if hasattr(policy, 'weights') else row

def with_row(record: dict, name: str, row: dict, model: str) -> dict:
    "The record with one more row; of its circumstances the row keeps the day and the load."
    from agentlab.bench import circumstances
    made = circumstances(f'python tools/guides.py --model {model}')
    date, load = made.pop('date'), made['machine'].pop('load')
    rows = record['rows'] | {name: row | dict(date=date, load=load)}
    days = {day: facts for day, facts in record.get('made', {}).items()
        if day != date and any(row['date'] == day for row in rows.values())}
    return dict(settings=SETTINGS, made=days | {date: made}, rows=rows)

def key_of(name: str, model: str, told_only: bool) -> str:
    "What a row depends on, as a hash."
    from agentlab.env.protocol import guide_of
    env = made(name, 'test')
    facts = [model, SETTINGS, told_only, {seat: guide_of(env, seat) for seat in env.seats}]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

def table(rows: dict) -> str:
    "The rows as Markdown."
    share = lambda part: f"{part['valid']:.0%} | {part['success']:.0%}" if part else '- | -'
    lines = [f"| {name} | {row['guide_tokens']} | {share(row['told'])} | {share(row.get('primed'))} | "
        f"{row.get('primed', {}).get('prime_seconds', '-')} |" for name, row in rows.items()]
    head = '| world | tokens of the guide | told: valid | won | primed: valid | won | seconds of priming |'
    return '\n'.join([head, '|' + '---|'*7, *lines])

def main():
    parser = ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--worlds', nargs='*', default=None, help='rows to make; all of them')
    parser.add_argument('--model', default='smollm2', help='what `agentlab.policy.pretrained` takes')
    parser.add_argument('--told-only', action='store_true', help='leave priming out')
    parser.add_argument('--out', default=str(ROOT/'assets/results/guides.json'))
    given = parser.parse_args()
    from agentlab.bench import keep
    from agentlab.bench import kept as recorded
    from agentlab.policy import pretrained
    known, path = worlds(), Path(given.out)
    for name in given.worlds or known:
        if name not in known: sys.exit(f'--worlds {name}: known are {", ".join(known)}')
    def kept():
        return recorded(path.parent, path.stem) or dict(settings=SETTINGS, rows={})
    for name in given.worlds or known:
        key = key_of(name, given.model, given.told_only)
        if kept()['rows'].get(name, {}).get('key') == key: continue
        row = row_of(name, pretrained(given.model), given.told_only)
        # read again: another process may have made rows meanwhile
        keep(with_row(kept(), name, row | dict(key=key), given.model), path.parent, path.stem, packed=True)
        print(f"{name}: {row['told']['valid']:.0%} valid when told"
            + (f", {row['primed']['valid']:.0%} when primed" if 'primed' in row else ''), flush=True)
    print(table(kept()['rows']))

if __name__ == '__main__': main()
