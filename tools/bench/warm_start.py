"""The warm start of the tiny policy: agentlab's loop, and the same updates in TRL's SFTTrainer.

The page that explains it and shows what was found: nbs/bench/01_warm_start.ipynb.
"""
from __future__ import annotations
import math, tempfile, time
from statistics import median
from unittest import mock

import torch

from agentlab.env import KeyDoor
from agentlab.episodes import Batch, derive
from agentlab.policy import demonstrate, tiny, tiny_policy
from bench.training_step import quiet

PEAK = 8e-3  # highest learning rate

def by_loop(updates: int, episodes: int) -> tuple:
    "(policy, CPU seconds of every update but the first, batches) of agentlab's warm start."
    policy, batches, clock, learn = tiny_policy(KeyDoor(), warm=False), [], [], tiny.imitate
    def keep(policy, batch):
        batches.append(batch)
        return learn(policy, batch)
    with mock.patch.object(tiny, 'imitate', keep):
        tiny.warm_start(policy, KeyDoor(split='demo'), steps=updates, episodes=episodes, pool=updates*episodes, lr=PEAK,
            on_step=lambda *_: clock.append(time.process_time()))
    return policy, [b - a for a, b in zip(clock, clock[1:])], batches

def as_dataset(batches: list[Batch]):
    "Batches, one after the other, as a tokenised dataset for SFTTrainer."
    from datasets import Dataset
    rows = []
    for b in batches:
        lengths = torch.bincount(b.tokens.row).tolist()
        label = torch.where(b.tokens.turn >= 0, b.tokens.id, -100)
        rows += [dict(input_ids=i.tolist(), labels=l.tolist())
            for i, l in zip(b.tokens.id.split(lengths), label.split(lengths))]
    return Dataset.from_list(rows)

def learning(model, updates: int):
    "The optimiser and the learning rates of `warm_start`, as SFTTrainer takes them."
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=.01, betas=(.9, .95))
    rate = lambda step: min(1, (step + 1)/50)*(.55 + .45*math.cos(math.pi*step/updates))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

def by_trl(updates: int, episodes: int, batches: list[Batch]) -> tuple:
    "(policy, CPU seconds of every update but the first) of TRL's SFTTrainer."
    from transformers import PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer
    clock, policy = [], tiny_policy(KeyDoor(), warm=False)
    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kw): clock.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder, quiet():
        config = SFTConfig(output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to='none',
            save_strategy='no', disable_tqdm=True,
            logging_strategy='no', max_length=None, max_steps=updates,
            per_device_train_batch_size=episodes, max_grad_norm=1., train_sampling_strategy='sequential')
        trainer = SFTTrainer(model=policy.model, args=config, train_dataset=as_dataset(batches),
            processing_class=policy.tokenizer, callbacks=[Clock()],
            optimizers=learning(policy.model, updates))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return policy, [b - a for a, b in zip(clock, clock[1:])]

def likelihood(policy) -> float:
    "Mean -log pi of the action tokens of 128 fresh demonstrations."
    unseen = Batch.from_episodes(demonstrate(KeyDoor(split='test'), policy.chat,
        [derive('unseen', i) for i in range(128)]))
    return -float(policy.logprobs(unseen)[0].mean())

def compare(
    updates: int = 60,
    episodes: int = 32, # demonstrations of an update
    repeats: int = 3,
) -> dict:              # CPU seconds of an update, and what was learned
    "agentlab's warm start and TRL's SFTTrainer on the same demonstrations."
    seconds, ratios = dict(loop=[], SFTTrainer=[]), []
    for _ in range(repeats):
        ours, laps, batches = by_loop(updates, episodes)
        theirs, their_laps = by_trl(updates, episodes, batches)
        seconds['loop'].append(median(laps)), seconds['SFTTrainer'].append(median(their_laps))
        ratios.append(seconds['SFTTrainer'][-1]/seconds['loop'][-1])
    learned = dict(untrained=likelihood(tiny_policy(KeyDoor(), warm=False)), loop=likelihood(ours),
        SFTTrainer=likelihood(theirs))
    return dict(updates=updates, episodes=episodes, seconds=seconds, ratios=ratios, learned=learned)
