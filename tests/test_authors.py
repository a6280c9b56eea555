"What the authors' own code computes, written down as plain loops, against ours."
import statistics
from random import Random

import pandas as pd
import pytest
import torch

from agentlab.credit import dr_mas, seeupo, seeupo_updates
from agentlab.episodes import Batch
from agentlab.reward.rankings import single_elimination

def knock_out(field, better):
    """Rounds of a knock-out as the authors play them: neighbours meet, and an odd one out stands first in the next
    round."""
    rounds = []
    while len(field) > 1:
        pairs = [(field[i], field[i+1]) for i in range(0, len(field)-1, 2)]
        waits = [field[-1]] if len(field) % 2 else []
        rounds.append(pairs)
        field = waits + [i if better(i, j) else j for i, j in pairs]
    return rounds, field[0]

@pytest.mark.parametrize('n', range(2, 18))
def test_the_odd_one_out_goes_first_into_the_next_round(n):
    draw, met = Random(n), []
    strength = [draw.random() for _ in range(n)]
    def compare(i, j):
        met.append((i, j))
        return strength[i], strength[j]
    rewards = single_elimination(compare, n, draw)
    seeds, slots = sorted(range(n), key=lambda p: -strength[p]), [0]
    while len(slots) < n: slots = [seed for k in slots for seed in (k, 2*len(slots)-1-k)]
    rounds, winner = knock_out([seeds[k] for k in slots if k < n], lambda i, j: strength[i] >= strength[j])
    assert met[n-1:] == [pair for pairs in rounds for pair in pairs] and rewards[winner] == 1
    if n in (5, 7, 9): assert set(met[-1]) == set(seeds[:2])

def weight_of_the_first_turn(ratios, **keywords):
    "What turn 0 is multiplied with after the later turns, the last one first, have moved by these ratios."
    n = len(ratios)
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0]*(n+1) + [1], t=[*range(n+1), 0],
        outcome=[1.]*(n+1) + [0.], n_tokens=2)))
    now = torch.zeros(len(b.actions))
    updates = seeupo_updates(b.with_action(old_logp=now), None, **keywords)
    next(updates)
    for ratio in ratios:
        now = now + torch.tensor(ratio).log()
        which, advantage = updates.send(now)
    return float((advantage/seeupo(b))[0])

@pytest.mark.parametrize('ratios', [(.8, .8, 1.2), (1.2, .8, .8), (1.1, 1.15, .9), (2., .3, 1.), (.95,)])
def test_the_product_of_ratios_is_clipped_after_every_turn_or_once(ratios):
    clipped = lambda x: min(max(x, .8), 1.2)
    released = once = 1.
    for ratio in ratios: released, once = clipped(released*clipped(ratio)), once*clipped(ratio)
    assert weight_of_the_first_turn(ratios, faithful=True) == pytest.approx(released, abs=1e-5)
    assert weight_of_the_first_turn(ratios) == pytest.approx(clipped(once), abs=1e-5)
    if ratios == (.8, .8, 1.2): assert released == pytest.approx(.96) and clipped(once) == .8

@pytest.mark.parametrize('scale', ['std', None])
@pytest.mark.parametrize('seed', range(5))
def test_the_global_baseline_averages_a_game_first(seed, scale):
    "Every turn gets what the average of its game, over all turns of all agents, is worth among the games of the task."
    draw, rows = Random(seed), []
    for task, games in enumerate((3, 1, 4)):
        for game in range(games):
            for seat in draw.sample(['planner', 'searcher', 'critic'], draw.randint(1, 3)):
                rows += [dict(group=task, game=game, seat=seat, t=len(rows)+t, outcome=paid)
                    for paid in [draw.choice([0., 1., 5.])] for t in range(draw.randint(1, 3))]
    table = pd.DataFrame(rows)
    table['episode'] = table.groupby(['group', 'game', 'seat'], sort=False).ngroup()
    averages = table.groupby(['group', 'game']).outcome.mean()
    wanted = []
    for row in rows:
        mine, peers = averages[row['group'], row['game']], averages[row['group']].tolist()
        if len(peers) == 1:
            wanted.append(mine)
            continue
        wanted.append((mine - statistics.fmean(peers))/(statistics.stdev(peers) + 1e-6 if scale else 1))
    torch.testing.assert_close(dr_mas(Batch.from_turns(table), 'global', scale=scale),
        torch.tensor(wanted, dtype=torch.float64), atol=1e-5, rtol=1e-5)
