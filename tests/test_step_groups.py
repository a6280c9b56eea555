"""gigpo, hgpo, salt and their keys against dictionaries and loops, on ragged episodes with repeated states, several
seats and missing scores."""
import math
from difflib import SequenceMatcher

import pandas as pd
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit.histories import hgpo
from agentlab.credit.shared_edges import action_keys, edge_key, salt
from agentlab.credit.step_groups import gigpo, similar_states
from agentlab.episodes import Batch

quick = settings(max_examples=40, deadline=None)
number = st.integers(-4, 4).map(lambda i: i/4)
outcome = st.one_of(number, st.just(math.nan))
turn = st.tuples(st.sampled_from('xyz'), number, st.integers(0, 3), st.integers(0, 1))  # state, reward, tokens, action
episode = st.tuples(st.integers(0, 1), st.sampled_from(['left', 'right']), outcome,
    st.lists(turn, min_size=1, max_size=6))
many = st.lists(episode, min_size=1, max_size=8)  # group, seat, outcome, turns
text = st.text('ab ', max_size=6).map(lambda word: f'room {word}')
written = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(['left', 'right']), text), min_size=1, max_size=14)

def batch_of(episodes):
    return Batch.from_turns(pd.DataFrame([dict(group=group, episode=e, seat=seat, outcome=score, t=t, state=state,
        reward=reward, n_tokens=tokens, action=action)
        for e, (group, seat, score, turns) in enumerate(episodes)
        for t, (state, reward, tokens, action) in enumerate(turns)]))

def visits(episodes): return [(e, t) for e, (*_, turns) in enumerate(episodes) for t in range(len(turns))]

def standardised(value, peers, scale, singleton, ddof=1):
    "One score against all scores of its group, itself included."
    if len(peers) == 1: return 0. if singleton == 'zero' else value/(1+1e-6) if scale else value
    mean = sum(peers)/len(peers)
    if max(peers) == min(peers): return 0.
    return (value-mean)/(math.sqrt(sum((p-mean)**2 for p in peers)/(len(peers)-ddof)) + 1e-6 if scale else 1.)

def returns(turns, gamma):
    found = [0.]
    for _, reward, *_ in reversed(turns): found.append(reward + gamma*found[-1])
    return found[:0:-1]

def against(value, key, scored, scale, ddof, singleton):
    "{visit: standardised value among scored visits with the same key}, and how many those are."
    members = {}
    for visit in scored: members.setdefault(key[visit], []).append(value[visit])
    return ({v: standardised(value[v], members[key[v]], scale, singleton, ddof) for v in scored},
        {v: len(members[key[v]]) for v in scored})

def tables(episodes, gamma):
    "For every visit: its group and seat, its outcome, its return; and the visits that have a score."
    every = visits(episodes)
    worth = {(e, t): g for e, (*_, turns) in enumerate(episodes) for t, g in enumerate(returns(turns, gamma))}
    return ({v: episodes[v[0]][:2] for v in every}, {v: episodes[v[0]][2] for v in every}, worth,
        [v for v in every if episodes[v[0]][2] == episodes[v[0]][2]])

def near(got, episodes, want):
    "One number per token: `want` of its turn, 0 where there is none."
    flat = [want.get((e, t), 0.) for e, t in visits(episodes) for _ in range(episodes[e][3][t][2])]
    torch.testing.assert_close(got, torch.tensor(flat, dtype=torch.float64), rtol=1e-6, atol=1e-6)

def numbered(keys):
    "0, 1, 2, ... in the order of first appearance."
    seen = {}
    return [seen.setdefault(key, len(seen)) for key in keys]

def same_partition(key, want):
    "Equal keys exactly where `want` is equal."
    assert numbered(key.tolist()) == numbered(want)

@given(episodes=many, scale=st.sampled_from(['std', None]), gamma=st.sampled_from([.5, 1.]),
    weight=st.sampled_from([0., 1., .25]), similarity=st.sampled_from([None, 1.]))
@quick
def test_gigpo(episodes, scale, gamma, weight, similarity):
    peers, score, worth, scored = tables(episodes, gamma)
    place = {(e, t): (peers[e, t], episodes[e][3][t][0]) for e, t in peers}
    whole, _ = against(score, peers, scored, scale, 1, 'raw')
    step, _ = against(worth, place, scored, scale, 1, 'zero')
    got = gigpo(batch_of(episodes), gamma=gamma, step_weight=weight, scale=scale, similarity=similarity)
    near(got, episodes, {v: whole[v] + weight*step[v] for v in scored})

@given(episodes=many, history=st.integers(0, 3), alpha=st.sampled_from([0., 1., 2.5]),
    scale=st.sampled_from(['std', None]), base=st.booleans(), drop=st.booleans())
