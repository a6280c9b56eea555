"""A tree of 1,000 nodes beside as many games that are simply played, and a critic's update beside the policy's.

The page that shows what was found: nbs/rollout/12_search.ipynb.
"""
from __future__ import annotations
import copy, time
from statistics import median

import torch

from agentlab.env import KeyDoor
from agentlab.episodes import Batch, derive
from agentlab.policy import imitate, tiny_policy
from agentlab.replay import TwinHeads, critic_step, utterance_features
from agentlab.rollout import Trees, edges, evenly, legal, play

NODES = 1000

def seconds(work) -> tuple[float, object]:
    "CPU seconds of a call, and what it gave."
    began = time.process_time()
    found = work()
    return time.process_time() - began, found

def grown(policy, count: int, nodes: int) -> Trees:
    """So many trees side by side, until they have as many nodes in all. What is legal is proposed: of what a policy
    says itself a house may not have a thousand different places."""
    trees = Trees(policy, KeyDoor(), [derive('bench', i) for i in range(count)], propose=legal, prior=evenly)
    size = lambda: sum(row['visits'] > 0 for root in trees.roots for row in edges(root))
    while size() < nodes: trees.grow(max(nodes//(20*count), 1))
    return trees

def tree_costs(policy, nodes: int) -> dict:
    """CPU milliseconds of an environment step in one tree, in 32 side by side, and in games that are played: 32 at a
    time, until they have as many steps."""
    found = {}
    for name, count in (('one tree', 1), ('32 trees', 32)):
        spent, trees = seconds(lambda: grown(policy, count, nodes))
        found[name] = dict(seconds=spent, steps=sum(one['steps'] for one in trees.spent))
    def games():
        steps, start = 0, 0
        while steps < found['32 trees']['steps']:
            played = play(policy, KeyDoor(), [derive('bench', start + i) for i in range(32)], seed=start)
            steps, start = steps + sum(len(e.turns) for e in played), start + 32
        return steps
    spent, steps = seconds(games)
    found['32 games'] = dict(seconds=spent, steps=steps)
    return {name: round(1000*one['seconds']/one['steps'], 4) for name, one in found.items()} | dict(
        tree_seconds=round(found['one tree']['seconds'], 3))

def update_costs(policy, episodes: int) -> dict:
    "CPU milliseconds of an update on the same games: of the policy, of a critic on its features, and of reading them."
    batch = Batch.from_episodes(play(policy, KeyDoor(), range(episodes)))
    reading, (state, said) = seconds(lambda: utterance_features(policy, batch))
    heads, learner = TwinHeads(state.shape[1], said.shape[1], 0), copy.deepcopy(policy)
    slow, optimizers = copy.deepcopy(heads), [torch.optim.AdamW(net.parameters()) for net in (heads, learner.model)]
    critic = seconds(lambda: critic_step(heads, slow, optimizers[0], batch, state, said, said))[0]
    def update():
        imitate(learner, batch)
        optimizers[1].step()
    return {name: round(1000*spent, 3) for name, spent in dict(
        policy=seconds(update)[0], critic=critic, features=reading).items()}

def measure(repeats: int = 5, nodes: int = NODES, episodes: int = 64) -> dict:
    "Medians over the repeats; the first round, in which everything is warmed up, does not count."
    policy, rounds = tiny_policy(KeyDoor(), progress=False), []
    for _ in range(repeats + 1): rounds.append(tree_costs(policy, nodes) | update_costs(policy, episodes))
    return dict(nodes=nodes, episodes=episodes, repeats=repeats,
        milliseconds={name: round(median(one[name] for one in rounds[1:]), 4) for name in rounds[0]})

def as_markdown(record: dict) -> str:
    "What a step costs in a tree and in a game, and an update of a critic beside one of the policy."
    found = record['milliseconds']
    rows = [(f"an environment step in one tree of {record['nodes']:,} nodes", found['one tree'], found['32 games']),
        ('the same in 32 trees side by side', found['32 trees'], found['32 games']),
        ("an update of a critic (twin Q and V)", found['critic'], found['policy']),
        ('reading the features for it, once', found['features'], found['policy'])]
    lines = [f'| {what} | {cost:.2f} | {beside:.2f} | {cost/beside:.2f} |' for what, cost, beside in rows]
    head = '| what | ms | beside: a step in 32 games, an update of the policy | times |'
    return '\n'.join([head, '|---|---|---|---|', *lines])
