"""Record the memory that `agentlab fit` predicts for SmolLM2's update beside its measured peak on a CPU: flat and on
the tree of prefixes.

    python tools/fit_real.py    writes assets/bench/fit_smollm2.json (make lm first)

The batch is real: eight games of PythonTool by the model as it came. The trainer's own `backward` does the work; the
profiler counts every tensor.
The prediction knows no tree: there it is asked for one row of as many tokens as the tree computes in a part.
"""
import sys

from notebooks import ROOT

GROUPS, SIZE = 1, 8
WAYS = {f'{way}, attention {kind}': (way == 'tree', kind == 'exact') for way in ('flat', 'tree')
    for kind in ('exact', 'as it comes')}

def played(policy):
    "Games of three turns."
    from agentlab.env import load_env
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    batch = Batch.from_episodes(play(policy, load_env('python_tool'), list(range(GROUPS)), SIZE, max_turns=3,
        max_tokens=24))
    return batch.with_action(old_logp=batch.action('sampler_logp'))

def widest(policy, batch, budget: int) -> tuple[int, int, int]:
    "Rows, columns and action tokens of the part that holds most; on the tree one row of all that it computes."
    from agentlab.policy.tree import tally
    found = []
    for part, which in policy.parts(batch, None, budget):
        count = len(part.rows) if not hasattr(part, 'plan') else 1
        found.append((count, tally(part)['computed']//count, len(which)))
    return max(found, key=lambda part: part[0]*part[1])

def measured(policy, batch, tree: bool, exact: bool, budget: int = 4096) -> dict:
    "Bytes: the model, the peak of the update's gradients above it, and what was predicted for both."
    import torch
    from agentlab.train.fit import Settings, bytes_of, predict, read_config
    from agentlab.train.trainer import backward
    from measured import measured_peak, real_training, tensors_of
    how = dict(lora=16, dtype=policy.model.dtype, precision='no', checkpointing=False, fused=False)
    training = real_training(policy, Settings(**how, budget=budget))
    policy.tree, policy.exact = tree, None if exact else False  # after a training has taken the tree of its recipe
    rows, width, said = widest(policy, batch, budget)
    advantage = torch.ones(len(batch.actions))
    for p in training.weights.values(): p.grad = torch.zeros_like(p)  # as every micro-batch but the first finds them
    kept = bytes_of(p.grad for p in training.weights.values())
    peak = measured_peak(lambda: backward(training, batch, advantage, torch.arange(len(batch.rows))))
    there = bytes_of(tensors_of(policy.model))
    memory = predict(read_config('smollm2'), **how, budget=rows*width, length=width, said=said/(rows*width), rows=rows)
    return dict(rows=rows, width=width, action_tokens=said, model=there,
        predicted_model=memory.weights + memory.adapter,
        peak=there + kept + peak, predicted=memory.weights + memory.adapter + memory.phases['learning'])

def main() -> int:
    from agentlab.bench import circumstances, keep
    from agentlab.policy import pretrained
    from agentlab.policy.reader import installed
    if not installed(source='package'):
        print('SmolLM2 is not installed: make lm', file=sys.stderr)
        return 1
    policy = pretrained('smollm2', source='package', lora=16)
    batch, found = played(policy), {}
    for name, (tree, exact) in WAYS.items():
        found[name] = row = measured(policy, batch, tree, exact)
        print(f"{name:28} {row['peak']/1e6:7.0f} MB measured, {row['predicted']/1e6:7.0f} predicted: "
            f"{row['predicted']/row['peak']:.2f}", flush=True)
    facts = circumstances('python tools/fit_real.py') | dict(episodes=len(batch), tokens=len(batch.tokens),
        dtype=str(policy.model.dtype), ways=found)
    keep(dict(schema_version=1) | facts, ROOT/'assets'/'bench', 'fit_smollm2')
    return 0

if __name__ == '__main__': sys.exit(main())
