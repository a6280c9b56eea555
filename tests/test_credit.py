"Estimators against loops written from the papers, on random batches; what importing them costs."
import math
import subprocess
import sys
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

import registries
from agentlab.credit import (check_group_size, estimators, gigpo, grpo, optimal_token_baseline, rloo, sum_pi_squared,
    text_place, token_place, with_sum_pi_squared)
from agentlab.episodes import Batch, Episode, Table, Turn
from agentlab.reward import outcome, paid
from later import deferred

quick = settings(max_examples=60, deadline=None)
number = st.integers(-8, 8).map(lambda i: i/4)
turn = st.tuples(st.sampled_from('xyz'), number, st.integers(1, 3))  # state, reward, tokens
episode = st.tuples(st.integers(0, 2), st.sampled_from(['left', 'right']), number,
    st.lists(turn, min_size=1, max_size=5))
many = st.lists(episode, min_size=1, max_size=8)  # group, seat, outcome, turns

def frame_of(episodes):
    "A table with a row per turn."
    return pd.DataFrame([dict(group=group, episode=e, seat=seat, outcome=score, t=t, state=state, reward=reward,
        n_tokens=tokens)
        for e, (group, seat, score, turns) in enumerate(episodes)
        for t, (state, reward, tokens) in enumerate(turns)])

def standardised(value, peers, scale, singleton):
    "One score against all scores of its group, itself included."
    if len(peers) == 1: return 0. if singleton == 'zero' else value/(1+1e-6) if scale else value
    mean = sum(peers)/len(peers)
    if not scale or max(peers) == min(peers): return value-mean if max(peers) > min(peers) else 0.
    return (value-mean)/(math.sqrt(sum((p-mean)**2 for p in peers)/(len(peers)-1)) + 1e-6)

def votes(episodes, mine, rows):
    "Outcomes of the group and seat of episode `mine`, one per episode or one per turn."
    return [e[2] for e in episodes if e[:2] == mine[:2] for _ in range(len(e[3]) if rows == 'turn' else 1)]

def returns(turns, gamma):
    "Discounted reward-to-go, from the last turn to the first."
    running, found = 0., []
    for _, reward, _ in reversed(turns):
        running = reward + gamma*running
        found.append(running)
    return found[::-1]

def per_token(episodes, value):
    "value(episode, number of the turn), once for each action token."
    return [value(e, t) for e in episodes for t, turn in enumerate(e[3]) for _ in range(turn[2])]

def near(got, want): torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=1e-6)

@given(episodes=many, scale=st.sampled_from(['std', None]), singleton=st.sampled_from(['raw', 'zero']),
    rows=st.sampled_from(['turn', 'episode']))
@quick
def test_grpo(episodes, scale, singleton, rows):
    got = grpo(Batch.from_turns(frame_of(episodes)), scale=scale, singleton=singleton, rows=rows)
    near(got, per_token(episodes, lambda e, t: standardised(e[2], votes(episodes, e, rows), scale, singleton)))

@given(episodes=many)
@quick
def test_rloo(episodes):
    def leave_out(e, t):
        others = [o[2] for o in episodes if o is not e and o[:2] == e[:2]]
        return e[2] - sum(others)/len(others) if others else e[2]
    near(rloo(Batch.from_turns(frame_of(episodes))), per_token(episodes, leave_out))

@given(episodes=many, scale=st.sampled_from(['std', None]), gamma=st.sampled_from([.5, .75, 1.]),
    weight=st.sampled_from([0., 1., .25]))
@quick
def test_gigpo(episodes, scale, gamma, weight):
    visits = [(e[:2], state, value) for e in episodes for (state, _, _), value in zip(e[3], returns(e[3], gamma))]
    def both(e, t):
        value = returns(e[3], gamma)[t]
        peers = [v for who, state, v in visits if (who, state) == (e[:2], e[3][t][0])]
        return (standardised(e[2], votes(episodes, e, 'turn'), scale, 'raw')
            + weight*standardised(value, peers, scale, 'zero'))
    near(gigpo(Batch.from_turns(frame_of(episodes)), gamma=gamma, step_weight=weight, scale=scale),
        per_token(episodes, both))

