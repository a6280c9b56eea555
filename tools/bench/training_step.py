"""A training step made three times from the same weights: agentlab's, and TRL's two ways.

The page that explains it and shows what was found: nbs/bench/00_training_step.ipynb.
"""
from __future__ import annotations
import os, queue, re, tempfile, threading, time, warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch.profiler import profile, record_function

from agentlab.credit import grpo
from agentlab.env.protocol import TextEnv, guide_of
from agentlab.episodes import derive
from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.rollout import play
from agentlab.settings import needed
from agentlab.train import recipes
from agentlab.train.trainer import Training, one_step

WORDS = tuple(f'w{number}' for number in range(40))
SAID = 4  # tokens of an action
TOOLS = str(Path(__file__).resolve().parents[1])

class Talk(TextEnv):
    "A conversation of a fixed number of turns."
    def __init__(self, length: int): self.length = length
    def words(self) -> str: return ' '.join(self.random.choices(WORDS, k=self.random.randint(6, 10)))
    def start(self, seed, task=None): return self.words()
    def turn(self, action):
        done = self.turns == self.length
        return '' if done else self.words(), worth(action)/self.length, done, {}

def worth(
    text: str,  # an action
) -> float:     # 0 to 1
    "Share of its words that are paid."
    return sum(word in WORDS[:len(WORDS)//2] for word in text.split())/SAID

TEMPLATE = ("{% for m in messages %}{% if m.role == 'tool' %}<|end|><|user|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}<|assistant|>{{ m.tool_calls[0].function.name }} {{ "
    "m.tool_calls[0].function.arguments|tojson }}<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt "
    "%}<|assistant|>{% endif %}")
CALL = dict(type='function', function=dict(name='say', arguments=dict(text='{content}')))
PARSER = dict(start_anchor='<|assistant|>', defaults=dict(role='assistant'),
    fields=dict(tool_calls=dict(close_pattern=r'<\|end\|>|$', content='text', transform=[CALL])))

def talker(
    turns: int,  # of the longest conversation
):               # (model, tokenizer)
    "A model that never ends its turn, and its tokenizer."
    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSER
    model = tiny_model(len(tokenizer), max_context=32 + 18*turns, layers=3)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight  # also the vocabulary layer: they are tied
        embedding[:, 0] = 6.
        embedding[tokenizer.convert_tokens_to_ids(['<|end|>', '<|user|>', '<|system|>', '<unk>']), 0] = -6.
    return model, tokenizer

@dataclass(frozen=True)
class Setting:
    "What a step is made with."
    open: Callable = talker         # turns -> (model, tokenizer), the same each time
    world: Callable = Talk          # turns -> environment of so many turns
    recipe: Callable = recipes.grpo # fields -> agentlab.train.recipes.Recipe
    said: int = SAID                # tokens of an action
    heard: int = 14                 # most tokens between two actions, template included
    between: str = '<|end|><|user|>{}<|end|><|assistant|>'  # what stands there; {}: the observation
    size: int = 8                   # episodes of a group
    micro: int|None = None          # episodes of a forward pass of TRL's update; None: all
    threads: int = 1

class Side:
    "One way to make a training step, made again and again from the same weights."
    def __init__(self, name: str, model):
        self.name, self.model = name, model
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        self.profiler = self.gradient = None
        self.laps = []  # of every step: cpu and wall -> seconds of sampling and update
    @torch.no_grad()
    def begin(self):
        for name, weight in self.weights.items(): self.model.get_parameter(name).copy_(weight)
        if self.profiler: self.profiler.start()
        self.started = clocks()
    def end(self):
        whole = {kind: now - self.started[kind] for kind, now in clocks().items()}
        self.laps.append({kind: dict(sampling=took, update=whole[kind] - took) for kind, took in self.sampled.items()})
        if self.profiler: self.profiler.stop()
    @contextmanager
    def sampling(self):
        "Around all that is done to get the actions."
        start = clocks()
        with record_function('sampling'): yield
        self.sampled = {kind: now - start[kind] for kind, now in clocks().items()}
    def keep_gradient(self, model):
        "The clipped gradient of the first step: what the optimiser is about to use."
        if self.gradient is not None: return
        self.gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    def lap(self) -> dict: return self.laps[-1]['cpu']
    def close(self): pass

def clocks() -> dict: return dict(cpu=time.process_time(), wall=time.perf_counter())  # seconds

def shape(episodes: int, size: int = 8) -> tuple[int, int]:
    "Groups and group size: groups of `size` where there are enough episodes."
    size = size if episodes % size == 0 else 2
    return episodes//size, size

class AgentlabSide(Side):
    "agentlab's trainer."
    def __init__(self, turns: int, episodes: int, how: Setting = Setting()):
        model, tokenizer = how.open(turns)
        super().__init__('agentlab', model)
        groups, size = shape(episodes, how.size)
        recipe = how.recipe(minibatches=1, groups=groups, group_size=size, max_turns=turns, max_tokens=how.said,
            rollout=self.play, credit=self.credit)
        self.training = Training(Policy(model, tokenizer), how.world(turns), recipe)
        self.training.optimizer.register_step_pre_hook(lambda *_: self.keep_gradient(model))
    def play(self, *args, **kw):
        with self.sampling(): self.episodes = play(*args, **kw)
        return self.episodes
    def credit(self, batch):
        self.batch, self.advantage = batch, grpo(batch, eps=1e-4)
        return self.advantage
    def step(self) -> dict:
        "Make a step; its CPU seconds."
        self.begin()
        self.row, _ = one_step(self.training, 0)
        self.end()
        return self.lap()
    def said(self) -> torch.Tensor:
        "(sampled tokens of an episode, episodes, 1) ids. Raises AssertionError where episodes differ in length."
        ids = [[i for t in e.turns for i in t.ids] for e in self.episodes]
        assert len(set(map(len, ids))) == 1, f'an action ended early: sampled tokens {sorted(set(map(len, ids)))}'
        return torch.tensor(ids).T[:, :, None].contiguous()
    def tokens(self) -> dict:
        "Sampled and trained; of all rows; read by the model in the update, padding included."
        return {name: int(self.row[name]) for name in ('sampled', 'held', 'computed')}
    def work(self) -> list[tuple]:
        "Of every episode: ids, places that are trained, advantage."
        b, turn = self.batch, self.batch.tokens.turn
        first = {int(row): float(a) for row, a in zip(b.tokens.row[b.actions].flip(0), self.advantage.flip(0))}
        return [(b.tokens.id[b.tokens.row == row].tolist(), (turn[b.tokens.row == row] >= 0).nonzero()[:, 0].tolist(),
            first[row]) for row in range(len(b))]

def generate(
    trainer,                    # trl.GRPOTrainer
    contexts: list[list[int]],  # the conversations so far
):                              # (ids, log-probabilities), a list per conversation
    "One action of every conversation, with transformers."
    inputs = trainer.processing_class.pad(dict(input_ids=contexts), padding_side='left', return_tensors='pt')
    with torch.no_grad():
        out = trainer.model.generate(**inputs, generation_config=trainer.generation_config)
        logps = trainer.model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    return out.sequences[:, -logps.shape[1]:].tolist(), logps.tolist()

def rollout_loop(
    turns: int,
    seeds: dict,  # first observation -> seed of its game
    how: Setting = Setting(),
):                # a `rollout_func` for TRL
    "Play with `generate`, all episodes at once."
    def rollout(prompts, trainer):
        tokenizer, games = trainer.processing_class, [how.world(turns) for _ in prompts]
        for game, prompt in zip(games, prompts): game.reset(seeds[prompt[-1]['content']])
        contexts = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)['input_ids']
        starts = [len(context) for context in contexts]
        logps, mask, paid = [[] for _ in games], [[] for _ in games], [0.]*len(games)
        for _ in range(turns):
            ids, scores = generate(trainer, contexts)
            steps = [game.step(text)
                for game, text in zip(games, tokenizer.batch_decode(ids, skip_special_tokens=True))]
            between = [how.between.format(step.observation) for step in steps]
            new = tokenizer(between, add_special_tokens=False)['input_ids']
            for i, step in enumerate(steps):
                after = [] if step.done else new[i]
                contexts[i] = contexts[i] + ids[i] + after
                logps[i] += scores[i] + [0.]*len(after)
                mask[i] += [1]*len(ids[i]) + [0]*len(after)
                paid[i] += sum(step.reward.values())
        return dict(prompt_ids=[c[:n] for c, n in zip(contexts, starts)],
            completion_ids=[c[n:] for c, n in zip(contexts, starts)],
            logprobs=logps, env_mask=mask, paid=paid)
    return rollout

def tool_class(turns: int, how: Setting = Setting()):
    "The world as TRL's `environment_factory` wants it."
    class TalkTool:
        def reset(self, seed: int, **columns) -> str:
            self.game, self.paid = how.world(turns), 0.
            return self.game.reset(seed).observation
        def say(self, text: str) -> str:
            """Say something.

            Args:
                text: the words
            """
            step = self.game.step(text)
            self.paid += sum(step.reward.values())
            return step.observation
    return TalkTool

def how_to_play(kind: str, turns: int, seeds: list[int], tokenizer, how: Setting = Setting()) -> dict:
    "What GRPOTrainer is given besides model and config: its data, its environment, its reward."
    from datasets import Dataset
    guide = guide_of(how.world(turns), 'player')
    told = [dict(role='system', content=guide)] if guide else []
    if kind == 'rollout_func':
        first = {how.world(turns).reset(seed).observation: seed for seed in seeds}
        data = [[*told, dict(role='user', content=observation)] for observation in first]
        return dict(train_dataset=Dataset.from_dict(dict(prompt=data)), rollout_func=rollout_loop(turns, first, how),
            reward_funcs=lambda paid, **_: paid)
    def reward(environments, completion_ids, **_):
        last = tokenizer.batch_decode([ids[-how.said:] for ids in completion_ids], skip_special_tokens=True)
        return [e.paid + sum(e.game.step(text).reward.values()) for e, text in zip(environments, last)]
    data = dict(prompt=[[*told, dict(role='user', content='')]]*len(seeds), seed=seeds)
    return dict(train_dataset=Dataset.from_dict(data), environment_factory=tool_class(turns, how), reward_funcs=reward)

def trl_config(kind: str, folder: str, turns: int, episodes: int, how: Setting = Setting()):
    "GRPOConfig with the recipe's numbers, and without what is meant for a GPU: autocast, gradient checkpointing."
    from trl import GRPOConfig
    recipe, micro = how.recipe(), min(how.micro or episodes, episodes)
    scores = dict(return_dict_in_generate=True, output_scores=True) if kind == 'rollout_func' else {}
    return GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to='none',
        save_strategy='no', logging_strategy='no',
        disable_tqdm=True, per_device_train_batch_size=micro, gradient_accumulation_steps=episodes//micro,
        num_generations=shape(episodes, how.size)[1], max_steps=10**6, shuffle_dataset=False,
        max_completion_length=(how.heard + how.said)*turns, max_tool_calling_iterations=turns - 1,
        generation_kwargs=dict(max_new_tokens=how.said, **scores), temperature=recipe.temperature,
        loss_type='dapo', learning_rate=recipe.lr, lr_scheduler_type='constant',
        weight_decay=recipe.weight_decay, max_grad_norm=recipe.max_grad_norm)

