"Ratings and meta-strategies: what a notebook cell cannot show."
import itertools, math

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from agentlab.env.protocol import random_states
from agentlab.selfplay.meta import (beaten_by, hard, linear, nash_sampler, pfsp, project, projected_replicator,
    replicate, risk_averse_response, risk_averse_utility, variance)
from agentlab.selfplay.ratings import (Results, bradley_terry, cyclic_triples, hodge, log_odds, rating_frame,
    results_frame, tally, wilson)

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32)
sizes = st.integers(1, 6)

def close(a, b, **how):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64), **how)

def draw_games(n, count, seed, names='abcdefgh'):
    "A list of games, wins, losses and ties, in which some pairs may be missing."
    generator = torch.Generator().manual_seed(seed)
    pairs = [torch.randperm(n, generator=generator)[:2].tolist() for _ in range(count)] if n > 1 else []
    return [(names[i], names[j], int(torch.randint(3, (1,), generator=generator))/2) for i, j in pairs]

def draw_payoff(n, seed, holes=0.):
    "A random antisymmetric table; a share of its pairs is NaN."
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    a = a.masked_fill(torch.rand(n, n, generator=generator) < holes, math.nan).triu(1)
    return a - a.T

# results

@few
@given(sizes, st.integers(0, 40), seeds)
def test_tally_counts(n, count, seed):
    "The table is what a dictionary counts; every game gives one point; missing pairs are listed."
    games, names = draw_games(n, count, seed), list('abcdefgh'[:n])
    r = tally(games, names)
    for i, j in itertools.product(range(n), repeat=2):
        mine = [score if (a, b) == (names[i], names[j]) else 1 - score for a, b, score in games
            if {a, b} == {names[i], names[j]} and i != j]
        assert r.games[i, j] == len(mine) and r.points[i, j] == sum(mine)
        assert math.isnan(r.rate[i, j]) == (not mine)
        if i < j: assert ((names[i], names[j]) in r.missing()) == (not mine)
    assert r.points.sum() == len(games)
    frame = results_frame(r)
    assert len(frame) == n*(n - 1)//2 and frame.rate.isna().sum() == len(r.missing())
    swapped = tally([(b, a, 1 - score) for a, b, score in games], names)
    close(swapped.points, r.points)

@few
@given(st.integers(0, 60), st.integers(1, 60), st.floats(.1, 4))
def test_wilson(points, games, z):
    "The ends of the interval are z standard errors from the rate; it mirrors, and shrinks with more games."
    points = min(points, games)
    low, high = (float(x) for x in wilson(points, games, z))
    rate = points/games
    assert 0 <= low <= rate + 1e-12 and rate - 1e-12 <= high <= 1
    for p in (low, high):
        if 1e-9 < p < 1 - 1e-9: assert math.isclose(abs(rate - p), z*math.sqrt(p*(1 - p)/games), abs_tol=1e-9)
    mirrored = [float(x) for x in wilson(games - points, games, z)]
    assert math.isclose(mirrored[0], 1 - high, abs_tol=1e-12) and math.isclose(mirrored[1], 1 - low, abs_tol=1e-12)
    wide, narrow = high - low, [float(x) for x in wilson(100*points, 100*games, z)]
    assert narrow[1] - narrow[0] < wide
    assert all(math.isnan(x) for x in wilson(0, 0))

# Bradley and Terry

@few
@given(sizes, st.integers(0, 40), seeds)
def test_ratings_are_the_mode(n, count, seed):
    "The gradient of the posterior is 0 there, as computed by autograd; errors are those of the inverse curvature."
    r = tally(draw_games(n, count, seed), list('abcdefgh'[:n]))
    found = bradley_terry(r, prior=.1)
    s = found.strength.clone().requires_grad_()  # the mode has mean 0 by itself: the likelihood does not see the mean
    def posterior(s): return (r.points*torch.nn.functional.logsigmoid(s[:, None] - s)).sum() - .05*(s**2).sum()
    gradient, = torch.autograd.grad(posterior(s), s)
    assert gradient.abs().max() < 1e-8 and abs(found.strength.sum()) < 1e-9
    hessian = torch.autograd.functional.hessian(posterior, found.strength)
    centre = torch.eye(n, dtype=torch.float64) - 1/n
    close(found.covariance, centre @ torch.linalg.inv(-hessian) @ centre, atol=1e-6, rtol=1e-6)
    assert (found.covariance.diagonal() >= -1e-12).all() and len(rating_frame(found)) == n

