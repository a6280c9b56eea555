"""verl's form without verl: turns from any mask, micro-batches, arguments, the agent loop with a made-up verl, and
what `verl-check` says. With verl: tests/adapters/verl_loop.py."""
import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab import objective
from agentlab.env import Kuhn, TextEnv
from agentlab.interop import verl as inside
from agentlab.interop.verl import (AGGREGATIONS, at_turn_ends, check_loss, estimators, from_verl, handing,
    losses, to_verl)

quick = settings(max_examples=60, deadline=None)
masks = st.integers(0, 12).flatmap(lambda width: st.lists(
    st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=1,
    max_size=5)).map(lambda rows: torch.tensor(rows).reshape(len(rows), -1))

def walked(mask, rewards):
    "Turns by walking over the columns: (row, positions, reward) of each, and what rows without a turn earned."
    found = []
    for i, (row, paid) in enumerate(zip(mask.tolist(), rewards.tolist())):
        turns, early = [], 0.
        for place, (said, reward) in enumerate(zip(row, paid)):
            if said and (place == 0 or not row[place - 1]): turns.append([i, [], 0.])
            if said: turns[-1][1].append(place)
            if turns: turns[-1][2] += reward
            else: early += reward
        if turns: turns[0][2] += early
        found += turns
    return found

@quick
@given(masks, st.integers(0, 99))
def test_turns_are_those_of_a_walk(mask, seed):
    rewards = torch.randint(-4, 5, mask.shape, generator=torch.Generator().manual_seed(seed)).double()/4
    b, turns = from_verl(rewards, mask, ['a']*len(mask)), walked(mask, rewards)
    assert (b.turns.episode.tolist() == [row for row, _, _ in turns]
        and b.turns.reward.tolist() == [reward for _, _, reward in turns])
    assert (b.action_turn.tolist() == [k for k, (_, places, _) in enumerate(turns) for _ in places]
        and b.tokens.position.tolist() == [p for _, places, _ in turns for p in places])
    assert b.episodes.outcome.tolist() == rewards.sum(1).tolist() and len(b.episodes) == len(mask)
    back = to_verl(torch.arange(1., len(b.actions) + 1), mask)
    assert torch.equal(back[mask.bool()], torch.arange(1., len(b.actions) + 1)) and not back[mask == 0].any()
    for i, row in enumerate(mask):
        mine = [reward for owner, _, reward in turns if owner == i]
        again = from_verl(at_turn_ends(mine, row)[None], row[None])
        assert again.turns.reward.tolist() == mine

@quick
@given(masks, st.permutations(range(5)))
def test_rows_may_come_in_any_order(mask, order):
    order = [i for i in order if i < len(mask)]
    rewards, index = (torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)).double(),
        np.array([f'g{i//2}' for i in range(len(mask))], dtype=object))
    one = estimators['agentlab_grpo'](rewards, mask, None, index)[0]
    assert torch.allclose(estimators['agentlab_grpo'](rewards[order], mask[order], None, index[order])[0], one[order])

LOSSES = [f'agentlab_{name}' for name in 'clip gspo gspo_turn gmpo sapo cispo dppo_tv dppo_kl dcpo_clip aepo_clip '
    'reinforce dro clip_cov kl_cov'.split()]

def test_no_loss_is_left_out(): assert list(losses) == LOSSES

@pytest.mark.parametrize('name', LOSSES)
def test_a_loss_leaves_masked_tokens_alone(name):
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 9, generator=g) < .6
    mask[2] = False  # a row without a token in the loss
    old, new, advantage = (torch.randn(mask.shape, generator=g) for _ in range(3))
    for mode in AGGREGATIONS:
        results = []
        for nonsense in (0., float('nan'), float('inf')):
            leaf = new.masked_fill(~mask, nonsense).requires_grad_()
            loss, metrics = losses[name](old.masked_fill(~mask, nonsense), leaf, advantage.masked_fill(~mask, nonsense),
                mask, mode)
            loss.backward()
            assert (not leaf.grad[~mask].any() and leaf.grad.isfinite().all()
                and all(isinstance(x, float) for x in metrics.values()))
            results.append((loss.item(), leaf.grad))
        assert all(result[0] == results[0][0] and torch.equal(result[1], results[0][1]) for result in results)