def timed_trainer(side, **arguments):
    """A GRPOTrainer that times its sampling, draws the ids of `side.ids` where that is set, and keeps what it is
    about to train on."""
    from trl import GRPOTrainer
    class TimedTrainer(GRPOTrainer):
        def _generate(self, prompts):
            with side.sampling(), forced(side.ids): return super()._generate(prompts)
        def _generate_and_score_completions(self, inputs):
            side.scored = super()._generate_and_score_completions(inputs)
            return side.scored
    return TimedTrainer(**arguments)

@contextmanager
def forced(ids):
    "torch.multinomial draws, and then gives these ids, one tensor a call; None: it is left alone."
    if ids is None:
        yield
        return
    draw, rest = torch.multinomial, iter(ids)
    def draw_and_replace(probabilities, num_samples):
        draw(probabilities, num_samples)
        return next(rest)
    with mock.patch.object(torch, 'multinomial', draw_and_replace): yield

class Stopped(Exception): "Ends the training thread between two steps."

def baton(side):
    "A callback that waits before each step until the side is asked for it."
    from transformers import TrainerCallback
    class Baton(TrainerCallback):
        def on_step_begin(self, *args, **kw):
            side.ready.put(None)
            if not side.asked.get(): raise Stopped
            side.begin()
        def on_pre_optimizer_step(self, *args, model=None, **kw): side.keep_gradient(model)
        def on_step_end(self, *args, **kw): side.end()
    return Baton()

