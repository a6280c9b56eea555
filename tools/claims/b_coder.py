"""B-Coder: values of tokens by the language model's own logits, from stored programs: with the conservative operator
and with the optimal one, begun from the model and from nothing; with the paper's alpha; and plain imitation."""
import copy
from functools import cache

import torch
from _attempts import begun, one_thread
from claims import Claim

WORLD, START = dict(level=1, horizon=1), dict(steps=120, pool=4096, noise=.3)
HUMAN, TASKS, EACH, TEST, BEST = 1024, 128, 8, 150, 8
RUN = dict(steps=(60, 120), lr=(3e-3, 1e-3), size=32)
# the policy is begun from the model; the operator asks the model as it was, not the policy; alpha
ARMS = {'b-coder': (True, True, .1), 'optimal': (True, False, .1), 'scratch': (False, True, .1),
    'neither': (False, False, .1), 'alpha-1': (True, True, 1.), 'imitation': None}

def optimal(frozen, now): return now.argmax(1)

def judged(episodes: list, env, human: bool):
    "Programs of one turn, with what their tests say."
    from agentlab.env.bug_repair import errors, failing, read_put, with_word
    from agentlab.episodes import Batch
    for e in episodes:
        found, put = ('SyntaxError',), e.task and read_put(e.turns[0].text, e.task['bug'])
        if put: found = env.tester(with_word(e.task['bug'], *put))
        passes = not failing(found, env.tester(e.task['program'])) if put else e.success
        place = 0 if passes else 3 if 'SyntaxError' in found else 2 if set(found) & set(errors) else 1
        e.columns = dict(human=float(human), verdict=float(place))
    return Batch.from_episodes(episodes)

@cache
def stored(seed: int):
    "World, model, human programs and those of the model."
    from agentlab.env import BugRepair
    from agentlab.episodes import Batch
    from agentlab.policy.tiny import demonstrate
    from agentlab.rollout import play
    env = BugRepair(**WORLD)
    model = begun(env, seed, **START)
    own = play(model, env, range(TASKS), EACH, env.tasks('train', TASKS), seed=seed, max_tokens=6)
    human = demonstrate(env, model.chat, list(range(HUMAN)), 0.)
    return env, model, Batch.concat([judged(own, env, False), judged(human, env, True)])

def imitated(policy, b, seed: int):
    "As many updates on human programs alone."
    from agentlab.policy.tiny import imitate
    from agentlab.replay.buffer import pick
    draw, human = torch.Generator().manual_seed(seed), (b.episodes.human == 1).nonzero()[:, 0]
    optimizer, n = torch.optim.AdamW(policy.model.parameters(), weight_decay=0.), RUN['steps'][1]
    for k in range(n):
        optimizer.param_groups[0]['lr'] = RUN['lr'][1]*(1 - k/n)
        optimizer.zero_grad()
        imitate(policy, pick(b, human[torch.randint(len(human), (RUN['size'],), generator=draw)]))
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.)
        optimizer.step()

def best_of(b, worth)->float:
    "Success of the candidate of each task that is worth most."
    best = worth.view(-1, BEST).argmax(1)[:, None]
    return round(b.episodes.success.view(-1, BEST).gather(1, best).double().mean().item(), 5)

def tested(policy, env, seed: int, values=None, alpha: float = 1.) -> dict:
    "Held-out bugs: a single program, and the best of eight."
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    b = Batch.from_episodes(play(policy, env, range(TEST), BEST, env.tasks('test', TEST), seed=10**6 + seed,
        max_tokens=6))
    logp, success = b.action('sampler_logp'), b.episodes.success
    likely = logp.new_zeros(len(b)).index_add(0, b.turns.episode[b.action_turn], logp)
    return dict(single=round(success.double().mean().item(), 5), by_likelihood=best_of(b, likely),
        any=round(success.view(-1, BEST).any(1).double().mean().item(), 5),
        **(dict(by_score=best_of(b, values.score(b, alpha))) if values else {}))

def row(arm: str, seed: int) -> dict:
    from agentlab.replay.token_values import b_coder, conservative
    with one_thread():
        env, model, b = stored(seed)
        policy = copy.deepcopy(model)
        if arm == 'imitation':
            imitated(policy, b, seed)
            return dict(success=(found := tested(policy, env, seed))['single'], of_policy=found)
        warm, kept, alpha = ARMS[arm]
        if not warm: policy = begun(env, seed, warm=False)
        values = b_coder(policy, b, seed, initial=model, operator=conservative if kept else optimal, alpha=alpha, **RUN)
        found = {f'of_{name}': tested(who, env, seed, values, alpha)
            for name, who in dict(model=model, policy=policy).items()}
        return dict(success=found['of_policy']['single'], **found)

CLAIM = Claim(
    key='b-coder', says='From the same stored programs, values of tokens that begin as the logits of the model, with a '
    'conservative operator, make a better policy than the same without both.',
    row=row, arms=tuple(ARMS), control='neither', measure='success', margin=.05,
    budget=f'{HUMAN} human programs and {TASKS*EACH} of the model, nothing played; {RUN["steps"][1]} updates of the '
    f'policy on {RUN["size"]} programs',
    world=f'BugRepair, level 1, one turn; {TEST} held-out bugs, {BEST} programs each at temperature 1',
    settings=dict(start=START, run=RUN, human=HUMAN, tasks=TASKS, each=EACH, best=BEST, arms=ARMS))
