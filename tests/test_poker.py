"Kuhn, Leduc and exact exploitability: what a notebook cell cannot show."
import itertools, math
from random import Random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env.kuhn import Kuhn, cards, equilibrium
from agentlab.env.leduc import Leduc, ranks, solution
from agentlab.env.protocol import Env, Step, canonical, check_env, random_states
from agentlab.env.two_seats import outlook
from agentlab.selfplay.exploitability import (action_logps, action_values, best_response, cfr, cfr_averages,
    check_strategy, game_tree, game_value, legal_mass, nash_conv,
    policy_strategy, reach, strategy_book, strategy_frame, strategy_of,
    strategy_player, uniform)
from later import deferred

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32)
games = st.sampled_from([Kuhn, Leduc])
trees = {}

def tree_of(game):
    "The tree of a game, walked once."
    if game not in trees: trees[game] = game_tree(game())
    return trees[game]

def draw_strategy(tree, seed):
    "Random probabilities, some of them 0."
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(tree.legal.shape, generator=generator, dtype=torch.float64)
    weights = torch.where(torch.rand(tree.legal.shape, generator=generator) < .2, 0., weights) + 1e-9
    return strategy_of(tree, lambda s: weights[tree.situations.index(s), :len(s.legal)].tolist())

def walk(game, seed, task=None, turns=50):
    "Steps of a game of random legal moves."
    generator, steps = Random(seed), [game.reset(0, task)]
    while not steps[-1].done and len(steps) < turns: steps.append(game.step(generator.choice(steps[-1].info['legal'])))
    return steps

# the games

@few
@given(games, seeds)
def test_zero_sum_and_finished(make, seed):
    "Every game of legal moves ends, nothing is paid before the end, and the seats pay each other within the stakes."
    game = make()
    task = Random(seed).choice(game.deals())
    low, high = game.reset(0, task) and game.stakes('first')
    steps = walk(game, seed, task)
    assert steps[-1].done and all(not any(step.reward.values()) for step in steps[:-1])
    paid = steps[-1].reward
    assert paid['first'] == -paid['second'] and low <= paid['first'] <= high
    assert steps[-1].info['success'] == {seat: paid[seat] > 0 for seat in game.seats} and not steps[-1].info['invalid']

def beats(one, two, public=None):
    "Which of two hands is stronger: 1, 0, -1; by sorting."
    rank = lambda card: (card == public, 'JQK'.index(card))
    return (rank(one) > rank(two)) - (rank(one) < rank(two))

def test_kuhn_against_its_rules():
    "Every deal and every order of moves, against the table on the page."
    table = {'pass pass': 1, 'bet bet': 2, 'pass bet bet': 2}
    for deal in itertools.permutations(cards, 2):
        for played, stake in table.items():
            game = Kuhn()
            game.reset(0, dict(cards=list(deal)))
            for text in played.split(): step = game.step(text)
            assert step.done and step.reward['first'] == stake*beats(*deal)
        for played, paid in {'bet pass': 1, 'pass bet pass': -1}.items():
            game = Kuhn()
            game.reset(0, dict(cards=list(deal)))
            for text in played.split(): step = game.step(text)
            assert step.done and step.reward['first'] == paid

def leduc_by_hand(deal, moves):
    "What the first seat is paid, computed with a ledger instead of the game."
    paid, seat, raise_by, calls = [1, 1], 0, 2, 0
    for turn, move in enumerate(moves):
        if move == 'fold': return -paid[0] if seat == 0 else paid[1]
        paid[seat] = max(paid) + (raise_by if move == 'raise' else 0)
        calls = calls + 1 if move == 'call' else 0
        closed = move == 'call' and (calls == 2 or (turn and moves[turn - 1] == 'raise'))
        if closed and raise_by == 4: return paid[0]*beats(deal[0], deal[1], deal[2])
        seat, raise_by, calls = (0, 4, 0) if closed else (1 - seat, raise_by, calls)
    raise AssertionError('not finished')

@pytest.mark.parametrize('seed', range(4))
def test_leduc_against_a_ledger(seed):
    "The payment of random games of every deal is what a second implementation says; half of them are never folded."
    generator, game = Random(seed), Leduc()
    for number, task in enumerate(game.deals()):
        moves, step = [], game.reset(0, task)
        while not step.done:
            moves.append(generator.choice([text for text in step.info['legal'] if text != 'fold' or number % 2]))
            step = game.step(moves[-1])
        assert step.reward['first'] == leduc_by_hand(task['cards'], moves), (task, moves)

