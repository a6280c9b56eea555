"""Make the TRL fixtures: run TRL's own GRPOTrainer on a model of a few hundred parameters and keep what
log_completions=True writes.

    python tests/foreign/make_trl.py [FOLDER]      (default: tests/foreign/trl; needs trl 1.16, about ten seconds on one
    core)

text/completions/*.parquet   prompts are strings, two reward functions, two extra columns from log_extra
chat/completions/*.parquet   prompts are conversations, one reward function
"""
import os
os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', TOKENIZERS_PARALLELISM='false')
import shutil
import sys
import tempfile
from pathlib import Path

WORDS = ['<pad>', '<end>', 'go', 'stay', 'north', 'south', 'user:', 'assistant:', '<script>']
TEMPLATE = ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}{% if add_generation_prompt "
    "%}assistant: {% endif %}")

def parts():
    "A random model and a tokenizer of nine words; one of them is markup, as a model may write it."
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token='<pad>'))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token='<pad>', eos_token='<end>',
        chat_template=TEMPLATE)
    torch.manual_seed(0)
    shape = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=1, bos_token_id=1,
        **shape)), tokenizer

def text_of(completion): return completion if isinstance(completion, str) else completion[-1]['content']

def moves(completions, **_):
    "Share of the words that are `go`."
    return [text_of(c).split().count('go')/max(1, len(text_of(c).split())) for c in completions]

def brevity(completions, log_extra=None, **_):
    "One for at most three words. It also logs a text and a number, which stand in the dump beside the rewards."
    lengths = [len(text_of(c).split()) for c in completions]
    if log_extra:
        log_extra('verdict', ['short' if n <= 3 else 'long' for n in lengths])
        log_extra('words', lengths)
    return [float(n <= 3) for n in lengths]

def make(folder, prompts, rewards):
    "Two updates of four prompts' groups of four; what TRL wrote goes to folder/completions."
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    model, tokenizer = parts()
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to='none',
            save_strategy='no', disable_tqdm=True, seed=0,
            max_steps=2, logging_steps=1, log_completions=True, num_generations=4,
            per_device_train_batch_size=8, max_completion_length=6, learning_rate=1e-3)
        GRPOTrainer(model=model, processing_class=tokenizer, args=config, reward_funcs=rewards,
            train_dataset=Dataset.from_dict(dict(prompt=prompts))).train()
        shutil.rmtree(Path(folder)/'completions', ignore_errors=True)
        shutil.copytree(Path(out)/'completions', Path(folder)/'completions')

def main(folder):
    make(folder/'text', ['go north', 'stay south', 'go south', 'stay'], [moves, brevity])
    make(folder/'chat', [[dict(role='user', content=text)] for text in ('go north', 'stay south', 'go south', 'stay')],
        [moves])

if __name__ == '__main__': main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent/'trl')
