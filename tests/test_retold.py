"A team's game as one context: which turns, which words, and what may be learned from it."
import pytest
import torch

from agentlab.env import HopSearch
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.rollout import play, play_players
from agentlab.rollout.delegate import hops_of_two
from agentlab.rollout.retold import OneContext, one_context
from agentlab.train import recipes, train
from later import deferred

policy = deferred(lambda: tiny_policy(OneContext(HopSearch(2)), warm=False, progress=False))

def read(episodes): return sum(len(turn.context_ids) + len(turn.ids) for e in episodes for turn in e.turns)

def games(n=6, noise=0., hops=2):
    def script(env, generator): return env.expert(noise, generator)
    world = hops_of_two(hops)
    found = play_players(policy, world, range(n), players=dict.fromkeys(world.seats, script), keep=True, max_turns=24)
    return [{e.seat: e for e in found[i:i + 2]} for i in range(0, len(found), 2)]

@pytest.mark.parametrize('hops', [1, 2, 3])
def test_a_turn_for_every_answer_of_the_environment(hops):
    for game in games(3, hops=hops):
        told = one_context(game, policy.chat)
        assert len(told.turns) == hops + 1 and told.success and told.outcome == sum(t.reward for t in told.turns) == 1
        assert told.turns[0].text.startswith('planner : do ') and ' planner : answer ' in told.turns[-1].text

@pytest.mark.parametrize('noise', [0., .3])
def test_word_for_word_it_is_the_same_game(noise):
    for seed, game in enumerate(games(8, noise)):
        world, told = OneContext(HopSearch(2)), one_context(game, policy.chat)
        step = world.reset(seed)
        for turn in told.turns:
            assert not step.done and step.observation == turn.observation
            step = world.step(turn.text)
        if game['planner'].truncated: continue
        assert step.done and bool(step.info['success']) == told.success == game['planner'].success

def test_observations_are_context_and_nothing_was_sampled():
    batch = Batch.from_episodes([one_context(game, policy.chat) for game in games()])
    said = policy.text(batch.tokens.id[batch.actions].tolist())
    assert 'Who is the' not in said and 'The ' not in said and batch.action('sampler_logp').isnan().all()
    logp = policy.forward(batch)[0]
    assert len(logp) == len(batch.actions) < len(batch.tokens.id) and torch.isfinite(logp).all()

def test_errands_and_reports_are_read_once():
    for game in games():
        told = one_context(game, policy.chat)
        assert read([told]) < read([*game.values()])
        for turn in game['executor'].turns:
            if not turn.observation.startswith('The '):
                assert turn.observation not in [t.observation for t in told.turns]

@pytest.mark.parametrize('said', ['search mentor {}', 'planner : do it executor : search mentor {}',
    'executor : done x planner : y executor : search mentor {}',
    'executor:search mentor {}'])
def test_the_action_stands_behind_the_last_name(said):
    world, plain = OneContext(HopSearch(2)), HopSearch(2)
    name = ' '.join(world.reset(3).observation.rstrip('?').split()[-2:])
    plain.reset(3)
    assert world.step(said.format(name)).observation == plain.step(f'search mentor {name}').observation

def test_a_team_has_many_contexts_already():
    with pytest.raises(ValueError, match='give an environment of one'): OneContext(hops_of_two())

def test_a_game_without_a_word_is_an_episode_without_turns():
    game = games(1)[0]
    for e in game.values(): e.turns = []
    assert one_context(game, policy.chat).turns == []

def test_afm_plays_and_updates(tmp_path):
    world = OneContext(HopSearch(1))
    learner = tiny_policy(world, warm=False, progress=False)
    recipe = recipes.grpo(steps=1, groups=2, group_size=3, max_tokens=6, max_turns=3, test_tasks=0,
        reward=lambda b: b.turns.episode.double())
    row = train(learner, world, recipe, tmp_path, progress=False).rows()[0]
    assert row['skipped'] is None and row['grad_norm'] > 0
    assert play(learner, world, [0], max_tokens=6, max_turns=2)[0].turns
