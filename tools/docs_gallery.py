"""The galleries of the site: every world as a game of it begins, and runs as pages that need no kernel and no network.

tools/docs.py runs it: policies play here, seeded. The folder then has worlds.md and runs.md, and the pages of the runs.
"""
import inspect
import json
import lzma
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from jinja2 import Environment, FileSystemLoader

from agentlab import credit, train, view
from agentlab.env import Clarify, HopSearch, KeyDoor, Kuhn, envs, games, load_env
from agentlab.episodes import Batch, Episode, Turn, derive
from agentlab.policy import tiny_policy
from agentlab.policy.text import with_token_text
from agentlab.policy.tiny import warm_start
from agentlab.rollout import play
from agentlab.rollout.branching import arpo
from agentlab.view.run_report import BLAME, PRAISE, collect, document, pick_group
from docs_pages import MADE_FROM
from notebooks import ROOT

TEMPLATES = Environment(loader=FileSystemLoader(ROOT/'tools'/'docs'), trim_blocks=True, lstrip_blocks=True)

def filled(name: str, **values) -> str: return TEMPLATES.get_template(name).render(values)

def clipped(text: str, lines: int = 12, wide: int = 100) -> str:
    "Text that fits beside others."
    found = [line if len(line) <= wide else line[:wide - 2] + ' …' for line in text.splitlines()]
    return '\n'.join(found[:lines] + ['…']*(len(found) > lines))

def world(name: str, moves: int = 3) -> dict:
    "What the gallery says of a world: its map, and what is read and done in the first moves of a game by its expert."
    env, draw, lines = load_env(name), Random(1), []
    step = env.reset(1)
    drawn = clipped(env.render()) if hasattr(env, 'render') else ''
    while not step.done and len(lines) < 2*moves:
        action = env.expert(generator=draw)
        lines += [step.observation, f'    > {action}']
        step = env.step(action)
    source = Path(inspect.getfile(type(env))).read_text(encoding='utf-8')
    says = inspect.getdoc((envs | games)[name]).split('\n\n')[0]
    return dict(name=name, says=' '.join(says.split()), seats=', '.join(env.seats), page=MADE_FROM.search(source)[1],
        map=drawn, game=clipped('\n'.join([*lines, step.observation]), 20))

# runs

