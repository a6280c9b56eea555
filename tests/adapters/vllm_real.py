"""The real vLLM on a CPU: `make test-vllm`, in an environment of its own.

Its server and its engine serve a small random model in float32, so that everything but the speed can be compared to
four digits, and SmolLM2 in bf16. The
server answers the questions of tests/vllm_contract.py, and tests/vllm_server.py has to answer alike. What was seen is
written to
assets/interop/vllm_contract.json.xz when everything has passed.
"""
import copy
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
import torch
from openai import OpenAI

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT/'tests'))
ENVIRONMENT = dict(TORCHDYNAMO_DISABLE='1', VLLM_CPU_KVCACHE_SPACE='1', VLLM_CPU_OMP_THREADS_BIND='nobind',
    VLLM_ALLOW_RUNTIME_LORA_UPDATING='True', VLLM_NO_USAGE_STATS='1',
    DO_NOT_TRACK='1', HF_HUB_OFFLINE='1', VLLM_LOGGING_LEVEL='WARNING')
os.environ.update(ENVIRONMENT)  # the engine in this process reads them, too

import vllm_contract as contract
import vllm_server as stand_in
from agentlab.bench import circumstances, keep
from agentlab.episodes import Batch
from agentlab.interop.serve import Hub, serving
from agentlab.policy import pretrained
from agentlab.policy.core import Policy
from agentlab.policy.export import opened, write_merged
from agentlab.policy.reader import find_weights
from agentlab.policy.vllm import Ask, VLLMSampler, VLLMServer, read_choice, request_body, start_vllm
from agentlab.train import recipes
from agentlab.train.trainer import with_lora
from small import Paying, train_small

BASE = contract.base()
PACKAGES = 'vllm-cpu', 'torch', 'transformers', 'peft'
record = dict(answers={}, seen={})

@pytest.fixture(scope='module', autouse=True)
def kept(request):
    "Write the record when no test has failed."
    failed = request.session.testsfailed
    yield
    # some tests only (-k), or a failure: the old record stays
    if request.session.testsfailed > failed or len(record['seen']) < 5: return
    keep(circumstances('make test-vllm') | dict(packages={name: version(name) for name in PACKAGES}) | record,
        ROOT/'assets'/'interop', 'vllm_contract', packed=True)

class Real:
    "A vLLM server in a process of its own, on a port that stays when it is started again."
    def __init__(self, model, folder, *flags):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        self.log, self.process, self.url = folder/'log.txt', None, f'http://127.0.0.1:{self.port}'
        self.command = [sys.executable, '-m', 'vllm.entrypoints.openai.api_server', '--model', str(model),
            '--served-model-name', contract.NAME, '--enforce-eager', '--enable-lora',
            '--max-loras', '1', '--max-cpu-loras', str(contract.CACHED), '--max-lora-rank',
            str(contract.RANK), '--logprobs-mode', 'processed_logprobs',
            '--max-logprobs', str(contract.LOGPROBS), '--enable-prefix-caching', '--host', '127.0.0.1',
            '--port', str(self.port), *flags]
    def start(self, longest=300):
        self.process = subprocess.Popen(self.command, stdout=self.log.open('a'), stderr=subprocess.STDOUT,
            start_new_session=True, env=os.environ | ENVIRONMENT)
        for _ in range(longest):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if self.well(): return self
            time.sleep(1)
        raise TimeoutError(self.log.read_text()[-3000:])
    def well(self):
        try: return httpx.get(f'{self.url}/health', trust_env=False, timeout=5.).status_code == 200
        except httpx.HTTPError: return False
    def kill(self):
        "As a machine that loses power: server and engine at once."
        if self.process is None: return
        try: os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError: pass
        self.process.wait()
        self.process = None
    def __enter__(self): return self.start()
    def __exit__(self, *_): self.kill()

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp('vllm')
    BASE.save_pretrained(place/'base')
    return place

@pytest.fixture(scope='module')
def real(folder):
    with Real(folder/'base', folder, '--dtype', 'float32', '--max-model-len', str(contract.MAX_LEN)) as server:
        yield server

