"""Measure what things cost and keep the results: `make bench`, `python tools/bench --help`.

The page that explains it and shows what was found: nbs/bench/99_main.ipynb.
"""
from __future__ import annotations
import os, sys
for name, value in dict(OMP_NUM_THREADS='1', TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1',
                        KINETO_LOG_LEVEL='5').items():
    os.environ.setdefault(name, value) # read when torch is imported
from pathlib import Path

if __name__ == '__main__':  # `python tools/bench`: the modules beside this one are `bench.tree` and so on
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fastcore.script import call_parse

from agentlab.bench import circumstances, keep, kept

def added_to(out: str, facts: dict, episodes: int) -> dict:
    "The record that lengths are added to. Raises ValueError where there is none, or one that was measured otherwise."
    known = kept(out, 'training_step')
    for name, now in dict(versions=facts['versions'], episodes=episodes).items():
        if known.get(name) != now:
            raise ValueError(f'add=True: the record in {out} has {name}={known.get(name)}, now it would be {now}; '
                f'measure all lengths anew, without --add')
    return known

def training_step(turns: list[int], episodes: int, repeats: int, out: str, facts: dict, add: bool = False):
    "Measure and keep the training step."
    import torch
    from bench import training_step as step
    torch.set_num_threads(1)
    known, found = added_to(out, facts, episodes) if add else {}, {}
    for length in turns:
        # load: how busy the machine was while it ran
        found[str(length)] = step.measure(length, episodes, repeats) | dict(
            load=circumstances('')['machine']['load'], date=facts['date'], command=facts['command'])
        print(step.as_markdown(step.summary(dict(turns={str(length): found[str(length)]}))), flush=True)
    for length in turns: found[str(length)]['memory'] = step.memory(length, episodes)
    record = facts | dict(episodes=episodes, repeats=repeats, parameters=step.talker(1)[0].num_parameters()) | known
    record['turns'] = dict(sorted((known.get('turns', {}) | found).items(), key=lambda row: int(row[0])))
    keep(record, out, 'training_step', packed=True)
    print(step.as_markdown(step.summary(record)), flush=True)

def warm_start(out: str, facts: dict):
    "Measure and keep the warm start."
    import torch
    from bench.warm_start import compare
    torch.set_num_threads(1)
    record = facts | compare()
    keep(record, out, 'warm_start')
    print('warm start, SFTTrainer over loop:', [round(x, 2) for x in record['ratios']], flush=True)

def references(batch, seconds: dict) -> dict:
    "What is written the usual way, in units of ours: loop (plain numbers) and dictionaries (of tensors)."
    from agentlab.groups import same
    from bench import credit_speed as bench
    key, rows = same(batch.of_turn('group'), batch.turns.state), bench.turn_rows(batch)
    other = dict(gigpo=bench.dictionary_gigpo, hgpo=bench.dictionary_hgpo)
    return dict(loop=bench.seconds_of(lambda: bench.loop_gigpo(batch, key))/seconds['gigpo'],
        dictionaries={name: bench.seconds_of(lambda: f(rows))/seconds[name] for name, f in other.items()})

def credit(out: str, facts: dict):
    "Measure and keep what every estimator costs, how that grows, references beside it, and what comparing texts costs."
    import torch
    from agentlab import credit as by
    from bench.credit_speed import big_batch, credit_speed, similarity_speed
    torch.set_num_threads(1)
    batch = big_batch()
    seconds = credit_speed(by.estimators, batch, 5)
    record = facts | dict(tokens=len(batch.actions), seconds=seconds, scaling={}) | references(batch, seconds)
    for episodes in (512, 2048, 8192):
        batch = big_batch(episodes)
        part = credit_speed(dict(grpo=by.grpo, gigpo=by.gigpo, hgpo=by.hgpo), batch, 2)
        record['scaling'][len(batch.actions)] = {name: cost/len(batch.actions)*1e6 for name, cost in part.items()}
    record['similarity'] = similarity_speed(by.similar_states, [4, 8, 16, 32, 64, 128])
    keep(record, out, 'credit')
    print('gathers:', {name: round(cost/record['seconds']['gather'], 1) for name, cost in record['seconds'].items()},
        record['scaling'], record['loop'], record['dictionaries'], record['similarity'], flush=True)

def tree(repeats: int, out: str, facts: dict):
    "Measure and keep an update on the tree of prefixes beside a flat one."
    import torch
    from bench import tree as page
    torch.set_num_threads(1)
    record = facts | dict(repeats=repeats, tiny=page.measure_tiny(repeats))
    try: record['reader'] = page.measure_reader(repeats)
    except FileNotFoundError as why:
        record['reader'] = None
        print(f'without SmolLM2: {why}')
    keep(record, out, 'tree')
    print(page.as_markdown(record), flush=True)

