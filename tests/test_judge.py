"A judge reads one probability, abstains where it was not answered, and costs no game where it is down."
import math
from functools import partial

import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import KeyDoor
from agentlab.env.own_tasks import OwnTasks
from agentlab.policy import tiny_policy
from agentlab.reward.judge import (EndpointJudge, Form, Head, Judge, a_or_b, agreement, calibrated, digits,
    in_both_orders, play_judged, yes_no)
from agentlab.train import recipes, train
from later import deferred

CHAT = deferred(lambda: Form(('yes', 'no'), closing=None))
ASKED = ['is one red ?', 'is two red ?', 'is three red or is it blue ?', 'is four ?']

@pytest.fixture(scope='module')
def clerk():
    "A tiny policy that has been asked a few questions."
    tasks = [dict(prompt=q, answer='yes' if i % 2 else 'no', split='train') for i, q in enumerate(ASKED)]
    return tiny_policy(OwnTasks(tasks), steps=30, episodes=8, noise=0., progress=False)

def by_hand(policy, form, question):
    "Probabilities of the answers, one question at a time."
    with torch.no_grad(): logits = policy.model(input_ids=torch.tensor([form.ids(policy, question)])).logits[0, -1]
    return logits.float().softmax(0)[form.answer_ids(policy)].double()

@pytest.mark.parametrize('budget', [1, 40, 4096])
def test_scores_are_those_of_one_question_at_a_time(clerk, budget):
    judge = Judge(clerk, CHAT, least=0., budget=budget)
    shares = torch.stack([by_hand(clerk, CHAT, q) for q in ASKED])
    torch.testing.assert_close(judge(ASKED), shares[:, 0].log() - shares[:, 1].log(), atol=1e-4, rtol=0)
    assert judge.cost['forwards'] == {1: 4, 40: 2, 4096: 1}[budget]

def test_what_is_known_is_asked_once(clerk):
    judge = Judge(clerk, CHAT)
    first, spent = judge(ASKED + ASKED), judge.cost['tokens']
    assert spent == sum(len(CHAT.ids(clerk, q)) for q in ASKED)
    assert torch.equal(judge(ASKED), first[:4]) and judge.cost['tokens'] == spent and judge.cost['asked'] == 12
    assert judge([]).shape == (0,)

def test_shots_and_a_rubric_are_read_first(clerk):
    shown = Form(('yes', 'no'), rubric='red', shots=(('is one ?', 'no'),), closing=None)
    assert shown.ids(clerk, 'is two ?') == clerk.chat.again(['is one ?', 'is two ?'], ['no'], 'red')
    text = Form(('yes', 'no'), rubric='red', shots=(('is one ?', ' no'),), closing=' :')
    assert text.ids(clerk, 'is two ?') == clerk.chat.text_ids('red\n\nis one ? : no\n\nis two ? :')

def test_an_abstention_is_no_low_score(clerk):
    for judge in (Judge(clerk, CHAT, least=1.1), Judge(clerk, CHAT, margin=1e6), Judge(clerk, Form(('red', 'blue'),
                                                                                               closing=None))):
        assert judge(ASKED).isnan().all()
    long = ' '.join(['red']*(clerk.max_context + 1))
    found = Judge(clerk, CHAT, least=0.)([long, ASKED[0]])
    assert found[0].isnan() and not found[1].isnan()
    head = Head(clerk, ASKED, [0, 1, 0, 1], form=CHAT)
    assert head([long]).isnan().all() and not head(ASKED).isnan().any()
    assert agreement(found, [1, 0])['abstained'] == .5

@pytest.mark.parametrize('answers, why', [(('yes', 'is one'), '2 tokens'), (('yes', ''), '0 tokens'),
    (('yes', 'yes'), 'can tell apart'), (('yes',), 'two answers or more')])
def test_answers_that_cannot_be_read_are_refused(clerk, answers, why):
    with pytest.raises(ValueError, match=why): Judge(clerk, Form(answers, closing=None))

