"Societies that pay themselves: what a score pays, who sits where, what a pool keeps, and that both recipes move."
import copy
from functools import partial
from random import Random

import pytest
import torch

from agentlab.env.own_tasks import OwnTasks
from agentlab.episodes import Batch
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.selfplay.peers import (Evolution, Messages, Pool, Trio, chairs, peer_rewards, play_peers, play_trio,
    read_number)
from agentlab.selfplay.role_weights import RoleWeights
from agentlab.train import recipes, train
from later import deferred

AGENTS = 'a', 'b', 'c', 'd'
HOW = dict(max_tokens=3, seed=1)

def read(question):
    words = question.split()
    good = len(words) > 2 and words[0] == 'max' and all(word.isdigit() for word in words[1:])
    return dict(prompt=question, answer=max(words[1:])) if good else None

def digits():
    draw = Random(0)
    asked = sorted({' '.join(['max', *(str(draw.randrange(10)) for _ in range(3))]) for _ in range(200)})
    return OwnTasks([read(question) for question in asked])

def novice(world, seed=0):
    words = word_tokenizer([*world.vocabulary(), *'Said : . Listed List errors Score Ask Judge Asked fine 10'.split()])
    return Policy(tiny_model(len(words), 128, hidden=16, layers=1, seed=seed), words, name='novice')

world = deferred(digits)
policy = deferred(lambda: novice(digits()))
society = deferred(lambda: RoleWeights(novice(digits()), AGENTS))

@pytest.mark.parametrize('score, pays', [(3, (1, 0, 0)), (2, (.5, .5, 0)), (1, (0, 1, 0)), (None, (0, 0, -1))])
def test_comas_what_a_score_pays(score, pays):
    "The hand check of the released reward."
    assert peer_rewards(score) == pays

@pytest.mark.parametrize('text, number', [('Score: 3', 3), ('2.5', 2.5), ('4', None), ('0', None), ('-2', None),
    ('1 2', None), ('three', None), ('', None), ('3'*40, None)])
def test_a_score_is_one_number_in_its_range(text, number): assert read_number(text, 3) == number

def test_comas_the_batch_is_paid_by_its_scores():
    "u for the solver, 1-u for the evaluator; nothing and -1 where nobody can read it; the truth pays nobody."
    marks = ['3', '2', '1', 'no idea']
    found = play_peers(society, world, range(4), rounds=1, score=lambda own: marks*4, **HOW)
    of = lambda role: [e.outcome for e in found if e.columns['role'] == role]
    assert of(0) == [1, .5, 0, 0]*4 and of(1) == [0, .5, 1, 0]*4 and of(2) == []
    own = play_peers(society, world, range(4), rounds=1, **HOW)
    assert {e.seat for e in own[:4]} == {*AGENTS}
    for e in own[32:]: assert e.outcome == (0 if read_number(e.turns[0].text, 3) else -1)

def test_comas_everybody_evaluates_and_scores_equally_often():
    found = play_peers(society, world, range(8), rounds=2, **HOW)
    for role in range(3):
        seats = [e.seat for e in found if e.columns['role'] == role]
        assert [seats.count(agent) for agent in AGENTS] == [16]*4
    assert chairs(AGENTS, 16, Random(1)) != chairs(AGENTS, 16, Random(2))
    assert len({e.game for e in found}) == len(found)

def test_comas_references_come_from_the_same_problem_in_the_round_before():
    found = play_peers(society, world, range(3), rounds=3, references=2, **HOW)
    third = len(found)//3
    for number in (1, 2):
        before, now = found[(number - 1)*third:number*third], found[number*third:(number + 1)*third]
        said = {(e.group, e.turns[0].text.strip()) for e in before if e.columns['role'] == 0}
        for e in (e for e in now if e.columns['role'] == 0):
            heard = e.turns[0].observation.split(' Said: ')[1:]
            assert len(heard) == 2 and all((e.group, h.split('. Listed: ')[0]) in said for h in heard)
    plain = play_peers(society, world, range(3), rounds=2, references=0, **HOW)
    assert not any(' Said: ' in e.turns[0].observation for e in plain if e.columns['role'] == 0)

def test_comas_an_agent_is_trained_by_its_own_weights():
    batch = Batch.from_episodes(play_peers(society, world, range(2), **HOW))
    torch.testing.assert_close(society.logprobs(batch)[0], batch.action('sampler_logp'), atol=1e-5, rtol=0)
    with torch.no_grad():
        other = copy.deepcopy(society)
        for p in other.of['b'].model.parameters(): p.add_(.1)
    seat = batch.episodes.seat[batch.turns.episode[batch.action_turn]]
    moved = (other.logprobs(batch)[0] - batch.action('sampler_logp')).abs() > 1e-6
    named = torch.tensor([batch.labels['seat'][key] == 'b' for key in seat.tolist()])
    assert moved[named].any() and not moved[~named].any()

