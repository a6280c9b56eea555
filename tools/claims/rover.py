"""ROVER: how many different ways to win are left when a part of the games is won. Diversity is compared at equal
success: a run ends when three updates in a row have won so much of their games, or after the last update (`reached`
says which). Of each sum it is the expected number of different right answers among eight won games; sums with fewer
than eight won games of 64 are left out, and their share is recorded."""
import tempfile
from math import comb
from statistics import mean

from _attempts import begun, one_thread, share_won, tested
from claims import Claim

from agentlab.env.protocol import Drawn, TextEnv

START = dict(steps=60, pool=1024, noise=1.)     # the start says any digits
SIZES = dict(steps=120, groups=8, group_size=8, test_tasks=0, max_turns=3, max_tokens=2, lr=1e-3)
# passes over the batch are optimiser steps: four in every arm
ARMS = dict(rover=('rover', {}), grpo=('grpo', dict(minibatches=4)),
    without=('rover', dict(updates_args=dict(share=0))))
SAMPLES, DRAWN, GOALS, SUCCESS = 64, 8, range(8, 18), .4

class Sums(Drawn, TextEnv):
    "Say three digits, one a turn, that add up to a number: a sum has 21 to 75 right answers of 729."
    name, horizon, split = 'sums', 3, 'train'
    def draw(self, generator, split): return dict(goal=generator.choice(GOALS))
    def tasks(self, split, n, seed=0): return [dict(goal=goal) for goal in GOALS][:n]
    def start(self, seed, task=None):
        self.goal, self.said = (task or self.draw(self.random, ''))['goal'], ()
        return f'Sum {self.goal}'
    def turn(self, action):
        if action.strip() not in self.legal(): return 'No', 0., True, dict(invalid=True)
        self.said = *self.said, int(action)
        won = len(self.said) == 3 and sum(self.said) == self.goal
        return 'So far ' + ' '.join(map(str, self.said)), float(won), len(self.said) == 3, dict(success=won)
    def facts(self): return dict(legal=self.legal(), state=(self.goal, *self.said))
    def legal(self): return [str(digit) for digit in range(1, 10)]
    def best(self): return '5'
    def vocabulary(self): return ['Sum', 'So', 'far', 'No', *map(str, range(1, 18))]

def ways(b) -> list[tuple[int, dict]]:
    "For every group: its games, and how often each winning way was taken."
    from collections import Counter
    found = []
    for group in b.episodes.group.unique().tolist():
        those = (b.episodes.group == group).nonzero()[:, 0].tolist()
        won = [tuple(b.turns.action[b.turns.episode == e].tolist()) for e in those if b.episodes.success[e]]
        found.append((len(those), Counter(won)))
    return found

def different(counts: dict) -> float:
    "The expected number of different ones among `DRAWN` that are drawn without putting back."
    total = sum(counts.values())
    return sum(1 - comb(total - n, DRAWN)/comb(total, DRAWN) for n in counts.values())

def until(policy, world, recipe) -> list[dict]:
    "Train in place until three updates in a row have won enough of their games; the rows."
    from agentlab.train import train
    won = []
    with tempfile.TemporaryDirectory() as folder:
        return train(policy, world, recipe, folder, progress=False, on_row=lambda one: won.append(one['success']),
            should_stop=lambda: len(won) > 2 and min(won[-3:]) >= SUCCESS).rows()

def row(arm: str, seed: int) -> dict:
    from agentlab.train import recipes
    world, (name, changes) = Sums(), ARMS[arm]
    with one_thread():
        policy = begun(world, seed, **START)
        rows = until(policy, world, getattr(recipes, name)(**SIZES | dict(seed=seed) | changes))
        b = tested(policy, world, len(GOALS), seed, SAMPLES, max_turns=3, max_tokens=2)
    found = ways(b)
    counted = [counts for _, counts in found if sum(counts.values()) >= DRAWN]
    passed = {f'pass_{k}': round(mean(1 - comb(n - sum(c.values()), k)/comb(n, k) for n, c in found), 5)
        for k in (1, 4, 16)}
    return dict(different=round(mean(map(different, counted)), 4) if counted else 0., counted=len(counted)/len(found),
        distinct=mean(len(c) for _, c in found), success=share_won(b), **passed,
        first=rows[0]['success'], updates=len(rows),
        reached=min(one['success'] for one in rows[-3:]) >= SUCCESS, entropy=rows[-1]['entropy'])

CLAIM = Claim(
    key='rover', says='Fitted to the value of a random player, a policy keeps more of the ways to win than one that is '
    'trained by group-relative advantages.', row=row, arms=tuple(ARMS), control='grpo', measure='different', margin=.2,
    seeds=tuple(range(20)),  # five left it open, and a row is cheap
    budget=f'until {SUCCESS:.0%} of three updates are won, at most {SIZES["steps"]} updates of 64 games',
    world='Sums: three digits that add up to a number from 8 to 17; 64 games each; different right answers among 8',
    settings=dict(start=START, recipe=SIZES, success=SUCCESS, samples=SAMPLES, drawn=DRAWN))
