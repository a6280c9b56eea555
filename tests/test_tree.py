"The tree of prefixes gives the numbers and gradients of whole rows, for every layout of attention, or is not used."
import warnings
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st

from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import tiny_model, word_tokenizer
from agentlab.policy import tree
from agentlab.policy.core import Policy, action_rows, checkpoint_layers, parts, take_rows
from agentlab.policy.tree import Part, Work, plans, prefixes, tally
from agentlab.train import recipes, train
from agentlab.train.trainer import Training, backward, collect, prepare, with_lora
from later import deferred

WORDS = 50
SIZES = dict(vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
    max_position_embeddings=128, bos_token_id=None, eos_token_id=0, pad_token_id=0)
SLIDING = dict(use_sliding_window=True, sliding_window=4,
    layer_types=['sliding_attention', 'full_attention', 'sliding_attention'])
CONFIGS = dict(
    llama=lambda: transformers.LlamaConfig(**SIZES),
    llama_all_heads=lambda: transformers.LlamaConfig(**SIZES | dict(num_key_value_heads=4)),
    qwen2=lambda: transformers.Qwen2Config(**SIZES),
    qwen2_sliding=lambda: transformers.Qwen2Config(**SIZES, **SLIDING),
    qwen3=lambda: transformers.Qwen3Config(**SIZES),
    qwen3_sliding=lambda: transformers.Qwen3Config(**SIZES, **SLIDING),
    mistral=lambda: transformers.MistralConfig(**SIZES, sliding_window=4),
    gemma2=lambda: transformers.Gemma2Config(**SIZES, sliding_window=4, layer_types=SLIDING['layer_types'],
    attn_implementation='eager'),
    gemma3=lambda: transformers.Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=SLIDING['layer_types']),
)
FREE = deferred(lambda: Work(0., 0., 0.))  # nothing but tokens costs: the deepest tree
MAMBA = partial(transformers.Mamba2Config, vocab_size=WORDS, hidden_size=32, num_heads=8, head_dim=8, state_size=8,
    num_hidden_layers=2, n_groups=1,
    bos_token_id=None, eos_token_id=0, pad_token_id=0)

def a_policy(name: str, seed: int = 0) -> Policy:
    "A small random model whose attention has something to say."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1: p.mul_(4)
    return Policy(model, word_tokenizer([f'w{i}' for i in range(WORDS - 5)]), name=name)

def turn(t: int, context: list, ids: list, **more) -> Turn:
    return Turn(t, context_ids=context, ids=ids, logps=[0.]*len(ids), entropies=[0.]*len(ids), **more)

def as_batch(rows: list) -> Batch:
    "Rows given as turns of (context, action); all of one group."
    return Batch.from_episodes([Episode([turn(t, *said) for t, said in enumerate(row)]) for row in rows])

def games(seed: int = 0, groups: int = 2, size: int = 5, guide: int = 9) -> Batch:
    "Groups of games that read one guide and often say the same."
    g = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(0, WORDS, (n,), generator=g).tolist()
    start, episodes = draw(guide), []
    for group in range(groups):
        first, stems = start + draw(3), [[(draw(3), draw(2)) for _ in range(3)] for _ in range(2)]
        for i in range(size):
            said, count = stems[i % 2], 1 + int(torch.randint(0, 3, (1,), generator=g))
            turns = [turn(t, first if t == 0 else said[t][0], said[t][1] if torch.rand(1, generator=g) < .6
                else draw(2)) for t in range(count)]
            episodes.append(Episode(turns, group=group))
    return Batch.from_episodes(episodes)

def measured(policy, batch, pieces, temperature=.7) -> tuple:
    "Log-probabilities, entropies and the gradient of a weighted sum of both."
    weight = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(3))
    logp, entropy = torch.zeros(2, len(batch.actions))
    policy.model.zero_grad()
    for part, which in pieces:
        found = policy.forward(part, temperature)
        ((found[0] + .1*found[1])*weight[which]).sum().backward()
        logp[which], entropy[which] = (x.detach().float() for x in found)
    return logp, entropy, torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])

