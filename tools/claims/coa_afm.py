"""Chain-of-Agents: a team's solved games, told as one context, are imitated; then that one context is reinforced.

The team is two scripts that slip now and then, a planner and an executor who forgets every errand: who teaches need not
be who learns. What a student begins with is as many supervised updates in every arm."""
from claims import Claim

NOISE, GAMES, HOPS = .2, 2000, dict(hops=2, distractors=10)
UPDATES, EPISODES, LR = 400, 32, 8e-3
SIZES = dict(steps=40, groups=8, group_size=8, lr=5e-4, max_tokens=24, max_turns=8, test_tasks=0)
TESTS = 200

def worlds() -> tuple:
    "The team's, and the one context's."
    from agentlab.env import HopSearch
    from agentlab.rollout.delegate import Delegate, pages_alone, search_script
    from agentlab.rollout.retold import OneContext
    team = Delegate(HopSearch(**HOPS), sees=pages_alone, finishes=('answer',), script=search_script)
    return team, OneContext(HopSearch(**HOPS))

def scripted(env, generator): return env.expert(NOISE, generator)

def games(policy, team, tasks: list, seed: int) -> list:
    "A dictionary of both seats for each game of the team."
    from agentlab.rollout import play_players
    found = play_players(policy, team, range(len(tasks)), tasks=tasks, players=dict.fromkeys(team.seats, scripted),
        keep=True, max_turns=24, seed=seed)
    return [{e.seat: e for e in found[i:i + 2]} for i in range(0, len(found), 2)]

def shown(policy, seed: int, team: bool) -> list:
    """Solved games without a detour (the filter for quality is ours), to be imitated: of the team as one context, or of
    one agent who slips as the team does."""
    from agentlab.rollout import play_players
    from agentlab.rollout.retold import one_context
    world, alone = worlds()
    tasks = alone.tasks('demo', GAMES)
    if team:
        found = [one_context(g, policy.chat) for g in games(policy, world, tasks, seed) if g['planner'].success]
        return [e for e in found if len(e.turns) <= HOPS['hops'] + 1]
    found = play_players(policy, alone, range(GAMES), tasks=tasks, players={alone.seats[0]: scripted}, keep=True,
        max_turns=8, seed=seed)
    return [e for e in found if e.success and len(e.turns) <= HOPS['hops'] + 1]

def start(seed: int, team: bool):
    "A policy after UPDATES of imitation."
    from agentlab.policy import taught, tiny_policy
    policy = tiny_policy(worlds()[1], warm=False, max_context=256, seed=seed, progress=False)
    return taught(policy, shown(policy, seed, team), UPDATES, EPISODES, LR, warmup=50, seed=seed)

def row(arm: str, seed: int) -> dict:
    from _attempts import one_thread
    from _runs import learned
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    from agentlab.train import recipes
    with one_thread():
        team, world = worlds()
        tasks = world.tasks('test', TESTS)
        policy = start(seed, arm != 'rl_alone')
        if arm == 'team': found = [e for g in games(policy, team, tasks, seed) for e in g.values()]
        else:
            if arm != 'distilled': learned(policy, world, recipes.grpo(**SIZES, seed=seed))
            found = play(policy, world, range(TESTS), tasks=tasks, max_tokens=24, max_turns=8, seed=10**6 + seed)
        batch, won = Batch.from_episodes(found), sum(e.success and e.seat != 'executor' for e in found)/TESTS
        read, written = len(batch.tokens.id)/TESTS, len(batch.actions)/TESTS
        return dict(per_100=round(100*won/read, 5), success=round(won, 4), tokens=round(read, 2),
            written=round(written, 2))

CLAIM = Claim(
    key='coa-afm', says='One context that imitates a team and is then reinforced solves more per token than the team.',
    row=row, arms=('distilled_rl', 'team', 'distilled', 'rl_alone'), control='team', measure='per_100', margin=.05,
    budget='400 updates of imitation on solved games without a detour, of one team or one agent; 40 updates of 64 '
    'games where reinforced',
    world='HopSearch of two hops, 13 people; 200 held-out questions; solved per 100 tokens read or written',
    settings=dict(noise=NOISE, games=GAMES, updates=UPDATES, episodes=EPISODES, lr=LR, sizes=SIZES, tests=TESTS))
