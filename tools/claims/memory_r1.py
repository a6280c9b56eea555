"""Memory-R1: a manager of a bank, paid by the answer alone, keeps what is asked for better than rules that keep all or
the last. Eight facts, four places; two in five replace an older one, one in four is chatter; a script answers."""
from functools import partial

from _runs import learned

from agentlab.credit import grpo
from agentlab.env.facts import Facts
from agentlab.policy import tiny_policy
from agentlab.rollout.workspace import Moments, newest, with_workspace
from agentlab.train import evaluate, recipes
from claims import Claim

SETTINGS = dict(warm=300, slip=.7, updates=120, groups=12, group_size=8, lr=5e-4, tasks=512,
    places=(2, 4, 8), trained=4)
PLAYED = partial(with_workspace, view=newest)
SCRIPTS = {'none': lambda game, draw: 'noop',
    'keep-all': lambda game, draw: 'add' if len(game.bank) < game.places else 'noop',
    'keep-last': lambda game, draw: 'add' if len(game.bank) < game.places else f'update {next(iter(game.bank))}',
    'random': lambda game, draw: draw.choice(game.moves()), 'expert': lambda game, draw: game.expert()}

def world(places: int, linked: bool = False, **other) -> Facts:
    return Facts(8, places, linked=linked, seats=('manager',), **other)

def scripted(script, env, seed: int) -> float:
    "Share of the test games that a rule wins."
    from random import Random
    draw, won = Random(seed), 0
    for task in env.tasks('test', SETTINGS['tasks'], seed):
        step = env.reset(0, task)
        while not step.done: step = env.step(script(env, draw))
        won += step.info['success']['manager']
    return won/SETTINGS['tasks']

def row(arm: str, seed: int) -> dict:
    if arm in SCRIPTS: return {f'accuracy_{m}': scripted(SCRIPTS[arm], world(m), seed) for m in SETTINGS['places']}
    # the numbers of entries go up to the number of facts, whatever the places: one vocabulary for all
    policy = tiny_policy(Moments(world(SETTINGS['trained']), view=newest, slip=SETTINGS['slip']), seed=seed,
        steps=SETTINGS['warm'], pool=4096, progress=False)
    found = {}
    if arm != 'start':
        recipe = recipes.memory_r1(schedule=None, credit=grpo, seed=seed, steps=SETTINGS['updates'], test_tasks=0,
            groups=SETTINGS['groups'], group_size=SETTINGS['group_size'], lr=SETTINGS['lr'])
        rows = learned(policy, world(SETTINGS['trained'], arm == 'memory-r1'), recipe)
        found = dict(train_first=rows[0]['success'], train_last=sum(r['success'] for r in rows[-5:])/5)
    return found | {f'accuracy_{m}': evaluate(policy, world(m), SETTINGS['tasks'], greedy=False, seed=seed,
        rollout=PLAYED, max_tokens=8) for m in SETTINGS['places']}

CLAIM = Claim(key='memory-r1', says='A manager that adds, updates, deletes or leaves, trained by the answer to one '
    'question after one operation, answers more than keeping the last facts does.', row=row,
    arms=('memory-r1', 'keep-last', 'stream', 'start', 'keep-all', 'none', 'random', 'expert'),
    control='keep-last', measure='accuracy_4', margin=.05,
    budget='the same places and test games; memory-r1 and stream: the same start, updates and games',
    world='Facts(sessions=8, places=4, replaced=.4, chat=.25), a script answers', settings=SETTINGS)