def learned(seed=0, r=4, **config):
    "A policy with an adapter that does something, on a copy of the base."
    policy = with_lora(Policy(copy.deepcopy(BASE.model), BASE.tokenizer, name='tiny'), r=r, lora_alpha=2*r, **config)
    move(policy, seed)
    return policy

def move(policy, seed, scale=.1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.model.parameters():
            if p.requires_grad: p.add_(torch.randn(p.shape, generator=generator), alpha=scale)

def reach(server, **how): return VLLMServer(server.url, **dict(dict(timeout=120., workers=8), **how))

def contexts(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 40, (int(torch.randint(3, 40, (), generator=generator)),), generator=generator).tolist()
        for _ in range(rows)]

@torch.no_grad()
def apart(sampler, policy, temperature=1., rows=6, count=6):
    "|sampled - computed| log-probability of every token."
    found, temper = [], temperature or 1.
    for context, one in zip(contexts(rows),
                            sampler.sample(contexts(rows), count, temperature, stop=(), seeds=list(range(rows)))):
        logp = ((policy.model(input_ids=torch.tensor([context + one.ids])).logits[0, len(context)-1:-1].float()/temper)
            .log_softmax(-1))
        found.append(logp.gather(1, torch.tensor(one.ids)[:, None])[:, 0] - torch.tensor(one.logprobs))
    return torch.cat(found).abs()

# the same questions

def answers(case, url, folder):
    place = folder/case.__name__
    place.mkdir()
    try: return case(contract.Asker(url, BASE, place))
    finally: shutil.rmtree(place, ignore_errors=True)

def both(case, real, folder, tmp_path):
    "What the real server and the fixture answer; kept under the name of the case."
    with stand_in.Server(BASE.model, max_len=contract.MAX_LEN) as fixture: second = answers(case, fixture.url, tmp_path)
    record['answers'][case.__name__] = first = answers(case, real.url, folder)
    return first, second

@pytest.mark.parametrize('case', contract.CASES, ids=lambda case: case.__name__)
def test_both_answer_alike(case, real, folder, tmp_path):
    first, second = both(case, real, folder, tmp_path)
    assert first == second

@pytest.mark.parametrize('case', contract.DEADLY, ids=lambda case: case.__name__)
def test_both_die_alike(case, real, folder, tmp_path):
    try: first, second = both(case, real, folder, tmp_path)
    finally:
        real.kill()
        real.start()
    assert first == second

# our client

def test_log_probabilities_and_adapters_that_change(real):
    policy, engine = learned(), reach(real, keep=1)
    sampler, seen = VLLMSampler(engine), {}
    for step, temperature in enumerate((1., .7, 2., 0.)):
        bound = sampler.sync(policy)
        seen[f'temperature {temperature}'] = apart(bound, policy, temperature).max().item()
        move(policy, step + 1)
    stale = apart(bound, policy).max().item()
    assert bound.seen['scaled'] and max(seen.values()) < 2e-3 < .05 < stale and engine.counts['loads'] == 4
    cards = engine.call('/v1/models')['data']
    assert [card['id'] for card in cards if card.get('parent')] == [bound.adapter.name]
    record['seen']['float32'] = dict(largest_gap=seen, after_a_move_without_sync=stale)

def test_seeds_stop_tokens_and_order(real):
    policy = learned()
    sampler, rows = VLLMSampler(reach(real)).sync(policy), contexts(1)*6 + contexts(4)
    how = dict(stop=set(range(5, 60, 5)))
    said = sampler.sample(rows, 6, seeds=list(range(10)), **how)
    assert {one.finish for one in said} == {'stop', 'length'} and len({tuple(one.ids) for one in said[:6]}) > 3
    order = list(range(9, -1, -1))
    again = sampler.sample([rows[i] for i in order], 6, seeds=order, **how)
    assert [one.ids for one in again] == [said[i].ids for i in order]

