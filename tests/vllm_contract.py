"""What somebody who speaks vLLM's protocol answers: one list of questions for the real server and for
tests/vllm_server.py.

Every case is a function (Asker) -> dict of what JSON holds. `make test-vllm` puts them to the real server and writes
assets/interop/vllm_contract.json.xz;
tests/test_vllm.py puts them to the fixture and compares. No case looks at which tokens are drawn: the generators
differ.
"""
import copy, shutil, time
import httpx
import torch
from agentlab.policy.core import Policy
from agentlab.policy.tiny import tiny_model
from agentlab.policy.vllm import Ask, request_body
from small import small_policy

# of the server: served name, longest row, largest rank, adapters it has room for, log-probabilities it gives
NAME, MAX_LEN, RANK, CACHED, LOGPROBS = 'tiny', 512, 16, 3, 20
TOP = 5

def base():
    """A small random llama with heads of 64 (attention kernels want them), which says something; the same in every
    process."""
    tokenizer = small_policy().tokenizer
    policy = Policy(tiny_model(max(len(tokenizer), 64), MAX_LEN, hidden=128, heads=2, seed=3), tokenizer, name='tiny')
    torch.manual_seed(1)
    with torch.no_grad():
        for p in policy.model.parameters():
            if p.dim() > 1: p.mul_(3)
    return policy

