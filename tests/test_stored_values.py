"Stored games: what is handed out, what the values learn of them, what is imitated; nothing is played."
import math
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.episodes import Batch
from agentlab.replay.stored_values import BestOfN, Stored, best_of, digi_q
from agentlab.replay.utterance_critic import TwinHeads, archer, archer_targets, critic_step
from agentlab.rollout import play
from agentlab.train import recipes
from agentlab.train.trainer import train
from small import Paying, facts, same_batch, small_policy, train_small
from test_archer import random_batch

class Nobody(Paying):
    "A world that must not be entered."
    def reset(self, *arguments, **how): raise AssertionError('somebody played')

def games(tasks=4, each=3):
    return play(small_policy(), Paying(), list(range(tasks)), each, max_tokens=3, seed=1)

def table(**columns): return Batch.from_turns(pd.DataFrame(dict(dict(group=0, t=0), **columns)))

# ---- handed out

def test_games_are_handed_out_by_task_without_repetition_and_with_new_numbers():
    there = games()
    stored = Stored(there)
    found = stored(None, None, [0, 0, 0], 2, [6, 7, 8], seed=5, step=2)
    assert [(e.group, e.game, e.step) for e in found] == [(6, 12, 2), (6, 13, 2), (7, 14, 2), (7, 15, 2), (8, 16, 2),
        (8, 17, 2)]
    begin = lambda e: next(i for i, one in enumerate(there) if [t.ids for t in one.turns] == [t.ids for t in e.turns]
        and one.turns[0].logps == e.turns[0].logps)
    tasks = [there[begin(e)].group for e in found]
    assert tasks[::2] == tasks[1::2] and len(set(tasks)) == 3 and len({begin(e) for e in found}) == 6
    assert [e.group for e in there] == sorted([0, 1, 2, 3]*3)       # the stored ones are as they were

def test_the_same_seed_hands_out_the_same_and_processes_share_a_step():
    stored = Stored(games())
    how = dict(seed=5, step=0)
    whole = stored(None, None, [0]*4, 2, [0, 1, 2, 3], **how)
    assert stored(None, None, [0]*4, 2, [0, 1, 2, 3], **how) == whole != stored(None, None, [0]*4, 2, seed=6)
    parts = stored(None, None, [0]*2, 2, [0, 2], **how) + stored(None, None, [0]*2, 2, [1, 3], **how)
    assert sorted(parts, key=lambda e: e.game) == whole

@pytest.mark.parametrize('ask, size, message', [(5, 1, 'group_size=1: 4 of 4'), (1, 4, 'group_size=4: 0 of 4')])
def test_too_few_games_are_named(ask, size, message):
    with pytest.raises(ValueError, match=message): Stored(games())(None, None, [0]*ask, size)

def test_nothing_stored_is_refused():
    with pytest.raises(ValueError, match='games='): Stored([])
    with pytest.raises(ValueError, match='stored=None'): BestOfN(small_policy(), 0)
    with pytest.raises(ValueError, match='n=0'): BestOfN(small_policy(), 0, Stored(games()), n=0)

@pytest.mark.parametrize('make', [recipes.grpo, recipes.ppo, recipes.archer], ids=lambda make: make.__name__)
def test_other_recipes_learn_from_stored_games(tmp_path, make):
    run = train_small(tmp_path, make, env=Nobody(), rollout=Stored(games()), steps=2, groups=3)
    assert run.rows()[-1]['grad_norm'] > 0 and run.rows()[-1]['skipped'] is None
    assert 'Stored(12 games of 4 tasks)' in run.info['facts']['recipe']['rollout']

# ---- values

def chunks_by_loop(b, v, gamma, chunk):
    "Targets of chunks, a turn at a time; all turns were spoken."
    episode, found = b.turns.episode.tolist(), []
    for i, e in enumerate(episode):
        worth, j = 0., i
        while j < len(episode) and episode[j] == e and j < i + chunk:
            worth, j = worth + gamma**(j - i)*b.turns.reward[j].item(), j + 1
        if j < len(episode) and episode[j] == e: worth += gamma**chunk*v[j].item()
        elif b.episodes.truncated[e]: worth += gamma**(j - i)*b.episodes.last_value[e].item()
        found.append(worth)
    return torch.tensor(found, dtype=torch.float64)

