"What a judge's word pays: principles, stages, atoms; each mechanism is switched off and something changes."
import math
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import KeyDoor
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.reward.basic import outcome
from agentlab.reward.gates import renorm
from agentlab.reward.judge import Form, Judge
from agentlab.reward.judged import (accepted, as_drawn, asked_of, atom_reward, drawn_by_value, falling,
    from_what_was_read, in_shares, play_ranked, said_anew, staged, vspo)
from agentlab.reward.rankings import round_robin
from agentlab.rollout import play
from agentlab.train import recipes, train
from small import Paying

def table(outcomes, groups, **columns):
    "An episode of one turn for each outcome."
    frame = pd.DataFrame(dict(group=groups, episode=range(len(outcomes)), t=0, outcome=outcomes, reward=outcomes,
        invalid=False) | columns)
    return Batch.from_turns(frame)

@pytest.fixture(scope='module')
def played():
    "Games of a policy that has learned nothing, judged by principles."
    world = Paying(2, 8, 0)
    policy = tiny_policy(world, warm=False, progress=False)
    return Batch.from_episodes(in_shares(policy, world, range(6), 3, max_tokens=6, max_turns=6))

def test_ppr_a_judge_scores_each_turn(played):
    shares = played.turns.judged
    assert ((shares >= 0) & (shares <= 1)).all() and len(shares.unique()) > 1
    strict = partial(in_shares, ask=partial(asked_of, (accepted,)))
    world = Paying(2, 8, 0)
    policy = tiny_policy(world, warm=False, progress=False)
    alone = Batch.from_episodes(strict(policy, world, range(6), 3, max_tokens=6, max_turns=6))
    assert torch.equal(alone.turns.judged == 1, ~alone.turns.invalid.bool())
    assert not torch.equal(alone.turns.judged, shares)

def test_ppr_the_outcome_moves_what_was_judged(played):
    moved = renorm(played, 'judged')
    middle = ~played.last_turns()
    assert (moved[middle & (played.of_turn('outcome') == 0)] <= 0).all() and not torch.equal(moved, outcome(played))

@pytest.mark.parametrize('principle', [accepted, said_anew, from_what_was_read])
def test_a_principle_is_met_and_missed(principle):
    from types import SimpleNamespace as Of
    turn = lambda text, observation, invalid=False: Of(text=text, observation=observation, invalid=invalid)
    game = Of(turns=[turn('go north', 'Doors north.'), turn('go north', 'Doors south.', True),
        turn('go west', 'Doors south.')])
    met = {accepted: [True, False, True], said_anew: [True, False, True], from_what_was_read: [True, True, False]}
    assert [principle(game, i) for i in range(3)] == met[principle]

