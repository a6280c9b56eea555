"Whom to ask, and when to let code compute: two worlds, and rewards with a price."
import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import check_env, load_env
from agentlab.env.routing import Choices, Routing, choice_of, newcomers, pool, prices
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.policy.tiny import demonstrate, imitate
from agentlab.reward.gates import cheapness, routed
from agentlab.train import recipes, train

TASK = dict(subject='metals', number=3, models=['dot', 'flo', 'ida'], world=7)
PRODUCT, ANIMAL = dict(kind='product', parts=[17, 6]), dict(kind='animal', parts=['old', 'red', 'ant'])

def games(*rows):
    "(outcome, cost, badly formed) of games of two turns."
    return Batch.from_turns(pd.DataFrame([
        dict(group=0, episode=e, t=t, reward=won*t, outcome=won, success=won > 0, cost=cost*(1 - t), invalid=bad*t)
        for e, (won, cost, bad) in enumerate(rows) for t in range(2)]))

def said(env, task, *actions):
    env.reset(0, task)
    return [env.step(action) for action in actions]

@pytest.mark.parametrize('env', [Routing(), Routing(5), Choices(), Choices(modes=True), Choices().for_reader()],
    ids=['routing', 'of five', 'choices', 'modes', 'reader'])
def test_the_rules_are_kept_and_the_expert_wins(env):
    assert set(check_env(env).values()) == {'ok'}
    for task in env.tasks('test', 30):
        step = env.reset(0, task)
        while not step.done: step = env.step(env.expert())
        assert step.info['success']

@pytest.mark.parametrize('env', [Routing(), Choices(), Choices(modes=True)], ids=['routing', 'choices', 'modes'])
def test_every_word_of_a_demonstration_is_known(env):
    policy = tiny_policy(env, warm=False)
    said = [turn for episode in demonstrate(env, policy.chat, range(60), .5) for turn in episode.turns]
    unknown = [turn.observation + turn.text for turn in said if policy.tokenizer.unk_token_id in
        policy.chat.text_ids(f'{turn.observation} {turn.text}')]
    assert said and not unknown

# ---- whom to ask

def test_a_newcomer_is_in_every_test_task_and_in_no_other():
    for split, wanted in (('train', 0), ('demo', 0), ('test', 1)):
        for task in Routing().tasks(split, 60): assert len({*task['models']} & {*newcomers}) == wanted

def test_skill_and_price_are_those_of_the_description():
    "Switched off where nobody knows the subject: then all are right alike."
    right = {name: [] for name in ('dot', 'flo', 'ida')}
    for world in range(400):
        env = Routing()
        env.reset(0, TASK | dict(world=world))
        for name in right: right[name].append(env.says[name] == env.right)
    share = {name: sum(found)/400 for name, found in right.items()}
    assert abs(share['dot'] - .5) < .08 and abs(share['flo'] - .9) < .06 and abs(share['ida'] - .1) < .06
    step, = said(Routing(), TASK, 'ask flo: metals 3')
    assert step.info['cost'] == prices['dear'] == 9 and pool['flo'] == ('metals', 'dear')

def test_who_is_not_there_is_not_asked_and_costs_nothing():
    for action in ('ask bo: metals 3', 'ask: metals 3', 'ask', 'flo', 'answer', ''):
        step, = said(Routing(), TASK, action)
        assert step.info['invalid'] and not step.info.get('cost') and step.observation == 'Nobody was asked.'
    step, = said(Routing(), TASK, 'ask flo: rivers 3')
    assert step.observation == 'flo: what.' and step.info['cost'] == 9

def test_four_questions_at_most():
    *before, last = said(Routing(), TASK, *['ask ida: metals 3']*5)
    assert not any(step.done for step in before) and last.done and last.info['invalid'] and not last.info['truncated']
    assert len({step.observation for step in before}) == 1  # it always says the same

@pytest.mark.parametrize('task', [3, {}, TASK | dict(models=['nobody']), dict(subject='metals')])
def test_what_is_no_task(task):
    with pytest.raises(ValueError, match='models of ada'): Routing().reset(0, task)

# ---- text or code

@pytest.mark.parametrize('task', [3, {}, dict(kind='product', parts=[1]), dict(kind='product', parts=['a', 2]),
    dict(kind='animal', parts=[1, 2, 3]), dict(kind='largest', parts=[0, 1, 2])])
def test_what_is_no_choice(task):
    with pytest.raises(ValueError, match='a kind of product'): Choices().reset(0, task)

def test_code_costs_and_tells_a_product_but_no_animal():
    code, answer = said(Choices(), PRODUCT, 'code 1 7 * 6', 'answer 1 0 2')
    assert code.observation == '1 0 2' and code.info['cost'] == 1 and code.info['milestone'] == 1
    assert answer.info['success'] and not answer.info['cost']
    code, answer = said(Choices(), ANIMAL, 'code ant', 'answer 6')
    assert 'NameError' in code.observation and code.info['columns']['tool_error'] and answer.info['success']
    code, = said(Choices(), PRODUCT, 'code 1 7 * ')
    assert code.info['columns']['tool_error'] and not code.done

