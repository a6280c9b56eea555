"""A planner and an executor: what each reads, what each is paid, and what every system of the page adds; each mechanism
is switched off and something changes."""
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import HopSearch, KeyDoor, Negotiation
from agentlab.episodes import Batch, Episode, Turn
from agentlab.objective.trust import fit_ratio
from agentlab.policy import tiny_policy
from agentlab.rollout import Delegate, FrozenActor, hops_of_two, play, play_players, warm_seats
from agentlab.rollout import delegate
from agentlab.selfplay import League
from agentlab.selfplay.role_weights import RoleWeights
from agentlab.train import recipes, train
from small import Paying

SMALL = dict(steps=1, groups=3, group_size=4, max_turns=12, test_tasks=0, checkpoint_every=1)

def house(kind, **how):
    "Four rooms for two seats."
    return Delegate(kind(2, 8, 0), **dict(sees=delegate.room_alone, script=delegate.house_script) | how)

@pytest.fixture(scope='module')
def houses():
    "A world of four rooms and a policy that has seen a few games of it; tests copy it."
    world = house(Paying)
    return world, warm_seats(tiny_policy(world, warm=False, progress=False), world, steps=25, episodes=12, noise=.5)

def copied(policy):
    import copy
    return copy.deepcopy(policy)

def trained(tmp_path, recipe, policy, world, **changes):
    "One update; its row."
    return train(copied(policy), world, recipe(**SMALL | changes), tmp_path, progress=False).rows()[0]

def games(policy, world, n=6, rollout=play, **how):
    return rollout(policy, world, list(range(n)), max_tokens=8, max_turns=16, **how)

# ---- the mechanism

def test_delegate_plays_and_updates(houses, tmp_path):
    world, policy = houses
    row = trained(tmp_path, recipes.grpo, policy, world)
    assert row['grad_norm'] > 0 and row['errands'] > 0 and 0 < row['executor_turns'] < 1

def test_delegate_each_errand_is_a_row_without_what_was_before(houses):
    world, policy = houses
    twin = house(Paying, empty=False)
    for env, many in ((world, True), (twin, False)):
        sides = [e for e in games(policy, env) if e.seat == 'executor' and e.turns]
        assert (max(t.window for e in sides for t in e.turns) > 0) == many
    batch = Batch.from_episodes(games(policy, world))
    logp, _ = policy.logprobs(batch)
    assert (logp - batch.action('sampler_logp')).abs().max() < 1e-3  # what is trained is what was read

