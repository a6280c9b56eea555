"Taxes: a worker's best reply, three kinds of welfare, Saez's formula, elections, and a planner that is trained."
from itertools import product
from random import Random

import numpy as np
import pytest

from agentlab.env import check_env
from agentlab.env.taxes import (BRACKETS, MOVES, Economy, Taxes, best_rates, by_income, draw_skills, election, fixed,
    labour, moved, saez, tax, total)

FLAT, HALF = (0.,), (50, 50, 50)
SEVEN = 0., 11600., 47150., 100525., 191950., 243725., 609350.

def test_hours_at_half_by_hand():
    assert labour(np.array([300.]), (50,), FLAT)[0] == pytest.approx(94.02, abs=.005)
    assert labour(np.array([3000., 300.]), (0,), FLAT).tolist() == [100, 100]
    assert labour(np.array([300.]), (100,), FLAT)[0] == 0

@pytest.mark.parametrize('rate, code, weighed, summed', [
    (0, 2.754, 2.754, 395000), (40, 4.242, 4.242, 395000), (70, 6.313, 5.308, 391023), (90, 10.073, 5.677, 366216)])
def test_three_workers_by_hand(rate, code, weighed, summed):
    three = Economy((300, 800, 3000), FLAT)
    assert three.value((rate,), by_income) == pytest.approx(code, abs=.001)
    assert three.value((rate,), fixed) == three.value((rate,)) == pytest.approx(weighed, abs=.001)
    assert three.value((rate,), total) == pytest.approx(summed, abs=1)

@pytest.mark.parametrize('income, due', [(0, 0), (90000, 9000), (100000, 11000), (159100, 22820), (200000, 35090)])
def test_each_part_of_an_income_is_taxed_at_its_rate(income, due):
    assert tax(np.array([float(income)]), (10, 20, 30))[0] == pytest.approx(due)

@pytest.mark.parametrize('starts', [FLAT, BRACKETS, SEVEN])
@pytest.mark.parametrize('seed', range(4))
def test_no_other_number_of_hours_is_better(starts, seed):
    draw = np.random.default_rng(seed)
    skills, rates = draw.uniform(20, 5000, 6), draw.integers(0, 11, len(starts))*10
    gain = lambda skill, hours: skill*hours - tax(skill*hours, rates, starts) - .0005*hours**3.5
    for skill, hours in zip(skills, labour(skills, rates, starts)):
        assert gain(skill, np.array([hours]))[0] >= gain(skill, np.linspace(0, 100, 20001)).max() - 1e-6

def test_all_that_is_collected_comes_back():
    economy = Economy(draw_skills(50, Random(1)))
    u, z, hours = economy.year((30, 60, 80))
    assert u.sum() == pytest.approx((z - .0005*hours**3.5).sum())
    assert economy.value((0,)*3, total) >= max(economy.value((rate,)*3, total) for rate in range(10, 101, 10))

def test_inverse_incomes_can_be_gamed_and_fixed_weights_cannot():
    skills = draw_skills(60, Random(2))
    honest, gamed = Economy(skills), Economy(skills, welfare=by_income)
    best, trap = best_rates(honest), best_rates(gamed)
    assert trap[0] == 100 and gamed.value(trap) > 100*gamed.value(best)
    assert honest.value(trap) < honest.value(best) and honest.value(trap, total) < honest.value(best, total)

def test_the_grid_is_exhaustive():
    economy = Economy(draw_skills(10, Random(3)))
    best, steps = best_rates(economy, (0, 50, 90)), (0, 50, 90)
    assert economy.value(best) == max(economy.value(rates) for rates in product(steps, repeat=3))

def test_bounded_workers_have_half_where_they_are_not_content():
    skills = np.array([300., 800., 3000.])
    plain, _, _ = Economy(skills).year(HALF)
    u, z, _ = Economy(skills, patience=np.array([.2, .2, .2])).year(HALF)
    due = tax(z, HALF)
    content = due - due.mean() <= .2*z
    assert content.tolist() == [True, True, False]
    assert u.tolist() == pytest.approx(np.where(content, plain, plain/2).tolist())

@pytest.mark.parametrize('welfare', [total, fixed])
def test_altruists_work_for_all_and_adversaries_do_not(welfare):
    skills = np.array([300., 500., 700.])
    hours = {sign: Economy(skills, welfare=welfare, others={1: sign}).year((90,)*3)[2] for sign in (1, -1)}
    plain = Economy(skills, welfare=welfare).year((90,)*3)[2]
    assert hours[-1][1] == 0 and hours[1][1] > plain[1]
    assert (hours[1][[0, 2]] == plain[[0, 2]]).all()

def test_saez_in_the_last_bracket_by_hand():
    assert saez([200000, 300000], .4)[2] == pytest.approx(100*.2/(.2 + .4*250000/90900))
    assert saez([200000, 300000], (9, 9, .4))[2] == saez([200000, 300000], .4)[2]

