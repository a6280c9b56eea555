"What somebody writes who uses the public names with a type checker. tests/test_typing.py reads it and never runs it."
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from agentlab import credit, objective
from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Episode, Table, Turn
from agentlab.policy import Completion, Policy, TorchSampler, tiny_policy
from agentlab.replay import Buffer, Library
from agentlab.replay.buffer import prioritised
from agentlab.rollout import play
from agentlab.train import Critic, Recipe, Run, recipes, train

def tables(episodes: list[Episode]) -> Batch:
    batch: Batch = Batch.from_episodes(episodes)
    first: Batch = batch.select([0])
    both: Batch = Batch.concat([first, batch.with_action(value=torch.zeros(len(batch.actions)))])
    table: Table = both.turns.with_(seen=torch.zeros(len(both.turns)))
    both = both.replace(turns=table).with_turns(seen=table.seen).with_episodes(kept=both.episodes.success)
    return Batch.load(both.to('cpu').save('episodes.parquet'))

def columns(batch: Batch) -> Tensor:
    assert len(batch.turn_lengths()) == len(batch.turns)
    values: Tensor = batch.spread(batch.of_turn('outcome'))
    return values[batch.of_part('action')] + batch.action('weight')

def own_estimator(batch: Batch, scale: float = 1.) -> Tensor:
    return scale*credit.gigpo(batch) + credit.grpo(batch)

def by_hand() -> Batch:
    frame = pd.DataFrame(dict(group=0, episode=[0, 1], t=0, reward=[0., 1.]))
    turns: list[Turn] = [Turn(0, context_ids=[1], ids=[2], logps=[-.1], entropies=[.5])]
    return Batch.concat([Batch.from_turns(frame), Batch.from_episodes([Episode(turns)])])

def played(policy: Policy, env: KeyDoor) -> list[Episode]:
    return play(policy, env, [0, 1], group_size=4)

def said(policy: Policy) -> list[list[int]]:
    sampler = TorchSampler(policy.model, stop={policy.end_id}, max_context=policy.max_context)
    completions: list[Completion] = sampler.sample([[1, 2]], max_tokens=4, temperature=.7, seeds=[0])
    sampler.forget(free=True)
    return [completion.ids for completion in completions]

def likelihood(policy: Policy, batch: Batch) -> Tensor:
    logp, entropy = policy.logprobs(batch, temperature=1.)
    assert len(policy.features(batch)) == len(logp)
    Policy.load(policy.save_pretrained('policy')).text([1, 2])
    return logp + entropy

def past(batch: Batch) -> Batch:
    buffer = Buffer('episodes', episodes=100, stale=4)
    buffer.add(batch, step=0)
    drawn: Batch = buffer.sample(8, prioritised(.6), generator=torch.Generator().manual_seed(0))
    buffer.update(buffer.positions(drawn.episodes.replay_number), torch.ones(len(drawn)))
    buffer.restore(buffer.tensors())
    return buffer.take(buffer.fresh(1))

def a_run(env: KeyDoor) -> Run:
    policy: Policy = tiny_policy(env)
    recipe: Recipe = recipes.gigpo(credit=partial(own_estimator, scale=.5), steps=3)
    critic = Critic(policy, seed=0)
    critic.restore(critic.tensors())
    library = Library()
    assert library.retrieve('a door') == ([], [])
    return train(policy, env, recipe, 'run')

losses = [objective.clip, objective.gspo]