def token_baselines(ahead, weight, groups):
    """The loop over tasks and places that verl makes: lists of returns and of summed weights per episode ->
    advantages per episode."""
    found = [list(x) for x in ahead]
    for key in set(groups):
        mine = [e for e, other in enumerate(groups) if other == key]
        lengths = sorted(len(ahead[e]) for e in mine)
        for e in mine if len(mine) > 1 else []:
            for t in range(len(ahead[e])):
                if t >= lengths[-2]: continue  # the tail of the longest: its baseline is 0
                voices = [(ahead[j][t], weight[j][t]) for j in mine if t < len(ahead[j])]
                found[e][t] -= sum(g*w for g, w in voices)/(sum(w for _, w in voices) + 1e-8)
    return [x for tokens in found for x in tokens]

@given(many, st.integers(0, 99))
@quick
def test_optimal_token_baseline(episodes, seed):
    b = Batch.from_turns(frame_of(episodes))
    pi = .1 + .8*torch.rand(len(b.actions), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    b = b.with_action(old_logp=pi.log(), sum_pi_squared=pi**2 + (1-pi)**2)
    ahead, weight, chances = [], [], iter(pi.tolist())
    for _, _, _, turns in episodes:
        ahead.append([sum(reward for _, reward, _ in turns[t:]) for t, (_, _, tokens) in enumerate(turns)
            for _ in range(tokens)])
        weight.append([])
        for p in (next(chances) for _ in ahead[-1]):
            weight[-1].append((weight[-1] or [0.])[-1] + 1 - 2*p + p*p + (1-p)**2)
    wanted = torch.tensor(token_baselines(ahead, weight, [e[:2] for e in episodes]), dtype=torch.float64)
    near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    near(optimal_token_baseline(b), wanted)
    assert torch.equal(token_place(b), torch.cat([torch.arange(len(x)) for x in ahead]))
    if all(len(turns) == 1 for *_, turns in episodes): near(optimal_token_baseline(b, text_place), wanted)

def test_tokens_are_placed_by_what_was_said_or_by_the_whole_text():
    "Two episodes of one task read 1 and 4 tokens between what they say; the same tokens, beside others."
    say = lambda read, said, reward: Turn(0, context_ids=[0]*read, ids=[1]*said, logps=[-1.]*said, entropies=[1.]*said,
        reward=reward)
    b = Batch.from_episodes([Episode([say(3, 2, 0.), say(read, 2, reward)], group=0)
        for read, reward in ((1, 1.), (4, 0.))])
    pi = torch.tensor([.5, .8, .6, .9, .7, .4, .3, .2], dtype=torch.float64)
    b = b.with_action(old_logp=pi.log(), sum_pi_squared=pi**2 + (1-pi)**2)
    assert token_place(b).tolist() == [0, 1, 2, 3]*2 and text_place(b).tolist() == [0, 1, 3, 4, 0, 1, 6, 7]
    upto = (2*(1-pi)**2).view(2, 4).cumsum(1)
    share = upto[0]/upto.sum(0)
    torch.testing.assert_close(optimal_token_baseline(b), torch.cat([1-share, -share]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(optimal_token_baseline(b, text_place),
        torch.cat([1-share[:2], torch.ones(2).double(), -share[:2], torch.zeros(2).double()]),
        rtol=1e-5, atol=1e-6)
    assert optimal_token_baseline(b, text_place, singleton='zero')[2:4].tolist() == [0, 0]

@pytest.mark.parametrize('temperature', [1., .7])
def test_sums_of_squared_probabilities_are_those_of_the_model(temperature):
    from agentlab.env import KeyDoor
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model
    from agentlab.rollout import play
    house, tokenizer = KeyDoor(), word_tokenizer(KeyDoor().vocabulary())
    policy = Policy(tiny_model(len(tokenizer), 256, hidden=16, layers=1, seed=3), tokenizer)
    b = Batch.from_episodes(play(policy, house, [1, 2], group_size=2, max_turns=3, seed=0))
    found = with_sum_pi_squared(b, policy, temperature, budget=200).action('sum_pi_squared')
    wanted = []
    for row in range(len(b.rows)):
        mine = b.tokens.row == row
        with torch.no_grad():
            chance = (policy.model(b.tokens.id[mine][None]).logits[0].double()/temperature).softmax(-1)
        wanted += [(chance[i-1]**2).sum() for i in (b.tokens.turn[mine] >= 0).nonzero()[:, 0]]
    torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-4, atol=1e-6)
    assert len(found) > 10 and (found >= policy.logprobs(b, temperature)[0].exp()**2 - 1e-6).all() and found.max() < 1
    assert sum_pi_squared(torch.zeros(2, 5)).tolist() == pytest.approx([.2, .2])

@pytest.mark.parametrize('wrong', [1.7, -.2])
def test_what_is_no_sum_of_squared_probabilities_is_refused(wrong):
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 1], t=0, reward=[0., 1]))).with_action(
        old_logp=torch.zeros(2), sum_pi_squared=torch.tensor([.5, wrong]))
    with pytest.raises(ValueError, match='sum_pi_squared reaches from .* lies between 0 and 1. Set it with '
                       'with_sum_pi_squared'):
        optimal_token_baseline(b)

