"""Record what two roles of one tiny policy teach each other with bugs in small programs: self-play with bugs, and
repairs of random bugs, five seeds.

`make results` plays everything (after the other parts) and writes assets/results/bugs.json.xz. Each run is kept in
runs/bugs/bug_repair-RECIPE-SEED:
a second call reads what is finished and goes on where the first was killed.

The policy begins by imitating noisy demonstrations of both roles. Then either an injector makes the bugs (`ssr`), or
they are drawn at random (`random`);
both ways repair 128 times in an update, as long as all bugs of the injector are consistent. Tested on held-out programs
with random bugs.
"""
import sys
from functools import partial
from pathlib import Path

from grid import arguments, cpu_since, found_in, play
from results import headed, intervals

SETTINGS = dict(steps=40, groups=16, tries=8, lr=7e-4, share=.1,
    warm=dict(steps=120, episodes=24, pool=512, noise=.5, lr=6e-3))
TESTS = dict(repaired=('BugRepair', False, 512), repaired_greedy=('BugRepair', True, 512),
    injected=('InjectBug', False, 256))

def start(seed: int) -> tuple:
    "The environment, and a policy that has watched both roles, with slips."
    import torch
    from agentlab.env.bug_repair import BugRepair, BugWork, InjectBug, vocabulary
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model, warm_start
    torch.set_num_threads(1)
    env, tokenizer = BugRepair(), word_tokenizer(vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 256, hidden=48, seed=seed), tokenizer, name=f'bugs-{seed}')
    return env, warm_start(policy, BugWork(env, InjectBug(tester=env.tester), split='demo'), seed=seed,
        **SETTINGS['warm'])

def measured(policy, env) -> dict:
    from agentlab.env import InjectBug
    from agentlab.train import evaluate
    worlds = dict(BugRepair=env, InjectBug=InjectBug(tester=env.tester))
    return {name: evaluate(policy, worlds[world], tasks, greedy, max_tokens=10)
        for name, (world, greedy, tasks) in TESTS.items()}

def recipe_of(name: str, seed: int):
    from agentlab.selfplay import BugPool, bug_reward, trr_pp
    from agentlab.selfplay.bugs import self_play
    from agentlab.train import recipes
    s = SETTINGS
    same = dict(steps=s['steps'], groups=s['groups'], lr=s['lr'], seed=seed, max_tokens=10, test_tasks=0, budget=8192)
    if name == 'random': return recipes.grpo(name=name, group_size=s['tries'], **same)
    return recipes.grpo(name=name, group_size=1, credit=trr_pp, rollout=self_play, rollout_args=dict(tries=s['tries']),
        reward=bug_reward, memory=partial(BugPool, groups=s['groups'], share=s['share']), **same)

def one_run(env: str, name: str, seed: int, folder: Path) -> dict:
    "Train (or finish) one run, and test it before and after."
    from agentlab.train import train
    place = folder/f'{env}-{name}-{seed}'
    def make(began):
        world, policy = start(seed)
        before = measured(policy, world)
        rows = train(policy, world, recipe_of(name, seed), place, resume=True, progress=False).rows()
        after = measured(policy, world)
        curves = {key: [row[key] for row in rows] for key in ('valid', 'solved', 'solved_again')
            if rows[0].get(key, rows[-1].get(key)) is not None}
        return dict(before=before, after=after, curves=curves, test_sampled=after['repaired']) | cpu_since(began)
    return found_in(place, dict(env=env, recipe=name, seed=seed), make)

def summary(results: list[dict]) -> dict:
    parts = {when: intervals([one[when] for one in results], most=1) for when in ('before', 'after')}
    return parts | dict(curves=[one['curves'] for one in results],
        most_cpu_seconds=max(one['cpu_seconds'] for one in results))

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, ['bug_repair'], ['ssr', 'random'], 'bugs')
    found = play(asked, [('bug_repair', name, seed, asked.runs) for name in asked.recipes for seed in asked.seeds],
        one_run)
    cells = {name: summary([found['bug_repair', name, seed] for seed in asked.seeds]) for name in asked.recipes}
    keep(headed(seeds=asked.seeds, settings=SETTINGS, cells=cells), asked.out, 'bugs', packed=True)
    for name, cell in cells.items():
        print(name, {when: {what: f"{x['mean']:.3f} [{x['low'] or 0:.3f}, {x['high'] or 0:.3f}]"
            for what, x in cell[when].items()} for when in ('before', 'after')},
            f"{cell['most_cpu_seconds']} CPU-s at most")
    return 0

if __name__ == '__main__': sys.exit(main())
