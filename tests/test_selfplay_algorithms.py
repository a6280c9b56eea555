"Preferences, roles and proposers: what a notebook cell cannot show."
import itertools, math
from random import Random

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import gae
from agentlab.env.hopsearch import HopSearch, world_of
from agentlab.episodes import Batch
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.rollout.players import play_players
from agentlab.selfplay.preferences import (best_and_worst, by_outcome, episode_logp, inpo, pair_advantage, rivals, sppo,
    win_rate_reward, win_rates)
from agentlab.selfplay.proposers import (Proposal, ProposeHop, absolute_zero, absolute_zero_solver, bug_refusal,
    hop_lookup, hop_task, noise_of, proposer_reward, read_proposal, refusal,
    same_answer, search_self_play, search_solver, success_rate, swe_self_play,
    trr_pp, verify)
from agentlab.selfplay.roles import (coalition_values, judge_score, mae_judge, mae_proposer, mae_solver, marft,
    sampled_shapley, seating, shapley, shared_reward, tag_score, without_one)

few = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**32)

def close(a, b, **how):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64),
        equal_nan=True, **how)

def groups(seed, most=12):
    """Episodes of up to three tasks, two seats, one to three turns of one to three tokens; outcomes that repeat,
    some missing."""
    draw = Random(seed)
    rows = [dict(group=draw.randrange(3), episode=e, t=t, seat=seat, outcome=outcome, reward=0.,
        n_tokens=draw.randrange(1, 4))
        for e in range(draw.randrange(1, most)) for seat, outcome, turns in [
        (draw.choice('xo'), draw.choice([0., 1., 1., 2.5, math.nan]), draw.randrange(1, 4))]
        for t in range(turns)]
    frame = pd.DataFrame(rows)
    frame['group'] = frame.groupby('episode').group.transform('first')
    return Batch.from_turns(frame)

def logps(b, seed, n=3):
    g = torch.Generator().manual_seed(seed)
    return [-torch.rand(len(b.actions), generator=g, dtype=torch.float64) for _ in range(n)]

# preferences

@few
@given(seeds)
def test_win_rates_count(seed):
    "The rate is the mean over a plain list of the others; its mean is one half; only the order of outcomes matters."
    b = groups(seed)
    e = b.episodes
    for i in range(len(b)):
        others = [j for j in range(len(b)) if j != i and e.group[i] == e.group[j] and e.seat[i] == e.seat[j]
            and not e.outcome[[i, j]].isnan().any()]
        wins = [float(e.outcome[i] > e.outcome[j]) + .5*float(e.outcome[i] == e.outcome[j]) for j in others]
        assert math.isclose(float(win_rates(b)[i]), sum(wins)/len(wins) if wins else .5)
    for peers in {(int(g), int(s)) for g, s in zip(e.group, e.seat)}:
        close(win_rates(b)[(e.group == peers[0]) & (e.seat == peers[1])].mean(), .5)
    close(win_rates(b.with_episodes(outcome=e.outcome.exp()*7 - 3)), win_rates(b))
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(seed))
    close(win_rates(Batch.concat([b.select([k]) for k in order.tolist()])), win_rates(b)[order])

@few
@given(seeds)
def test_win_rate_reward(seed):
    """One reward per episode on its last turn, or as many equal parts as turns; with itself counted, rates move to
    one half."""
    b = groups(seed)
    total = lambda x: torch.zeros(len(b), dtype=torch.float64).index_add_(0, b.turns.episode, x)
    rate = win_rates(b)
    close(total(win_rate_reward(b)), rate)
    close(total(win_rate_reward(b, each_turn=True)), rate)
    full = b.select(~b.episodes.outcome.isnan())
    i, _ = rivals(full)
    size = torch.bincount(i, minlength=len(full)) + 1
    close(win_rates(full, include_self=True) - .5, (size - 1)/size*(win_rates(full) - .5))
    everybody = torch.ones(len(b), dtype=torch.bool)
    close(win_rates(b, against=everybody), rate)
    close(win_rates(b, against=~everybody), torch.full_like(rate, .5))

