"""Agent-R asks the actor itself where its first error was. SmolLM2 is asked in houses of KeyDoor where it is known: all
moves are best ones up to one that leads away from the goal; what follows is half best, half random. Of each move it
says how sure it is that it was a mistake; the surest one is its answer. `with words` reads a game whose error was
marked; `chance` names any move. Nothing was tuned: the questions are the ones below."""
import random
from functools import cache

from claims import Claim

GAMES, MOVES, FIRST, LAST = 16, 8, 1, 5     # the planted error is one of the moves FIRST to LAST

def left(env) -> int:
    "Moves to the chest by the shortest way."
    twin, count = env.clone(), 0
    while count < 99:
        count += 1
        if twin.step(twin.best()).done: return count
    return count

def away(env) -> list[str]:
    "Legal moves after which the way is longer than it would be after the best one."
    found, now = [], left(env)
    for action in env.facts()['legal']:
        twin = env.clone()
        if not twin.step(action).done and left(twin) > now - 1: found.append(action)
    return found

def game(seed: int) -> tuple[list[tuple[str, str]], int]:
    "[(what was seen, what was done)], and the number of the first error."
    from agentlab.env import KeyDoor
    draw, env = random.Random(seed), KeyDoor(horizon=16)
    seen, wrong, told = env.reset(seed), draw.randint(FIRST, LAST), []
    for t in range(MOVES):
        bad = away(env)
        planted = t >= wrong and not any(one[2] for one in told) and bad
        free = any(one[2] for one in told) and draw.random() < .5
        action = draw.choice(bad) if planted else draw.choice(env.facts()['legal']) if free else env.best()
        told.append((seen.observation, action, bool(planted)))
        seen = env.step(action)
        if seen.done: break
    marked = [t for t, one in enumerate(told) if one[2]]
    return [one[:2] for one in told], marked[0] if marked else -1

def games(seed: int) -> list:
    "So many games that have an error."
    found, number = [], 1000*seed
    while len(found) < GAMES + 1:
        one = game(number)
        if one[1] >= 0: found.append(one)
        number += 1
    return found

def question(told: list, t: int) -> str:
    "The game up to a move, and what is asked of that move."
    lines = [f'{seen} Move: {action}.' for seen, action in told[:t + 1]]
    return ('To win, take the key, then open the chest, by the shortest way.\n' + '\n'.join(lines)
        + '\nWas the last move a mistake?')

@cache
def smollm2():
    from agentlab.policy import pretrained
    return pretrained('smollm2', source='package')

def sure(arm: str, asked: list[str], shown: list, seed: int):
    "(questions,) how sure the arm is that a move was a mistake."
    import torch
    from agentlab.reward import Form, Judge
    if arm == 'chance': return torch.rand(len(asked), generator=torch.Generator().manual_seed(seed))
    shots = [(question(told, t), ' Yes' if t == wrong else ' No') for told, wrong in shown for t in (wrong, wrong - 1)]
    return Judge(smollm2(), Form(shots=tuple(shots) if arm == 'with words' else ()), least=0.)(asked)

def row(arm: str, seed: int) -> dict:
    found = games(seed)
    shown, asked = found[:1], found[1:]
    places = [(i, t) for i, (told, _) in enumerate(asked) for t in range(len(told))]
    scores = sure(arm, [question(asked[i][0], t) for i, t in places], shown, seed).tolist()
    best = {}
    for (i, t), score in zip(places, scores):
        if i not in best or score > best[i][0]: best[i] = (score, t)
    off = [abs(best[i][1] - wrong) for i, (_, wrong) in enumerate(asked)]
    by_chance = sum(1/len(told) for told, _ in asked)/GAMES
    return dict(agreement=sum(x == 0 for x in off)/GAMES, within_one=sum(x <= 1 for x in off)/GAMES,
        by_chance=round(by_chance, 4), first=sum(best[i][1] == 0 for i in best)/GAMES)

CLAIM = Claim(
    key='agent-r-judge', of='agent-r', says='A small language model finds the first error of a game that it reads.',
    row=row, arms=('as asked', 'with words', 'chance'), control='chance', measure='agreement', margin=.1,
    model='SmolLM2-135M', seeds=(0, 1, 2), budget=f'{GAMES} games a seed, one question a move; nothing is trained',
    world='KeyDoor, a wrong move planted among the second to the sixth of eight; share of games in which it is named',
    settings=dict(games=GAMES, moves=MOVES, planted=(FIRST, LAST)))
