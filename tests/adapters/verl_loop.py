"""An environment of agentlab in verl's own agent loop, on a CPU: real verl, a server that says what it is told. Run by
`make test-verl`; no pytest there.

The agent loop is made as verl's worker makes it, its outputs are padded as verl's transfer queue pads them, verl's
`compute_advantage` finds our estimator by name,
and verl's `ppo_loss` our loss. What a GPU would add (vllm or sglang behind the server, the trainer around it) was not
run.
"""
import asyncio
import logging
from types import SimpleNamespace

logging.disable(logging.WARNING)  # verl warns of every model that it has no chat builder of its own for

import hydra
import numpy as np
import torch
from omegaconf import OmegaConf

import verl
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.config import ActorConfig
from verl.workers.rollout.replica import TokenOutput

from agentlab import credit, objective
from agentlab.env import TextEnv
from agentlab.interop.verl import from_verl, handing, padded, ragged_batch, to_verl
from agentlab.policy.core import word_tokenizer

class Count(TextEnv):
    "Pays the number that was said; over after three turns."
    name = 'count'
    def __init__(self, horizon=3): self.horizon = horizon
    def start(self, seed, task=None): return f'say {seed % 3}'
    def turn(self, action): return f'heard {action}', float(action) if action.isdigit() else 0., False, {}
    def facts(self): return dict(state=self.turns)

class Server:
    "Says the given texts in turn, and keeps what it was asked and what it said."
    def __init__(self, tokenizer, says):
        self.tokenizer, self.says, self.asked, self.said = tokenizer, list(says), [], []
    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.asked.append(list(prompt_ids))
        ids = self.tokenizer(self.says.pop(0), add_special_tokens=False)['input_ids'] + [self.tokenizer.eos_token_id]
        self.said.append(ids)
        return TokenOutput(token_ids=ids, log_probs=[-.5]*len(ids),
            extra_fields=dict(min_global_steps=len(self.said), max_global_steps=len(self.said)))

TOKENIZER = word_tokenizer('say heard number 0 1 2 3 4 5 6 7 8 9 please go on'.split())
SYSTEM = [dict(role='system', content='say number')]

def made(environment, server, response_length=40, most=None):
    "As verl's AgentLoopWorker does it."
    config = OmegaConf.create(dict(actor_rollout_ref=dict(rollout=dict(
        prompt_length=64, response_length=response_length, multi_turn=dict(max_assistant_turns=most))), data={}))
    loop = OmegaConf.create(dict(name='count', _target_='agentlab.interop.verl.AgentlabAgentLoop',
        environment=environment))
    loop.pop('name')
    return hydra.utils.instantiate(config=loop, trainer_config=DictConfigWrap(config), server_manager=server,
        tokenizer=TOKENIZER, processor=None, hf_model_type=None,
        dataset_cls=object, data_config=DictConfigWrap(config.data), tools=ToolListWrap([]))

def played(says, seed=1, environment=None, prompt=SYSTEM, **limits):
    "(output, server) of one episode."
    async def run():
        server = Server(TOKENIZER, says)
        loop = made(environment or dict(_target_='__main__.Count'), server, **limits)
        return await loop.run(dict(temperature=1.), raw_prompt=prompt, extra_info=dict(seed=seed), uid='u',
            agent_name='count'), server
    return asyncio.run(run())

def refused(call, *words):
    try: call()
    except Exception as error: assert all(word in f'{type(error).__name__}: {error}' for word in words), error
    else: raise AssertionError(f'nothing was refused: {words}')