@few
@given(seeds)
def test_best_and_worst(seed):
    """No two pairs share an episode; the winner has the group's most, the loser its least, and groups without a
    better one have none."""
    b = groups(seed)
    e, pairs = b.episodes, best_and_worst(b)
    mine = {}
    for k in range(len(b)): mine.setdefault((int(e.group[k]), int(e.seat[k])), []).append(k)
    wanted = []
    for members in mine.values():
        scored = [k for k in members if not e.outcome[k].isnan()]
        if len({float(e.outcome[k]) for k in scored}) > 1:
            wanted.append((max(scored, key=lambda k: (float(e.outcome[k]), -k)),
                min(scored, key=lambda k: (float(e.outcome[k]), k))))
    assert list(zip(pairs.winner.tolist(), pairs.loser.tolist())) == sorted(wanted)

@few
@given(seeds, st.floats(.05, 2), st.floats(0, 1), st.booleans())
def test_pair_losses(seed, eta, pull, mean):
    "Both losses by plain loops; the advantage of a pair loss has its gradient."
    b = groups(seed)
    now, ref, prev = logps(b, seed)
    b = b.with_action(ref_logp=ref, prev_logp=prev, old_logp=now)
    pairs, rates = best_and_worst(b), win_rates(b, include_self=True)
    owner = b.turns.episode[b.action_turn]
    said = lambda x, k: float(x[owner == k].mean() if mean else x[owner == k].sum())
    gap = lambda x, w, l: said(x, w) - said(x, l)
    both = list(zip(pairs.winner.tolist(), pairs.loser.tolist()))
    close(inpo(now, b, pairs, eta, pull*eta, mean),
        [(gap(now, w, l) - pull*gap(ref, w, l) - (1-pull)*gap(prev, w, l) - 1/(2*eta))**2 for w, l in both])
    close(sppo(now, b, pairs, rates, eta, mean),
        [sum((said(now, k) - said(prev, k) - (float(rates[k]) - .5)/eta)**2 for k in pair)/2 for pair in both])
    if not both: return
    x = now.clone().requires_grad_()
    loss = inpo(x, b, pairs, eta, pull*eta, mean).mean()
    policy_gradient = -(pair_advantage(b, lambda y: inpo(y, b, pairs, eta, pull*eta, mean))*x).sum()
    close(torch.autograd.grad(policy_gradient, x)[0], torch.autograd.grad(loss, x)[0])

def test_tokens_without_weight_say_nothing():
    b = groups(3)
    now, = logps(b, 0, 1)
    for mean in (False, True):
        silent = b.with_action(weight=torch.where(torch.arange(len(b.actions)) % 2 == 0, 0., 1.))
        spoiled = torch.where(torch.arange(len(b.actions)) % 2 == 0, math.nan, now)
        assert episode_logp(silent, spoiled, mean).isfinite().all()
    close(episode_logp(b.with_action(weight=torch.zeros(len(b.actions))), now, True), torch.zeros(len(b)))

def test_a_judge_must_give_chances():
    b = groups(0)
    with pytest.raises(ValueError, match='from 0 to 1'):
        win_rates(Batch.concat([b, b]), lambda b, i, j: -torch.ones(len(i)))
    close(win_rates(b, lambda b, i, j: torch.full((len(i),), math.nan)), torch.full((len(b),), .5))
    close(win_rates(b, by_outcome), win_rates(b))

# roles

def teams(seed, seats, games, tokens=3):
    """Games of a team in which each seat moves in turn, the last round perhaps cut short; every payment goes to all
    seats."""
    draw, rows = Random(seed), []
    for game in range(games):
        turns, truncated = draw.randrange(seats, 4*seats), draw.random() < .5
        pay, last = [draw.choice([0., 1., -.5]) for _ in range(turns)], draw.random()
        for t in range(turns):
            upto = min(t + seats, turns)  # what is paid until this seat moves again
            rows.append(dict(group=0, game=game, episode=game*seats + t % seats, seat=str(t % seats), t=t, paid=pay[t],
                reward=sum(pay[t:upto]), n_tokens=draw.randrange(1, tokens + 1), truncated=truncated,
                last_value=last))
    for row in rows:                      # what is paid before a seat's first turn it gets with that turn
        if row['t'] < seats:
            row['reward'] += sum(r['paid'] for r in rows if r['game'] == row['game'] and r['t'] < row['t'])
    return Batch.from_turns(pd.DataFrame(rows)), rows

