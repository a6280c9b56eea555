"""Several minds: agents of two corpora under a planner, two levels of a player, a slow mind beside a fast one; each
mechanism is switched off and something changes."""
import copy
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent/'tools'/'claims'))

from agentlab.env import HopSearch, Kitchen, Nim, check_env
from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import tiny_policy
from agentlab.policy.tiny import warm_start
from agentlab.rollout import Agents, minds, pages_alone, play_players, play_scored, said_words, warm_seats
from agentlab.selfplay import League, Snapshot
from agentlab.train import recipes, train
from later import deferred

# of tools/claims, and so imported when the first of these tests begins
Skilled, Understanding, any_skill, consult, drilled, names_only = (
    deferred(lambda name=name: getattr(import_module('_minds'), name))
    for name in ('Skilled', 'Understanding', 'any_skill', 'consult', 'drilled', 'names_only'))
SMALL = dict(steps=1, groups=3, group_size=4, max_turns=16, test_tasks=0, checkpoint_every=1)

def trained(tmp_path, recipe, policy, world, **changes):
    "A run of one update on a copy of the policy; its row and its episodes."
    run = train(copy.deepcopy(policy), world, recipe(**SMALL | changes), tmp_path, progress=False)
    return run.rows()[0], run.episodes(0)

def seats(batch): return {batch.labels['seat'][key] for key in batch.episodes.seat.tolist()}

# ---- HierSearch

def search(hops=2, **how):
    return Agents(HopSearch(hops, results=4), **dict(sees=pages_alone, finishes=('answer',), script=consult, budget=3,
        report=minds.refined) | how)

@pytest.fixture(scope='module')
def searchers():
    world = search(1)
    return world, warm_seats(tiny_policy(world, warm=False, progress=False), world, steps=30, episodes=8)

def asks(env, generator): return consult(env, .3, generator)

def test_hiersearch_plays_and_updates_one_level_after_the_other(searchers, tmp_path):
    "First the agents under a script, then the planner over agents that are frozen."
    world, policy = searchers
    row, batch = trained(tmp_path/'agents', recipes.hiersearch, policy, world,
        rollout_args=dict(players=dict(planner=asks)))
    assert row['grad_norm'] > 0 and seats(batch) == {'executor'} and 0 <= row['reward'] <= 1
    frozen = Snapshot(copy.deepcopy(policy))
    before = {name: weight.clone() for name, weight in frozen.weights.items()}
    row, batch = trained(tmp_path/'planner', recipes.hiersearch, policy, world,
        rollout_args=dict(players=dict(executor=frozen)))
    assert row['grad_norm'] > 0 and seats(batch) == {'planner'} and row['errands'] > 0
    assert all(torch.equal(weight, before[name]) for name, weight in frozen.weights.items())
    both = Batch.from_episodes(play_scored(policy, world, [0, 1], max_tokens=8, score=minds.hier_score))
    assert seats(both) == {'planner', 'executor'}  # without frozen players both levels would learn

def errand(said, done='done Bora Tel', **how):
    "A planner's words, what both agents do, and the planner's next observation."
    world = search(**how)
    step = world.reset(0)
    start = world.env.game.start
    step = world.step(said.format(start))
    while world.moves == 'executor':
        world.step(f'search mentor tailor {start}')
        step = world.step(done)
    return world, step

@pytest.mark.parametrize('agent', ['local', 'web'])
def test_hiersearch_an_agent_searches_its_own_corpus(agent):
    world, step = errand(f'do {agent} mentor {{}}')
    (_, calls), = world.heard
    found = {page.split()[1] for _, pages in calls for page in pages}
    assert found and found <= set(minds.corpora[agent])

def test_hiersearch_both_agents_can_be_asked():
    world, step = errand('do both mentor {}')
    assert step.seat == 'planner' and len(world.heard) == 2
    read = [{page.split()[1] for _, pages in calls for page in pages} for _, calls in world.heard]
    assert read[0] <= set(minds.corpora['local']) and read[1] <= set(minds.corpora['web'])
    assert errand('do nobody mentor {}')[1].info['invalid'] and errand('do web')[1].info['invalid']

