"What the claims about stored games share: a weak policy, 4,000 of its games, and what is learned from them alone."
import copy
import pickle
import tempfile
from functools import cache, partial
from pathlib import Path

from _attempts import begun, one_thread, share_won, tested
from _runs import learned

WORLD = dict(size=3, closed=0, horizon=8)
START = dict(steps=200, pool=2048, noise=.25)
GAMES, VALUES = 4000, dict(epochs=40, piece=1024, lr=2e-3, gamma=.95, tau=.5)
RUN = dict(steps=40, groups=8, group_size=1, lr=1e-3, max_turns=8, max_tokens=8, test_tasks=0)
BETA, MOST = .2, 20.


def won(b): return b.spread(b.of_turn('success').double())
def weighed(b): return b.spread(b.turns.advantage)


@cache
def stored(seed: int):
    "(the weak policy, its games): made once for all arms of a seed."
    from agentlab.env import KeyDoor
    from agentlab.rollout import play
    env, path = KeyDoor(**WORLD), Path(tempfile.gettempdir())/f'agentlab_stored_{seed}_{hash_of()}.pkl'
    if path.exists(): return pickle.loads(path.read_bytes())
    policy, games = begun(env, seed, **START), []
    for first in range(0, GAMES, 500):
        numbers = list(range(first, first + 500))
        games += play(policy, env, numbers, groups=numbers, seed=seed, max_turns=8, max_tokens=8)
    for one in games: one.game = one.group
    path.write_bytes(pickle.dumps((policy, games)))
    return policy, games


def hash_of():
    from agentlab.episodes import derive
    return derive(WORLD, START, GAMES)


@cache
def values(seed: int, chunk: int):
    "The fitted heads, the same for every N."
    from agentlab.replay.stored_values import BestOfN, Stored
    policy, games = stored(seed)
    made = BestOfN(policy, seed, stored=Stored(games), chunk=chunk, **VALUES)
    made.fit()
    return made


def best_of(policy, seed: int, one=None, n: int = 16):
    "The `replay` of a run with values that are fitted already."
    one = copy.copy(one)
    one.n = n
    return one


def imitated(seed: int, arm: str):
    "(recipe) of an arm that imitates what was said, by another weight."
    from agentlab.groups import recur
    from agentlab.replay.splice import imitation
    from agentlab.replay.stored_values import Stored
    from agentlab.replay.utterance_critic import utterance_features
    from agentlab.train import recipes
    policy, games = stored(seed)
    how = dict(objective=imitation, loss_per=8., minibatches=1, seed=seed) | RUN
    if arm == 'won':
        return recipes.digi_q(credit=won, replay=None, rollout=Stored([e for e in games if e.success]), **how)
    b = Stored(games).batch()
    v = values(seed, 99).heads.v(utterance_features(policy, b)[0]).detach().mean(1)
    found = iter(((recur(b.turns.reward, VALUES['gamma'], b.turns.episode) - v)/BETA).exp().clamp(max=MOST).tolist())
    games = copy.deepcopy(games)
    for turn in (turn for e in games for turn in e.turns): turn.columns['advantage'] = next(found)
    return recipes.digi_q(credit=weighed, replay=None, rollout=Stored(games), **how)


def row_of(arm: str, seed: int, ns: dict) -> dict:
    "An arm of `ns`, (N, chunk) each; or one that imitates what was said."
    from agentlab.env import KeyDoor
    from agentlab.replay.stored_values import Stored
    from agentlab.train import recipes
    with one_thread():
        env, (policy, games) = KeyDoor(**WORLD), stored(seed)
        if arm in ns:
            n, chunk = ns[arm]
            recipe = recipes.digi_q(rollout=Stored(games), seed=seed,
                                    replay=partial(best_of, one=values(seed, chunk), n=n), **RUN)
        else: recipe = imitated(seed, arm)
        after = copy.deepcopy(policy)
        rows = learned(after, env, recipe)
        test = partial(tested, env=env, tasks=80, seed=seed, samples=5, max_turns=8, max_tokens=8)
        return dict(success=share_won(test(after)), before=share_won(test(policy)),
                    stored=round(sum(e.success for e in games)/len(games), 5),
                    skipped=sum(one['skipped'] is not None for one in rows))
