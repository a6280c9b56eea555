"""What estimators cost, beside references of dictionaries and loops.

The page that explains it and shows what was found: nbs/bench/05_credit_speed.ipynb.
"""
from __future__ import annotations
import random
import time
from collections import defaultdict

import torch
from torch import Tensor

from agentlab.episodes import Batch, Table

def big_batch(
    episodes: int = 1024, turns: int = 16, tokens: int = 128,  # tokens of a turn
    seed: int = 0,
) -> Batch:  # groups of 8 episodes, 40 states a group, and every column that some estimator asks for
    "A batch of random numbers."
    g, count = torch.Generator().manual_seed(seed), episodes*turns
    number, turn = torch.arange(episodes), torch.arange(count)
    draw = lambda high, size=count: torch.randint(high, (size,), generator=g)
    zero = torch.zeros(episodes, dtype=torch.int64)
    rewards = torch.rand(count, generator=g).double()*(draw(4) == 0)
    outcome = (torch.rand(episodes, generator=g) < .5).double()*2 - 1
    e = Table(group=number//8, game=number, seat=zero, outcome=outcome, success=outcome > 0, truncated=zero > 0,
        last_value=zero.double(), source=zero, policy=zero, step=zero,
        instruction=zero - 1, answer=zero - 1, error=zero - 1, greedy=outcome*.5, prior=outcome*0 + .25)
    t = Table(episode=turn//turns, t=turn % turns, reward=rewards, state=draw(40), action=draw(6), origin=turn,
        tag=draw(4) - 1, meta=rewards, matched=draw(2), switch=draw(2), gain=rewards, step_reward=rewards,
        seconds=rewards + 1)
    place = torch.arange(count*tokens)
    value = torch.rand(len(place), generator=g)
    k = Table(row=place//(turns*tokens), turn=place//tokens, id=place % 50, position=place % (turns*tokens),
        weight=torch.ones(len(place)), old_logp=-value, sampler_logp=-value,
        value=value, value_low=value, value_high=value, value_term=value, sum_pi_squared=value,
        part=torch.full_like(place, 3))
    return Batch(e, Table(episode=number), t, k)

def seconds_of(
    work,  # function without arguments
    repeats: int = 3,
) -> float:
    "Least CPU seconds of a call."
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)

def credit_speed(
    estimators: dict,  # name -> function of a batch
    batch: Batch,
    repeats: int = 3,
) -> dict:             # name -> CPU seconds; 'gather': one read of the tokens
    "What every estimator costs on this batch."
    turn_value = batch.turns.reward
    batch.actions, batch.action_turn  # found once per batch, for everybody
    return (dict(gather=seconds_of(lambda: batch.spread(turn_value), 2*repeats + 1))
        | {name: seconds_of(lambda: f(batch), repeats) for name, f in estimators.items()})

def loop_gigpo(
    batch: Batch,
    key: Tensor,  # (turns,) who is compared with whom
    gamma: float = .95,
) -> Tensor:      # (action tokens,) the step part of GiGPO without division
    "Step groups with dictionaries and loops."
    episode, reward, keys = batch.turns.episode.tolist(), batch.turns.reward.tolist(), key.tolist()
    returns, running = [0.]*len(reward), 0.
    for i in range(len(reward) - 1, -1, -1):
        running = reward[i] + (gamma*running if i + 1 < len(reward) and episode[i + 1] == episode[i] else 0.)
        returns[i] = running
    groups = {}
    for i, k in enumerate(keys): groups.setdefault(k, []).append(returns[i])
    means = {k: sum(values)/len(values) for k, values in groups.items()}
    out, end = torch.zeros(len(batch.actions), dtype=torch.float64), batch.turn_lengths().cumsum(0).tolist()
    for i, k in enumerate(keys):
        if len(groups[k]) > 1: out[end[i - 1] if i else 0:end[i]] = returns[i] - means[k]
    return out

def turn_rows(
    batch: Batch,
    dtype=torch.float32,  # of scores
# mask: (turns, longest) of 0 and 1; outcome: (turns,) tensor; group, state, episode, reward: lists, one entry per turn
) -> dict:
    "Turns as padded rows, as released code for GiGPO and HGPO holds them."
    lengths = batch.turn_lengths()
    mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).to(dtype)
    columns = dict(group=batch.of_turn('group'), state=batch.turns.state, episode=batch.turns.episode,
        reward=batch.turns.reward)
    return (dict(mask=mask, outcome=batch.of_turn('outcome').to(dtype))
        | {name: x.tolist() for name, x in columns.items()})