def test_arguments_come_from_one_place():
    assert check_loss(objective.gspo, dict(clip_ratio_low=3e-4, clip_ratio_high=4e-4)) == dict(low=3e-4, high=4e-4)
    assert check_loss(objective.clip, dict(clip_ratio_low=.1,
        policy_loss=dict(agentlab=dict(dual=None)))) == dict(low=.1, dual=None)
    with pytest.raises(ValueError, match='policy_loss.agentlab.hgh=0.3: dcpo_clip has no such argument; it takes low, '
                       'high, cap, dual'):
        check_loss(objective.dcpo_clip, dict(policy_loss=dict(agentlab=dict(hgh=.3))))
    with pytest.raises(ValueError, match=r'low=1\.5'):
        losses['agentlab_clip'](*[torch.zeros(1, 2)]*3, torch.ones(1, 2), config=dict(clip_ratio_low=1.5))

def test_columns_end_with_their_block():
    mask, rewards = torch.tensor([[1, 0, 1], [1, 0, 1]]), torch.eye(3)[:2]
    with pytest.raises(RuntimeError, match='stop'):
        with handing(seat=['left', 'left']):
            first = estimators['agentlab_mars'](rewards, mask, None, ['a', 'a'])[0]
            raise RuntimeError('stop')
    assert first.shape == mask.shape
    with pytest.raises(ValueError, match='agentlab_mars needs seat'):
        estimators['agentlab_mars'](rewards, mask, None, ['a', 'a'])

# a made-up verl: one token per word, and marks around what the environment says
class Words:
    eos_token_id = 0
    def __init__(self): self.known = ['<end>']
    def encode(self, text):
        return [self.known.index(w) if w in self.known else self.known.append(w) or len(self.known) - 1
            for w in text.split()]
    def decode(self, ids, skip_special_tokens=True):
        return ' '.join(self.known[i] for i in ids if i or not skip_special_tokens)

class Loop:
    "What `run` needs of verl's AgentLoopBase."
    def __init__(self, environment, says, response_length=30, most=None):
        self.environment, self.tokenizer, self.says, self.asked, self.server_manager = environment, Words(), list(
            says), [], self
        self.rollout_config, self.loop = SimpleNamespace(response_length=response_length, multi_turn=dict(
            max_assistant_turns=most)), SimpleNamespace(run_in_executor=self.inside)
    async def inside(self, _, call, *arguments): return call(*arguments)
    async def generate(self, request_id, prompt_ids, sampling_params):
        self.asked.append(list(prompt_ids))
        ids = self.tokenizer.encode(self.says.pop(0))
        return SimpleNamespace(token_ids=ids + [0]*bool(ids), log_probs=[-1.]*(len(ids) + 1) if ids else None,
            extra_fields=dict(min_global_steps=len(self.asked), max_global_steps=len(self.asked)))
    def written(self, messages):
        return self.tokenizer.encode(' '.join(f"<{m['role']}> {m['content']}" for m in messages) + ' <assistant>')
    async def ct_build_initial_tokens(self, messages): return self.written(messages)
    async def ct_merge_context_msg(self, before, messages, ids, mask, logps):
        new = self.written(messages[len(before):])
        return SimpleNamespace(token_ids=ids + new), mask + [0]*len(new), logps and logps + [0.]*len(new)
    async def ct_merge_assistant_token(self, ids, new, mask, logps, assistant_logprobs=None):
        return (SimpleNamespace(token_ids=ids + new), mask + [1]*len(new), None if assistant_logprobs is None
            else (logps or []) + assistant_logprobs)

class Pays(TextEnv):
    "Pays each number that is said; a word more with every turn."
    name, horizon, closed = 'pays', 3, 0
    def start(self, seed, task=None): return f'seed {seed}'
    def turn(self, action):
        if action == 'burn': raise OSError('the house burns')
        return 'more '*self.turns, float(action) if action.isdigit() else 0., False, dict(success=action == '9')
    def facts(self): return dict(state=self.turns)
    def close(self): self.closed += 1

@pytest.fixture
def play(monkeypatch):
    monkeypatch.setattr(inside, '_output_class', lambda: lambda **fields: SimpleNamespace(**fields))
    def played(*says, row=None, environment=None, **limits):
        loop = Loop(environment or Pays(), says, **limits)
        return asyncio.run(inside._run(loop, {}, **(row or dict(raw_prompt=[dict(role='system', content='be brief')],
            extra_info=dict(seed=7))))), loop
    return played

def test_an_episode_is_token_in_token_out(play):
    output, loop = play('1 and', '2', '9')
    ids = output.prompt_ids + output.response_ids
    assert (loop.tokenizer.decode(ids, False) == '<system> be brief <user> seed 7 <assistant> 1 and <end> <user> more '
        '<assistant> 2 <end> <user> more more <assistant> 9 <end>')
    assert all(ids[:len(asked)] == asked for asked in loop.asked) and len(output.prompt_ids) == 7
    assert (output.turn_rewards == [0., 2., 9.] and output.extra_fields['states'] == [0, 1, 2] and output.num_turns == 6
        and output.extra_fields['reward_extra_info'] == dict(success=1.))
    assert output.extra_fields['min_global_steps'] == 1 and output.extra_fields['max_global_steps'] == 3
    assert ([x for x, m in zip(output.response_logprobs, output.response_mask) if m] == [-1.]*7
        and loop.environment.closed == 1)
    b = from_verl(at_turn_ends(output.turn_rewards, output.response_mask)[None], torch.tensor([output.response_mask]))
    assert b.turns.reward.tolist() == [0., 2., 9.] and b.episodes.outcome.tolist() == [11.]

