"""The sampler against the slow truth: one uncached forward over the whole text. Random episodes, what it costs, and
what must not depend on the cache."""
import random
import warnings
from functools import partial
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
    Qwen3Config, Qwen3ForCausalLM)
from agentlab.policy.sampler import (RowCache, TorchSampler, likeliest_tokens, longest_prefixes, pick,
    plan_rows, shared_prefix, uniforms)
from later import deferred

VOCABULARY = 40

def build(kind, attention='sdpa', context=256, hidden=32):
    "A tiny model with weights large enough that what it says depends on what it read."
    torch.manual_seed(0)
    size = dict(vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2*hidden, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=context)
    if kind == 'gpt2':
        config, make = GPT2Config(vocab_size=VOCABULARY, n_embd=hidden, n_layer=2, n_head=4, n_positions=context,
            bos_token_id=0, eos_token_id=0), GPT2LMHeadModel
    elif kind == 'llama': config, make = LlamaConfig(**size, num_key_value_heads=1), LlamaForCausalLM
    else:
        config, make = Qwen3Config(**size, num_key_value_heads=2 if kind == 'qwen3-gqa' else 4,
            head_dim=hidden//4), Qwen3ForCausalLM
    config._attn_implementation = attention
    model = make(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1: parameter.mul_(6)
    return model

MODELS = {kind: deferred(partial(build, kind)) for kind in ('qwen3', 'qwen3-gqa', 'llama', 'gpt2')}

def truth(model, context, ids, temperature=1.):
    "Log-probabilities and entropies of `ids` after `context`, by one forward over everything, as in training."
    with torch.no_grad():
        logits = model(torch.tensor([context + ids]), use_cache=False).logits[0, len(context)-1:-1].float()
    logp = torch.log_softmax(logits / (temperature or 1.), -1)
    return logp.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist(), torch.special.entr(logp.exp()).sum(-1).tolist()

def assert_true(model, contexts, said, temperature=1.):
    for context, one in zip(contexts, said, strict=True):
        logp, entropy = truth(model, context, one.ids, temperature)
        assert one.logprobs == pytest.approx(logp, abs=1e-5) and one.entropies == pytest.approx(entropy, abs=1e-5)

def tokens(rng, low, high): return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

def play(sampler, rng, rows, turns, each_turn=lambda turn, rows: rows, add=(1, 9), **kw):
    "Yield (contexts, completions) for every turn; every context goes on with what was said and some new tokens."
    contexts = [tokens(rng, 1, 12) for _ in range(rows)]
    for turn in range(turns):
        contexts = each_turn(turn, contexts)
        said = sampler.sample(contexts, **dict(dict(max_tokens=4, seeds=[rng.randrange(2**60) for _ in contexts]),
            **kw))
        yield contexts, said
        contexts = [context + one.ids + tokens(rng, *add) for context, one in zip(contexts, said)]

class Meter:
    "Counts what really goes through the model, whatever the sampler says."
    def __init__(self, model):
        self.positions, self.forwards, self.handle = 0, 0, model.register_forward_pre_hook(self.see, with_kwargs=True)
    def see(self, module, args, kwargs):
        self.positions += kwargs['input_ids'].numel()
        self.forwards += 1
    def __enter__(self): return self
    def __exit__(self, *_): self.handle.remove()

# ---------------------------------------------------------------- the same log-probabilities as in training

@pytest.mark.parametrize('kind', MODELS)
def test_many_ragged_turns_with_forks_and_departures(kind):
    model, rng, parked = MODELS[kind], random.Random(1), []
    def shuffle(turn, rows):
        if turn % 3 == 2:
            parked.append(rows.pop(rng.randrange(len(rows))))
            rng.shuffle(rows)
        # from its middle; a twin; at its end
        if turn % 4 == 1: rows = rows + [rows[0][:len(rows[0])//2] + [7], list(rows[1]), rows[2] + [3]]
        if turn % 5 == 4: rows = rows + [parked.pop() + [9]]  # comes back
        return rows
    for contexts, said in play(TorchSampler(model, stop={3, 4, 5}), rng, rows=6, turns=14, each_turn=shuffle,
                               max_tokens=6):
        assert_true(model, contexts, said)

@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
def test_attention_implementations(attention):
    model = build('qwen3-gqa', attention)
    for contexts, said in play(TorchSampler(model, stop={1}), random.Random(0), rows=4, turns=4):
        assert_true(model, contexts, said)
    assert model.config._attn_implementation == attention

event = st.fixed_dictionaries(dict(
    drop=st.sets(st.integers(0, 8), max_size=4), fork=st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)),
    max_size=3), fresh=st.integers(0, 2), back=st.booleans(),
    shuffle=st.booleans(), max_tokens=st.integers(1, 7), temperature=st.sampled_from([0, .7, 1., 2.]),
    top_p=st.sampled_from([1., .8]), new=st.integers(0, 9)))

@settings(max_examples=25, deadline=None, derandomize=True)
@given(kind=st.sampled_from(sorted(MODELS)), events=st.lists(event, min_size=2, max_size=7), seed=st.integers(0, 2**32),
    budget=st.sampled_from([None, 60_000, 200_000]))
def test_random_episodes(kind, events, seed, budget):
    model, rng, parked = MODELS[kind], random.Random(seed), []
    sampler, rows = (TorchSampler(model, stop={3, 4}, budget=budget, positions=rng.choice([30, 16384])),
        [tokens(rng, 1, 20) for _ in range(3)])
    for e in events:
        parked += [row for i, row in enumerate(rows) if i in e['drop']]
        rows = [row for i, row in enumerate(rows) if i not in e['drop']]
        rows += [rows[i % len(rows)][:max(1, int(share * len(rows[i % len(rows)])))] + tokens(rng, 0, 3)
            for i, share in e['fork'] if rows]
        rows += [tokens(rng, 1, 30) for _ in range(e['fresh'])] + ([parked.pop()] if e['back'] and parked else [])
        if e['shuffle']: rng.shuffle(rows)
        rows = [row for row in rows if len(row) < 200]
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            said = sampler.sample(rows, e['max_tokens'], e['temperature'], e['top_p'],
                seeds=[rng.randrange(2**40) for _ in rows])
        assert_true(model, rows, said, e['temperature'])
        for one in said:
            assert (1 <= len(one.ids) <= e['max_tokens'] and (one.finish == 'stop') == (one.ids[-1] in {3, 4})
                and not {3, 4} & set(one.ids[:-1]))
        rows = [row + one.ids + tokens(rng, 0, e['new']) for row, one in zip(rows, said)]

def test_every_resize_keeps_what_is_cached(monkeypatch):
    "Grow to exactly what each call needs, so that every call moves everything."
    model = MODELS['qwen3-gqa']
    monkeypatch.setattr(TorchSampler, '_size', lambda self, rows, columns, others: (
        rows + others, max(columns, *map(len, self.rows.values())) if self.rows else columns))
    sampler = TorchSampler(model, stop={3})
    before, resizes = None, 0
    for contexts, said in play(sampler, random.Random(5), rows=5, turns=8,
                               each_turn=lambda turn, rows: rows[turn % 2:] + [rows[0] + [2]]):
        assert_true(model, contexts, said)
        resizes += (sampler.cache.slots, sampler.cache.capacity) != before
        before = sampler.cache.slots, sampler.cache.capacity
    assert resizes > 5

def test_growth_on_an_accelerator_is_by_doubling():
    sampler = TorchSampler(MODELS['qwen3'], max_context=256, budget=2**30)
    sampler.sample([[1]], 1)
    sampler.device, sampler.cache.capacity, sizes = torch.device('cuda'), 8, []
    for columns in range(9, 257):
        sizes.append(sampler._size(4, columns, 0)[1])
        sampler.cache.capacity = sizes[-1]
    assert max(sizes) <= 256 and len(set(sizes)) <= 6
    sampler.cache.slots, slots = 1, []
    for rows in range(1, 100):
        sampler.cache.slots = sampler._size(rows, 10, 0)[0]
        slots.append(sampler.cache.slots)
    assert len(set(slots)) <= 15 and slots[-1] <= 150

def test_bfloat16():
    model = build('qwen3-gqa').to(torch.bfloat16)
    for contexts, said in play(TorchSampler(model), random.Random(0), rows=3, turns=3):
        for context, one in zip(contexts, said):
            assert one.logprobs == pytest.approx(truth(model, context, one.ids)[0], abs=.5)

def test_padding_that_was_never_written_is_finite():
    "A diverged model fills the cache with NaN; once it is mended, nothing of that is left."
    model = build('qwen3')
    sampler, good = TorchSampler(model), model.model.layers[0].self_attn.v_proj.weight.detach().clone()
    with torch.no_grad(): model.model.layers[0].self_attn.v_proj.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match='weights have diverged'): sampler.sample([[1]*20, [2]*30], 4)
    with torch.no_grad(): model.model.layers[0].self_attn.v_proj.weight.copy_(good)
    contexts = [[1, 2], [3]*9]
    assert_true(model, contexts, sampler.sample(contexts, 4))

