"""IterResearch: with long pages, a report that is rewritten in every turn needs a shorter context than a transcript.
Two-hop questions, 40 idle words behind every page; success at contexts of 96, 128, 192 and 256 tokens."""
from functools import partial

from _runs import learned
from _workspace import Padded

from agentlab.env import HopSearch
from agentlab.policy import tiny_policy
from agentlab.rollout import play
from agentlab.rollout.workspace import Moments, Noted, laid_out, report_of, with_workspace
from agentlab.train import recipes
from claims import Claim

SETTINGS = dict(hops=2, padding=40, warm=900, slip=.3, updates=24, groups=12, group_size=8, lr=5e-4, tasks=256,
    limits=(96, 128, 192, 256), kept=12)

def found_so_far(report: str, heard: str, env) -> str:
    "A demonstrator's report: relation and name of every page that it has read."
    words = heard.replace('.', ' ').split()
    return ' '.join([report, words[1], *words[6:8]]).strip() if words[:1] == ['The'] else report

def world(arm: str):
    pages = Padded(HopSearch(hops=SETTINGS['hops'], distractors=10), SETTINGS['padding'], first=False)
    return Noted(pages, found_so_far) if arm == 'iterresearch' else pages

VIEW = partial(laid_out, kept=SETTINGS['kept'])
READS = {'iterresearch': dict(view=VIEW, remember=report_of, memory=('', '')), 'no report': dict(view=VIEW)}

def row(arm: str, seed: int) -> dict:
    env = world(arm)
    shown = env if arm == 'history' else Moments(env, slip=SETTINGS['slip'], **READS[arm])
    # a transcript shows all turns of a game at once: fewer games of an update, about as many actions
    how = dict(episodes=11, noise=SETTINGS['slip']) if arm == 'history' else {}
    policy = tiny_policy(shown, seed=seed, steps=SETTINGS['warm'], pool=4096, progress=False, **how)
    played = play if arm == 'history' else partial(with_workspace, **READS[arm])
    recipe = recipes.iterresearch(rollout=played, seed=seed, steps=SETTINGS['updates'], max_tokens=16,
        groups=SETTINGS['groups'], group_size=SETTINGS['group_size'], lr=SETTINGS['lr'],
        test_tasks=0)
    rows = learned(policy, env, recipe)
    found = dict(train_first=rows[0]['success'], train_last=sum(r['success'] for r in rows[-5:])/5)
    for limit in SETTINGS['limits']:
        policy.max_context = limit
        # all episodes may end for want of room, which `evaluate` takes for a fault
        games = played(policy, env, range(SETTINGS['tasks']), tasks=env.tasks('test', SETTINGS['tasks']),
            max_tokens=16, seed=seed)
        found[f'success_{limit}'] = sum(e.success for e in games)/len(games)
    return found | dict(success=sum(found[f'success_{limit}'] for limit in SETTINGS['limits'])/len(SETTINGS['limits']))

CLAIM = Claim(key='iterresearch', says='A workspace with a report answers in contexts in which a transcript has no '
    'room, and loses little where there is room.', row=row, arms=('iterresearch', 'history', 'no report'),
    control='history', measure='success', margin=.05,
    budget='the same updates and games, and at test the same limits of the context',
    world='HopSearch(hops=2, distractors=10), 40 idle words behind every page', settings=SETTINGS)