@few
@given(games, seeds)
def test_nobody_sees_hidden_cards(make, seed):
    "What a seat reads, its state and the expert's move depend on its own card (and the public one, once turned) only."
    game, generator = make(), Random(seed)
    task = generator.choice(game.deals())
    steps, other = walk(game, seed, task), make()
    for turn, step in enumerate(steps[:-1]):
        mine = game.seats.index(step.seat)
        shown = {mine} | ({2} if 'cards' in task and len(task['cards']) == 3
            and task['cards'][2] in step.info['state'][2:] else set())
        same = [deal for deal in game.deals() if all(deal['cards'][i] == task['cards'][i] for i in shown)]
        twin = walk(other, seed, generator.choice(same), turn + 1)[turn]
        # the same random moves lead to the same place
        assert (twin.observation, twin.info['state'], twin.info['legal']) == (step.observation, step.info['state'],
            step.info['legal'])
        assert make is Leduc or other.expert(generator=Random(seed)) == equilibrium_move(step.info['state'], seed)

def equilibrium_move(state, seed):
    bet = equilibrium(state)
    return Random(seed).choices(['pass', 'bet'], [1 - bet, bet])[0]

@few
@given(games, seeds, st.text(max_size=15))
def test_bad_texts(make, seed, text):
    """A text that is no legal move ends the game with the worst that could still come, for its writer; the sum stays
    zero."""
    game = make()
    steps = walk(game, seed, turns=1 + seed % 3)
    if steps[-1].done: return
    seat, step = steps[-1].seat, game.clone().step(text)
    if not step.info['invalid']: return
    other = next(s for s in game.seats if s != seat)
    assert (step.done and step.reward[seat] == -step.reward[other] < 0
        and step.info['success'] == {seat: False, other: True})
    for ending in outlook(game, lambda game: dict.fromkeys(game.moves(), 1), hidden=True):
        assert ending[game.seats.index(seat)] >= step.reward[seat]

@pytest.mark.parametrize('make', [Kuhn, Leduc])
def test_protocol(make):
    """The rules of the protocol, over more seeds than on the page; experts and demonstrators say legal things and
    draw from their generator alone."""
    check_env(make(), seeds=tuple(range(8)))
    before, game = random_states(), make()
    for seed in range(30):
        step, generator = game.reset(seed), Random(seed)
        while not step.done:
            assert {game.expert(), game.expert(.5, generator),
                game.demonstrator(0., generator)} <= set(step.info['legal'])
            step = game.step(game.expert(.3, generator))
    assert random_states() == before
    words = set(game.vocabulary())
    for seed in range(60):
        for step in walk(game, seed):
            assert set(step.observation.split()) | {w for text in step.info['legal'] for w in text.split()} <= words

@pytest.mark.parametrize('make', [Kuhn, Leduc])
@pytest.mark.parametrize('task', [3, 'KQ', {}, dict(cards=None), dict(cards=[]), dict(cards=['K']),
    dict(cards=['K', 'K', 'K']), dict(cards=[None, 1, 2]), dict(cards=['k', 'q', 'j']),
    dict(cards=[['K'], 'Q', 'J'])])
def test_bad_tasks(make, task):
    "A task that is no deal is refused with a remedy."
    with pytest.raises(ValueError, match='a task of'): make().reset(0, task)

# exact exploitability

def test_kuhn_best_response_by_enumeration():
    "No pure strategy of the 64 of each seat beats `best_response`, and one reaches it."
    tree = tree_of(Kuhn)
    for seed, seat in itertools.product(range(4), range(2)):
        strategy, mine = draw_strategy(tree, seed), tree.owner == seat
        values = []
        for pure in itertools.product(range(2), repeat=6):
            other = strategy.clone()
            other[mine] = torch.nn.functional.one_hot(torch.tensor(pure), 2).double()
            values.append(float(game_value(tree, other)[seat]))
        assert math.isclose(max(values), float(game_value(tree, best_response(tree, strategy, tree.seats[seat]))[seat]),
            abs_tol=1e-12)

@few
@given(games, seeds)
def test_no_strategy_beats_the_best_response(make, seed):
    tree = tree_of(make)
    strategy, other = draw_strategy(tree, seed), draw_strategy(tree, seed + 1)
    assert nash_conv(tree, strategy) >= -1e-12
    for i, seat in enumerate(tree.seats):
        mixed = torch.where((tree.owner == i)[:, None], other, strategy)
        assert game_value(tree, best_response(tree, strategy, seat))[i] >= max(game_value(tree, mixed)[i],
            game_value(tree, strategy)[i]) - 1e-12

