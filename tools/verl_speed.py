"""Our estimators beside verl's: the same numbers, and the time of both. `make test-verl` runs it in an environment of
its own.

Writes assets/bench/verl.json.xz. Ends with 1, naming them, if estimators disagree or take more than three times verl's
CPU time.
`--episodes 64 --out DIR` is a quick look; what it writes means nothing.
"""
import os
os.environ['OMP_NUM_THREADS'] = '1'  # read when torch is imported
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from importlib.metadata import version
from pathlib import Path

import torch

from agentlab.bench import circumstances, keep
from agentlab.interop.verl import padded, ragged_batch
from bench.credit_speed import big_batch
from bench.verl import apart, counterparts, problems, race

ROOT = Path(__file__).resolve().parent.parent
REFUSES_ONE = 'grpo_passk',  # verl raises for a group of one

def ragged_gap(name: str, pair, seeds: int = 10) -> float:
    "Largest difference on small batches in float64: 12 episodes in fours, and 13, of which one is alone."
    batches = [ragged_batch(episodes, seed=seed) for episodes in ((12,) if name in REFUSES_ONE else (12, 13))
        for seed in range(seeds)]
    return max(apart(*pair, batch, padded(batch, torch.float64)) for batch in batches)

def when_equal(pair):
    """Largest advantage that verl gives to eight episodes that earn .7 each; None where ours is not 0 either,
    because turns or tokens are compared."""
    batch = ragged_batch(8, 8)
    last = torch.cat([batch.turns.episode[1:] != batch.turns.episode[:-1], torch.ones(1, dtype=torch.bool)])
    alike = torch.full((8,), .7, dtype=torch.float64)
    batch = batch.with_episodes(outcome=alike, form=alike).with_turns(reward=.7*last.double())
    ours = pair[0](batch)
    if isinstance(ours, tuple) or ours.any(): return None
    held = padded(batch)
    return float(pair[1](held)[0][held['response_mask'].bool()].abs().max())

def timed_batch(episodes: int):
    "16 turns of 128 tokens for each episode; outcomes are the sums of rewards, a second reward is the success."
    batch = big_batch(episodes)
    outcome = torch.zeros(episodes, dtype=torch.float64).index_add_(0, batch.turns.episode, batch.turns.reward)
    batch = batch.with_episodes(outcome=outcome, form=batch.episodes.success.double())
    batch.actions, batch.action_turn  # found once per batch, for everybody
    return batch

def few(pairs: dict, repeats: int) -> dict:
    "The same race with 8 episodes, where what a call costs anyway shows."
    batch = timed_batch(8)
    held = padded(batch)
    return {name: race(*pair, batch, held, repeats) for name, pair in pairs.items()}

def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument('--episodes', type=int, default=1024)
    parser.add_argument('--repeats', type=int, default=9, help='rounds; in each, both sides run once')
    parser.add_argument('--out', type=Path, default=ROOT/'assets'/'bench', help='folder to write to')
    asked = parser.parse_args()
    torch.set_num_threads(1)
    from omegaconf import DictConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as registry
    pairs = counterparts(registry, lambda **words: DictConfig(words))
    batch, rows = timed_batch(asked.episodes), {}
    held = padded(batch)
    for name, pair in pairs.items():
        gap, large = ragged_gap(name, pair), apart(*pair, batch, held)
        rows[name] = race(*pair, batch, held, asked.repeats) | dict(gap=gap, gap_float32=large, equal=when_equal(pair))
        print(f"{name:32}{1000*rows[name]['ours']:8.1f} ms, verl{1000*rows[name]['verl']:8.1f} ms, ratio "
            f"{rows[name]['ratio']:5.2f}, apart {gap:.0e} and {large:.0e}", flush=True)
    record = circumstances('make test-verl')
    record['versions'] |= {name: version(name) for name in ('verl', 'tensordict', 'numpy')}
    record |= dict(episodes=asked.episodes, turns=16, tokens=128,
        repeats=asked.repeats, estimators=rows, small=few(pairs, asked.repeats),
        missing=sorted(registry.keys() - {name.split(',')[0] for name in pairs}))
    found = problems(record)
    print(keep(record, asked.out, 'verl', packed=True), *found, sep='\n')
    return 1 if found else 0

if __name__ == '__main__': sys.exit(main())
