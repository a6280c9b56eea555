"""Cells of `make gpu` in which something learns: SmolLM2 in bf16 and in NF4 by GiGPO, and the same updates made by
TRL's trainer; five seeds each.

Every cell primes its own policy, tests it, trains it and tests it again; a row holds both tests, the curve, and tokens
a second of sampling and learning.
"""
import tempfile
import time
from pathlib import Path

import torch

from agentlab.env import KeyDoor, load_env
from agentlab.policy import pretrained, prime, tiny_policy
from agentlab.policy.qlora import qlora_policy
from agentlab.policy.reader import find_weights
from agentlab.train import evaluate, recipes, train
from agentlab.train.trainer import for_pretrained, with_lora

SEEDS = range(5)
WORLD, STEPS, UPDATES, TASKS, RANK = 'guess', 20, 30, 200, 16
WAYS = 'bf16', 'nf4', 'trl'

def names(tiny: bool) -> list[str]:
    return [f"{'tiny' if tiny else 'smollm2'} gigpo {way} seed {seed}" for way in WAYS
        for seed in (range(1) if tiny else SEEDS)]

def begun(way: str, seed: int, tiny: bool, device: str):
    "(policy, environment): primed, or the tiny policy, which has watched somebody."
    if tiny: return with_lora(tiny_policy(KeyDoor(), progress=False), r=4), KeyDoor()
    world = load_env(WORLD)
    if way == 'nf4':
        policy = qlora_policy(find_weights('smollm2', 'package')[0], rank=RANK, device=device, checkpointing=False,
            name='smollm2', seed=seed)
    else: policy = pretrained('smollm2', lora=RANK, source='package', device=device, dtype=torch.bfloat16, seed=seed)
    return prime(policy, world, steps=STEPS, seed=seed, progress=False), world

def by_trl(policy, world, recipe, folder: Path):
    from agentlab.interop.trl import AgentGRPOTrainer, trl_config
    from agentlab.train import Run
    args = trl_config(recipe, folder, disable_tqdm=True, use_cpu=policy.device.type == 'cpu', bf16=False)
    AgentGRPOTrainer(policy, world, recipe, args).train()
    return Run(folder/'agentlab')

def learning(name: str, device: str) -> dict:
    "One cell."
    model, _, way, _, seed = name.split()
    tiny, began = model == 'tiny', time.monotonic()
    policy, world = begun(way, int(seed), tiny, device)
    primed = time.monotonic() - began
    recipe = recipes.gigpo(steps=2 if tiny else UPDATES, seed=int(seed), test_tasks=0, checkpoint_every=1000)
    recipe = for_pretrained(recipe, groups=2, group_size=2, max_turns=4) if tiny else for_pretrained(recipe, groups=8)
    budget = dict(tasks=8 if tiny else TASKS, seed=int(seed), temperature=recipe.temperature,
        max_turns=recipe.max_turns, max_tokens=recipe.max_tokens)
    tests = lambda: dict(greedy=evaluate(policy, world, greedy=True, **budget),
        sampled=evaluate(policy, world, greedy=False, **budget))
    before, start = tests(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        if way == 'trl': run = by_trl(policy, world, recipe, Path(place))
        else: run = train(policy, world, recipe, Path(place)/'run', progress=False)
        seconds, rows = time.monotonic() - start, run.rows()
    tokens = sum(row['tokens'] for row in rows)
    # TRL's rows have none
    gap = max((row['sampler_gap'] for row in rows if row['sampler_gap'] is not None), default=None)
    return dict(before=before, after=tests(), success=[row['success'] for row in rows], sampler_gap=gap,
        tokens_per_second=tokens/seconds,
        seconds=dict(priming=primed, training=seconds, updates=[row['seconds'] for row in rows]))