def write_lora(policy, folder, seed=0, scale=.2, **config):
    "An adapter in peft's layout that does something."
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(copy.deepcopy(policy.model), LoraConfig(
        **dict(dict(r=4, lora_alpha=8, target_modules='all-linear', task_type='CAUSAL_LM'), **config)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if 'lora_' in name: p.add_(torch.randn(p.shape, generator=generator), alpha=scale)
    model.save_pretrained(folder)
    return folder

class Asker:
    "Somebody with questions for a server."
    def __init__(self, url, policy, folder):
        self.url, self.policy, self.folder, self.size = url, policy, folder, policy.model.config.vocab_size
        self.http = httpx.Client(base_url=url, timeout=120., trust_env=False)
    def ask(self, path, body=None):
        "(status, what was said); -1 where nobody answers."
        try: answer = self.http.request('GET' if body is None else 'POST', path, json=body)
        except httpx.HTTPError: return -1, ''
        try: return answer.status_code, answer.json()
        except ValueError: return answer.status_code, answer.text
    def say(self, n=4, model=NAME, prompt=(5, 6, 7), top=TOP, **changes):
        "(status, the one choice or the message)."
        ask = Ask(list(prompt), n, seed=1, top=top)
        status, body = self.ask('/v1/completions', request_body(ask, model) | changes)
        return status, body['choices'][0] if status == 200 else self.plain(body)
    def plain(self, body):
        "The message of a refusal, without what differs from run to run."
        text = body.get('error', {}).get('message', str(body)) if isinstance(body, dict) else str(body)
        return text.replace(str(self.folder), 'FOLDER')[:200]
    def load(self, name, path, **changes):
        return self.told('/v1/load_lora_adapter', dict(lora_name=name, lora_path=str(path), **changes))
    def unload(self, name): return self.told('/v1/unload_lora_adapter', dict(lora_name=name))
    def told(self, path, body):
        status, said = self.ask(path, body)
        return dict(status=status, said=self.plain(said))
    def lora(self, name, **config): return write_lora(self.policy, self.folder/name, **config)

def refused(answer):
    return dict(status=answer[0], said=answer[1] if isinstance(answer[1], str)
        else f"{len(answer[1]['token_ids'])} tokens, {answer[1]['finish_reason']}")

# ---- answers

def what_an_answer_holds(asker):
    status, one = asker.say(ignore_eos=True, stop_token_ids=[])
    scores, ids = one['logprobs'], one['token_ids']
    return dict(status=status, ids=len(ids), prompt=one['prompt_token_ids'], finish=one['finish_reason'],
        index=one['index'], scores=len(scores['token_logprobs']),
        names=scores['tokens'] == [f'token_id:{i}' for i in ids],
        likely=[len(top) in (TOP, TOP + 1) for top in scores['top_logprobs']],
        drawn_is_among_them=all(f'token_id:{i}' in top for i, top in zip(ids, scores['top_logprobs'])))

def the_stop_token_is_part_of_the_answer(asker):
    first = asker.say(1, temperature=0.)[1]['token_ids'][0]
    status, one = asker.say(4, temperature=0., stop_token_ids=[first])
    return dict(status=status, stopped=one['token_ids'] == [first], finish=one['finish_reason'])

def the_end_token_alone_does_not_stop(asker):
    "With ignore_eos and no stop tokens the row goes on to its length."
    found = [asker.say(16, seed=seed, temperature=2.)[1] for seed in range(6)]
    return dict(lengths=[len(one['token_ids']) for one in found],
        finish=sorted({one['finish_reason'] for one in found}))

def seeds(asker):
    draw = lambda seed: asker.say(6, seed=seed, temperature=2.)[1]['token_ids']
    return dict(same=draw(3) == draw(3), others=len({tuple(draw(seed)) for seed in range(6)}) > 3,
        largest=asker.say(seed=2**63 - 1)[0], beyond=asker.say(seed=2**63)[0])

def log_probabilities_after_the_temperature(asker):
    "At temperature 2 those of the five likeliest are half as far apart as at temperature 1."
    width = lambda t: (lambda top: max(top) - min(top))(
        sorted(asker.say(1, temperature=t)[1]['logprobs']['top_logprobs'][0].values())[-TOP:])
    return dict(ratio=round(width(1.)/width(2.), 2))

def a_temperature_close_to_nothing(asker):
    "What is reported at .002 is what is reported at .01."
    width = lambda t: (lambda top: top[-1] - top[-2])(sorted(
        asker.say(1, temperature=t)[1]['logprobs']['top_logprobs'][0].values()))
    return dict(ratio=round(width(.002)/width(.01), 2))

# ---- what is refused

def a_temperature_above_two(asker): return refused(asker.say(temperature=2.5))
def an_unknown_model(asker): return refused(asker.say(model='nobody'))
def an_id_that_the_model_has_not(asker): return refused(asker.say(prompt=[asker.size + 7]))
def a_negative_id(asker): return dict(status=asker.say(prompt=[-1])[0])
def an_empty_prompt(asker): return dict(status=asker.say(prompt=[])[0])
def a_prompt_as_long_as_the_model(asker): return dict(status=asker.say(prompt=[5]*MAX_LEN)[0])
def a_row_beyond_the_length(asker): return refused(asker.say(8, prompt=[5]*(MAX_LEN - 3)))
def too_many_log_probabilities(asker): return refused(asker.say(top=LOGPROBS + 1))

# ---- adapters

def an_adapter_comes_and_goes(asker):
    loaded = asker.load('one', asker.lora('one'))
    cards = asker.ask('/v1/models')[1]['data']
    listed = {card['id']: card.get('parent') for card in cards}
    spoke = asker.say(model='one')[0]
    return dict(loaded=loaded, parent=listed['one'], of_the_base=listed[NAME], length=cards[0]['max_model_len'],
        spoke=spoke, unloaded=asker.unload('one'), then=asker.say(model='one')[0])

def it_changes_what_is_said(asker):
    likely = lambda model: asker.say(1, model=model, temperature=0.)[1]['logprobs']['token_logprobs'][0]
    asker.load('change', asker.lora('change', scale=.5))
    found = dict(other=abs(likely('change') - likely(NAME)) > .01)
    return found | dict(unloaded=asker.unload('change')['status'])

def the_same_name_again(asker):
    path = asker.lora('twice')
    found = dict(first=asker.load('twice', path)['status'], again=asker.load('twice', path),
        in_place=asker.load('twice', path, load_inplace=True))
    asker.unload('twice')
    return found

def an_adapter_that_is_not_there(asker):
    return dict(unload=asker.unload('nobody'), load=asker.load('lost', asker.folder/'lost'))
def the_name_of_the_base(asker): return asker.load(NAME, asker.lora('base-name'))
def a_rank_above_the_limit(asker): return asker.load('wide', asker.lora('wide', r=RANK*2))
def dora(asker): return asker.load('dora', asker.lora('dora', use_dora=True))
def a_bias(asker): return asker.load('bias', asker.lora('bias', bias='all'))

def an_adapter_without_room_is_read_again(asker):
    names = [f'many-{i}' for i in range(CACHED + 2)]
    first = lambda: asker.say(1, model=names[0], temperature=0.)[1]['logprobs']['token_logprobs'][0]
    loaded = [asker.load(names[0], asker.lora(names[0], seed=0))['status']]
    before = first()
    loaded += [asker.load(name, asker.lora(name, seed=i + 1))['status'] for i, name in enumerate(names[1:])]
    again = first()
    return dict(loaded=loaded, same=abs(before - again) < 1e-3,
        unloaded=[asker.unload(name)['status'] for name in names])

# ---- what kills it: each of these wants a server of its own

def end_of(asker, name):
    """How a question to that adapter is answered, what /health says then (-1: nobody is there), and how the next
    question is answered."""
    status = asker.say(model=name)[0]
    for _ in range(40):
        health = asker.ask('/health')[0]
        if health != 200: break
        time.sleep(.25)
    return dict(status=status, health=health, next=asker.say()[0])

def evicted_and_its_folder_gone(asker):
    path = asker.lora('gone')
    asker.load('gone', path)
    for i in range(CACHED + 1): asker.load(f'push-{i}', asker.lora(f'push-{i}', seed=i))
    shutil.rmtree(path)
    return end_of(asker, 'gone')

def loaded_in_place_and_its_folder_gone(asker):
    "load_inplace stays with the name: the folder is read at every request."
    path = asker.lora('place')
    asker.load('place', path, load_inplace=True)
    shutil.rmtree(path)
    return end_of(asker, 'place')

CASES = [what_an_answer_holds, the_stop_token_is_part_of_the_answer, the_end_token_alone_does_not_stop, seeds,
    log_probabilities_after_the_temperature, a_temperature_close_to_nothing,
    a_temperature_above_two, an_unknown_model, an_id_that_the_model_has_not, a_negative_id, an_empty_prompt,
    a_prompt_as_long_as_the_model, a_row_beyond_the_length, too_many_log_probabilities,
    an_adapter_comes_and_goes, it_changes_what_is_said, the_same_name_again, an_adapter_that_is_not_there,
    the_name_of_the_base, a_rank_above_the_limit, dora, a_bias,
    an_adapter_without_room_is_read_again]
DEADLY = [evicted_and_its_folder_gone, loaded_in_place_and_its_folder_gone]