@few
@given(st.integers(2, 6), seeds)
def test_ratings_do_not_know_names(n, seed):
    "Another order of players, the same strengths; results turned round, strengths with the opposite sign."
    games, order = draw_games(n, 25, seed), torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    names = list('abcdefgh'[:n])
    one, other = bradley_terry(tally(games, names)), bradley_terry(tally(games, [names[i] for i in order]))
    close(other.strength, one.strength[order], atol=1e-8, rtol=0)
    close(other.error, one.error[order], atol=1e-8, rtol=0)
    close(bradley_terry(tally([(a, b, 1 - score) for a, b, score in games], names)).strength, -one.strength, atol=1e-8,
        rtol=0)

@few
@given(st.integers(2, 5), seeds)
def test_more_games_smaller_errors(n, seed):
    "Every game four times: the errors are about halved, and never larger."
    games = draw_games(n, 30, seed) + [(a, b, .5) for a, b in itertools.combinations('abcdefgh'[:n], 2)]*4
    one, four = bradley_terry(tally(games), prior=1e-4), bradley_terry(tally(games*4), prior=1e-4)
    assert (four.error < one.error).all()
    close(four.error, one.error/2, rtol=.02, atol=0)

def test_components():
    "Players that are linked by games, also over many steps; a player without games stands alone."
    names = [f'p{i}' for i in range(12)]
    r = tally([(names[i], names[i + 1], 1) for i in range(9)], names)
    found = bradley_terry(r)
    assert found.component.tolist() == [0]*10 + [10, 11] and rating_frame(found).component.nunique() == 3
    assert (found.strength[:-3] > found.strength[1:-2]).all()    # the chain is a ladder
    alone, error = found.between('p10', 'p11')
    assert abs(alone) < 1e-9 and abs(error - (2/.1)**.5) < 1e-6  # the prior alone

def test_extremes():
    "Hopeless results end in finite numbers and a finite time."
    r = tally([('a', 'b', 1)]*100_000 + [('b', 'c', 1)]*100_000)
    for prior in (1e-9, .1, 100.):
        found = bradley_terry(r, prior=prior)
        assert (found.strength.isfinite().all() and found.error.isfinite().all()
            and (found.strength[:-1] > found.strength[1:]).all())
    with pytest.raises(ValueError, match='no players'): bradley_terry(tally([]))

# ladders and circles

@few
@given(st.integers(1, 7), seeds, st.sampled_from([0., .3, .9]))
def test_hodge(n, seed, holes):
    """The parts add up, are orthogonal, and the potential is that of least squares; adding a ladder moves the ladder
    only."""
    payoff = draw_payoff(n, seed, holes)
    parts, known = hodge(payoff), ~payoff.isnan()
    close(torch.where(known, parts.transitive + parts.cyclic, 0.), torch.where(known, payoff, 0.))
    t, c = (torch.where(known, x, 0.) for x in (parts.transitive, parts.cyclic))
    assert abs((t*c).sum()) < 1e-8 and 0 <= parts.share <= 1 + 1e-12
    assert c.sum(1).abs().max() < 1e-8  # what is left flows round: nothing comes out at any player
    s = torch.randn(n, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    moved = hodge(payoff + (s[:, None] - s))
    close(torch.where(known, moved.cyclic, 0.), c, atol=1e-8, rtol=0)
    if holes == 0.: close(parts.potential, payoff.mean(1), atol=1e-9, rtol=0)

@few
@given(st.integers(1, 6), seeds, st.sampled_from([0., .3]))
def test_cyclic_triples(n, seed, holes):
    "As counted one by one."
    payoff = draw_payoff(n, seed, holes)
    whole = [t for t in itertools.combinations(range(n), 3)
        if not any(math.isnan(payoff[i, j]) for i, j in itertools.combinations(t, 2))]
    round_ = [t for t in whole if len({int((payoff[i, list(t)] > 0).sum()) for i in t}) == 1]
    found = cyclic_triples(payoff)
    assert math.isnan(found) if not whole else math.isclose(found, len(round_)/len(whole))

@few
@given(st.integers(2, 6), seeds)
def test_log_odds_of_a_ladder(n, seed):
    "With very many games of Bradley and Terry's players the table is a ladder, and its potentials are the strengths."
    s = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    games = torch.full((n, n), 1e9, dtype=torch.float64).fill_diagonal_(0)
    r = Results(tuple('abcdefgh'[:n]), games*torch.sigmoid(s[:, None] - s), games)
    assert hodge(log_odds(r)).share < 1e-9
    close(hodge(log_odds(r)).potential, s - s.mean(), atol=1e-6, rtol=0)
    close(bradley_terry(r).strength, s - s.mean(), atol=1e-6, rtol=0)

# choosing opponents

@few
@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=1, max_size=8),
    st.deferred(lambda: st.sampled_from([hard, variance, linear])))
