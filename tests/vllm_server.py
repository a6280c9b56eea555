"""What vLLM does, around a transformers model on a CPU: its server's protocol for VLLMServer, and its classes for VLLMEngine.

Written from vLLM's source: the order of temperature, top-p and reported log-probabilities, what an answer of /v1/completions holds, what the adapter routes say,
that whatever a request leaves out comes from the model's generation_config. It is slow and knows nothing else of vLLM.
"""
import copy, json, math, socket, sys, threading, time, types
from pathlib import Path
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from safetensors.torch import load_file

DEFAULTS = dict(temperature=1., top_p=1., top_k=0, min_p=0., repetition_penalty=1.)    # where there is no generation_config.json

@torch.no_grad()
def generate(model, prompt, mode, max_tokens, temperature, top_p, top_k, seed, stop, logprobs):
    "(ids, for every id its log-probability and those of the likeliest tokens by id, finish)."
    ids, scores, generator = list(prompt), [], torch.Generator()
    if seed is not None: generator.manual_seed(seed)
    for _ in range(max_tokens):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        raw, cut = logits.log_softmax(-1), logits / (temperature or 1.)
        if temperature:
            order = cut.argsort(descending=True)
            before = cut[order].softmax(-1).cumsum(-1) - cut[order].softmax(-1)
            out = (before >= top_p) | (torch.arange(len(order)) >= (top_k or len(order)))
            cut = cut.index_fill(0, order[out], -torch.inf)
        draw = torch.empty_like(cut).exponential_(generator=generator)
        token = int((cut.softmax(-1) / draw if temperature else cut).argmax())
        reported = raw if mode == 'raw_logprobs' else cut.log_softmax(-1)
        scores.append((reported[token].item(), {token: reported[token].item()} | {i: reported[i].item() for i in reported.topk(logprobs).indices.tolist()}))
        ids.append(token)
        if token in stop: return ids[len(prompt):], scores, 'stop'
    return ids[len(prompt):], scores, 'length'

def adapter_config(path): return json.loads((Path(path)/'adapter_config.json').read_text())

@torch.no_grad()
def with_adapter(model, path):
    "A copy of the model plus the adapter in this folder, read by the names that vLLM expects in the file; in float32 adding it changes nothing but the speed."
    model, config, weights = copy.deepcopy(model), adapter_config(path), load_file(Path(path)/'adapter_model.safetensors')
    scale = config['lora_alpha'] / (math.sqrt(config['r']) if config['use_rslora'] else config['r'])
    for name in [name for name in weights if name.endswith('.lora_A.weight')]:
        target = model.get_submodule(name.removeprefix('base_model.model.').removesuffix('.lora_A.weight'))
        target.weight += scale * weights.pop(name.replace('lora_A', 'lora_B')) @ weights.pop(name)
    assert not weights, f'vLLM knows no {list(weights)[:3]}'
    return model