@settings(max_examples=5, deadline=None)
@given(seeds)
def test_value_by_recursion(seed):
    "The tables give what following every way to play gives, deal by deal."
    tree = tree_of(Kuhn)
    strategy = draw_strategy(tree, seed)
    book, total, game = strategy_book(tree, strategy), 0., Kuhn()
    for deal in game.deals():
        game.reset(0, deal)
        total += sum(pay[0]*p for pay, p in outlook(
            game, lambda game: book[game.mover, canonical(game.facts()['state'])], hidden=True).items())/6
    assert math.isclose(total, float(game_value(tree, strategy)[0]), abs_tol=1e-12)

class Matrix(Env):
    "Two seats choose at once; `table` is paid by the second to the first."
    name, seats = 'matrix', ('row', 'column')
    def __init__(self, table): self.table = table
    def reset(self, seed, task=None):
        self.row = None
        return self.look('row', len(self.table))
    def look(self, seat, n): return Step(seat, 'Choose.', info=dict(legal=[str(i) for i in range(n)], state=seat))
    def step(self, action):
        if self.row is None:
            self.row = int(action)
            return self.look('column', len(self.table[0]))
        won = self.table[self.row][int(action)]
        return Step('row', '', dict(row=won, column=-won), True)

@few
@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_matrix_games(rows, columns, seed):
    "NashConv of a matrix game is max(Ay) - min(xA), also where the seats have different numbers of actions."
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    tree = game_tree(Matrix(table.tolist()))
    strategy = draw_strategy(tree, seed)
    x, y = strategy[0, :rows], strategy[1, :columns]
    assert math.isclose(nash_conv(tree, strategy), float((table @ y).max() - (x @ table).min()), abs_tol=1e-9)
    torch.testing.assert_close(action_values(tree, strategy)[0, :rows], table @ y)

@pytest.mark.parametrize('seed', range(3))
def test_cfr_on_matrix_games(seed):
    table = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tree = game_tree(Matrix(table.tolist()))
    assert nash_conv(tree, cfr(tree, 500)) < .1 < nash_conv(tree, uniform(tree))

def test_known_numbers():
    "As OpenSpiel 2.0.2: NashConv of CFR's averages on Kuhn and Leduc."
    kuhn, leduc = tree_of(Kuhn), tree_of(Leduc)
    found = {t: nash_conv(kuhn, average) for t, average in enumerate(cfr_averages(kuhn, 100), 1)
        if t in (1, 2, 3, 5, 20, 100)}
    for t, known in {1: .91667, 2: .54167, 3: .38889, 5: .24278, 20: .08134, 100: .01645}.items():
        assert abs(found[t] - known) < 1e-5
    found = [nash_conv(leduc, average) for average in cfr_averages(leduc, 3)]
    for x, known in zip(found, (4.747222, 4.122639, 3.597613)): assert abs(x - known) < 1e-6

@pytest.mark.parametrize('make', [Kuhn, Leduc])
def test_reach_adds_up(make):
    "Chance times all seats' parts of the reach is a distribution over the ends of the game."
    tree = tree_of(make)
    ends = tree.at == -1
    for seed in range(3):
        assert math.isclose(float((tree.chance*reach(tree, draw_strategy(tree, seed)).prod(1))[ends].sum()), 1.,
            abs_tol=1e-9)

def test_order_of_deals_does_not_matter():
    deals = Kuhn().deals()
    other = game_tree(Kuhn(), tasks=deals[::-1])
    strategy = draw_strategy(tree_of(Kuhn), 3)
    book = strategy_book(tree_of(Kuhn), strategy)
    again = strategy_of(other, lambda s: book[s.seat, canonical(s.state)])
    assert math.isclose(nash_conv(other, again), nash_conv(tree_of(Kuhn), strategy), abs_tol=1e-12)
    assert (sorted(map(str, strategy_frame(other, again).state))
        == sorted(map(str, strategy_frame(tree_of(Kuhn), strategy).state)))

def test_the_walk_leaves_the_game_alone():
    "The environment that is given is not played on; the strategies that are given are not changed."
    game, before = Kuhn(), random_states()
    game.reset(0, dict(cards=['J', 'K']))
    game.step('pass')
    game_tree(game)
    assert game.played == ('pass',) and random_states() == before
    strategy = uniform(tree_of(Kuhn))
    copy = strategy.clone()
    nash_conv(tree_of(Kuhn), strategy), best_response(tree_of(Kuhn), strategy, 'first'), cfr(tree_of(Kuhn), 2)
    assert torch.equal(strategy, copy)

@pytest.mark.parametrize('strategy, match', [
    (deferred(lambda: torch.ones(12, 3)), 'shape'), (deferred(lambda: torch.ones(12, 2)), 'sum to 1'),
    (deferred(lambda: torch.full((12, 2), math.nan)), 'sum to 1'),
    (deferred(lambda: torch.tensor([[1.5, -.5]]*12)), 'sum to 1'), ([[.5, .5]]*11, 'shape')])
