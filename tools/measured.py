"""What a training really needs, beside what `agentlab.train.fit` predicts: the pages and records of that prediction use
it."""
import gc
import random
from collections.abc import Callable

import torch
from torch import Tensor

from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy.core import checkpoint_layers
from agentlab.train.fit import Settings, bytes_of

def measured_peak(call: Callable,  # what is measured
    device: str = 'cpu',
)->int:  # bytes of tensors above what was there before, in the worst moment
    "The peak of allocated memory while something runs."
    gc.collect()  # what is given back meanwhile must not be somebody else's
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found: call()
    now = peak = 0
    for event in sorted((e for e in found.profiler.kineto_results.events() if e.name() == '[memory]'),
                        key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak

def practice(s: Settings, vocabulary: int, parts: int = 2, seed: int = 0)->Batch:
    "Episodes of random tokens that fill so many micro-batches."
    rng, own = random.Random(seed), min(max(round(s.said*s.length), 1), s.length - 1)
    ids = lambda count: [rng.randrange(vocabulary) for _ in range(count)]
    turns = [Turn(0, context_ids=ids(s.length - own), ids=ids(own), logps=[-1.]*own, entropies=[1.]*own)
        for _ in range(parts*s.micro_batch[0])]
    batch = Batch.from_episodes([Episode([turn], group=i) for i, turn in enumerate(turns)])
    return batch.with_action(old_logp=batch.action('sampler_logp'))

def real_training(policy, s: Settings):
    "A Training of these settings, with a policy that may have an adapter already."
    from agentlab.train.recipes import grpo
    from agentlab.train.trainer import Training
    fresh = s.lora and not hasattr(policy.model, 'peft_config')
    recipe = grpo(budget=s.budget, lora=dict(r=s.lora, lora_alpha=2*s.lora) if fresh else {}, minibatches=1,
        precision=s.precision)
    training = Training(policy, None, recipe)
    model = training.policy.model
    if s.checkpointing:
        checkpoint_layers(model)
        for layer in model.modules(): layer.training = getattr(layer, 'gradient_checkpointing', False)
    return training

def measured_update(training, s: Settings)->tuple[int, int]:
    """Bytes of the gradients' pass of the trainer: of what the model is, and the peak with it. The trainer's own
    `backward` does the work, on random episodes."""
    from agentlab.train.trainer import backward
    model, device = training.policy.model, training.policy.device
    batch = practice(s, model.get_input_embeddings().weight.shape[0]).to(device)
    advantage = torch.ones(len(batch.actions), device=device)
    there = bytes_of(tensors_of(model))
    return there, there + measured_peak(lambda: backward(training, batch, advantage, torch.arange(len(batch.rows))),
        device)

def tensors_of(model)->list[Tensor]:
    "Every tensor that a model holds, those of quantised weights included."
    found = [*model.parameters(), *model.buffers()]
    states = [p.quant_state for p in found if getattr(p, 'quant_state', None) is not None]
    return found + [x for q in states
        for x in (q.absmax, q.code, q.offset, *((q.state2.absmax, q.state2.code) if q.nested else ()))
        if x is not None]
