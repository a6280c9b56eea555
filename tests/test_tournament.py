"Tournaments that go on when players, files and environments fail, and populations that grow by best responses."
import json
import time
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env import Kuhn, TicTacToe, expert_player, random_player
from agentlab.env.isolation import Isolated
from agentlab.env.matrix_games import MatrixGame, always, rock_paper_scissors
from agentlab.env.protocol import EnvError
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model, warm_start
from agentlab.rollout import play_players
from agentlab.selfplay.cross_play import heat_map, load_tournament, tournament
from agentlab.selfplay.exploitability import (game_tree, game_value, nash_conv, policy_strategy, strategy_of,
    uniform)
from agentlab.selfplay.oracles import (Drawn, Matches, exact_answer, exact_match, fictitious, load_population,
    mixed_strategy, mixture_strategy, naive, population_of, psro, replicator,
    risk_averse, save_population, seated)
from agentlab.selfplay.ratings import bradley_terry, rating_frame, results_frame
from agentlab.selfplay.snapshots import Snapshot, load_snapshot
from agentlab.train import recipes, train
from later import deferred

KUHN, RPS = Kuhn(), rock_paper_scissors()

def learner(game=KUHN, hidden=16, seed=0):
    tokenizer = word_tokenizer(game.vocabulary())
    return Policy(tiny_model(len(tokenizer), 128, hidden=hidden, layers=1, seed=seed), tokenizer,
        name=f'learner {seed}')

def stranger():
    tokenizer = word_tokenizer(['a', 'b'])
    return Policy(tiny_model(len(tokenizer), 128, hidden=16, layers=1), tokenizer, name='stranger')

def raises(env, generator): raise KeyError('lost')
def leaves(env, generator): raise SystemExit(3)
def mute(env, generator): return None
SOUND = dict(expert=expert_player, random=random_player)

def missing_for(player, env=KUHN, **how):
    "The table of two sound players and one more; the sound match must be whole."
    table = tournament(SOUND | dict(bad=player), env, games=3, max_tokens=2, **how)
    assert table.known('expert', 'random') and table.known('random', 'expert')
    missing = table.missing()
    assert set(map(frozenset, zip(missing['first'], missing['second']))) == {frozenset(('bad', name)) for name in SOUND}
    assert (missing.wanted == 3).all() and (missing.games == 0).all() and (missing.faults > 0).all()
    assert table.results().games[table.players.index('bad')].sum() == 0  # no loss, no game
    return table, missing

@pytest.mark.parametrize('player, reason',
    [(raises, "KeyError: 'lost'"), (leaves, 'SystemExit: 3'), (mute, 'NoneType')])
def test_a_player_that_fails_leaves_a_hole_with_its_reason(player, reason):
    table, missing = missing_for(player)
    assert missing.reason.str.contains(reason, regex=False).all() and missing.reason.str.contains('bad').all()
    assert (missing.faults == 3).all()
    frame = results_frame(table.results())
    assert frame.rate.isna().sum() == 2 and rating_frame(bradley_terry(table.results())).component.nunique() == 2
    assert table.margins().isnan().sum() == 4

def test_a_seat_that_never_answers_costs_its_limit_once_a_match():
    asked = []
    def hangs(env, generator):
        asked.append(1)
        time.sleep(3)
        return 'pass'
    begun = time.monotonic()
    _, missing = missing_for(hangs, limit=.3)
    assert len(asked) <= 4 and time.monotonic() - begun < 3 and missing.reason.str.contains('TimeoutError').all()

def test_snapshots_that_are_missing_foreign_or_of_another_size(tmp_path):
    policy = learner()
    Snapshot(stranger()).save(tmp_path/'foreign')
    Snapshot(learner(hidden=32)).save(tmp_path/'wide')
    (tmp_path/'torn').write_bytes(b'not a file')
    for name, reason in dict(none='there is no snapshot', foreign='another vocabulary', wide='do not fit',
                             torn='Error').items():
        _, missing = missing_for(tmp_path/name, policy=policy)
        assert missing.reason.str.contains(reason).all(), (name, missing.reason.tolist())
    Snapshot(policy, name='older').save(tmp_path/'older')
    assert not len(tournament(SOUND | dict(older=tmp_path/'older'), KUHN, games=2, max_tokens=2,
        policy=policy).missing())

