"""The same update on the tree of prefixes, and flat.

The page that explains it and shows what was found: nbs/bench/17_tree.ipynb.
"""
from __future__ import annotations
import random, time
from statistics import median

import torch
from torch.autograd.graph import saved_tensors_hooks

from agentlab.env import GuessNumber, KeyDoor
from agentlab.episodes import Batch, Episode, Turn, derive
from agentlab.policy.core import pad_rows
from agentlab.policy.tree import prefixes
from agentlab.train import recipes
from agentlab.train.trainer import Training, minibatches, optimise

GUIDE = ("You are playing a game with numbers. I think of a whole number between two limits, which I tell you "
    "first. In every turn you guess one number. Write exactly the word guess, a space and the number in "
    "digits, and nothing else: no greeting, no explanation, no punctuation. After a wrong guess I answer "
    "whether my number is higher or lower than yours; remember these hints, and never guess a number that "
    "they exclude. The best way is to halve what is left in every turn. You win when you name my number, and "
    "you lose when your five guesses are used up. Example: guess 8")

def game(
    chat,              # agentlab.policy.Chat
    task: int,         # seed of the task
    seed: int,         # of the guesses
    system: str|None,  # system message
    **who              # fields of the episode
) -> Episode:
    "A game that is lost after five guesses."
    env, draw, episode = GuessNumber(), random.Random(seed), Episode(**who)
    step = env.reset(task)
    while not step.done:
        wrong = [x for x in range(env.task['low'], env.task['high'] + 1) if x != env.task['secret']]
        middle = (env.least + env.most)//2
        action = f'guess {middle if middle in wrong and draw.random() < .5 else draw.choice(wrong)}'
        context = chat.next(step.observation, chat.end_id) if episode.turns else chat.first(step.observation, system)
        ids = chat.text_ids(action) + [chat.end_id]
        nothing = [0.]*len(ids)
        episode.turns.append(Turn(len(episode.turns), context_ids=context, ids=ids, logps=nothing, entropies=nothing))
        step = env.step(action)
    episode.outcome = draw.random()  # only so that there is an advantage
    return episode

def games(
    chat,                   # agentlab.policy.Chat
    groups: int, size: int, # tasks; games of each
    system: str|None = GUIDE,
    seed: int = 0,
) -> Batch:
    "Groups of games."
    def one(k, i): return game(chat, derive(seed, 'task', k), derive(seed, k, i), system, group=k, game=k*size + i)
    return Batch.from_episodes([one(k, i) for k in range(groups) for i in range(size)])

def counted(
    batch: Batch,
) -> dict:  # held, distinct in the whole batch, distinct inside its groups: tokens
    "What a batch holds, and how much of that is different."
    ids, _ = pad_rows(batch)
    row, lengths = batch.tokens.row.unique_consecutive(return_counts=True)
    group = batch.episodes.group[batch.rows.episode[row]]
    whole, apart = prefixes(ids, lengths), prefixes(torch.cat([group[:, None], ids], 1), lengths + 1)
    return dict(held=whole.held, distinct=whole.distinct, distinct_in_groups=apart.distinct - len(group.unique()))

SIDES = dict(flat=False, tree=None)

def begun(
    policy,    # agentlab.policy.Policy
    batch: Batch,
    **changes  # fields of the recipe
) -> tuple[Training, Batch]:
    "A training that can make updates on this batch."
    training = Training(policy, GuessNumber(), recipes.grpo(lr=1e-12, minibatches=1, test_tasks=0, **changes))
    policy.tree = False
    logp = policy.logprobs(batch)[0]
    return training, batch.with_action(old_logp=logp, sampler_logp=logp)

def update(
    training: Training, batch: Batch,
    choice: bool|None,  # `policy.tree`
) -> dict:
    "One update, and what it took."
    training.policy.tree = choice
    advantage = training.recipe.credit(batch).float()
    wall, own, sums = time.perf_counter(), time.process_time(), []
    for rows in minibatches(batch, training.recipe.minibatches, 0):
        sums.append(optimise(training, batch, advantage, rows)[0])
    took = dict(seconds=time.perf_counter() - wall, processor=time.process_time() - own)
    return took | dict(computed=sum(s['computed'] for s in sums), held=sum(s['held'] for s in sums))

def compared(
    training: Training, batch: Batch,
    repeats: int,
    sides: dict = SIDES,  # name -> `policy.tree`
) -> dict:
    "Medians of both ways in turn, and the tree in units of flat."
    found = {side: [] for side in sides}
    for turn in range(repeats + 1):
        for side, choice in sides.items():
            row = update(training, batch, choice)
            if turn: found[side].append(row)  # the first one warms up
    record = {side: {name: median(row[name] for row in rows) for name in rows[0]} for side, rows in found.items()}
    ratio = {name: record['tree'][name]/record['flat'][name] for name in ('seconds', 'processor')}
    return record | dict(ratio=ratio) | counted(batch)

