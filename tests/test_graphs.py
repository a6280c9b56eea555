"Graphs of agents: exact accuracies by hand and by chance, edits that keep what helps, and the advantage of MasHost."
import math
import random
import sys
from itertools import permutations, product
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import grpo
from agentlab.env import check_env
from agentlab.episodes import Batch
from agentlab.prompt.graphs import (check_society, debate, edit_graph, first_answers, gains, graph_accuracy, hrpo,
    majority)
from agentlab.train import Recipe, train
from small import small_policy

sys.path += [str(Path(__file__).resolve().parent.parent/folder) for folder in ('tools', 'tools/claims')]

import mashost
import optagent
from _host import KINDS, ROLES, Host, answers

quick = settings(max_examples=12, deadline=None)
crowds = st.lists(st.floats(0, 1), min_size=2, max_size=4).map(tuple)

def pairs(n, draw): return draw.sample([*permutations(range(n), 2)], draw.randint(0, n*(n - 1)))

# ---- OPTAGENT

def test_a_debate_by_hand():
    "Sure listeners: the first makes the second right, the second then the third; a wrong speaker breaks a right one."
    draw = random.Random(0)
    assert debate([True, False, False], [(1, 2), (0, 1)], 1., draw) == ([True, True, True], [1, 1])
    assert debate([False, True], [(0, 1)], 1., draw) == ([False, False], [-1])
    assert debate([False, True], [(0, 1)], 0., draw) == ([False, True], [0])

@pytest.mark.parametrize('chances, edges, q, found', [
    ((.6, .7, .8), [], .5, .788),  # .6*.7*.8 + .4*.7*.8 + .6*.3*.8 + .6*.7*.2
    ((.3, .4, .9), [(2, 0), (2, 1)], 1., .9), ((.3, .4, .9), [(0, 1), (0, 2)], 1., .3),
    ((.5, .9), [], .5, .7), ((.5, .9), [(1, 0)], 1., .9), ((1., 1.), [(0, 1)], .3, 1.)])
def test_accuracies_by_hand(chances, edges, q, found):
    assert math.isclose(graph_accuracy(chances, edges, q), found, abs_tol=1e-12)

@quick
@given(chances=crowds, q=st.floats(0, 1), seed=st.integers(0, 999))
def test_the_exact_accuracy_is_that_of_all_ways_a_debate_can_go(chances, q, seed):
    edges, whole = pairs(len(chances), random.Random(seed))[:4], 0.
    for first in product((True, False), repeat=len(chances)):
        for believed in product((True, False), repeat=len(edges)):
            right, weight = list(first), math.prod(p if told else 1 - p for p, told in zip(chances, first))
            for (speaker, listener), yes in zip(sorted(edges), believed):
                if yes: right[listener] = right[speaker]
            weight *= math.prod(q if yes else 1 - q for yes in believed)
            whole += weight*majority({tuple(right): 1.})
    assert math.isclose(graph_accuracy(chances, edges, q), whole, abs_tol=1e-9)
    assert math.isclose(sum(first_answers(chances).values()), 1., abs_tol=1e-9)

def test_the_order_in_which_edges_are_told_does_not_matter():
    edges = [(0, 1), (1, 2), (2, 0)]
    assert len({round(graph_accuracy((.4, .6, .8), some, .6), 12) for some in permutations(edges)}) == 1

def test_gains_are_what_a_debate_does_to_its_listener():
    "One edge: the speaker is believed with chance q, so the gain is q (p of the speaker - p of the listener)."
    found = gains((.9, .4, .5), [(0, 1)], .7, 4000, random.Random(0))
    assert abs(found[0] - .7*(.9 - .4)) < .03
    assert abs(gains((.9, .4, .5), [(1, 0)], .7, 4000, random.Random(0))[0] + .35) < .03

