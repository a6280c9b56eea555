"Search Self-Play: what one round returns, who is compared with whom, and runs that are stopped and go on."
import math
from functools import partial
from random import Random

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env import HopSearch
from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.selfplay.proposers import ProposeHop, hop_lookup, search_self_play
from agentlab.selfplay.search import (ProblemPool, SearchRoles, known_problem, of_role, play_search, problem_of,
    proposer_first, rated, role_by_role, search_fields, search_reward, search_scores,
    ssp)
from agentlab.train import recipes, train

ENV = HopSearch()

def learner(seed=0):
    tokenizer = word_tokenizer(SearchRoles().vocabulary())
    return Policy(tiny_model(len(tokenizer), 128, hidden=16, layers=1, seed=seed), tokenizer, name='learner')

def without_time(rows): return [{k: v for k, v in row.items() if k != 'seconds'} for row in rows]

def expert(env, generator): return env.expert(generator=generator)
def mostly(env, generator): return env.expert(generator=generator) if generator.random() < .9 else 'hello'
def mute(env, generator): return 'hello'
def busy(question, passages): raise TimeoutError('no answer in time')

def astray(env, generator):
    "Asks for somebody else than whom it was given."
    action = env.expert(generator=Random(0)).split()
    return ' '.join('tailor' if action[0] == 'ask' and word == 'mentor' else 'mentor' if action[0] == 'ask'
        and word in ('rival', 'cousin', 'tailor') else word for word in action)

def scores(*pattern):
    "A solver that answers at once, right (1) or wrong (0)."
    todo = iter([x for one in pattern for x in one])
    def solver(env, generator):
        truth = env.game.world.chain(env.game.start, env.game.path)[1]
        return f"answer {truth if next(todo) else next(name for name in env.game.world.people if name != truth)}"
    return solver

def round_of(seeds, players, **how):
    return Batch.from_episodes(play_search(learner(), ENV, seeds, keep=True, players=players, max_tokens=8, **how))

def paid(b, **rule):
    reward = search_reward(b, **rule)
    return b.with_turns(reward=reward).with_episodes(outcome=torch.zeros(len(b), dtype=torch.float64)
        .index_add(0, b.turns.episode, reward))

def each(b, advantage, role):
    "The advantage of every episode of a role."
    return [float(advantage[b.turns.episode[b.action_turn] == k][0]) for k in of_role(b, role).nonzero()[:, 0].tolist()]

def test_two_proposals_for_an_answer_by_hand():
    "Roles, groups, s, rewards and the three credits of four proposals for two answers."
    b = paid(round_of([5, 6], dict(proposer=expert, solver=scores([1, 1], [1, 0], [0, 0], [0, 0])), proposals=2,
        group_size=2))
    if not (valid := b.episodes.success[of_role(b, 'proposer')]).all():
        pytest.fail(f'the expert met somebody twice: {valid.tolist()}; take other seeds')
    assert b.episodes.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5,
        5] and len(b.episodes.game.unique()) == len(b) == 12
    assert of_role(b, 'proposer').tolist() == ([True]*2 + [False]*4)*2
    assert (b.episodes.solved[of_role(b, 'proposer')].tolist() == [1, .5, 0, 0]
        and b.episodes.outcome[of_role(b, 'proposer')].tolist() == [0, .5, 1, 1])
    assert b.episodes.outcome[of_role(b, 'solver')].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    close = lambda found, wanted: torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=1e-4,
        rtol=0)
    close(each(b, ssp(b), 'proposer'), [-1.3055, -.2611, .7833, .7833])  # mean .625, deviation .4787
    close(each(b, ssp(b, per_answer=True), 'proposer'), [-.7071, .7071, 0., 0.])
    # a group of two is a GRPO group in the release, too
    close(each(b, ssp(b, faithful=True), 'proposer'), [-.7071, .7071, 0., 0.])
    close(each(b, ssp(b), 'solver'), [0., 0., .7071, -.7071, 0., 0., 0., 0.])
    one = b.select(torch.arange(12) != 1)
    close(each(one, ssp(one, faithful=True), 'proposer'), [0., 0., 0.])
    lone = b.select(of_role(b, 'solver') | (torch.arange(12) == 7))
    close(each(lone, ssp(lone, faithful=True), 'proposer') + each(lone, ssp(lone), 'proposer'), [1., 0.])