@quick
def test_hgpo(episodes, history, alpha, scale, base, drop):
    peers, score, worth, scored = tables(episodes, .5)
    items = {v: [] for v in scored}
    for k in range(1, history+2):
        long_enough = [(e, t) for e, t in scored if t+1 >= k]
        way = {(e, t): (peers[e, t], [turn[0] for turn in episodes[e][3][t+1-k:t+1]]) for e, t in long_enough}
        value, size = against(worth, {v: str(w) for v, w in way.items()}, long_enough, scale, 0, 'zero')
        for v in long_enough:
            if size[v] > 1: items[v].append(((k+1)**alpha, value[v]))
    if base:
        whole, _ = against(score, peers, scored, scale, 1, 'raw')
        for v in scored: items[v].append((1., whole[v]))
    if drop: items = {v: [(w, a) for w, a in found if a != 0] for v, found in items.items()}
    want = {v: sum(w*a for w, a in found)/(sum(w for w, _ in found) + 1e-6) if found else 0.
        for v, found in items.items()}
    got = hgpo(batch_of(episodes), history, alpha, .5, base, scale, zeros='drop' if drop else None)
    near(got, episodes, want)
    if drop: assert torch.equal(got, hgpo(batch_of(episodes), history, alpha, .5, base, scale, faithful=True))

@given(episodes=many, window=st.integers(1, 4), scale=st.sampled_from(['std', None]))
@quick
def test_salt(episodes, window, scale):
    peers, _, _, scored = tables(episodes, 1.)
    edge = {}
    for e, t in peers:
        turns = [(state, action) for state, _, _, action in episodes[e][3]]
        padded = [None]*(window-1) + turns
        edge[e, t] = (peers[e, t], str(padded[t:t+window]), turns[t+1][0] if t+1 < len(turns) else None)
    batch = batch_of(episodes)
    same_partition(edge_key(batch, window), [edge[v] for v in peers])
    sides = {episodes[e][:2]: [o[2] for o in episodes if o[:2] == episodes[e][:2] and o[2] == o[2]] for e, _ in scored}
    grpo = {v: standardised(episodes[v[0]][2], sides[peers[v]], scale, 'raw') for v in scored}
    passed = {v: [grpo[u] for u in scored if edge[u] == edge[v]] for v in scored}
    near(salt(batch, window, scale), episodes, {v: sum(found)/len(found) for v, found in passed.items()})

def clusters(rows, ratio, autojunk):
    "The authors' rule: the first cluster of the group whose first text is similar, else a new one."
    found, heads = [], []
    for group, seat, words in rows:
        home = next((i for i, (where, head) in enumerate(heads) if where == (group, seat)
            and SequenceMatcher(None, words, head, autojunk).ratio() >= ratio), len(heads))
        if home == len(heads): heads.append(((group, seat), words))
        found.append(home)
    return found

def states(rows):
    return Batch.from_turns(pd.DataFrame([dict(group=group, episode=e, seat=seat, t=0, state=words, reward=0.)
        for e, (group, seat, words) in enumerate(rows)]))

@given(rows=written, ratio=st.sampled_from([.5, .8, .9, 1.]), faithful=st.booleans())
@quick
def test_similar_states(rows, ratio, faithful):
    same_partition(similar_states(states(rows), ratio, faithful), clusters(rows, ratio, faithful))

@given(rows=st.lists(st.tuples(st.just(0), st.just('left'),
    st.integers(0, 30).map(lambda i: '01'*i + 'x' + '01'*(110-i))), min_size=2, max_size=6))
@settings(max_examples=8, deadline=None)
def test_similar_states_of_long_texts(rows):
    "Above 200 characters difflib's shortcut parts even equal texts; the default does not use it."
    plain = [(0, 'left', '01'*120)]*2 + rows
    for faithful in (False, True):
        same_partition(similar_states(states(plain), .95, faithful), clusters(plain, .95, faithful))

def test_turns_without_a_state_are_alone():
    batch = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 1, 2, 3], t=0, state=[None, None, 'hall', 'halls'],
        reward=[1., 0, 1, 0])))
    assert len(similar_states(batch, .8).unique()) == 3
    assert gigpo(batch, scale=None, similarity=.8, step_weight=1e6)[:2].abs().max() < 1 # nobody to compare with

@given(lines=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=12))
@quick
def test_action_keys(lines):
    batch = Batch.from_turns(pd.DataFrame(dict(group=0, episode=range(len(lines)), t=0,
        n_tokens=[len(line) for line in lines], reward=0.)))
    batch = batch.with_tokens(id=torch.tensor([i for line in lines for i in line], dtype=torch.int64))
    same_partition(action_keys(batch), [str(line) for line in lines])