class TrlSide(Side):
    "TRL's GRPOTrainer, through 'rollout_func' or 'environment_factory'."
    def __init__(self, name: str, turns: int, episodes: int, ids=None, how: Setting = Setting()):
        model, tokenizer = how.open(turns)
        super().__init__(name, model)
        self.ids, self.asked, self.ready, self.threads = ids, queue.Queue(), queue.Queue(), how.threads
        self.folder, (groups, _) = tempfile.TemporaryDirectory(), shape(episodes, how.size)
        seeds = [derive(0, 0, 'tasks', group) for group in range(groups)]  # as `collect` does in step 0 of run 0
        config = trl_config(name, self.folder.name, turns, episodes, how)
        self.trainer = timed_trainer(self, model=model, args=config, processing_class=tokenizer,
            callbacks=[baton(self)], **how_to_play(name, turns, seeds, tokenizer, how))
        self.thread = threading.Thread(target=self.run, name=f'TRL {name}', daemon=True)
        self.thread.start()
        self.wait()
    def run(self):
        torch.set_num_threads(self.threads)  # torch counts the threads of every Python thread apart
        try: self.trainer.train()
        except Stopped: pass
        except BaseException as e: self.ready.put(e)
    def wait(self):
        "Until the thread stands before its next step; whatever ended it is raised here."
        error = self.ready.get()
        if error is not None: raise error
    def step(self) -> dict:
        "Make a step; its CPU seconds."
        self.asked.put(True)
        self.wait()
        return self.lap()
    def work(self) -> list[tuple]:
        "Of every episode: ids, places that are trained, advantage."
        s = self.scored
        ids, there = torch.cat([s['prompt_ids'], s['completion_ids']],
            1), torch.cat([s['prompt_mask'], s['completion_mask']], 1).bool()
        trained = torch.cat([torch.zeros_like(s['prompt_mask']), s['completion_mask']*s['tool_mask']], 1)
        return [(ids[i][there[i]].tolist(), trained[i][there[i]].nonzero()[:, 0].tolist(), float(s['advantages'][i]))
            for i in range(len(ids))]
    def tokens(self) -> dict:
        "Sampled and trained; of all rows; read by the model in the update, padding included."
        s = self.scored
        rows = torch.cat([s['prompt_mask'], s['completion_mask']], 1)
        sampled = int((s['completion_mask']*s['tool_mask']).sum())
        return dict(sampled=sampled, held=int(rows.sum()), computed=rows.numel())
    def close(self):
        "End the thread."
        self.asked.put(False)
        self.thread.join()
        self.folder.cleanup()

