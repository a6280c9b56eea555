"""What vLLM does, around a transformers model on a CPU: its server's protocol for VLLMServer, and its classes for
VLLMEngine.

The order of temperature, top-p and reported log-probabilities, what an answer of /v1/completions holds, what is refused
and with which words, the adapter
routes, adapters that are dropped where there is no room and read again from their folder, an engine that dies when the
folder is gone; whatever a request
leaves out comes from the model's generation_config. tests/vllm_contract.py asks this server and the real one the same
questions. It is slow, and knows nothing else.
"""
import copy, itertools, json, math, socket, sys, threading, time, types
from pathlib import Path
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from safetensors.torch import load_file

# where there is no generation_config.json
DEFAULTS = dict(temperature=1., top_p=1., top_k=0, min_p=0., repetition_penalty=1.)

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
        scores.append((reported[token].item(), {token: reported[token].item()}
            | {i: reported[i].item() for i in reported.topk(logprobs).indices.tolist()}))
        ids.append(token)
        if token in stop: return ids[len(prompt):], scores, 'stop'
    return ids[len(prompt):], scores, 'length'

def adapter_config(path): return json.loads((Path(path)/'adapter_config.json').read_text())

def check_config(config, max_rank):
    "Refuse what vLLM refuses."
    rank, why = max([config['r'], *(config.get('rank_pattern') or {}).values()]), []
    if config.get('use_dora'): why.append('vLLM does not yet support DoRA.')
    if rank > max_rank: why.append(f'LoRA rank {rank} is greater than max_lora_rank {max_rank}.')
    if config.get('bias', 'none') != 'none': why.append('Adapter bias is not supported.')
    if why: raise ValueError(' '.join(why))

@torch.no_grad()
def with_adapter(model, path):
    """A copy of the model plus the adapter in this folder, read by the names that vLLM expects in the file; in
    float32 adding it changes nothing but the speed."""
    model, config, weights = (copy.deepcopy(model), adapter_config(path),
        load_file(Path(path)/'adapter_model.safetensors'))
    scale = config['lora_alpha'] / (math.sqrt(config['r']) if config['use_rslora'] else config['r'])
    for name in [name for name in weights if name.endswith('.lora_A.weight')]:
        target = model.get_submodule(name.removeprefix('base_model.model.').removesuffix('.lora_A.weight'))
        target.weight += scale * weights.pop(name.replace('lora_A', 'lora_B')) @ weights.pop(name)
    assert not weights, f'vLLM knows no {list(weights)[:3]}'
    return model

