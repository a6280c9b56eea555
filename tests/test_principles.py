"A reward model that is told its principles: SALMON."
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st

from agentlab.episodes import Batch
from agentlab.reward.principles import (agreed, asked_in_pairs, curious, examples, finished, fitted, principled, short,
    traits)

def games(*rows):
    "(won, turns, states) of each game."
    return Batch.from_turns(pd.DataFrame([
        dict(group=0, episode=e, t=t, state=states[t % len(states)], reward=0., outcome=float(won), success=bool(won))
        for e, (won, turns, states) in enumerate(rows) for t in range(turns)]))

@pytest.fixture
def some():
    rows = [(won, turns, states) for won in (0, 1) for turns in (2, 4, 8) for states in ('a', 'ab', 'abcdefgh')]
    return games(*rows)

def model_of(b, opinions=(finished, short), seed=0):
    difference, *answers = asked_in_pairs(b, opinions, seed=seed)
    return fitted(difference, *examples(agreed(*answers), seed))

def of_games(b, wanted, model): return principled(b, wanted, model)[b.last_turns()]

def test_traits_are_counted():
    b = games((1, 4, 'ab'), (0, 2, 'ab'), (0, 1, 'a'))
    assert traits(b).tolist() == [[1., 1., .5], [0., .5, 1.], [0., .25, 1.]]

def test_orders_that_disagree_say_nothing():
    one, other = torch.tensor([[2., .5]]), torch.tensor([[1., -.5]])
    assert agreed(one, other, torch.tensor([3., 1.])).tolist() == [[.5, 0.]]

@given(st.integers(0, 10**6), st.integers(1, 4))
def test_an_example_names_some_principles_and_the_strongest_decides(seed, most):
    scores = torch.tensor([[1., -2., 0., 3.]]*20).double()
    named, side = examples(scores, seed, most=most)
    assert named.abs().sum(1).min() >= 1 and named.abs().sum(1).max() <= most
    for signs, preferred in zip(named.tolist(), side.tolist()):
        strongest = max((s*x for s, x in zip(signs, (1., -2., 0., 3.))), key=abs)
        assert preferred == (strongest > 0) - (strongest < 0)

def test_an_example_without_a_score_is_dropped(some):
    difference, *answers = asked_in_pairs(some, (finished, short))
    scores = agreed(*answers)
    named, side = examples(scores)
    kept = side != 0
    assert 0 < kept.sum() < len(side)
    all_of_them, kept_ones = fitted(difference, named, side), fitted(difference[kept], named[kept], side[kept])
    assert torch.allclose(all_of_them, kept_ones, atol=1e-6)

def test_the_same_model_told_otherwise_prefers_otherwise(some):
    "And its preference among games that are won is turned round; whether they are won matters as before."
    model = model_of(some)
    brief, long = of_games(some, (1., 1.), model), of_games(some, (1., -1.), model)
    f = traits(some)
    assert f[brief.argmax()].tolist()[:2] == [1., .25] and f[long.argmax()].tolist()[:2] == [1., 1.]

def test_shuffled_principles_take_the_difference_away(some):
    difference, *answers = asked_in_pairs(some, (finished, short), pairs=4096)
    named, side = examples(agreed(*answers))
    mixed = named[torch.randperm(len(named), generator=torch.Generator().manual_seed(0))]
    right, wrong = fitted(difference, named, side), fitted(difference, mixed, side)
    assert wrong.abs().max() < .2*right.abs().max()

def test_salmon_pays_by_what_is_wanted(some):
    "The rewards of a batch move with the principles; without a model, one is fitted to three of them on the batch."
    rewards = [principled(some, wanted) for wanted in ((1., 1., 0.), (1., -1., 0.), (0., 0., 1.))]
    assert not torch.allclose(rewards[0], rewards[1])
    best = of_games(some, (0., 0., 1.), model_of(some, (finished, short, curious))).argmax()
    assert traits(some)[best, 2] == 1.  # all its states are new
    assert all((reward[~some.last_turns()] == 0).all() for reward in rewards)

def test_what_cannot_be_fitted_or_asked_is_said(some):
    ones = torch.ones(3, 2)
    with pytest.raises(ValueError, match='agreed with itself'): fitted(ones, ones, torch.zeros(3))
    with pytest.raises(ValueError, match='names 2 principles, the model knows 3'): principled(some, (1., 1.))
    bare = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 1], t=0, reward=0., outcome=0., success=False)))
    with pytest.raises(ValueError, match='state'): principled(bare)
