"""MARS: one policy learns from itself in three games at once, or in one. Is it better in two games that it has never
learned, and does it matter whether returns or rewards of turns are centred?
"""
import copy
from functools import partial

from claims import Claim

from agentlab.env import Env, Kuhn, Leduc, Nim, Signals, TicTacToe
from agentlab.env.two_seats import random_player

LEARNED = dict(tictactoe=TicTacToe, kuhn=Kuhn, signals=partial(Signals, n=3))
HELD_OUT = dict(leduc=partial(Leduc, iterations=1), nim=partial(Nim, heaps=(1, 2, 3)))
SHOWN = dict(steps=200, episodes=32, pool=2048)
SIZES = dict(steps=50, group_size=4, max_turns=12, max_tokens=4, test_tasks=0, lr=1e-3)
EACH, GAMES = 4, 200

class Games(Env):
    "Several games as one environment: a task names its game, without one the seed draws it. Seats are those of all."
    name = 'games'

    def __init__(self, games):
        if len(games) < 2: raise ValueError(f'games={games!r}: a society of one game is that game; give two or more')
        self.games = {name: make() for name, make in games.items()}
        self.seats, self.now = tuple(dict.fromkeys(seat for game in self.games.values() for seat in game.seats)), None

    def reset(self, seed, task=None):
        names = [*self.games]
        if task is not None and task.get('game') not in names:
            raise ValueError(f'task={task!r}: give dict(game=...) with one of {", ".join(names)}')
        self.now = self.games[task['game'] if task else names[seed % len(names)]].clone()
        return self.now.reset(seed)

    def step(self, action): return self.now.step(action)

    def clone(self):
        twin = copy.copy(self)
        twin.now = self.now and self.now.clone()
        return twin

    def demonstrator(self, noise=0., generator=None): return self.now.demonstrator(noise, generator)

    def vocabulary(self): return list(dict.fromkeys(word for game in self.games.values() for word in game.vocabulary()))

def started():
    "Somebody who knows the words and the legal moves of all five games, and nothing else."
    from agentlab.policy import tiny_policy
    return tiny_policy(Games(LEARNED | HELD_OUT), progress=False, **SHOWN)

def recipe(arm, seed):
    "As many groups in every arm that learns: of three games, or of one."
    from agentlab.credit.agents import mars
    from agentlab.rollout import play_players
    from agentlab.train import recipes
    names = ['tictactoe'] if arm == 'one game' else LEARNED
    tasks = [dict(game=name) for name in names for _ in range(EACH*len(LEARNED)//len(names))]
    credit = partial(mars, center='turn_reward' if arm == 'turn reward' else 'return')
    return recipes.mars(**SIZES, seed=seed, groups=len(tasks), group_args=dict(tasks=tasks), rollout=play_players,
        credit=credit)

def won(policy, make, seed):
    "(won, illegal): shares of games against random play, half of them at each seat; of Signals, with itself."
    from agentlab.rollout import play_players
    game, found = make(), []
    for seat in game.seats:
        others = {} if game.shared_loss else {other: random_player for other in game.seats if other != seat}
        played = play_players(policy, game, range(GAMES//2), players=others, max_turns=12, max_tokens=4,
            seed=10**6 + seed)
        found += [(one.success, any(turn.invalid for turn in one.turns)) for one in played if one.seat == seat]
    return [sum(one)/len(found) for one in zip(*found)]

def row(arm, seed):
    "One run in self-play; games won against random play, of those that were learned and of those that were not."
    from _runs import learned
    policy = started()
    if arm != 'none': learned(policy, Games(LEARNED), recipe(arm, seed))
    found = {name: won(policy, make, seed) for name, make in (LEARNED | HELD_OUT).items()}
    mean = lambda names, what=0: sum(found[name][what] for name in names)/len(names)
    means = dict(held_out=mean(HELD_OUT), trained=mean(LEARNED), illegal=mean(HELD_OUT, 1))
    return {name: round(x, 4) for name, x in (means | {name: one[0] for name, one in found.items()}).items()}

CLAIM = Claim(
    'mars', 'A policy that learned from itself in several games wins more in games that it never learned', row,
    arms=('all games', 'none', 'one game', 'turn reward'), control='none', measure='held_out', margin=.03,
    budget='50 updates of 12 groups of 4 games in self-play; none: not trained',
    world='learned: tic-tac-toe, Kuhn poker, Signals; held out: Leduc poker, Nim; games won against random play',
    settings=dict(shown=SHOWN, sizes=SIZES, each=EACH, games=GAMES))