def loop_plays():
    output, server = played(['2', '0 1', '3'])
    ids, mask = output.prompt_ids + output.response_ids, torch.tensor(output.response_mask)
    assert TOKENIZER.decode(output.prompt_ids) == '<|system|> say number <|end|> <|user|> say 1 <|end|> <|assistant|>'
    # what was sampled is what is trained on
    assert torch.tensor(output.response_ids)[mask.bool()].tolist() == sum(server.said, [])
    assert all(ids[:len(asked)] == asked for asked in server.asked)  # and what the server saw is never written anew
    assert output.turn_rewards == [2., 0., 3.] and output.reward_score == 5. and output.num_turns == 6
    assert ([x for x, m in zip(output.response_logprobs, output.response_mask) if m] == [-.5]*int(mask.sum())
        and set(np.array(output.response_logprobs)[mask == 0]) == {0.})
    assert (output.extra_fields['states'] == [0, 1, 2] and output.extra_fields['min_global_steps'] == 1
        and output.extra_fields['max_global_steps'] == 3)
    field = output.as_dict()
    assert field['rm_scores'].sum() == 5 and 'turn_rewards' not in field and 'reward_score' not in field
    batch = from_verl(field['rm_scores'][None], field['response_mask'][None], ['u'])
    assert batch.turns.reward.tolist() == [2., 0., 3.]

def loop_stops():
    whole, _ = played(['2', '0', '3'])
    for length in range(1, len(whole.response_ids)):
        output, _ = played(['2', '0', '3'], response_length=length)
        n = len(output.turn_rewards)
        assert (output.response_ids == whole.response_ids[:len(output.response_ids)]
            and len(output.response_ids) <= length and output.turn_rewards == [2., 0., 3.][:n])
        assert output.as_dict()['rm_scores'].sum() == sum([2., 0., 3.][:n])
    assert len(played(['2', '0', '3'], most=2)[0].turn_rewards) == 2
    assert (TOKENIZER.decode(played(['2', '0', '3'], prompt=[dict(role='user', content='please')])[0].prompt_ids)
        == '<|user|> please say 1 <|end|> <|assistant|>')
    refused(lambda: asyncio.run(made(dict(_target_='__main__.Count'), Server(TOKENIZER, []))
        .run({}, raw_prompt=[], extra_info={})), 'ValueError', "extra_info['seed']")
    refused(lambda: made(dict(_target_='agentlab.env.Kuhn'), None), 'seats')
    assert made(dict(_target_='agentlab.env.KeyDoor', size=2), None).environment.size == 2

def trained(outputs, uids, name='agentlab_igpo', **arguments):
    "As verl's trainer goes on: nested fields, padded, advantages by name, the loss by name."
    fields = list_of_dict_to_tensordict([output.as_dict() | dict(uid=uid) for output, uid in zip(outputs, uids)])
    data = DataProto(batch=fields.select('response_mask', 'rm_scores', 'rollout_log_probs').to_padded_tensor())
    data.batch['token_level_rewards'] = data.batch['rm_scores']
    data.non_tensor_batch['uid'] = np.array(uids, dtype=object)
    config = OmegaConf.create(dict(adv_estimator=name, gamma=1., lam=1., norm_adv_by_std_in_grpo=True,
        agentlab=arguments))
    return compute_advantage(data, adv_estimator=config.adv_estimator, config=config)

def trainer_finds_estimator():
    outputs = [played(says, seed)[0] for seed, says in ((1, '231'), (1, '004'), (2, ['1', '7 7', '2']), (2, '555'))]
    uids = ['a', 'a', 'b', 'b']
    data = trained(outputs, uids, gamma=.5)
    mask = data.batch['response_mask'].bool()
    batch = from_verl(data.batch['rm_scores'], mask, uids)
    assert batch.turns.reward.tolist() == [x for output in outputs for x in output.turn_rewards]
    assert ((data.batch['advantages'][mask] - credit.igpo(batch, gamma=.5)).abs().max() < 1e-6
        and not data.batch['advantages'][~mask].any())
    refused(lambda: trained(outputs, uids, 'agentlab_gigpo'), 'needs state')
    refused(lambda: trained(outputs, uids, 'agentlab_rloo', gama=.5), 'algorithm.agentlab.gama=0.5')
    with handing(state=[output.extra_fields['states'] for output in outputs]):
        found = trained(outputs, uids, 'agentlab_gigpo')
    assert (found.batch['advantages'][mask] - credit.gigpo(batch.with_turns(state=batch.turns.t))).abs().max() < 1e-6
    return data

