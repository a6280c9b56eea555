"Three seats before a database, a choice among candidates, and a loss in which imitation fades into reinforcement."
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import EnvError, SqlWorld, check_env
from agentlab.env.protocol import as_reader
from agentlab.env.sql import needed, query_of, slips
from agentlab.episodes import Batch
from agentlab.objective import clip, loss_weights
from agentlab.policy import tiny_policy
from agentlab.replay.demonstrations import grpo_split, is_demonstration
from agentlab.rollout import play
from agentlab.rollout.players import play_players
from agentlab.rollout.sql_seats import (SqlSeats, answered_in_form, beside_imitation, by_majority, by_score,
    half_cosine, mixed, picked, play_taught, solved, unsure, validator)
from agentlab.train import recipes, train

TASK = dict(show='name', of=[], where=['city', 'rome'], different=False, store=3)
TRIED, ANSWER = dict(tool='sql'), dict(tool='answer')

@pytest.fixture(scope='module')
def shown():
    "A world of seats and a policy that has watched a few games."
    world = SqlSeats(SqlWorld(levels=(1,)))
    return world, tiny_policy(world, progress=False, steps=40, pool=256, noise=.5)

def told(world, tables='customers', tried=None, answer=None):
    "A game of scripted seats up to the validator's turn; its steps."
    steps = [world.reset(0, TASK), world.step(tables)]
    return steps + [world.step(text) for text in (tried, answer) if text]

RIGHT, WRONG = query_of(TASK), slips(TASK)[0]

# ---- the seats

def test_the_world_keeps_the_rules():
    world = SqlSeats(SqlWorld())
    assert set(check_env(world).values()) == {'ok'} and world.seats == ('grounder', 'generator', 'validator')
    with pytest.raises(EnvError, match='call reset'): SqlSeats(SqlWorld()).step('customers')
    known = set(world.vocabulary())
    for seed in range(8):
        step = world.reset(seed)
        while not step.done:
            for word in as_words(step.observation) + as_words(world.expert()): assert word in known, word
            step = world.step(world.expert())
        assert step.info['success']

def as_words(text):
    import re
    return re.findall(r'\w+|[^\w\s]', text)

def test_what_is_grounded_is_what_the_generator_reads():
    world = SqlSeats(SqlWorld())
    one, other = told(world)[1], told(world, 'orders products')[1]
    assert one.observation != other.observation and 'orders products' in other.observation
    assert (one.reward, other.reward) == (dict(grounder=1.), dict(grounder=0.)) and needed(TASK) == ['customers']
    nothing = told(world, 'all of them')[1]
    assert nothing.info['invalid'] and nothing.observation.strip() == 'List every name in rome.'

def test_a_seat_has_read_nothing_of_the_others(shown):
    world, policy = shown
    games = play(policy, world, [0, 1], max_tokens=32, max_turns=9)
    for e in games:
        if e.seat == 'validator' and e.turns: assert e.turns[0].observation.startswith('Right?') and len(e.turns) == 1
        if e.seat == 'generator' and e.turns: assert 'Tables for' not in e.turns[0].observation

@pytest.mark.parametrize('calls, right, worth', [
    ([TRIED, ANSWER], True, 1.), ([TRIED, ANSWER], False, 0.), ([ANSWER], True, -1.), ([TRIED, TRIED], False, -1.),
    ([], False, -1.)])
def test_a_generator_earns_minus_one_nothing_or_one(calls, right, worth): assert solved(calls, right) == worth

def test_what_is_badly_formed_is_not_validated():
    step = told(SqlSeats(SqlWorld()), answer=f'answer {RIGHT}')[-1]
    assert step.done and step.reward == dict(generator=-1.)
    step = told(SqlSeats(SqlWorld()), tried=f'sql {RIGHT}', answer=f'answer {WRONG}')[-1]
    assert not step.done and step.seat == 'validator' and step.reward == dict(generator=0.)

@pytest.mark.parametrize('answer, said, paid', [(RIGHT, 'yes', 1.), (RIGHT, 'No.', 0.), (WRONG, 'NO', 1.),
    (WRONG, 'yes', 0.), (RIGHT, 'maybe', 0.)])