def test_calibration_moves_the_middle_and_refuses_a_coin(clerk):
    judge = Judge(clerk, CHAT, least=0.)
    truth = judge(ASKED) > judge(ASKED).median()
    moved = calibrated(judge, ASKED, truth)
    torch.testing.assert_close(moved(ASKED), judge(ASKED) - judge(ASKED).median())
    assert judge.offset == 0. and moved.known is judge.known
    with pytest.raises(ValueError, match='would pay for something else'): calibrated(judge, ASKED, ~truth)
    with pytest.raises(ValueError, match='4 scores and 1 truths'): agreement(judge(ASKED), [True])

def test_a_head_learns_what_separates(clerk):
    truth = [i % 2 == 0 for i in range(4)]
    assert agreement(Head(clerk, ASKED, truth, ridge=1e-6, form=CHAT)(ASKED), truth)['accuracy'] == 1.
    with pytest.raises(ValueError, match='both kinds'): Head(clerk, ASKED, [True]*4, form=CHAT)
    with pytest.raises(ValueError, match='4 questions'): Head(clerk, ASKED, [True, False], form=CHAT)

def test_a_judge_that_prefers_the_first_place_has_no_signal():
    signal, bias = in_both_orders(lambda qs: torch.full((len(qs),), 1.3).double(), '{} {}'.format, [('i', 'j')]*3)
    assert signal.tolist() == [0.]*3 and bias.tolist() == pytest.approx([1.3]*3)

def test_votes_of_a_server_side_by_side():
    "Each question has its own votes, whatever order they come in; a server that is down is no verdict."
    from agentlab.prompt.endpoint import EndpointError
    def serve(messages, schema):
        said = messages[-1]['content']
        if said == 'down': raise EndpointError('cannot be reached')
        return '{"reason": "", "verdict": "%s"}' % ('yes' if said == 'good' else 'no')
    judge = EndpointJudge(serve, 'rubric', votes=3)
    found = judge(['good', 'bad', 'down', 'good'])
    assert found[[0, 1, 3]].tolist() == pytest.approx([math.log(7), -math.log(7), math.log(7)])
    assert found[2].isnan() and judge.cost['failed'] == 3
    assert judge(['bad'])[0] == found[1] and judge.cost['failed'] == 3

def may_i(episode, i): return f'Can I {episode.turns[i].text}?'
def north(questions): return torch.tensor([1. if 'north' in q else torch.nan for q in questions]).double()
def paid(b): return b.turns.judged.nan_to_num().double()

def test_it_pays_in_training_and_counts_what_it_did_not_say(tmp_path):
    world = KeyDoor(size=2, closed=0, horizon=4)
    policy = tiny_policy(world, warm=False, progress=False)
    def row(judge, folder):
        recipe = recipes.grpo(steps=1, groups=3, group_size=6, max_turns=4, test_tasks=0, reward=paid, credit=grpo,
            rollout=partial(play_judged, judge=judge, ask=may_i))
        return train(policy, world, recipe, tmp_path/folder, progress=False).rows()[0]
    def down(questions): raise TimeoutError
    found, lost = row(north, 'judged'), row(down, 'lost')
    assert found['grad_norm'] > 0 and found['unjudged'] > 0
    assert lost['errors'] == 0 and lost['unjudged'] == pytest.approx(lost['turns']*lost['episodes'])

# ---- the real model

@pytest.mark.lm
def test_smollm2_digits_and_words(smollm2):
    for form in (yes_no, digits, a_or_b, Form(('Yes', 'No'), closing=None)):
        judge = Judge(smollm2, form, least=0.)
        assert not judge(['Two and two is four.']).isnan().any() and 0 < judge.mass(['Two and two is four.'])[0] <= 1
    with pytest.raises(ValueError, match='2 tokens'): Form(('1', '10'), closing='\nAnswer: ').answer_ids(smollm2)
    with pytest.raises(ValueError, match='2 tokens'): Form((' 1', ' 2')).answer_ids(smollm2)