def on_the_tree(batch, budget=4096, work=FREE, rows=None) -> list:
    "The parts of a batch, each with its plan, whatever it costs."
    chosen = action_rows(batch) if rows is None else rows
    pieces = [(*take_rows(batch, some), plan) for some, plan in plans(batch, chosen, budget, work)[0]]
    return [(Part(part, plan), which) for part, which, plan in pieces]

def agree(ours: tuple, flat: tuple, tolerance=1e-5):
    assert (ours[0] - flat[0]).abs().max() < 1e-4 and (ours[1] - flat[1]).abs().max() < 1e-4
    assert (ours[2] - flat[2]).norm() < tolerance*flat[2].norm()

# The tree itself

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9)

def padded(rows: list) -> tuple:
    lengths = torch.tensor([len(r) for r in rows])
    return torch.tensor([r + [0]*(int(lengths.max()) - len(r)) for r in rows]), lengths

@given(ROWS)
def test_prefixes_are_those_of_a_dictionary(rows):
    found, known = prefixes(*padded(rows)), {tuple(r[:n + 1]) for r in rows for n in range(len(r))}
    ids, before, position = (x.tolist() for x in found.table())
    spelt = []
    for token, parent in zip(ids, before): spelt.append((*(spelt[parent] if parent >= 0 else ()), token))
    assert len(spelt) == len(set(spelt)) and set(spelt) == known
    assert position == [len(x) - 1 for x in spelt]
    assert (found.distinct, found.held) == (len(known), sum(map(len, rows)))
    for r, leaf in zip(rows, found.leaf.tolist()):
        assert [spelt[node] for node in found.node[leaf, :len(r)].tolist()] == [tuple(r[:n + 1]) for n in range(len(r))]

def read_by(plan) -> list:
    "What has been read at every slot: all tokens of its path, then those of its own segment."
    read = []
    for level in plan.levels:
        known = list(read)
        for run in level:
            for ids, position, path in zip(run.ids.tolist(), run.position.tolist(), run.path.tolist()):
                before = [known[slot][-1] for slot in path if slot >= 0]
                real = [slot for slot in path if slot >= 0]
                assert not real or known[real[-1]] == before  # a path is a path: each slot has read those before it
                assert position[0] == len(before) and path == [-1]*(len(path) - len(real)) + real
                read += [before + ids[:n + 1] for n in range(len(ids))]
    return read

@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=10),
    st.sampled_from([0., 1., 4., 100.]), st.integers(1, 60), st.sampled_from([1, 1, 20]))
def test_a_plan_reads_before_every_action_token_what_stands_before_it(rows, forward, budget, least):
    batch = as_batch([[(r[:1], r[1:])] for r in rows])
    seen = torch.zeros(len(batch.actions), dtype=torch.long)
    for part, which in on_the_tree(batch, budget, Work(.01, forward, .1, least)):
        seen[which] += 1
        plan, read = part.plan, read_by(part.plan)
        assert plan.computed == len(read) and plan.held == len(part.tokens)
        # each prefix is asked once
        assert len(set(map(tuple, (read[s] for s in plan.before.tolist())))) == len(plan.before)
        for k, where in enumerate(part.actions.tolist()):
            row, column = part.tokens.row[where], int(part.tokens.position[where])
            ids = part.tokens.id[part.tokens.row == row].tolist()
            assert read[plan.before[plan.choice[k]]] == ids[:column]
    assert (seen == 1).all()

@given(ROWS)
def test_at_most_log_rows_levels(rows):
    found = prefixes(*padded(rows))
    parent, start, level = tree.branches(found.shared.tolist(), found.lengths.tolist())
    assert 2**max(level) <= len(level)
    for i, p in enumerate(parent):
        if p < 0: assert (start[i], level[i]) == (0, 0)
        else:
            assert (start[p] < start[i] and level[i] == level[p] + 1
                and found.ids[i, :start[i]].equal(found.ids[p, :start[i]]))
    assert sum(n - s for n, s in zip(found.lengths.tolist(), start)) == found.distinct

# Equal numbers and gradients

