"A trained model leaves the lab and is opened by others; and it is talked to."
import copy, json

import pytest
import torch

from agentlab.env import GuessNumber
from agentlab.policy import Conversation, opened, tiny_policy
from agentlab.policy.core import Policy
from agentlab.policy.export import export_run, in_float32, plain_model, write_merged
from agentlab.train.trainer import with_lora
from later import deferred
from small import commanded

BASE = deferred(lambda: tiny_policy(GuessNumber(), warm=False))

def learned(r=4, **config):
    policy = with_lora(Policy(copy.deepcopy(BASE.model), BASE.tokenizer, name='tiny'), r=r, lora_alpha=2*r, **config)
    return moved(policy, .1)

def moved(policy, scale):
    "An adapter that does something."
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.model.parameters():
            if p.requires_grad: p.add_(torch.randn(p.shape, generator=draw), alpha=scale)
    return policy

def logits(model, ids):
    with torch.no_grad(): return model(input_ids=torch.tensor([ids])).logits.float()

def test_merged_weights_say_the_same(tmp_path):
    policy = learned()
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    distance = write_merged(policy, tmp_path/'deep'/'out')
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model, tokenizer = (kind.from_pretrained(tmp_path/'deep'/'out') for kind in (AutoModelForCausalLM, AutoTokenizer))
    ids = policy.chat.first('Guess a number from 1 to 16.')
    assert type(model).__name__ == 'Qwen3ForCausalLM' and model.dtype == torch.float32
    assert torch.allclose(logits(model, ids), logits(policy.model, ids), atol=1e-4) and distance < 1e-4
    assert (logits(model, ids) - logits(BASE.model, ids)).abs().max() > .1  # the adapter is in it
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())
    assert [p.name for p in (tmp_path/'deep').iterdir()] == ['out']         # nothing is left beside it

def test_bf16_takes_half_the_space_and_is_measured(tmp_path):
    policy = learned()
    far, near = (write_merged(policy, tmp_path/str(dtype), dtype) for dtype in (torch.bfloat16, torch.float32))
    sizes = [(tmp_path/str(dtype)/'model.safetensors').stat().st_size for dtype in (torch.bfloat16, torch.float32)]
    assert near < 1e-4 < far < 1 and sizes[0] < .6*sizes[1]
    assert opened(tmp_path/'torch.float32').model.dtype == torch.float32

def test_a_fault_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_): raise OSError('no space left')
    monkeypatch.setattr('agentlab.policy.export.rename', full)
    with pytest.raises(OSError, match='no space'): write_merged(learned(), tmp_path/'out')
    assert not list(tmp_path.iterdir())

def test_all_weights_are_written_as_they_are(tmp_path):
    assert write_merged(BASE, tmp_path/'out') == 0
    assert all(torch.equal(one, other) for one, other in zip(plain_model(tmp_path/'out').parameters(),
        in_float32(BASE.model).parameters()))

def test_what_is_refused(tmp_path):
    BASE.save_pretrained(tmp_path/'run'/'policy')
    (tmp_path/'taken').mkdir()
    run = str(tmp_path/'run')
    for how, why in ((dict(), 'name a folder'), (dict(merged=str(tmp_path/'taken')), 'exists already'),
                     (dict(adapter=str(tmp_path/'new')), 'no adapter. Use --merged'),
                     (dict(merged=str(tmp_path/'new'), dtype='int8'), "dtype='int8'")):
        with pytest.raises((ValueError, FileExistsError), match=why): export_run(run, **how)
    with pytest.raises(FileNotFoundError): export_run(str(tmp_path/'taken'), merged=str(tmp_path/'new'))
    assert not (tmp_path/'new').exists()

