"""How much of what reinforcement gains could be had by turning down the temperature? `python tools/temperature.py`

The warm-started policy, sampled at the temperature (0: the likeliest token) that does best on other houses, against the
same policy after sixty updates, sampled as it was trained, at 1. Three doors are shut, so that the start is far from
the top when it is greedy, too. Rows stand beside those of the claims, seed by seed; lesson 1 and the front page read
them.
"""
import sys

import claims
from claims import FOLDER, Claim

sys.path.insert(0, str(FOLDER))
from _attempts import one_thread  # noqa: E402 (a neighbour of the claims)
from _runs import learned  # noqa: E402

TEMPERATURES = (1., .5, .25, .1, 0.)
CLOSED, TASKS, RUN = 3, 256, dict(steps=60, test_tasks=0)

def won(policy, world, temperature: float, seed: int) -> float:
    "Success on held-out houses."
    from agentlab.train import evaluate
    return round(evaluate(policy, world, TASKS, greedy=not temperature, seed=seed, temperature=temperature or 1.), 5)

def coolest(policy, world, seed: int) -> float:
    "The temperature that does best on houses of the training split."
    from agentlab.rollout import play
    houses = world.tasks('train', TASKS, 10**6 + seed)
    def share(temperature):
        games = play(policy, world, range(TASKS), tasks=houses, temperature=temperature, seed=seed)
        return sum(bool(game.success) for game in games)/TASKS
    return max(TEMPERATURES, key=share)

def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.policy import tiny_policy
    from agentlab.train import recipes
    world, policy = KeyDoor(closed=CLOSED), tiny_policy(KeyDoor(), progress=False)
    with one_thread():
        if arm != 'cooled': learned(policy, world, getattr(recipes, arm)(seed=seed, **RUN))
        at = coolest(policy, world, seed) if arm == 'cooled' else 1.
        sampled = {f'at_{temperature:g}': won(policy, world, temperature, seed) for temperature in TEMPERATURES}
    return dict(success=sampled[f'at_{at:g}'], temperature=at) | sampled

CLAIM = Claim(
    'temperature', 'More is learned than a lower temperature gives: GiGPO, sampled at 1, wins more houses than '
    'its start at the best temperature.', row, arms=('gigpo', 'grpo', 'cooled'), control='cooled', measure='success',
    margin=.03, budget=f'one start; {RUN["steps"]} updates of 64 games, or {len(TEMPERATURES)*TASKS} games '
    f'to choose a temperature by', world=f'KeyDoor of nine rooms, {CLOSED} doors shut; {TASKS} held-out houses',
    settings=dict(run=RUN, closed=CLOSED, tasks=TASKS, temperatures=TEMPERATURES))

def main() -> int:
    record = claims.play(CLAIM, CLAIM.arms, CLAIM.seeds)
    print(record['verdict'], record.get('difference', ''))
    return 0

if __name__ == '__main__': sys.exit(main())