@few
@given(seeds, st.integers(1, 3), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1),
    st.sampled_from(['turn', 'token']))
def test_marft_is_the_plain_loop(seed, seats, games, gamma, lam, level):
    "Backwards through each game: the reward of a round is counted once, at its end."
    b, rows = teams(seed, seats, games)
    value, = logps(b, seed, 1)
    b = b.with_action(value=value)
    targets, advantage = marft(b, gamma=gamma, lam=lam, level=level, scale=None)
    place = torch.arange(len(b.actions))
    for game in range(games):
        mine = [row for row in rows if row['game'] == game]
        steps = []  # (token of the step, reward of the round if it ends here)
        for row in mine:
            turn = int((b.turns.frame_row == rows.index(row)).nonzero())
            spoken = place[b.action_turn == turn].tolist()
            closes = row['t'] == len(mine) - 1 or (row['t'] + 1) % seats == 0
            paid = sum(r['paid'] for r in mine if r['t']//seats == row['t']//seats) if closes else 0.
            chosen = spoken if level == 'token' else spoken[:1]
            steps += [(spoken if level == 'turn' else [k], paid if k == chosen[-1] else 0.) for k in chosen]
        following, carry = (mine[0]['last_value'] if mine[0]['truncated'] else 0.), 0.
        for where, paid in reversed(steps):
            carry = paid + gamma*following - float(value[where[0]]) + gamma*lam*carry
            following = float(value[where[0]])
            close(advantage[where], [carry]*len(where))
            close(targets[where], [carry + following]*len(where))

@few
@given(seeds, st.sampled_from(['turn', 'token']))
def test_marft_of_one_seat_is_gae(seed, level):
    b, _ = teams(seed, 1, 3)
    b = b.with_action(value=logps(b, seed, 1)[0])
    for found, wanted in zip(marft(b, gamma=.9, lam=.7, level=level, scale=None),
                             gae(b, gamma=.9, lam=.7, level=level, whiten=False)):
        close(found, wanted)

@few
@given(seeds, st.integers(1, 5), st.integers(1, 7), st.integers(0, 100))
def test_seating(seed, n, every, step):
    "Everybody sits somewhere; in n exchanges everybody has sat everywhere."
    policies, seats = [f'p{k}' for k in range(n)], [f's{k}' for k in range(n)]
    assert sorted(seating(step, policies, seats, every).values()) == policies
    assert {seating(step + k*every, policies, seats, every)['s0'] for k in range(n)} == set(policies)

@few
@given(seeds)
def test_shared_reward(seed):
    b, _ = teams(seed, 2, 3)
    total = torch.zeros(len(b), dtype=torch.float64).index_add_(0, b.turns.episode, shared_reward(b))
    for game in range(3):
        mine = b.episodes.game == game
        close(total[mine], [float(b.episodes.outcome[mine].sum())]*int(mine.sum()))

@few
@given(seeds, st.integers(1, 5))
def test_shapley(seed, n):
    "The mean over all orders; efficient, additive; dummies get their own worth and twins the same."
    g = torch.Generator().manual_seed(seed)
    v, w = torch.randn(2**n, generator=g, dtype=torch.float64), torch.randn(2**n, generator=g, dtype=torch.float64)
    worth = lambda S: float(v[sum(1 << i for i in S)])
    gains = torch.zeros(n, dtype=torch.float64)
    orders = list(itertools.permutations(range(n)))
    for order in orders:
        for k, i in enumerate(order): gains[i] += (worth(order[:k+1]) - worth(order[:k]))/len(orders)
    close(shapley(v), gains)
    close(shapley(v).sum(), v[-1] - v[0])
    close(shapley(v + 2*w), shapley(v) + 2*shapley(w))
    close(coalition_values(worth, n), v)
    close(without_one(v), [worth(range(n)) - worth([j for j in range(n) if j != i]) for i in range(n)])
    with_dummy = torch.cat([v, v + 3.])  # agent n adds 3 to everybody
    close(shapley(with_dummy), torch.cat([shapley(v), torch.tensor([3.], dtype=torch.float64)]))
    estimate, _ = sampled_shapley(worth, n, 5, g)
    close(estimate.sum(), v[-1] - v[0])
    estimate, error = sampled_shapley(lambda S: sum(float(v[i]) for i in S), n, 2, g)  # additive: every order is exact
    close(estimate, v[:n])
    close(error, torch.zeros(n))
    same = coalition_values(lambda S: float(len(S))**1.5, n)
    close(shapley(same), [n**1.5/n]*n)

@few
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 8), st.integers(0, 8))
def test_evolve(quality, solved, form, opened, closed):
    reward, kept = mae_proposer(quality, solved, form)
    assert 0 <= reward <= 1 and bool(kept) == (quality >= .7)
    assert float(mae_proposer(quality, solved, form, False)[0]) == 0
    assert 0 <= mae_solver(solved, form) <= 1 and mae_judge(form) == form
    assert 0 <= mae_judge(form, solved, quality) <= 1
    text = '<q>'*opened + '</q>'*closed
    assert tag_score(text, 'q', 3, 5) == (0 if opened != closed or opened < 3 else 1 if opened <= 5 else .5)
    close(judge_score([1 + 9*quality]), quality)