# ---- all of them

known = registries.estimators()
by_group = [name for name, said in known.items() if 'group' in said['needs']]
# turns columns that some estimators ask for
extra = dict(tag=1, meta=.5, matched=1, action=3, switch=1, gain=.2, step_reward=.4)

def furnished(frame):
    "The batch of a table, with every column that some estimator asks for."
    b = Batch.from_turns(frame.assign(**{name: [(i*7 + j) % 3 - 1 if name == 'tag' else value*((i*5 + j) % 2)
        for j, i in enumerate(frame.t)] for name, value in extra.items()
        if name not in frame}))
    tokens = len(b.actions)
    value = b.spread(b.turns.reward*.3 + b.turns.t*.1).nan_to_num(0., 0., 0.).clamp(-9, 9)
    b = b.with_episodes(greedy=torch.full((len(b),), .5).double(), prior=torch.full((len(b),), .25).double())
    b = b.with_action(value=value, value_low=value, value_high=value*.5,
        value_term=value*.2, part=torch.full((tokens,), 3), prm_logp=value*.1 - 1, old_logp=value*0 - 1.1,
        sum_pi_squared=value*0 + .4, sampler_logp=value*0 - 1.1)
    return b

def advantage_of(name, batch):
    # it knows two outcomes
    if name == 'v05': batch = batch.with_episodes(outcome=torch.where(batch.episodes.outcome > 0, 1., -1.).double())
    found = estimators[name](batch)
    return found[1] if isinstance(found, tuple) else found

@pytest.mark.parametrize('name', known)
@given(episodes=many)
@settings(max_examples=15, deadline=None)
def test_one_finite_number_per_action_token(name, episodes):
    b = furnished(frame_of(episodes))
    before = {part: dict(vars(getattr(b, part))) for part in ('episodes', 'turns', 'tokens')}
    advantage = advantage_of(name, b)
    assert advantage.shape == (len(b.actions),) and advantage.dtype == torch.float64 and advantage.isfinite().all()
    # the batch is as it was
    assert all(vars(getattr(b, part))[column] is x for part, columns in before.items() for column, x in columns.items())

KINDS = dict(float32=lambda x: x.float(), list=lambda x: x.tolist(), array=lambda x: x.numpy(),
    transposed=lambda x: torch.stack([x, x], 1)[:, 0])

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', known)
def test_numbers_may_come_in_any_kind(name, kind):
    "Rewards, outcomes and token columns as float32, lists, arrays, strided tensors: the same advantage, in float64."
    give = KINDS[kind]
    turns = [dict(group=g, episode=f'{g}{e}', t=t, state=f's{t}', seat='x', reward=.25*((g + e + t) % 3),
        outcome=float((g + e) % 2)) for g in range(2) for e in range(4) for t in range(3)]
    b = furnished(pd.DataFrame(turns))
    numbers = lambda table: [name for name in table.columns if table[name].dtype == torch.float64]
    other = b.with_episodes(**{c: give(b.episodes[c]) for c in numbers(b.episodes)}).with_turns(**{
        c: give(b.turns[c]) for c in numbers(b.turns)})
    other = other.with_action(**{c: give(b.tokens[c][b.actions]) for c in numbers(b.tokens)})
    got, want = advantage_of(name, other), advantage_of(name, b)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

@pytest.mark.parametrize('wrong, said', [(deferred(lambda: torch.tensor(1.)),
    'is one number, 1.0: give one for each row'),
    ('abc', "'reward' is a str"), ([1., 'x'], "'reward' is a list"),
    (None, "'reward' is a NoneType"), ({}, 'one length')],
    ids=['number', 'text', 'list', 'None', 'dict'])
def test_what_is_no_column_is_refused(wrong, said):
    b = furnished(pd.DataFrame([dict(group=0, episode=e, t=0, state='s', seat='x', reward=1., outcome=1.)
        for e in range(2)]))
    with pytest.raises(ValueError, match=said): b.with_turns(reward=wrong)

