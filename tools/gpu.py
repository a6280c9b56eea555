"""What a GPU does: peak memory beside the prediction of `agentlab fit`, tokens a second, share of the peak matrix rate,
and TRL's GRPOTrainer on the same episodes.

`make gpu` measures the cells that assets/gpu/record.json does not have, for at most --seconds, and can be run again
until it says that all are there.
Weights of 0.5B to 7B are random: memory and time do not depend on them. What learns is SmolLM2 (tools/gpu_learning.py).
A consumer card is imitated by a cap on the memory of the process, and the cell says so.
On a machine without network the packages come from a kit: tools/kit.py, and then `make gpu KIT=/tmp/kit`. Without a GPU
it keeps the record that says "not measured", and ends well. `--device cpu --tiny` plays every line of it with small
models.
"""
import argparse, datetime, gc, json, os, sys, tempfile, time, warnings
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import gpu_learning
from agentlab.policy import Policy, word_tokenizer
from agentlab.train.fit import KNOWN, Settings, predict, read_config
from measured import measured_peak, measured_update, practice, real_training

RECORD = ROOT/'assets'/'gpu'/'record.json'
# Dense bfloat16 products with float32 sums, in operations a second, by a part of the device's name; the first that is
# found counts. NVIDIA's data sheets
# give the sparse rate, twice this, for Hopper; the 4090's is from public tables.
RATES = {'H100 PCIe': 756e12, 'H100': 989e12, 'H200': 989e12, 'A100': 312e12, 'L40S': 362e12, 'L4': 121e12,
    'A10': 125e12, 'RTX 4090': 165e12}
MODELS = {name.split('-')[1]: name for name in KNOWN if 'Qwen2.5' in name}  # 0.5B, 1.5B, 3B, 7B
TINY = {'tiny': dict(model_type='qwen2', hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=300, tie_word_embeddings=True,
    max_position_embeddings=512)}

def cells(tiny: bool) -> dict:
    "Name -> what is measured: (model, kind, settings, cap in GB or None)."
    models, lengths, caps = (TINY, (32, 64), (None,)) if tiny else (MODELS, (2048, 4096, 8192), (None, 12, 24))
    common = dict(dtype=torch.float32, precision='no', lora=4, rows=2, fused=False) if tiny else dict(rows=8)
    ways = dict(lora={}, qlora=dict(quantise=True), trl={})
    measured = {f'{model} {way} {length}' + (f' cap {cap} GB' if cap else ''): (
        models[model], way, Settings(**common, **ways[way], budget=length, length=length), cap)
        for model, way, length, cap in product(models, ways, lengths, caps) if not (way == 'trl' and cap)}
    return {name: (None, 'learns', None, None) for name in gpu_learning.names(tiny)} | measured

def policy_of(config, kind: str, s: Settings, device: str):
    "A policy with random weights, as a run would load it."
    torch.manual_seed(0)
    tokenizer = word_tokenizer(['word'])
    with torch.device(device): model = AutoModelForCausalLM.from_config(read_config(config), dtype=s.dtype)
    if kind != 'qlora': return Policy(model, tokenizer)
    from agentlab.policy.qlora import qlora_policy
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        free(device)
        return qlora_policy(folder, rank=s.lora, checkpointing=s.checkpointing, device=device)

def free(device: str):
    gc.collect()
    if device == 'cuda': torch.cuda.empty_cache()

def clock(call, device: str) -> float:
    "Seconds of a call."
    wait = torch.cuda.synchronize if device == 'cuda' else lambda: None
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start

def share_of_peak(parameters: int, trains_all: bool, tokens_per_second: float, device: str):
    """Model FLOPs utilisation: 2 operations a parameter forward and 2 backward through frozen weights, 4 where they
    are trained; attention and what is computed again do not count. None on an unknown device."""
    rate = next((rate for name, rate in RATES.items() if device == 'cuda' and name in torch.cuda.get_device_name()),
        None)
    return rate and (6 if trains_all else 4)*parameters*tokens_per_second/rate