@pytest.mark.parametrize('seats', [(), ('a',), ('a', 'a')])
def test_a_society_of_one_is_refused(seats):
    with pytest.raises(ValueError, match='a society of one judges itself. Give two or more'): Messages(seats)

def test_a_policy_without_agents_is_refused():
    with pytest.raises(ValueError, match='a society of one judges itself'): play_peers(policy, world, [0], **HOW)

def test_comas_plays_and_updates(tmp_path):
    agents = RoleWeights(novice(world), AGENTS)
    run = train(agents, world, recipes.comas(steps=1, groups=4, max_tokens=3, test_tasks=0), tmp_path, progress=False)
    row = run.rows()[0]
    assert row['grad_norm'] > 0 and row['skipped'] is None and 0 <= row['agrees'] <= 1 and 0 <= row['right'] <= 1

def test_mae_plays_updates_and_goes_on_with_its_pool(tmp_path):
    made = partial(recipes.mae, groups=8, max_tokens=4, test_tasks=0, checkpoint_every=1,
        rollout=partial(play_trio, read=read, judge=lambda tasks: ['9', '4']*(len(tasks)//2)),
        memory=partial(Evolution, questions=[t['prompt'] for t in world.tasks('train', 8)]))
    whole = train(novice(world), world, made(steps=2), tmp_path/'whole', progress=False).rows()
    train(novice(world), world, made(steps=1), tmp_path/'parts', progress=False)
    parts = train(novice(world), world, made(steps=2), tmp_path/'parts', progress=False, resume=True).rows()
    assert whole[0]['grad_norm'] > 0 and whole[1]['pool'] > 8
    assert [row['pool'] for row in parts] == [row['pool'] for row in whole] and parts[1]['reward'] == whole[1]['reward']

def test_a_pool_keeps_the_newest():
    pool = Pool(['a', 'b', 'c'], most=3)
    pool.add(['d'], 4)
    assert pool.items == [[-1, 'b'], [-1, 'c'], [4, 'd']] and Pool(['a', 'b'], most=1).items == [[-1, 'b']]
    assert sorted(pool.draw(3, Random(0))) == ['b', 'c', 'd'] and pool.draw(0, Random(0)) == []
    assert {*pool.draw(5, Random(0))} == {'b', 'c', 'd'}

def test_mae_new_questions_are_solved_an_update_later_and_judges_wait_for_a_batch():
    pools = Evolution(None, 0, ['max 1 2']).pools
    how = dict(pools=pools, read=read, judge=lambda tasks: ['10']*len(tasks), **HOW)
    first = play_trio(policy, world, range(4), **how)
    asked = [e.turns[0].text.strip() for e in first if e.seat == 'proposer']
    assert {e.turns[0].observation for e in first if e.seat == 'solver'} == {'max 1 2'}
    assert [one for _, one in pools['questions'].items] == ['max 1 2', *filter(None, asked)]
    assert sum(e.seat == 'judge' for e in first) == 4
    assert not [e for e in play_trio(policy, world, range(4), learns=('proposer',), **how) if e.seat != 'proposer']

def test_mae_a_bad_question_is_not_kept_and_its_answers_pay_nothing():
    pools = Evolution(None, 0, ['max 1 2']).pools
    marks = lambda tasks: ['10' if 'said' in one else '6' for one in tasks]  # quality 5/9, below .7
    found = play_trio(policy, world, range(4), pools=pools, read=read, judge=marks, **HOW)
    paid = [e.outcome for e in found if e.seat == 'proposer' and e.turns[0].text.strip()]
    assert paid == pytest.approx([(5/9 + 1)/3]*len(paid)) and len(pools['questions'].items) == 1

def test_mae_needs_somebody_who_reads_questions_and_a_question():
    with pytest.raises(ValueError, match='read=None: give a function'):
        play_trio(policy, world, range(4), pools=Evolution(None, 0, ['max 1 2']).pools, **HOW)
    with pytest.raises(ValueError, match='nothing to solve. Give some'): Evolution(None, 0)

def test_mae_the_truth_of_a_question_and_of_an_answer():
    trio = Trio(policy, world, read, None, 0, {})
    assert trio.right(dict(question='max 1 2')) and not trio.right(dict(question='1 max 2'))
    assert trio.right(dict(question='max 1 2', said='2')) and not trio.right(dict(question='max 1 2', said='1'))
    assert not trio.right(dict(question='1 max 2', said='2'))