# ---------------------------------------------------------------- many words

def plain_pick(logits, draws, temperature, top_p):
    "As it is written down: every word sorted, all rows at once."
    logp = torch.log_softmax(logits / temperature, -1)
    p, order = logp.exp(), torch.arange(logits.shape[1]).expand_as(logits)
    if top_p < 1:
        p, order = p.sort(dim=-1, descending=True, stable=True)
        p = p * (p.cumsum(-1) - p < top_p)
    total = p.cumsum(-1)
    ids = order.gather(1,
        torch.searchsorted(total, draws[:, None]*total[:, -1:], right=True).clamp_(max=p.shape[1] - 1))
    return ids[:, 0], logp.gather(1, ids)[:, 0], torch.special.entr(logp.exp()).sum(-1), p.sum(-1).log()

@pytest.mark.parametrize('words', [40, 4096, 5003, 49152])
@pytest.mark.parametrize('top_p', [1., .95, .3])
@pytest.mark.parametrize('scale', [.01, 3.], ids=['flat', 'steep'])
def test_a_large_vocabulary_is_picked_as_a_small_one(words, top_p, scale):
    "In pieces, with a thousand words sorted: the same bits. Coarse logits have many ties."
    logits = (torch.randn(60, words, generator=torch.Generator().manual_seed(0)) * scale).bfloat16().float()
    draws = uniforms(range(60), [0]*60, 1)[:, 0]
    ids, logp, entropy, *more = pick(logits, draws, .7, top_p, likeliest=5)
    wanted = plain_pick(logits, draws, .7, top_p)
    assert torch.equal(ids, wanted[0]) and torch.equal(logp, wanted[1]) and torch.equal(entropy, wanted[2])
    if top_p < 1: torch.testing.assert_close(logp - more[0], wanted[3], atol=1e-5, rtol=0)
    full = torch.log_softmax(logits / .7, -1)
    assert torch.equal(more[-1], full.topk(5)[0]) and torch.equal(full.gather(1, more[-2]), more[-1])