def test_pfsp(rates, weigh):
    "A distribution that does not depend on the order; hard falls and linear rises with the rate."
    p = pfsp(rates, weigh)
    assert (p >= 0).all() and math.isclose(p.sum(), 1, abs_tol=1e-9)
    close(pfsp(rates[::-1], weigh), p.flip(0))
    filled = torch.tensor([.5 if math.isnan(x) else x for x in rates], dtype=torch.float64)
    by_rate = p[filled.argsort(stable=True)]
    if weigh(filled).sum() > 0 and weigh is not variance:
        assert ((by_rate.diff() <= 1e-12) if weigh is hard else (by_rate.diff() >= -1e-12)).all()

@few
@given(st.integers(1, 6), seeds, st.floats(0, 1))
@example(1, 0, 1 - 2**-53)  # what is free is lost in rounding
def test_project(n, seed, part):
    "In the simplex with every share at least gamma, itself its own projection, and nearer than any other such point."
    generator, gamma = torch.Generator().manual_seed(seed), part/n
    x = 3*torch.randn(n, generator=generator, dtype=torch.float64)
    p = project(x, gamma)
    assert (p >= gamma - 1e-9).all() and math.isclose(p.sum(), 1, abs_tol=1e-9)
    close(project(p, gamma), p, atol=1e-9, rtol=0)
    others = feasible(n, gamma, generator)
    assert ((others - x).square().sum(1) >= (p - x).square().sum() - 1e-9).all()

def feasible(n, gamma, generator):
    "Random points of the simplex with shares of at least gamma."
    e = -torch.rand(200, n, generator=generator, dtype=torch.float64).log()
    return gamma + (1 - n*gamma)*e/e.sum(1, keepdim=True)

@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), seeds, st.floats(0, 1))
def test_replicator_stays_in_the_simplex(rows, columns, seed, part):
    "Every step is a mixture; the result is the mean of the steps; the global generators are left alone."
    generator, before = torch.Generator().manual_seed(seed), random_states()
    a, b = (5*torch.randn(rows, columns, generator=generator, dtype=torch.float64) for _ in range(2))
    gamma = part/max(rows, columns)
    path = list(replicate(a, b, steps=50, dt=.3, gamma=gamma))
    assert len(path) == 51
    for x, y in path:
        for mixture in (x, y): assert mixture.min() >= gamma - 1e-9 and abs(mixture.sum() - 1) < 1e-9
    x, y = projected_replicator(a, b, steps=50, dt=.3, gamma=gamma)
    close(x, sum(x for x, _ in path)/51)
    close(y, sum(y for _, y in path)/51)
    assert random_states() == before

def test_replicator_numbers():
    "As OpenSpiel 2.0.2 (its projected_replicator_dynamics, two seats, dt=.1, gamma=.05, 40 steps)."
    x, y = projected_replicator([[1., -2], [-1, 3], [0, .5]], [[-1., 2], [1, -3], [.25, 1]], steps=40, dt=.1, gamma=.05)
    close(x, OPEN_SPIEL[0], atol=1e-9, rtol=0)
    close(y, OPEN_SPIEL[1], atol=1e-9, rtol=0)