def test_an_episode_ends_where_it_must(play):
    whole = play('1', '2', '9')[0]
    for length in range(1, len(whole.response_ids) + 2):  # every place at which the response may be full
        output = play('1', '2', '9', response_length=length)[0]
        n = len(output.turn_rewards)
        assert (output.response_ids == whole.response_ids[:len(output.response_ids)]
            and output.turn_rewards == [1., 2., 9.][:n] and len(output.response_ids) <= length)
        assert at_turn_ends(output.turn_rewards, output.response_mask).sum() == sum([1., 2., 9.][:n])
    assert play('1', '2', most=2)[0].turn_rewards == [1., 2.]
    assert play('1', '')[0].turn_rewards == [1.]  # the server gives no token: the turn never was
    _, loop = play('1', '2', '9', row=dict(raw_prompt=[dict(role='user', content='go')], extra_info=dict(seed=1)))
    assert loop.tokenizer.decode(loop.asked[0]) == '<user> go seed 1 <assistant>' # no two messages of the user in a row
    with pytest.raises(ValueError, match=r"extra_info\['seed'\]"): play('1', row=dict(raw_prompt=[], extra_info={}))
    with pytest.raises(RuntimeError, match='pays, seed 7: the episode ended before'): play('')
    env = Pays()
    with pytest.raises(OSError, match='burns'): play('1', 'burn', environment=env)  # verl counts the rollout as failed
    assert env.closed == 1
    with pytest.raises(ValueError, match='has the seats'): inside._loop_init(None, environment=Kuhn())

def point(monkeypatch, *points):
    monkeypatch.setattr(inside.metadata, 'entry_points', lambda group: [p for p in points if group == 'verl.plugins'])

def test_the_check_says_why_nothing_is_registered(monkeypatch, capsys):
    def broken(): raise SyntaxError('a comma too many')
    monkeypatch.setattr(inside, '_need_verl', lambda: None)
    for points, policy, says in ([], 'auto', 'no entry point'), (
        [SimpleNamespace(name='agentlab', load=broken, value='agentlab.interop.verl_plugin')], 'auto',
        'SyntaxError: a comma too many'), \
            ([SimpleNamespace(name='agentlab', load=int)], 'none',
             'leaves agentlab out'), ([SimpleNamespace(name='agentlab', load=int)], 'other', 'leaves agentlab out'):
        point(monkeypatch, *points)
        monkeypatch.setenv('VERL_USE_EXTERNAL_PLUGINS', policy)
        assert inside.verl_check() == 1 and says in capsys.readouterr().out
    monkeypatch.setenv('VERL_USE_EXTERNAL_PLUGINS', 'other, agentlab')
    assert inside.plugin_problem() is None

def test_the_check_ends_with_one_where_something_differs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(inside, '_need_verl', lambda: None)
    monkeypatch.setattr(inside, 'plugin_problem', lambda: None)
    cases = [case for case in inside._wanted(1) if case['name'] == 'agentlab_rloo']
    monkeypatch.setattr(inside, '_wanted', lambda: cases)
    for off in (0., 1e-3):
        worker = dict(early=[], modules=[], seconds=1., version='0.9.1', estimators=list(estimators),
            losses=list(losses), theirs=[None], found=[cases[0]['wanted'] + off])
        monkeypatch.setattr(inside, '_ask_worker', lambda _: (worker, dict(ray=1., worker=1.)))
        assert inside.verl_check() == (off > 0) and ('1.0e-03 from agentlab' in capsys.readouterr().out) == (off > 0)

@pytest.mark.skipif(find_spec('verl') is not None, reason='verl is installed')
def test_without_verl_the_remedy_is_said():
    with pytest.raises(ImportError, match='verl-check needs verl'): inside.verl_check()
    code = ('import agentlab.interop.verl_plugin as p, sys; print(p.names, sorted({"transformers", "trl", "pandas", '
        '"plotly", "ray"} & {*sys.modules}))')
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True,
        env=os.environ).stdout == '() []\n'
    with pytest.raises(ImportError, match='AgentlabAgentLoop needs verl: pip install'): inside.AgentlabAgentLoop
    with pytest.raises(AttributeError, match='no_such'): inside.no_such