def test_the_right_way_of_a_kind():
    for task, action, right in ((PRODUCT, 'code 3', 1), (PRODUCT, 'answer 3', 0), (ANIMAL, 'code 3', 0),
                                (ANIMAL, 'answer 3', 1), (dict(kind='largest', parts=[3, 4, 5]), 'code 3', 1)):
        assert said(Choices(), task, action)[0].info['columns']['right_tool'] == right, (task, action)

def test_poact_a_mode_allows_its_actions_and_says_its_line():
    free, = said(Choices(), PRODUCT, 'code 17 * 6')
    held, line, done, wrong = said(Choices(modes=True), PRODUCT, 'code 17 * 6', 'mode code', 'code 17 * 6',
        'answer 102')
    assert not free.info['invalid'] and held.info['invalid'] and held.info.get('cost', 0) == 0
    assert line.observation == 'Now code.' and line.info['legal'] == ['code 17 * 6', 'mode plan', 'mode think']
    assert done.observation == free.observation and wrong.info['invalid'] and not wrong.done
    assert 'mode think' in Choices(modes=True).guide and 'mode think' not in Choices().guide

def test_poact_who_plans_for_ever_has_lost():
    steps = said(Choices(modes=True), ANIMAL, *['mode plan']*6)
    assert steps[-1].done and not steps[-1].info['success']

def test_r1_ci_what_code_printed_is_masked():
    "The same games with the mask off: other tokens are learned from, and the gradient is another one."
    policy = tiny_policy(Choices(), warm=False)
    b = Batch.from_episodes(demonstrate(Choices(), policy.chat, range(12)))
    shown = b.tokens.turn < 0
    assert (b.turns.tool > 0).any() and shown.any() and len(grpo(b)) == int((~shown).sum()) < len(b.tokens)
    turn, row = b.tokens.turn.tolist(), b.tokens.row.tolist()
    for i in range(1, len(turn)):
        if turn[i] < 0 and row[i] == row[i - 1]: turn[i] = turn[i - 1]  # what follows an action belongs to it
    bare = b.with_tokens(turn=torch.tensor(turn))
    gradients = []
    for batch in (b, bare):
        policy.model.zero_grad()
        imitate(policy, batch)
        gradients.append(next(policy.model.parameters()).grad.clone())
    assert len(b.actions) < len(bare.actions) < len(b.tokens) and not torch.allclose(*gradients)

# ---- prices

def test_router_r1_cheapness_by_hand():
    assert cheapness(torch.tensor([100., 0., 25., 400.]), faithful=True).tolist() == [.5, 1., .5, 0.]
    assert cheapness(torch.tensor([3., 3.])).tolist() == [.5, .5]
    k = cheapness(torch.arange(100.))
    assert k[0] == 1 and k[-1] == 0 and (k.diff() <= 0).all()

def test_router_r1_form_before_outcome_before_cost():
    b = games((1., 1., 0), (1., 9., 0), (0., 1., 0), (1., 1., 1), (1., 9., 1))
    last = lambda **how: routed(b, **how)[b.last_turns()].tolist()
    assert last(weight=0.) == [1, 1, 0, -1, -1]
    assert last() == pytest.approx([1., .7, 0., -1., -1.])  # switched off above: all right answers alike
    assert not routed(b)[~b.last_turns()].any()

def test_retool_a_price_makes_calls_worth_less():
    "What a right answer is worth after a call and without one; switched off at weight 0."
    b = games((1., 1., 0), (1., 0., 0), (0., 0., 0))
    assert routed(b, 0.)[b.last_turns()].tolist() == [1., 1., 0.]
    called, free, wrong = routed(b, .2)[b.last_turns()].tolist()
    assert called < free == 1 and wrong == 0

@pytest.mark.parametrize('name, env', [('router_r1', Routing()), ('retool', Choices()), ('grpo', Choices()),
    ('grpo', Choices(modes=True))], ids=['router_r1', 'retool', 'r1_ci', 'poact'])
def test_it_plays_and_updates(tmp_path, name, env):
    "From a start on a few demonstrations: an untrained policy says nothing that a world understands."
    policy = tiny_policy(env, steps=100, pool=512, progress=False)
    how = dict(steps=1, groups=12, group_size=4, test_tasks=0, max_tokens=12, max_turns=6)
    row = train(policy, env, getattr(recipes, name)(**how), tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0

def test_names_are_known():
    assert isinstance(load_env('routing'), Routing) and isinstance(load_env('choices', modes=True), Choices)
    assert choice_of(PRODUCT)['answer'] == '102'