@pytest.mark.parametrize('words, count', [(3, 5), (40, 5), (4096, 20), (5003, 5)])
def test_likeliest_tokens(words, count):
    logp = torch.log_softmax(torch.randn(7, words), -1)
    ids, best = likeliest_tokens(logp, count)
    assert torch.equal(best, logp.topk(min(count, words))[0]) and torch.equal(logp.gather(1, ids), best)

def test_the_likeliest_words_of_every_token():
    model, rng = MODELS['qwen3'], random.Random(0)
    contexts = [tokens(rng, 3, 12) for _ in range(5)]
    said = TorchSampler(model, stop={3, 4}).sample(contexts, 9, seeds=1)
    for context, one in zip(contexts, said):
        assert len(one.top_ids) == len(one.top_logps) == len(one.ids)
        for at, (ids, logps) in enumerate(zip(one.top_ids, one.top_logps)):
            true = [truth(model, context, one.ids[:at] + [i])[0][-1] for i in ids]
            assert (logps == pytest.approx(true, abs=1e-5) and logps == sorted(logps, reverse=True)
                and max(logps) >= one.logprobs[at] - 1e-6)
    greedy = TorchSampler(model).sample(contexts, 4, temperature=0)
    assert all([top[0] for top in one.top_ids] == one.ids for one in greedy)
    without = TorchSampler(model, stop={3, 4}, likeliest=0).sample(contexts, 9, seeds=1)
    assert [(one.ids, one.logprobs, one.entropies) for one in without] == [(one.ids, one.logprobs, one.entropies)
        for one in said]
    assert all(one.top_ids is None and one.top_logps is None for one in without)