@quick
@given(n=st.integers(2, 5), seed=st.integers(0, 999), rounds=st.integers(0, 8))
def test_an_edit_keeps_the_number_of_edges_and_is_the_same_again(n, seed, rounds):
    draw = random.Random(seed)
    start = pairs(n, draw)[:n*(n - 1) - 1]
    score = lambda edges: [(3*i + j) % 5 for i, j in edges]
    one, two = (edit_graph(start, n, score, rounds, random.Random(seed)) for _ in range(2))
    assert one == two and len(set(one)) == len(start)
    assert all(0 <= i < n and 0 <= j < n and i != j for i, j in one)
    assert sum(score(one)) >= sum(score(sorted(start)))  # the worst goes, so the sum of fixed scores never falls

def test_edits_find_the_speaker_whom_all_should_hear():
    chances, draw = (.4, .95, .45, .5), random.Random(0)
    found = edit_graph([(0, 1), (2, 1), (3, 1)], 4, lambda edges: gains(chances, edges, .8, 200, draw), 40, draw)
    assert found == [(1, 0), (1, 2), (1, 3)]

@pytest.mark.parametrize('call', [
    lambda: check_society([.5]), lambda: graph_accuracy((.5,), [], .5), lambda: edit_graph([], 1, len, 1, None)])
def test_a_society_of_one_is_refused(call):
    with pytest.raises(ValueError, match='1 agent is no society: give at least 2, or ask it alone'): call()

@pytest.mark.parametrize('wrong', [-.1, 1.5, math.nan])
def test_what_is_no_chance_is_refused(wrong):
    with pytest.raises(ValueError, match='give numbers from 0 to 1'): check_society([.5, wrong])

@pytest.mark.parametrize('call, says', [
    (lambda: graph_accuracy((.5, .5), [(0, 2)], .5), 'edge (0, 2): give (speaker, listener), two different numbers'),
    (lambda: graph_accuracy((.5, .5), [(1, 1)], .5), 'edge (1, 1)'), (lambda: graph_accuracy((.5, .5), [], 2), 'q=2'),
    (lambda: edit_graph([(0, -1)], 2, len, 1, None), 'edge (0, -1)'),
    (lambda: edit_graph([(0, 1), (1, 0)], 2, len, 1, None), '2 edges: everybody hears everybody; begin with fewer')])
def test_graphs_that_nobody_can_mean_are_refused(call, says):
    with pytest.raises(ValueError) as error: call()
    assert says in str(error.value)

def test_every_arm_of_the_claim_makes_as_many_calls():
    assert optagent.CALLS == optagent.AGENTS + optagent.EDGES == 3 + 3*2  # three agents, all to all
    assert len(optagent.edited((.5,)*5, random.Random(0))) == optagent.EDGES
    sure, all_right = random.Random(0), (1.,)*5
    for arm in optagent.CLAIM.arms: assert math.isclose(optagent.accuracy(arm, all_right, sure), 1.)

# ---- MasHost

def batch(outcomes, redundant):
    "Games of one group; redundant[game][action]."
    return Batch.from_turns(pd.DataFrame([
        dict(group=0, episode=e, t=t, reward=0., outcome=won, redundant=float(flag))
        for e, won in enumerate(outcomes) for t, flag in enumerate(redundant[e])]))

def test_the_advantage_by_hand():
    "R = 1, 0, 1, 0; the third action of the first game changed nothing: .8660, .8660, .8160."
    b = batch([1., 0., 1., 0.], [[0, 0, 1], [0]*3, [0]*3, [0]*3])
    found = hrpo(b)
    torch.testing.assert_close(found[:3], torch.tensor([.8660, .8660, .8160], dtype=found.dtype), atol=5e-5, rtol=0)
    torch.testing.assert_close(hrpo(b, lam=0.), grpo(b))
    assert (hrpo(b) != grpo(b)).nonzero().flatten().tolist() == [2]