def test_what_is_refused_is_refused_at_once(real):
    engine = reach(real)
    def refused(match, policy, **how):
        with pytest.raises(ValueError, match=match): VLLMSampler(engine, **how).sync(policy)
    refused('rank 32.*--max-lora-rank', learned(r=32))
    refused('--max-logprobs', learned(), top=contract.LOGPROBS + 1)
    longer = learned()
    longer.max_context = contract.MAX_LEN*2
    refused('--max-model-len 1024.*--max-context 512', longer)
    policy = learned()
    sampler = VLLMSampler(engine).sync(policy)
    shutil.rmtree(sampler.adapter.path)
    engine.shelf.forget(sampler.adapter)
    engine.call('/v1/unload_lora_adapter', dict(lora_name=sampler.adapter.name))
    with pytest.raises(ValueError, match='does not see the folder'): sampler.sample(contexts(1), 2)
    assert engine.counts['again'] == 0

def test_a_server_that_is_killed_and_started_again(real):
    policy = learned()
    policy.samples_by = VLLMSampler(reach(real, wait=2., longest=10., tries=60))
    sampler = policy.sampler()
    ask = lambda: sampler.sample(contexts(6), 16, stop=(), seeds=list(range(6)))
    expected = ask()
    found, began = [], time.monotonic()
    real.kill()
    waiting = threading.Thread(target=lambda: found.append(ask()))
    waiting.start()
    real.start()
    waiting.join(240)
    assert [one.ids for one in found[0]] == [one.ids
        for one in expected] and apart(policy.sampler(), policy).max() < 2e-3
    record['seen']['killed'] = dict(seconds_until_answered=round(time.monotonic() - began, 1),
        tries=policy.samples_by.engine.counts['again'])

def test_two_clients_with_equal_weights(real):
    one, two = learned(7), learned(7)
    first, second = VLLMSampler(reach(real, keep=1)), VLLMSampler(reach(real, keep=1))
    names = [first.sync(one).adapter.name, second.sync(two).adapter.name]
    assert names[0] != names[1] and names[0].rpartition('-')[0] == names[1].rpartition('-')[0]
    gone = first.sync(one).adapter.path
    one.samples_by = first = None  # the first client ends: its adapter is unloaded, its folder goes
    assert not gone.exists()
    for seed in range(contract.CACHED + 1):  # others push the second one's adapter out of the server's memory
        VLLMSampler(reach(real, keep=1)).sync(learned(20 + seed))
    assert apart(second.sync(two), two).max() < 2e-3 and real.well()
    served = [card['id'] for card in httpx.get(f'{real.url}/v1/models', trust_env=False).json()['data']]
    assert names[0] not in served
    record['seen']['two clients'] = dict(alive=True, adapters_left=len(served) - 1)

def test_a_served_conversation(real):
    "Agents that know a base_url, side by side; what is kept of three calls is what the trainer computes again."
    policy = learned()
    policy.max_context, policy.samples_by = contract.MAX_LEN, VLLMSampler(reach(real))
    hub = Hub(policy, max_tokens=40, temperature=1., workers=8)
    def agent(one):
        create, messages = OpenAI(base_url=f'{url}/s/{one.id}/v1', api_key='none').chat.completions.create, []
        for stop in None, ['A', 'e'], None:
            messages.append(dict(role='user', content='What is 2?'))
            messages.append(create(model='any', messages=messages, stop=stop).choices[0].message)
        assert not set('Ae') & set(messages[3].content)
        return hub.end(one.id).turns
    with serving(hub) as url, ThreadPoolExecutor(4) as many:
        turns = [t for some in many.map(agent, [hub.open() for _ in range(4)]) for t in some]
    batch, cut = Batch.from_episodes(hub.take()), [t for t in turns if t.acted is not None]
    gap = (policy.logprobs(batch)[0] - batch.action('sampler_logp')).abs().max().item()
    assert len(turns) == 12 and cut and gap < 2e-3
    for turn in cut: assert [bool(set('Ae') & set(policy.text(turn.ids[:n]))) for n in (-1, None)] == [False, True]
    record['seen']['served'] = dict(largest_gap=gap, tokens=len(batch.actions), turns=12, stopped=len(cut))