@pytest.mark.parametrize('name', CONFIGS)
def test_gradients_and_numbers_of_every_layout(name):
    policy, batch = a_policy(name), games()
    flat = measured(policy, batch, parts(batch))
    for budget in (4096, 45): agree(measured(policy, batch, on_the_tree(batch, budget)), flat, 1e-5)
    agree(measured(policy, batch, on_the_tree(batch, work=Work(0., 8., 0., 30))), flat, 1e-5)

@pytest.mark.parametrize('name', ['llama', 'qwen3_sliding', 'gemma2'])
def test_with_an_adapter(name):
    policy, batch = with_lora(a_policy(name), r=4), games()
    with torch.no_grad():
        for key, p in policy.model.named_parameters():
            if 'lora_B' in key: p.normal_(0, .1, generator=torch.Generator().manual_seed(0))
    agree(measured(policy, batch, on_the_tree(batch)), measured(policy, batch, parts(batch)))

ODD = {
    'one token before the action': [[([3], [4, 5])], [([3], [4, 6])], [([2], [7])]],
    'equal rows': [[([1, 2, 3], [4, 5])]]*4,
    'a row inside another': [[([1, 2, 3], [4])], [([1, 2, 3], [4]), ([5, 6], [7])],
    [([1, 2, 3], [4]), ([5, 6], [8]), ([9], [1])]],
    'nothing in common': [[([1, 2], [3])], [([2, 3], [4, 4])], [([5], [6])]],
    'a group of one': [[([1, 2, 3], [4, 5])]],
    'no action in the shared part': [[(list(range(12)), [20 + i, 3])] for i in range(4)],
    'the same last token after different ones': [[([1, 2], [3, 9])], [([1, 2], [4, 9])], [([1, 2], [3, 9])]],
}

@pytest.mark.parametrize('what', ODD)
def test_odd_trees(what):
    policy, batch = a_policy('llama'), as_batch(ODD[what])
    agree(measured(policy, batch, on_the_tree(batch)), measured(policy, batch, parts(batch)))

def test_copied_turns_are_free():
    first = turn(0, list(range(15)), [7, 8])
    copies = [Episode([first, turn(1, [9, 9], [i, 1])]) for i in range(4)]
    for episode in copies[1:]: episode.turns[0] = turn(0, list(range(15)), [7, 8], origin=(0, 0))
    policy, batch = a_policy('llama'), Batch.from_episodes(copies)
    (part, _), = on_the_tree(batch)
    assert tally(part) == dict(computed=15 + 2 + 2 + 1 + 3, held=4*21)  # the last token is never read
    agree(measured(policy, batch, on_the_tree(batch)), measured(policy, batch, parts(batch)))

def test_a_budget_smaller_than_a_row_and_an_empty_selection():
    policy, batch = a_policy('llama'), games()
    policy.tree = True
    pieces = on_the_tree(batch, 3)
    assert all(len(part.plan.levels) == 1 and len(part.plan.levels[0][0].ids) == 1 for part, _ in pieces)
    agree(measured(policy, batch, pieces), measured(policy, batch, parts(batch)))
    assert list(policy.parts(batch, torch.zeros(0, dtype=torch.long))) == []
    nobody = as_batch([[([1, 2], [])], [([1, 2, 3], [])]])
    assert all(len(which) == 0 for _, which in policy.parts(nobody, torch.arange(2)))
    assert len(policy.logprobs(nobody)[0]) == 0

def test_shares_of_processes_add_up():
    policy, batch = a_policy('qwen3'), games(groups=3)
    rows, flat = action_rows(batch), measured(policy, batch, parts(batch))
    agree(measured(policy, batch, [x for rank in range(2) for x in on_the_tree(batch, rows=rows[rank::2])]), flat)

def test_a_row_that_begins_with_an_action_is_refused_as_ever():
    policy = a_policy('llama')
    policy.tree = True
    with pytest.raises(ValueError, match='begins with an action token'):
        policy.logprobs(as_batch([[([], [1, 2])], [([], [1, 3])]]))