class Server:
    """A server in a thread, on a free port of this machine. `faults` are functions (answer) -> answer or response,
    each used up by one completion."""
    def __init__(self, model, max_len=256, mode='processed_logprobs', lora=True, token_ids=True, name='tiny',
                 defaults=None, max_rank=16, cached=3, max_logprobs=20):
        self.model, self.max_len, self.mode, self.lora, self.token_ids, self.name, self.defaults = copy.deepcopy(
            model).eval(), max_len, mode, lora, token_ids, name, DEFAULTS | (defaults or {})
        self.max_rank, self.cached, self.max_logprobs = max_rank, cached, max_logprobs
        # name -> LoRARequest; its number -> model, the one that was used last at the end
        self.adapters, self.held, self.numbers = {}, {}, itertools.count(1)
        self.faults, self.asked, self.port, self.lock, self.thread, self.dead = ([], [], 0, threading.RLock(), None,
            False)
    url = property(lambda self: f'http://127.0.0.1:{self.port}')
    def app(self):
        app = FastAPI()
        app.get('/health')(lambda: Response(status_code=503 if self.dead else 200))
        app.get('/v1/models')(lambda: dict(data=[dict(id=self.name, max_model_len=self.max_len)]
            + [dict(id=n, parent=self.name) for n in self.adapters]))
        app.post('/v1/completions')(self.completions)
        if self.lora:
            app.post('/v1/load_lora_adapter')(self.load)
            app.post('/v1/unload_lora_adapter')(self.unload)
        return app
    def hold(self, request):
        """The model with this adapter: from memory, or from its folder where there was no room for it (or it was
        loaded in place, which is never forgotten)."""
        if request.lora_int_id not in self.held or request.load_inplace:
            if not (Path(request.lora_path)/'adapter_config.json').exists(): raise FileNotFoundError(request.lora_path)
            check_config(adapter_config(request.lora_path), self.max_rank)
            made = with_adapter(self.model, request.lora_path)
            self.held.pop(request.lora_int_id, None)
            if len(self.held) + 1 > self.cached: del self.held[next(iter(self.held))]
            self.held[request.lora_int_id] = made
        self.held[request.lora_int_id] = self.held.pop(request.lora_int_id)
        return self.held[request.lora_int_id]
    def load(self, body: dict):
        name, path = body['lora_name'], body['lora_path']
        if not name or not path:
            return refused(400, "Both 'lora_name' and 'lora_path' must be provided.", 'InvalidUserInput')
        if name == self.name:
            return refused(400, f"The lora adapter '{name}' conflicts with a served base model.", 'InvalidUserInput')
        if name in self.adapters and not body.get('load_inplace'):
            return refused(400, f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
                f"in place, set 'load_inplace' to True.", 'InvalidUserInput')
        known = self.adapters.get(name)
        request = LoRARequest(name, known.lora_int_id if known else next(self.numbers), path,
            bool(body.get('load_inplace')))
        with self.lock:
            try: self.hold(request)
            except FileNotFoundError:
                # it does not say where it looked
                return refused(404, f'Loading lora {name} failed: No adapter found for <path>', 'NotFoundError')
            except ValueError as e:
                return refused(500, f"Call to add_lora method failed: Worker failed with error '{e}', please check the "
                    f"stack trace above for the root cause", 'InternalServerError')
        self.adapters[name] = request
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")
    def unload(self, body: dict):
        name = body['lora_name']
        if self.adapters.pop(name, None) is None:
            return refused(404, f"The lora adapter '{name}' cannot be found.", 'NotFoundError')
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")
    def die(self):
        "What becomes of an engine that cannot read an adapter."
        self.dead = True
        return refused(500, 'EngineCore encountered an issue. See stack trace (above) for the root cause.',
            'InternalServerError')
    def wrong(self, prompt, given):
        "Why a request is refused, if it is."
        size = self.model.config.vocab_size
        if given['logprobs'] > self.max_logprobs:
            return (f"Requested sample logprobs of {given['logprobs']}, which is greater than max allowed: "
                f"{self.max_logprobs} (parameter=logprobs, value={given['logprobs']})")
        if not 0 <= given['temperature'] <= 2:
            return (f"temperature must be in [0, 2], got {given['temperature']}. (parameter=temperature, "
                f"value={given['temperature']})")
        if not prompt: return 'The decoder prompt cannot be empty'
        for i in (min(prompt), max(prompt)):
            if not 0 <= i < size: return f'Token id {i} is out of vocabulary'
        if len(prompt) >= self.max_len:
            return (f"This model's maximum context length is {self.max_len} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens")
        if not 0 <= (given.get('seed') or 0) < 2**63:
            return 'seed: Input should be less than or equal to 9223372036854775807'
    def completions(self, body: dict):
        with self.lock:
            self.asked.append(body)
            fault = self.faults.pop(0) if self.faults else None
            if self.dead: return self.die()
            request = self.adapters.get(body['model'])
            if request is None and body['model'] != self.name:
                return refused(404, f"The model `{body['model']}` does not exist. Valid aliases: {self.name}.",
                    'NotFoundError')
            given = self.defaults | {k: v for k, v in body.items() if v is not None}
            if why := self.wrong(body['prompt'], given): return refused(400, why)
            try: model = self.hold(request) if request else self.model
            except FileNotFoundError: return self.die()
            if 0 < given['temperature'] < .01: given['temperature'] = .01
            given['max_tokens'] = min(given['max_tokens'], self.max_len - len(body['prompt']))
            stop = set(given.get('stop_token_ids') or ()) | (set() if given.get('ignore_eos') else {0})
            ids, scores, finish = generate(model, body['prompt'], self.mode, given['max_tokens'], given['temperature'],
                given['top_p'], given['top_k'], given.get('seed'), stop, given['logprobs'])
        name = lambda i: f'token_id:{i}'
        logs = dict(tokens=[name(i) for i in ids], token_logprobs=[x for x, _ in scores],
            top_logprobs=[{name(i): max(x, -9999.) for i, x in top.items()} for _, top in scores])
        ids = (dict(token_ids=ids, prompt_token_ids=body['prompt']) if self.token_ids and body.get('return_token_ids')
            else {})
        answer = dict(id='cmpl-1', object='text_completion', model=body['model'],
            choices=[dict(index=0, text='', logprobs=logs, finish_reason=finish, **ids)])
        return fault(answer) if fault else answer
    def start(self):
        "Listen: on the port of before, where there is one."
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(('127.0.0.1', self.port))
        self.port = listener.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(self.app(), log_level='critical', lifespan='off',
            timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs=dict(sockets=[listener]), daemon=True)
        self.thread.start()
        while not self.server.started: time.sleep(.005)
        return self
    def stop(self):
        "Gone, with everything that was loaded."
        if self.thread is None: return
        self.server.should_exit = True
        self.thread.join(20)
        self.thread, self.adapters, self.held, self.dead = None, {}, {}, False
    def __enter__(self): return self.start()
    def __exit__(self, *_): self.stop()