OPEN_SPIEL = ([0.33106350497, 0.350651087694, 0.318285407337], [0.76977850401, 0.23022149599])

@settings(max_examples=8, deadline=None)
@given(st.integers(2, 5), seeds)
def test_nobody_beats_the_nash_mixture(n, seed):
    "Random win rates: the best answer to the mixture wins hardly more than half."
    w = torch.sigmoid(draw_payoff(n, seed))
    mixture = nash_sampler(w, steps=6000, dt=.05)
    assert beaten_by(w, mixture).max() < .51 and math.isclose(mixture.sum(), 1, abs_tol=1e-9)

def test_copies_do_not_count():
    "A player that is there four times has four times nothing more to say."
    w = torch.tensor([[.5, .2, .9], [.8, .5, .3], [.1, .7, .5]])
    kind = torch.tensor([0, 0, 0, 0, 1, 2])
    one, copied = nash_sampler(w, steps=8000, dt=.05), nash_sampler(w[kind][:, kind], steps=8000, dt=.05)
    close(torch.zeros(3, dtype=torch.float64).index_add_(0, kind, copied), one, atol=.02, rtol=0)

@few
@given(st.integers(1, 4), st.integers(1, 5), seeds, st.floats(0, 5))
def test_risk_averse(answers, opponents, seed, aversion):
    "As the variance is usually written; a constant answer never loses by aversion; the response is the best."
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(answers, opponents, generator=generator, dtype=torch.float64)
    s = feasible(opponents, 0., generator)[0]
    u = risk_averse_utility(a, s, aversion)
    close(u, (a*s).sum(1) - aversion*((a**2*s).sum(1) - (a*s).sum(1)**2))
    close(risk_averse_utility(torch.full((1, opponents), 2.), s, aversion), [2.])
    response = risk_averse_response(a, s, aversion)
    assert response[u.argmax()] > 0 and math.isclose(response.sum(), 1, abs_tol=1e-12)

@pytest.mark.parametrize('call, match', [
    (lambda: tally([('a', 'b', -.1)]), 'score'), (lambda: tally([('a', 'b', 1)], ['a', 'c']), 'two different'),
    (lambda: wilson(-1, 2), 'from 0'),
    (lambda: bradley_terry(tally([('a', 'b', 1)]), prior=-1), 'above 0'),
    (lambda: bradley_terry(tally([('a', 'b', 1)]), prior=math.nan), 'above 0'),
    (lambda: hodge(torch.zeros(2, 3)), 'antisymmetric|payoff'), (lambda: hodge([[0., math.nan], [1, 0]]), 'payoff'),
    (lambda: cyclic_triples([[1., 0], [0, 1]]), 'payoff'),
    (lambda: pfsp([[.5]]), 'one rate per opponent'), (lambda: pfsp([1.1]), 'from 0 to 1'),
    (lambda: pfsp([.5], lambda x: x*math.inf), 'finite'),
    (lambda: project([], .1), 'finite numbers'), (lambda: project([1., 2], -.1), 'least share'),
    (lambda: project([1., 2], math.nan), 'least share'),
    (lambda: projected_replicator([[1.]], [[1., 2]]), 'one shape'),
    (lambda: projected_replicator([[math.inf]]), 'finite'),
    (lambda: projected_replicator([[1., 0], [0, 1]], gamma=.7), 'least share'),
    (lambda: nash_sampler(torch.zeros(0, 0)), 'square'),
    (lambda: nash_sampler([[.5, 1.5], [-.5, .5]]), 'win_rates must'),
    (lambda: risk_averse_utility([[1., 2]], [.5, -.5]), 'probabilities'),
    (lambda: risk_averse_utility([[1., 2]], [.5, .5], math.inf), 'aversion'),
    (lambda: risk_averse_utility([[math.nan]], [1.]), 'finite')])
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match): call()