def test_the_first_actions_are_exempt_and_equal_outcomes_still_teach():
    b = batch([1., 1.], [[1, 1, 1, 1], [0, 0, 0, 0]])
    torch.testing.assert_close(hrpo(b), torch.tensor([0, 0, -.05, -.05, 0, 0, 0, 0], dtype=torch.float64))
    assert hrpo(b, exempt=0).nonzero().flatten().tolist() == [0, 1, 2, 3]

def test_without_the_column_it_says_what_to_do():
    b = Batch.from_turns(pd.DataFrame([dict(group=0, episode=e, t=0, reward=0., outcome=0.) for e in (0, 1)]))
    with pytest.raises(ValueError, match="no column 'redundant'"): hrpo(b)

def said(*actions, kind='sum', world=3):
    env = Host()
    env.reset(0, dict(kind=kind, world=world))
    steps = [env.step(action) for action in actions]
    return env, [step.info['columns']['redundant'] for step in steps], steps[-1]

@pytest.mark.parametrize('actions, wasted, left', [
    (['adder 0', 'adder 0', 'exit'], [0, 1, 0], 2), (['checker 0', 'exit'], [1, 0], 1),
    (['adder 0', 'checker 1', 'voter 2', 'exit'], [0, 0, 0, 0], 3), (['adder 0', 'checker 2', 'exit'], [0, 1, 0], 2),
    (['adder 0', 'checker 1', 'delete 1', 'exit'], [0, 0, 1, 0], 2), (['adder 0', 'delete 1', 'exit'], [0, 0, 0], 0),
    (['dance', '', 'adder x', 'adder -1', 'adder 99999', 'exit'], [1, 1, 1, 1, 1, 0], 0)])
def test_actions_that_change_nothing(actions, wasted, left):
    env, found, step = said(*actions)
    assert found == wasted and step.done and step.info['columns']['nodes'] == left

def test_a_duplicate_says_the_same_and_a_node_without_input_says_nothing():
    for world in range(40):
        right = answers({1: ('mapper', 0), 2: ('mapper', 0), 3: ('checker', 7), 4: ('voter', 0)}, 'way', world)
        assert set(right) == {1, 2} and right[1] == right[2]

def test_workers_are_right_as_often_as_they_should_be():
    share = lambda nodes: sum([*answers(nodes, 'name', world).values()][-1] for world in range(4000))/4000
    assert abs(share({1: ('namer', 0)}) - .85) < .02 and abs(share({1: ('adder', 0)}) - .35) < .03
    assert abs(share({1: ('adder', 0), 2: ('checker', 1)}) - (.35*.95 + .65*.5)) < .03

def test_the_world_keeps_the_protocol_and_ends_at_its_horizon():
    assert set(check_env(Host()).values()) == {'ok'}
    _, _, step = said(*['namer 0']*6, kind='name')
    assert step.done and 'success' in step.info

def test_the_fixed_graph_is_made_of_nodes_that_read_something():
    graph = {1: ('adder', 0), 2: ('checker', 1)}
    one = mashost.worth([graph, {}], [dict(kind='sum', world=1), dict(kind='sum', world=1)])
    assert one['nodes'] == 1 and one['worth'] == one['success'] - mashost.PRICE
    assert set(KINDS.values()) < set(ROLES)

@pytest.mark.parametrize('lam', [0., .5])
def test_a_policy_builds_graphs_and_learns(tmp_path, lam):
    from functools import partial
    policy = small_policy(Host())
    before = [p.detach().clone() for p in policy.model.parameters()]
    made = Recipe('hrpo', 'in the spirit of MasHost', credit=partial(hrpo, lam=lam, exempt=0), steps=1, groups=4,
        group_size=4, max_turns=6, max_tokens=4, test_tasks=0)
    rows = train(policy, Host(), made, tmp_path/'run', progress=False).rows()
    moved = any((a != b).any() for a, b in zip(before, policy.model.parameters()))
    assert moved == (rows[0]['grad_norm'] > 0) and (moved or not lam)