def refused(status, message, kind='BadRequestError'):
    return JSONResponse(dict(error=dict(message=message, type=kind, param=None, code=status)), status)

# ---- the same as classes, for an engine in this process

class LoRARequest:
    def __init__(self, lora_name, lora_int_id, lora_path, load_inplace=False):
        self.lora_name, self.lora_int_id, self.lora_path, self.load_inplace = (lora_name, lora_int_id, lora_path,
            load_inplace)

class SamplingParams:
    def __init__(self, n=1, presence_penalty=0., frequency_penalty=0., repetition_penalty=1., temperature=1., top_p=1.,
                 top_k=0, min_p=0., seed=None, stop=None, stop_token_ids=None,
                 ignore_eos=False, max_tokens=16, min_tokens=0, logprobs=None, prompt_logprobs=None, detokenize=True,
                 skip_special_tokens=True, include_stop_str_in_output=False):
        self.__dict__.update({k: v for k, v in locals().items() if k != 'self'})

class LLM:
    "vllm.LLM around a transformers model, as far as VLLMEngine uses it."
    def __init__(self, model, *, enable_lora=False, max_loras=1, max_cpu_loras=None, max_lora_rank=16,
                 logprobs_mode='raw_logprobs', enable_prefix_caching=None, max_model_len=256, max_logprobs=20):
        assert enable_lora and max_cpu_loras > max_loras
        self.model, self.mode, self.max_rank, self.adapters, self.llm_engine, self.calls = copy.deepcopy(
            model).eval(), logprobs_mode, max_lora_rank, {}, self, 0
        self.model_config = types.SimpleNamespace(model='tiny', max_model_len=max_model_len)
    def add_lora(self, request):
        check_config(adapter_config(request.lora_path), self.max_rank)
        self.adapters[request.lora_int_id] = with_adapter(self.model, request.lora_path)
        return True
    def remove_lora(self, lora_id): return self.adapters.pop(lora_id, None) is not None
    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None):
        self.calls += 1
        model, found = self.adapters[lora_request.lora_int_id] if lora_request else self.model, []
        for prompt, p in zip(prompts, sampling_params, strict=True):
            stop = set(p.stop_token_ids) | (set() if p.ignore_eos else {0})
            ids, scores, finish = generate(model, prompt['prompt_token_ids'], self.mode, p.max_tokens, p.temperature,
                p.top_p, p.top_k, p.seed, stop, p.logprobs)
            at = [{i: types.SimpleNamespace(logprob=x, rank=None, decoded_token=None) for i, x in top.items()}
                for _, top in scores]
            found.append(types.SimpleNamespace(prompt_token_ids=prompt['prompt_token_ids'], outputs=[
                types.SimpleNamespace(index=0, token_ids=ids, logprobs=at, finish_reason=finish)]))
        return found

def install(patch):
    "Have `import vllm` find these classes; `patch` is pytest's monkeypatch."
    make = lambda name, **things: patch.setitem(sys.modules, name, types.SimpleNamespace(**things))
    make('vllm', LLM=LLM, SamplingParams=SamplingParams)
    make('vllm.lora')
    make('vllm.lora.request', LoRARequest=LoRARequest)
    make('vllm.inputs', TokensPrompt=lambda prompt_token_ids: dict(prompt_token_ids=prompt_token_ids))
