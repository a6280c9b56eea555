"""Behaviour priming: what a warm start must show is how one searches and recovers, right answers or not. Three sets of
demonstrations of one size, then the same reinforcement. Behaviour: an imperfect demonstrator that slips and finds back;
wrong: at the chest it walks on, and the game is over."""
from _practice import SETTINGS, UPDATES, games, house, one_thread, reinforced, share_won, shown, start, taught
from claims import Claim

WORLD, COUNT, STEPS, NOISE = dict(closed=2, horizon=12), 60, 30, .25
ARMS = 'behaviour, wrong', 'right only', 'behaviour, right', 'random'

def missed():
    "A house whose demonstrator walks on where it should open the chest."
    from agentlab.env.wrappers import Wrapper

    class Missed(Wrapper):
        over = False
        def reset(self, seed, task=None):
            self.over = False
            return self.env.reset(seed, task)
        def demonstrator(self, noise=0., generator=None):
            action = self.env.demonstrator(noise, generator)
            if action != 'open chest': return action
            self.over = True
            return generator.choice([way for way in self.env.legal() if way.startswith('go')])
        def step(self, action):
            step = self.env.step(action)
            step.done = step.done or self.over
            return step
    return Missed(house(**WORLD))

def noise_of(arm: str) -> float: return dict(random=1.).get(arm, 0. if arm == 'right only' else NOISE)

def demonstrations(arm: str, policy, seed: int) -> list:
    "As many of the kind as all arms have; of the others more are played than needed."
    world = missed() if arm.endswith('wrong') else house(**WORLD)
    right = lambda game: arm in ('random', 'behaviour, wrong') or game.success
    return [game for game in shown(world, policy, 4*COUNT, seed, noise_of(arm)) if right(game)][:COUNT]

def row(arm: str, seed: int) -> dict:
    world = house(**WORLD)
    with one_thread():
        policy = start(seed)
        used = demonstrations(arm, policy, seed)
        first = games(taught(policy, used, STEPS, seed), world, seed)
        reinforced(policy, world, seed)
        return dict(success=share_won(games(policy, world, seed)), primed=share_won(first), shown=len(used),
            won_shown=sum(bool(game.success) for game in used),
            entropy=round(first.action('entropy').mean().item(), 4))

CLAIM = Claim(
    'behavior-priming', 'After demonstrations that behave well and end wrongly, reinforcement gets further than after '
    'right ones without the behaviour.', row, arms=ARMS, control='right only', measure='success', margin=.03,
    budget=f'{COUNT} demonstrations, {STEPS} updates on them, {UPDATES} updates of 64 games',
    world='KeyDoor of nine rooms, two doors shut, 12 turns',
    settings=SETTINGS | dict(count=COUNT, steps=STEPS, noise=NOISE))