def still(rows: list[list[float]]) -> str:
    "A picture of episodes: a box for each turn, blue for what is above zero and orange for what is below."
    rows = rows[::1 + (len(rows) - 1)//8]
    most = max(abs(x) for row in rows for x in row) or 1
    drawn = [[('rgb({},{},{})'.format(*PRAISE if x > 0 else BLAME), round(.12 + .88*abs(x)/most, 2)) for x in row]
        for row in rows]
    return filled('still.svg', rows=drawn, wide=min(44, 264/max(map(len, rows))), high=min(30, 120/len(rows)))

def of_group(batch: Batch, advantage) -> str:
    "A still of the group with most to see."
    return still([[tile.advantage for tile in line.tiles] for line in collect(batch, advantage, pick_group(batch))])

def card(name: str, title: str, look: str, page: str, picture: str) -> dict:
    "A run of the gallery; `page` is a whole page or what stands in one."
    whole, note = page if '<html' in page else document(title, page), filled('run.html', title=title, look=look)
    page = re.sub(r'<main\b[^>]*>', lambda main: main[0] + note, whole, count=1)
    return dict(name=name, title=title, look=look, page=page, still=picture)

def scoped(name: str, title: str, look: str, batch: Batch, *estimators: str) -> dict:
    "A batch in TurnScope, under the first of the estimators beside the last."
    known = {one: getattr(credit, one) for one in estimators}
    page = view.turnscope_html(batch, known, second=estimators[-1])
    return card(name, title, look, page, of_group(batch, known[estimators[0]](batch)))

def won(batch: Batch) -> str: return f'{int(batch.episodes.success.sum())} of {len(batch)}'

def keydoor(folder: Path, updates: int = 8) -> Iterator[dict]:
    "A short training in KeyDoor, seen three times."
    house = KeyDoor()
    before, after = tiny_policy(house, progress=False), tiny_policy(house, progress=False)
    run = train.train(after, house, train.recipes.gigpo(steps=updates, test_tasks=24), folder/'run', progress=False)
    pair = view.before_after({0: before, updates: after}, house, seeds=(1, 2, 3, 4))
    (_, old), (_, new), last = *pair, run.episodes(updates - 1)
    both = dict(gigpo=credit.gigpo, grpo=credit.grpo)
    yield card('keydoor_before_after', f'KeyDoor, before and after {updates} updates',
        f'The same houses, played by the warm start and by what it became: {won(old)} episodes open the chest '
        f'before, {won(new)} after. In the tokens of an episode, look for those that became rarer.',
        view.turnscope_html(pair, both, beside=0), of_group(new, credit.gigpo(new)))
    yield card('keydoor_gigpo_grpo', 'GiGPO against GRPO', 'One group under two estimators. GRPO paints a row in one '
        'colour. Look in the third grid at the turns of a winner that GiGPO praises less: detours.',
        view.turnscope_html(run, both, second='grpo'), of_group(last, credit.gigpo(last) - credit.grpo(last)))
    yield card('keydoor_report', 'The run on one page', 'Curves, entropy by turn, held-out houses before and after, '
        'credit, and checks of the data. Look at the intervals of the tests: eight updates are few.',
        view.report(run.folder).read_text(encoding='utf-8'), of_group(last, credit.gigpo(last)))

def taught(kind, updates: int, **how):
    "A tiny policy that has seen some games of a demonstrator."
    return warm_start(tiny_policy(kind(), warm=False, progress=False), kind(**how), steps=updates, episodes=8,
        pool=4*updates, warmup=20, noise=.3)

def played(kind, policy, rollout=play) -> Batch:
    "Some groups of episodes, with the words of their tokens."
    episodes = rollout(policy, kind(), [1, 2, 3, 4], group_size=8, max_tokens=16)
    return with_token_text(Batch.from_episodes(episodes), policy.tokenizer)

def others(_) -> Iterator[dict]:
    "Other worlds."
    policy = taught(HopSearch, 240, split='demo')
    plain, asked = played(HopSearch, policy), played(Clarify, taught(Clarify, 300, split='demo'))
    yield scoped('hopsearch', 'HopSearch: one clue leads to the next', f'{won(plain)} questions are answered. Look for '
        'episodes that meet in the same state (equal letters) and part there.', plain, 'gigpo', 'hgpo', 'grpo')
    yield scoped('hopsearch_arpo', 'ARPO: episodes that branch', 'Where an answer of the search engine raised the '
        'entropy, an episode goes on twice. Look for rows that begin with the very same turns.',
        played(HopSearch, policy, arpo), 'hard_branches', 'grpo')
    yield scoped('clarify', 'Clarify: ask what is missing', f'{won(asked)} requests are booked as they were meant. '
        'Look for episodes that book before they have asked.', asked, 'gigpo', 'grpo')
    yield scoped('kuhn', 'Kuhn poker: two seats, one policy', 'What one seat wins the other loses. Look at the rows of '
        'one seat: GRPO compares them with each other only, MARS turn by turn.', played(Kuhn, taught(Kuhn, 80)),
        'mars', 'grpo')

def reread(said: list[list[str]], words: dict[str, int]) -> Batch:
    "Games of GuessNumber from what was said in them: tasks and answers follow from the seed of the run."
    episodes = []
    for number, texts in enumerate(said):
        env, turns = load_env('guess'), []
        step = env.reset(derive(0, 11, 'tasks', number))
        for t, text in enumerate(texts):
            read, ids = ([words.setdefault(f'{word} ', len(words)) for word in one.split()]
                for one in (step.observation, text))
            step = env.step(text)
            turns.append(Turn(t, step.observation, text, read, ids, [0.]*len(ids), [0.]*len(ids),
                reward=step.reward.get('player', 0.), invalid=bool(step.info.get('invalid'))))
        episodes.append(Episode(turns, group=number, outcome=sum(turn.reward for turn in turns),
            success=bool(step.info.get('success')), final=step.observation))
    batch = Batch.from_episodes(episodes)
    return batch.replace(labels=batch.labels | dict(token={i: word for word, i in words.items()}, between={0: ''}))

def reading(_) -> Iterator[dict]:
    "Recorded games of SmolLM2."
    said = json.loads(lzma.decompress((ROOT/'assets'/'results'/'real_hack.json.xz').read_bytes()))['said']
    words = {}
    honest, gamed = (reread(said[name], words) for name in ('honest', 'by the guess'))
    ends = [[2*end - 1]*len(texts) for end, texts in zip(gamed.episodes.outcome.tolist(), said['by the guess'])]
    yield card('smollm2_guess', 'A model that reads, and a reward with a hole', 'SmolLM2 on the same numbers after '
        f'twelve updates: paid for being right ({won(honest)} games won), or a fifth for every valid guess '
        f'({won(gamed)}). Look at what it repeats.',
        view.side_by_side([('paid for being right', honest), ('paid for every guess', gamed)], most=8), still(ends))

def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder/'runs').mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs = [one for part in (keydoor, others, reading) for one in part(Path(scratch))]
    for one in runs: (folder/'runs'/f'{one["name"]}.html').write_text(one['page'], encoding='utf-8')
    (folder/'runs.md').write_text(filled('runs.jinja', runs=runs), encoding='utf-8')
    (folder/'worlds.md').write_text(filled('worlds.jinja', worlds=list(map(world, [*envs, *games]))), encoding='utf-8')

if __name__ == '__main__': main(Path(sys.argv[1]))