@contextmanager
def quiet():
    "Without the warnings of experimental features and renamed arguments."
    from transformers.utils import logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally: logging.set_verbosity(level)

SIDES = ('agentlab', 'rollout_func', 'environment_factory')

@contextmanager
def open_sides(
    turns: int,
    episodes: int,
    how: Setting = Setting(),
):  # {name: side}, each with its first step behind it
    "All sides, ready to be measured; their threads end with the block."
    try: import trl  # noqa: F401
    except ImportError: raise ImportError('the comparison needs TRL: pip install "agentlab-rl[trl]"') from None
    with quiet(), ExitStack() as stack:
        sides = dict(agentlab=AgentlabSide(turns, episodes, how))
        sides['agentlab'].step()
        for name in SIDES[1:]:
            sides[name] = TrlSide(name, turns, episodes, sides['agentlab'].said(), how)
            stack.callback(sides[name].close)
            sides[name].step()
        yield sides

def same_work(
    sides: dict,            # from `open_sides`
    gradient: float = 1e-4, # largest difference of gradients that is none; bf16 rounds coarsely
) -> dict:                  # tokens played, read and trained, and the largest differences
    "Check that the sides did the same. Raises AssertionError with the side that did not."
    ours, work = sides['agentlab'], sides['agentlab'].work()
    gaps = dict(advantage=0., gradient=0.)
    largest = max(g.abs().max() for g in ours.gradient.values())
    for name in SIDES[1:]:
        for (ids, trained, advantage), (their_ids, their_trained, theirs) in zip(work, sides[name].work(), strict=True):
            assert ids == their_ids, f'{name} read other ids'
            assert trained == their_trained, f'{name} trained other tokens'
            gaps['advantage'] = max(gaps['advantage'], abs(advantage - theirs))
        assert sides[name].gradient.keys() == ours.gradient.keys()
        gaps['gradient'] = max(gaps['gradient'], *(float((g - sides[name].gradient[k]).abs().max()/largest)
            for k, g in ours.gradient.items()))
    assert gaps['advantage'] < 1e-4 and gaps['gradient'] < gradient, f'advantages or gradients differ: {gaps}'
    return dict(sampled=ours.said().numel(), trained=sum(len(w[1]) for w in work), tokens=sum(len(w[0]) for w in work),
        **{f'{k}_gap': v for k, v in gaps.items()})