def test_rows_of_a_real_model_stay_cached(monkeypatch):
    "64 games of 500 tokens of a model with 30 layers and 3 keys of 64, in float32, and a context of 8192."
    monkeypatch.setattr(RowCache, 'token_bytes', 30*3*64*2*4)
    sampler = TorchSampler(MODELS['qwen3'], max_context=8192)
    sampler.device, sampler.cache.slots = torch.device('cpu'), 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert sampler._rows_that_fit(500, 64) >= 64
    slots, capacity = sampler._size(64, 500, 0)
    assert slots == 64 and 500 <= capacity < 8192 and slots*(capacity + 1)*RowCache.token_bytes <= sampler.budget

# ---------------------------------------------------------------- a function of its arguments

def test_same_seed_same_answer_whatever_came_before():
    model, rng = MODELS['qwen3'], random.Random(3)
    used = TorchSampler(model, stop={3})
    for contexts, _ in play(used, rng, rows=5, turns=5): pass
    seeds = [11, 12, 13, 14, 15]
    ids = lambda said: [one.ids for one in said]
    expected = ids(TorchSampler(model, stop={3}).sample(contexts, 8, seeds=seeds))
    assert ids(used.sample(contexts, 8, seeds=seeds)) == expected == ids(used.sample(contexts, 8, seeds=seeds))
    assert ids(used.sample(contexts[::-1], 8, seeds=seeds[::-1])) == expected[::-1]
    assert [used.sample([c], 8, seeds=[s])[0].ids for c, s in zip(contexts, seeds)] == expected
    assert ids(used.sample(contexts + [[1, 2, 3]]*4, 8, seeds=seeds + [1, 2, 3, 4]))[:5] == expected
    assert ids(used.sample(contexts, 8, seeds=[seed + 1 for seed in seeds])) != expected

def test_long_answers_are_the_same_in_pieces():
    sampler = TorchSampler(MODELS['gpt2'])
    whole, parts = sampler.sample([[1, 2, 3]], 12, seeds=[5])[0].ids, []
    for length in (5, 4, 3): parts += sampler.sample([[1, 2, 3] + parts], length, seeds=[5])[0].ids
    assert parts == whole

def test_arguments_are_not_kept():
    model = MODELS['qwen3']
    sampler, context = TorchSampler(model), [1, 2, 3]
    said = sampler.sample([context], 4)[0]
    context[1], said.ids[0] = 9, 9
    again = [1, 2, 3, *sampler.sample([[1, 2, 3]], 4)[0].ids, 5]
    assert_true(model, [again, [1, 9, 3, 9]], sampler.sample([again, [1, 9, 3, 9]], 3))

def test_other_sequences_than_lists():
    sampler = TorchSampler(MODELS['qwen3'])
    expected = sampler.sample([[1, 2, 3]], 4)[0].ids
    for context in (np.array([1, 2, 3]), torch.tensor([1, 2, 3]), (1, 2, 3)):
        assert sampler.sample([context], 4)[0].ids == expected

def test_global_random_state_and_model_are_left_alone():
    model = build('gpt2').train()  # GPT-2 has dropout
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    torch_state, numpy_state, python_state = (torch.random.get_rng_state(), np.random.get_state()[1].copy(),
        random.getstate())
    sampler = TorchSampler(model)
    first, second = sampler.sample([[1, 2]], 5), TorchSampler(model).sample([[1, 2]], 5)
    assert first[0].ids == second[0].ids
    assert (torch.equal(torch_state, torch.random.get_rng_state()) and (numpy_state == np.random.get_state()[1]).all()
        and python_state == random.getstate())
    assert modes == [module.training for module in model.modules()] and model.config._attn_implementation == 'sdpa'
    assert_true(model.eval(), [[1, 2]], first)
    assert (all(parameter.grad is None for parameter in model.parameters())
        and model(torch.tensor([[1]])).logits.requires_grad)

# ---------------------------------------------------------------- the distribution

def chi_square(counts, p):
    expected = p * counts.sum()
    return float(((counts - expected)**2 / expected).sum())

