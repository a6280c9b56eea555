"""STAgent's cascade: a start that was shown a few games plays every task eight times. What it nearly always solves is
imitated, what it solves sometimes is left to reinforcement, what it never solves is dropped. Against the two turned
round, and a split by lot. A first plan left out the few games: then hardly a task was sure, and a part was empty."""
import numpy as np
from _practice import SETTINGS, UPDATES, WHERE, house, in_rounds, one_thread, reinforced, share, shown, start, taught
from claims import Claim

FIRST, TASKS, SAMPLES, STEPS = 38, 160, 8, 30

def parts(arm: str, rates, seed: int):
    "Numbers of the tasks that are imitated, and of those that are left to reinforcement."
    from agentlab.train.practice import cascade
    sure, unsure = cascade(rates)
    if arm == 'swapped': return unsure, sure
    if arm == 'cascade': return sure, unsure
    both = np.random.default_rng(seed).permutation(np.concatenate([sure, unsure]))
    return both[:len(sure)], both[len(sure):]

def row(arm: str, seed: int) -> dict:
    from agentlab.rollout import play
    world = house()
    with one_thread():
        policy, tasks = start(seed), world.tasks('train', TASKS, seed)
        taught(policy, shown(house(), policy, FIRST, seed), STEPS, seed)
        games = play(policy, world, range(TASKS), SAMPLES, tasks, max_turns=8, max_tokens=8, seed=seed)
        won = np.array([game.success for game in games]).reshape(TASKS, SAMPLES)
        imitate, played = parts(arm, won.mean(1), seed)
        own = [game for game in games if game.success and game.group in set(imitate)]
        imitated = share(taught(policy, own, STEPS, seed) if own else policy, world, seed)
        if len(played): reinforced(policy, world, seed, schedule=in_rounds([tasks[i] for i in played]))
        return dict(success=share(policy, world, seed), imitated=imitated, shown=len(own), sure=len(imitate),
            unsure=len(played))

CLAIM = Claim(
    'stagent', 'Imitation of the tasks that the start is sure of, and reinforcement on those it is not, teach more '
    'than a split by lot.', row, arms=('cascade', 'random', 'swapped'), control='random', measure='success', margin=.03,
    budget=f'{FIRST} demonstrations, {TASKS*SAMPLES} games, {STEPS} updates of imitation, {UPDATES} of 64 games',
    world=WHERE, settings=SETTINGS | dict(first=FIRST, pool=TASKS, samples=SAMPLES, steps=STEPS))