def test_bad_strategies(strategy, match):
    with pytest.raises(ValueError, match=match): check_strategy(tree_of(Kuhn), strategy)

@pytest.mark.parametrize('weights', [[1], [1, 2, 3], [0, 0], [-1, 2], [math.nan, 1], [math.inf, 1], {}, dict(raises=1)])
def test_bad_weights(weights):
    with pytest.raises(ValueError, match='weights gave'): strategy_of(tree_of(Kuhn), lambda s: weights)

def test_not_legal_is_refused():
    "A probability for an action that does not exist, in a game with different numbers of actions."
    tree = tree_of(Leduc)
    strategy = uniform(tree)
    row = int((tree.legal.sum(1) == 2).nonzero()[0])
    strategy[row] = torch.tensor([.5, 0, .5], dtype=torch.float64)
    with pytest.raises(ValueError, match='not legal'): nash_conv(tree, strategy)

class Stateless(Matrix):
    "Names no state."
    def look(self, seat, n): return Step(seat, 'Choose.', info=dict(legal=['0']))

class Forgetful(Kuhn):
    "Keeps the own card out of the state."
    def key(self, seat): return self.played

@pytest.mark.parametrize('env, match', [(Stateless([[1]]), 'needs info'), (Forgetful(), 'Put what the seat knows')])
def test_bad_environments(env, match):
    with pytest.raises(ValueError, match=match): game_tree(env)

def test_players_play_their_strategy():
    "A pure strategy is played as it stands, in every situation that comes up."
    tree, game = tree_of(Leduc), Leduc()
    pure = best_response(tree, uniform(tree), 'first')
    player, book = strategy_player(tree, pure), strategy_book(tree, pure)
    for seed in range(30):
        step, generator = game.reset(seed), Random(seed)
        while not step.done:
            text = player(game, generator)
            if step.seat == 'first': assert book['first', canonical(step.info['state'])][text] == 1.
            step = game.step(text)

def test_the_solution_is_kept():
    "Computed once; a strategy for every situation; nearly an equilibrium after 30 iterations already."
    found, tree = solution(30), tree_of(Leduc)
    assert solution(30) is found and len(found) == len(tree.situations)
    assert nash_conv(tree, strategy_of(tree, lambda s: found[canonical(s.state)])) < .7
    assert Leduc(iterations=30).reset(0).info['legal'] and set(ranks) == {'J', 'Q', 'K'}

# policies

@pytest.fixture(scope='module')
def policy():
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model
    tokenizer = word_tokenizer(Leduc().vocabulary() + ['pass', 'bet', '.'])
    return Policy(tiny_model(len(tokenizer), 256), tokenizer)

def test_policy_strategy_one_by_one(policy):
    "The batched numbers are those of a plain forward over each conversation; small batches change nothing."
    tree = tree_of(Kuhn)
    logps = action_logps(tree, policy)
    torch.testing.assert_close(action_logps(tree, policy, budget=16), logps, atol=1e-4, rtol=1e-4)
    for situation, row in zip(tree.situations, logps):
        for text, found in zip(situation.legal, row.tolist()):
            texts = [*situation.reads, text]
            rendered = policy.tokenizer.apply_chat_template([dict(role=('user', 'assistant')[i % 2], content=x)
                for i, x in enumerate(texts)], tokenize=False)
            ids = torch.tensor([policy.tokenizer.encode(rendered, add_special_tokens=False)])
            with torch.no_grad(): logits = policy.model(input_ids=ids).logits.log_softmax(-1)
            # one word and the end of turn
            assert math.isclose(float(logits[0, -3, ids[0, -2]] + logits[0, -2, ids[0, -1]]), found, abs_tol=1e-3)
    torch.testing.assert_close(policy_strategy(tree, policy), logps.exp()/legal_mass(logps)[:, None])

def test_policy_on_leduc(policy):
    "Rows with two and three actions; temperature flattens; a system message is read."
    tree = tree_of(Leduc)
    strategy = policy_strategy(tree, policy)
    check_strategy(tree, strategy)
    assert 0 < nash_conv(tree, strategy) < 26 and (action_logps(tree, policy) == -math.inf).equal(~tree.legal)
    hot = policy_strategy(tree, policy, temperature=50.)
    assert (hot - uniform(tree)).abs().max() < .1 < (strategy - uniform(tree)).abs().max()
    kuhn = tree_of(Kuhn)
    assert not torch.allclose(policy_strategy(kuhn, policy, system='bet'), policy_strategy(kuhn, policy))
