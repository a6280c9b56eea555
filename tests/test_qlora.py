"""A large model in four bits with an adapter: what learns, what never changes, what comes back from a folder, and what
is refused before anything is trained.

The model is a small Qwen2 with random weights and a tokenizer trained here, saved as the hub keeps them.
"""
import json, shutil, sys
from pathlib import Path

import pytest
import torch

from later import needs
needs('bitsandbytes')
needs('peft')
needs('trl')
import families
from agentlab import cli
from agentlab.episodes import Batch
from agentlab.objective.correction import truncated
from agentlab.policy import Chat, Policy, TorchSampler
from agentlab.policy.core import check_bf16, checkpoint_layers, quiet
from agentlab.policy.qlora import base_in_nf4, paged_adamw, qlora_policy, vocabulary_key, with_adapter
from agentlab.rollout import play
from agentlab.train import Run, recipes, train, trainer
from agentlab.train.runs import load_checkpoint, moments, restore_moments
from small import Paying, exactly, facts, small_policy, small_recipe

pytestmark = [pytest.mark.filterwarnings('ignore:paged_adamw'), pytest.mark.xdist_group('qlora')]

def save_model(folder, words, tokens=None, kind='Qwen2'):
    "A model with random weights in the layout of the hub."
    import transformers
    config = getattr(transformers, f'{kind}Config')(vocab_size=tokens or len(words) + 12, hidden_size=32,
        intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024,
        tie_word_embeddings=True, initializer_range=.1,
        eos_token_id=words.eos_token_id, bos_token_id=None,
        pad_token_id=None)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder

@pytest.fixture(scope='module')
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp('hub')/'Qwen2-tiny', families.tokenizer('qwen2_5'))

