"""Digi-Q's first stage: whose frozen features a Q reads. The same games, written down in the words of SmolLM2, which
has read much and no house, and in those of a tiny policy that has seen demonstrations of these houses; the same heads
on both. A player who errs half of the time makes the games. What is measured is told of games that no head has seen."""
import random

from _values import KEYDOOR, explained
from claims import Claim

GAMES, UNSEEN, ERRS = 120, 60, .5
VALUES = dict(epochs=60, piece=64, lr=2e-3, gamma=.95, tau=.5)

def reader(arm: str, seed: int):
    "The policy whose last layer is read."
    from agentlab.policy import pretrained, tiny_policy
    if arm == 'smollm2': return pretrained('smollm2', source='package')
    how = dict(warm=False) if arm == 'untrained tiny' else KEYDOOR.start
    return tiny_policy(KEYDOOR.made(), seed=seed, progress=False, **how)

def played(policy, numbers: list[int]) -> list:
    "One game of each number by the player who errs, in the words of a policy."
    from agentlab.rollout import Scripted, play
    draws = {number: random.Random(number) for number in numbers}
    scripted = Scripted(policy, lambda game: game.env.expert(ERRS, draws[game.group]))
    return play(policy, KEYDOOR.made(), numbers, groups=numbers, sampler=scripted, on_reset=scripted.begin,
        **KEYDOOR.limits)

def row(arm: str, seed: int) -> dict:
    from agentlab.replay import BestOfN, Stored
    policy, first = reader(arm, seed), 10_000*seed
    fitted = BestOfN(policy, seed, stored=Stored(played(policy, list(range(first, first + GAMES)))), **VALUES)
    fitted.fit()
    unseen = Stored(played(policy, list(range(first + GAMES, first + GAMES + UNSEEN)))).batch()
    return explained(policy, fitted.heads, unseen) | dict(
        won=round(unseen.episodes.success.double().mean().item(), 4), width=policy.model.config.hidden_size)

CLAIM = Claim(
    key='digi-q-real', of='digi-q', says='A Q that reads frozen features of a pretrained model knows more of the '
    'returns of games that it has not seen than one that reads those of a tiny policy that knows only this world.',
    row=row, arms=('smollm2', 'tiny', 'untrained tiny'), control='tiny', measure='q_explains', margin=.05,
    model='SmolLM2-135M', seeds=(0, 1, 2), budget=f'the same {GAMES} games to learn from, {UNSEEN} others to be asked',
    world='KeyDoor of nine rooms, doors open, 8 turns; a player who errs half of the time',
    settings=dict(values=VALUES, start=KEYDOOR.start, errs=ERRS, limits=KEYDOOR.limits, games=GAMES, unseen=UNSEEN))
