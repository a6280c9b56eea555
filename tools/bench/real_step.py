"""A training step of a pretrained model with an adapter: agentlab's, and TRL's two ways.

The page that explains it and shows what was found: nbs/bench/19_real_step.ipynb.
"""
from __future__ import annotations
import math, os, re
from dataclasses import replace
from functools import partial

import torch

from agentlab.env.protocol import guide_text
from agentlab.policy import word_tokenizer
from agentlab.policy.qlora import with_adapter
from agentlab.train import recipes
from agentlab.train.trainer import for_pretrained
from bench.training_step import PARSER, Setting, Talk, figure, memory, open_sides, same_work, summary

GUIDE = guide_text(
    'You keep the books of a harbour. Five times a day a clerk comes in and tells you how many boxes stand on a '
    'shelf, which colour they have, and how many sacks are left for a ship. After each visit you write a note for '
    'the captain, who was not there and has no time. Say in your own words what matters most, and leave out the '
    'rest. Do not greet anybody, do not explain what you do, do not ask for more, and do not write down again what '
    'an earlier note has said, unless it has changed since then. The captain reads all notes in the evening and '
    'pays for every vowel, so that long and empty words are cheaper than they look, and short ones are no loss.',
    'Write the note at once, in one line, with eight words at the most.', 'Forty blue boxes are ours since noon today')
COLOURS = 'red', 'blue', 'green', 'white', 'black', 'yellow'
SHIPS = 'Anna', 'Berta', 'Clara', 'Dora', 'Emma', 'Frida'

class Told(Talk):
    "A conversation of a fixed number of turns, under a guide."
    guide = GUIDE
    def words(self) -> str:
        shelf, boxes, sacks = (self.random.randint(1, 99) for _ in range(3))
        colour, ship = self.random.choice(COLOURS), self.random.choice(SHIPS)
        return f'Shelf {shelf} holds {boxes} {colour} boxes, and {sacks} sacks are left for the {ship}.'
    def turn(self, action):
        observation, _, done, info = super().turn(action)
        return observation, vowels(action)/self.length, done, info

def vowels(
    text: str,  # an action
) -> float:     # 0 to 1
    "Share of its letters that are vowels."
    letters = [c for c in text.lower() if c.isalpha()]
    return sum(c in 'aeiou' for c in letters)/max(len(letters), 1)

def mute(
    model,      # causal language model, perhaps with an adapter; the rows of its special tokens change
    tokenizer,  # with a chat template
):              # the model
    "Make sure that no special token is ever drawn. Raises ValueError where one still could be."
    told = [dict(role='system', content=GUIDE), dict(role='user', content=Told(1).reset(0).observation)]
    text = tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True) + 'Forty blue boxes are ours'
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)['input_ids']])
    special = sorted(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    plain = ~torch.isin(ids[0], torch.tensor(special))  # nothing is drawn behind a special token
    plain[:4] = False                                   # and the very first states of a text are like no others
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True)
        states = out.hidden_states[-1][0, plain].float()
        away, low = states.mean(0), out.logits.float().min() - 20
        model.get_output_embeddings().weight[special] = (away*low/(states @ away).mean()).to(model.dtype)
        chance = (model(input_ids=ids).logits[0, plain].float()/.7).softmax(-1)[:, special].sum(-1).max().item()
    if not chance < 1e-9:
        raise ValueError(f'special tokens would still be drawn, one time in {1/chance:.0f}: '
            'the states of this model have no direction in common')
    return model