def test_hiersearch_the_planner_reads_what_the_refiner_kept():
    "Without the refiner it reads the conclusion; another conclusion, other pages."
    (_, kept), (_, said) = errand('do both mentor {}'), errand('do both mentor {}', report=said_words)
    assert said.observation == 'Bora Tel.' != kept.observation and ' is ' in kept.observation
    eight = [f'The cousin of {name} is Mina Lam.' for name in 'Ada Bo Cy Dan Eva Finn Gus Hal'.split()]
    kept = minds.most_like(eight, ['cousin Dan Gus'])
    rest = [page for page in eight if page not in kept]
    assert [page.split()[3] for page in kept] == ['Dan', 'Gus']
    assert [minds.most_like(rest, told) for told in (['Hal'], ['nobody'])] == [[eight[7]], [eight[0]]]
    assert minds.most_like(rest, ['Bo', 'Bo Hal', 'Hal Eva', 'Hal']) == [eight[7]]  # the other's conclusion counts

def test_hiersearch_every_part_of_the_reward_counts():
    def worth(*said, late=(0.,), invalid=False):
        plans = [Turn(i, text=text, columns=dict(errand=1.) if text.startswith('do') else {}, invalid=invalid)
            for i, text in enumerate(said)]
        return minds.hier_score(dict(planner=Episode(plans, seat='planner', answer='Paris')), late)
    def agent(*said, right=0.):
        turns = [Turn(i, text=text, columns=dict(right=right)) for i, text in enumerate(said)]
        return minds.hier_score(dict(executor=Episode(turns, seat='executor')))
    near = pytest.approx
    assert worth('do web x', 'answer Paris France') == near(2/3) and worth('do web x', 'answer Rome') == near(.1/3)
    assert worth('do web x', 'do both x', 'answer Rome') == near(.2/3)
    assert worth('do web x') == worth('do web x', 'answer Paris', invalid=True) == worth() == 0
    assert worth('do web x', 'answer Paris', late=LATE) == near(.1/3)  # a right answer, and the bonus
    for before, cost in {3: .2, 5: .1, 7: .03, 8: .01, 20: .01}.items():
        assert worth(*['do local x']*before, 'do web x', 'answer Paris', late=LATE) == near(1 - cost)
    assert agent('search x', 'done x') == near(.1) and agent('done x') == agent('search x') == agent() == 0
    assert agent('search x', 'done x', 'search x', 'done x', right=.5) == .5

LATE = 1., 1., 1., .2, .15, .1, .045, .03, .01

# ---- HCSP

SIDES = dict(first=any_skill, second=any_skill)

@pytest.fixture(scope='module')
def players():
    world = Skilled(Nim((2, 3)))
    return world, warm_seats(tiny_policy(world, warm=False, progress=False), world, steps=25, episodes=16)

def league(**how): return partial(League, **dict(mirror=0., due=minds.settled, groups=3) | how)

def test_hcsp_plays_and_updates(players, tmp_path):
    "Stage three: both levels learn; stage two: planners alone."
    world, policy = players
    assert set(check_env(world).values()) == {'ok'}
    row, batch = trained(tmp_path/'three', recipes.hcsp, policy, world, memory=league())
    assert row['grad_norm'] > 0 and len(seats(batch)) > 2 and row['kl_reference'] is not None
    assert row['opponent_rate'] is not None
    skills = Snapshot(copy.deepcopy(policy))
    row, batch = trained(tmp_path/'two', recipes.hcsp, policy, world, memory=league(), rollout_args=dict(frozen=skills))
    assert row['grad_norm'] > 0 and seats(batch) <= {'first', 'second'}

def test_hcsp_stage_one_trains_skills_apart(players, tmp_path):
    "Paid for its own moves a skill learns something else than from the game."
    world, policy = players
    played = partial(play_players, players=SIDES)
    row, batch = trained(tmp_path, recipes.ppo, policy, world, rollout=played, reward=drilled)
    assert row['grad_norm'] > 0 and seats(batch) == {'first skill', 'second skill'}
    assert drilled(batch).any() and not torch.equal(drilled(batch), batch.turns.reward)

