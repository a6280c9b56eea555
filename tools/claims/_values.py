"What the claims about stored games share: a weak policy, 4,000 of its games, and what is learned from them alone."
import copy
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from _attempts import begun, one_thread, share_won, tested
from _runs import learned

GAMES, VALUES = 4000, dict(epochs=40, piece=1024, lr=2e-3, gamma=.95, tau=.5)
RUN = dict(steps=40, groups=8, group_size=1, lr=1e-3, test_tasks=0)
BETA, MOST = .2, 20.
HOUSES = dict(size=3, closed=0, horizon=8)

@dataclass(frozen=True, eq=False)  # a key of caches
class Data:
    "A world, its weak policy, and the limits of a game."
    name: str
    made: Callable  # () -> the world
    start: dict     # of `tiny_policy`
    limits: dict    # of `play`
    tasks: int      # held-out tasks, each played five times

    def facts(self) -> dict:
        return dict(start=self.start, limits=self.limits, games=GAMES, values=VALUES, run=RUN)

def houses():
    from agentlab.env import KeyDoor
    return KeyDoor(**HOUSES)

def hops():
    from agentlab.env import HopSearch
    return HopSearch(2, distractors=10)

KEYDOOR = Data('keydoor', houses, dict(steps=200, pool=2048, noise=.25), dict(max_turns=8, max_tokens=8), 80)
HOPSEARCH = Data('hopsearch', hops, dict(steps=200, pool=2048, noise=.5), dict(max_turns=6, max_tokens=16), 80)

def won(b): return b.spread(b.of_turn('success').double())
def weighed(b): return b.spread(b.turns.advantage)

@cache
def stored(data: Data, seed: int):
    "(the weak policy, its games): made once for all arms of a seed."
    from agentlab.episodes import derive
    from agentlab.rollout import play
    made = derive(data.start, data.limits, GAMES)
    env, path = data.made(), Path(tempfile.gettempdir())/f'agentlab_{data.name}_{seed}_{made}.pkl'
    if path.exists(): return pickle.loads(path.read_bytes())
    policy, games = begun(env, seed, **data.start), []
    for first in range(0, GAMES, 500):
        numbers = list(range(first, first + 500))
        games += play(policy, env, numbers, groups=numbers, seed=seed, **data.limits)
    for one in games: one.game = one.group
    path.write_bytes(pickle.dumps((policy, games)))
    return policy, games

@cache
def values(data: Data, seed: int, chunk: int):
    "The fitted heads, the same for every N."
    from agentlab.replay import BestOfN, Stored
    policy, games = stored(data, seed)
    made = BestOfN(policy, seed, stored=Stored(games), chunk=chunk, **VALUES)
    made.fit()
    return made

def explained(policy, heads, b) -> dict:
    "How much of the discounted returns of games the Q of what was said explains, and the V of the state."
    from agentlab.groups import recur
    from agentlab.replay.utterance_critic import utterance_features
    returns = recur(b.turns.reward, VALUES['gamma'], b.turns.episode)
    features = utterance_features(policy, b)
    share = lambda value: 1 - (returns - value.detach().mean(1)).var().item()/returns.var().item()
    return dict(q_explains=round(share(heads.q(*features)), 4), v_explains=round(share(heads.v(features[0])), 4))

def best_of(policy, seed: int, one=None, n: int = 16):
    "The `replay` of a run with values that are fitted already."
    one = copy.copy(one)
    one.n = n
    return one

def imitated(data: Data, seed: int, arm: str):
    "The recipe of an arm that imitates what was said: in the games that were won, or weighed by advantage (AWR)."
    from agentlab.groups import recur
    from agentlab.replay import Stored
    from agentlab.replay.splice import imitation
    from agentlab.replay.utterance_critic import utterance_features
    from agentlab.train import recipes
    policy, games = stored(data, seed)
    how = dict(objective=imitation, loss_per=8., minibatches=1, seed=seed) | RUN | data.limits
    if arm == 'won':
        return recipes.digi_q(credit=won, replay=None, rollout=Stored([e for e in games if e.success]), **how)
    b = Stored(games).batch()
    v = values(data, seed, 99).heads.v(utterance_features(policy, b)[0]).detach().mean(1)
    found = iter(((recur(b.turns.reward, VALUES['gamma'], b.turns.episode) - v)/BETA).exp().clamp(max=MOST).tolist())
    games = copy.deepcopy(games)
    for turn in (turn for e in games for turn in e.turns): turn.columns['advantage'] = next(found)
    return recipes.digi_q(credit=weighed, replay=None, rollout=Stored(games), **how)

def row_of(arm: str, seed: int, data: Data, ns: dict) -> dict:
    "An arm of `ns`, (N, chunk) each; or one that imitates what was said."
    from agentlab.replay import Stored
    from agentlab.train import recipes
    with one_thread():
        env, (policy, games), known = data.made(), stored(data, seed), {}
        if arm in ns:
            n, chunk = ns[arm]
            known = explained(policy, values(data, seed, chunk).heads, Stored(games).batch())
            recipe = recipes.digi_q(rollout=Stored(games), seed=seed, **RUN, **data.limits,
                replay=partial(best_of, one=values(data, seed, chunk), n=n))
        else: recipe = imitated(data, seed, arm)
        after = copy.deepcopy(policy)
        rows = learned(after, env, recipe)
        test = partial(tested, env=env, tasks=data.tasks, seed=seed, samples=5, **data.limits)
        return dict(success=share_won(test(after)), before=share_won(test(policy)),
            stored=round(sum(e.success for e in games)/len(games), 5),
            skipped=sum(one['skipped'] is not None for one in rows)) | known
