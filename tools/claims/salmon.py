"SALMON: the same reward model, other principles, another behaviour."
from functools import partial

from _attempts import begun, learned, one_thread, tested

from claims import Claim

START, TURNS = dict(steps=150, pool=2048, noise=.3), dict(max_turns=12, max_tokens=4)
SIZES = dict(steps=50, groups=12, group_size=4, test_tasks=0, lr=1e-3, **TURNS)
WANTED = dict(short=(1., 1., 0.), thorough=(1., -1., 0.))

def reward_model(policy, world, seed: int, shuffled: bool):
    "Of pairs of 160 games before the training; shuffled: each label was given under other principles than it names."
    import torch
    from agentlab.episodes import Batch
    from agentlab.reward.principles import agreed, asked_in_pairs, examples, fitted
    from agentlab.rollout import play
    b = Batch.from_episodes(play(policy, world, range(40), 4, seed=seed, **TURNS))
    difference, *answers = asked_in_pairs(b, seed=seed)
    named, side = examples(agreed(*answers), seed)
    generator = torch.Generator().manual_seed(seed)
    return fitted(difference, named[torch.randperm(len(named), generator=generator)] if shuffled else named, side)

def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.reward.principles import principled
    from agentlab.train import recipes
    world, found = KeyDoor(2, closed=0), {}
    with one_thread():
        model = reward_model(begun(world, seed, **START), world, seed, arm == 'shuffled')
        for name, wanted in WANTED.items():
            policy = begun(world, seed, **START)
            learned(policy, world, recipes.salmon(**SIZES, seed=seed,
                reward=partial(principled, wanted=wanted, model=model)))
            b = tested(policy, world, 6, seed, samples=30, **TURNS)
            won = b.episodes.success.double().mean().item()
            found |= {name: round(len(b.turns)/len(b), 4), f'won_{name}': round(won, 4)}
    return found | dict(moved=round(found['thorough'] - found['short'], 4))

CLAIM = Claim(
    key='salmon', says='One reward model, told other principles, makes another policy: told the opposite of *short*, '
    'it plays longer games.', row=row, arms=('principles', 'shuffled'), control='shuffled', measure='moved',
    margin=1., budget='one reward model and two trainings of 50 updates in both arms',
    world='KeyDoor of 2 x 2 rooms, all doors open; turns of held-out games, told the opposite of short minus told '
    'short', settings=dict(start=START, recipe=SIZES, wanted=WANTED))
