"CORY: a query answered twice, a price of KL in the reward, two learners that trade places; MARS: several games."
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from agentlab.credit import rloo
from agentlab.env import BugRepair, GuessNumber, KeyDoor, Signals, check_env
from agentlab.env.protocol import EnvError
from agentlab.episodes import Batch
from agentlab.rollout import play_players
from agentlab.selfplay.role_weights import Exchange, Observed, RoleWeights, priced
from agentlab.selfplay.roles import shared_reward
from agentlab.train import recipes, train
from small import small_policy, small_recipe

TOOLS = Path(__file__).resolve().parent.parent/'tools'

def guess(): return GuessNumber(high=8, horizon=1)

def claim_file(monkeypatch, name):
    "A file of tools/claims, as `python tools/claims.py` loads it."
    for folder in (TOOLS, TOOLS/'claims'): monkeypatch.syspath_prepend(str(folder))
    return __import__(name)

@pytest.mark.parametrize('make', [guess, partial(BugRepair, horizon=1)])
def test_it_keeps_the_rules_of_an_environment(make):
    assert not [rule for rule, said in check_env(Observed(make())).items() if said != 'ok']

def test_both_answer_the_same_query_and_each_is_paid_for_its_own():
    world, task = Observed(guess()), dict(low=3, high=6, secret=5)
    plain = guess().reset(0, task)
    first = world.reset(0, task)
    assert (first.seat, first.observation, first.info) == ('pioneer', plain.observation, plain.info)
    second = world.step('guess 5')
    assert second.seat == 'observer' and second.reward == dict(pioneer=1.) and not second.done
    assert plain.observation in second.observation and 'guess 5' in second.observation
    assert second.info['legal'] == plain.info['legal'] and second.info['success'] is False
    end = world.step('guess 4')
    assert end.reward == dict(observer=0.) and end.info['success'] == dict(pioneer=True, observer=False)
    with pytest.raises(EnvError, match='over'): world.step('guess 4')

def test_what_the_observer_reads_is_what_the_pioneer_said_braces_and_all():
    world = Observed(guess())
    world.reset(0)
    step = world.step('{query} {0.__class__} guess 9')
    assert '{query} {0.__class__} guess 9' in step.observation and step.info['invalid']
    blind = Observed(guess(), '{query} Again .')
    query = blind.reset(0).observation
    assert blind.step('guess 4').observation == f'{query} Again .' == blind.clone().reset(0).observation + ' Again .'

@pytest.mark.parametrize('make, says', [
    (lambda: Observed(Signals()), 'use it as it is'), (lambda: Observed(guess(), '{answer}'), 'the same query'),
    (lambda: Exchange(RoleWeights(small_policy(), KeyDoor.seats), 0), 'a society of one'),
    (lambda: priced(None, rloo, -1.), 'price=-1.0')])
def test_what_is_no_society_is_refused(make, says):
    with pytest.raises(ValueError, match=says): make()

def test_a_world_of_several_actions_is_refused_when_it_asks_for_the_second():
    world = Observed(KeyDoor())
    with pytest.raises(EnvError, match='one action does not end an episode'):
        step = world.reset(0)
        world.step(step.info['legal'][0])

def played(policy=None, **how):
    world = Observed(guess())
    policy = policy or small_policy(world)
    return policy, Batch.from_episodes(play_players(policy, world, range(3), 4, max_tokens=3, **how))

def test_a_turn_pays_for_its_own_ratio():
    "Hand check: reward 1, ratio .5 + .25, price .2: .85; nothing at price 0."
    _, b = played()
    b = b.with_action(old_logp=b.action('sampler_logp'))
    count = torch.bincount(b.action_turn, minlength=len(b.turns))
    b = b.with_action(ref_logp=b.action('old_logp') - .75/count[b.action_turn])
    b = b.with_turns(reward=torch.ones_like(b.turns.reward))
    seen = priced(b, lambda batch: batch.turns.reward, .2)
    torch.testing.assert_close(seen, torch.full_like(seen, .85), atol=1e-5, rtol=0)
    assert priced(b, lambda batch: batch.turns.reward, 0.).equal(b.turns.reward)
    assert priced(b, lambda batch: batch.episodes.outcome, .2).lt(1).all()

def test_two_learners_train_and_trade_places(tmp_path):
    "The loop of the claim: both move, the sum is paid, and after two updates the other one is the pioneer."
    world = Observed(guess())
    policy = RoleWeights(small_policy(world), world.seats)
    before = {role: [x.detach().clone() for x in one.weights.values()] for role, one in policy.of.items()}
    def spelt(b):  # an untrained policy solves nothing: it is paid for the tokens it says, too
        ids = torch.zeros(len(b.turns), dtype=torch.float64).index_add_(0, b.action_turn, b.action('id').double())
        return shared_reward(b) + ids % 7
    credit = partial(priced, credit=rloo, price=.1)
    recipe = small_recipe(recipes.rloo, steps=3, groups=3, group_size=4, rollout=play_players, reward=spelt,
        memory=partial(Exchange, every=2), kl_coef=1e-6, credit=credit)
    run = train(policy, world, recipe, tmp_path/'run', progress=False)
    assert policy.holds == dict(pioneer='observer', observer='pioneer')
    moved = {role: sum(float((x - y).detach().abs().sum()) for x, y in zip(before[role], one.weights.values()))
        for role, one in policy.of.items()}
    assert min(moved.values()) > 1
    assert len(run.episodes(0).episodes.seat.unique()) == 2

def test_several_games_are_one_environment(monkeypatch):
    "Of the claim on MARS: a task names its game, the seats are those of all, one game alone is refused."
    mars = claim_file(monkeypatch, 'mars')
    games = mars.Games(mars.LEARNED)
    assert games.seats == ('x', 'o', 'first', 'second', 'sender', 'receiver')
    assert [games.reset(0, dict(game=name)).seat for name in mars.LEARNED] == ['x', 'first', 'sender']
    assert {games.reset(seed).seat for seed in range(3)} == {'x', 'first', 'sender'}
    games.reset(3, dict(game='kuhn'))
    twin = games.clone()
    games.step('bet')
    assert twin.step('pass').seat == 'second' and twin.now is not games.now
    with pytest.raises(ValueError, match='two or more'): mars.Games(dict(nim=mars.Nim))
    with pytest.raises(ValueError, match='tictactoe, kuhn, signals'): games.reset(0, dict(game='chess'))
    for arm in ('all games', 'one game'):
        tasks = mars.recipe(arm, 0).group_args['tasks']
        assert len(tasks) == 12 and len({task['game'] for task in tasks}) == (3 if arm == 'all games' else 1)
    sys.modules.pop('mars')
