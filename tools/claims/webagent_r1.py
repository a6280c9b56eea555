"""WebAgent-R1: stubs in place of earlier pages cost little and save most of what is read. Houses of four rooms whose
descriptions are three times as long as they need to be; every arm trains until it has read as many tokens."""
from functools import partial
from tempfile import TemporaryDirectory

from _workspace import Padded, tokens_read, transcript

from agentlab.env import KeyDoor
from agentlab.policy import tiny_policy
from agentlab.rollout.workspace import Moments, stubbed, webagent, with_workspace
from agentlab.train import Run, recipes, train
from claims import Claim

SETTINGS = dict(size=2, closed=1, horizon=10, padding=40, warm=400, episodes=64, slip=.4, tokens=1_000_000, groups=8,
    group_size=8, lr=1e-3, games=256, context=1100, most=1000)
KEEPS = dict(history=transcript)

def row(arm: str, seed: int) -> dict:
    env = Padded(KeyDoor(size=SETTINGS['size'], closed=SETTINGS['closed'], horizon=SETTINGS['horizon']),
        SETTINGS['padding'], first=False)
    keep = KEEPS.get(arm, stubbed)
    policy = tiny_policy(Moments(env, remember=keep, slip=SETTINGS['slip']), warm=arm != 'zero', seed=seed,
        steps=SETTINGS['warm'], episodes=SETTINGS['episodes'], pool=4096, progress=False,
        max_context=SETTINGS['context'])
    test = partial(with_workspace, remember=keep, most=SETTINGS['most'])
    played = test if arm == 'history' else partial(webagent, faithful=arm == 'faithful', most=SETTINGS['most'])
    recipe = recipes.webagent_r1(rollout=played, seed=seed, steps=200, test_tasks=0, groups=SETTINGS['groups'],
        group_size=SETTINGS['group_size'], lr=SETTINGS['lr'],
        recompute_old=arm == 'faithful')
    # so few houses have no split for tests of a useful size: other games in the same ones
    games = lambda: test(policy, env, range(10**6, 10**6 + SETTINGS['games']), max_tokens=8, seed=seed)
    share = lambda: sum(e.success for e in games())/SETTINGS['games']
    start, read = share(), []
    with TemporaryDirectory() as folder:
        run = train(policy, env, recipe, folder, progress=False, should_stop=lambda: sum(read) >= SETTINGS['tokens'],
            on_row=lambda row: read.append(tokens_read(Run(folder).episodes(row['step']))))
        rows = run.rows()
    return dict(start=start, success=share(), tokens=sum(read), updates=len(rows),
        gap=max(r['sampler_gap'] or 0. for r in rows), turns=rows[-1]['turns'])

CLAIM = Claim(key='webagent-r1', says='With stubs in place of earlier pages an agent learns more than with the full '
    'history, for the same number of tokens read.', row=row,
    arms=('webagent-r1', 'history', 'faithful', 'zero'), control='history', measure='success', margin=.05,
    budget='the same tokens of contexts and actions in training, and the same warm start (zero: none)',
    world='KeyDoor(size=2, closed=1, horizon=10), 40 idle words behind every page', settings=SETTINGS)
