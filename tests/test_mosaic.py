"Players of every kind at one table: moves from a file, and transcripts that are equal or not."
import copy
import json

import pytest

from agentlab.env.kuhn import Kuhn
from agentlab.env.two_seats import expert_player, random_player
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.rollout.players import Replayed, keep_moves, play_players, transcript
from later import deferred

def novice(extra=(), seed=0):
    words = word_tokenizer([*Kuhn().vocabulary(), *extra])
    return Policy(tiny_model(len(words), 128, hidden=16, layers=1, seed=seed), words, name=f'novice {seed}')

policy = deferred(novice)
foreign = deferred(lambda: novice(('more',), 1))

def played(first, second, deals=6, seed=1):
    return play_players(policy, Kuhn(), range(deals), players=dict(first=first, second=second), keep=True, max_tokens=2,
        seed=seed)

@pytest.fixture
def person(tmp_path):
    keep_moves(played(random_player, random_player, deals=200), tmp_path/'moves')
    return Replayed(tmp_path/'moves')

def test_two_runs_of_a_mixed_table_have_one_transcript(person):
    kinds = dict(trained=policy, foreign=foreign, script=expert_player, person=person, random=random_player)
    pairs = [(a, b) for a in kinds for b in kinds if a != b]
    runs = [{pair: transcript(played(kinds[pair[0]], kinds[pair[1]])) for pair in pairs} for _ in range(2)]
    assert runs[0] == runs[1] and len({*runs[0].values()}) > 10
    assert transcript(played(random_player, random_player, seed=2)) != runs[0]['person', 'random']

@pytest.mark.parametrize('part, change', [('text', 'x'), ('observation', 'x'), ('reward', .5), ('t', 9)])
def test_every_part_of_a_turn_is_in_the_transcript(part, change):
    games = played(expert_player, random_player)
    other = copy.deepcopy(games)
    assert transcript(other[::-1]) == transcript(games)
    setattr(other[0].turns[0], part, change)
    assert transcript(other) != transcript(games)

def test_a_person_does_again_what_they_did(tmp_path, person):
    seen = {}
    for e in played(random_player, random_player, deals=200):
        for turn in e.turns: seen[json.dumps(turn.state)] = turn.text
    again = [turn for e in played(person, person) for turn in e.turns]
    assert again and all(seen[json.dumps(turn.state)] == turn.text for turn in again) and len(person.moves) == 12

def test_nothing_is_guessed_for_a_person(tmp_path):
    keep_moves(played(expert_player, expert_player, deals=1)[:1], tmp_path/'moves')
    games = played(Replayed(tmp_path/'moves', name='Ada'), random_player, deals=20)
    faults = [e.error for e in games if e.error]
    assert faults and all('Ada was never asked in' in fault for fault in faults) and len(faults) < len(games)

@pytest.mark.parametrize('line', ['pass', '{}', '{"state": [1]}', '[]', '{"move": "pass"}'])
def test_a_line_that_is_no_move_is_named(tmp_path, line):
    (tmp_path/'moves').write_text('{"state": [1], "move": "bet"}\n' + line)
    with pytest.raises(ValueError, match='line 2.*is no move. Write'): Replayed(tmp_path/'moves')