def measure(
    turns: int,
    episodes: int = 64,
    repeats: int = 5,  # rounds; in each, every side makes one step
) -> dict:             # seconds: side -> list of {sampling, update}; work: see `same_work`; shares: see `shares`
    "CPU seconds of a training step on every side, on one thread."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with open_sides(turns, episodes) as sides:
            work, seconds = same_work(sides), {name: [] for name in sides}
            for round in range(repeats):
                for name in list(sides)[::-1 if round % 2 else 1]: seconds[name].append(sides[name].step())
            return dict(seconds=seconds, work=work, shares={name: shares(side) for name, side in sides.items()})
    finally: torch.set_num_threads(threads)

MATRIX = re.compile(
    r'aten::(add|b|badd)?(mm|bmm)\b|aten::addmv|aten::mv\b|aten::dot\b|scaled_dot_product|mkldnn|mkl_linear')

def shares(
    side: Side,
) -> dict:  # phase -> share of the step's time: matrix, other tensor operations, python
    "Where the time of one more step goes, by torch's profiler."
    side.profiler = profile()
    side.step()
    events, side.profiler = side.profiler.events(), None
    frame = next(e for e in events if e.name == 'sampling').time_range
    total = dict(sampling=dict.fromkeys(('matrix', 'other', 'python'), 0.),
        update=dict.fromkeys(('matrix', 'other', 'python'), 0.))
    for e in events:
        phase = 'sampling' if frame.start <= e.time_range.start <= frame.end else 'update'
        if e.name.startswith('aten::'):
            total[phase]['matrix' if MATRIX.search(e.name) else 'other'] += e.self_cpu_time_total
    length = dict(sampling=frame.end - frame.start)
    length['update'] = (max(e.time_range.end for e in events) - min(e.time_range.start for e in events)
        - length['sampling'])
    for phase, parts in total.items(): parts['python'] = length[phase] - parts['matrix'] - parts['other']
    return {phase: {k: v/sum(length.values()) for k, v in parts.items()} for phase, parts in total.items()}

def peak_memory(name: str, turns: int, episodes: int, how: Setting = Setting(), steps: int = 2) -> float:
    "MB by which some steps of a side raise this process's highest mark of resident memory. Call it in a fresh process."
    import resource, sys
    mark = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*(1 if sys.platform == 'darwin' else 1024)/1e6
    torch.set_num_threads(how.threads)
    with quiet():
        side = AgentlabSide(turns, episodes, how) if name == 'agentlab' else TrlSide(name, turns, episodes, how=how)
        before = mark()
        for _ in range(steps): side.step()
        side.close()
        return mark() - before