def test_two_policies_with_different_words_do_not_meet_and_the_others_do():
    game = TicTacToe()
    turned = word_tokenizer(game.vocabulary()[::-1])  # as many tokens, other numbers
    players = dict(one=learner(game), two=learner(game, seed=1), random=random_player,
        turned=Policy(tiny_model(len(turned), 128, hidden=16, layers=1), turned))
    table = tournament(players, game, games=2, max_tokens=2)
    assert ({frozenset(pair) for pair in zip(table.missing()['first'], table.missing()['second'])}
        == {frozenset(('one', 'turned')), frozenset(('two', 'turned'))})
    assert (table.missing().reason.str.contains('different vocabularies').all() and table.known('random', 'turned')
        and table.known('one', 'two'))

def test_a_model_that_breaks_is_a_hole_too():
    policy, broken = learner(), learner(seed=1)
    broken.model.forward = lambda *args, **kw: 1/0
    table = tournament(SOUND | dict(policy=policy, broken=broken), KUHN, games=2, max_tokens=2)
    assert table.missing().reason.str.contains('ZeroDivisionError').all() and len(table.missing()) == 6

class Torn(Kuhn):
    "Breaks where the queen is dealt first, at the reset or at the first move."
    late = False
    def deal(self, task, generator):
        super().deal(task, generator)
        if self.cards[0] == 'Q' and not self.late: raise EnvError('the queen is lost')
    def play(self, move):
        if self.cards[0] == 'Q' and self.late: raise ZeroDivisionError('later')
        return super().play(move)
class TornLater(Torn): late = True

@pytest.mark.parametrize('env, reason', [(Torn(), 'the queen is lost'), (TornLater(), 'later')])
def test_a_fault_of_the_environment_takes_its_deals_out_of_both_seatings(env, reason):
    deals = [dict(cards=list(cards)) for cards in ('KQ', 'QJ', 'JK', 'QK')]
    table = tournament(SOUND | dict(policy=learner()), env, games=8, tasks=deals, max_tokens=2)
    assert len(table.missing()) == 6 and table.missing().reason.str.contains(reason).all()
    # a text that is no move ends a game before it breaks
    assert (table.matches.games == 4).all() and table.matches.faults.between(1, 4).all()
    whole = tournament(SOUND | dict(policy=learner()), KUHN, games=8, tasks=deals, max_tokens=2)
    assert (whole.matches.games == 8).all() and not len(whole.missing())

def test_an_environment_that_hangs_in_a_process_of_its_own_is_a_hole():
    class Hangs(Kuhn):
        def play(self, move):
            while move == 'bet': time.sleep(.1)
            return super().play(move)
    table = tournament(dict(bold=always('bet'), timid=always('pass'), calm=always('pass')), Isolated(Hangs(), limit=1.),
        games=1, pairs=[('bold', 'timid'), ('calm', 'timid')])
    assert (table.known('calm', 'timid') and len(table.missing()) == 2
        and table.missing().reason.str.contains('EnvTimeout').all())

def test_an_environment_that_cannot_begin_gives_a_table_of_holes():
    class Closed(Kuhn):
        def reset(self, seed, task=None): raise OSError('closed today')
    table = tournament(SOUND, Closed(), games=2)
    assert len(table.missing()) == 2 and table.missing().reason.str.contains('closed today').all()
    heat_map(table)
    bradley_terry(table.results())

def test_a_tournament_that_is_killed_goes_on_and_ends_with_the_same_table(tmp_path):
    policy = learner()
    players = SOUND | dict(policy=policy, old=Snapshot(learner(seed=1), name='old'), honest=lambda env, generator: 'bet'
        if env.own(env.mover) == 'K' else 'pass')
    whole = tournament(players, KUHN, games=3, seed=5, max_tokens=2)
    class Killed(BaseException): pass
    def keep(table):
        table.save(tmp_path/'table.json')
        if len(table.rows) == 8: raise Killed
    with pytest.raises(Killed): tournament(players, KUHN, games=3, seed=5, max_tokens=2, on_match=keep)
    half, played = load_tournament(tmp_path/'table.json'), []
    again = tournament(dict(reversed(players.items())), KUHN, games=3, seed=5, max_tokens=2, known=half,
        on_match=played.append)
    assert len(half.rows) == 8 and len(played) == 6 and again.rows == whole.rows and again.facts == whole.facts
    assert load_tournament(again.save(tmp_path/'all.json')).rows == whole.rows
    assert tournament(players, KUHN, games=3, seed=6, max_tokens=2).rows != whole.rows
    with pytest.raises(ValueError, match='known table has seed=5'):
        tournament(players, KUHN, games=3, seed=6, max_tokens=2, known=half)

