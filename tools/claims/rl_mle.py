"""In the spirit of RL for ML-engineering agents: actors that do not wait bring many quick actions and few slow ones;
each counts by its time, and a failure by how far it came."""
from functools import partial

from _attempts import begun, learned, one_thread, tested

from claims import Claim

START, TURNS = dict(steps=150, pool=2048, noise=.5), dict(max_turns=7, max_tokens=5)
SIZES = dict(steps=12, groups=10, group_size=12, test_tasks=0, lr=1e-3, **TURNS)
ACTORS, FIRST = 3, 6  # of each task; the games, of twelve, that an update does not wait any longer than for

def finished(policy, env, seeds, group_size=1, *arguments, **how):
    "Every actor of a task plays one game after the other; those that are finished first are learned from."
    from agentlab.rollout import play
    clock, done = {}, {}
    for episode in play(policy, env, seeds, group_size, *arguments, **how):
        actor = episode.group, episode.game % ACTORS
        clock[actor] = clock.get(actor, 0) + sum(turn.columns['seconds'] for turn in episode.turns)
        done.setdefault(episode.group, []).append((clock[actor], episode))
    return [one for some in done.values() for _, one in sorted(some, key=lambda pair: pair[0])[:FIRST]]

def timed(batch, policy):
    "How long the game of every turn took: here it is games, not turns, that are finished so often."
    from agentlab.groups import group_sum
    return batch.with_turns(game=group_sum(batch.turns.seconds, batch.turns.episode))

def recipe_of(arm: str, seed: int):
    "Weight of time and marks, each on or off; by_game: the weight is by the time of the whole game."
    from agentlab.credit import by_duration, grpo, instrumented
    from agentlab.train import recipes
    changes = dict(credit=grpo) if arm in ('unweighted', 'neither') else {}
    if arm == 'by_game': changes = dict(credit=by_duration(grpo, 'game'), columns=timed)
    if arm in ('unmarked', 'neither'): changes['reward'] = partial(instrumented, mark=0.)
    return recipes.rl_mle(**SIZES, seed=seed, rollout=finished, **changes)

def row(arm: str, seed: int, start: dict = START) -> dict:
    from agentlab.env import load_env
    world = load_env('mle')
    with one_thread():
        policy = begun(world, seed, **start)
        rows = learned(policy, world, recipe_of(arm, seed))
        b = tested(policy, world, 100, seed, samples=2, **TURNS)
        before = tested(begun(world, seed, **start), world, 100, seed, samples=2, **TURNS)
    slow = [episode for episode in range(len(b)) if b.turns.seconds[b.turns.episode == episode].max() > 5]
    return dict(grade=round(b.episodes.outcome.double().mean().item(), 5), slow=round(len(slow)/len(b), 5),
        before=round(before.episodes.outcome.double().mean().item(), 5),
        learned_from=round(sum(one['episodes'] for one in rows)/len(rows), 5))

CLAIM = Claim(
    key='rl-mle', says='Where actors do not wait for each other, actions that count by their time lead to better '
    'models.', row=row, arms=('rl_mle', 'unweighted', 'unmarked', 'neither', 'by_game'), control='unweighted',
    measure='grade', margin=.05,
    budget=f'12 updates of 60 games: of each of 10 tasks the {FIRST} that its {ACTORS} actors finish first',
    world='Workbench: grade of 100 held-out problems, two games each',
    settings=dict(start=START, recipe=SIZES, actors=ACTORS, first=FIRST))
