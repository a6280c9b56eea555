"A search over designs: by hand, against a slower value model, and what must hold of every search."
import math, random, sys
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.prompt import covering, design_chances, new_part, pair_ridge, recombine, search_designs, shuffled
from agentlab.prompt.designs import Tried
from agentlab.rollout import Trees, evenly, legal

quick = settings(max_examples=8, deadline=None)
grids = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
SLOTS = dict(workflow='abc', memory='defg', tools='hijk', planning='lmn')

def close(found, wanted, atol=1e-8):
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=torch.float64), rtol=0, atol=atol)

def slots_of(sizes): return {f'slot {i}': list(range(n)) for i, n in enumerate(sizes)}
def additive(design): return sum('abcdefghijklmn'.index(part)*.1 for part in design.values())
def guessing(seed):
    draw = torch.Generator().manual_seed(seed)
    return lambda tried, designs: torch.rand(2, len(designs), generator=draw, dtype=torch.float64)

def test_the_third_is_drawn_for_its_surprise():
    s, u = torch.tensor([[.5, .7, .6], [.1, 0., .3]], dtype=torch.float64)
    close(design_chances(s, u), [.2388, .3649, .3963], 5e-5)
    assert design_chances(s, u, beta=0.).argmax() == 1
    close(design_chances(s, u, share=1.), [1/3]*3)

@quick
@given(sizes=grids, seed=st.integers(0, 99))
def test_any_two_parts_meet_in_a_covering_array(sizes, seed):
    found = covering(sizes, random.Random(seed))
    met = {pair for design in found for pair in combinations(enumerate(design), 2)}
    for (i, n), (j, m) in combinations(enumerate(sizes), 2):
        assert all(((i, a), (j, b)) in met for a in range(n) for b in range(m))
    assert len(set(found)) == len(found) <= math.prod(sizes)

@quick
@given(seed=st.integers(0, 99), n=st.integers(1, 12))
def test_the_kernel_is_the_regression_on_parts_and_pairs(seed, n):
    sizes, rng = (3, 2, 4), random.Random(seed)
    tried = [Tried(design, rng.gauss(0, 1), 0.) for design in shuffled(sizes, rng)[:n]]
    asked = shuffled(sizes, rng)
    each = [(part,) for part in enumerate(sizes)]
    names = [((i, a),) for i, k in enumerate(sizes) for a in range(k)] + [
        ((i, a), (j, b)) for (i, k), (j, m) in combinations(enumerate(sizes), 2) for a in range(k) for b in range(m)]
    hot = lambda designs: torch.tensor([[float(all(d[i] == a for i, a in name)) for name in names] for d in designs],
        dtype=torch.float64)/math.sqrt(len(each)*(len(each) + 1)/2)
    x, z, y = hot([t.design for t in tried]), hot(asked), torch.tensor([t.score for t in tried], dtype=torch.float64)
    inverse = torch.linalg.inv(x.T@x + .1*torch.eye(len(names)))
    guess, deviation = pair_ridge(tried, asked)
    close(guess, y.mean() + z@inverse@x.T@(y - y.mean()))
    close(deviation, y.std(correction=0)*(.1*(z@inverse*z).sum(1)).sqrt())

@quick
@given(sizes=grids, budget=st.integers(1, 40), labels=st.integers(0, 5), seed=st.integers(0, 9),
    known=st.booleans(), start=st.sampled_from([covering, shuffled, lambda sizes, rng: shuffled(sizes, rng)[:1]]))
def test_nothing_is_measured_twice_or_beyond_the_budget(sizes, budget, labels, seed, known, start):
    def searched():
        said = []
        def measure(design):
            said.append(tuple(design.values()))
            return random.Random(repr(said[-1])).random()
        value = pair_ridge if known else guessing(seed)
        found = search_designs(slots_of(sizes), measure, budget, seed, start=start, labels=labels, value=value)
        assert [one.design for one in found] == said
        return found
    found, again = searched(), searched()
    assert len(found) == len({one.design for one in found}) == min(budget, math.prod(sizes))
    assert [(one.design, one.score, one.surprise) for one in found] == [
        (one.design, one.score, one.surprise) for one in again]
    assert found[0].surprise == 0.