def search(repeats: int, out: str, facts: dict):
    "Measure and keep a tree beside games, and a critic's update beside the policy's."
    import torch
    from bench import search as page
    torch.set_num_threads(1)
    record = facts | page.measure(repeats)
    keep(record, out, 'search')
    print(page.as_markdown(record), flush=True)

def real_sampler(model: str, rows: int, repeats: int, out: str, facts: dict):
    "Measure and keep sampling from a real model, beside a bare loop."
    import torch
    from bench import real_sampler as bench
    torch.set_num_threads(1)
    record = facts | dict(model=model) | bench.measure(bench.open_model(model), bench.Work(rows=rows), repeats)
    keep(record, out, 'real_sampler')
    print(bench.as_markdown(record), flush=True)

def real_step(model: str, rounds: int, out: str, facts: dict):
    "Measure and keep a training step of a real model, beside TRL's."
    from bench import real_step as page, training_step as step
    record = facts | page.measure(model, repeats=rounds)
    keep(record, out, 'real_step')
    print(step.as_markdown(page.rows(record)), flush=True)

def side_by_side(episodes: int, repeats: int, out: str, facts: dict):
    "Measure and keep episodes with tools that wait: one alone, all side by side, and one after the other."
    import torch
    from bench import side_by_side as page
    torch.set_num_threads(1)
    record = facts | page.measure(episodes, repeats=repeats)
    keep(record, out, 'side_by_side')
    print(page.as_markdown(record), flush=True)

def imports(out: str, facts: dict):
    "Measure and keep the import."
    from bench.imports import import_cost
    record = facts | import_cost()
    keep(record, out, 'imports')
    print('import agentlab.credit after torch, seconds:', [round(x, 3) for x in record['wall']], flush=True)

def lengths(
    turns: str, # as '4,8,16'
) -> list[int]:
    "Numbers of turns. Raises ValueError for anything else."
    try: found = [int(part) for part in turns.split(',')]
    except ValueError: found = []
    if not found or min(found) < 1:
        raise ValueError(f'turns={turns!r}: give whole numbers from 1 with commas between them, as 4,8,16,32,64')
    return found

@call_parse
def main(
    turns: str = '4,8,16,32,64',  # turns of an episode, with commas between
    episodes: int = 64,           # episodes of a step, and side by side
    repeats: int = 5,             # rounds; in each, every side makes one step
    out: str = 'assets/bench',    # folder for the results
    only: str = '',               # one part, such as tree; default: all, the real ones where a model is named
    model: str = '',              # real_sampler, real_step: a folder, or a name `pretrained` knows, such as smollm2
    rounds: int = 1,              # real_step: steps of every side
    add: bool = False,            # training_step: the record keeps the lengths that it has
):
    """Measure a training step against TRL's, the warm start against SFTTrainer, and the cost of the import. Half an
    hour on a quiet core, most of it TRL's at 64 turns."""
    parts = dict(training_step=lambda: training_step(lengths(turns), episodes, repeats, out, facts, add),
        warm_start=lambda: warm_start(out, facts), imports=lambda: imports(out, facts),
        credit=lambda: credit(out, facts), tree=lambda: tree(repeats, out, facts),
        side_by_side=lambda: side_by_side(episodes, repeats, out, facts),
        search=lambda: search(repeats, out, facts))
    if model or only == 'real_sampler':
        parts['real_sampler'] = lambda: real_sampler(model or 'smollm2', 48, min(repeats, 3), out, facts)
    if model or only == 'real_step': parts['real_step'] = lambda: real_step(model or 'smollm2', rounds, out, facts)
    if only and only not in parts: raise ValueError(f'only={only!r}: use one of {", ".join(parts)}')
    if episodes < 4 or episodes % 2: raise ValueError(f'episodes={episodes}: give an even number from 4')
    if min(repeats, rounds) < 1: raise ValueError(f'repeats={repeats}, rounds={rounds}: give at least 1')
    typed = [f'--turns {turns} --episodes {episodes} --repeats {repeats}', *['--add']*add,
        *[f'--only {only}']*(only in ('real_sampler', 'side_by_side', 'search')),
        *[f'--model {Path(model).name}']*bool(model)]
    if only == 'real_step': typed = [f'--only real_step --model {Path(model or "smollm2").name} --rounds {rounds}']
    facts = circumstances(' '.join(['python tools/bench', *typed]))
    for part in [only] if only else parts: parts[part]()