def test_hcsp_a_skill_makes_two_moves():
    "An option of one move would have the planner asked at every move."
    asked = {}
    for length in (1, 2):
        world = Skilled(Nim((4, 4)), length=length)
        step, seen = world.reset(0), []
        while not step.done:
            seen.append(step.seat)
            step = world.step('one' if step.seat in SIDES else world.env.moves()[0])
        asked[length] = seen[:8]
    assert asked[1] == ['first', 'first skill', 'second', 'second skill']*2
    assert asked[2] == ['first', 'first skill', 'second', 'second skill', 'first skill', 'second skill', 'first',
        'first skill']

def test_hcsp_frozen_skills_are_in_no_batch(players):
    world, policy = players
    levels = partial(minds.play_levels, policy, world, [0, 1, 2], max_tokens=4)
    opponent = Snapshot(policy, name='older')
    assert seats(Batch.from_episodes(levels())) == set(world.seats)
    assert seats(Batch.from_episodes(levels(frozen=Snapshot(policy)))) == {'first', 'second'}
    against = levels(players=[dict(second=opponent)]*3, keep=True)
    assert {e.seat for e in against if e.source == 'opponent'} == {'second', 'second skill'}

def test_hcsp_opponents_are_drawn_from_all_that_have_joined(players):
    "A best response joins when it has settled; with a rule that never says so the population stays as it was."
    for due, many in ((lambda rates: len(rates) == 2, 4), (minds.settled, 1)):
        one = league(due=due, groups=200)(copy.deepcopy(players[1]), 0)
        for step in range(6): one.learn(dict(step=step, success=.5))
        assert len(one.snapshots) == many
        one.plan(0)
        assert {round(one.now.count(k)/200*many, 0) for k in range(many)} == {1.}  # uniform
        other = league(due=due, groups=200)(copy.deepcopy(players[1]), 0)
        one.learn(dict(step=6, success=.7))
        other.restore(one.tensors())
        assert other.recent == one.recent and len(other.recent) == (1 if many > 1 else 7)

def ends(rate): return next((n for n in range(1, 600) if minds.settled([rate(i) for i in range(n)])), None)

def test_hcsp_when_a_best_response_ends():
    assert ends(lambda i: .95) == 50 and ends(lambda i: .5) == 501
    assert not minds.settled([.95*i/79 for i in range(80)])
    assert not minds.settled([.85, 1.]*40) and minds.settled([.85, 1.]*40, spread=.1)

def test_hcsp_only_skills_are_held(players):
    world, policy = players
    batch = Batch.from_episodes(minds.play_levels(policy, world, [0, 1], max_tokens=4))
    logp = batch.action('sampler_logp')
    kl = minds.near_skills(logp, batch.with_action(ref_logp=logp - .5))
    skill = torch.tensor([batch.labels['seat'][key].endswith('skill') for key in batch.of_turn('seat').tolist()])
    assert torch.equal(kl > 0, skill[batch.action_turn]) and 0 < skill.sum() < len(skill)

# ---- HLA

def test_hla_plays_and_updates(tmp_path):
    "Nobody learns in HLA; here the slow mind does."
    world = Understanding(Kitchen(orders=3, patience=26), delay=2)
    policy = tiny_policy(world, warm=False, progress=False)
    warm_start(policy, Understanding(Kitchen(orders=3, patience=26, split='demo'), delay=2), steps=15, episodes=8,
        pool=80, noise=.3)
    row, batch = trained(tmp_path, recipes.grpo, policy, world, groups=6, group_size=6, max_turns=40)
    assert row['grad_norm'] > 0 and row['sampler_gap'] < 1e-3

def orders(*of, patience=40):
    return dict(human=5, orders=[[at, soup, at + patience, hinted] for at, soup, hinted in of])

def kitchen(task, **how):
    "A game that nobody else plays in, at its first call."
    world = Understanding(**how)
    assert isinstance(world, minds.SlowMind)
    step = world.reset(0, task)
    world.env.put(1, 99, '', 'serve', 0)
    return world, step

