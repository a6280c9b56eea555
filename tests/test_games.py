"""Games for several seats under random play, nonsense and their own experts: what a page's cells cannot show for
every seed."""
import json
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from agentlab.env.matrix_games import (MatrixGame, always, prisoners_dilemma, pure_equilibria, rock_paper_scissors,
    stag_hunt, symmetric, tit_for_tat)
from agentlab.env.negotiation import Negotiation, deals, draw_goods, efficiency, fairness, nash_solution, pareto_front
from agentlab.env.nim import Nim, lost
from agentlab.env.protocol import EnvError, canonical, check_env, check_step, random_states, split_of, splits, tidy
from agentlab.env.signals import Signals
from agentlab.env.tictactoe import TicTacToe, canonical_board, value
from agentlab.env.two_seats import expert_player, play_game, random_player

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**64)
makers = dict(
    tictactoe=TicTacToe, nim=Nim, nim_misere=lambda: Nim((2, 2, 1), misere=True),
    nim_drawn=lambda: Nim(heaps=None, split='test'),
    rps=lambda: rock_paper_scissors(3), hunt=lambda: stag_hunt(2), dilemma=lambda: prisoners_dilemma(4),
    signals=Signals,
    signals_long=lambda: Signals(n=3, rounds=3, noise=.4), negotiation=Negotiation,
    negotiation_short=lambda: Negotiation(limit=2, split='demo'))
zero_sum = ['tictactoe', 'nim', 'nim_misere', 'nim_drawn', 'rps']
drawn = ['nim_drawn', 'signals', 'signals_long', 'negotiation', 'negotiation_short']
names = st.sampled_from(sorted(makers))
texts = st.one_of(st.sampled_from(['1', 'a 1', 'rock', 'ka', 'sun', 'offer 0 0 0', 'accept', 'accept accept',
    'offer 1 1', 'a 0', 'a -1', '\u0661', 'x'*5000, '1 '*2000]),
    st.text('abc 123.\n\0acceptofrksun\u00e9\U0001F511', max_size=20))
dress = [str, str.upper, str.title, lambda text: f'  {text} .', lambda text: f'{text}.\n',
    lambda text: text.replace(' ', '  \t')]

def random_play(game, seed, task=None):
    "All steps of a game of random legal moves."
    generator, steps = Random(seed), [game.reset(seed, task)]
    while not steps[-1].done: steps.append(game.step(generator.choice(steps[-1].info['legal'])))
    return steps

def paid(game, steps):
    "What every seat was paid in all."
    return {seat: sum(step.reward.get(seat, 0.) for step in steps) for seat in game.seats}

# ---- every game

@pytest.mark.parametrize('name', sorted(makers))
def test_the_protocol(name):
    report = check_env(makers[name](), seeds=range(4), in_turn=True)
    assert set(report.values()) == {'ok'}

@few
@given(names, seeds)
def test_random_play_keeps_the_rules(name, seed):
    game = makers[name]()
    steps = random_play(game, seed)
    for before, step in zip(steps, steps[1:]):
        check_step(step, game, before.seat)
        assert set(step.reward) == set(game.seats) and not step.info['invalid'] and not step.info['truncated']
        assert step.info['success'] is False or step.done
        assert not step.done or step.info['legal'] == []
        assert set(map(tidy, before.info['legal'])) == set(before.info['legal'])
        assert json.loads(canonical(step.info['state']))[0] == step.seat
    assert set(steps[-1].info['success']) == set(game.seats)
    assert game.totals == paid(game, steps)
    with pytest.raises(EnvError, match='call reset'): game.step('1')

@few
@given(st.sampled_from(zero_sum), seeds, st.integers(0, 6), texts)
def test_zero_sum_games_pay_nothing_in_all(name, seed, turns, text):
    game, generator = makers[name](), Random(seed)
    step = game.reset(seed)
    while not step.done:
        step = game.step(text if game.turns == turns else generator.choice(step.info['legal']))
        assert sum(step.reward.values()) == 0
        assert not step.done or sum(step.info['success'].values()) <= 1

@few
@given(names, seeds, st.integers(0, 8), texts)
def test_a_bad_text_ends_the_game_at_any_moment(name, seed, turns, text):
    game, generator = makers[name](), Random(seed)
    step = game.reset(seed)
    while not step.done and game.turns < turns: step = game.step(generator.choice(step.info['legal']))
    if step.done or tidy(text) in step.info['legal']: return
    seat, (least, _), twin = step.seat, game.stakes(step.seat), game.clone()
    end = game.step(text)
    assert end.done and end.info['invalid'] and end.info['success'][seat] is False
    assert end.reward[seat] == least
    for move in step.info['legal'][:5]:  # no legal way on is worse
        branch = twin.clone()
        steps = [branch.step(move)]
        while not steps[-1].done: steps.append(branch.step(generator.choice(steps[-1].info['legal'])))
        assert paid(game, steps)[seat] >= least