def trainer_finds_loss(data):
    from verl.workers.utils import losses
    actor = OmegaConf.create(dict(_target_='verl.workers.config.ActorConfig', strategy='fsdp', rollout_n=1,
        ppo_micro_batch_size_per_gpu=1, loss_agg_mode='seq-mean-token-mean',
        policy_loss=dict(_target_='agentlab.interop.verl.AgentlabPolicyLoss', loss_mode='agentlab_dcpo_clip',
        agentlab=dict(cap=1.5))))
    config = omega_conf_to_dataclass(actor)
    assert isinstance(config, ActorConfig) and type(config.policy_loss).__name__ == 'AgentlabPolicyLoss'
    mask = data.batch['response_mask'].bool()
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(mask.shape, generator=g)
    logp = (old + .5*torch.randn(mask.shape, generator=g)).requires_grad_()
    losses.no_padding_2_padding = lambda x, _: x  # the engine's own layout, which needs its model
    found = dict(data.batch.select('response_mask', 'advantages').items()) | dict(old_log_probs=old)
    wrapped = SimpleNamespace(select=lambda *names: SimpleNamespace(
        to_padded_tensor=lambda: {name: found[name] for name in names}))
    numbers = dict(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    class Data(dict):
        def select(self, *names): return wrapped.select(*names)
    loss, metrics = losses.ppo_loss(config, dict(log_probs=logp), Data(numbers))
    batch = from_verl(data.batch['rm_scores'], mask).with_action(old_logp=old[mask])
    wanted = (objective.loss_weights(batch, 'row')*objective.dcpo_clip(
        logp[mask], batch, data.batch['advantages'][mask], low=.2, high=.2, cap=1.5, dual=3.)).sum()
    assert abs(float((loss - wanted).detach())) < 1e-6 and 'actor/ppo_kl' in metrics

def token_baselines_agree():
    """`optimal_token_baseline` against verl's own: its form for tools on any batch, its plain form where nothing is
    read between tokens."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    for seed in range(20):
        tools = ragged_batch(13, seed=seed)
        one_turn = (tools.with_turns(origin=torch.arange(len(tools.turns)))
            .select(torch.bincount(tools.turns.episode) == 1))
        for batch, name, place in ((tools, 'tir_optimal_token_baseline', credit.token_place),
                                   (one_turn, 'tir_optimal_token_baseline', credit.token_place),
                                   (one_turn, 'optimal_token_baseline', credit.text_place)):
            if not len(batch): continue
            held = padded(batch, torch.float64)
            begin = held['response_mask'].argmax(1)
            # a response begins with its first token
            begun = lambda x: torch.stack([torch.cat([row[i:], row.new_zeros(i)]) for row, i in zip(x, begin.tolist())])
            pi = .1 + .8*torch.rand(len(batch.actions), generator=torch.Generator().manual_seed(seed),
                dtype=torch.float64)
            columns = dict(old_logp=pi.log(), sum_pi_squared=pi**2 + (1-pi)**2)
            wide = {key: begun(to_verl(x, held['response_mask'], torch.float64)) for key, x in columns.items()}
            mask = begun(held['response_mask'])
            theirs, _ = ADV_ESTIMATOR_REGISTRY[name](token_level_rewards=begun(held['token_level_rewards']),
                response_mask=mask, index=held['index'],
                old_log_probs=wide['old_logp'],
                sum_pi_squared=wide['sum_pi_squared'])
            assert ((theirs[mask.bool()] - credit.optimal_token_baseline(batch.with_action(**columns), place)).abs()
                .max() < 1e-6), (name, seed)

if __name__ == '__main__':
    token_baselines_agree()
    loop_plays()
    loop_stops()
    trainer_finds_loss(trainer_finds_estimator())
    print(f'verl {verl.__version__}: the agent loop plays, turn rewards arrive, estimator and loss are found by name, '
        f'token baselines agree')