@pytest.mark.parametrize('temperature, top_p', [(1., 1.), (.5, 1.), (2., 1.), (1., .8), (.7, .6)])
def test_frequencies(temperature, top_p):
    model, rows = MODELS['qwen3'], 4000
    said = TorchSampler(model).sample([[1, 2, 3]]*rows, 1, temperature, top_p, seeds=list(range(rows)))
    logp = torch.log_softmax(model(torch.tensor([[1, 2, 3]])).logits[0, -1] / temperature, -1).detach().double().numpy()
    order = np.argsort(-logp)
    stay = order[np.cumsum(np.exp(logp[order])) - np.exp(logp[order]) < top_p]
    p = np.zeros(VOCABULARY)
    p[stay] = np.exp(logp[stay]) / np.exp(logp[stay]).sum()
    counts = np.bincount([one.ids[0] for one in said], minlength=VOCABULARY)
    assert counts[p == 0].sum() == 0
    often = p * rows > 5
    assert chi_square(counts[often], p[often] / p[often].sum()) < often.sum() + 4 * (2 * often.sum())**.5
    for one in said[:50]:
        assert one.logprobs[0] == pytest.approx(logp[one.ids[0]], abs=1e-5)
        if top_p < 1: assert one.truncated_logprobs[0] == pytest.approx(np.log(p[one.ids[0]]), abs=1e-5)
        else: assert one.truncated_logprobs is None

def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    model = MODELS['llama']
    contexts = [[1, 2, 3], [4]]
    said = TorchSampler(model).sample(contexts, 6, temperature=0, top_p=.3)
    assert_true(model, contexts, said)
    for context, one in zip(contexts, said):
        for k, token in enumerate(one.ids):
            assert token == model(torch.tensor([context + one.ids[:k]])).logits[0, -1].argmax()
        assert one.truncated_logprobs is None

def test_uniforms_look_independent():
    draws = uniforms(list(range(-50, 50)), [10*k for k in range(100)], 2000).double()
    assert draws.min() >= 0 and draws.max() < 1
    assert chi_square(np.histogram(draws.numpy(), 64, (0, 1))[0], np.full(64, 1/64)) < 64 + 4 * 128**.5
    correlation = torch.corrcoef(draws) - torch.eye(100)
    assert correlation.abs().max() < 6 / 2000**.5
    assert abs(torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))[0, 1]) < .01

def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((3, 5), -torch.inf)
    logits[:, 2] = 0.
    for top_p in (1., .5):
        ids, logp, entropy, *_ = pick(logits, torch.tensor([0., .5, 1 - 2**-23]), top_p=top_p)
        assert ids.tolist() == [2, 2, 2] and logp.tolist() == [0]*3 and entropy.tolist() == [0]*3

# ---------------------------------------------------------------- what it costs

def test_every_token_is_read_once():
    model = MODELS['qwen3']
    sampler = TorchSampler(model)
    with Meter(model) as meter:
        for turn, (contexts, said) in enumerate(play(sampler, random.Random(2), rows=6, turns=10, add=(5, 5))):
            # later, all rows get equally much
            if not turn: padding = 6*max(map(len, contexts)) - sum(map(len, contexts))
    ever = sum(len(context) + len(one.ids) - 1 for context, one in zip(contexts, said))
    # 1: a token read to learn what a column weighs
    assert meter.positions == 1 + ever + padding == sampler.counts['positions']
    assert meter.forwards == 1 + 10*4 == sampler.counts['forwards']  # 4 tokens a turn, 4 forwards
    assert sampler.counts['padding'] == padding and sampler.counts['copied'] == 0

def test_twins_are_read_once():
    model = MODELS['qwen3']
    with Meter(model) as meter: said = TorchSampler(model).sample([[5]*50]*16, 1, seeds=0)
    assert meter.positions == 1 + 50 and len({one.ids[0] for one in said}) > 1

def test_equal_rows_go_on_in_place():
    "A group whose members all say the same must not be copied every turn."
    sampler = TorchSampler(MODELS['qwen3'])
    contexts = [[5]*20]*8
    for turn in range(6):
        contexts = [context + one.ids + [7]
            for context, one in zip(contexts, sampler.sample(contexts, 3, temperature=0))]
        if not turn: first = sampler.counts['copied']
    assert sampler.counts['copied'] == first == 7*20

def test_a_group_is_copied_once():
    """Members of a group often say the same, or begin the same: each must find its own row again, not a copy of a
    neighbour's."""
    sampler, contexts = TorchSampler(MODELS['qwen3-gqa'], stop={3}), [[5]*20]*8
    for turn in range(12):
        said = sampler.sample(contexts, 2, temperature=.1, seeds=[100*turn + k for k in range(8)])
        contexts = [context + one.ids + [7, one.ids[-1]] for context, one in zip(contexts, said)]
        if not turn: assert sampler.counts['copied'] == 7*20
    assert 1 < len({tuple(context) for context in contexts}) and sampler.counts['copied'] == 7*20