# proposers

@few
@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.floats(.1, 2))
def test_rewards_of_a_rate(solved, alpha):
    "Plain rules, one task after the other."
    s = torch.tensor(solved, dtype=torch.float64)/8
    close(absolute_zero(s), [-.5 if x in (0, 1) else 1 - x for x in s.tolist()])
    close(search_self_play(s), 1 - s)
    close(search_self_play(s, between=(0, 1)), [4*x*(1-x) for x in s.tolist()])
    close(swe_self_play(s, alpha=alpha), [-alpha if x in (0, 1) else 1 - (1+alpha)*x for x in s.tolist()])
    for reward in (absolute_zero, search_self_play, swe_self_play):
        assert len(set(reward(s, valid=torch.zeros(len(s))).tolist())) == 1
        close(reward(torch.full_like(s, math.nan)), torch.full_like(s, math.nan))
        with pytest.raises(ValueError, match='shares from 0 to 1'): reward([-.1])
    close(absolute_zero_solver(s), [x or -.5 for x in s.tolist()])
    close(search_solver([1., 1, 0], [10, 11, 12]), [1, .25, 0])

@few
@given(st.lists(st.lists(st.sampled_from([0., .25, 1., math.nan]), min_size=3, max_size=3), min_size=1, max_size=5))
def test_success_rate(scores):
    for faithful in (False, True):
        wanted = [[x > (0 if faithful else .5) for x in row if x == x] for row in scores]
        close(success_rate(scores, faithful), [sum(row)/len(row) if row else math.nan for row in wanted])

@few
@given(seeds)
def test_trr_pp_centres_each_role_and_kind(seed):
    b = groups(seed)
    b = b.with_episodes(kind=torch.arange(len(b)) % 2)
    a = trr_pp(b, scale=None)
    first = torch.searchsorted(b.turns.episode[b.action_turn], torch.arange(len(b)))
    for seat in b.episodes.seat.unique():
        for kind in (0, 1):
            mine = (b.episodes.seat == seat) & (b.episodes.kind == kind)
            assert abs(float(a[first][mine].sum())) < 1e-9
    close(trr_pp(b.with_episodes(kind=1000 - 7*b.episodes.kind)), trr_pp(b))

@few
@given(st.text(max_size=80), st.text(max_size=10), seeds)
def test_any_text_is_read(text, answer, seed):
    "Whatever a proposer writes is refused with a reason or passes all checks; a failing verifier never passes it."
    for p in (read_proposal(text, answer), read_proposal(f'<question>{text}</question><search>{answer}</search>',
                                                         answer), Proposal(text, answer, (text, answer), (text,))):
        assert isinstance(refusal(p), str)
        def broken(question, passages): raise RuntimeError(text)
        assert verify(p, broken, (), Random(seed)) and not verify(p, broken, (), Random(seed), faithful=True)
        assert verify(p, lambda question, passages: None, (), Random(seed))
        assert isinstance(hop_lookup(text, [text, answer]), str)
    assert same_answer(text, text)

