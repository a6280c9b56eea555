"""Sampled and trained log-probabilities in bf16, bit for bit: ragged turns, forks, rows that leave, sizes of
micro-batches, adapters, checkpointing."""
import copy
import os
import pickle
import random
import subprocess
import sys

import pytest
import torch
from transformers import (Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
    MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM)

from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import Policy, TorchSampler, exact, word_tokenizer
from agentlab.policy.core import checkpoint_layers
from agentlab.policy.exact import EXACT, fewest_rows, settle, weighted_values, why_not
from agentlab.train.trainer import with_lora
from later import deferred
from small import Paying, small_policy, train_small

WORDS = 40
SIZE = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=256)
KINDS = dict(
    llama=(LlamaForCausalLM, LlamaConfig, SIZE | dict(num_key_value_heads=2)),
    llama_one_key=(LlamaForCausalLM, LlamaConfig, SIZE | dict(num_key_value_heads=1)),
    qwen3=(Qwen3ForCausalLM, Qwen3Config, SIZE | dict(num_key_value_heads=4, head_dim=16)),
    mistral=(MistralForCausalLM, MistralConfig, SIZE | dict(num_key_value_heads=2, sliding_window=7)),
    gpt2=(GPT2LMHeadModel, GPT2Config, dict(vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=256,
    bos_token_id=0, eos_token_id=0)),
    gemma2=(Gemma2ForCausalLM, Gemma2Config, SIZE | dict(num_key_value_heads=2, head_dim=16)))

def build(kind, dtype=torch.bfloat16):
    "A random model with weights large enough that what it says depends on what it read."
    torch.manual_seed(0)
    make, config, size = KINDS[kind]
    model = make(config(**size, attn_implementation='eager' if kind == 'gemma2' else 'sdpa')).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1: parameter.mul_(4)
    return model.to(dtype)

def policy_of(kind, adapter=False, **kw):
    policy = Policy(build(kind), word_tokenizer([f'w{i}' for i in range(WORDS - 5)]), **kw)
    return moved(with_lora(policy, r=8)) if adapter else policy

def moved(policy, size=.1):
    "With an adapter that changes what is said."
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if 'lora_B' in name: parameter.normal_(std=size, generator=draw)
    return policy

def ragged(policy, turns=7, rows=5, words=WORDS, **kw):
    "Episodes of random observations. One game is forked, one rests for two turns, and in the last turns one is alone."
    draw, sampler = random.Random(0), policy.sampler(stop={0})
    say = lambda: [draw.randrange(5, words) for _ in range(draw.randint(1, 9))]
    games, read = [[] for _ in range(rows)], [say() for _ in range(rows)]
    for t in range(turns):
        if t == 3:
            games.append(list(games[0]))
            read.append(read[0] + say())
        live = [2] if t >= turns - 2 else [i for i in range(len(games)) if i != 1 or t not in (4, 5)]
        contexts = [sum((x.context_ids + x.ids for x in games[i]), []) + read[i] for i in live]
        said = sampler.sample(contexts, **dict(max_tokens=5, seeds=[100*t + i for i in live]) | kw)
        for i, one in zip(live, said):
            games[i].append(Turn(t, context_ids=read[i], ids=one.ids, logps=one.logprobs, entropies=one.entropies))
            read[i] = say()
    return Batch.from_episodes([Episode(turns, group=i) for i, turns in enumerate(games)])

def gap(policy, batch, budget=4096, temperature=1.):
    return (policy.logprobs(batch, temperature, budget)[0] - batch.action('sampler_logp')).abs().max().item()