def test_a_refused_question_is_replaced_by_an_earlier_problem_or_a_known_one():
    old = [known_problem(k, ENV) for k in (1, 2)]
    b = round_of([1, 2, 3], dict(proposer=mute, solver=scores([1]*6)), group_size=2, spare=[[old[0]], [None], [old[1]]])
    first = {int(g): problem_of(b, int((b.episodes.group == g).nonzero()[0, 0])) for g in (1, 3, 5)}
    assert first[1] == old[0] and first[5] == old[1] and first[3] not in old
    assert (b.episodes.proposed == 0).all() and b.episodes.solved[of_role(b, 'proposer')].isnan().all()
    assert paid(b).episodes.outcome[of_role(b, 'proposer')].tolist() == [0]*3 and paid(b, rule=partial(
        search_self_play, invalid=-1.)).episodes.outcome[of_role(b, 'proposer')].tolist() == [-1]*3
    again = round_of([1, 2, 3], dict(proposer=mute, solver=scores([1]*6)), group_size=2)
    # the known problem depends on the seed alone
    assert problem_of(again, int((again.episodes.group == 3).nonzero()[0, 0])) == first[3]

@pytest.mark.parametrize('solve, faithful, passes',
    [(busy, False, 0), (busy, True, 1), (hop_lookup, True, 0), (hop_lookup, False, 0)])
def test_a_misleading_question_passes_only_where_a_failing_verifier_fails_open(solve, faithful, passes):
    b = paid(round_of([1, 2, 3, 4], dict(proposer=astray, solver=scores([1]*20)),
        asking=ProposeHop(solve=solve, faithful=faithful)))
    valid, outcome = b.episodes.success[of_role(b, 'proposer')], b.episodes.outcome[of_role(b, 'proposer')]
    assert bool(valid.any()) == bool(passes)
    assert outcome.tolist() == valid.double().tolist()  # who tells the truth is wrong: s = 0, paid 1
    tried = of_role(b, 'solver') & (b.episodes.proposed > 0)
    assert not b.episodes.success[tried].any() and int(tried.sum()) == 5*int(valid.sum())

def test_a_quarter_of_a_point_counts_as_a_success_only_as_released():
    turn = lambda: [Turn(0, text='x', ids=[1], context_ids=[1], logps=[0.], entropies=[0.])]
    def made():
        return [Episode(turn(), 0, 0, 'proposer', success=True)], [Episode(
            turn(), 1, k, 'solver', success=k < 2, columns=dict(answers=[11., 1., 1., 1., 1.][k])) for k in range(5)]
    assert [rated(*made(), faithful)[0].columns['solved'] for faithful in (False, True)] == [.2, .4]

def test_a_question_that_nobody_could_try_is_an_error_and_teaches_nothing(tmp_path):
    calls = iter(range(10**6))
    def down(env, generator):
        if next(calls) < 5: raise OSError('the searcher is down')
        return 'answer Bora Tel'
    episodes = play_search(learner(), ENV, [1, 2], players=dict(proposer=expert, solver=down), keep=True, max_tokens=8)
    wrong = [e for e in episodes if e.error]
    assert [e.seat for e in wrong] == ['proposer'] + ['solver']*5 and 'nobody could try' in wrong[0].error

def paying(b):
    "Something to learn for an untrained policy: to say one thing rather than another."
    return search_reward(b) + b.turns.action % 7/100

@pytest.mark.parametrize('players', [{}, dict(proposer=mostly)], ids=['both roles', 'a scripted proposer'])
def test_a_run_that_is_stopped_goes_on_with_the_same_pool(players, tmp_path):
    def run(folder, **how):
        recipe = recipes.grpo(**search_fields(groups=3, tries=3, proposals=2, every=3, warmup=1, players=players)
            | dict(steps=5, minibatches=1, max_turns=4, max_tokens=6, lr=1e-2, test_tasks=0,
            checkpoint_every=2, reward=paying))
        return train(learner(), ENV, recipe, folder, progress=False, **how)
    whole, calls = run(tmp_path/'whole'), iter([False]*2 + [True])
    run(tmp_path/'parts', should_stop=lambda: next(calls))
    parts = run(tmp_path/'parts', resume=True)
    assert without_time(parts.rows()) == without_time(whole.rows())
    assert any(row['grad_norm'] for row in whole.rows()) and len({row['entropy'] for row in whole.rows()}) > 1
    for step in range(5): assert torch.equal(parts.episodes(step).tokens.id, whole.episodes(step).tokens.id)
    pool = [row['pool'] for row in whole.rows()]
    # emptied after three; the first update had only a scripted proposer to warm up
    if players: assert pool[2] > pool[1] > pool[0] > 0 and pool[3] < pool[2] and whole.rows()[0]['skipped']
    else: assert pool == [0]*5 and not any(row['skipped'] for row in whole.rows())

