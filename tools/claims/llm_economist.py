"""A planner who tries rates and remembers against Saez's formula, in an economy whose best rates can be computed.

100 workers with incomes as in the United States in 2023 answer every schedule with their best hours. A planner plays
`Taxes`: 20 periods of 25 years, from 50 percent everywhere, by moves of at most 20 points a bracket. `search` is the
smallest planner that learns in context: near the best rates so far it tries others. Saez's rates are computed anew
in every period from the incomes there are; elasticity .4 is the true one of these workers, 3 the default of the
released code. Each arm answers with the best rates of its 20 periods, `votes` with the last. `grid` is the best of
11^3."""
import random

from claims import Claim

WORKERS, PERIODS, CANDIDATES = 100, 20, 5

def begun(seed: int):
    "The world at the beginning of the first period."
    from agentlab.env.taxes import Taxes, draw_skills
    env = Taxes(WORKERS, PERIODS)
    env.reset(seed, dict(skills=draw_skills(WORKERS, random.Random(f'workers {seed}'))))
    return env

def searched(env, seed: int) -> list:
    "Rates that were tried: those of each period a move away from the best so far."
    from agentlab.env.taxes import MOVES
    draw, words = random.Random(f'search {seed}'), {points: word for word, points in MOVES.items()}
    found, value = [(1., env.rates)], 1.
    for _ in range(PERIODS):
        best = max(found)[1]
        aim = [min(max(rate + draw.choice([*MOVES.values()]), 0), 100) for rate in best]
        step = env.step(' '.join(words[min(max(goal - rate, -20), 20)] for goal, rate in zip(aim, env.rates)))
        value += step.reward['player']
        found.append((value, env.rates))
    return [rates for _, rates in found]

def by_formula(env, elasticity: float) -> list:
    from agentlab.env.taxes import saez
    found = [env.rates]
    for _ in range(PERIODS): found.append(saez(env.economy.year(found[-1])[1], elasticity))
    return found[1:]

def voted(env, seed: int) -> list:
    from agentlab.env.taxes import election
    draw, found = random.Random(f'votes {seed}'), [env.rates]
    for _ in range(PERIODS):
        found.append(election(env.economy, found[-1], draw.sample(range(WORKERS), CANDIDATES), draw))
    return found[-1:]

def row(arm: str, seed: int) -> dict:
    from agentlab.env.taxes import best_rates, by_income, fixed, total
    env = begun(seed)
    economy = env.economy
    tried = dict(search=lambda: searched(env, seed), saez=lambda: by_formula(env, .4),
        default=lambda: by_formula(env, 3.), flat=lambda: [(rate,)*3 for rate in range(0, 101, 10)],
        votes=lambda: voted(env, seed), grid=lambda: [best_rates(economy)])[arm]()
    best, most = max(tried, key=economy.value), economy.value(best_rates(economy))
    values = {rule.__name__: economy.value(best, rule) for rule in (fixed, total, by_income)}
    return dict(share=round(values['fixed']/most, 4), sum=round(values['total']/economy.value((0,)*3, total), 4),
        by_income=round(values['by_income'], 1), start=round(economy.value((50,)*3)/most, 4),
        rates=[round(rate, 1) for rate in best])

CLAIM = Claim(
    key='llm-economist', says="A planner that searches in context beats Saez's rates.", row=row,
    arms=('search', 'saez', 'default', 'flat', 'votes', 'grid'), control='saez', measure='share', margin=.02,
    budget='20 periods of 25 years', world='Taxes: 100 workers, best replies, 3 brackets; fixed-weight welfare as a '
    'share of the best of 11^3', seeds=tuple(range(20)),
    settings=dict(workers=WORKERS, periods=PERIODS, candidates=CANDIDATES))
