"""The truth for a search over designs: every one of 144 ways to play with a weak policy, measured once.

    python tools/designs.py

A design is a temperature, a number of candidates, the visits of a search before every move, and the turns allowed. All
play the same tasks from the same seeds. Its score is the share of games won minus PRICE for every environment step of a
task, those of the search included; price and grid were chosen on policy seed 100, the table is of policy seed 0.
assets/results/designs.json has the scores in the order of `itertools.product`, the first slot outermost.
"""
import sys
from itertools import product

from notebooks import ROOT

OUT = ROOT/'assets'/'results'
SLOTS = dict(temperature=[.5, 1., 1.5], candidates=[1, 2, 4, 8], visits=[1, 2, 4, 8], turns=[2, 3, 6])
START, TASKS, PRICE = dict(steps=150, pool=2048), 64, .01

def scored(design: dict, seed: int) -> tuple[float, float]:
    "(share of games won, environment steps of a task) of the policy of a seed."
    from agentlab.env import HopSearch
    from agentlab.episodes import derive
    from agentlab.policy import tiny_policy
    from agentlab.rollout import Trees, puct
    env = HopSearch()
    policy = tiny_policy(env, seed=seed, progress=False, **START)
    env.split = 'test'
    trees = Trees(policy, env, [derive(seed, 'design', task) for task in range(TASKS)], seed=seed, max_tokens=12,
        width=design['candidates'], temperature=design['temperature'], max_turns=design['turns'])
    won = [e.success for e in trees.play(design['visits'], choose=puct, gamma=.95)]
    trees.close()
    return sum(won)/TASKS, sum(spent['steps'] for spent in trees.spent)/TASKS

def scores() -> dict:
    "{design: score} of the table; a design is a tuple of a part of every slot."
    from agentlab.bench import kept
    record = kept(OUT, 'designs')
    return {design: won - record['price']*steps for design, won, steps
        in zip(product(*record['slots'].values()), record['won'], record['steps'])}

def main() -> int:
    import torch

    from agentlab.bench import circumstances, keep
    torch.set_num_threads(1)
    found = [scored(dict(zip(SLOTS, design)), 0) for design in product(*SLOTS.values())]
    won, steps = ([round(x, 3) for x in column] for column in zip(*found))
    facts = dict(world='HopSearch', start=START, tasks=TASKS, price=PRICE, slots=SLOTS, won=won, steps=steps)
    keep(circumstances('python tools/designs.py') | facts, OUT, 'designs')
    return 0

if __name__ == '__main__': sys.exit(main())