def copied(turns, leave):
    sampler = TorchSampler(MODELS['qwen3'], max_context=2000, budget=2**28)
    for _ in play(sampler, random.Random(0), rows=12, turns=turns, each_turn=lambda turn, rows: rows[:3] + rows[4:]
                  if leave and turn and len(rows) > 4 else rows, add=(6, 6), max_tokens=1):
        pass
    return sampler.counts['copied']

def test_copies_grow_linearly():
    """Each departure costs at most two row copies, and nothing else is copied: after the last departure the number
    stands still."""
    assert copied(12, leave=False) == copied(24, leave=False) == 0
    assert copied(10, leave=True) == copied(24, leave=True) <= sum(2 * (12 + 7*turn) for turn in range(1, 9))

def test_rows_that_are_done_leave_the_window():
    "One long answer among short ones: the others are not carried along for ever, and the copies pay for themselves."
    model = MODELS['qwen3']
    sampler = TorchSampler(model)
    contexts, seeds = [[k] for k in range(24)], list(range(24))
    said = sampler.sample(contexts, 120, stop={9, 10}, seeds=seeds)
    lengths = sorted(len(one.ids) for one in said)
    assert lengths[0] < 20 and lengths[-1] > 60
    sampler.forget()
    sampler.counts.update(positions=0, copied=0)
    with Meter(model) as meter: again = sampler.sample(contexts, 120, stop={9, 10}, seeds=seeds)
    assert [one.ids for one in again] == [one.ids for one in said]
    assert meter.positions < 1.35 * sum(lengths) < .75 * 24 * lengths[-1]
    assert_true(model, contexts, said)
    follow = [context + one.ids + [1] for context, one in zip(contexts, said)]
    with Meter(model) as meter: after = sampler.sample(follow, 1)
    assert meter.positions == 2*24  # nothing was lost in the swaps
    assert_true(model, follow, after)

def test_memory_is_bounded():
    model, rng = MODELS['qwen3'], random.Random(0)
    sampler = TorchSampler(model, budget=400_000)
    for _ in range(6):  # new games again and again: the old ones make room
        for contexts, said in play(sampler, rng, rows=8, turns=3):
            assert_true(model, contexts, said)
            held = sum(getattr(layer, name).numel() * 4 for layer, name in sampler.cache.stores())
            assert held == sampler.cache.slots * (sampler.cache.capacity + 1) * sampler.cache.token_bytes <= 400_000
            assert set(sampler.rows) <= set(range(sampler.cache.slots)) and len(sampler.rows) >= 8

def test_the_row_that_waited_longest_makes_room():
    model = MODELS['qwen3']
    # three rows of 63 tokens
    sampler, games = TorchSampler(model, budget=3*64*512), {name: [k]*30 for k, name in enumerate('abc')}
    sampler._size = lambda rows, columns, others: (2, 63)  # room for two
    for name in 'abac': games[name] = games[name] + sampler.sample([games[name]], 1)[0].ids
    read = {}
    for name in 'ab':                                      # c took the place of b
        with Meter(model) as meter: sampler.sample([games[name]], 1)
        read[name] = meter.positions
    assert read == dict(a=1, b=31)

def test_the_end_of_the_context():
    model = MODELS['gpt2']  # has no position 256
    contexts = [[1]*255, [2]*10, [3]*250]
    sampler = TorchSampler(model)
    said = sampler.sample(contexts, 20, seeds=[1, 2, 3])
    assert [(len(one.ids), one.finish) for one in said] == [(1, 'length'), (20, 'length'), (6, 'length')]
    assert_true(model, contexts, said)
    assert_true(model, [contexts[1] + said[1].ids], sampler.sample([contexts[1] + said[1].ids], 5))

def test_rows_beyond_the_budget_are_sampled_in_parts():
    model, contexts = MODELS['qwen3-gqa'], [[k]*30 for k in range(10)]
    sampler = TorchSampler(model, budget=40_000)
    with pytest.warns(UserWarning, match='Raise budget'): said = sampler.sample(contexts, 4, seeds=list(range(10)))
    assert [one.ids for one in said] == [one.ids
        for one in TorchSampler(model).sample(contexts, 4, seeds=list(range(10)))]
    assert sampler.cache.slots * (sampler.cache.capacity + 1) * sampler.cache.token_bytes <= 40_000