class Server:
    "A server in a thread, on a free port of this machine. `faults` are functions (answer) -> answer or response, each used up by one completion."
    def __init__(self, model, max_len=256, mode='processed_logprobs', lora=True, token_ids=True, name='tiny', defaults={}, max_rank=16):
        self.model, self.max_len, self.mode, self.lora, self.token_ids, self.name, self.defaults, self.max_rank = copy.deepcopy(model).eval(), max_len, mode, lora, token_ids, name, DEFAULTS | defaults, max_rank
        self.adapters, self.faults, self.asked, self.port, self.lock, self.thread = {}, [], [], 0, threading.Lock(), None
    url = property(lambda self: f'http://127.0.0.1:{self.port}')
    def app(self):
        app = FastAPI()
        app.get('/health')(lambda: {})
        app.get('/v1/models')(lambda: dict(data=[dict(id=self.name, max_model_len=self.max_len)] + [dict(id=n, parent=self.name) for n in self.adapters]))
        app.post('/v1/completions')(self.completions)
        if self.lora: app.post('/v1/load_lora_adapter')(self.load); app.post('/v1/unload_lora_adapter')(self.unload)
        return app
    def load(self, body: dict):
        if body['lora_name'] in self.adapters: return refused(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
        if adapter_config(body['lora_path'])['r'] > self.max_rank: return refused(400, 'LoRA rank is greater than max_lora_rank')
        self.adapters[body['lora_name']] = with_adapter(self.model, body['lora_path'])
        return 'Success'
    def unload(self, body: dict): return 'Success' if self.adapters.pop(body['lora_name'], None) else refused(404, 'The lora adapter cannot be found.')
    def completions(self, body: dict):
        with self.lock:
            self.asked.append(body)
            fault = self.faults.pop(0) if self.faults else None
            model = self.model if body['model'] == self.name else self.adapters.get(body['model'])
            if model is None: return refused(404, f"The model `{body['model']}` does not exist.")
            given = self.defaults | {k: v for k, v in body.items() if v is not None}
            size = model.config.vocab_size
            if not all(0 <= i < size for i in body['prompt']): return refused(400, 'Token id is out of vocabulary')
            if len(body['prompt']) + given['max_tokens'] > self.max_len: return refused(400, 'longer than max_model_len')
            stop = set(given.get('stop_token_ids') or ()) | (set() if given.get('ignore_eos') else {0})
            ids, scores, finish = generate(model, body['prompt'], self.mode, given['max_tokens'], given['temperature'], given['top_p'], given['top_k'], given.get('seed'), stop, given['logprobs'])
        name = lambda i: f'token_id:{i}'
        logs = dict(tokens=[name(i) for i in ids], token_logprobs=[x for x, _ in scores], top_logprobs=[{name(i): max(x, -9999.) for i, x in top.items()} for _, top in scores])
        ids = dict(token_ids=ids, prompt_token_ids=body['prompt']) if self.token_ids and body.get('return_token_ids') else {}
        answer = dict(id='cmpl-1', object='text_completion', model=body['model'], choices=[dict(index=0, text='', logprobs=logs, finish_reason=finish, **ids)])
        return fault(answer) if fault else answer
    def start(self):
        "Listen: on the port of before, where there is one."
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(('127.0.0.1', self.port))
        self.port = listener.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(self.app(), log_level='critical', lifespan='off', timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs=dict(sockets=[listener]), daemon=True)
        self.thread.start()
        while not self.server.started: time.sleep(.005)
        return self
    def stop(self):
        "Gone, with everything that was loaded."
        if self.thread is None: return
        self.server.should_exit = True
        self.thread.join(20)
        self.thread, self.adapters = None, {}
    def __enter__(self): return self.start()
    def __exit__(self, *_): self.stop()

def refused(status, message): return JSONResponse(dict(error=dict(message=message, type='BadRequestError', code=status)), status)

# ---- the same as classes, for an engine in this process

class LoRARequest:
    def __init__(self, lora_name, lora_int_id, lora_path): self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path

class SamplingParams:
    def __init__(self, n=1, presence_penalty=0., frequency_penalty=0., repetition_penalty=1., temperature=1., top_p=1., top_k=0, min_p=0., seed=None, stop=None, stop_token_ids=None,
                 ignore_eos=False, max_tokens=16, min_tokens=0, logprobs=None, prompt_logprobs=None, detokenize=True, skip_special_tokens=True, include_stop_str_in_output=False):
        self.__dict__.update({k: v for k, v in locals().items() if k != 'self'})

class LLM:
    "vllm.LLM around a transformers model, as far as VLLMEngine uses it."
    def __init__(self, model, *, enable_lora=False, max_loras=1, max_cpu_loras=None, max_lora_rank=16, logprobs_mode='raw_logprobs', enable_prefix_caching=None, max_model_len=256, max_logprobs=20):
        assert enable_lora and max_cpu_loras > max_loras
        self.model, self.mode, self.adapters, self.llm_engine, self.calls = copy.deepcopy(model).eval(), logprobs_mode, {}, self, 0
        self.model_config = types.SimpleNamespace(model='tiny', max_model_len=max_model_len)
    def add_lora(self, request):
        self.adapters[request.lora_int_id] = with_adapter(self.model, request.lora_path)
        return True
    def remove_lora(self, lora_id): return self.adapters.pop(lora_id, None) is not None
    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None):
        self.calls += 1
        model, found = self.adapters[lora_request.lora_int_id] if lora_request else self.model, []
        for prompt, p in zip(prompts, sampling_params, strict=True):
            stop = set(p.stop_token_ids) | (set() if p.ignore_eos else {0})
            ids, scores, finish = generate(model, prompt['prompt_token_ids'], self.mode, p.max_tokens, p.temperature, p.top_p, p.top_k, p.seed, stop, p.logprobs)
            at = [{i: types.SimpleNamespace(logprob=x, rank=None, decoded_token=None) for i, x in top.items()} for _, top in scores]
            found.append(types.SimpleNamespace(prompt_token_ids=prompt['prompt_token_ids'], outputs=[types.SimpleNamespace(index=0, token_ids=ids, logprobs=at, finish_reason=finish)]))
        return found

def install(patch):
    "Have `import vllm` find these classes; `patch` is pytest's monkeypatch."
    make = lambda name, **things: patch.setitem(sys.modules, name, types.SimpleNamespace(**things))
    make('vllm', LLM=LLM, SamplingParams=SamplingParams); make('vllm.lora'); make('vllm.lora.request', LoRARequest=LoRARequest)
    make('vllm.inputs', TokensPrompt=lambda prompt_token_ids: dict(prompt_token_ids=prompt_token_ids))
