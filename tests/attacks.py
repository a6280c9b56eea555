"""What is done to agentlab on purpose, by class: each class is a list of tries, and a try is (name, function) whose
function raises where the attack succeeds.

`tools/attack.py` (`make attack`) runs all of them; `test_attacks.py` some. The tries stand where their own tests stand:
here they are counted.
"""
import json
import os
import random
import shutil
import time
import warnings
from functools import partial
from pathlib import Path

import torch

import hostile
import wrong_commands
from small import exactly, facts, finish, fork, same_batch, train_small
from view_data import HOSTILE, hostile_batch, write_run

# ---- environments

def environments(folder: Path) -> list:
    "Every way of a hostile environment, at its reset and at its step, here and in a process of its own."
    from agentlab.env import Isolated
    from test_hostile import good, together, written
    def play(way, at, apart):
        wrap = partial(Isolated, limit=5., start_limit=300.) if apart else lambda env: env
        episodes = together([way], at, wrap)
        good(episodes[1::2])
        assert episodes[0].error and episodes[0].error.encode() and len(episodes[0].error) < 3000, episodes[0]
        written(episodes, folder)
    ways = [(way, False) for way in hostile.WAYS] + [(way, True) for way in (*hostile.WAYS, *hostile.ISOLATED)]
    return [(f'{way} at {at}, {"isolated" if apart else "here"}', partial(play, way, at, apart))
        for at in ('reset', 'step') for way, apart in ways]

# ---- programs

def programs(folder: Path) -> list:
    "Every program of the tests of the sandboxes, in both."
    import test_python_tool as tests
    marks = [mark for test in vars(tests).values() for mark in getattr(test, 'pytestmark', []) if callable(test)]
    codes = [code for mark in marks if mark.name == 'parametrize' and mark.args[0].startswith('code')
        for code in mark.args[1]]
    codes = (list(dict.fromkeys(code if isinstance(code, str) else code[0] for code in codes))
        + [f'print({text!r})' for text in tests.TRICKS])
    secret = folder/'secret.txt'
    secret.write_text(tests.SECRET)
    def run(box, code):
        code = code.format(str(secret), str(folder)) if code in tests.READS else code
        began = time.monotonic()
        result = box(code)
        assert (time.monotonic() - began < box.seconds + 8 and len(result.text) < 2000
            and len(result.error) < 3000), result
        assert (tests.SECRET not in f'{result.text}{result.error}'
            and all(c.isprintable() or c == '\n' for c in result.text + result.error)), result
        assert box('40 + 2').text == '42' and secret.read_text() == tests.SECRET
    boxes = dict(monty=tests.monty) | (dict(bubblewrap=tests.wrapped) if tests.wrapped else {})
    return [(f'{name} {i}: {code[:60]!r}', partial(run, box, code)) for name, box in boxes.items()
        for i, code in enumerate(codes)]

# ---- damaged run folders

def damaged(folder: Path, copies: int = 120) -> list:
    "Random damage to a copy of a run: it ends as the one that was not damaged, or says what is wrong."
    from agentlab.train import Run
    from test_damaged import KEPT, STEPS, change, go_on
    whole = train_small(folder/'whole', steps=STEPS, checkpoint_every=2, test_every=2, test_tasks=1)
    def hurt(seed):
        chance, run = random.Random(f'damage {seed}'), Run(shutil.copytree(whole.folder, folder/f'copy{seed}'))
        path = chance.choice(sorted(p for p in run.folder.rglob('*') if p.is_file()
            and p.relative_to(run.folder).parts[0] in KEPT))
        size, what = path.stat().st_size, chance.choice(['byte', 'cut', 'gone'])
        if what == 'byte' and size: change(path, chance.randrange(size))
        elif what == 'cut': os.truncate(path, chance.randrange(size) if size else 0)
        else: path.unlink()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            try: run = go_on(run)
            except (ValueError, OSError) as e: assert path.name in str(e) or run.folder.name in str(e), (path, what, e)
            else:
                assert [row['step'] for row in run.rows()] == list(range(STEPS + 1)), (path, what)
                assert run.rows()[:STEPS] == whole.rows() or said, (path, what)
        shutil.rmtree(run.folder)
    return [(f'damage {seed}', partial(hurt, seed)) for seed in range(copies)]

# ---- command lines