@few
@given(names, seeds, st.integers(0, 8), st.sampled_from(dress))
def test_upper_case_spaces_and_a_full_stop_are_forgiven(name, seed, turns, dressed):
    game, generator = makers[name](), Random(seed)
    step = game.reset(seed)
    while not step.done and game.turns < turns: step = game.step(generator.choice(step.info['legal']))
    if step.done: return
    twin, move = game.clone(), generator.choice(step.info['legal'])
    assert game.step(dressed(move)) == twin.step(move)

@few
@given(names, seeds, seeds)
def test_same_seed_same_game_and_no_global_random_state(name, seed, other):
    game, before = makers[name](), random_states()
    first = random_play(game, seed)
    random_play(game, other)
    assert random_play(game, seed) == first == random_play(makers[name](), seed)
    play_game(game, dict.fromkeys(game.seats, expert_player), Random(seed))
    assert random_states() == before

@few
@given(names, seeds, seeds, st.integers(0, 6))
def test_clones_are_independent(name, seed, other, turns):
    game, generator = makers[name](), Random(seed)
    step = game.reset(seed)
    while not step.done and game.turns < turns: step = game.step(generator.choice(step.info['legal']))
    if step.done: return
    def onward(game, seed, step):
        steps, generator = [step], Random(seed)
        while not steps[-1].done: steps.append(game.step(generator.choice(steps[-1].info['legal'])))
        return steps
    stray, twin = game.clone(), game.clone()
    onward(stray, other, step)
    assert onward(game, seed, step) == onward(twin, seed, step)

@few
@given(names, seeds)
def test_every_word_is_in_the_vocabulary(name, seed):
    game = makers[name]()
    known = set(game.vocabulary())
    assert len(known) < 60
    for step in [*random_play(game, seed), game.reset(seed), game.step('nonsense')]:
        for text in [step.observation, *step.info['legal']]: assert set(text.replace('.', ' . ').split()) <= known, text

@few
@given(names, seeds, st.integers(0, 8))
def test_expert_and_demonstrator_play_legal_moves(name, seed, turns):
    game, generator = makers[name](), Random(seed)
    step = game.reset(seed)
    while not step.done and game.turns < turns: step = game.step(generator.choice(step.info['legal']))
    if step.done: return
    before = game.clone()
    for move in (game.expert(), game.expert(generator=generator), game.expert(1., generator),
                 game.demonstrator(generator=generator), game.demonstrator()):
        assert move in step.info['legal']
    assert vars(game) == vars(before)  # asking changes nothing
    with pytest.raises(ValueError, match='generator'): game.expert(.5)

@pytest.mark.parametrize('name', drawn)
def test_tasks_are_deterministic_and_can_be_dealt(name):
    game = makers[name]()
    for split in splits:
        tasks = game.tasks(split, 8)
        assert tasks == makers[name]().tasks(split, 8) and len(tasks) == 8
        assert json.loads(json.dumps(tasks)) == tasks
        for task in tasks:
            assert random_play(game, 0, task)[0] == game.reset(0, task)
            assert name.startswith('signals') or split_of(task) == split

# ---- what theory says

@few
@given(seeds)
def test_tictactoe_expert_never_loses_and_two_draw(seed):
    game = TicTacToe()
    assert play_game(game, dict(x=expert_player, o=random_player), Random(seed))[1]['x'] >= 0
    assert play_game(game, dict(x=random_player, o=expert_player), Random(seed))[1]['o'] >= 0
    assert play_game(game, dict(x=expert_player, o=expert_player), Random(seed))[1] == dict(x=0., o=0.)

@few
@given(seeds)
def test_tictactoe_value_is_the_same_for_equal_boards(seed):
    board = random_play(TicTacToe(), seed)[-2].info['state'][1]
    turned, mirrored = ''.join(board[i] for i in (6, 3, 0, 7, 4, 1, 8, 5, 2)), board[::-1]
    assert canonical_board(board) == canonical_board(turned) == canonical_board(mirrored)
    assert value(board) == value(turned) == value(mirrored)

@few
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.booleans(), seeds, st.booleans())
def test_nim_expert_wins_every_won_game(heaps, misere, seed, expert_too):
    game, other = Nim(tuple(heaps), misere), expert_player if expert_too else random_player
    winner, loser = game.seats[::-1] if lost(heaps, misere) else game.seats
    assert play_game(game, {winner: expert_player, loser: other}, Random(seed))[1] == {winner: 1., loser: -1.}

