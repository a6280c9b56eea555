"What the claims of LMRL-Gym share: imitation, filtered imitation, Monte-Carlo returns, PPO, GRPO, ArCHer."
from functools import partial

from _attempts import begun, learned, one_thread, share_won

START = dict(questions=dict(steps=150, pool=4096, noise=.5), wordle=dict(steps=400, pool=4096, noise=.5))
SIZES = dict(steps=40, groups=12, group_size=8, test_tasks=0, lr=2e-3)
TASKS = dict(questions=15, wordle=6)  # held-out games, as many as there surely are
ARMS = 'ppo', 'filtered', 'bc', 'mc', 'grpo', 'archer'
GAMES = 12*8*SIZES['steps']

def world_of(name: str):
    from agentlab.env.word_games import TwentyQuestions, Wordle
    return dict(questions=partial(TwentyQuestions, 8, horizon=12), wordle=partial(Wordle, 60))[name]()

def scale_of(world, tasks: list) -> tuple:
    "(mean return of chance, of the best player) on these tasks."
    from random import Random
    def mean(say):
        total = 0.
        for i, task in enumerate(tasks):
            generator = Random(i)
            world.reset(0, task)
            while not world.over: total += world.step(say(generator)).reward['player']
        return total/len(tasks)
    return mean(lambda generator: generator.choice(world.legal())), mean(lambda generator: world.expert())

def filtered(b):
    "Filtered imitation: weight 1 for the games of a group that earned more than its mean, 0 for the others."
    from agentlab.credit import grpo
    return (grpo(b) > 0).double()

def recipe_of(arm: str, seed: int, how: dict):
    from agentlab.credit import gae
    from agentlab.replay.splice import imitation
    from agentlab.train import recipes
    own = dict(filtered=dict(credit=filtered, objective=imitation), mc=dict(
        credit=partial(gae, level='turn', gamma=1., lam=1.))).get(arm, {})
    return getattr(recipes, dict(filtered='grpo', mc='ppo').get(arm, arm))(**SIZES, **how, seed=seed, **own)

def row(arm: str, seed: int, name: str = 'questions') -> dict:
    from agentlab.episodes import Batch
    from agentlab.policy.tiny import warm_start
    from agentlab.rollout import play
    world = world_of(name)
    how = dict(max_turns=world.horizon, max_tokens=world.max_tokens)
    with one_thread():
        policy = begun(world, seed, **START[name])
        if arm == 'bc': warm_start(policy, world, SIZES['steps'], 96, lr=2e-3, noise=.5, pool=GAMES, seed=seed + 1)
        else: learned(policy, world, recipe_of(arm, seed, how))
        tasks = world.tasks('test', TASKS[name])*(60//TASKS[name])
        b = Batch.from_episodes(play(policy, world, range(60), 4, tasks, seed=10**6 + seed, **how))
    low, high = scale_of(world, tasks)
    earned = b.episodes.outcome.mean().item()
    return dict(scaled=round((earned - low)/(high - low), 5), earned=round(earned, 4),
        success=share_won(b))

SAYS = ('At an equal number of games, learning from the returns of own games (PPO) comes nearer to the best player '
    'than imitating the better half of them (filtered BC).')
SHARED = dict(says=SAYS, arms=ARMS, control='filtered', measure='scaled', margin=.05,
    budget=f'{GAMES} games in every arm: own ones, or the demonstrator\'s (bc)',
    settings=dict(start=START, recipe=SIZES, tasks=TASKS))