def commands(folder: Path) -> list:
    "Command lines that cannot work. They are typed in a few processes; a try reads its answer."
    from test_wrong_commands import type_them
    lines, answers, part = wrong_commands.lines(), {}, 30
    def answer(i):
        place = folder/f'home{i//part}'
        if i//part not in answers:
            status, said = finish(fork(type_them, place, lines[i//part*part:][:part], log=folder/f'log{i//part}'),
                folder/f'log{i//part}', 900)
            assert status == 0, said[-2000:]
            answers[i//part] = json.loads((place/'answers.json').read_text())
        line, words, status, errors, seconds = answers[i//part][i % part]
        assert wrong_commands.faults(words, status, errors, seconds) == [], errors[-500:]
    return [(line, partial(answer, i)) for i, (line, _) in enumerate(lines)]

# ---- kills

def simple(name, out, resume=True):
    "A run of a recipe by its name."
    from agentlab.train import recipes
    train_small(out, make=recipes.known[name], resume=resume, steps=5, groups=3, group_size=4, minibatches=1,
        checkpoint_every=2, test_every=3, test_tasks=1)

def with_replay(out):
    from agentlab.policy import tiny_policy
    from agentlab.train import train
    from test_replay_trainer import Joined, house, recipe
    train(tiny_policy(house, warm=False), house, recipe(replay=Joined, max_tokens=3), out, resume=True, progress=False)

def with_league(out):
    from agentlab.env import TicTacToe
    from agentlab.rollout import play_players
    from agentlab.selfplay import League, pfsp
    from agentlab.train import recipes, train
    from test_selfplay import learner
    game = TicTacToe()
    recipe = recipes.dr_grpo(name='league', steps=5, groups=4, group_size=2, minibatches=1, max_tokens=2, test_tasks=0,
        checkpoint_every=2, rollout=play_players,
        memory=partial(League, seats=game.seats, choose=pfsp, mirror=.25, every=2, most=2,
        groups=4))
    train(learner(game), game, recipe, out, resume=True, progress=False)

def with_instructions(out):
    from agentlab.env import CueDoor
    from agentlab.policy import Policy, tiny_model, word_tokenizer
    from agentlab.prompt import Inspo, Instructed, play_instructed
    from agentlab.train import recipes, train
    env = Instructed(CueDoor())
    tokenizer = word_tokenizer(env.vocabulary())
    memory = partial(Inspo, env=env, every=3, checks=4, recent=2, groups=2, max_tokens=4)
    recipe = recipes.grpo(name='inspo', rollout=play_instructed, test_rollout=play_instructed, memory=memory, steps=4,
        groups=2, group_size=2, max_tokens=4, test_tasks=4, checkpoint_every=2)
    train(Policy(tiny_model(len(tokenizer), 128, hidden=32), tokenizer), env, recipe, out, resume=True, progress=False)

def a_sweep(out):
    from agentlab.bench.sweep import bench
    bench(recipes='gigpo', envs='small:Paying', seeds=2, steps=4, groups=2, group_size=2, max_tokens=3, test_tasks=1,
        model='untrained', cpus=1, out=str(out), here=True)

RUNS = ({name: partial(simple, name) for name in ('grpo', 'gigpo', 'dapo', 'gspo', 'ppo', 'spear')}
    | dict(replay=with_replay, league=with_league, instructions=with_instructions, sweep=a_sweep))

def same_end(one: Path, two: Path):
    "Both folders hold runs with the same rows, tests, weights and optimiser."
    from agentlab.train import Run
    from agentlab.train.runs import load_checkpoint
    folders = sorted(path.parent.relative_to(one) for path in one.rglob('run.json'))
    assert folders and folders == sorted(path.parent.relative_to(two) for path in two.rglob('run.json'))
    for first, second in ((Run(one/place), Run(two/place)) for place in folders):
        assert facts(first) == facts(second) and first.tests() == second.tests() and first.steps() == second.steps()
        for step in first.steps(): same_batch(first.episodes(step), second.episodes(step))
        kept, found = (load_checkpoint(run)[1] for run in (first, second))
        assert set(kept) == set(found)
        for part in kept:
            for name, x in kept[part].items(): exactly(x, found[part][name], f'{part} {name}')
        assert not [path for path in second.folder.rglob('*.tmp')]

def kills(folder: Path, each: int = 10) -> list:
    "SIGKILL at a random moment, then the same command again: the run that nobody killed."
    seconds = {}
    def whole(kind):
        if kind in seconds: return
        (folder/kind).mkdir()
        began = time.monotonic()
        status, said = finish(fork(RUNS[kind], folder/kind/'whole', log=folder/kind/'log'), folder/kind/'log', 300)
        assert status == 0, said[-2000:]
        seconds[kind] = time.monotonic() - began
    def kill(kind, number):
        whole(kind)
        place, chance = folder/kind/str(number), random.Random(f'{kind} {number}')
        process = fork(RUNS[kind], place, log=folder/kind/'log')
        process.join(chance.uniform(.2, .95)*seconds[kind])
        if process.exitcode is None: process.kill()
        assert finish(process, folder/kind/'log')[0] in (0, -9)
        status, said = finish(fork(RUNS[kind], place, log=folder/kind/'log'), folder/kind/'log', 300)
        assert status == 0, said[-2000:]
        same_end(folder/kind/'whole', place)
        shutil.rmtree(place)
    return [(f'{kind} {number}', partial(kill, kind, number)) for kind in RUNS for number in range(each)]

# ---- dumps of others

def dumps(folder: Path, copies: int = 60) -> list:
    """Files that others wrote, with random damage, and lines and columns that attack the page: a ValueError with the
    file's name, or a page without markup of theirs."""
    from agentlab.view.foreign import open_run, opened_html
    from test_foreign import BOMBS, HERE
    files = sorted(path for path in HERE.rglob('*') if path.suffix in ('.parquet', '.jsonl'))
    def look(path):
        try: page = opened_html(open_run(path, max_bytes=2**26))
        except ValueError as e: assert path.name in str(e), e
        else: assert '<script' not in page and '<img' not in page and page.encode() and len(page) < 3_000_000
        path.unlink()
    def hurt(number):
        chance, source = random.Random(f'dump {number}'), files[number % len(files)]
        data = bytearray(source.read_bytes())
        for _ in range(chance.choice([1, 2, 20])): data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path = folder/f'{number}-{source.name}'
        path.write_bytes(data[:chance.randrange(len(data))] if number % 3 == 0 else data)
        look(path)
    def said(number):
        text, path = HOSTILE[number % len(HOSTILE)], folder/f'said{number}.jsonl'
        path.write_text(''.join(json.dumps({'input': text, 'output': text + text, 'gts': text, text: 1., 'score': 1.,
            'step': i}) + '\n' for i in range(3)))
        look(path)
    def bomb(kind):
        import pyarrow.parquet as pq
        pq.write_table(BOMBS[kind](), folder/f'{kind}.parquet', compression='zstd', store_schema=False)
        look(folder/f'{kind}.parquet')
    return [(f'damage {i}', partial(hurt, i)) for i in range(copies)] + [(f'text {i}', partial(said, i)) for i in range(
        len(HOSTILE))] + [(f'bomb {kind}', partial(bomb, kind)) for kind in BOMBS]

# ---- pages

def pages(folder: Path, browser) -> list:
    "Pages about hostile text in a browser that runs scripts: nothing of it runs, nothing is fetched."
    from agentlab.view import group_html, open_run, report, turnscope
    from agentlab.view.entropy_widget import entropy_lab_html
    from agentlab.view.foreign import opened_html
    batch = hostile_batch()
    whole = lambda html: '<!doctype html><meta charset="utf-8">' + html
    def dump(text):
        (folder/'dump.jsonl').write_text(''.join(json.dumps({'input': text, 'output': text, 'gts': text,
            'score': 1., 'step': 0, (text[:50] or 'x'): 2.}) + '\n'
            for _ in range(2)))
        return opened_html(open_run(folder/'dump.jsonl'))
    def a_report(text):
        run = Path(write_run(folder/f'run{abs(hash(text))}'))
        info = json.loads((run/'run.json').read_text())
        info['facts'] |= dict(policy=text, note={text[:50]: text})
        (run/'run.json').write_text(json.dumps(info))
        return report(run).read_text()
    made = dict(group=lambda text: whole(group_html(batch, torch.zeros(len(batch.actions)))),
        scope=lambda text: whole(turnscope(batch).static()), lab=lambda text: whole(entropy_lab_html(batch)))
    def shown(name, make, text):
        path = folder/f'{name}.html'
        path.write_text(make(text), encoding='utf-8')
        page, asked = browser.new_page(), []
        page.on('request', lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.mouse.move(200, 200)
        assert page.evaluate('[window.hit, document.images.length]') == [None, 0] and asked == [path.as_uri()], asked
        page.close()
    tries = [(f'{name}', partial(shown, name, make, '')) for name, make in made.items() if make]
    return tries + [(f'{name} {i}', partial(shown, f'{name}{i}', make, text))
        for name, make in dict(dump=dump, report=a_report).items() for i, text in enumerate(HOSTILE)]

# with the least number of tries
CLASSES = dict(environments=(environments, 90), programs=(programs, 250), damaged=(damaged, 100),
    commands=(commands, 200), kills=(kills, 100), dumps=(dumps, 60), pages=(pages, 12))