def adapter(policy): return {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
def frozen(policy): return {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
def some_play(policy, seeds=(0, 1)): return Batch.from_episodes(play(policy, Paying(), list(seeds), max_tokens=4))

def large_recipe(**changes):
    "Small numbers, large model."
    return trainer.for_gpu(small_recipe(kl_coef=.1, minibatches=1), **dict(lr=1e-3, max_tokens=4) | changes)

# ---- the gradient

def test_every_linear_layer_learns_through_its_adapter(base):
    "The same gradient with checkpointing and without; the base has none."
    batch, found = None, []
    for checkpointing in (True, False):
        policy = qlora_policy(base, rank=4, checkpointing=checkpointing)
        batch = some_play(policy) if batch is None else batch
        passes = []
        policy.model.get_base_model().model.layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
        policy.forward(batch)[0].sum().backward()
        assert len(passes) == 1 + checkpointing
        found.append({n: p.grad for n, p in adapter(policy).items()})
    layers = [n for n, m in policy.model.named_modules() if type(m).__name__ == 'Linear4bit' and 'base_layer' in n]
    assert len(layers) == 2*7 and {n.split('.lora_')[0] + '.base_layer' for n in found[0]} == set(layers)
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-5)
        assert (gradient.abs().max() > 0) == ('lora_B' in name), name  # B is 0 at first, so A has no slope yet
    assert all(p.grad is None for p in policy.model.parameters() if not p.requires_grad)

def test_the_weights_are_those_of_nf4(base):
    policy = qlora_policy(base, rank=2)
    kinds = {n: p.dtype for n, p in policy.model.named_parameters() if 'proj' in n and 'lora' not in n
        and n.endswith('weight')}
    assert set(kinds.values()) == {torch.uint8}
    layer = policy.model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert (layer.weight.quant_state.quant_type == 'nf4' and layer.weight.quant_state.nested
        and layer.compute_dtype == torch.float32)
    before = layer.weight.detach().clone()
    with torch.no_grad(): policy.logprobs(some_play(policy))
    exactly(layer.weight.detach(), before)  # a CPU with AVX512-BF16 would repack them

def test_a_base_that_computes_in_bf16(base, tmp_path):
    "As on a GPU, on this CPU: the adapter stays in float32, and a run goes through, with autocast and without."
    for precision in ('no', 'bf16'):
        words = families.tokenizer('qwen2_5')
        model = with_adapter(base_in_nf4(str(base), torch.device('cpu'), compute=torch.bfloat16), r=4)
        checkpoint_layers(model)
        policy = Policy(model, words)
        assert {p.dtype for p in adapter(policy).values()} == {torch.float32} and model.dtype == torch.bfloat16
        before = frozen(policy)
        run = train(policy, Paying(), large_recipe(precision=precision), tmp_path/precision, progress=False)
        row, = run.rows()
        assert 0 < row['grad_norm'] < 100 and row['sampler_gap'] < .5 and row['skipped'] is None
        for name, p in frozen(policy).items(): exactly(p, before[name], name)

@pytest.mark.gpu
def test_on_a_gpu(base, tmp_path):
    "The same on a GPU: bf16, pages, a checkpoint in the middle."
    before = frozen(qlora_policy(base, rank=16))
    whole = train(qlora_policy(base, rank=16), Paying(), large_recipe(steps=2), tmp_path/'whole', progress=False)
    train(qlora_policy(base, rank=16), Paying(), large_recipe(steps=2), tmp_path/'run',
        should_stop=iter([False, True]).__next__, progress=False)
    policy = qlora_policy(base, rank=16)
    run = train(policy, Paying(), large_recipe(steps=2), tmp_path/'run', resume=True, progress=False)
    assert policy.device.type == 'cuda' and all('lora_' in name for name in load_checkpoint(run)[1]['model'])
    for name, p in frozen(policy).items(): exactly(p, before[name], name)
    for name, p in load_checkpoint(whole)[1]['model'].items():
        torch.testing.assert_close(load_checkpoint(run)[1]['model'][name], p, rtol=0, atol=1e-3)
    big = torch.nn.Parameter(torch.ones(1000, 1000, device='cuda'))
    optimizer = paged_adamw([big], lr=.1)
    big.grad = torch.ones_like(big)
    optimizer.step()
    kept = moments(optimizer)
    restore_moments(optimizer, {k: v.detach().cpu().clone() for k, v in kept.items()})
    state, = optimizer.state.values()
    assert state['state1'].is_paged and state['step'] == 1
    optimizer.step()
    torch.cuda.synchronize()
    torch.testing.assert_close(big, torch.full_like(big, .8), rtol=0, atol=1e-4)

# ---- a run

@pytest.fixture
def never_merged(monkeypatch):
    "Anything that merges an adapter fails."
    import peft
    from peft.tuners.lora.bnb import Linear4bit
    def refuse(*a, **k): raise AssertionError('an adapter was merged')
    for owner, name in ((peft.PeftModel, 'merge_adapter'), (peft.LoraModel, 'merge_and_unload'),
                        (peft.LoraModel, 'merge_adapter'), (Linear4bit, 'merge'), (Linear4bit, 'unmerge')):
        monkeypatch.setattr(owner, name, refuse, raising=False)

def test_a_run_moves_the_adapter_alone_and_resumes(base, tmp_path, never_merged):
    """Stopped after one update and resumed, it is the run that was not stopped; its folder holds an adapter that
    says the same, bit for bit."""
    recipe, policies = large_recipe(steps=2), []
    def go(folder, **how):
        policies.append(qlora_policy(base, rank=4, name='learner'))
        return train(policies[-1], Paying(), recipe, tmp_path/folder, progress=False, **how)
    before = frozen(qlora_policy(base, rank=4))
    whole = go('whole')
    go('run', should_stop=iter([False, True]).__next__)
    run = go('run', resume=True)
    assert facts(run) == facts(whole) and len(facts(run)) == 2 and all(row['grad_norm'] > 0 for row in facts(run))
    one, two = (load_checkpoint(r)[1] for r in (whole, run))
    for kind in ('model', 'optimizer'):
        assert set(one[kind]) == set(two[kind])
        for name in one[kind]: exactly(one[kind][name], two[kind][name], name)
    assert (all('lora_' in name for name in one['model'])
        and any('lora_B' in name and p.any() for name, p in one['model'].items()))
    for name, p in frozen(policies[0]).items(): exactly(p, before[name], name)
    assert facts(run)[0]['kl_reference'] < 1e-9 < facts(run)[1]['kl_reference'] and facts(run)[0]['sampler_gap'] < 1e-4

    saved = run.folder/'policy'
    assert {'adapter_config.json', 'adapter_model.safetensors', 'agentlab.json',
        'tokenizer.json'} <= {p.name for p in saved.iterdir()} and not (saved/'config.json').exists()
    said = json.loads((saved/'agentlab.json').read_text())
    assert (said['base'] == str(base.resolve()) and said['quantisation']
        == dict(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True))
    again, batch = Policy.load(saved), run.episodes(0)
    exactly(again.logprobs(batch)[0], policies[-1].logprobs(batch)[0])
    for name, p in frozen(again).items(): exactly(p, before[name], name)
    assert adapter(again) and again.chat.end_id == policies[0].chat.end_id

def test_the_reference_is_the_adapter_that_training_began_with(base, tmp_path, never_merged):
    "No second base: a fresh adapter is switched off, one that has learned is put back for the question."
    first = train(qlora_policy(base, rank=4), Paying(), large_recipe(steps=1, lr=.01), tmp_path/'first', progress=False)
    for policy in (qlora_policy(base, rank=4), Policy.load(first.folder/'policy')):
        batch = first.episodes(0)
        began = policy.logprobs(batch)[0]
        training = trainer.Training(policy, Paying(), large_recipe(lr=.01))
        trainer.one_step(training, 0)
        after = policy.logprobs(batch)[0]
        torch.testing.assert_close(trainer.reference_logp(training, batch), began, rtol=0, atol=1e-6)
        assert (after - began).abs().max() > 1e-3
        exactly(policy.logprobs(batch)[0], after)  # what was put back for the question is gone again
    with pytest.raises(ValueError, match=r"has an adapter already.*lora=\{\}"):
        trainer.Training(policy, Paying(), small_recipe(lora=dict(r=2)))

# ---- another engine samples

class Warmer:
    "Draws one-tenth too hot, and reports it truthfully."
    def sync(self, policy): self.exact = TorchSampler(policy.model, max_context=policy.max_context)
    def sample(self, contexts, max_tokens, temperature=1., **more):
        return self.exact.sample(contexts, max_tokens, temperature*1.1, **more)

def test_the_gap_to_the_sampler_is_measured_and_corrected(tmp_path):
    seen = {}
    for name, sampler in dict(exact=None, warmer=Warmer()).items():
        def weights(batch): return seen.setdefault(name, []).append(truncated(batch)) or seen[name][-1]
        policy = small_policy()
        policy.samples_by = sampler
        run = train(policy, Paying(), trainer.for_gpu(small_recipe(steps=2), weights, lr=1e-3, max_tokens=3),
            tmp_path/name, progress=False)
        gap, w = [row['sampler_gap'] for row in run.rows()], torch.cat(seen[name])
        if sampler is None: assert max(gap) < 1e-4 and (w - 1).abs().max() < 1e-4
        else:
            assert (min(gap) > .01 and w.min() < .99 and 1.01 < w.max() <= 2
                and all(row['sampler_kl'] is not None for row in run.rows()))

def test_for_gpu_changes_nothing_else():
    recipe = recipes.gspo(steps=7)
    large = trainer.for_gpu(recipe)
    changed = {k for k, v in large.facts().items() if v != recipe.facts()[k]}
    assert changed <= {'recompute_old', 'objective', 'optimizer', 'lr', 'max_tokens',
        'precision'} and large.optimizer is paged_adamw
    assert trainer.for_gpu(large).facts() == large.facts()

# ---- the optimiser

def test_the_optimiser_says_what_it_is_and_comes_back():
    "Two updates, a checkpoint and two more are four updates."
    def make():
        # one of them would be paged on a GPU
        weights = [torch.nn.Parameter(torch.linspace(-1, 1, 300*n).view(300, n)) for n in (4, 400)]
        with pytest.warns(UserWarning, match='CPU, where nothing is paged'):
            return weights, paged_adamw(iter(weights), lr=.01, weight_decay=.1)
    def update(weights, optimizer, seeds):
        for seed in seeds:
            for w in weights: w.grad = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
    one, whole = make()
    update(one, whole, range(4))
    two, first = make()
    update(two, first, range(2))
    kept = {k: v.clone() for k, v in moments(first).items()}
    assert (set(kept) == {f'{i}.{n}' for i in (0, 1) for n in ('step', 'state1', 'state2')}
        and kept['0.state1'].dtype == torch.float32)
    three, second = make()
    with torch.no_grad(): [a.copy_(b) for a, b in zip(three, two)]
    restore_moments(second, kept)
    assert all(type(values['step']) is int for values in second.state.values())
    update(three, second, range(2, 4))
    for a, b in zip(one, three): exactly(a.data, b.data)
    assert not torch.equal(one[0], two[0])
    torch_one = [torch.nn.Parameter(torch.linspace(-1, 1, 300*n).view(300, n)) for n in (4, 400)]
    update(torch_one, torch.optim.AdamW(torch_one, lr=.01, weight_decay=.1), range(4))
    for a, b in zip(one, torch_one): torch.testing.assert_close(a, b, rtol=0, atol=1e-5)  # it is AdamW

# ---- the command

def command(*arguments, capsys):
    "Exit status, what was printed, and what was refused."
    status = cli.main(list(arguments))
    said = capsys.readouterr()
    return status, said.out, said.err

def test_the_documented_command(base, tmp_path, capsys, monkeypatch, never_merged):
    """agentlab train --recipe gigpo --env hopsearch --model MODEL --qlora, with a model on this disk; then the run
    is played."""
    monkeypatch.chdir(tmp_path)
    small = ('--groups', '1', '--group-size', '2', '--steps', '1', '--max-tokens', '6', '--test-tasks', '1')
    status, said, errors = command('train', '--recipe', 'gigpo', '--env', 'hopsearch', '--model', str(base), '--qlora',
        '--lora', '4', '--out', 'run', *small, capsys=capsys)
    assert status == 0 and 'run: run' in said, errors
    run = Run('run')
    recipe = run.info['facts']['recipe']
    assert (recipe['optimizer'] == 'agentlab.policy.qlora:paged_adamw' and recipe['recompute_old']
        and recipe['lora'] == {} and recipe['objective'].startswith('agentlab.objective.correction:corrected'))
    batch, words = run.episodes(0), families.tokenizer('qwen2_5')
    text = words.decode(batch.tokens.id[batch.tokens.row == 0])
    assert (text.startswith('<|im_start|>system\nAnswer a question with a search engine')
        and '<|im_end|>\n<|im_start|>user\nWho is the ' in text)
    assert json.loads(Path('run/policy/adapter_config.json').read_text())['r'] == 4
    status, said, errors = command('play', '--env', 'hopsearch', '--model', 'run', capsys=capsys)
    assert status == 0 and 'player>' in said, errors
    # the adapter learns on
    status, said, errors = command('train', '--recipe', 'gigpo', '--env', 'hopsearch', '--model', 'run', '--qlora',
        '--out', 'more', *small, capsys=capsys)
    assert status == 0, errors
    for option, value in (('--lora', '4'), ('--template', 'x.jinja')):
        status, said, errors = command('train', '--env', 'hopsearch', '--model', 'run', '--qlora', option, value,
            '--out', 'again', capsys=capsys)
        assert status == 2 and f'{option[2:]}=' in errors and not Path('again').exists()

def test_what_the_command_refuses(base, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from huggingface_hub import constants
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
    for model, more, why in (('tiny', ['--qlora'], '--model Qwen/Qwen2.5-0.5B-Instruct'), (
        'nobody/nothing', ['--qlora'], 'nobody/nothing is no folder here, and the hub did not give it'),
                             ('nobody/nothing', [], 'the hub did not give it'),
                             ('no such folder', ['--qlora'], 'holds no config.json')):
        status, _, errors = command('train', '--model', model, '--out', 'out', *more, capsys=capsys)
        assert status == 2 and why in errors and not Path('out').exists()

def test_the_rules_are_told_to_those_who_can_read_them(base):
    from agentlab.env import HopSearch, KeyDoor
    from agentlab.rollout import told
    reader = Chat(families.tokenizer('qwen2_5'))
    for world in (KeyDoor(), HopSearch(), HopSearch(seats=('planner', 'searcher'))):
        for seat in world.seats:
            assert 'nothing else' in told(world, reader,
                seat) and told(world, small_policy(KeyDoor()).chat, seat) is None
    assert 'ask RELATION NAME' in told(world, reader, 'planner') and told(object(), reader, 'player') is None

# ---- bad input, each refused before anything is trained, with what to do

def copied(base, folder, **config):
    "The model with other facts in its config."
    folder = Path(shutil.copytree(base, folder))
    (folder/'config.json').write_text(json.dumps(json.loads((folder/'config.json').read_text()) | config))
    return folder

def test_a_gpu_without_bf16(base, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device=None: 'Tesla T4')
    for call in (lambda: qlora_policy(base, device='cuda'), lambda: check_bf16('cuda')):
        with pytest.raises(ValueError, match=r'Tesla T4 cannot compute in bf16.*compute capability 8\.0.*device=.cpu'):
            call()
    policy = small_policy()
    monkeypatch.setattr(Policy, 'device', torch.device('cuda'))
    with pytest.raises(ValueError, match='Tesla T4 cannot compute in bf16'):
        trainer.Training(policy, Paying(), small_recipe(precision='bf16'))

@pytest.mark.parametrize('package', ['peft', 'bitsandbytes'])
def test_a_missing_extra(base, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'QLoRA needs {package}: pip install "agentlab-rl\[qlora\]"'):
        qlora_policy(base)

@pytest.fixture
def no_weights(monkeypatch):
    "Weights are not even opened."
    import transformers
    def refuse(*a, **k): raise AssertionError('weights were read')
    monkeypatch.setattr(transformers.AutoModelForCausalLM, 'from_pretrained', refuse)

def test_a_template_that_rewrites_history(base, tmp_path, no_weights):
    words = families.tokenizer('qwen2_5')
    words.chat_template = families.template('qwen3')
    folder = copied(base, tmp_path/'qwen3')
    words.save_pretrained(folder)
    with pytest.raises(ValueError, match=r'rewrites history.*training\.jinja'): qlora_policy(folder)
    (tmp_path/'qwen3.jinja').write_text(families.template('qwen3_training'))
    for given in (tmp_path/'qwen3.jinja', families.template('qwen3_training')):
        with pytest.raises(AssertionError, match='weights were read'): qlora_policy(folder, template=given)
    with pytest.raises(AssertionError, match='weights were read'): qlora_policy(folder, chat=dict(rewrites=True))

def test_a_model_without_a_template(base, tmp_path, no_weights):
    folder = copied(base, tmp_path/'bare')
    (folder/'chat_template.jinja').unlink()
    with pytest.raises(ValueError, match='no chat_template.*tokenizer.chat_template'): qlora_policy(folder)

def test_a_model_that_cannot_be_quantised_here(base, tmp_path, no_weights):
    with pytest.raises(ValueError, match=r'quantised already \(gptq\).*Give the model that it was made from'):
        qlora_policy(copied(base, tmp_path/'gptq', quantization_config=dict(quant_method='gptq', bits=4)))
    pickled = copied(base, tmp_path/'pickled')
    (pickled/'model.safetensors').rename(pickled/'pytorch_model.bin')
    for call in (lambda: qlora_policy(pickled), lambda: Policy.load(pickled)):
        with pytest.raises(FileNotFoundError, match=r'no \*\.safetensors.*can run code.*save_pretrained'): call()
    for rank in (0, 2.5, True):
        with pytest.raises(ValueError, match=f'rank={rank}.*whole number'): qlora_policy(base, rank=rank)

def test_a_vocabulary_that_does_not_fit(base, tmp_path, no_weights):
    few = copied(base, tmp_path/'few', vocab_size=100)
    with pytest.raises(ValueError, match=r'340 ids and its model embeds 100.*resize'): qlora_policy(few)

def test_an_adapter_on_another_base(base, tmp_path):
    mine = Path(shutil.copytree(base, tmp_path/'mine'))
    saved = qlora_policy(mine, rank=2).save_pretrained(tmp_path/'adapter')
    more = families.tokenizer('qwen2_5')
    more.add_tokens('new')
    assert (vocabulary_key(more) != vocabulary_key(families.tokenizer('qwen2_5'))
        == vocabulary_key(families.tokenizer('qwen2_5')))
    more.save_pretrained(mine)  # somebody changed the base
    with pytest.raises(ValueError, match=r'another vocabulary than that of its base .*mine \(341 ids\).*Put back'):
        Policy.load(saved)
    shutil.rmtree(mine)
    with pytest.raises(FileNotFoundError, match=r'belongs to the base .*mine.*holds no config.json'): Policy.load(saved)
    facts = json.loads((saved/'agentlab.json').read_text())
    for change, why in ((dict(schema_version=2), 'schema_version 2.*Upgrade'),
                        (dict(quantisation=dict(load_in_4bit=True, bnb_4bit_quant_type='fp4')),
                         'fp4.*Open it with transformers')):
        (saved/'agentlab.json').write_text(json.dumps(facts | change))
        with pytest.raises(ValueError, match=why): Policy.load(saved)
    (saved/'agentlab.json').unlink()
    with pytest.raises(FileNotFoundError, match='no agentlab.json.*merge_and_unload'): Policy.load(saved)
