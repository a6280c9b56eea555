"One table: what its numbers are, and what a fault of one player costs."
import json, math, threading
from functools import partial
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.bench.eval import (Interval, bounded, by_chance, by_endpoint, by_expert, keep_episodes, measured, pass_at,
    played, row_of, spoken_game, table)
from agentlab.env import GuessNumber, KeyDoor, Kuhn
from agentlab.episodes import Episode, Turn
from agentlab.policy import Calls, tiny_policy
from agentlab.train import evaluate
from agentlab.view.foreign import open_run
from small import commanded

HOW = dict(tasks=4, samples=2, seed=0, workers=3, format=None, max_turns=64, max_tokens=8, temperature=1.)

@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_mean_over_all_choices_of_k_tries(numbers):
    n, c, k = numbers
    tries = [i < c for i in range(n)]
    chosen = list(combinations(tries, k))
    assert math.isclose(pass_at(k, n, c), sum(map(any, chosen))/len(chosen))

@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_an_interval_holds_its_value(values):
    found = bounded(values, True)
    assert 0 <= found.value <= 1
    if len(values) > 1 or found.value in (0., 1.): assert found.low - 1e-9 <= found.value <= found.high + 1e-9

def test_certainty_is_not_claimed():
    for n in (1, 5, 50):
        assert bounded([1.]*n, True).low == pytest.approx(.025**(1/n)) and bounded([0.]*n, True).high < 1
    assert bounded([1.]*9) == Interval(1., 1., 1.)  # numbers, not shares
    assert bounded([]) is None and bounded([1., None]) is None

def test_an_episode_that_ends_with_an_error_has_failed():
    won = Episode([Turn(0, ids=[1])], group=0, success=True, error='late')
    assert measured([won], 1)['success'].value == 0 and measured([won], 1)['errors'].value == 1
    assert measured([Episode(group=0, error='at once')], 1)['turns'].value == 0

def test_a_policy_is_measured_as_evaluate_does():
    env = GuessNumber()
    policy = tiny_policy(env, warm=False)
    episodes = played(policy, env, **HOW | dict(tasks=16, samples=1))
    assert measured(episodes, 1)['success'].value == evaluate(policy, env, 16, greedy=False, max_tokens=8)

@pytest.mark.parametrize('make', [GuessNumber, KeyDoor, Kuhn])
def test_scripts_play_the_same_tasks(make):
    env = make()
    for player in (by_expert, by_chance):
        one, two = (played(player, env, **HOW) for _ in range(2))
        assert [[t.text for t in e.turns] for e in one] == [[t.text for t in e.turns] for e in two]  # seeded
        assert len(one) == 8*len(env.seats) and not any(e.error for e in one)
    if len(env.seats) == 1: assert measured(played(by_expert, env, **HOW), 2)['success'].value == 1

def test_two_tries_of_a_task_are_two_draws():
    found = played(by_chance, KeyDoor(), **HOW | dict(tasks=8))
    assert len({tuple(t.text for t in e.turns) for e in found if e.group == 0}) == 2

class Burning(GuessNumber):
    "Breaks where the number is even."
    def turn(self, action):
        if self.task['secret'] % 2 == 0: raise OSError('burned')
        return super().turn(action)

def test_faults_of_environment_and_player_cost_their_episode():
    found = played(by_expert, Burning(), **HOW | dict(tasks=16, samples=1))
    errors = [e.error for e in found if e.error]
    assert 0 < len(errors) < 16 and all('burned' in e for e in errors)
    for wrong in (lambda *_: 3, lambda *_: (None, 2), lambda *_: 1/0):
        found = played(wrong, GuessNumber(), **HOW)
        assert all(e.error.startswith('the player failed') for e in found) and len(found) == 8
    def leaves(*_): raise SystemExit
    assert 'SystemExit' in spoken_game(leaves, GuessNumber(), 0, None, 0, 0, 0, 9)[0].error

def test_a_game_that_does_not_end_is_cut_off():
    found, = spoken_game(lambda *_: 'hm', KeyDoor(horizon=50), 0, None, 0, 0, 0, 3)
    assert found.truncated and len(found.turns) == 3 and all(t.invalid for t in found.turns)

class Model:
    "In place of an Endpoint: what it hears is kept."
    def __init__(self, say): self.say, self.heard, self.lock = say, [], threading.Lock()
    def answer(self, messages):
        with self.lock: self.heard.append(messages)
        return self.say(messages), 5

def test_what_a_server_is_told():
    model = Model(lambda messages: 'guess 8')
    found = played(partial(by_endpoint, model), GuessNumber(), **HOW | dict(max_turns=2))
    assert all(m[0]['role'] == 'system' and 'Find a hidden number' in m[0]['content'] for m in model.heard)
    later = [m for m in model.heard if len(m) > 2]
    assert later and all([one['role'] for one in m] == ['system', 'user', 'assistant', 'user'] for m in later)
    assert measured(found, 1)['tokens'].value == 5*measured(found, 1)['turns'].value

def test_a_server_may_act_by_calls():
    call = '<tool_call>{"name": "guess", "arguments": {"number": 8}}</tool_call>'
    model = Model(lambda messages: call)
    found = played(partial(by_endpoint, model), GuessNumber(), **HOW | dict(format=Calls(), max_turns=2))
    assert not any(t.invalid for e in found for t in e.turns) and 'tool_call' in model.heard[0][0]['content']

def test_episodes_open_in_view(tmp_path):
    env = GuessNumber()
    for player, name in ((by_expert, 'script'), (tiny_policy(env, warm=False), 'policy')):
        episodes = played(player, env, **HOW)
        keep_episodes(episodes, player, tmp_path/name)
        seen = open_run(tmp_path/name).episodes(open_run(tmp_path/name).steps[0])
        assert [len(e.turns) for e in seen] == [len(e.turns) for e in episodes]
        assert [e.outcome for e in seen] == [e.outcome for e in episodes]
    texts = open_run(tmp_path/'script').episodes(0)[0].turns
    assert [t.text for t in texts] == [t.text for t in played(by_expert, env, **HOW)[0].turns]
    keep_episodes([Episode(error='no turn')], by_expert, tmp_path/'nothing')

def test_a_player_that_fails_costs_its_row():
    row = row_of('/no/such/folder', GuessNumber(), HOW, 1, '')
    assert 'FileNotFoundError' in row['failed']
    said = table([dict(player='x') | measured(played(by_expert, GuessNumber(), **HOW), 2), row])
    assert len(said.splitlines()) == 4 and '/no/such/folder failed: FileNotFoundError' in said and 'nan' not in said

def test_the_command(tmp_path):
    as_json, alone, none, k, unknown = commanded(
        tmp_path, 'eval expert,nobody/ --env guess --test-tasks 3 --samples 2 --k 1 --json --out seen',
        'eval nobody/ --env guess --test-tasks 3', 'eval , --env guess', 'eval expert --k 3',
        'eval expert --env nosuch')
    expert, nobody = json.loads(as_json[1])
    assert as_json[0] == 0 and expert['success'] == dict(value=1., low=pytest.approx(.025**(1/3)), high=1.)
    assert set(expert) == {'player', 'success', 'pass@1', 'turns', 'tokens', 'cost', 'invalid', 'errors'}
    assert expert['tokens'] is None and set(nobody) == {'player', 'failed'}
    assert (tmp_path/'seen'/'expert'/'completions_00000.parquet').exists()
    for (status, said), word in ((alone, 'no player could play'), (none, 'name some'), (k, 'k=3'),
                                 (unknown, "env='nosuch'")):
        assert status == 2 and word in said