def test_it_is_deterministic_and_leaves_the_random_state_alone():
    batch, state = games(), torch.random.get_rng_state()
    found = []
    for _ in range(2):
        policy = a_policy('gemma3')
        policy.tree = True
        found.append(measured(policy, batch, policy.parts(batch)))
        assert policy.tried
        assert not any(p.grad is None for p in policy.model.parameters())
    assert all(a.equal(b) for a, b in zip(*found))
    assert torch.random.get_rng_state().equal(state)

# Which way is taken

def test_the_question_whether_a_model_can_leaves_no_gradient():
    policy = a_policy('qwen2_sliding')
    assert tree.trusted(policy, 100) and list(policy.tried) == [(8, 'no')]
    assert all(p.grad is None for p in policy.model.parameters()) and not policy.model.training
    policy.model.config.sliding_window = 30
    assert tree.trusted(policy, 20) and tree.trusted(policy, 40) and list(policy.tried) == [(8, 'no'), (32, 'no')]

def recurrent() -> Policy:
    "A model that carries a state from token to token."
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MAMBA())
    return Policy(model, word_tokenizer([f'w{i}' for i in range(WORDS - 5)]), name='recurrent')

def forgetful() -> Policy:
    policy = a_policy('llama')
    forward = policy.model.forward
    policy.model.forward = (
        lambda input_ids, use_cache=None, past_key_values=None, attention_mask=None, position_ids=None: forward(
        input_ids=input_ids, use_cache=False))
    policy._head = None
    return policy

def without_cache() -> Policy:
    policy = a_policy('llama')
    forward = policy.model.forward
    policy.model.forward = lambda input_ids, use_cache=None: forward(input_ids=input_ids, use_cache=False)
    policy._head = None
    return policy

def blind_to_windows() -> Policy:
    "A sliding model that looks further on the tree than in a row."
    policy = a_policy('mistral')
    forward = policy.model.model.forward
    def wrong(*args, past_key_values=None, **kw):
        if past_key_values is not None: policy.model.config.sliding_window = 64
        try: return forward(*args, past_key_values=past_key_values, **kw)
        finally: policy.model.config.sliding_window = 4
    policy.model.model.forward = wrong
    return policy

@pytest.mark.parametrize('make, why', [(recurrent, 'whole'), (forgetful, 'log-probabilities'),
    (without_cache, 'TypeError'), (blind_to_windows, 'whole')])
def test_a_model_that_cannot_is_computed_flat_and_that_is_said_once(make, why):
    policy, batch = make(), games()
    flat = measured(policy, batch, parts(batch))
    policy.tree = True
    with pytest.warns(UserWarning, match=why): pieces = list(policy.parts(batch))
    assert not any(isinstance(part, Part) for part, _ in pieces)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        again = measured(policy, batch, policy.parts(batch))
    assert all(a.equal(b) for a, b in zip(again, flat))

def test_in_bf16_rounding_is_allowed_and_a_mistake_is_not():
    good, bad = a_policy('qwen3_sliding'), forgetful()
    for policy in good, bad: policy.model.to(torch.bfloat16)
    assert tree.trusted(good, 100)
    with pytest.warns(UserWarning, match='whole'): assert not tree.trusted(bad, 100)

def test_checkpointed_layers_are_computed_flat_where_a_gradient_is_wanted():
    policy, batch = a_policy('llama'), games()
    flat = measured(policy, batch, parts(batch))
    policy.tree = True
    checkpoint_layers(policy.model)
    pieces = list(policy.parts(batch))
    assert not any(isinstance(part, Part) for part, _ in pieces)
    agree(measured(policy, batch, pieces), flat)
    with torch.no_grad(): assert all(isinstance(part, Part) for part, _ in policy.parts(batch))
    assert (policy.logprobs(batch, .7)[0] - flat[0]).abs().max() < 1e-4

def test_none_means_where_it_is_cheaper_and_never_for_a_tiny_model(monkeypatch):
    policy, batch = a_policy('llama'), games()
    uses = lambda: any(isinstance(part, Part) for part, _ in policy.parts(batch))
    assert not uses()
    monkeypatch.setattr(type(policy.model), 'num_parameters', lambda self: 10**7)
    monkeypatch.setattr(tree, 'work_of', lambda model: FREE)
    assert uses()
    monkeypatch.setattr(tree, 'work_of', lambda model: Work(0., 10**6, 0.))
    assert not uses()
    policy.tree = False
    monkeypatch.setattr(tree, 'work_of', lambda model: FREE)
    assert not uses()