def memory(turns: int, episodes: int = 64, how: Setting = Setting(), steps: int = 2) -> dict|None:
    "Peak memory of a step in MB, by side; None where the operating system does not tell."
    import importlib.util
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_all_start_methods, get_context
    if importlib.util.find_spec('resource') is None: return None
    context = get_context('forkserver' if 'forkserver' in get_all_start_methods() else 'spawn')
    if context.get_start_method() == 'forkserver':
        context.set_forkserver_preload(['bench.training_step', 'trl.trainer.grpo_trainer'])
    # older Pythons do not tell the server where modules lie, and it would import nothing beforehand
    places = os.pathsep.join(filter(None, (TOOLS, os.environ.get('PYTHONPATH'))))
    with (mock.patch.dict(os.environ, PYTHONPATH=places),
          ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool):
        return {name: pool.submit(peak_memory, name, turns, episodes, how, steps).result() for name in SIDES}

def summary(
    record: dict,  # what `python tools/bench` wrote
) -> list[dict]:   # a row for each number of turns and side
    "Median CPU seconds, ratio to agentlab (median, least and largest of the rounds), and peak memory."
    rows = []
    for turns, found in record['turns'].items():
        ours = [lap['sampling'] + lap['update'] for lap in found['seconds']['agentlab']]
        for name, laps in found['seconds'].items():
            whole = [lap['sampling'] + lap['update'] for lap in laps]
            ratios = [theirs/our for theirs, our in zip(whole, ours)]
            rows.append(dict(turns=int(turns), side=name, sampling=median(lap['sampling'] for lap in laps),
                update=median(lap['update'] for lap in laps), step=median(whole),
                ratio=median(ratios), least=min(ratios), largest=max(ratios),
                memory=(found.get('memory') or {}).get(name)))
    return rows

def limits(
    record: dict,
) -> dict:  # turns -> {matrix: share of agentlab's step, update: share, no_sampling: ratio, only_matrix: ratio}
    "How far rollout_func's ratio could rise if our sampling were free, or all but our matrix work."
    found = {}
    for turns, part in record['turns'].items():
        rows = {row['side']: row for row in summary(dict(turns={turns: part}))}
        ours, theirs, phases = rows['agentlab'], rows['rollout_func'], part['shares']['agentlab']
        matrix = sum(phase['matrix'] for phase in phases.values())
        found[int(turns)] = dict(matrix=matrix, update=ours['update']/ours['step'],
            no_sampling=theirs['step']/ours['update'],
            only_matrix=theirs['step']/(matrix*ours['step']))
    return found

def as_markdown(rows: list[dict], digits: int = 2) -> str:
    "Rows of equal keys as a Markdown table."
    def text(x): return '' if x is None else f'{x:.{digits}f}' if isinstance(x, float) else str(x)
    lines = [list(rows[0]), ['---']*len(rows[0])] + [[text(x) for x in row.values()] for row in rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)

def figure(
    record: dict,
):  # plotly figure: CPU time of a step as a multiple of agentlab's, sampling and update stacked
    "The comparison at a glance."
    go = needed('plotly.graph_objects', 'lab', 'figure')
    from agentlab.view.web import LOOK
    rows = summary(record)[::-1]
    ours = {row['turns']: row['sampling'] + row['update'] for row in rows if row['side'] == 'agentlab'}
    place = [[f"{row['turns']} turns" for row in rows], [row['side'] for row in rows]]
    bars = [go.Bar(name=phase, y=place, x=[row[phase]/ours[row['turns']] for row in rows], marker_color=colour,
        orientation='h') for phase, colour in (('update', '#0072B2'), ('sampling', '#E69F00'))]
    bars[1].text = [f" {row['step']:.2f} s" for row in rows]
    bars[1].textposition, bars[1].cliponaxis = 'outside', False
    drawn = go.Figure(bars)
    drawn.update_layout(barmode='stack', template=LOOK, width=860, height=500,
        margin=dict(l=10, r=60, t=30, b=40), legend=dict(orientation='h', y=1.1, traceorder='normal'),
        xaxis_title="CPU time of a step, agentlab's = 1 (its seconds at the end of the bar)")
    return drawn
