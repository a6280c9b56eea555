"""SpaceTools' two phases (double interactive reinforcement): a specialist learns one tool by reinforcement; its games
and traces of all tools are imitated; then all tools are reinforced. Every arm plays as many games."""
from _attempts import begun, one_thread, share_won, tested
from _practice import shown, taught
from _runs import learned
from claims import Claim

START, RUN = dict(steps=100, pool=1024, noise=.5), dict(groups=8, group_size=8, lr=1e-3, test_tasks=0, max_tokens=16)
FIRST, UPDATES, SHOWN, STEPS, TASKS = 10, 20, 100, 30, 200
ARMS = 'spacetools', 'rl', 'sft', 'no specialist', 'no traces'
USED = dict(zip(ARMS, ((1, 1), (0, 0), (1, 1), (0, 1), (1, 0))))  # specialist, traces

def only(tool: str):
    "The errands that one tool answers."
    from agentlab.env import Errands
    from agentlab.env.errands import draw_errand, tool_for

    def drawn(generator, split):
        while True:
            task = draw_errand(generator, split)
            if tool_for[task['kind']] == tool: return task
    world = Errands()
    world.draw = drawn
    return world

def specialist(policy, seed: int) -> list:
    "Games that a policy wins, after it was trained on the errands of the database alone."
    from agentlab.rollout import play
    world = only('sqlite')
    learned(policy, world, run(FIRST, seed))
    games = play(policy, world, range(2*SHOWN), 1, world.tasks('demo', 2*SHOWN, seed), max_turns=2, max_tokens=16,
        seed=seed)
    return [game for game in games if game.success][:SHOWN]

def run(steps: int, seed: int):
    from agentlab.train import recipes
    return recipes.grpo(**RUN, steps=steps, seed=seed, max_turns=2)

def share(policy, world, seed: int) -> float:
    return share_won(tested(policy, world, TASKS, seed, samples=1, max_turns=2, max_tokens=16))

def row(arm: str, seed: int) -> dict:
    from agentlab.env import Errands
    world, (first, all_tools) = Errands(), USED[arm]
    with one_thread():
        policy = begun(world, seed, **START)
        games = specialist(begun(world, seed, **START), seed) if first else []
        if all_tools: games = games + shown(Errands(), policy, SHOWN, seed)
        before = share(policy, world, seed)
        imitated = share(taught(policy, games, STEPS, seed) if games else policy, world, seed)
        updates = 0 if arm == 'sft' else UPDATES + FIRST*(not first)
        if updates: learned(policy, world, run(updates, seed))
        return dict(success=share(policy, world, seed), imitated=imitated, before=before, shown=len(games))

CLAIM = Claim(
    'spacetools', 'A specialist of one tool and traces of all tools, imitated before reinforcement, lead further than '
    'reinforcement with all tools alone.', row, arms=ARMS, control='rl', measure='success', margin=.03,
    budget=f'the same start and {(FIRST + UPDATES)*64:,} games in all, with the specialist\'s (sft: its alone)',
    world='Errands, three tools', settings=dict(start=START, run=RUN, first=FIRST, updates=UPDATES, shown=SHOWN,
    steps=STEPS, tasks=TASKS))
