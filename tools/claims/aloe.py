"""In the spirit of ALOE (abstract only): the value of the policy of today, from games of three older ones, by chunks of
turns. Bias and spread are over the samples of a row."""
import torch
from claims import Claim

TODAY, OLDER, GROUPS, SWEEPS, TAU, SAMPLES = .3, (.6, .8, 1.), 17, (10, 30, 100, 300), .1, 5
ARMS = {'chunk-4': 4, 'one-step': 1, 'chunk-2': 2, 'chunk-8': 8, 'monte-carlo': 99}

def games(older: list, seed: int):
    "Games of the older policies, one table."
    from agentlab.bench.truth import simulate
    from agentlab.episodes import Batch, derive
    return Batch.concat([simulate(one, GROUPS, 8, derive('aloe', seed, i))[0] for i, one in enumerate(older)])

def fitted(b, world, chunk: int) -> list:
    "The values (horizon, states) after every number of SWEEPS: Q of a table, slow copy as in ALOE's update."
    from agentlab.replay.utterance_critic import archer_targets
    t, s, a = b.turns.t, b.turns.state, b.turns.action
    shape = world.horizon, *world.policy.shape
    slow, count, found = torch.zeros(shape).double(), torch.zeros(shape).double(), []
    count.index_put_((t, s, a), torch.ones(len(t)).double(), accumulate=True)
    for sweep in range(max(SWEEPS)):
        v = (world.policy*slow).sum(2)[t, s]
        q = torch.zeros(shape).double().index_put((t, s, a), archer_targets(b, v[:, None], gamma=1., chunk=chunk)[:, 0],
            accumulate=True)/count.clamp(min=1)
        slow = slow.lerp(q, TAU)
        if sweep + 1 in SWEEPS: found.append((world.policy*q).sum(2))
    return found

def row(arm: str, seed: int) -> dict:
    from agentlab.bench.truth import house, solve
    world, older = house(TODAY), [house(noise) for noise in OLDER]
    truth, here, seen = solve(world)[1][:-1], torch.eye(len(world.chance)).double()[world.start], []
    for _ in range(world.horizon):
        seen.append(here)
        here = torch.einsum('s,sa,saz->z', here, world.policy, world.chance)
    share = torch.stack(seen)[:, :-1]
    share = share/share.sum()
    fits = [fitted(games(older, 100*seed + i), world, ARMS[arm]) for i in range(SAMPLES)]
    found = {}
    for n, at in enumerate(SWEEPS):
        wrong = torch.stack([one[n] - truth for one in fits])[:, :, :-1]
        size = lambda x: round((share*x).sum().sqrt().item(), 5)
        found |= {f'error_{at}': size(wrong.square().mean(0)), f'bias_{at}': size(wrong.mean(0).square()),
            f'spread_{at}': size(wrong.var(0, correction=0))}
    return dict(closeness=-found['error_30'], **found)

CLAIM = Claim(
    key='aloe', says='After 30 passes over games of older policies, a Q of chunks of four turns is closer to the value '
    'of the policy of today than a Q of single turns.', row=row, arms=tuple(ARMS), control='one-step',
    measure='closeness', margin=.02, budget=f'{len(OLDER)*GROUPS*8} stored games, 30 passes, the slow copy goes {TAU} '
    'of the way after each', world='a house of nine rooms, solved exactly; a number for each turn, state and action',
    settings=dict(today=TODAY, older=OLDER, groups=GROUPS, sweeps=SWEEPS, tau=TAU, samples=SAMPLES, arms=ARMS))
