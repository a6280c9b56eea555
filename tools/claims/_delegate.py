"""What the claims about planners and executors share: a policy that has seen a few thousand games, one update after the
other, and success on held-out tasks.

The start of an arm is made once, from as many demonstrated games in every arm, and kept in the cache of agentlab.
"""
import tempfile

from agentlab.policy import Policy, tiny_policy
from agentlab.policy.tiny import _keep, cache_folder, tiny_name
from agentlab.rollout import Delegate, play, warm_seats
from agentlab.train import evaluate, train

GAMES = dict(steps=800, episodes=32, noise=.3, lr=6e-3)


def start(env, max_context=256, **changes):
    "A policy that has seen GAMES of a demonstrator in this world."
    games = GAMES | changes
    if not isinstance(env, Delegate): return tiny_policy(env, max_context=max_context, progress=False, **games)
    folder = cache_folder()/f'seats-{tiny_name(env, max_context=max_context, empty=env.empty, **games)}'
    if not (folder/'config.json').exists():
        _keep(warm_seats(tiny_policy(env, warm=False, max_context=max_context, progress=False), env, **games), folder)
    return Policy.load(folder, name=folder.name)


def learned(policy, env, recipe):
    "Train it; the rows of the run."
    with tempfile.TemporaryDirectory() as folder:
        return list(train(policy, env, recipe, folder, progress=False).rows())


def success(policy, env, tasks=200, rollout=play, **budget):
    "Share of held-out tasks that are solved, sampled as in training."
    return evaluate(policy, env, tasks, greedy=False, rollout=rollout, **dict(max_tokens=8, max_turns=40) | budget)
