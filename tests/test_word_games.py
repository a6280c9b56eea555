"Wordle and Twenty Questions: games in which a turn is worth what it rules out."
from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st

from agentlab.env.protocol import check_env
from agentlab.env.word_games import WORDS, TwentyQuestions, Wordle, information, marks
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.rollout import play
from agentlab.train import recipes, train

words = st.text('abc', min_size=5, max_size=5)

def played(world, task, player):
    "What was answered and paid, turn by turn."
    step, found = world.reset(0, task), []
    while not step.done:
        step = world.step(player())
        found.append((step.observation, step.reward['player']))
    return found, step

@given(words, words)
def test_a_letter_is_marked_as_often_as_the_word_has_it(guess, word):
    answer = marks(guess, word)
    assert [mark == 'g' for mark in answer] == [a == b for a, b in zip(guess, word)]
    for letter, had in Counter(guess).items():
        marked = sum(mark != '-' for a, mark in zip(guess, answer) if a == letter)
        assert marked == min(had, word.count(letter))

@given(words, words)
def test_the_release_marks_every_occurrence(guess, word):
    released = marks(guess, word, faithful=True)
    assert all((mark == '-') == (letter not in word) for letter, mark in zip(guess, released))
    assert all(a == b or (a, b) == ('-', 'y') for a, b in zip(marks(guess, word), released))

@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_information_is_bounded_by_the_answers(answers):
    from math import log2
    assert -1e-9 <= information(answers) <= log2(len(set(answers))) + 1e-9

@pytest.mark.parametrize('world', [Wordle(), Wordle(100, faithful=True), TwentyQuestions(), TwentyQuestions(16),
    TwentyQuestions(24, 'cities')],
    ids=['wordle', 'as_released', 'questions', 'sixteen', 'cities'])
def test_the_environments_keep_the_protocol(world): assert set(check_env(world).values()) == {'ok'}

def test_a_won_game_pays_minus_its_turns_before():
    world = Wordle(60)
    for task in world.tasks('train', 20):
        found, step = played(world, task, world.expert)
        assert step.info['success'] and sum(paid for _, paid in found) == 1 - len(found)
        assert len(found) <= 5

def test_a_lost_game_pays_all_its_turns():
    for world in (Wordle(horizon=4), TwentyQuestions(horizon=4)):
        found, step = played(world, world.tasks('test', 1)[0], lambda: 'what ?')
        assert sum(paid for _, paid in found) == -4 and step.done and not step.info.get('success')
        assert len(world.possible()) > 1  # what is no question tells nothing

def test_sixteen_things_need_three_more_questions_after_the_hint():
    "The bound of a player who halves what is left: four questions, of which the hint is one, and a guess."
    world = TwentyQuestions(16)
    earned = [sum(paid for _, paid in played(world, task, world.expert)[0]) for task in world.tasks('test', 24)]
    assert min(earned) >= -6 and sum(earned)/24 > -4

@pytest.mark.parametrize('world', [Wordle(), TwentyQuestions(16)], ids=['wordle', 'questions'])
def test_the_secret_always_agrees_with_what_was_answered(world):
    for number, task in enumerate(world.tasks('train', 10)):
        step, generator = world.reset(0, task), Random(number)
        left = len(world.possible())
        while not step.done:
            step = world.step(generator.choice(world.legal()))
            assert task['secret'] in world.possible() and len(world.possible()) <= left
            left = len(world.possible())

def test_hidden_words_and_games_are_apart():
    def of(world, split, n): return {tuple(sorted(task.items())) for task in world.tasks(split, n)}
    assert not of(Wordle(), 'train', 30) & of(Wordle(), 'test', 6)
    assert not of(TwentyQuestions(), 'train', 30) & of(TwentyQuestions(), 'test', 12)
    assert all(len(set(word)) and len(word) == 5 for word in WORDS) and len(set(WORDS)) == len(WORDS)

def test_all_things_can_be_told_apart():
    "No two rows of a table are alike."
    for table, n in (('objects', 32), ('cities', 24)):
        rows = [frozenset(row) for row in TwentyQuestions(n, table).table.values()]
        assert len(set(rows)) == len(rows) == n

@pytest.mark.parametrize('wrong, said', [
    (lambda: Wordle(19), 'words=19'), (lambda: Wordle(horizon=0), 'horizon=0'), (lambda: Wordle(split='all'), 'split'),
    (lambda: TwentyQuestions(1), 'things=1'), (lambda: TwentyQuestions(33), 'things=33'),
    (lambda: TwentyQuestions(table='x'), "table='x'"), (lambda: Wordle().reset(0, dict(secret='zzzzz')), 'tasks'),
    (lambda: TwentyQuestions().reset(0, dict(secret='cat', hint='x')), 'hint')])
def test_bad_arguments_are_named(wrong, said):
    with pytest.raises(ValueError, match=said): wrong()

@pytest.mark.parametrize('said', ['', 'z'*10_000, 'c r a n', '12345', 'crane crane', '\x1b[31m', 'ask', 'guess',
    'ask x'])
def test_what_is_no_guess_costs_a_turn(said):
    for world in (Wordle(), TwentyQuestions()):
        world.reset(0)
        step = world.step(said)
        assert step.reward['player'] == -1 and step.info['invalid'] and not step.done
        assert len(step.observation) < 200

def test_an_update_follows_the_returns(tmp_path):
    "A policy plays, returns differ, and the gradient is not zero."
    world = TwentyQuestions(2, horizon=6)
    policy = tiny_policy(world, steps=40, pool=128, progress=False)
    batch = Batch.from_episodes(play(policy, world, range(4), 4, max_turns=6, max_tokens=3))
    assert len(set(batch.episodes.outcome.tolist())) > 2
    recipe = recipes.grpo(steps=1, groups=4, group_size=4, max_turns=6, max_tokens=3, test_tasks=0)
    row = train(policy, world, recipe, tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0