def sampling(policy, s: Settings, device: str) -> dict:
    "Tokens a second of the TorchSampler, and its peak."
    count, start = max(s.length//16, 2), [list(range(2, 2 + s.length//2))]*s.rows
    vocabulary = policy.model.get_input_embeddings().weight.shape[0]
    contexts = [[i % vocabulary for i in ids] for ids in start]
    sample = lambda: policy.sampler().sample(contexts, count, stop=set())
    peak = measured_peak(sample, device)
    return dict(sampling_peak=peak, sampled_per_second=s.rows*count/clock(sample, device))

def ours(config, kind: str, s: Settings, device: str) -> dict:
    "A pass of agentlab's trainer: predicted and measured peak, tokens a second."
    m = predict(config, s)
    training = real_training(policy_of(config, kind, s, device), s)
    there, peak = measured_update(training, s)
    # `backward` again, timed without the profiler
    from agentlab.train.trainer import backward
    batch = practice(s, training.policy.model.get_input_embeddings().weight.shape[0]).to(device)
    once = lambda: backward(training, batch, torch.ones(len(batch.actions), device=device),
        torch.arange(len(batch.rows)))
    rate = len(batch.tokens.id)/clock(once, device)
    training.optimizer.zero_grad()
    return dict(weights=there, weights_predicted=m.weights + m.adapter, peak=peak,
        predicted=m.weights + m.adapter + m.phases['learning'], trained_per_second=rate,
        share_of_peak_rate=share_of_peak(m.parameters, not s.lora, rate, device),
        **sampling(training.policy, s, device))

def theirs(config, kind: str, s: Settings, device: str) -> dict:
    """TRL's GRPOTrainer on the same episodes, adapter, precision and checkpointing: they are handed to it, so that
    only the update is compared."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    policy, rows, stamps = policy_of(config, kind, s, device), max(2*s.micro_batch[0], 2), {}
    batch = practice(s, policy.model.get_input_embeddings().weight.shape[0], parts=rows)
    own = int((batch.tokens.turn[:s.length] >= 0).sum())
    ids = [batch.tokens.id[i*s.length:(i + 1)*s.length].tolist() for i in range(rows)]
    def rollout(prompts, trainer):
        return dict(prompt_ids=[x[:-own] for x in ids], completion_ids=[x[-own:] for x in ids],
            logprobs=[[-1.]*own for _ in ids])
    class Stamp(TrainerCallback):
        def on_step_begin(self, *args, **kw): stamps['begin'] = time.perf_counter()
        def on_step_end(self, *args, **kw): stamps['end'] = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(output_dir=folder, use_cpu=device == 'cpu', bf16=s.precision == 'bf16',
            gradient_checkpointing=s.checkpointing, report_to='none', save_strategy='no',
            logging_strategy='no', disable_tqdm=True,
            per_device_train_batch_size=s.micro_batch[0],
            gradient_accumulation_steps=rows//s.micro_batch[0], num_generations=2, max_steps=1,
            max_completion_length=own, loss_type='dapo', beta=0.)
        data = Dataset.from_dict(dict(prompt=[[dict(role='user', content='word')]]*rows))
        trainer = GRPOTrainer(model=policy.model, args=args, processing_class=policy.tokenizer, train_dataset=data,
            rollout_func=rollout, reward_funcs=lambda completion_ids, **_: [
            float(i % 2) for i in range(len(completion_ids))],
            peft_config=LoraConfig(r=s.lora, lora_alpha=2*s.lora, target_modules='all-linear',
            task_type='CAUSAL_LM'), callbacks=[Stamp()])
        there = sum(x.numel()*x.element_size() for x in [*trainer.model.parameters(), *trainer.model.buffers()])
        peak = measured_peak(trainer.train, device)
    rate = rows*s.length/(stamps['end'] - stamps['begin'])
    return dict(weights=there, peak=there + peak, trained_per_second=rate,
        share_of_peak_rate=share_of_peak(sum(p.numel() for p in policy.model.parameters()), False, rate,
        device), note='with its optimizer step; logits of whole completions')

def cell(key: str, config, kind: str, s: Settings, cap, device: str) -> dict:
    "One cell; what ran out of memory or is not installed says so."
    if device == 'cuda':
        total = torch.cuda.mem_get_info()[1]
        if cap and cap*2**30 > total: return dict(skipped=f'the card has less than {cap} GB')
        torch.cuda.set_per_process_memory_fraction(min(cap*2**30/total, 1.) if cap else 1.)
    try:
        found = (gpu_learning.learning(key, device) if kind == 'learns'
            else (theirs if kind == 'trl' else ours)(config, kind, s, device))
    except ImportError as missing: found = dict(skipped=str(missing))
    except torch.OutOfMemoryError as full:
        found = dict(out_of_memory=str(full)[:160]) | (dict(predicted_total=predict(config, s).total) if config else {})
    free(device)
    return found | (dict(cap=f'the memory of a {cap} GB card, imitated by a cap') if cap else {})

def write(path: Path, record: dict):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix('.new')
    new.write_text(json.dumps(record, indent=1) + '\n')
    os.replace(new, path)

def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    parser.add_argument('--tiny', action='store_true', help='small models, to play every line on a CPU')
    parser.add_argument('--part', default='',
        help='only cells whose name has this in it, such as 7B, qlora or "cap 12"')
    parser.add_argument('--seconds', type=float, default=540,
        help='begin no cell after this time; run it again for the rest')
    parser.add_argument('--out', type=Path, default=RECORD)
    asked = parser.parse_args()
    if asked.device == 'cpu' and not asked.tiny: parser.error('--device cpu needs --tiny: the real sizes are for a GPU')
    if asked.tiny and asked.out == RECORD:
        parser.error('--tiny needs --out: the record in assets/gpu is that of the real sizes')
    kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    if asked.device == 'cuda' and not torch.cuda.is_available():
        if kept.get('status') != 'measured':
            write(asked.out, dict(status='not measured', why='No GPU was available when this was written. `make gpu` '
                'on a machine with one fills it in, ten minutes at a time.', cells={}))
        print(f'no GPU here, so nothing was measured; {asked.out.name} says: {kept.get("status", "not measured")}')
        return
    name = torch.cuda.get_device_name() if asked.device == 'cuda' else 'CPU'
    if kept.get('device', name) != name:
        parser.error(f'{asked.out} was measured on {kept["device"]}, this is {name}: give another --out')
    facts = dict(status='measured', why='', date=str(datetime.date.today()), device=name,
        command='python tools/gpu.py ' + ' '.join(f'--{k}' for k in ('tiny',) if asked.tiny),
        versions={x: version(x) for x in ('torch', 'transformers', 'trl', 'peft', 'bitsandbytes')},
        cells=kept.get('cells', {}))
    start, wanted = time.monotonic(), {k: v for k, v in cells(asked.tiny).items() if asked.part in k}
    for key, what in wanted.items():
        if key in facts['cells']: continue
        if time.monotonic() - start > asked.seconds: break
        facts['cells'][key] = cell(key, *what, asked.device)
        write(asked.out, facts)
        print(key, {k: v for k, v in facts['cells'][key].items()
            if k in ('peak', 'predicted', 'trained_per_second', 'skipped', 'out_of_memory', 'before', 'after')},
            flush=True)
    left = [k for k in wanted if k not in facts['cells']]
    print(f'{len(left)} of {len(wanted)} cells are left: run it again' if left
        else f'all {len(wanted)} cells are in {asked.out.name}')

if __name__ == '__main__':
    warnings.simplefilter('ignore')
    main()