@pytest.mark.parametrize('name', ['ppr', 'prs_vspo', 'atom_searcher', 'arena_rl', 'chatshopbuddy'])
def test_a_judged_recipe_plays_and_updates(tmp_path, name):
    world = KeyDoor()
    recipe = getattr(recipes, name)(steps=1, groups=4, group_size=4, test_tasks=0)
    row = train(tiny_policy(world, progress=False), world, recipe, tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0

def test_prs_stages_come_before_quality():
    b = table([1., 1., 0.], 0, invalid=[True, False, False], tool_error=[1., 1., 0.])
    assert staged(b, (('invalid', -1.), ('tool_error', -.5))).tolist() == [-1., -.5, 0.]
    assert staged(b, (('tool_error', -.5), ('invalid', -1.))).tolist() == [-.5, -.5, 0.]
    assert staged(b, ()).tolist() == [1., 1., 0.]

def test_vspo_dead_groups_give_their_place():
    b = table([1., 0., 1., 1., 0., 0., 0., 1.], [0, 0, 1, 1, 2, 2, 3, 3])
    drawn = drawn_by_value(b)
    assert drawn[2:6].tolist() == [0.]*4 and drawn[::2].sum() == 4
    assert torch.equal(drawn_by_value(b), drawn)  # the same draws for the same step
    later = [drawn_by_value(b.with_episodes(step=torch.full((8,), s))).tolist() for s in range(20)]
    assert len({tuple(one) for one in later}) > 1

def test_vspo_what_is_drawn_more_often_counts_once():
    b = table([1., 0., 1., 1., 0., 0.], [0, 0, 1, 1, 2, 2])
    assert drawn_by_value(b)[0] == 3
    torch.testing.assert_close(vspo(b), grpo(b))
    torch.testing.assert_close(vspo(b, as_drawn)[:2], 3*grpo(b)[:2])

def test_vspo_values_are_those_of_success():
    shares = (.1, .25, .5, .75, .9)
    b = table([float(i < 20*p) for p in shares for i in range(20)], [g for g in range(5) for _ in range(20)])
    counts = torch.zeros(5, dtype=torch.float64)
    for step in range(400): counts += drawn_by_value(b.with_episodes(step=torch.full((100,), step)))[::20]
    wanted = torch.tensor([p*(1 - p) for p in shares]).double()
    torch.testing.assert_close(counts/counts.sum(), wanted/wanted.sum(), atol=.03, rtol=0)

def test_atoms_weigh_less_from_update_to_update():
    b = table([0., 1.], 0, judged=[1., 0.])
    worth = [atom_reward(b.with_episodes(step=torch.full((2,), s))).tolist() for s in (0, 100, 200, 900)]
    assert worth == [[.5, .5], [.25, .75], [0., 1.], [0., 1.]]
    assert falling(torch.tensor([5]), 1., 10).item() == .5

def test_atoms_without_a_score_and_badly_formed_ones():
    b = table([0., 1., 1.], 0, judged=[float('nan'), float('nan'), 1.], invalid=[False, False, True])
    assert atom_reward(b).tolist() == [0., 1., -1.]
    with pytest.raises(ValueError, match='Play with agentlab.reward.judge.play_judged'): atom_reward(table([1.], 0))

# ---- ArenaRL

def test_arena_a_model_judges_pairs_in_both_orders():
    "A tiny model is asked about every pair of a task twice; what it prefers by place alone makes no difference."
    world = KeyDoor()
    policy = tiny_policy(world, progress=False)
    judge = Judge(policy, Form(('north', 'south'), closing=None), least=0.)
    texts, asked = [], []
    def ask(one, other):
        texts.append((one.turns[0].text, other.turns[0].text))
        return f'{one.turns[0].text} or {other.turns[0].text} ?'
    def seen(questions):
        asked.append(questions)
        return judge(questions)
    found = play_ranked(policy, world, range(2), 3, judge=seen, ask=ask, max_tokens=6, max_turns=4)
    assert len(asked) == 1 and len(asked[0]) == 2*6 and {b + a for a, b in texts} == {a + b for a, b in texts}
    assert all(sorted(e.outcome for e in found if e.group == g) == pytest.approx([0., .5, 1.]) for g in range(2))
    first = lambda questions: torch.ones(len(questions))
    tied = play_ranked(policy, world, range(2), 3, judge=first, bracket=round_robin, max_tokens=6, max_turns=4)
    assert {e.outcome for e in tied} == {0.}

def test_arena_places_replace_what_was_paid():
    world = KeyDoor()
    policy = tiny_policy(world, progress=False)
    how = dict(max_tokens=6, max_turns=30)
    plain, ranked = play(policy, world, range(3), 4, **how), play_ranked(policy, world, range(3), 4, **how)
    assert [[t.text for t in e.turns] for e in plain] == [[t.text for t in e.turns] for e in ranked]
    assert [sum(t.reward for t in e.turns) for e in ranked] == pytest.approx([e.outcome for e in ranked])
    assert not torch.equal(grpo(Batch.from_episodes(plain)), grpo(Batch.from_episodes(ranked)))
    for group in range(3):
        won = [e.outcome for e, before in zip(ranked, plain) if e.group == group and before.success]
        lost = [e.outcome for e, before in zip(ranked, plain) if e.group == group and not before.success]
        assert not won or not lost or min(won) > max(lost)

def test_arena_a_pair_without_an_answer_counts_half():
    world = KeyDoor()
    policy = tiny_policy(world, progress=False)
    def some(questions): return torch.tensor([3. if i == 0 else math.nan for i in range(len(questions))])
    found = play_ranked(policy, world, [0], 3, judge=some, bracket=round_robin, max_tokens=6, max_turns=4)
    assert found[0].outcome == 1. and found[1].outcome == 0.

# ---- ChatShopBuddy

def shop(*games):
    "A game for each (turns, won), judged .5 in every turn."
    frame = [dict(group=0, episode=e, t=t, outcome=float(won), success=bool(won), reward=float(won)*(t == n - 1),
        judged=.5) for e, (n, won) in enumerate(games) for t in range(n)]
    return Batch.from_turns(pd.DataFrame(frame))

def test_chatshopbuddy_quality_counts_behind_a_right_answer():
    reward = recipes.chatshopbuddy().reward
    b = shop((2, 1), (2, 0), (4, 1))
    total = torch.zeros(3).double().index_add(0, b.turns.episode, reward(b))
    assert total.tolist() == pytest.approx([1.15, 0., 1.225]) and (outcome(b) != reward(b)).any()

def test_chatshopbuddy_learns_from_short_successes_and_long_failures(played):
    curate = recipes.chatshopbuddy().curate
    kept = curate(played)
    waits = kept.tokens.rest > 0
    assert waits.any() and torch.equal(grpo(kept), grpo(played))  # all vote, some are learned from
    assert (kept.tokens.weight[waits] == 0).all()
