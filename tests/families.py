"""Small tokenizers with the control tokens of known model families, and the chat templates that trl ships for them.

A tokenizer is a byte-level BPE trained here, in milliseconds, on a few lines of text.
"""
import re
from functools import cache
from importlib.resources import files

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = ['You are in b2. Doors north east. Key a3. Chest c1. Who is the mentor of the rival of Bora Tel? search mentor '
    'Bora Tel\nanswer Mina Lam\n\nNothing happens.']*3

# family -> (bos, eos, other control tokens); the name before the first dot is that of the template's file
FAMILIES = {
    'qwen2_5': ('<|endoftext|>', '<|im_end|>', ['<|im_start|>']),
    'qwen3_training': ('<|endoftext|>', '<|im_end|>', ['<|im_start|>']),
    'qwen3_instruct_2507': ('<|endoftext|>', '<|im_end|>', ['<|im_start|>']),
    'llama3': ('<|begin_of_text|>', '<|eot_id|>', ['<|start_header_id|>', '<|end_header_id|>']),
    'llama3_2': ('<|begin_of_text|>', '<|eot_id|>', ['<|start_header_id|>', '<|end_header_id|>']),
    'gemma': ('<bos>', '<eos>', ['<start_of_turn>', '<end_of_turn>']),
    'gemma3': ('<bos>', '<eos>', ['<start_of_turn>', '<end_of_turn>']),
    'phi3': ('<s>', '<|endoftext|>', ['<|system|>', '<|user|>', '<|assistant|>', '<|end|>']),
    'cohere': ('<BOS_TOKEN>', '<|END_OF_TURN_TOKEN|>',
    ['<|START_OF_TURN_TOKEN|>', '<|USER_TOKEN|>', '<|CHATBOT_TOKEN|>', '<|SYSTEM_TOKEN|>']),
    'lfm2': ('<|startoftext|>', '<|im_end|>', ['<|im_start|>']),
    'deepseek_r1_distill_training': ('<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>',
    ['<｜User｜>', '<｜Assistant｜>']),
}
THINKING = ('qwen3_training', 'deepseek_r1_distill_training')  # their models begin every answer with a thought

@cache
def template(name): return (files('trl')/'chat_templates'/f'{name}.jinja').read_text()

def tokenizer(name):
    "A tokenizer with a family's control tokens and its template."
    text = template(name)
    bos, eos, others = FAMILIES.get(name) or ('<bos>', '<eos>', re.findall(r'<[|｜][^|｜\n ]{1,24}[|｜]>', text))
    special = sorted({bos, eos, *others})
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=340, show_progress=False, special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    one = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos, additional_special_tokens=special,
        clean_up_tokenization_spaces=False)
    one.chat_template = text
    return one