def test_delegate_weights_for_each_role(houses, tmp_path):
    world, policy = houses
    two = RoleWeights(copied(policy), world.seats)
    before = {role: [p.detach().clone() for p in one.model.parameters() if p.requires_grad]
        for role, one in two.of.items()}
    recipe = recipes.grpo(**SMALL, rollout=play_players, test_rollout=play_players)
    row = train(two, world, recipe, tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0
    for role, one in two.of.items():
        now = [p for p in one.model.parameters() if p.requires_grad]
        assert any((a != b).any() for a, b in zip(before[role], now)), role

def test_delegate_an_inner_fault_ends_its_game_only(houses):
    class Falls(KeyDoor):
        def turn(self, action):
            if action.startswith('take'): raise ValueError('the floor gives way')
            return super().turn(action)
    found = games(houses[1], house(Falls), 12)
    assert any('the floor gives way' in (e.error or '') for e in found)
    with pytest.raises(ValueError, match='give an environment of one'): Delegate(HopSearch(seats=('a', 'b')))

# ---- CoDA

def test_coda_plays_and_updates(tmp_path):
    world = hops_of_two(1)
    policy = tiny_policy(world, warm=False, progress=False)
    warm_seats(policy, world, steps=12, episodes=8)
    row = trained(tmp_path, recipes.coda, policy, world)
    assert row['grad_norm'] > 0 and -3 <= row['reward'] <= 5.5

def test_coda_only_planners_vote(houses):
    "With two errands against one the statistics of all rows are others."
    batch = Batch.from_episodes(games(houses[1], houses[0], 2, group_size=6, rollout=delegate.play_scored,
        score=lambda sides: len(sides['executor'].turns)))
    mine = delegate.peco(batch)
    of = {}
    for value, game in zip(mine.tolist(), batch.episodes.game[batch.turns.episode[batch.action_turn]].tolist()):
        of.setdefault(game, set()).add(round(value, 6))
    assert all(len(values) == 1 for values in of.values())  # one number for all rows of a game
    everybody = grpo(batch, rows='turn')
    assert not torch.allclose(mine, everybody)

def test_coda_every_part_of_the_reward_counts():
    def worth(said, done, **bad):
        sides = {seat: Episode([Turn(i, text=text, invalid=i in bad.get(seat, ())) for i, text in enumerate(texts)],
            seat=seat, answer='Bora Tel')
            for seat, texts in dict(planner=said, executor=done).items()}
        return delegate.coda_score(sides)
    whole = worth(['do x', 'answer Bora Tel'], ['search x', 'done Bora Tel'])
    assert whole == 5.5
    assert worth(['do x', 'answer Mina Lam'], ['search x', 'done Bora Tel']) == whole - 6
    assert worth(['do x', 'answer Bora Tel'], ['search x', 'done Bora Tel'], planner=[0]) == whole - 1
    assert worth(['do x', 'answer Bora Tel'], ['search x', 'done Bora Tel'], executor=[0]) == whole - 1
    assert worth(['do x', 'answer Bora Tel'], ['search x', 'done Mina Lam']) == whole - .5
    assert worth(['answer Bora Tel'], []) == 3.

# ---- HiMAC

@pytest.fixture(scope='module')
def plans():
    "The same house for a planner that speaks once."
    world = delegate.Blueprint(Paying(2, 8, 0), sees=delegate.room_alone, script=delegate.house_script, budget=5)
    return world, warm_seats(tiny_policy(world, warm=False, progress=False), world, steps=25, episodes=12, noise=.5)

def phases(plans, **how):
    return games(plans[1], plans[0], 3, group_size=4, rollout=delegate.play_phases, **how)

def test_himac_plays_and_updates(plans, tmp_path):
    row = trained(tmp_path, recipes.himac, plans[1], plans[0])
    assert row['grad_norm'] > 0 and row['kl_reference'] is not None

def test_himac_phases_alternate(plans):
    "Blueprint tokens move first, action tokens from the policy as it then is; both at once is one update."
    batch = Batch.from_episodes(phases(plans))
    (one, first), (two, second) = delegate.alternate(batch, None)
    planner = delegate.of_seat(batch, 'planner')[batch.turns.episode[batch.action_turn]]
    assert torch.equal(one, planner) and torch.equal(two, ~planner) and first[one].any() and second[two].any()

def test_himac_the_executor_is_frozen_and_greedy_in_phase_a(plans):
    "Two members with one blueprint end alike; a sampled executor would not."
    world, policy = plans
    fixed = dict(planner=lambda env, generator: 'do a1, b2')
    ends = lambda players: {e.outcome for e in games(policy, world, 1, group_size=8, rollout=play_players, keep=True,
        players=fixed | players) if e.seat == 'planner'}
    assert len(ends(dict(executor=delegate.Greedy(policy)))) == 1 < len(ends({}))

def test_himac_phase_b_plays_the_best_blueprint(plans):
    "Another pick, other games; the blueprint is copied and not learned from."
    for pick in (delegate.best, lambda some: min(some, key=lambda e: e.outcome)):
        found = phases(plans, pick=pick)
        for group in {e.group for e in found}:
            of = [e for e in found if e.group == group]
            told = pick([e for e in of if e.seat == 'planner']).turns[-1].text
            goal = told.removeprefix('do ').split(',')[0].strip()
            assert all(e.turns[0].observation.startswith(goal) for e in of if e.seat == 'executor' and e.turns)
    assert [e.seat for e in found] == ['planner', 'executor']*12 and {e.source for e in found} == {'policy'}

def test_himac_done_moves_on_and_so_does_the_budget(plans):
    world = plans[0]
    def turns_to_the_second_goal(action):
        env = world.clone()
        env.reset(0)
        env.step('do a1, b2')
        return next(i for i in range(1, 9) if env.step(action).observation.startswith('b2.'))
    assert (turns_to_the_second_goal('done'), turns_to_the_second_goal('go up')) == (1, world.budget)

def test_himac_a_goal_is_read_alone(plans):
    "The second goal's row holds nothing of the first; without the emptying it does."
    world, policy = plans
    for empty in (True, False):
        env = delegate.Blueprint(Paying(2, 8, 0), sees=delegate.room_alone, script=delegate.house_script, empty=empty)
        say = dict(planner=lambda env, generator: 'do a1, b2', executor=lambda env, generator: 'done')
        planner, executor = play_players(policy, env, [0], players=say, keep=True)
        assert [t.window for t in executor.turns] == [0, int(empty)]

# ---- Hi-Agent

def at_goal(env): return env.env.room == env.errand

def tries(houses, n=3, **how):
    return games(houses[1], houses[0], n, rollout=delegate.foresight, **dict(tries=4, reached=at_goal) | how)

def test_hi_agent_plays_and_updates(houses, tmp_path):
    world, policy = houses
    row = trained(tmp_path, recipes.hi_agent, policy, world, rollout_args=dict(reached=at_goal, tries=3))
    assert row['grad_norm'] > 0 and row['sampler_gap'] < 1e-3  # the contexts are those that were read

def test_hi_agent_compares_errands_of_one_state(houses):
    "The tries of a state share task, context and group; by task they would be one group, with another mean."
    found = tries(houses, 2, group_size=2)
    planners = [e for e in found if e.seat == 'planner']
    of = {}
    for e in planners: of.setdefault(e.group, []).append(e)
    assert all(len(some) == 4 and len({tuple(e.turns[0].context_ids) for e in some}) == 1 for some in of.values())
    assert len(of) > 4 and len({e.turns[0].t for e in planners}) > 1
    batch = Batch.from_episodes(planners)
    tasks = batch.with_episodes(group=batch.episodes.group//2000)
    assert not torch.allclose(grpo(batch), grpo(tasks))

def test_hi_agent_the_score_is_what_the_executor_achieves(houses):
    found = tries(houses)
    for e in found: assert e.outcome == .1*(not e.turns[0].invalid or e.seat == 'executor') + e.success
    none = tries(houses, reached=lambda env: False)
    assert {e.outcome for e in none} <= {0., .1} and any(e.success for e in found)

def test_hi_agent_the_executor_learns_from_its_own_clones(houses):
    found = tries(houses)
    worth = {e.game: e.outcome for e in found if e.seat == 'planner'}
    executors = [e for e in found if e.seat == 'executor']
    assert executors and all(worth[e.game] == e.outcome and e.turns[0].window >= 0 for e in executors)
    assert all(e.turns[0].observation.split('.')[0] for e in executors)

def test_hi_agent_the_original_is_not_touched_by_its_clones(houses):
    "One try a state is an ordinary game: as many planner turns as states."
    found = [e for e in tries(houses, 4, tries=1) if e.seat == 'planner']
    assert len({e.group for e in found}) == len(found) > 4

# ---- EPO, explicit

def actor(env, generator):
    "Follows the word of the strategist four times out of five."
    legal = env.env.legal()
    named = [action for action in legal if env.errand and env.errand.split()[0] in action]
    return named[0] if named and generator.random() < .8 else generator.choice(legal)

@pytest.fixture(scope='module')
def advised():
    "A strategist with a word before every turn of the actor."
    def script(env, noise, generator):
        wrong = generator is not None and generator.random() < noise
        return 'do ' + (generator.choice(['north', 'south', 'east', 'west']) if wrong else env.env.expert().split()[1])
    world = Delegate(Paying(2, 8, 0), budget=1, report=delegate.last_seen, script=script)
    policy = tiny_policy(world, warm=False, progress=False)
    return world, warm_seats(policy, world, steps=15, episodes=12, noise=.5, players=dict(executor=actor))

def test_epo_explicit_plays_and_updates(advised, tmp_path):
    row = trained(tmp_path, recipes.epo_explicit, advised[1], advised[0],
        rollout_args=dict(players=dict(executor=actor)))
    assert row['grad_norm'] > 0 and row['value_loss'] is not None

def test_epo_explicit_speaks_before_every_turn_of_a_frozen_actor(advised):
    world, policy = advised
    every = games(policy, world, rollout=play_players, players=dict(executor=actor), keep=True)
    for game in {e.game for e in every}:
        planner, other = ([t.t for t in e.turns] for e in every if e.game == game)
        assert other and set(t - 1 for t in other) <= set(planner) and not any(t - 1 in other for t in other)
    mine = games(policy, world, rollout=play_players, players=dict(executor=actor))
    assert {e.seat for e in mine} == {'planner'}  # the actor is in no batch
    both = Batch.from_episodes(games(policy, world, rollout=play_players))
    with pytest.raises(ValueError, match='is frozen'): delegate.epo_explicit(both)

def test_epo_explicit_key_rounds_and_the_outcome_are_paid(advised):
    batch = Batch.from_episodes(games(advised[1], advised[0], rollout=play_players, players=dict(executor=actor)))
    batch = batch.with_action(value=torch.rand(len(batch.actions), generator=torch.Generator().manual_seed(0)))
    whole, none = (delegate.epo_explicit(batch, rise=rise)[1] for rise in (.1, 2.))
    assert not torch.equal(whole, none) and whole.abs().max() <= 1 + 1e-9
    lost = batch.with_episodes(outcome=torch.zeros(len(batch), dtype=torch.float64))
    assert not delegate.epo_explicit(lost, rise=2.)[1].any() and delegate.epo_explicit(lost)[1].any()

def by_phrase(game, phrase, generator):
    "Keeps everything or one thing, four times out of five as it is told; takes every offer where told to."
    if generator.random() > .8: phrase = generator.choice(['all', 'one'])
    if phrase == 'take' and game.offers: return 'accept'
    return 'offer ' + (' '.join(map(str, game.counts)) if phrase == 'all' else '1 0 0')

@pytest.fixture(scope='module')
def talks():
    "A game of two strategists, and one who has seen a few of them."
    world = FrozenActor(Negotiation(4), by_phrase, ('all', 'one', 'take'), lambda env, generator: 'take')
    policy = tiny_policy(world, warm=False, progress=False)
    return world, warm_seats(policy, world, steps=15, episodes=12, noise=.7)

def test_epo_explicit_plays_strategists_of_earlier_rounds(talks, tmp_path):
    world, policy = talks
    rows = train(copied(policy), world, recipes.epo_explicit(**SMALL | dict(steps=2), memory=lambda *facts: League(
        *facts, seats=world.seats, mirror=0., every=1, groups=3)), tmp_path, progress=False).rows()
    assert [row['snapshots'] for row in rows] == [2, 3] and all(row['grad_norm'] > 0 for row in rows)

def test_epo_explicit_the_other_one_is_frozen_and_in_no_batch(talks):
    world, policy = talks
    mine, league = copied(policy), lambda mirror: League(mine, 0, world.seats, mirror=mirror, groups=6)
    alone, earlier = (one.plan(0)['group_args']['players'] for one in (league(1.), league(0.)))
    assert not any(alone) and [len(one) for one in earlier] == [1]*6
    before = games(mine, world, rollout=play_players, players=earlier, keep=True)
    assert {e.policy for e in before if e.source == 'opponent'} == {'snapshot 0'}
    kept = games(mine, world, rollout=play_players, players=earlier)
    assert len({e.game for e in kept}) == len(kept) == len(before)//2 == 6
    with torch.no_grad():
        for p in mine.model.parameters(): p.mul_(0.)  # what learns changes, the earlier one does not
    first = lambda found: {e.game: e.turns[0].text for e in found if e.source == 'opponent' and e.turns[0].t == 0}
    after = games(mine, world, rollout=play_players, players=earlier, keep=True)
    assert first(before) == first(after) and first(before)

def test_the_frozen_actor_acts_by_the_phrase(talks):
    world = talks[0].clone()
    world.reset(3)
    twin = world.clone()
    said = [one.step('all').info['state'] for one in (world, twin)]
    assert said[0] == said[1]  # a clone's actor draws the same
    offers = set()
    for seed in range(30):
        world.reset(seed)
        offers.add(world.step('one').info['state'][-1] == ((1, 0, 0),))
    assert offers == {True, False}  # one time in five it does not follow
    assert world.reset(0).info['legal'] == ['all', 'one', 'take']
    assert play_players(talks[1], FrozenActor(Negotiation(), lambda *facts: 1/0), [0], max_tokens=4)[0].error

# ---- AgentFlow

def searches(env, said): return said if said.startswith('search') else None
def complete(env): return len(env.now.info['hops']) == len(env.env.game.path)
def answers(env):
    game = env.env.game
    return f"answer {delegate.missing(game.start, game.path, {f: game.world.links[f] for f in game.found})[1]}"

def flow(verify=complete, limit=3, **how):
    return delegate.Flow(HopSearch(1), searches, verify, answers, limit=limit, **how)

def test_agentflow_plays_and_updates(tmp_path):
    world = flow()
    policy = tiny_policy(HopSearch(1), warm=False, progress=False)
    from agentlab.policy.tiny import warm_start
    warm_start(policy, HopSearch(1, split='demo'), steps=40, episodes=8, pool=320, noise=.5)
    row = trained(tmp_path, recipes.agentflow, policy, world, groups=6, group_size=6)
    assert row['grad_norm'] > 0 and row['sampler_gap'] < 1e-3

def test_agentflow_every_step_is_a_context_of_its_own_with_the_memory():
    world = flow(limit=3, verify=lambda env: False)
    world.reset(0)
    first = world.step('search mentor Bora Tel')
    second = world.step('search rival Bora Tel')
    assert first.info['fresh'] and first.observation in second.observation and len(second.observation) > len(
        first.observation)

def test_agentflow_an_unknown_tool_costs_a_step_and_is_noted():
    world = flow(limit=2)
    world.reset(0)
    assert world.step('dance').observation.endswith('dance: Nothing.')
    assert world.step('dance').done

def test_agentflow_the_verifier_stops_and_the_generator_answers():
    "With the verifier off the loop goes on to its limit; another generator, another outcome."
    ends = {}
    for name, world in dict(on=flow(), off=flow(lambda env: False)).items():
        step = world.reset(0)
        say = world.env.expert()
        while not step.done: step = world.step(say)
        ends[name] = len(world.memory), step.info['success']
    assert ends == dict(on=(1, True), off=(3, True))
    wrong = delegate.Flow(HopSearch(1), searches, complete, lambda env: 'answer Bora Tel')
    wrong.reset(0)
    assert not wrong.step(wrong.env.expert()).info['success']

def test_agentflow_the_analysis_is_read():
    world = flow(analyse=lambda env: f'{len(env.env.game.path) if env.env.game else 0} hops.')
    assert world.reset(0).observation.endswith('1 hops.')

# ---- MiRA

def goals(env): return env.game.path

@pytest.fixture(scope='module')
def search():
    "One hop with the line of the milestone, and a policy that has seen a few games of it."
    world = delegate.Subgoals(HopSearch(1), goals)
    return world, tiny_policy(world, steps=30, episodes=16, noise=.5, progress=False)

def test_mira_plays_and_updates(search, tmp_path):
    world, policy = search
    row = trained(tmp_path, recipes.mira, policy, world, max_turns=6)
    assert row['grad_norm'] > 0 and row['value_loss'] > 0 and row['progress_loss'] > 0

def shown(policy, world, n=6):
    "Games of somebody who is right half of the time."
    return play_players(policy, world, list(range(n)), players=dict(player=lambda env, luck: env.expert(.5, luck)),
        keep=True, max_turns=6)

def valued(policy, world, n=6):
    "Games with what two critics said of them: nothing is known of success, and the truth of the progress."
    b = Batch.from_episodes(shown(policy, world, n))
    b = b.with_action(value=torch.zeros(len(b.actions)), progress=b.spread(delegate.interpolated(b)))
    return b.with_episodes(last_progress=torch.zeros(len(b.episodes)).double())

def test_mira_milestones_pay_a_turn(search):
    world, policy = search
    b = valued(policy, world)
    nothing = torch.zeros_like(b.turns.reward), torch.zeros_like(b.episodes.outcome)
    targets, paid = delegate.mira(b)
    assert targets.shape == (len(b.actions), 2) and b.turns.milestone.max() > 0
    assert not torch.equal(paid, delegate.mira(b, progress=lambda b: nothing)[1])

def test_mira_the_end_gets_the_outcome_and_the_rest_the_critics(search):
    b = valued(search[1], search[0])
    last = b.spread(b.last_turns())
    for lam in (.5, 1.):
        advantage = delegate.mira(b, lam=lam)[1]
        assert torch.equal(advantage[last], b.spread(b.of_turn('outcome'))[last])
        assert torch.equal(advantage, b.spread(b.of_turn('outcome'))) == (lam == 1.)

def test_mira_the_square_stops_where_dro_goes_on():
    b = Batch.from_episodes([Episode([Turn(0, context_ids=[1], ids=[2, 3], logps=[-2., -2.], entropies=[0., 0.])])])
    b = b.with_action(old_logp=torch.tensor([-2., -2.]))
    logp = torch.tensor([-1., -1.], requires_grad=True)
    fit_ratio(logp, b, torch.ones(2), beta=.5).sum().backward()  # moved by 2 = advantage/beta
    assert logp.grad.tolist() == [0., 0.]

def test_mira_the_line_is_in_the_context(search):
    world, policy = search
    heard = [t.observation for e in games(policy, world) for t in e.turns]
    assert any('Goal' in text for text in heard)
    assert not any('Goal' in t.observation for e in games(policy, world.env) for t in e.turns)

# ---- AI-SearchPlanner

def planned(**how):
    "A planner of one hop, whose generator walks along what was found."
    answer = lambda env: f"answer {'Nobody Here' if not env.env.game.found else env.env.expert().partition(' ')[2]}"
    class Shown(delegate.Flow):
        def expert(self, noise=0., generator=None):
            said = self.env.expert(noise, generator)
            return said if said.startswith('search') else 'stop'
        demonstrator = expert
        def vocabulary(self): return [*self.env.vocabulary(), 'stop', ':', 'Nothing']
    return Shown(HopSearch(1), lambda env, said: said if said.startswith('search') else None,
        lambda env: env.memory[-1][0].startswith('stop'), answer, limit=4)

@pytest.fixture(scope='module')
def planner():
    world = planned()
    return world, tiny_policy(world, steps=30, episodes=16, noise=.5, progress=False)

def test_ai_searchplanner_plays_and_updates(planner, tmp_path):
    world, policy = planner
    row = trained(tmp_path, recipes.ai_searchplanner, policy, world)
    assert row['grad_norm'] > 0 and row['value_loss'] > 0

def test_ai_searchplanner_a_search_has_its_price(planner):
    world, policy = planner
    by = lambda policy, env, seeds, **how: shown(policy, env, len(seeds))
    worth = {price: [e.outcome for e in delegate.play_scored(policy, world, range(8), score=delegate.priced(price),
        by=by)] for price in (0., .4)}
    searches = [sum(t.text.startswith('search') for t in e.turns) for e in shown(policy, world, 8)]
    assert sum(searches) > 0
    assert worth[.4] == pytest.approx([free - .4*n for free, n in zip(worth[0.], searches)])

def test_ai_searchplanner_the_generator_is_frozen_and_answers(planner):
    world, policy = planner
    episodes = shown(policy, world, 8)
    assert any(e.success for e in episodes)
    assert not any(t.text.startswith('answer') for e in episodes for t in e.turns)
    world.answer, kept = (lambda env: 'answer Nobody Here'), world.answer
    assert not any(e.success for e in shown(policy, world, 8))
    world.answer = kept