@pytest.mark.lm
def test_smollm2_leaves_as_adapter_and_merged(tmp_path, smollm2, capsys):
    policy = moved(smollm2, .01)
    policy.save_pretrained(tmp_path/'run'/'policy')
    export_run(str(tmp_path/'run'), adapter=str(tmp_path/'adapter'), merged=str(tmp_path/'merged'))
    said = capsys.readouterr().out
    assert '--enable-lora --max-lora-rank 16' in said and 'convert_hf_to_gguf.py' in said
    from peft import PeftModel
    ids = policy.chat.first('What is the capital of France?')
    base = plain_model(json.loads((tmp_path/'adapter'/'adapter_config.json').read_text())['base_model_name_or_path'])
    plain = logits(base, ids)
    alone = PeftModel.from_pretrained(base, str(tmp_path/'adapter'))
    found = logits(policy.model, ids)
    assert (found - plain).abs().max() > .1
    for model in (alone, plain_model(tmp_path/'merged')): assert torch.allclose(logits(model, ids), found, atol=2e-3)
    talking = Conversation(opened(tmp_path/'merged'), temperature=0., max_tokens=4)
    assert list(talking.reply('What is the capital of France?'))

# ---- talking

def test_a_talk_is_appended_to():
    policy = learned()
    talking = Conversation(policy, temperature=1., max_tokens=6, piece=4, seed=3)
    asked = [policy.chat.first('Guess a number .', None)]
    for text in ('Guess a number .', 'Higher than 3 .', 'Lower'):
        before = talking.context
        said = ''.join(talking.reply(text))
        assert said == talking.said[-1] and talking.context[:len(before)] == before
    assert talking.context[:len(asked[0])] == asked[0] and len(talking.heard) == 3
    again = Conversation(policy, temperature=1., max_tokens=6, piece=4, seed=3)
    for text in talking.heard: list(again.reply(text))
    assert again.context == talking.context  # seeded
    talking.reset('Be short')
    assert talking.context == [] and talking.asked('Guess') == policy.chat.first('Guess', 'Be short')

def test_pieces_are_what_the_whole_is():
    policy = learned()
    found = {piece: list(Conversation(policy, temperature=0., max_tokens=9, piece=piece).reply('Guess a number .'))
        for piece in (1, 2, 9)}
    assert len({''.join(pieces) for pieces in found.values()}) == 1 and len(found[1]) > len(found[9])

def test_no_half_characters():
    "A token that is a byte of a character is not shown before the others."
    policy, spelled = learned(), iter(['a', 'a\ufffd', 'a\ufffd\ufffd', 'a\u4e16', 'a\u4e16'])
    policy.text = lambda ids: next(spelled)
    pieces = list(Conversation(policy, temperature=0., max_tokens=4, piece=1, top_p=1.).reply('Guess'))
    assert ''.join(pieces) in ('a', 'a\u4e16') and '\ufffd' not in ''.join(pieces)

def test_a_full_context_is_told():
    policy = learned()
    policy.max_context = 30
    talking = Conversation(policy, max_tokens=50)
    for _ in range(9):
        try: list(talking.reply('Guess a number from 1 to 16 .'))
        except ValueError as e:
            assert '/reset' in str(e)
            break
        assert len(talking.context) <= 30
    else: raise AssertionError('nothing was said of it')

def test_the_commands(tmp_path):
    BASE.save_pretrained(tmp_path/'run'/'policy')
    typed = 'Guess a number\n\n/reset\n/what\x1b[31m\n/system Guess\nGuess\n/quit\nnever read\n'
    export, chat, whole, nobody = commanded(
        tmp_path, 'export run --merged out', ('chat out --max-tokens 6 --temperature 0', typed),
        ('chat run --max-tokens 6 --temperature 0 --whole', 'Guess a number'), 'chat nobody/')
    assert export[0] == 0 and 'vllm serve out' in export[1] and 'convert_hf_to_gguf.py out' in export[1]
    assert chat[0] == 0 and '/what\\x1b[31m is no command' in chat[1] and '\x1b' not in chat[1]
    assert chat[1].splitlines()[0] == whole[1].strip() and len(chat[1].splitlines()) == 3
    assert nobody[0] == 2 and 'nobody' in nobody[1]
