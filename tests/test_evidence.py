"Evidence that the agent chose, words in their order, and a verifier that may doubt."
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import GuessNumber, KeyDoor, check_env
from agentlab.env.own_tasks import OwnTasks
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.reward.evidence import Shown, chained, common, hard, in_order, occurrences, snapped, soft, verified
from agentlab.reward.judge import Form, Judge, play_judged
from agentlab.rollout import play
from agentlab.train import recipes, train

SMALL = dict(steps=1, groups=4, group_size=6, test_tasks=0)

def opened(goal, evidence): return 1. if 'The chest opens.' in evidence else 0.
def house(judge=opened): return Shown(KeyDoor(size=2, closed=0, horizon=8), judge)

def played(env, *actions, seed=3):
    steps = [env.reset(seed)]
    for action in actions: steps.append(env.step(action))
    return steps

# ---- SmartSnap

def test_smartsnap_plays_and_updates(tmp_path):
    world = house()
    policy = tiny_policy(world, steps=60, episodes=16, noise=.4, progress=False)
    row = train(policy, world, recipes.smartsnap(**SMALL, max_turns=12), tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0

def test_smartsnap_the_judge_sees_what_was_shown_and_nothing_else():
    seen = []
    def judge(goal, evidence):
        seen.append((goal, evidence))
        return 0.
    steps = played(house(judge), 'go south', 'go west', 'show 3 1')
    read = [step.observation.partition(' : ')[2] for step in steps[:3]]
    assert seen == [(read[0], [read[2], read[0]])] and steps[-1].info['columns']['shown'] == 2

@pytest.mark.parametrize('last, verdict, said', [('show 9', -1., 'Not shown.'), ('show', -1., 'Not shown.'),
    ('show 0', -1., 'Not shown.'), ('show 1', 0., 'Not done.')])
def test_smartsnap_what_is_no_evidence(last, verdict, said):
    step = played(house(), 'go south', last)[-1]
    assert (step.done, step.observation, step.info['columns']['verdict'], step.info['success']) == (
        True, said, verdict, False)

def test_smartsnap_a_game_without_evidence_ends_unshown():
    env = house()
    step = env.reset(3)
    while 'Show it.' not in step.observation: step = env.step(env.env.expert())
    turns = 0
    while not step.done:
        step, turns = env.step('go south'), turns + 1
    assert turns == 3 and step.info['columns']['verdict'] == -1 and not step.info['success']
    with pytest.raises(Exception, match='over or was never begun'): env.step('show 1')

def test_smartsnap_a_judge_that_raises_ends_its_game_only():
    def broken(goal, evidence): raise ConnectionError('down')
    world = house(broken)
    policy = tiny_policy(house(), steps=60, episodes=16, noise=.4, progress=False)
    found = play(policy, world, range(8), max_tokens=6, max_turns=12)
    assert any('down' in (e.error or '') for e in found) and len(found) == 8

def test_smartsnap_what_is_accepted_and_not_true_is_counted():
    step = played(house(lambda goal, evidence: 1.), 'show 1')[-1]
    assert step.info['columns']['fooled'] == 1. and not step.info['success']
    assert check_env(Shown(GuessNumber(), opened))

def ends(verdict, seen, shown, step=0):
    turns = [dict(group=0, episode=0, t=i, verdict=float('nan'), shown=0., reward=0.) for i in range(seen)]
    turns += [dict(group=0, episode=0, t=seen, verdict=verdict, shown=shown, reward=verdict)]
    return Batch.from_turns(pd.DataFrame(turns)).with_episodes(step=torch.tensor([step]))

def test_smartsnap_the_tool_term_fades():
    worth = [snapped(ends(0., 5, 1, step)).sum().item() for step in (0, 100, 200)]
    assert worth == pytest.approx([.5, .25, 0.])
    assert snapped(ends(0., 5, 5, 200)).sum().item() == pytest.approx(-.2)  # two more than are free
    assert snapped(ends(float('nan'), 2, 0))[-1].isnan()

# ---- RLVRR

def test_rlvrr_plays_and_updates(tmp_path):
    reference = 'open the red door then take the key'
    tasks = [dict(prompt=f'how {i} ?', reference=reference, points=[[['door', 'key']]], answer=reference, split='train')
        for i in range(6)]
    world = OwnTasks(tasks, chained)
    policy = tiny_policy(world, steps=8, episodes=8, noise=0., progress=False)
    row = train(policy, world, recipes.grpo(**SMALL, max_tokens=8), tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0

def test_rlvrr_order_counts():
    assert in_order('key, then the red door', 'The red door, then the key', ('red door', 'key')) == .5
    assert in_order('the red door and the key', 'The red door, then the key', ('red door', 'key')) == 1.
    assert in_order('monkey redoor', 'The red door', ('red door', 'key')) == 0. == in_order('', '', ('key',))

def test_rlvrr_alternatives_and_style():
    task = dict(reference='take the key', points=[[['lock'], ['key']]])
    assert chained('key', task) == 1. and chained('lock', task) == 0.
    assert chained('key', task | dict(style=[(.5, lambda reply: True), (1., lambda reply: 1/0)])) == 1.5
    assert occurrences('Red door. RED-DOOR (key)', ('red', 'red door', 'key')) == ['red', 'red', 'key']

@pytest.mark.parametrize('a, b, n', [('abcbdab', 'bdcaba', 4), ('', 'a', 0), ('aaa', 'aa', 2), ('abc', 'xyz', 0)])
def test_rlvrr_longest_common_subsequence(a, b, n): assert common(list(a), list(b)) == n == common(list(b), list(a))

# ---- the soft verifier

def test_a_soft_verifier_plays_and_updates(tmp_path):
    world = KeyDoor()
    policy = tiny_policy(world, progress=False)
    def judged(value):
        judge = Judge(tiny_policy(world, progress=False), Form(('north', 'south'), value, closing=None), least=0.)
        ask = lambda e, i: f'{e.turns[i].observation} {e.turns[i].text}' if i == len(e.turns) - 1 else None
        return partial(play_judged, judge=judge, ask=ask)
    recipe = recipes.grpo(**SMALL, reward=verified, rollout=judged(soft))
    assert train(policy, world, recipe, tmp_path, progress=False).rows()[0]['grad_norm'] > 0
    b, c = (Batch.from_episodes(judged(value)(policy, world, range(3), 4, max_tokens=6, max_turns=8))
        for value in (soft, hard))
    paid = lambda x: grpo(x.with_episodes(outcome=torch.zeros(len(x)).double().index_add(
        0, x.turns.episode, verified(x))))
    assert not torch.equal(paid(b), paid(c)) and set(c.turns.judged[c.last_turns()].tolist()) <= {0., 1.}

def test_a_verdict_that_is_not_there_is_neither_good_nor_bad():
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=range(3), t=0, judged=[1., 0., float('nan')], reward=0.)))
    assert verified(b).tolist() == pytest.approx([.7071, -.7071, 0.], abs=1e-4)
    assert verified(b.with_turns(judged=torch.full((3,), torch.nan))).tolist() == [0.]*3