def test_scores_and_surprises_are_backed_up():
    found = search_designs(SLOTS, additive, 40, 0, labels=0)
    made = [one for one in found if one.parent]
    assert made and all(found.index(one.parent) < found.index(one) for one in made)
    for one in found:
        def above(other): return other is one or other.parent is not None and above(other.parent)
        assert one.below == [[other.score, other.surprise] for other in found if above(other)]

def test_candidates_differ_in_one_part_and_recombined_ones_are_of_good_designs():
    tried = [Tried((0, 0, 0, 0), .9, 0.), Tried((1, 1, 0, 0), .8, 0.), Tried((2, 3, 3, 2), .1, 0.)]
    assert len(new_part((0, 0, 0, 0), tried, (3, 4, 4, 3))) == 10
    assert recombine((0, 0, 0, 0), tried, (3, 4, 4, 3)) == [(1, 0, 0, 0), (0, 1, 0, 0)]

def test_the_best_of_an_additive_table_is_found_early_and_chance_needs_longer():
    best = max(additive(dict(zip(SLOTS, design))) for design in product(*SLOTS.values()))
    def needed(seed, **how):
        found = search_designs(SLOTS, additive, 50, seed, **how)
        return next((k for k, one in enumerate(found, 1) if one.score >= best - 1e-9), 51)
    with_model = [needed(seed) for seed in range(3)]
    assert max(with_model) <= 24
    assert sum(needed(seed, start=shuffled) for seed in range(3)) > sum(with_model)

@pytest.mark.parametrize('how, said', [
    (dict(slots=SLOTS | dict(memory=[])), "'memory': []"), (dict(evaluations=0), 'evaluations=0'),
    (dict(measure=lambda design: math.nan if design['tools'] == 'i' else 1.), "measure gave nan for {'workflow'")])
def test_bad_input_is_named(how, said):
    with pytest.raises(ValueError, match='^.*' + said.replace('[', r'\[').replace('{', r'\{')):
        search_designs(**dict(slots=SLOTS, measure=additive) | how)

# ---- a tree over who speaks next

@pytest.fixture
def halo():
    tools = Path(__file__).resolve().parent.parent/'tools'
    sys.path[:0] = [str(tools), str(tools/'claims')]
    yield __import__('halo')
    del sys.path[:2]

def test_roles_are_the_actions_of_a_tree_with_a_cap_and_plain_means(halo):
    words = word_tokenizer(halo.Workflow().vocabulary())
    policy = Policy(tiny_model(len(words), 128, hidden=8, layers=1, heads=1), words)
    trees = Trees(policy, halo.Workflow(), [0, 1], propose=legal, prior=evenly, sampler=halo.AnyRole(policy), steps=30)
    trees.grow(25)
    for root, spent, played in zip(trees.roots, trees.spent, trees.played):
        assert {child.text for child in root.children} == set(halo.ROLES)
        assert root.visits <= 25 and spent['steps'] < 30 + halo.DEPTH
        assert all(0 <= node.q <= 1 for node in root.below() if node.visits and node.parent)
        paid = [game.sides['player'].outcome for node, game in played]
        assert paid == [float(game.env.said == game.env.truth) for node, game in played]

@pytest.mark.parametrize('arm', ['tree', 'any order', 'vote', 'tree, judge errs'])
def test_no_arm_has_more_calls_and_equal_seeds_hear_the_same(halo, arm):
    heard = halo.heard(arm, [3, 4], 0, 24)
    assert heard == halo.heard(arm, [3, 4], 0, 24)
    assert all(1 <= len(found) <= 24 for found in heard)

def test_the_answer_that_was_approved_most_often_counts(halo):
    world = halo.Workflow()
    world.reset(5)
    wrong = (world.truth + 1) % halo.ANSWERS
    assert halo.right(5, [(wrong, 1.), (world.truth, 1.), (world.truth, 1.)])
    assert not halo.right(5, [(wrong, 1.), (world.truth, 1.)])
    assert not halo.right(5, [])