def test_a_true_verdict_is_worth_one(answer, said, paid):
    world = SqlSeats(SqlWorld())
    told(world, tried=f'sql {answer}', answer=f'answer {answer}')
    step = world.step(said)
    assert step.done and step.reward == dict(validator=paid) and step.info['invalid'] is (said == 'maybe')

def test_a_reader_is_told_of_the_seats():
    world = as_reader(SqlSeats(SqlWorld()))
    assert 'only say yes or no' in world.guide and 'sql QUERY' in world.guide

# ---- a choice among candidates

def test_the_majority_counts_results_and_not_texts():
    assert by_majority([[(1,)], [(2,), (3,)], [(3,), (2,)]]) == 1
    assert by_majority([[(1,)], [(2,)], [(2,), (2,)], None, None, None]) == 0
    assert by_majority([None, [(1,)]]) == 1 and by_majority([None]) == 0

def test_the_release_indexes_another_list():
    queries, scores = ['', 'a', 'b'], [9., .1, .2]
    assert by_score(queries, scores) == 2 and by_score(queries, scores, faithful=True) == 1
    assert by_score(['a', 'b'], [.1, .2], faithful=True) == by_score(['a', 'b'], [.1, .2]) == 1

def scripted(world, tasks, generator):
    policy = tiny_policy(world, warm=False, progress=False)
    players = dict(grounder=lambda w, g: w.expert(), generator=generator, validator=lambda w, g: w.expert())
    return play_players(policy, world, range(len(tasks)), 4, tasks, players=players, keep=True)

def test_a_validator_that_knows_is_as_good_as_the_oracle_and_a_blind_one_is_the_first():
    world = SqlSeats(SqlWorld())
    tasks = world.tasks('test', 8)
    games = scripted(world, tasks, lambda w, g: w.env.demonstrator(.5, g))
    right = {world.claim(task, query_of(task)) for task in tasks}
    knows, blind = (lambda claims: torch.tensor([float(c in right) for c in claims]),
        lambda claims: torch.zeros(len(claims)))
    one, other = picked(games, world, knows), picked(games, world, blind)
    assert one['validator'] == one['oracle'] > one['one'] == other['one'] == other['validator']
    assert one['auc'] == 1 and other['auc'] == .5 and one['majority'] == other['majority']

def test_a_validator_scores_the_text_that_its_seat_reads(shown):
    world, policy = shown
    judge = validator(policy, world)
    read = told(world, tried=f'sql {RIGHT}', answer=f'answer {RIGHT}')[-1].observation
    assert read == world.claim(TASK, RIGHT)
    scores = judge([read, world.claim(TASK, WRONG), world.claim(TASK, 'select'), world.claim(TASK, '')])
    assert scores.isfinite().all() and len(scores.unique()) > 1
    ids = torch.tensor([policy.chat.first(read)])
    logits = policy.action_logits(ids, torch.tensor([[0, ids.shape[1]]])).float()[0]
    yes, no = (policy.chat.text_ids(word)[0] for word in ('yes', 'no'))
    assert scores[0].item() == pytest.approx((logits[yes] - logits[no]).item(), abs=1e-4)

# ---- one loss

def table(step=0, shown=True):
    "A group that differs, one that does not, and a demonstration; a token each."
    rows = [(0, 0, 1., 'policy'), (0, 1, 0., 'policy'), (1, 2, 1., 'policy'), (1, 3, 1., 'policy'),
        (0, 4, 1., 'demonstration')][:4 + shown]
    frame = pd.DataFrame(rows, columns=['group', 'episode', 'outcome', 'source']).assign(t=0, invalid=False)
    return Batch.from_turns(frame).with_episodes(step=torch.full((len(rows),), step)).with_action(
        old_logp=torch.full((len(rows),), .5).log())

def test_the_schedule_is_the_released_one():
    found = half_cosine(torch.tensor([0, 87, 175, 350, 1000])).tolist()
    assert found == pytest.approx([.9, .777, .475, .05, .05], abs=1e-3)
    assert half_cosine(torch.tensor([0, 5, 10]), 10, 1., 0.).tolist() == pytest.approx([1., .5, 0.])

