"""What the claims about planners and executors share: a policy that has seen some thousand games, a run that ends when
its turns are used up, and success on held-out tasks.

The start of an arm is made once, from as many demonstrated games in every arm, and kept in the cache of agentlab.
"""
from agentlab.env import KeyDoor
from agentlab.env.hopsearch import missing
from agentlab.policy import Policy, tiny_policy
from agentlab.policy.tiny import _keep, cache_folder, tiny_name
from agentlab.rollout import play, warm_seats
from agentlab.train import evaluate

GAMES = dict(steps=800, episodes=32, noise=.3, lr=6e-3)

def start(env, max_context=256, players=None, **changes):
    "A policy that has seen GAMES of a demonstrator in this world, read as they are played."
    games = GAMES | changes
    facts = games | dict(max_context=max_context, empty=getattr(env, 'empty', None))
    folder = cache_folder()/f'seats-{tiny_name(env, **facts)}'
    if not (folder/'config.json').exists():
        policy = tiny_policy(env, warm=False, max_context=max_context, progress=False)
        _keep(warm_seats(policy, env, players=players, **games), folder)
    return Policy.load(folder, name=folder.name)

def success(policy, env, seed, tasks=200, rollout=play, **how):
    "Share of held-out tasks that are solved, sampled as in training."
    return evaluate(policy, env, tasks, greedy=False, rollout=rollout, seed=seed,
        **dict(max_tokens=8, max_turns=40) | how)

def search(env, said):
    "What the executor of a `Flow` over HopSearch carries out: searches, and nothing else."
    return said if said.startswith('search ') else None

def walked(env)->str:
    "How far its generator gets by what was found."
    game = env.env.game
    return missing(game.start, game.path, {fact: game.world.links[fact] for fact in game.found})[1]

class House(KeyDoor):
    "KeyDoor that says how far one is: the key is half of it."
    name = 'house'
    def facts(self): return super().facts() | dict(milestone=.5*self.has_key)
