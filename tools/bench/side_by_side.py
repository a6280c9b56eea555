"""Episodes side by side, with tools that wait, against one alone and against one after the other.

The page that shows what was found: nbs/env/33_workbench.ipynb.
"""
from __future__ import annotations
import time
from random import Random
from statistics import median

from agentlab.env import envs, load_env
from agentlab.env.wrappers import Wrapper
from agentlab.policy import tiny_policy
from agentlab.rollout import Scripted, play

class Waiting(Wrapper):
    "Every answer takes `delay` seconds longer."
    def __init__(self, env, delay: float):
        super().__init__(env)
        self.delay = delay
    def step(self, action):
        time.sleep(self.delay)
        return super().step(action)

def seconds_of(policy, env, episodes: int, workers: int, max_turns: int) -> tuple[float, int]:
    "Wall time of that many episodes that their experts play; the turns of the longest. RuntimeError where one fails."
    draws = Random(0)
    speaker, began = Scripted(policy, lambda game: game.env.expert(0., draws)), time.perf_counter()
    found = play(policy, env, list(range(episodes)), sampler=speaker, on_reset=speaker.begin, workers=workers,
        max_turns=max_turns, max_tokens=64)
    wall = time.perf_counter() - began
    faults = [episode.error for episode in found if episode.error]
    if faults: raise RuntimeError(f'{env.name}: {faults[0]}')
    return wall, max(len(episode.turns) for episode in found)

def measure_world(name: str, episodes: int = 64, delay: float = .05, repeats: int = 3, max_turns: int = 8) -> dict:
    """Seconds a turn of one episode alone, of many side by side, and of many one after the other (a tenth of them,
    times ten), medians over repeats; a turn of the longest episode, so that games of other lengths compare."""
    env = load_env(name)
    policy, slow = tiny_policy(env, warm=False), Waiting(env, delay)
    def a_turn(count, workers):
        wall, turns = seconds_of(policy, slow, count, workers, max_turns)
        return wall/turns
    few = max(episodes//10, 1)
    rounds = [(a_turn(1, 1), a_turn(episodes, episodes), a_turn(few, 0)*episodes/few) for _ in range(repeats)]
    alone, together, in_turn = (median(column) for column in zip(*rounds))
    return dict(alone=alone, together=together, in_turn=in_turn, ratio=together/alone, gain=in_turn/together)

def measure(episodes: int = 64, delay: float = .05, repeats: int = 3) -> dict:
    "Numbers of every world that has a name."
    return dict(episodes=episodes, delay=delay, repeats=repeats,
        worlds={name: measure_world(name, episodes, delay, repeats) for name in envs})

def as_markdown(record: dict) -> str:
    "A row a world, milliseconds a turn."
    lines = [f"| {name} | {row['alone']*1e3:.0f} | {row['together']*1e3:.0f} | {row['in_turn']*1e3:.0f} | "
        f"{row['ratio']:.2f} | {row['gain']:.1f} |" for name, row in record['worlds'].items()]
    head = f"| world | one alone | {record['episodes']} side by side | one after the other | times one alone | gain |"
    return '\n'.join([head, '|---|---|---|---|---|---|', *lines])