@pytest.mark.parametrize('name', by_group)
@given(episodes=many, data=st.data())
@settings(max_examples=15, deadline=None)
def test_order_of_the_table_does_not_matter(name, episodes, data):
    frame = frame_of(episodes).assign(n_tokens=1)
    frame = frame.assign(**{column: [value*((i*5 + j) % 2) for j, i in enumerate(frame.t)]
        for column, value in extra.items()})
    order = data.draw(st.permutations(range(len(frame))))
    first, second = furnished(frame), furnished(frame.iloc[order])
    back = torch.empty(len(frame), dtype=torch.float64).scatter_(0, torch.tensor(order)[second.turns.frame_row],
        advantage_of(name, second))
    torch.testing.assert_close(back, advantage_of(name, first)[first.turns.frame_row.argsort()], rtol=1e-6, atol=1e-6)

@pytest.mark.parametrize('name',
    [name for name in by_group if set(known[name]['needs']) <= {'group', 'state', 'seat'}])
def test_equal_outcomes_give_exactly_zero(name):
    for value in (.7, .9, .1, 1/3):
        frame = pd.DataFrame(dict(group=0, episode=range(11), t=0, state='x', reward=value))
        assert advantage_of(name, Batch.from_turns(frame)).tolist() == [0.]*11

# the loudness of its gains is that of the batch
@pytest.mark.parametrize('name', [name for name in by_group if 'batch' not in known[name]['peers']
    and name != 'variance_gated'])
def test_groups_do_not_touch(name):
    "Another group, even a broken one, changes nothing."
    frame = pd.DataFrame(dict(group=0, episode=[0, 0, 1, 2], t=[0, 1, 0, 0], state=['x', 'y', 'x', 'x'],
        reward=[0., 3, 1, 2], **{name: [value, 0, value, 0] for name, value in extra.items()}))
    other = frame.assign(group=1, episode=frame.episode+3, reward=[math.inf, 1., -1., 5.])
    alone, both = (advantage_of(name, furnished(f)) for f in (frame, pd.concat([frame, other])))
    assert torch.equal(both[:4], alone)
    if name in ('grpo', 'rloo', 'gigpo'): assert not both[4:].isfinite().all() # what is broken stays visible

@pytest.mark.parametrize('name', [name for name, said in known.items() if set(said['needs']) - {'group', 'seat'}])
def test_a_missing_column_is_named_with_the_remedy(name):
    b = furnished(pd.DataFrame(dict(group=0, episode=[0, 0, 1], t=[0, 1, 0], state=['x', 'y', 'x'], reward=[0., 1, 1])))
    for column in set(estimators[name].needs) - {'group', 'seat'}:
        tables = {part: Table(**{k: x for k, x in vars(getattr(b, part)).items() if k != column})
            for part in ('episodes', 'turns', 'tokens')}
        with pytest.raises(ValueError, match=f"(?s)no column '{column}'. .+"): estimators[name](b.replace(**tables))

def test_gigpo_without_states_says_what_to_do():
    with pytest.raises(ValueError) as error:
        gigpo(Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 1], t=0, reward=[0., 1]))))
    assert (str(error.value) == "gigpo compares turns by state, but this batch has no column 'state'. Give your "
        "environment a state in info['state'], or use grpo.")

@pytest.mark.parametrize('name', by_group)
def test_group_of_one_is_refused(name):
    with pytest.raises(ValueError, match=f'group_size=1: {name} .* Use group_size=2 or more'):
        check_group_size(estimators[name], 1)
    check_group_size(estimators[name], 2)

@given(episodes=many)
@quick
def test_rewards(episodes):
    batch = Batch.from_turns(frame_of(episodes))
    assert paid(batch).tolist() == [reward for e in episodes for _, reward, _ in e[3]]
    assert outcome(batch).tolist() == [e[2] if t == len(e[3])-1 else 0. for e in episodes for t in range(len(e[3]))]

def test_importing_needs_torch_only():
    "A fresh process loads nothing beyond the standard library, torch with what it loads, and numpy."
    program = """
import importlib, sys, torch, numpy
names = lambda: {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)
before = names()
for module in ('groups', 'episodes', 'credit', 'objective', 'reward'):
    importlib.import_module(f'agentlab.{module}')
    print(module, *sorted(names() - before))
"""
    said = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
        check=True).stdout.splitlines()
    assert said == [f'{module} agentlab' for module in ('groups', 'episodes', 'credit', 'objective', 'reward')]