@few
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    min_size=n, max_size=n), min_size=n, max_size=n)))
def test_pure_equilibria_are_the_cells_nobody_leaves(payoffs):
    n, found = range(len(payoffs)), pure_equilibria(payoffs)
    for i in n:
        for j in n:
            row, column = payoffs[i][j]
            gain = any(payoffs[k][j][0] > row for k in n) or any(payoffs[i][k][1] > column for k in n)
            assert ((i, j) in found) != gain

@few
@given(st.sampled_from(['rps', 'hunt', 'dilemma']), seeds, st.integers(0, 3))
def test_column_does_not_see_the_move_of_this_round(name, seed, rounds):
    game, generator = makers[name](), Random(seed)
    game.reset(0)
    for _ in range(2*min(rounds, game.rounds - 1)): game.step(generator.choice(game.moves()))
    answers = [game.clone().step(move) for move in game.moves()]
    assert all(answer == answers[0] for answer in answers) and answers[0].seat == 'column'

def test_tit_for_tat_loses_at_most_one_temptation():
    for rounds in (1, 2, 10):
        game = prisoners_dilemma(rounds)
        totals = play_game(game, dict(row=tit_for_tat, column=always('defect')), Random(0))[1]
        assert totals == dict(row=rounds - 1., column=rounds + 4.)
        assert play_game(game, dict(row=tit_for_tat,
            column=tit_for_tat), Random(0))[1] == dict(row=3.*rounds, column=3.*rounds)

@few
@given(st.integers(2, 8), st.integers(1, 4), seeds)
def test_signals_by_the_convention_are_always_right_without_noise(n, rounds, seed):
    game = Signals(n, rounds)
    step, totals = play_game(game, dict.fromkeys(game.seats, expert_player), Random(0), seed)
    assert totals == dict(sender=rounds, receiver=rounds) and all(step.info['success'].values())

@few
@given(seeds)
def test_the_receiver_sees_nothing_but_the_word(seed):
    game = Signals(noise=.3)
    heard = [(game.reset(seed, dict(objects=[thing])), game.step('mi'))[1] for thing in game.objects]
    assert all(step == heard[0] for step in heard)

@few
@given(seeds, st.sampled_from(['ka', 'lo', 'mi', 'ne']), st.sampled_from(['sun', 'moon', 'star', 'rain']))
def test_the_sender_never_learns_what_was_heard(seed, word, pick):
    def second(seed):
        game = Signals(rounds=2, noise=1.)
        return [game.reset(seed, dict(objects=['moon', 'rain'])), game.step(word), game.step(pick)][-1]
    assert second(seed) == second(0) and second(seed).info['state'] == ('sender', (('moon', word, pick),), 'rain')

@few
@given(seeds)
def test_negotiation_solutions(seed):
    task, game = draw_goods(Random(seed)), Negotiation()
    every, front, (kept, pays) = deals(task), pareto_front(task), nash_solution(task)
    assert kept in front and all(pays[0]*pays[1] >= one*two - 1e-9 for one, two in every.values())
    for pay in every.values(): assert any(one >= pay[0] and two >= pay[1] for one, two in front.values())
    totals = play_game(game, dict.fromkeys(game.seats, expert_player), Random(seed), 0, task)[1]
    # what first got
    kept = game.offers[-1] if len(game.offers) % 2 else tuple(count - keep
        for count, keep in zip(task['counts'], game.offers[-1]))
    assert tuple(totals.values()) == every[kept]
    assert 0 <= fairness(totals) <= 1 and 0 < efficiency(task, totals) <= 1 + 1e-9

@few
@given(seeds, st.integers(0, 5))
def test_negotiators_know_their_own_values_only(seed, turns):
    task, generator, one, two = draw_goods(Random(seed)), Random(seed), Negotiation(), Negotiation()
    step = one.reset(0, task)
    while not step.done and one.turns < turns:
        step = one.step(generator.choice(step.info['legal'][1:] or step.info['legal']))
    if step.done: return
    other = 1 - one.seats.index(step.seat)
    values = [task['values'][1 - other] if seat == other else own for seat, own in enumerate(task['values'])]
    seen = two.reset(0, task | dict(values=values))
    for offer in one.offers: seen = two.step('offer ' + ' '.join(map(str, offer)))
    assert seen == step and two.advice() == one.advice()

def test_forfeit_is_what_one_asks_for():
    for game in (TicTacToe(forfeit=-1.5), Nim(forfeit=-1.5),
                 MatrixGame(symmetric([[0, 1], [2, 3]]), ('a', 'b'), forfeit=-1.5), Signals(forfeit=-1.5),
                 Negotiation(forfeit=-1.5)):
        game.reset(0)
        step = game.step('nonsense')
        assert (step.reward[game.seats[0]] == -1.5
            and step.reward[game.seats[1]] == game.stakes(game.seats[1])[0 if game.shared_loss else 1])
    with pytest.raises(ValueError, match='forfeit'): TicTacToe(forfeit='much')