def test_saez_below_it_is_the_formula():
    z = np.sort(draw_skills(40, Random(4)))*100
    at, e, n = 45000., .4, len(z)
    width = z.std(ddof=1)*n**(-1/5)
    density = sum(np.exp(-.5*((at - x)/width)**2)/(width*np.sqrt(2*np.pi)) for x in z)/n
    above = [x for x in z if x >= at]
    share = len(above)/n
    G, a = sum(1/x for x in above)/sum(1/x for x in z)/share, at*density/share
    assert saez(z, e)[0] == pytest.approx(100*(1 - G)/(1 - G + a*e))
    rates = np.array([saez(z, e) for e in (.1, .4, 1., 3.)])
    assert (np.diff(rates, axis=0) < 0).all()  # who answers more is taxed less

@pytest.mark.parametrize('incomes', [[1000, 1000.5], [0, 50000], [0, 0], [10**6, 10**7, 10**8]])
def test_saez_is_a_rate_whatever_the_incomes(incomes):
    assert all(0 <= rate <= 100 for rate in saez(incomes, .4))

def test_skills_are_those_of_the_distribution():
    incomes = np.sort(draw_skills(20000, Random(0)))*40
    assert (incomes > 0).all() and 36500 < np.median(incomes) < 40000
    scale = (incomes/72402.78)**2.0721  # then x/(1 - x) of a beta
    assert abs((scale/(1 + scale)).mean() - .48652/(.48652 + 1.14104)) < .01
    assert draw_skills(5, Random(7)) == draw_skills(5, Random(7))

@pytest.mark.parametrize('rates, moves, after', [((50, 50, 50), (-20, 0, 20), (30, 50, 70)),
    ((90, 10, 100), (20, -20, 10), (70, 30, 90))])
def test_a_move_that_would_leave_is_mirrored(rates, moves, after): assert moved(rates, moves) == after

def test_the_move_that_most_want_is_elected():
    economy = Economy((200, 250, 300, 4000))  # three who are given, one who gives
    assert election(economy, HALF, [0, 3], Random(0)) != election(economy, HALF, [3], Random(0))
    options = [moved(HALF, moves) for moves in product(MOVES.values(), repeat=3)]
    for who in (0, 3):
        best = max(economy.year(option)[0][who] for option in options)
        assert economy.year(election(economy, HALF, [who], Random(0)))[0][who] == pytest.approx(best)
    won = economy.year(election(economy, HALF, [0, 3], Random(0)))[0]
    assert sum(won >= economy.year(election(economy, HALF, [3], Random(0)))[0]) >= 3

def test_ties_are_drawn():
    two = Economy((300, 3000))
    assert len({election(two, HALF, [0, 1], Random(seed)) for seed in range(20)}) == 2

@pytest.mark.parametrize('skills', [[], [0, 1], [-1], [[1, 2]], [float('nan')]])
def test_what_are_no_skills_is_refused(skills):
    with pytest.raises(ValueError, match='skills='): Economy(skills)

# ---- the world

def test_the_world_keeps_the_protocol_and_pays_what_welfare_gains():
    env = Taxes(5, 6)
    assert set(check_env(env).values()) == {'ok'}
    step, paid = env.reset(3), 0.
    first = env.economy.value(HALF)
    while not step.done:
        step = env.step(Random(env.turns).choice(env.legal()))
        paid += step.reward['player']
    assert paid == pytest.approx(env.economy.value(env.rates)/first - 1) and step.info['truncated']

def test_the_expert_beats_the_formula():
    env = Taxes(10, 10, split='test')
    for task in env.tasks('test', 3):
        step = env.reset(0, task)
        while not step.done: step = env.step(env.expert())
        assert step.info['success']
        assert env.economy.value(env.rates) > .97*env.economy.value(best_rates(env.economy))

def test_other_texts_change_nothing():
    env = Taxes(4)
    env.reset(0)
    for text in ('', 'rise', 'rise rise rise rise', 'rise up down', '10 10 10'):
        step = env.step(text)
        assert step.info['invalid'] and env.rates == HALF and step.reward == dict(player=0.)
    assert env.step(' Rise  stay FALL.').info['state'] == (60, 50, 40)

def test_splits_have_no_task_in_common():
    env = Taxes(3)
    found = [str(task) for split in ('train', 'demo', 'test') for task in env.tasks(split, 5)]
    assert len(set(found)) == 15

def test_a_policy_trains_on_it(tmp_path):
    from agentlab.policy import tiny_policy
    from agentlab.train import load_recipe, train
    env = Taxes(3, 3)
    policy = tiny_policy(env, progress=False, steps=40, episodes=6, pool=24, noise=.5)
    before = [p.detach().clone() for p in policy.model.parameters()]
    made = load_recipe('grpo', steps=2, groups=2, group_size=4, max_turns=3, max_tokens=4, test_tasks=0)
    rows = train(policy, env, made, tmp_path, progress=False).rows()
    assert rows[-1]['grad_norm'] > 0 and any(row['reward'] for row in rows)
    assert any((a != b).any() for a, b in zip(before, policy.model.parameters()))