def test_a_run(real, tmp_path):
    policy = Policy(copy.deepcopy(BASE.model), BASE.tokenizer, name='tiny', max_context=contract.MAX_LEN,
        sampler=VLLMSampler(reach(real)))
    run = train_small(tmp_path/'run', recipes.grpo, policy, Paying(), lora=dict(r=4, lora_alpha=8), lr=3e-2, steps=3)
    gaps = [row['sampler_gap'] for row in run.rows()]
    assert max(gaps) < 5e-3
    record['seen']['a run'] = dict(steps=3, sampler_gap=gaps)

def test_the_engine_in_this_process(folder):
    engine = start_vllm(str(folder/'base'), rank=5, keep=2, max_model_len=contract.MAX_LEN, dtype='float32',
        enforce_eager=True)
    policy = learned()
    sampler, gaps = VLLMSampler(engine), []
    for step in range(4):
        gaps.append(apart(sampler.sync(policy), policy).max().item())
        move(policy, step)
    assert max(gaps) < 2e-3 < .05 < apart(sampler, policy).max()
    with pytest.raises(ValueError, match='of rank 16'): sampler.sync(learned(r=16))
    said = [[one.ids for one in sampler.sync(policy).sample(contexts(1)*6, 8, seeds=list(range(6)))] for _ in range(2)]
    assert said[0] == said[1] and len(set(map(tuple, said[0]))) > 3
    record['seen']['engine'] = dict(largest_gap=max(gaps))

def test_an_exported_model(folder):
    "As `agentlab export` writes it, and served by the commands that it prints: merged, and as an adapter of its base."
    policy, place = learned(), folder/'exported'
    place.mkdir()
    assert write_merged(policy, place/'merged') < 1e-4
    policy.model.save_pretrained(place/'kept')  # what is copied for a policy whose base is found elsewhere
    how = '--dtype', 'float32', '--max-model-len', str(contract.MAX_LEN)
    with Real(place/'merged', place, *how) as server:
        alone = opened(place/'merged')
        alone.max_context, _ = contract.MAX_LEN, alone.model.requires_grad_(False)
        merged = apart(VLLMSampler(reach(server)).sync(alone), policy).max().item()
    with Real(folder/'base', place, *how, '--lora-modules', f"kept={place/'kept'}") as server:
        found = []
        for context in contexts(4):
            ask = Ask(context, 6, top=1)
            said = read_choice(reach(server).call('/v1/completions', request_body(ask, 'kept')), ask)
            logits = policy.model(input_ids=torch.tensor([context + said.ids])).logits[0, len(context)-1:-1]
            logp = logits.float().log_softmax(-1).gather(1, torch.tensor(said.ids)[:, None])[:, 0]
            found.append(logp.detach() - torch.tensor(said.logps))
        adapter = torch.cat(found).abs().max().item()
    assert max(merged, adapter) < 2e-3
    record['seen']['exported'] = dict(merged=merged, adapter=adapter)

def test_smollm2(folder):
    "bf16 on both sides: other kernels, other roundings."
    place = folder/'smollm2'
    place.mkdir()
    policy = pretrained('smollm2', source='package', max_context=1024)
    move(policy, 0, .01)
    with Real(find_weights('smollm2', 'package')[0], place, '--dtype', 'bfloat16', '--max-model-len', '1024') as server:
        sampler = VLLMSampler(reach(server)).sync(policy)
        asked = [policy.chat.first(f'Tell me about the number {i}.') for i in range(8)]
        began = time.monotonic()
        said = sampler.sample(asked, 32, seeds=list(range(8)))
        seconds, found = time.monotonic() - began, []
        for context, one in zip(asked, said):
            with torch.no_grad():
                logp = (policy.model(input_ids=torch.tensor([context + one.ids])).logits[0, len(context)-1:-1].float()
                    .log_softmax(-1))
            found.append(logp.gather(1, torch.tensor(one.ids)[:, None])[:, 0] - torch.tensor(one.logprobs))
    gap = torch.cat(found).abs()
    record['seen']['smollm2'] = dict(tokens=len(gap), mean=gap.mean().item(), p99=gap.quantile(.99).item(),
        largest=gap.max().item(), tokens_per_second=len(gap)/seconds,
        said=policy.tokenizer.decode(said[0].ids))
    assert gap.mean() < .15
