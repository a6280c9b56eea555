"""Stop Regressing: the critic of PPO as a classifier (HL-Gauss) against the same head with squared error. Each head has
the learning rate that was best for it on seed 100."""
from functools import partial

from _attempts import compared, share_won
from claims import Claim

START = dict(steps=200, pool=2048, noise=.25)
RUN = dict(steps=24, groups=8, group_size=8, lr=1e-3, max_turns=8, max_tokens=8, test_tasks=0)
WORLD = dict(size=3, closed=0, horizon=8)
HEADS = {'stop-regressing': dict(bins=101, lr=.01), 'regression': dict(bins=1, lr=.01)}


def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.train import Critic, recipes
    env = KeyDoor(**WORLD)
    recipe = recipes.ppo(critic=partial(Critic, **HEADS[arm]), seed=seed, **RUN)
    after, before, rows = compared(env, env, env, recipe, seed, START, 80, samples=2, max_tokens=8, max_turns=8)
    known = [one['value_explained'] for one in rows[1:] if one['value_explained'] is not None]
    return dict(explained=round(sum(known)/len(known), 5), success=share_won(after), before=share_won(before),
                area=round(sum(one['success'] for one in rows)/len(rows), 5))


CLAIM = Claim(
    key='stop-regressing', says='A critic that learns a histogram by cross-entropy knows more of the returns to come '
    'than the same critic with squared error.', row=row, arms=tuple(HEADS), control='regression', measure='explained',
    margin=.03, budget=f'the same start and {RUN["steps"]} updates of 64 games; explained variance of the targets of '
    'games that the critic has not learned from yet, mean over the updates from the second on',
    world='KeyDoor of nine rooms, doors open, 8 turns; PPO with a value by turn',
    settings=dict(start=START, run=RUN, heads=HEADS, world=WORLD))