CHATML = ("{% for m in messages %}{% if m.role == 'tool' %}<|im_end|>\n<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "<|im_start|>assistant\n{{ call.name }} {{ call.arguments|tojson }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# \Z: a $ would match before a last line break, too
CALLS = PARSER['fields']['tool_calls'] | dict(close_pattern=r'<\|im_end\|>|\Z')
CHATML_PARSER = dict(start_anchor_pattern=r'<\|im_start\|>\s*assistant\s*', defaults=PARSER['defaults'],
    fields=dict(tool_calls=CALLS))
BETWEEN = '<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n'

def chatml(tokenizer):
    "The tokenizer, which writes as its model was taught, and reads any text as a call of the one tool."
    tokenizer.chat_template, tokenizer.response_template = CHATML, CHATML_PARSER
    return tokenizer

def random_llama(
    tokenizer,  # with a chat template
    hidden: int = 64,
):              # peft model, float32
    "A Llama of two layers with random weights and an adapter that adds something."
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2*hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        tie_word_embeddings=True, initializer_range=.1, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad(): model.get_input_embeddings().weight[:, 0] = 6.
        model = with_adapter(model, r=4, lora_alpha=8, target_modules='all-linear')
        for name, p in model.named_parameters():
            if 'lora_B' in name: torch.nn.init.normal_(p, std=.01)  # half of a fresh one has no gradient
    return mute(model, tokenizer)

def tiny(
    turns: int,  # it does not depend on them
):               # (model, tokenizer)
    "A random Llama, and a tokenizer of all words of this world."
    text = ' '.join([GUIDE, Told(1).reset(0).observation, *COLOURS, *SHIPS, 'system user assistant'])
    tokenizer = word_tokenizer([*re.findall(r'\w+|[^\w\s]', text), *map(str, range(1, 100))])
    tokenizer.add_special_tokens(dict(eos_token='<|im_end|>', pad_token='<|im_end|>', bos_token='<|im_start|>'))
    return random_llama(chatml(tokenizer)), tokenizer

def real(
    name: str,   # that `agentlab.policy.pretrained` knows, or a folder; it was taught in ChatML
    turns: int,  # it does not depend on them
):               # (model, tokenizer)
    "A pretrained model with a fresh adapter of rank 16, and its tokenizer."
    from agentlab.policy import pretrained
    from agentlab.policy.reader import KNOWN
    policy = pretrained(name, source='package' if name in KNOWN else None, template=CHATML)
    return mute(policy.model, policy.tokenizer), chatml(policy.tokenizer)

def adapter_grpo(**fields) -> recipes.Recipe:
    "GRPO for a pretrained model with an adapter."
    return for_pretrained(recipes.grpo(**fields), **fields)

def setting(
    model: str,  # 'tiny', or as for `real`
) -> Setting:
    "What a step is made with."
    large = Setting(open=partial(real, model), world=Told, recipe=adapter_grpo, said=8, heard=48, between=BETWEEN,
        size=6, micro=8, threads=cores())
    if model != 'tiny': return large
    small = dict(open=tiny, micro=4, threads=1)
    return replace(large, recipe=partial(adapter_grpo, tree=True), **small)  # it would not go on the tree by itself

def cores() -> int:
    "Cores that this process may use."
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()

def measure(
    model: str = 'smollm2', # 'tiny', or as for `real`
    turns: int = 5,
    episodes: int = 48,
    repeats: int = 1,       # rounds; in each, every side makes one step
) -> dict:                  # a record for `training_step.summary` and its figure, with more about its one length
    "CPU and wall seconds, tokens and memory of a step on every side."
    how, threads = setting(model), torch.get_num_threads()
    torch.set_num_threads(how.threads)
    try: facts, found = raced(how, turns, episodes, repeats)
    finally: torch.set_num_threads(threads)
    found['memory'] = memory(turns, episodes, how, steps=1)
    numbers = dict(model=model, episodes=episodes, repeats=repeats, threads=how.threads, micro=how.micro)
    record = numbers | facts | dict(turns={str(turns): found})
    return record | dict(ratio=ratios(record))

def raced(how: Setting, turns: int, episodes: int, repeats: int) -> tuple[dict, dict]:
    "What is known of the model; seconds (of the processor), wall, work and tokens by side."
    with open_sides(turns, episodes, how) as sides:
        ours, work = sides['agentlab'], same_work(sides, gradient=math.inf)
        for _ in range(repeats - 1):
            for side in sides.values(): side.step()
        def taken(kind): return {name: [lap[kind] for lap in side.laps] for name, side in sides.items()}
        policy, learned = ours.training.policy, sum(weight.numel() for weight in ours.weights.values())
        facts = dict(dtype=str(policy.model.dtype)[6:], parameters=policy.model.num_parameters(), learned=learned)
        facts |= dict(guide=len(policy.chat.text_ids(GUIDE)), exact=policy.settle())
        tokens = {name: side.tokens() for name, side in sides.items()}
        return facts, dict(seconds=taken('cpu'), wall=taken('wall'), work=work, tokens=tokens)

def rows(
    record: dict,  # as `measure` makes it
) -> list[dict]:   # a row for each side
    "Medians: CPU and wall seconds, MB, tokens of the update."
    (turns, found), = record['turns'].items()
    timed = [summary(dict(turns={turns: found | dict(seconds=found[kind])})) for kind in ('seconds', 'wall')]
    def row(cpu, wall):
        taken = {name: cpu[name] for name in ('side', 'sampling', 'update', 'step')} | dict(wall=wall['step'])
        tokens = {name: found['tokens'][cpu['side']][name] for name in ('held', 'computed')}
        return taken | dict(memory=cpu['memory']) | tokens
    return [row(*pair) for pair in zip(*timed)]

def ratios(record: dict) -> dict:  # side -> {sampling, update, step, wall, memory, computed}
    "TRL in units of agentlab."
    ours, *theirs = rows(record)
    asked = [name for name in ('sampling', 'update', 'step', 'wall', 'memory', 'computed') if ours[name]]
    return {row['side']: {name: row[name]/ours[name] for name in asked} for row in theirs}

def picture(record: dict):
    "CPU seconds of the sides."
    drawn = figure(record)
    drawn.update_layout(height=260, margin_t=60, legend_y=1.4)
    return drawn