@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=['1_thread', '2_threads'])
def threads(request):
    """Kernels depend on the number of threads (two wait for each other on a busy machine); where linears depend on
    their rows, there is nothing to test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    try:
        if why := why_not(build('llama')): pytest.skip(f'not exact on this machine: {why}')
        yield request.param
    finally: torch.set_num_threads(before)

# ---------------------------------------------------------------- sampled is trained

@pytest.mark.parametrize('adapter', [False, True], ids=['plain', 'adapter'])
@pytest.mark.parametrize('kind', ['llama', 'llama_one_key', 'qwen3', 'gpt2'])
def test_ragged_turns_and_forks(kind, adapter, threads):
    policy = policy_of(kind, adapter)
    batch = ragged(policy)
    assert policy.settle() and policy.model.config._attn_implementation == EXACT
    assert [gap(policy, batch, budget) for budget in (64, 300, 4096)] == [0., 0., 0.]

def test_without_it_there_is_a_gap(threads):
    policy = policy_of('llama', exact=False)
    assert gap(policy, ragged(policy)) > 1e-3 and policy.model.config._attn_implementation == 'sdpa'

def test_temperature_top_p_and_long_contexts(threads):
    policy = policy_of('llama', adapter=True)
    batch = ragged(policy, temperature=.7, top_p=.9, max_tokens=25)
    assert torch.bincount(batch.tokens.row).max() > 100 and gap(policy, batch, temperature=.7) == 0.

@pytest.mark.parametrize('kind', ['llama', 'llama_one_key'])
def test_one_row_alone(kind, threads):
    "A row by itself is a vector times a matrix, for which libraries have other kernels: it is filled up, too."
    policy = policy_of(kind, adapter=True)
    said, = policy.sampler(stop=set()).sample([[5, 6, 7]], max_tokens=90, seeds=3)
    alone = Batch.from_episodes([
        Episode([Turn(0, context_ids=[5, 6, 7], ids=said.ids, logps=said.logprobs, entropies=said.entropies)])])
    assert fewest_rows(policy.model) > 1 and gap(policy, alone) == 0.

def test_a_cache_that_is_small_or_cold(threads):
    "Rows that are read again, in parts or from the start, get the same numbers."
    policy = policy_of('llama', adapter=True)
    batch = ragged(policy)
    contexts = [row.tolist() for row in batch.tokens.id.split(torch.bincount(batch.tokens.row).tolist())]
    whole = policy.sampler().sample(contexts, 4, seeds=5)
    with pytest.warns(UserWarning, match='sampled in parts'):
        parts = policy.sampler(budget=50_000).sample(contexts, 4, seeds=5)
    assert [one.logprobs for one in parts] == [one.logprobs for one in whole]
    alone = [policy.sampler().sample([row], 4, seeds=[5*len(contexts) + i])[0] for i, row in enumerate(contexts)]
    assert [one.logprobs for one in alone] == [one.logprobs for one in whole]

def test_checkpointed_and_with_gradients(threads):
    policy = policy_of('llama', adapter=True)
    batch = ragged(policy)
    slopes = []
    for on in (False, True):
        checkpoint_layers(policy.model, on)
        policy.model.zero_grad()
        logp = policy.forward(batch)[0]
        assert torch.equal(logp.detach(), batch.action('sampler_logp'))
        logp.sum().backward()
        slopes.append(torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.requires_grad]))
    assert torch.equal(*slopes)

def test_autocast_does_not_undo_it(threads):
    policy = policy_of('llama', adapter=True, precision='bf16')
    policy.precision = 'bf16'  # an adapter makes another policy
    assert gap(policy, ragged(policy)) == 0.
    policy.exact = False
    assert gap(policy, ragged(policy)) > 0.

def test_a_copy_in_another_process_knows_the_attention(tmp_path):
    "Its model is asked there before anybody has settled anything."
    policy = small_policy(Paying())
    policy.model.to(torch.bfloat16)
    assert policy.settle()
    (tmp_path/'policy').write_bytes(pickle.dumps(policy))
    ids = torch.arange(12)[None]
    code = (f'import pickle, sys, torch; policy = pickle.load(open({str(tmp_path/"policy")!r}, "rb"))\n'
        f'torch.save(policy.model(input_ids=torch.arange(12)[None]).logits, {str(tmp_path/"logits")!r})')
    there = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, '-c', code], env=there, check=True, timeout=300)
    with torch.no_grad(): here = policy.model(input_ids=ids).logits
    assert torch.equal(torch.load(tmp_path/'logits').detach(), here)

def test_a_run_measures_no_gap(threads, tmp_path):
    policy = small_policy(Paying())
    policy.model.to(torch.bfloat16)
    run = train_small(tmp_path/'run', policy=policy, steps=3, group_size=3, lr=1e-2, lora=dict(r=4), minibatches=1,
        budget=100)
    assert [row['sampler_gap'] for row in run.rows()] == [0.]*3 and all(row['grad_norm'] > 0 for row in run.rows())

# ---------------------------------------------------------------- the attention itself

def inputs(dtype=torch.float32, rows=3, heads=6, groups=2, keys=70, width=8):
    torch.manual_seed(0)
    return [torch.randn(rows, n, keys, width).to(dtype) for n in (heads, groups, groups)]

def torchs(q, k, v, attn_mask=None, **kw):
    if attn_mask is not None and attn_mask.dtype != torch.bool: attn_mask = attn_mask.double()
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=attn_mask,
        scale=.3, enable_gqa=True, **kw).transpose(1, 2).to(q.dtype)

@pytest.mark.parametrize('block', [2**20, 2000, 1], ids=['whole', 'blocks', 'smallest'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_every_mask(dtype, block, monkeypatch):
    monkeypatch.setattr(exact, 'BLOCK', block)
    q, k, v = inputs(dtype)
    same = lambda a, b: torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 1e-2)
    same(weighted_values(q, k, v, None, .3), torchs(q, k, v))
    same(weighted_values(q, k, v, None, .3, causal=True), torchs(q, k, v, is_causal=True))
    for shape in ((3, 1), (1, 1), (3, 6)):
        seen = torch.rand(*shape, 70, 70) > .5
        seen[..., 0] = True
        same(weighted_values(q, k, v, seen, .3), torchs(q, k, v, attn_mask=seen))
        for hidden in (float('-inf'), torch.finfo(dtype).min):
            added = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, hidden)
            same(weighted_values(q, k, v, added, .3), torchs(q, k, v, attn_mask=added))
    nothing = torch.zeros(3, 1, 70, 70, dtype=torch.bool)
    assert weighted_values(q, k, v, nothing, .3).isfinite().all()

def test_blocks_do_not_matter(monkeypatch):
    q, k, v = inputs(torch.bfloat16, keys=300)
    found = []
    for block in (2**24, 2**20, 2**12):
        monkeypatch.setattr(exact, 'BLOCK', block)
        found.append(weighted_values(q, k, v, None, .3, causal=True))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

def test_memory_of_a_long_context_is_bounded(monkeypatch):
    "No step works on more than a few times BLOCK, or on sixteen queries where a row is that long."
    largest, softmax = [], torch.softmax
    monkeypatch.setattr(torch, 'softmax', lambda x, dim: largest.append(x.numel()*8) or softmax(x, dim))
    weighted_values(*inputs(torch.bfloat16, rows=2, keys=3000), None, .3, causal=True)
    assert max(largest) <= max(exact.BLOCK, 8*6*16*3000)

# ---------------------------------------------------------------- as transformers calls it

def by(model, attention, ask):
    exact.make_known()
    before, model.config._attn_implementation = model.config._attn_implementation, attention
    try: return ask(model)
    finally: model.config._attn_implementation = before

def loss_and_gradient(model, **kw):
    model.zero_grad()
    ids = torch.arange(120).view(4, 30) * 7 % WORDS
    logits = model(input_ids=ids, use_cache=False, **kw).logits
    logits.logsumexp(-1)[kw['attention_mask'].bool() if kw else slice(None)].sum().backward()
    return logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

@deferred
def PADDED():
    mask = torch.ones(4, 30, dtype=torch.long)
    mask[1, 20:], mask[2, 5:] = 0, 0
    return mask

@pytest.mark.parametrize('given', [dict(), dict(attention_mask=PADDED)], ids=['causal', 'padded'])
@pytest.mark.parametrize('kind', ['llama', 'llama_one_key', 'qwen3', 'gpt2', 'mistral'])
def test_gradients_are_those_of_sdpa(kind, given):
    "In float32; mistral's window is shorter than the text."
    model = build(kind, torch.float32)
    (plain, one), (exactly, two) = (by(model, name, lambda m: loss_and_gradient(m, **given))
        for name in ('sdpa', EXACT))
    seen = PADDED.bool() if given else slice(None)
    torch.testing.assert_close(plain[seen], exactly[seen], atol=2e-4, rtol=1e-4)
    assert ((one - two).norm() / one.norm()).item() < 1e-5

@pytest.mark.parametrize('kind', ['llama', 'qwen3', 'mistral'])
def test_a_prefix_that_is_read_once(kind):
    "A shared prefix read with its gradient, its keys repeated for every suffix."
    def gradient(model):
        model.zero_grad()
        ids = torch.arange(60).view(3, 20) * 11 % WORDS
        prefix = model(input_ids=ids[:1, :12], use_cache=True)
        cache = prefix.past_key_values
        cache.batch_repeat_interleave(3)
        model(input_ids=ids[:, 12:], past_key_values=cache,
            attention_mask=torch.ones(3, 20, dtype=torch.long)).logits.logsumexp(-1).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])
    model = build(kind, torch.float32)
    one, two = (by(model, name, gradient) for name in ('sdpa', EXACT))
    assert ((one - two).norm() / one.norm()).item() < 1e-5

# ---------------------------------------------------------------- on, off, refused

def test_float32_is_left_alone(threads):
    policy = policy_of('llama')
    policy.model.float()
    assert not policy.settle() and policy.model.config._attn_implementation == 'sdpa'
    policy.model.to(torch.bfloat16)
    assert policy.settle() and copy.deepcopy(policy).settle()
    policy.exact = False
    assert not policy.settle() and policy.model.config._attn_implementation == 'sdpa'
    policy.exact = True
    policy.model.float()
    assert policy.settle() and gap(policy, ragged(policy)) < 1e-5

def test_another_sampler_needs_none_of_it():
    assert not policy_of('llama', sampler=object()).settle()

def test_soft_caps_are_left_alone(threads):
    policy = policy_of('gemma2')
    assert not policy.settle() and policy.model.config._attn_implementation == 'eager'
    assert gap(policy, ragged(policy)) < 1.
    with pytest.raises(ValueError, match='exact=True, but .* softcap'): policy_of('gemma2', exact=True).settle()

@pytest.mark.parametrize('fault, says', [
    (dict(fewest_rows=lambda model: None), 'depends here on how many rows'),
    (dict(weighted_values=lambda q, k, v, mask, scale, causal: weighted_values(q, k, v, mask, 3*scale, causal)),
    'its own attention computes something else'),
    (dict(weighted_values=lambda q, k, v, mask, scale, causal: weighted_values(
    q, k, v, mask, scale*(1 + len(q)/50), causal)), 'which rows are computed together'),
])
def test_what_does_not_hold_is_refused(fault, says, monkeypatch, threads):
    for name, function in fault.items(): monkeypatch.setattr(exact, name, function)
    model = build('llama')
    assert says in why_not(model) and not settle(model) and model.config._attn_implementation == 'sdpa'
    with pytest.raises(ValueError, match=says): settle(model, True)
    assert model.config._attn_implementation == 'sdpa'

def test_rows_that_depend_on_their_number_are_noticed(monkeypatch):
    "A machine whose products of fewer than nine rows come out otherwise."
    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, 'linear', lambda x, w: real(x, w) * (1 if len(x) > 8 else 1.25))
    exact._independent_from.cache_clear()
    try: assert fewest_rows(build('llama')) == 9
    finally: exact._independent_from.cache_clear()

def test_the_sampler_fills_up_its_calls(monkeypatch, threads):
    "One row is computed in as many columns as it takes, and says the same."
    from agentlab.policy import sampler as of
    policy, seen = policy_of('llama'), []
    policy.model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs['input_ids'].numel()),
        with_kwargs=True)
    one = policy.sampler().sample([[7, 8, 9]], 5, seeds=[1])[0]
    monkeypatch.setattr(of, 'fewest_rows', lambda model: 13)
    del seen[:]
    two = policy.sampler().sample([[7, 8, 9]], 5, seeds=[1])[0]
    assert set(seen) == {13} and (one.ids, one.logprobs) == (two.ids, two.logprobs)

def test_a_sampler_by_itself_takes_the_model_as_it_is(threads):
    model = build('llama')
    TorchSampler(model).sample([[1, 2]], 2)
    assert model.config._attn_implementation == 'sdpa'
    assert settle(model)
    TorchSampler(model).sample([[1, 2]], 2)
    assert model.config._attn_implementation == EXACT

# ---------------------------------------------------------------- the real model

@pytest.mark.lm
@pytest.mark.long
def test_smollm2(smollm2, threads):
    from agentlab.policy import pretrained
    base = pretrained('smollm2', lora=0, source='package', dtype=torch.float32).model.to(torch.bfloat16)
    if says := why_not(base): pytest.skip(says)
    policy = moved(with_lora(Policy(base, smollm2.tokenizer), r=16), .01)
    batch = ragged(policy, turns=5, rows=4, words=40_000, max_tokens=4)
    assert policy.settle() and [gap(policy, batch, budget) for budget in (64, 4096)] == [0., 0.]
    policy.exact = False
    assert gap(policy, ragged(policy, turns=5, rows=4, words=40_000, max_tokens=4)) > .01
