"Memories of past episodes, for runs that learn from them."
import torch

from agentlab.episodes import Batch, derive
from agentlab.replay import Buffer, Replay, alike, uniform

LOW, HIGH = .2, .28

class Joined(Replay):
    "Every group of a step gets one episode of an earlier step."
    def __init__(self, policy, seed): self.buffer, self.seed = Buffer(episodes=64), seed
    def join(self, batch, step):
        groups, past = batch.episodes.group.unique(), None
        if len(self.buffer):
            past = alike(self.buffer.sample(len(groups), how=uniform, generator=torch.Generator()
                .manual_seed(derive(self.seed, step)), step=step), batch)
        self.buffer.add(batch, step)
        return batch if past is None else Batch.concat([batch, past.with_episodes(group=groups)])

class Afterwards(Replay):
    "What was learned from in the last step is learned from once more, with the advantages it had."
    def __init__(self, policy, seed): self.last = None
    def updates(self, batch, advantage, step):
        if self.last is None: return
        batch, advantage = self.last
        yield batch.with_action(past=torch.ones_like(advantage)), advantage, dict(objective_args=dict(
            low=LOW, high=HIGH), minibatches=1)
    def keep(self, batch, advantage, step):
        self.last = batch, advantage
        return dict(stored=len(batch))

class Nothing(Replay):
    "The base class: harmless."
    def __init__(self, policy, seed): pass

class Idle(Joined):
    "Stores, and gives nothing back."
    def join(self, batch, step):
        self.buffer.add(batch, step)
        return batch

class Both(Joined, Afterwards):
    "Past episodes join a step, and its batch is learned from once more in the next one."
    def __init__(self, policy, seed):
        Joined.__init__(self, policy, seed)
        self.last = None
    def tensors(self): return {}
    def restore(self, tensors): raise AssertionError('this story is not resumed')