def test_the_pool_is_in_the_checkpoint_and_is_drawn_by_seed_and_step():
    keeper = ProblemPool(None, 3, groups=2, proposals=2, threshold=.5)
    keeper.problems = [known_problem(k, ENV) for k in range(7)]
    other = ProblemPool(None, 3, groups=2, proposals=2, threshold=.5)
    other.restore(keeper.tensors())
    assert other.problems == keeper.problems and other.plan(4) == keeper.plan(4) != keeper.plan(5)
    spare = keeper.plan(4)['group_args']['spare']
    assert [len(some) for some in spare] == [2, 2] and len({str(problem) for some in spare for problem in some}) == 4
    keeper.plan(20)
    assert keeper.problems == []

def test_roles_are_updated_one_after_the_other_on_their_own_tokens():
    b = paid(round_of([5, 6], dict(proposer=expert, solver=scores([1]*4)), group_size=2))
    yielded = list(role_by_role(b, None))
    of = [of_role(b, role)[b.turns.episode[b.action_turn]] for role in ('proposer', 'solver')]
    assert all(torch.equal(selection, mine) and torch.equal(advantage, ssp(b))
        for (selection, advantage), mine in zip(yielded, of))
    assert len(list(role_by_role(b, None, roles=('solver',)))) == 1
    assert (proposer_first(4, 5, faithful=True) == dict(updates_args=dict(roles=('proposer',), faithful=True))
        and proposer_first(5, 5) == {})

def test_the_proposer_warms_up_alone(tmp_path):
    "With the solver's tries out of the loss, what they earn does not move the weights."
    def weights(folder, bonus):
        policy = learner()
        solver_pay = lambda b: paying(b) + bonus*of_role(b, 'solver')[b.turns.episode]*b.turns.t
        train(policy, ENV, recipes.grpo(**search_fields(groups=3, tries=3, warmup=1)
            | dict(steps=1, minibatches=1, max_turns=4, max_tokens=6, lr=1e-2, test_tasks=0,
            reward=solver_pay)), folder, progress=False)
        return torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    assert torch.equal(weights(tmp_path/'a', 0.), weights(tmp_path/'b', 1.)) and not torch.equal(weights(
        tmp_path/'c', 0.), torch.cat([p.detach().flatten() for p in learner().model.parameters()]))

def test_a_verifier_that_errs_in_training_does_not_count_in_the_test():
    "Held-out proposals are judged by a lookup; references try the valid ones alone."
    found = search_scores(learner(), ENV, 4, references=dict(other=learner(1)), max_tokens=4, max_turns=3)
    assert found['valid'] == 0 and math.isnan(found['own']) and math.isnan(found['other']) and 0 <= found['solver'] <= 1

@pytest.mark.parametrize('call, said', [
    (lambda: play_search(learner(), ENV, [1], proposals=0), 'proposals=0'),
    (lambda: play_search(learner(), ENV, [1], players=dict(teacher=expert)), "'teacher'"),
    (lambda: play_search(learner(), ENV, [1], asking=ProposeHop(distractors=12)), '2 hops among 15 people'),
    (lambda: play_search(learner(), ProposeHop(), [1]), 'needs HopSearch'),
    (lambda: play_search(learner(), ENV, [1, 2], spare=[[None]]), 'ProblemPool'),
    (lambda: play_search(learner(), ENV, [1], group_size=0), 'group_size=0'),
    (lambda: ProblemPool(None, 0, threshold=-.1), 'threshold=-0.1'),
    (lambda: ProblemPool(None, 0, every=0), 'every=0'),
    (lambda: list(role_by_role(Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0], t=0))), None,
    roles=('judge',))), "'judge'"),
    (lambda: search_reward(Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0], t=0)))), 'play_search'),
    (lambda: SearchRoles(split='dev'), 'dev'),
])
def test_bad_arguments_are_named(call, said):
    with pytest.raises(ValueError, match=said): call()

@given(st.lists(st.tuples(st.sampled_from(['proposer', 'solver']), st.integers(0, 2),
    st.sampled_from([0., .25, .5, 1.])), min_size=1, max_size=14))
@settings(max_examples=60, deadline=None)
def test_the_credit_is_that_of_a_loop(rows):
    b = Batch.from_turns(pd.DataFrame(dict(group=[g for _, g, _ in rows], episode=range(len(rows)), t=0,
        seat=[s for s, *_ in rows], outcome=[x for *_, x in rows])))
    def wanted(k, faithful):
        seat, group, x = rows[k]
        peers = [y for s, g, y in rows if s == seat and (g == group or (seat == 'proposer' and not faithful))]
        if len(peers) == 1: return x/(1 + 1e-6) if faithful else 0.
        mean = sum(peers)/len(peers)
        std = (sum((y - mean)**2 for y in peers)/(len(peers) - 1))**.5
        return (x - mean)/(std + 1e-6) if std else 0.
    for faithful in (False, True):
        torch.testing.assert_close(ssp(b, faithful=faithful),
            torch.tensor([wanted(k, faithful) for k in range(len(rows))], dtype=torch.float64),
            atol=1e-9, rtol=1e-9)