@few
@given(seeds, st.integers(1, 3))
def test_lookup_answers_hopsearch(seed, hops):
    "With all facts of a world every question is answered; without one of its own it is not."
    env = HopSearch(hops=hops)
    task = env.tasks('train', 1, seed)[0]
    world = world_of(task['split'], task['world'], task['people'])
    chain, answer = world.chain(task['start'], tuple(task['path']))
    question = env.reset(0, task).observation
    pages = [world.sentence(fact) for fact in world.pages]
    assert hop_lookup(question, pages) == answer
    assert all(hop_lookup(question, [page for page in pages if page != world.sentence(fact)]) == '' for fact in chain)
    wrong = next(name for name in world.people if name != answer)
    assert hop_lookup(question, [*pages, f'The {chain[-1][0]} of {chain[-1][1]} is {wrong}.']) == ''  # a contradiction
    p = Proposal(question, answer, (), tuple(world.sentence(fact) for fact in chain))
    other = Proposal('', '', (), tuple(pages))
    noise = noise_of([p, other], 0, Random(seed))
    assert len(noise) == 4 and not set(noise) & set(p.passages)
    assert verify(p, hop_lookup, noise, Random(seed)) == ''

@few
@given(st.lists(st.booleans(), min_size=1, max_size=6), st.lists(st.booleans(), min_size=1, max_size=6))
def test_a_bug_must_break_something(bugged, restored):
    n = min(len(bugged), len(restored))
    bugged, restored = bugged[:n], restored[:n]
    weakened = [x for x in bugged if x]
    refused = bug_refusal([True]*n, bugged, weakened, restored, [[True]*n])
    assert (refused == '') == (not all(bugged) and all(restored))
    assert bug_refusal([], [], [], [], [[]]) != ''

@few
@given(seeds, st.floats(0, 1), st.integers(2, 3), st.sampled_from(['train', 'demo', 'test']))
def test_every_accepted_question_can_be_answered(seed, noise, hops, split):
    "Whoever proposes: the game ends, and what it accepts HopSearch takes, with the given answer."
    env, draw = ProposeHop(hops=hops, horizon=hops + 2, split=split), Random(seed)
    step, turns = env.reset(seed), 0
    while not step.done:
        action, turns = env.expert(noise, draw), turns + 1
        step = env.step(action)
    assert turns <= hops + 2 and step.reward['proposer'] == (0. if step.info['success'] else -1.)
    assert bool(env.reason) != step.info['success']
    if not step.info['success']: return
    solver, task = HopSearch(hops=hops), hop_task(env.task, action)
    step = solver.reset(0, task)
    assert step.info['answer'] == env.task['answer']
    while not step.done: step = solver.step(solver.expert())
    assert step.info['success']

@few
@given(st.text(max_size=60))
def test_any_text_is_a_turn(text):
    env = ProposeHop()
    env.reset(0)
    for say in (text, f'find {text}', f'ask {text}'):
        if not env.over: env.step(say)
    assert hop_task(env.task, text) is None or 'ask' in text.lower()

@few
@given(seeds)
def test_proposer_reward(seed):
    b = groups(seed)
    g = torch.Generator().manual_seed(seed)
    b = b.with_episodes(success=torch.rand(len(b), generator=g) < .5)
    s = torch.randint(9, (len(b),), generator=g)/8
    for rule in (absolute_zero, search_self_play, swe_self_play):
        found = proposer_reward(b, torch.where(b.episodes.success, s, math.nan), rule)
        close(torch.zeros(len(b), dtype=torch.float64).index_add_(0, b.turns.episode, found),
            rule(s.double(), b.episodes.success))
        assert (found != 0).sum() <= len(b)

def test_a_silent_partner_is_a_team():
    "A planner that answers at once: the searcher's episode has no turn, and the planner gets the whole outcome."
    env = HopSearch(hops=1, seats=('planner', 'searcher'))
    tokenizer = word_tokenizer(env.vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 64, hidden=16, layers=1, seed=0), tokenizer)
    def knows(env, generator): return f'answer {env.game.world.chain(env.game.start, env.game.path)[1]}'
    b = Batch.from_episodes(play_players(policy, env, range(2), players=dict(planner=knows, searcher=knows), keep=True,
        max_tokens=8))
    assert (len(b), len(b.turns)) == (4, 2)
    b = b.with_action(value=torch.zeros(len(b.actions)))
    close(marft(b, gamma=1., lam=1., scale=None)[1], torch.ones(len(b.actions)))
