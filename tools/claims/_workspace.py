"What the claims about workspaces share: long pages, a transcript as a rollout, and what was read."
from random import Random

from agentlab.env.wrappers import Wrapper

FILLER = tuple('ka lo mi ne pu ra si to ve zu'.split())

class Padded(Wrapper):
    "Pages with words behind them that say nothing; the same page, the same words."
    def __init__(self, env, words: int, first: bool = True):
        super().__init__(env)
        self.padding, self.first = words, first  # the first observation too, or pages alone
    def pad(self, step):
        more = Random(step.observation).choices(FILLER, k=self.padding)
        if not step.done: step.observation = ' '.join([step.observation, *more])
        return step
    def reset(self, seed, task=None):
        step = self.env.reset(seed, task)
        return self.pad(step) if self.first else step
    def step(self, action): return self.pad(self.env.step(action))
    def vocabulary(self): return [*self.env.vocabulary(), *FILLER]

def transcript(memory, turn, last: str) -> tuple:
    "Everything: pages and actions in their order."
    return *memory, last, turn.text

def tokens_read(batch) -> int:
    "Tokens of all contexts and actions of what was played: what a server without a cache of prefixes reads and writes."
    return int(batch.turns.workspace.sum()) + len(batch.actions)
