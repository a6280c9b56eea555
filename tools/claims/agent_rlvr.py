"Agent-RLVR: learn unaided what was done with a teacher's help, where without help next to nothing is won."
from functools import partial

from _attempts import compared, share_won, turns_trained
from claims import Claim

START, STEPS, GROUPS, LR, MINIBATCHES = dict(steps=300, pool=4096), 60, 64, 1e-3, 4
BETA = 1.  # of DPO: with .1 it pushes a failure down until its margin is tens of nats, and little else moves
ARMS = ('agent-rlvr', 'grpo', 'success_replay', 'imitation', 'unstripped')

def whole_path(k, one)->str:
    "The strongest guidance: all that the expert would do."
    (twin := one.env.clone()).reset(*one.begun)
    said, done = [], False
    while not done:
        said.append(twin.expert())
        done = twin.step(said[-1]).done
    return f'{" . ".join(said)} .'

def world():
    from agentlab.env import HopSearch
    return HopSearch(hops=1, distractors=10, horizon=2)

def taught(env):
    "Two attempts, the second with the expert's way; its demonstrator acts at random first, and then as it is told."
    from agentlab.rollout.again import Again
    class Taught(Again):
        def demonstrator(self, noise=0., generator=None): return self.env.expert(0. if self.past else 1., generator)
    return Taught(env, between=whole_path)

def recipe_of(arm: str, **how):
    "Every control plays twice as many episodes, as a guided one has up to two attempts."
    from agentlab.replay.splice import imitation
    from agentlab.rollout.again import guided
    from agentlab.train import recipes
    if arm in ('grpo', 'success_replay'): return recipes.known[arm](groups=GROUPS//4, group_size=8, **how)
    play = partial(guided, around=taught, strip=arm != 'unstripped')
    if arm == 'imitation':
        return recipes.agent_rlvr(rollout=play, groups=GROUPS, group_size=1, objective=imitation, credit=won, **how)
    return recipes.agent_rlvr(rollout=play, groups=GROUPS, group_size=1, credit_args=dict(beta=BETA), **how)

def won(b): return b.spread((b.of_turn('outcome') > 0).double())

def row(arm: str, seed: int)->dict:
    recipe = recipe_of(arm, steps=STEPS, lr=LR, minibatches=MINIBATCHES, seed=seed, max_turns=8, test_tasks=0)
    b, first, rows = compared(taught(world()), world(), world(), recipe, seed, START, 100, samples=2, max_tokens=8)
    return dict(unguided=share_won(b),
        before=share_won(first),
        dead_groups=round(sum(one['dead_groups'] for one in rows[:5])/5, 4),
        turns_trained=turns_trained(rows))

CLAIM = Claim(
    key='agent-rlvr', says='Pairs of a failure and a guided success, learned without the guidance, raise unguided '
    'success where groups of unguided episodes are nearly all dead.',
    row=row, arms=ARMS, control='grpo', measure='unguided', margin=.05,
    budget=f'{STEPS} updates; {GROUPS} episodes of up to two attempts, or {2*GROUPS} of one',
    world='HopSearch of one hop, 12 people, 2 turns; a start that acts at random, but follows what it is told',
    settings=dict(start=START, steps=STEPS, groups=GROUPS, lr=LR, minibatches=MINIBATCHES, beta=BETA))