def by_dictionary(
    scores: Tensor,     # (rows,)
    keys: list,         # who is compared with whom; None: this row with nobody
    ddof: int = 1, eps: float = 1e-6,
    alone: bool = True, # a row without peers: True keeps its score, False gives 0
) -> tuple[Tensor, dict]: # (rows,) score minus mean over deviation; key -> its scores
    "Group statistics with a dictionary of tensors, row by row."
    members, mean, deviation = defaultdict(list), {}, {}
    for i, key in enumerate(keys): members[key].append(scores[i])
    for key, values in members.items():
        stacked = torch.stack(values)
        single = len(values) == 1
        mean[key] = (torch.zeros_like(values[0]) if alone else values[0]) if single else stacked.mean()
        deviation[key] = torch.ones_like(values[0]) if single else stacked.std(correction=ddof)
    out = torch.zeros_like(scores)
    for i, key in enumerate(keys):
        if key is not None: out[i] = (scores[i] - mean[key])/(deviation[key] + eps)
    return out, members

def _returns(rows, gamma):
    "(turns,) discounted return of every turn."
    found, running, episode = [], 0., rows['episode']
    for i in range(len(episode) - 1, -1, -1):
        running = rows['reward'][i] + (gamma*running if i + 1 < len(episode) and episode[i + 1] == episode[i] else 0.)
        found.append(running)
    return torch.tensor(found[::-1], dtype=rows['outcome'].dtype)

def dictionary_gigpo(
    rows: dict,  # of `turn_rows`
    gamma: float = .95,
) -> Tensor:     # (turns, longest) advantage
    "GiGPO with dictionaries of tensors: outcome by task, return by task and state."
    episode, _ = by_dictionary(rows['outcome'], rows['group'])
    step, _ = by_dictionary(_returns(rows, gamma), list(zip(rows['group'], rows['state'])), alone=False)
    return (episode + step)[:, None]*rows['mask']

def dictionary_hgpo(
    rows: dict,  # of `turn_rows`
    history: int = 2, alpha: float = 1., gamma: float = .95, eps: float = 1e-6,
) -> Tensor:     # (turns, longest) advantage
    """HGPO with dictionaries of tensors: return by the last 1, 2, ... states, a weighted mean over those that have
    peers."""
    returns, episode, states = _returns(rows, gamma), rows['episode'], rows['state']
    total, weight = torch.zeros_like(returns), torch.zeros_like(returns)
    for k in range(1, history + 2):
        whole = [i + 1 >= k and episode[i + 1 - k] == episode[i] for i in range(len(episode))]  # k states so far?
        keys = [(group, *states[i + 1 - k:i + 1]) if whole[i] else None for i, group in enumerate(rows['group'])]
        advantage, members = by_dictionary(returns, keys, ddof=0, eps=eps, alone=False)
        for i, key in enumerate(keys):
            if key is None or len(members[key]) == 1: continue
            total[i] += (k + 1)**alpha*advantage[i]
            weight[i] += (k + 1)**alpha
    return (total/(weight + eps))[:, None]*rows['mask']

WORDS = ('a the you are in on of and to your inventory room kitchen door chest key lamp drawer cabinet table shelf '
    'open closed red blue green small large wooden metal '
    'glass north south east west price color size buy search back next page item detail rating new old black '
    'white shirt cotton light cup plate bowl spoon sink fridge').split()

def state_texts(
    count: int,       # different texts
    words: int = 60,  # of each
    seed: int = 0,
) -> list[str]:
    "Observations; every second one is the one before it with one word changed."
    draw, found = random.Random(seed), []
    for i in range(count):
        text = found[-1].split() if i % 2 else draw.choices(WORDS, k=words)
        if i % 2: text[draw.randrange(words)] = f'{draw.choice(WORDS)}{i}'
        found.append(' '.join(text))
    return found

def worded_batch(
    distinct: int,  # different texts that a group meets, at most 128
    groups: int = 2, words: int = 60,
) -> Batch:         # groups of 8 episodes of 16 turns of one token
    "A batch whose states have texts."
    batch, turn = big_batch(8*groups, 16, 1), torch.arange(128*groups)
    texts = {1000*g + i: text for g in range(groups) for i, text in enumerate(state_texts(distinct, words, seed=g))}
    return batch.with_turns(state=1000*(turn//128) + turn % distinct).replace(labels=dict(state=texts))

def similarity_speed(
    clusters,             # function of a batch and `faithful`
    distinct: list[int],  # different texts of a group
    groups: int = 2, words: int = 60, repeats: int = 2,
) -> list[dict]:          # distinct, clusters of a group, milliseconds a group: exact, and with difflib's shortcut
    "What comparing texts costs, for each number of different texts."
    found = []
    for count in distinct:
        batch = worded_batch(count, groups, words)
        cost = lambda faithful: seconds_of(lambda: clusters(batch, faithful=faithful), repeats)*1000/groups
        found.append(dict(distinct=count, clusters=len(clusters(batch).unique())/groups, exact=cost(False),
            shortcut=cost(True)))
    return found
