"""What the processes of test_ranks.py do. A launcher starts this file in each of them: python tests/ranks_work.py main
FOLDER STORY ...

A story is a recipe, an environment and what goes wrong; `tell` trains it in however many processes there are, and keeps
the weights after every update.
"""
import json, math, os, signal, sys, time
from functools import partial
from pathlib import Path

import torch

from agentlab.env import Kuhn
from agentlab.objective import clip
from agentlab.policy import tiny_policy
from agentlab.rollout import play_players
from agentlab.rollout.filters import keep_mixed
from agentlab.selfplay import League
from agentlab.train import recipes, train
from agentlab.train.learned import ImplicitPRM
from agentlab.train.ranks import weights_key
from replays import Both
from small import Paying, small_policy

SGD = partial(torch.optim.SGD, momentum=.9)

# ---- what a story needs

def rank(): return int(os.environ.get('RANK', 0))

def one_episode(batch): return batch.select(torch.arange(len(batch), device=batch.episodes.group.device) == 0)

def raw(batch): return batch.spread(batch.episodes.outcome[batch.turns.episode])

def infinite_once(logp, batch, advantage, entropy=None):
    "A loss that is infinite in one row of the second update, which one process computes."
    bad = (batch.rows.episode[batch.tokens.row[batch.actions]] == 1) & (batch.episodes.step[0] == 1)
    return clip(logp, batch, advantage)*torch.where(bad, math.inf, 1.)

def of_the_whole(logp, batch, advantage, entropy=None):
    return clip(logp, batch, advantage)*batch.action('share')
of_the_whole.plan = lambda logp, batch, advantage, entropy=None: dict(share=logp.argsort().argsort().float()/len(logp))

def judged(batch):
    "A judge who never says the same twice: its answers are the time, and the number of the process."
    (FOLDER[0]/f'asked-{rank()}').touch()
    return batch.turns.reward + torch.rand(len(batch.turns),
        generator=torch.Generator().manual_seed(time.monotonic_ns() + rank()),
        dtype=batch.turns.reward.dtype)

FOLDER = [Path('.')]

class Outside:
    "A memory that asks somebody outside, whose answer nobody can repeat."
    outside = True
    def __init__(self, policy, seed): self.heard = torch.zeros(1, dtype=torch.float64)
    def plan(self, step): return dict(max_turns=2 + int(self.heard) % 2)
    def read(self, batch, step): return batch
    def learn(self, row):
        self.heard = torch.tensor([float(time.monotonic_ns() % 10_007)], dtype=torch.float64)
        return dict(entropy_coef=float(self.heard))
    def tensors(self): return dict(heard=self.heard)
    def restore(self, tensors): self.heard = tensors['heard']

def game_policy(): return tiny_policy(Kuhn(), warm=False, progress=False)

league = partial(recipes.dr_grpo, name='league', rollout=play_players,
    memory=partial(League, seats=Kuhn().seats, mirror=.25, every=1, most=2, groups=3), max_tokens=2)

STORIES = dict(
    grpo=partial(recipes.grpo, groups=3, kl_coef=.1, test_tasks=5, recompute_old=True),
    adam=partial(recipes.grpo, groups=3, optimizer=torch.optim.AdamW),
    lone=partial(recipes.gigpo, groups=1, group_size=4),
    ppo=partial(recipes.ppo, groups=3),
    seeupo=partial(recipes.seeupo, groups=3),
    replay=partial(recipes.grpo, groups=3, replay=Both),
    branch=partial(recipes.arpo, groups=3, group_size=4),
    memory=partial(recipes.epo, groups=3),
    league=league,
    few=partial(recipes.grpo, groups=2, group_size=4, curate=one_episode, credit=raw, minibatches=1),
    planned=partial(recipes.grpo, groups=3, objective=of_the_whole, minibatches=2),
    skip=partial(recipes.grpo, groups=3, objective=infinite_once, steps=3, minibatches=1),
    columns=partial(recipes.infopo, groups=3),
    judged=partial(recipes.grpo, groups=3, reward=judged),
    outside=partial(recipes.grpo, groups=3, memory=Outside, steps=3),
    # scaled, float noise is blown up to rewards of 1
    istar=partial(recipes.istar, groups=3, critic=partial(ImplicitPRM, scaled=False)),
    archer=partial(recipes.archer, groups=3),
    success=partial(recipes.success_replay, groups=3, group_size=4),
    spiral=partial(recipes.spiral, groups=3, max_tokens=2),
    dapo=partial(recipes.dapo, groups=5),
    lora=partial(recipes.grpo, groups=3, lora=dict(r=2), kl_coef=.1),
    mixed=partial(recipes.grpo, groups=3, curate=keep_mixed),
    killed=partial(recipes.grpo, groups=3, steps=4),
)
GAMES = dict(league=Kuhn, spiral=Kuhn)

def tell(name, folder, resume=False, on_row=None, **changes):
    """Train a story; weights after every update as FOLDER/NAME/weights-STEP.pt; the row and a key of the weights of
    each process as FOLDER/NAME/held-RANK.json."""
    make, folder, held = STORIES[name], Path(folder)/name, []
    env = GAMES[name]() if name in GAMES else Paying(size=3)
    policy = game_policy() if name in GAMES else small_policy(env)
    recipe = make(**dict(steps=2, group_size=2, max_tokens=3, test_tasks=0, checkpoint_every=1, optimizer=SGD, lr=.05)
        | getattr(make, 'keywords', {}) | changes)
    def keep(row):
        held.append([weights_key(policy.model), {k: v for k, v in row.items() if k != 'seconds'}])
        if rank() == 0:
            torch.save({n: p.detach().clone() for n, p in policy.model.named_parameters()},
                folder/f"weights-{row['step']}.pt")
        if on_row: on_row(row)
    run = train(policy, env, recipe, folder, resume=resume, on_row=keep, progress=False)
    (folder/f'held-{rank()}.json').write_text(json.dumps(held))
    return run

def main(folder, *names):
    FOLDER[0] = Path(folder)
    for name in names: tell(name, folder)

# ---- what goes wrong

def die(at, of): return lambda row: os.kill(os.getpid(), signal.SIGKILL) if (row['step'], rank()) == (at, of) else None

def killed(folder, name, at, of, **changes):
    "A run in which process `of` is killed after update `at`."
    tell(name, folder, on_row=die(at, of), **changes)

def resumed(folder, name, **changes): tell(name, folder, resume=True, **changes)

def other_weights(folder):
    "Every process brings weights of its own."
    env = Paying()
    policy = small_policy(env)
    with torch.no_grad(): next(policy.model.parameters()).view(-1)[0] += rank()
    train(policy, env, recipes.grpo(steps=1, groups=2, group_size=2, test_tasks=0), folder, progress=False)

def again(folder): tell('grpo', folder)

class Burning(Paying):
    "Burns down in the process with this number, in a way that is no fault of the environment."
    def turn(self, action):
        if rank() == 1: raise KeyboardInterrupt('the house burned down')
        return super().turn(action)

def one_fails(folder):
    train(small_policy(Burning()), Burning(), recipes.grpo(steps=1, groups=2, group_size=2, test_tasks=0), folder,
        progress=False)

if __name__ == '__main__': globals()[sys.argv[1]](*sys.argv[2:])