def served(task, **how):
    world, step = kitchen(task, **how)
    while not step.done: step = world.step(world.expert())
    return world.env.served

def test_hla_an_answer_takes_its_ticks():
    task = orders((1, 'leek', True), (4, 'onion', False), patience=45)
    assert served(task, delay=0) == 2 > served(task, delay=60) == 1

def test_hla_the_ratio_says_who_decides():
    three = [(-.5, .1), (-2., .5), (-1., .52)]
    best = [max(range(3), key=lambda i: minds.fast_score(*three[i], demand)) for demand in (False, True)]
    assert best == [2, 0]
    eager = lambda kitchen, heard, macro: 0. if macro == 'make onion' else -1.
    for hinted, begun in ((False, 'make leek'), (True, 'make onion')):
        world, chosen = Understanding(model=eager), []
        world.env.step = lambda macro, env=world.env, said=chosen: said.append(macro) or Kitchen.step(env, macro)
        world.reset(0, orders((1, 'leek', hinted), (2, 'leek', hinted), (60, 'tomato', True)))
        world.until(10)
        assert next(macro for macro in chosen if macro != 'wait') == begun

def test_hla_the_fast_mind_scores_what_is_possible_only():
    asked = []
    def model(kitchen, heard, macro):
        asked.append(macro in kitchen.possible())
        return names_only(kitchen, heard, macro)
    assert served(orders((1, 'leek', True)), model=model) == 1 and all(asked)

def test_hla_raw_words_are_read_until_the_intent_is_there():
    heard = []
    def model(kitchen, text, macro):
        heard.append(text)
        return names_only(kitchen, text, macro)
    served(orders((1, 'leek', True)), model=model, delay=6)
    assert [text for i, text in enumerate(heard) if heard.index(text) == i] == ['', 'green', 'leek']

def test_hla_an_overtaken_answer_is_dropped():
    late, in_time = orders((1, 'leek', True), (4, 'onion', True)), orders((1, 'leek', True), (30, 'onion', True))
    for task, intent in ((late, ''), (in_time, 'leek')):
        world, step = kitchen(task, delay=5)
        world.step('leek')
        assert world.intent == intent

def test_hla_a_demand_ends_by_a_plan_or_after_fifteen():
    for answer, calls in (('none', 1), ('wait', 16)):
        world, step = kitchen(orders((1, 'leek', True), (500, 'leek', False), patience=400), delay=0)
        world.step('leek')
        world.env.cooks = ((3, '', '', 0), world.env.cooks[1])
        many = 0
        while world.intent:
            world.step(answer)
            many += 1
        assert many == calls and not world.demand

def test_hla_a_macro_action_can_fail_and_be_interrupted():
    env = Kitchen()
    env.reset(0, orders((1, 'leek', False), (9, 'leek', True)))
    env.put(0, 4, 'onion', '', 0)
    env.put(1, 4, 'leek', 'make leek', 4)
    env.step('make onion')
    assert (env.now, env.cooks[0]) == (1, (4, 'onion', '', 0))  # the pot was in use: one tick is lost
    env.put(1, 99, '', 'serve', 0)
    while env.now < 5: env.step('wait')
    env.put(0, 3, '', '', 0)
    env.step('make leek')
    assert env.now == 9 and env.cooks[0][1:] == ('leek', '', 0)  # somebody spoke

def test_hla_the_executor_walks():
    env = Kitchen()
    env.reset(0, orders((1, 'tomato', False), (99, 'leek', False)))
    env.put(1, 99, '', 'serve', 0)
    env.step('wait'), env.step('make tomato')
    assert env.cooks[0][:2] == (4, 'soup tomato')
    assert env.now > 5 and not env.step('serve').done and env.served == 1

def test_a_kitchen_refuses_what_is_no_task():
    for task in ('soup', dict(orders=[]), dict(human=1, orders=[[1, 'cake', 9, False]])):
        with pytest.raises(ValueError, match='a task is'): Kitchen().reset(0, task)
    with pytest.raises(ValueError, match='orders=0'): Kitchen(orders=0)