def test_features_are_the_same():
    policy, batch = a_policy('gemma2'), games()
    flat = policy.features(batch)
    policy.tree = True
    assert any(isinstance(part, Part) for part, _ in policy.parts(batch))
    assert (policy.features(batch) - flat).abs().max() < 1e-4*flat.abs().max()

# In training

def a_tiny_policy() -> Policy:
    tokenizer = word_tokenizer(KeyDoor().vocabulary() + ['.'])
    return Policy(tiny_model(len(tokenizer)), tokenizer, name='tiny')

def small(**changes):
    return recipes.gigpo(**dict(steps=4, groups=3, group_size=4, minibatches=2, max_turns=4, checkpoint_every=1,
        test_tasks=0, tree=True) | changes)

def test_an_update_on_the_tree_has_the_gradient_of_a_flat_one(monkeypatch):
    monkeypatch.setattr(tree, 'work_of', lambda model: Work(0., 20., 0.))
    found = []
    for choice in (True, False):
        training = Training(a_tiny_policy(), KeyDoor(), small(tree=choice, kl_coef=.1, recompute_old=True))
        training.begin(0)
        batch, advantage, _ = prepare(training, collect(training, 0), 0)
        advantage = torch.randn(len(advantage), generator=torch.Generator().manual_seed(0))
        sums = backward(training, batch, advantage, action_rows(batch))
        found.append((batch.action('old_logp'), batch.action('ref_logp'),
            torch.cat([p.grad.flatten() for p in training.weights.values()]), sums))
    ours, flat = found
    for a, b in zip(ours[:2], flat[:2]): assert (a - b).abs().max() < 1e-4
    assert (ours[2] - flat[2]).norm() < 1e-5*flat[2].norm()
    assert ours[3]['computed'] < ours[3]['held'] == flat[3]['held'] <= flat[3]['computed']
    assert {k: ours[3][k] for k in ('tokens', 'sampled')} == {k: flat[3][k] for k in ('tokens', 'sampled')}

def test_a_run_on_the_tree_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, 'work_of', lambda model: Work(0., 20., 0.))
    rows = lambda run: [{k: v for k, v in row.items() if k != 'seconds'} for row in run.rows()]
    whole = train(a_tiny_policy(), KeyDoor(), small(), tmp_path/'whole', progress=False)
    calls = iter([False, False, True])
    train(a_tiny_policy(), KeyDoor(), small(), tmp_path/'halves', progress=False, should_stop=lambda: next(calls))
    halves = train(a_tiny_policy(), KeyDoor(), small(), tmp_path/'halves', progress=False, resume=True)
    assert rows(whole) == rows(halves) and len(rows(whole)) == 4
    assert all(row['computed'] < row['held'] for row in rows(whole) if row['skipped'] is None)

def test_the_recipe_refuses_another_word():
    with pytest.raises(ValueError, match="tree='auto'.*None"): small(tree='auto')

@pytest.mark.lm
def test_smollm2(smollm2):
    batch, policy = games(groups=1, size=4, guide=60), smollm2
    policy.tree = False
    flat = policy.logprobs(batch)
    policy.tree = True
    assert any(isinstance(part, Part) for part, _ in policy.parts(batch))
    assert max((a - b).abs().max() for a, b in zip(policy.logprobs(batch), flat)) < 1e-4

@pytest.mark.lm
@pytest.mark.long
def test_smollm2_in_bf16_is_equal_to_the_last_bit_where_attention_is_exact(smollm2):
    batch, policy = games(groups=1, size=4, guide=60), smollm2
    policy.model.to(torch.bfloat16)
    if not policy.settle(): pytest.skip('attention is not exact on this machine')
    policy.tree = False
    flat = policy.logprobs(batch)
    policy.tree = True
    assert any(isinstance(part, Part) for part, _ in policy.parts(batch))
    assert all(torch.equal(a, b) for a, b in zip(policy.logprobs(batch), flat))
