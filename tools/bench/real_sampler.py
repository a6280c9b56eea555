"""Sampling from a pretrained model: TorchSampler, and the shortest loop that one can write.

The page that explains it and shows what was found: nbs/bench/16_real_sampler.ipynb.
"""
from __future__ import annotations
import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import Policy, TorchSampler
from agentlab.policy.exact import settle

@dataclass
class Work:
    "How many games, and how long."
    rows: int = 48
    guide: int = 120  # tokens of the first context, before what is heard in the first turn
    turns: int = 5
    heard: int = 12   # tokens of an observation
    said: int = 5     # tokens of an action

    def texts(self, vocabulary: int) -> list[Tensor]:  # (rows, tokens) for every turn
        "What is heard: random ids, the same in every process."
        draw = torch.Generator().manual_seed(0)
        widths = [self.guide + self.heard] + [self.heard]*(self.turns - 1)
        return [torch.randint(3, vocabulary, (self.rows, width), generator=draw) for width in widths]

class Room(CacheLayerMixin):
    "Keys and values of one layer, allocated once; a forward sees what is filled."
    is_sliding = False
    def __init__(self, columns: int):
        super().__init__()
        self.columns, self.filled = columns, 0
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor):
        make = lambda x: x.new_zeros(x.shape[0], x.shape[1], self.columns, x.shape[3])
        self.keys, self.values, self.is_initialized = make(key_states), make(value_states), True
    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized: self.lazy_initialization(key_states, value_states)
        start, self.filled = self.filled, self.filled + key_states.shape[2]
        for store, new in ((self.keys, key_states), (self.values, value_states)): store[:, :, start:self.filled] = new
        return self.keys[:, :, :self.filled], self.values[:, :, :self.filled]
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]: return self.filled + query_length, 0
    def get_seq_length(self) -> int: return self.filled
    def get_max_length(self) -> int: return self.columns
    get_max_cache_shape = get_max_length

@torch.inference_mode()
def bare_loop(
    model,
    texts: list[Tensor],  # (rows, tokens) heard in every turn
    said: list[Tensor],   # (rows, tokens) said in every turn: what it draws is put aside for these
) -> Tensor:              # (rows, tokens) log-probabilities of what was said
    "Sample, with everything known in advance."
    columns = sum(x.shape[1] for x in [*texts, *said])
    cache = Cache(layers=[Room(columns) for _ in range(model.config.num_hidden_layers)])
    draw, scores, last = torch.Generator().manual_seed(0), [], texts[0][:, :0]
    for heard, answer in zip(texts, said):
        new = torch.cat([last, heard], 1)
        for step in range(answer.shape[1]):
            start = cache.get_seq_length()
            at = torch.arange(start, start + new.shape[1])[None].expand(len(new), -1)
            # an index, as our sampler gives: on a slice the vocabulary's product is far slower
            end = torch.tensor([new.shape[1] - 1])
            logits = model(input_ids=new, position_ids=at, past_key_values=cache, use_cache=True,
                logits_to_keep=end).logits[:, -1]
            logp = torch.log_softmax(logits.float(), -1)
            torch.multinomial(logp.exp(), 1, generator=draw)
            new = answer[:, step:step + 1]
            scores.append(logp.gather(1, new))
        last = new
    return torch.cat(scores, 1)

def our_loop(
    model, work: Work,
    texts: list[Tensor],  # (rows, tokens) heard in every turn
    likeliest: int = 5,
) -> tuple[list[Tensor], list]:  # (rows, tokens) said in every turn; the episodes
    "The same by a fresh TorchSampler: contexts in, completions out."
    sampler = TorchSampler(model, likeliest=likeliest)
    contexts, said, games = [[] for _ in range(work.rows)], [], [[] for _ in range(work.rows)]
    for t, heard in enumerate(texts):
        contexts = [context + new for context, new in zip(contexts, heard.tolist())]
        found = sampler.sample(contexts, work.said, stop=(), seeds=[work.rows*t + i for i in range(work.rows)])
        contexts = [context + one.ids for context, one in zip(contexts, found)]
        said.append(torch.tensor([one.ids for one in found]))
        for game, new, one in zip(games, heard.tolist(), found):
            game.append(Turn(t, context_ids=new, ids=one.ids, logps=one.logprobs, entropies=one.entropies))
    return said, [Episode(turns, group=i) for i, turns in enumerate(games)]

def lap(call) -> tuple[float, float]:  # wall and CPU seconds
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu

def measure(
    policy: Policy, work: Work,
    repeats: int = 3,  # rounds; each side once in each
# seconds and cpu: side -> one number a round; gap: plain and exact -> (mean, largest) distance of sampler and trainer,
# nats
) -> dict:
    "Time the sides, and compare what was sampled with what the trainer computes."
    texts, model = work.texts(policy.model.get_input_embeddings().weight.shape[0]), policy.model
    settle(model, False)
    said, episodes = our_loop(model, work, texts)
    gap = dict(plain=distance(policy, episodes, False))
    if settle(model): gap['exact'] = distance(policy, our_loop(model, work, texts)[1], None)
    sides = dict(bare=(False, lambda: bare_loop(model, texts, said)),
        plain=(False, lambda: our_loop(model, work, texts)))
    if 'exact' in gap:
        sides |= {'exact': (None, lambda: our_loop(model, work, texts)),
            'no words': (None, lambda: our_loop(model, work, texts, 0))}
    found = dict(seconds={name: [] for name in sides}, cpu={name: [] for name in sides})
    for _ in range(repeats):
        for name, (exact, call) in sides.items():
            settle(model, exact)
            wall, cpu = lap(call)
            found['seconds'][name].append(wall)
            found['cpu'][name].append(cpu)
    return found | dict(gap=gap, work=vars(work), sampled=work.rows*work.turns*work.said)

def distance(policy: Policy, episodes: list[Episode], exact: bool|None) -> tuple[float, float]:
    "Mean and largest distance of the sampled from the trained log-probabilities of the first eight games, nats."
    batch = Batch.from_episodes(episodes[:8])
    policy.exact = exact
    apart = (policy.logprobs(batch)[0] - batch.action('sampler_logp')).abs()
    return apart.mean().item(), apart.max().item()

def ratios(record: dict, kind: str = 'cpu') -> dict:
    "Side -> median over the rounds of its time by that of the bare loop in the same round."
    bare = record[kind]['bare']
    return {name: median(x/y for x, y in zip(times, bare)) for name, times in record[kind].items()}

def as_markdown(record: dict) -> str:
    "The table of a record."
    cpu, wall, rate = ratios(record), ratios(record, 'seconds'), record['sampled']
    lines = [f"| {name} | {cpu[name]:.2f} | {wall[name]:.2f} | {rate/median(record['seconds'][name]):.0f} |"
        for name in cpu]
    head = ['| side | CPU seconds, bare = 1 | wall seconds, bare = 1 | sampled tokens a second |', '|---|---|---|---|']
    gaps = [f'{name}: mean {mean:.4f}, largest {most:.4f}' for name, (mean, most) in record['gap'].items()]
    return '\n'.join([*head, *lines, '', 'Sampled minus trained log-probability, nats: ' + '; '.join(gaps) + '.'])

def open_model(
    name: str,  # a folder in the transformers layout, or a name that `agentlab.policy.pretrained` knows
) -> Policy:    # in bf16 where the processor has it, with an adapter that has moved
    "The policy that is measured."
    from agentlab.policy import pretrained
    policy = pretrained(name)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, parameter in policy.model.named_parameters():
            if 'lora_B' in weight: parameter.normal_(std=.01, generator=draw)
    return policy