def total(b, **how):
    logp = torch.full((len(b.actions),), .5, dtype=torch.float64).log().requires_grad_()
    loss = (loss_weights(b)*beside_imitation(logp, b, mixed(b, grpo_split(b)), **how)).sum()
    return loss.item(), torch.autograd.grad(loss, logp)[0]

def test_one_step_holds_both_in_their_shares():
    for step, mu in ((0, .9), (175, .475), (350, .05)):
        loss, slope = total(table(step))
        assert loss == pytest.approx(mu*.69315, abs=1e-4)
        assert slope.tolist() == pytest.approx([-(1 - mu)*.35355, (1 - mu)*.35355, 0., 0., -mu], abs=1e-4)

def test_a_demonstrated_token_can_be_weighted():
    assert total(table(), weight=unsure)[0] == pytest.approx(total(table())[0]/4)
    assert unsure(torch.tensor([0., .5, 1.])).tolist() == [0., .25, 0.]

def test_without_demonstrations_it_is_the_clipped_loss():
    b = table(350, shown=False)
    logp, worth = torch.full((4,), .6).log(), grpo(b)
    torch.testing.assert_close(beside_imitation(logp, b, worth), clip(logp, b, worth, low=.2, high=.28))
    none = mixed(b, worth, lambda step: torch.zeros_like(step, dtype=torch.float64))
    torch.testing.assert_close(none, torch.where(worth != 0, 2*worth, 0.))

def test_a_batch_in_which_nobody_differs_still_imitates():
    b = table().select(torch.tensor([False, False, True, True, True]))
    worth = mixed(b, grpo_split(b))
    assert worth.isfinite().all() and (worth > 0).tolist() == [False, False, True]

def test_an_answer_is_worth_nine_tenths_and_its_form_one():
    b = table()
    assert answered_in_form(b).tolist() == pytest.approx([1., .1, 1., 1., 1.])
    assert answered_in_form(b.with_turns(invalid=torch.ones(5))).tolist() == pytest.approx([.9, 0., .9, .9, .9])

# ---- the recipes

def test_the_validator_is_told_what_was_true_of_the_policys_own_answers(shown):
    world, policy = shown
    games = play_taught(policy, world, range(6), 2, max_tokens=32, max_turns=8)
    verdicts = [e for e in games if e.seat == 'validator' and e.turns]
    assert verdicts and all(e.source == 'demonstration' and e.outcome == 1 for e in verdicts)
    assert all(e.turns[0].text == ('yes' if e.success else 'no') for e in verdicts)
    assert all(torch.tensor(t.logps).isfinite().all() for e in games for t in e.turns)
    plain = play(policy, world, range(6), 2, max_tokens=32, max_turns=8)
    same = lambda some: [[t.text for t in e.turns] for e in some if e.seat != 'validator']
    assert same(games) == same(plain)
    b = Batch.from_episodes(games)
    assert is_demonstration(b).any() and not is_demonstration(Batch.from_episodes(plain)).any()

@pytest.mark.parametrize('name', ['mars_sql', 'datamind'])
def test_a_recipe_plays_and_updates(tmp_path, shown, name):
    world, policy = shown
    world = world if name == 'mars_sql' else world.env
    recipe = getattr(recipes, name)(steps=1, groups=3, max_turns=8, test_tasks=0)
    row = train(policy, world, recipe, tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0

def test_datamind_plays_an_expert_beside_each_group(shown):
    world, policy = shown
    recipe = recipes.datamind()
    games = recipe.rollout(policy, world.env, range(3), 5, max_tokens=32, max_turns=6)
    assert [e.source for e in games].count('demonstration') == 3 and len(games) == 15
    alone = partial(mixed, mu=lambda step: torch.zeros_like(step, dtype=torch.float64))
    b = Batch.from_episodes(games)
    shown_tokens = is_demonstration(b)
    assert (mixed(b, grpo_split(b))[shown_tokens] > 0).all() and (alone(b, grpo_split(b))[shown_tokens] == 0).all()