def kept_bytes(
    policy, batch: Batch,
    choice: bool|None,   # `policy.tree`
    budget: int = 4096,  # tokens of a micro-batch
) -> dict:               # bytes of the largest micro-batch, and of one of its computed tokens
    "What is kept between forward and backward."
    from agentlab.policy.tree import tally
    policy.tree, weights, found = choice, {p.untyped_storage().data_ptr() for p in policy.model.parameters()}, []
    for part, _ in policy.parts(batch, budget=budget):
        seen = {}
        def pack(x):
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x
        with saved_tensors_hooks(pack, lambda x: x): alive = policy.forward(part)
        size = sum(n for at, n in seen.items() if at not in weights)
        found.append((size, size/tally(part)['computed']))
        del alive
    return dict(zip(('bytes', 'per_token'), max(found)))

def apart(
    policy, batch: Batch,
) -> dict:
    "How far the tree is from whole rows: log-probabilities in nats, the gradient in units of its length."
    found = []
    for choice in (False, True):
        policy.tree = choice
        policy.model.zero_grad()
        logp = torch.zeros(len(batch.actions))
        for part, which in policy.parts(batch):
            here = policy.forward(part)[0]
            (here*(which % 3 - 1).to(here)).sum().backward()
            logp[which] = here.detach().float().cpu()
        grads = [p.grad.flatten().float() for p in policy.model.parameters() if p.grad is not None]
        found.append((logp, torch.cat(grads)))
    policy.model.zero_grad()
    (flat, flat_slope), (tree, tree_slope) = found
    gap, slope = (tree - flat).abs(), (tree_slope - flat_slope).norm()/flat_slope.norm()
    return dict(largest=gap.max().item(), mean=gap.mean().item(), gradient=slope.item())

def measure_reader(
    repeats: int,
    groups: int = 2,     # tasks; eight games of each
    budget: int = 2048,  # tokens of a micro-batch: the model keeps more than a megabyte of each
) -> dict:
    "SmolLM2 with an adapter: games under a guide, and games that share nothing. FileNotFoundError: not installed."
    from agentlab.policy import pretrained
    policy = pretrained('smollm2')
    with torch.no_grad():  # a fresh adapter adds nothing, and half of it has no gradient
        draw = torch.Generator().manual_seed(0)
        for name, p in policy.model.named_parameters():
            if 'lora_B' in name: p.copy_(.02*torch.randn(p.shape, generator=draw))
    facts = dict(model='smollm2', dtype=str(policy.model.dtype).split('.')[-1], groups=groups, size=8)
    facts |= dict(guide=len(policy.chat.text_ids(GUIDE)), weights=policy.provenance)
    training, batch = begun(policy, games(policy.chat, groups, 8), budget=budget)
    guided = compared(training, batch, repeats) | dict(apart=apart(policy, batch.select(range(8))))
    guided |= dict(memory={side: kept_bytes(policy, batch.select(range(8)), choice, budget)
        for side, choice in SIDES.items()})
    training, batch = begun(policy, games(policy.chat, 16, 1, system=None), budget=budget)
    return facts | dict(guided=guided, alone=compared(training, batch, repeats))

def measure_tiny(
    repeats: int,
    updates: int = 56,  # of the run whose first and last games are taken
) -> dict:
    "The tiny policy on KeyDoor as a run played it."
    import tempfile
    from agentlab.policy import tiny_policy
    from agentlab.train import train
    found = dict(model='tiny', updates=updates)
    with tempfile.TemporaryDirectory() as folder:
        policy = tiny_policy(KeyDoor(), progress=False)
        recipe = recipes.gigpo(steps=updates, test_tasks=0, checkpoint_every=updates)
        run = train(policy, KeyDoor(), recipe, folder, progress=False)
        for name, step in dict(early=0, late=updates - 1).items():
            training, batch = begun(policy, run.episodes(step))
            found[name] = compared(training, batch, repeats, dict(flat=False, tree=True))
            found[name] |= dict(apart=apart(policy, batch))
    return found

def as_markdown(
    record: dict,  # as `python tools/bench --only tree` keeps it
) -> str:
    "A table of the updates."
    lines = ['| batch | held | distinct in groups | share | computed flat | computed on the tree | time, tree/flat |']
    lines.append('|---|---|---|---|---|---|---|')
    known = (record['reader'] or {}) | record['tiny']
    for name in ('guided', 'alone', 'early', 'late'):
        if name not in known: continue
        row, distinct = known[name], known[name]['distinct_in_groups']
        cells = [name, f"{row['held']:,}", f'{distinct:,}', f"{distinct/row['held']:.2f}"]
        cells += [f"{row[side]['computed']:,.0f}" for side in SIDES] + [f"{row['ratio']['processor']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return '\n'.join(lines)