@given(st.lists(st.integers(-3, 3), min_size=9, max_size=9), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_payoffs_of_a_zero_sum_game_are_antisymmetric_and_those_of_the_table(cells, games):
    words, table = ('a', 'b', 'c'), torch.tensor(cells, dtype=torch.float64).view(3, 3)
    game = MatrixGame([[(float(x), -float(x)) for x in row] for row in table.tolist()], words)
    found = tournament({word: always(word) for word in words}, game, games=games)
    wanted = ((table - table.T)/2).fill_diagonal_(0)  # a row player of one seating is the column player of the other
    torch.testing.assert_close(found.margins(), wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.payoffs().fill_diagonal_(0), wanted, atol=1e-12, rtol=0)
    assert torch.equal(found.margins(), -found.margins().T)

def test_sampled_margins_are_antisymmetric_with_policies_at_the_table():
    players = SOUND | dict(policy=learner(), other=learner(seed=1))
    table = tournament(players, KUHN, games=5, max_tokens=2)
    assert (torch.equal(table.margins(), -table.margins().T)
        and torch.allclose(table.margins(), table.payoffs().nan_to_num(0)))
    frame = table.frame()
    assert (frame.wins + frame.draws + frame.losses == frame.games).all() and (frame.games == 10).all()

# PSRO

CYCLE = deferred(lambda: torch.tensor([[0., -1, 1], [1, 0, -1], [-1, 1, 0]], dtype=torch.float64))
def cell(one, other): return CYCLE[one, other], CYCLE[other, one]
def best(side, others, shares, number): return int((CYCLE[:, list(others)] @ shares).argmax())
def gain(p): return float((CYCLE[:, list(p.rows)] @ p.shares[0]).max())

@pytest.mark.parametrize('begin', [0, 1, 2])
def test_psro_on_a_cycle_becomes_uniform_and_naive_self_play_does_not(begin):
    run = list(psro(population_of([begin]), cell, best, replicator, 3))
    assert set(run[-1].rows) == {0, 1, 2} and torch.allclose(run[-1].shares[0],
        torch.full((3,), 1/3, dtype=torch.float64), atol=1e-3)
    assert [gain(p) for p in psro(population_of([begin]), cell, best, naive, 9)] == [1.]*9
    slow = [gain(p) for p in psro(population_of([begin]), cell, best, fictitious, 30)]
    assert .03 < slow[-1] < .15 < slow[8]

@pytest.fixture(scope='module')
def kuhn_tree(): return game_tree(KUHN)

def grow(tree, meta, size, begin=None):
    return list(psro(begin or population_of([uniform(tree)], [uniform(tree)]), exact_match(tree), exact_answer(tree),
        meta, size))

def test_psro_comes_near_the_equilibrium_of_kuhn(kuhn_tree):
    curve = [nash_conv(kuhn_tree, mixed_strategy(kuhn_tree, p)) for p in grow(kuhn_tree, replicator, 10)]
    assert curve[0] > .9 and all(a > b for a, b in zip(curve[:6], curve[1:7])) and curve[-1] < .02
    circle = [nash_conv(kuhn_tree, mixed_strategy(kuhn_tree, p)) for p in grow(kuhn_tree, naive, 10)]
    assert min(circle) > .3

@given(st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_the_strategy_of_a_mixture_earns_what_the_mixture_earns(kuhn_tree, seed):
    draw = Random(seed)
    some = lambda: strategy_of(kuhn_tree, lambda s: [draw.random() + 1e-3, draw.choice((0., draw.random()))])
    strategies, other = [some() for _ in range(3)], some()
    shares = torch.tensor([draw.random() for _ in range(3)], dtype=torch.float64)
    shares /= shares.sum()
    mixture = mixture_strategy(kuhn_tree, strategies, shares)
    for seat in (lambda x: seated(kuhn_tree, x, other), lambda x: seated(kuhn_tree, other, x)):
        wanted = sum(share*game_value(kuhn_tree, seat(one)) for share, one in zip(shares, strategies))
        torch.testing.assert_close(game_value(kuhn_tree, seat(mixture)), wanted, atol=1e-9, rtol=0)

@pytest.mark.parametrize('meta', [replicator, fictitious, partial(risk_averse, aversion=.2, steps=100)])
def test_a_population_that_was_killed_goes_on(kuhn_tree, tmp_path, meta):
    def write(player, path): path.write_text(json.dumps(player.tolist()))
    def read(path): return torch.tensor(json.loads(path.read_text()), dtype=torch.float64)
    whole = grow(kuhn_tree, meta, 5)
    for p in whole[:3]: save_population(p, tmp_path, write)
    (tmp_path/'row-3').write_text('half a fi')  # killed while the next player was written
    again = grow(kuhn_tree, meta, 5, load_population(tmp_path, read))
    assert [len(p.rows) for p in again] == [3, 4, 5]
    for p in again: save_population(p, tmp_path, write)
    for last in (again[-1], load_population(tmp_path, read)):
        assert torch.equal(last.row, whole[-1].row) and torch.equal(last.column, whole[-1].column)
        assert all(torch.equal(a, b) for a, b in zip((*last.rows, *last.columns),
            (*whole[-1].rows, *whole[-1].columns)))
    assert all(torch.equal(a, b) for a, b in zip(again[-1].shares, whole[-1].shares))

def test_a_missing_match_stops_psro_with_its_reason_and_can_be_played_later():
    stone, matches = always('rock'), Matches(RPS, 3)
    stone.__name__ = 'stone'
    with pytest.raises(ValueError, match="'stone' against 'raises' is missing"):
        next(psro(population_of([stone, raises]), matches, best))
    paper = always('paper')
    paper.__name__ = 'raises'  # the same name, repaired
    p = next(psro(population_of([stone, paper]), Matches(RPS, 3, known=matches.table), best))
    assert p.row.tolist() == [[0, -1], [1, 0]] and p.shares[0][1] > .99

def test_an_oracle_that_learns_finds_paper_and_scissors(tmp_path):
    policy = learner(RPS)
    warm_start(policy, RPS, steps=30, episodes=16, pool=64, lr=1e-2, noise=1.)
    begin, tree = Snapshot(policy), game_tree(RPS)
    def oracle(side, others, shares, number):
        with torch.no_grad():
            for name, x in begin.weights.items(): policy.model.get_parameter(name).copy_(x)
        recipe = recipes.dr_grpo(name='answer', steps=20, groups=8, group_size=8, minibatches=1, lr=2e-2, max_tokens=2,
            loss_per='token', test_tasks=0, checkpoint_every=50, seed=number,
            rollout=play_players, memory=partial(Drawn, players=others, shares=shares.tolist(),
            seats=RPS.seats, groups=8))
        train(policy, RPS, recipe, tmp_path/f'{number}', progress=False)
        return Snapshot(policy, name=f'answer {number}')
    first = Snapshot(policy, oracle(0, (always('scissors'),), torch.tensor([1.]), 0).weights, 'rock')
    *_, p = psro(population_of([first]), Matches(RPS, 10, max_tokens=2), oracle, size=3)
    says = torch.stack([policy_strategy(tree, one) for one in p.rows])  # (players, situations, actions)
    assert says.argmax(-1).tolist() == [[0, 0], [1, 1], [2, 2]] and says.amax(-1).min() > .8
    mixture = [policy_strategy(tree, one) for one in p.rows]
    assert nash_conv(tree, mixture_strategy(tree, mixture, p.shares[0])) < .5 < 1.5 < nash_conv(tree, mixture[-1])
    save_population(p, tmp_path/'saved', lambda one, path: one.save(path))
    again = load_population(tmp_path/'saved', partial(load_snapshot, learner(RPS)))
    assert [one.name for one in again.rows] == ['rock', 'answer 1', 'answer 2'] and torch.equal(again.row, p.row)
