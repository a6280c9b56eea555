"Tags of lost games, checked by playing on from them: in the spirit of AgentFail."
import math

import pandas as pd
import pytest

from agentlab.credit import grpo
from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Episode, Turn
from agentlab.policy import tiny_policy
from agentlab.reward.faults import TAGS, replayed, roots, tagged
from agentlab.rollout import Scripted, play
from later import deferred

HOW = dict(max_turns=12, max_tokens=4)
PARTS = deferred(lambda: {tag.name: tag for tag in TAGS})

@pytest.fixture(scope='module')
def house(): return KeyDoor(3)

@pytest.fixture(scope='module')
def novice(house): return tiny_policy(house, warm=False, progress=False)

def by(policy, house, say, tasks):
    sampler = Scripted(policy, say)
    return play(policy, house, [0]*len(tasks), 1, tasks, sampler=sampler, on_reset=sampler.begin, **HOW)

def all_but_last(game):
    "The expert, which never opens the chest."
    best = game.env.expert()
    return game.env.legal()[0] if best == 'open chest' else best

def test_each_tag_sees_its_own_fault():
    def seen(name, i=0, *turns, **more):
        return PARTS[name].sees(Episode([*turns] or [Turn(0, 'red door', 'go red')], **more), i)
    again = [Turn(0, state='a'), Turn(1, state='b'), Turn(2, state='a')]
    assert seen('state again', 2, *again) and not seen('state again', 1, *again)
    assert not seen('state again', 1, Turn(0), Turn(1))  # no states are known
    assert seen('refused', 0, Turn(0, invalid=True)) and not seen('refused')
    assert seen('made up', 0, Turn(0, 'red door', 'go blue')) and not seen('made up')
    assert seen('answered at once') and not seen('answered at once', truncated=True)
    assert not seen('answered at once', 1, Turn(0), Turn(1))
    for name, column, bad in (('wrong tool', 'right_tool', 0.), ('tool failed', 'tool_error', 1.)):
        assert seen(name, 0, Turn(0, columns={column: bad}))
        assert not seen(name) and not seen(name, 0, Turn(0, columns={column: 1 - bad}))
    assert seen('ran out', truncated=True) and not seen('ran out')
    assert seen('environment failed', error='gone') and not seen('environment failed')

def test_won_games_have_no_tags():
    e = Episode([Turn(0, invalid=True)], success=True)
    assert tagged([e]).empty and list(tagged([e])) == ['episode', 'turn', 'tag', 'level']
    e.success = False
    assert 'refused' in set(tagged([e]).tag)

def test_kept_actions_lead_where_they_led(house, novice):
    "The record of a whole game, replayed, is the same game."
    games = by(novice, house, lambda game: game.env.expert(), house.tasks('test', 3))
    assert all(e.success for e in games)
    ends = [(i, len(e.turns) - 1) for i, e in enumerate(games)]
    assert replayed(novice, house, games, ends, None, 2, **HOW) == [1.]*3

def test_the_turn_that_lost_the_game_is_found(house, novice):
    "And without a repair there is none: the replay is what finds it, not the tag."
    games = by(novice, house, all_but_last, house.tasks('test', 3))
    wanted = [next(i for i, turn in enumerate(e.turns) if turn.state[2] and turn.state[1] == e.task['chest'])
        for e in games]
    turns = pd.DataFrame([(i, k) for i, end in enumerate(wanted) for k in range(end + 1)], columns=['episode', 'turn'])
    found = roots(novice, house, games, turns, **HOW)
    assert found[found.root].turn.tolist() == wanted
    assert [e.turns[i].columns['fault'] for e, i in zip(games, wanted)] == [1.]*3
    assert Batch.from_episodes(games).turns.fault.sum() == 3
    none = roots(novice, house, games, turns, repair=lambda env: env.legal()[0] if env.has_key else env.expert(), **HOW)
    assert not none.decisive.any() and Batch.from_episodes(games).turns.fault.sum() == 0

def test_a_world_with_dice_cannot_be_told(house, novice):
    games = play(novice, house, [3], max_turns=2, max_tokens=4)
    with pytest.raises(ValueError, match='seeds=None'): replayed(novice, house, games, [(0, 1)], None)
    assert math.isnan(replayed(novice, house, games, [(0, 1)], None, seeds=[4], **HOW)[0])
    assert not math.isnan(replayed(novice, house, games, [(0, 1)], None, seeds=[3], **HOW)[0])

def test_the_column_stays_with_what_is_learned_from(house, novice):
    "Games with marked faults are trained on as they were: the mark changes no advantage."
    games = play(novice, house, [0], 4, house.tasks('test', 1), **HOW)
    before = Batch.from_episodes(games)
    roots(novice, house, games, tagged(games)[:4], tries=1, **HOW)
    after = Batch.from_episodes(games)
    assert 'fault' in after.turns and 'fault' not in before.turns
    assert grpo(before).tolist() == grpo(after).tolist()

def test_turnscope_leads_to_the_turn(house, novice):
    from agentlab.view.turnscope_data import DECISIVE
    from agentlab.view.turnscope_widget import turnscope
    games = by(novice, house, all_but_last, house.tasks('test', 1))
    at = len(games[0].turns) - 2
    for i, turn in enumerate(games[0].turns): turn.columns['fault'] = float(i == at)
    scope = turnscope(Batch.from_episodes(games), dict(grpo=grpo))
    assert {f.name: (f.found, f.total, list(places)) for f, places in scope.findings}[DECISIVE] == (1, 1, [at])