def test_two_players_keep_their_rows():
    model, players = MODELS['qwen3'], [[[1, 2, k] for k in range(4)], [[1, 2, 9, k] for k in range(4)]]
    sampler = TorchSampler(model)
    for turn in range(5):
        for who in (0, 1):
            before = sampler.counts['positions']
            said = sampler.sample(players[who], 2, seeds=turn)
            assert_true(model, players[who], said)
            if turn: assert sampler.counts['positions'] - before == 4*(1 + 2) + 4
            players[who] = [context + one.ids + [5, 6] for context, one in zip(players[who], said)]

# ---------------------------------------------------------------- weights

def changes():
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=.1)
    adamw = lambda **kw: lambda model: torch.optim.AdamW(model.parameters(), lr=.05, **kw)
    def step(make):
        def change(model):
            optimizer = make(model)
            model(torch.tensor([[1, 2, 3]])).logits.pow(2).mean().backward()
            optimizer.step()
        return change
    return dict(sgd=step(sgd), adamw=step(adamw()), foreach=step(adamw(foreach=True)), fused=step(adamw(fused=True)),
        no_foreach=step(adamw(foreach=False)),
        load=lambda model: model.load_state_dict({k: v*1.1 for k, v in model.state_dict().items()}),
        assign=lambda model: model.load_state_dict({k: v*1.1 for k, v in model.state_dict().items()},
        assign=True))

@pytest.mark.parametrize('change', changes())
def test_new_weights_are_noticed(change):
    model = build('qwen3')
    sampler, contexts = TorchSampler(model), [[1, 2, 3], [4, 5]]
    grown = [context + one.ids + [6] for context, one in zip(contexts, sampler.sample(contexts, 3))]
    before = truth(model, grown[0], [1])[0]
    changes()[change](model)
    assert abs(truth(model, grown[0], [1])[0][0] - before[0]) > 1e-4
    assert_true(model, grown, sampler.sample(grown, 3))

def test_adapters():
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(build('qwen3-gqa'),
        LoraConfig(r=4, target_modules=['q_proj', 'v_proj'], init_lora_weights=False))
    sampler, rng = TorchSampler(model), random.Random(0)
    for contexts, said in play(sampler, rng, rows=3, turns=3): assert_true(model.eval(), contexts, said)
    contexts = [context + one.ids + [3] for context, one in zip(contexts, said)]
    with model.disable_adapter(): assert_true(model, contexts, sampler.sample(contexts, 3))
    assert_true(model, contexts, sampler.sample(contexts, 3))

# ---------------------------------------------------------------- faults

@pytest.mark.parametrize('where', ['forward', 'move'])
def test_a_call_that_is_interrupted_leaves_nothing_wrong(monkeypatch, where):
    model, rng, fuse = MODELS['qwen3'], random.Random(4), [0]
    sampler = TorchSampler(model)
    owner, name = (TorchSampler, '_forward') if where == 'forward' else (type(sampler.cache), 'move')
    original = getattr(owner, name)
    def burn(self, *args, **kw):
        answer, fuse[0] = original(self, *args, **kw), fuse[0] - 1
        if not fuse[0]: raise KeyboardInterrupt(where)
        return answer
    monkeypatch.setattr(owner, name, burn)
    contexts = [tokens(rng, 1, 9) for _ in range(4)]
    for turn in range(1, 14):
        fuse[0] = turn % (5 if where == 'forward' else 2) + 1
        rng.shuffle(contexts)
        try: sampler.sample(contexts[turn % 3:] + [contexts[0][:-1] + [5]], 4, seeds=1)
        except KeyboardInterrupt: pass
        fuse[0] = 0
        said = sampler.sample(contexts, 4, seeds=[turn]*4)
        assert_true(model, contexts, said)
        contexts = [context + one.ids + tokens(rng, 1, 3) for context, one in zip(contexts, said)]
        assert model.config._attn_implementation == 'sdpa'