@pytest.mark.parametrize('chunk', (1, 2, 4, 99))
def test_chunks_are_those_of_a_loop(chunk):
    b = random_batch(1)
    b = Batch.from_turns(pd.DataFrame(dict(episode=b.turns.episode, t=b.turns.t, group=0, reward=b.turns.reward,
        truncated=b.of_turn('truncated'), last_value=b.of_turn('last_value'))))
    v = torch.randn(len(b.turns), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(archer_targets(b, v, gamma=.9, chunk=chunk)[:, 0], chunks_by_loop(b, v, .9, chunk))

def test_a_chunk_by_hand_and_a_bad_one():
    b, v = table(episode=0, t=[0, 1, 2], reward=0.), torch.tensor([[0.], [.45], [.5]])
    assert archer_targets(b, v, gamma=.9, chunk=2)[0].item() == pytest.approx(.405)
    assert archer_targets(b, v, gamma=.9)[0].item() == pytest.approx(.405)
    with pytest.raises(ValueError, match='chunk=0'): archer_targets(b, v, chunk=0)

def test_pieces_of_all_turns_learn_what_one_step_learns():
    "One piece with all turns is the step without pieces."
    b, x, after = table(episode=[0, 0, 1], t=[0, 1, 0], reward=[.5, 1., 1.]), torch.eye(3), []
    for pieces in (None, [torch.arange(3)]):
        heads, slow = TwinHeads(3, 3, 0), TwinHeads(3, 3, 0)
        critic_step(heads, slow, torch.optim.SGD(heads.parameters(), .1), b, x, x, x, pieces=pieces)
        after.append(heads.q(x, x))
    torch.testing.assert_close(*after)

@pytest.mark.parametrize('bad', (math.nan, math.inf, 50.))
def test_values_that_run_away_are_named_before_anything_moves(bad):
    b, x = table(episode=[0, 0], t=[0, 1], reward=[0., 1.]), torch.eye(2)
    heads, slow = TwinHeads(2, 2, 0, ()), TwinHeads(2, 2, 0, ())
    for p in slow.parameters(): torch.nn.init.constant_(p, bad)
    before = [p.clone() for p in heads.parameters()]
    with pytest.raises(ValueError, match=r'allow at most 20 with gamma=0.95.*Lower its lr, or tau=0.1'):
        critic_step(heads, slow, torch.optim.SGD(heads.parameters(), .1), b, x, x, x, limit=20.)
    assert all(torch.equal(p, old) for p, old in zip(heads.parameters(), before))

def test_a_critic_that_diverges_stops_the_run_before_the_policy_moves(tmp_path):
    stored, policy = Stored(games()), small_policy()
    before = [p.detach().clone() for p in policy.model.parameters()]
    recipe = recipes.digi_q(rollout=stored, replay=partial(BestOfN, stored=stored, lr=1e4, tau=1., epochs=20), steps=1,
        groups=2, test_tasks=0)
    with pytest.raises(ValueError, match='feed on themselves'):
        train(policy, Nobody(), recipe, tmp_path, progress=False)
    assert all(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before))

# ---- best of N

def test_the_advantage_of_the_paper_by_hand():
    "The larger Q minus the larger V: .05 is not above .05, .1 is."
    b = table(episode=[0, 1], q1=[.55, .6], q2=.2, v1=.5, v2=.1)
    worth = archer(b, pool=torch.maximum)[1]
    assert worth.tolist() == pytest.approx([.05, .1])
    assert digi_q(b.with_turns(worth=worth.round(decimals=6))).tolist() == [0., 1.]
    two = table(episode=0, t=[0, 1], reward=0.)
    assert archer_targets(two, torch.tensor([[0.], [.8]]))[0].item() == pytest.approx(.76)

def test_the_first_of_the_best_is_chosen():
    b = table(group=[0, 0, 0, 1, 1], episode=range(5), worth=[.1, .3, .3, -.2, -.4])
    assert best_of(b).tolist() == [1, 3]
    assert best_of(b.select([])).tolist() == []
    for asks in (best_of, digi_q):
        with pytest.raises(ValueError, match='turns.worth|worth'): asks(table(episode=[0]))

def test_candidates_begin_with_what_was_said_and_are_drawn_once():
    stored = Stored(games())
    made = BestOfN(small_policy(), 0, stored, n=4, max_tokens=3)
    b = stored.batch()
    asked = made.candidates(b)
    same_batch(asked, made.candidates(b))
    lead = [int((asked.episodes.group == i).nonzero()[0]) for i in range(len(b.turns))]
    assert asked.select(lead).action('id').tolist() == b.action('id').tolist()
    one = BestOfN(small_policy(), 0, stored, n=1).candidates(b)
    assert len(one) == len(b.turns) and one.action('id').tolist() == b.action('id').tolist()
    said = [(int(g), tuple(asked.select([i]).action('id').tolist())) for i, g in enumerate(asked.episodes.group)]
    assert len(set(said)) == len(said)

@pytest.mark.parametrize('n', (1, 4))
def test_digi_q_learns_and_the_same_seed_is_the_same_run(tmp_path, n):
    stored = Stored(games())
    found = []
    for name in 'ab':
        recipe = recipes.digi_q(rollout=stored, credit_args=dict(threshold=-1.), max_tokens=3, steps=2, groups=3,
            seed=3, replay=partial(BestOfN, stored=stored, n=n, epochs=3), test_tasks=0)
        found.append(facts(train(small_policy(), Nobody(), recipe, tmp_path/name, progress=False)))
    assert found[0] == found[1]
    assert all(row['skipped'] is None and row['grad_norm'] > 1e-3 for row in found[0])
    assert all(row['replayed'] == 1. for row in found[0])       # nothing was sampled by the policy of today

def test_the_values_do_not_change_while_the_policy_moves(tmp_path):
    stored, policy = Stored(games()), small_policy()
    made = BestOfN(policy, 0, stored, n=2, epochs=2, max_tokens=3)
    first = made.join(stored.batch(), 0)
    with torch.no_grad():
        for p in policy.model.parameters(): p.add_(.1)
    again = made.join(stored.batch(), 1)
    same_batch(first, again)
    assert again.turns.worth.tolist() == first.turns.worth.tolist()

def test_what_a_policy_would_say_there_is_another_value():
    stored, found = Stored(games()), []
    for anew in (False, True):
        made = BestOfN(small_policy(), 0, stored, epochs=3, anew=anew, max_tokens=3)
        made.fit()
        found.append(torch.cat([p.flatten() for p in made.heads.v_heads.parameters()]))
    assert found[0].isfinite().all() and not torch.equal(*found)