@pytest.mark.parametrize('says, contexts, kw', [
    (r'contexts\[1\] is empty', [[1], []], {}), (r'contexts\[0\] has 256 tokens, but max_context=256', [[1]*256], {}),
    ('the id 40', [[1, 40]], {}), ('the id -1', [[-1]], {}),
    ('whole numbers', [[1.5]], {}), ('whole numbers', [['a']], {}), ('max_tokens=0', [[1]], dict(max_tokens=0)),
    ('temperature=-0.1', [[1]], dict(temperature=-.1)),
    ('temperature=nan', [[1]], dict(temperature=float('nan'))), ('top_p=0', [[1]], dict(top_p=0)),
    ('top_p=1.1', [[1]], dict(top_p=1.1)), ('seeds: 1 for 2', [[1], [2]], dict(seeds=[1])),
    (r'stop=\[40\]', [[1]], dict(stop={40}))])
def test_bad_requests(says, contexts, kw):
    sampler = TorchSampler(MODELS['qwen3'])
    sampler.sample([[1, 2, 3]], 2)
    rows = dict(sampler.rows)
    with pytest.raises(ValueError, match=says): sampler.sample(contexts, **dict(dict(max_tokens=3), **kw))
    assert sampler.rows == rows  # nothing is lost

def test_models_that_cannot_be_sampled():
    size = dict(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2)
    mistral = MistralForCausalLM(MistralConfig(**size, sliding_window=8, max_position_embeddings=64))
    with pytest.raises(ValueError, match='max_context=8 or less'): TorchSampler(mistral)
    assert_true(mistral.eval(), [[1, 2, 3]], TorchSampler(mistral, max_context=8).sample([[1, 2, 3]], 9))
    stretched = LlamaForCausalLM(LlamaConfig(**size, max_position_embeddings=64,
        rope_parameters=dict(rope_type='dynamic', rope_theta=1e4, factor=2.)))
    with pytest.raises(ValueError, match='max_context=64 or less'): TorchSampler(stretched, max_context=100)
    flash = build('qwen3')
    flash.config._attn_implementation = 'flash_attention_2'
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"): TorchSampler(flash)
    hybrid = build('qwen3')
    hybrid.config.layer_types = ['linear_attention', 'full_attention']
    with pytest.raises(ValueError, match='needs full attention'): TorchSampler(hybrid)

# ---------------------------------------------------------------- the parts

def test_a_row_that_is_contained_goes_before_one_that_shares_as_much():
    assert (plan_rows([[1, 2, 3]], {0: [1, 2, 4], 1: [1, 2]}).own == {0: (1, 2)}
        == plan_rows([[1, 2, 3]], {0: [1, 2, 2], 1: [1, 2]}).own)
    assert plan_rows([[1, 2, 3, 4]], {0: [1], 1: [1, 2, 3, 9]}).new == {0: (1, 3)}  # but reading less comes first

lists = st.lists(st.integers(0, 2), min_size=1, max_size=8)

@settings(max_examples=200, deadline=None, derandomize=True)
@given(contexts=st.lists(lists, min_size=1, max_size=6), rows=st.lists(lists, max_size=8))
def test_longest_prefix_against_all_pairs(contexts, rows):
    def slow(a, b): return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    for a in contexts:
        for b in rows: assert shared_prefix(a, b) == slow(a, b)
    ordered = sorted({tuple(row) for row in rows})
    for context, (shared, _) in zip(contexts, longest_prefixes(contexts, [list(row) for row in ordered])):
        assert shared == min(max((slow(context, row) for row in rows), default=0), len(context) - 1)

@settings(max_examples=200, deadline=None, derandomize=True)
@given(contexts=st.lists(lists, min_size=1, max_size=6), rows=st.lists(lists, max_size=8))
def test_plans_are_sound(contexts, rows):
    plan, cached = plan_rows(contexts, dict(enumerate(rows))), dict(enumerate(rows))
    assert sorted([*plan.own, *plan.new, *plan.twins]) == list(range(len(contexts)))
    assert len({slot for slot, _ in plan.own.values()}) == len(plan.own)
    for i, (slot, n) in plan.own.items():
        assert cached[slot] == contexts[i][:n] and n == len(cached[slot]) < len(contexts[i])
    for i, (slot, n) in plan.new.items():
        assert n < len(contexts[i]) and (n == 0 if slot is None else cached[slot][:n] == contexts[i][:n])
    for i, leader in plan.twins.items(): assert contexts[i] == contexts[leader] and leader not in plan.twins
