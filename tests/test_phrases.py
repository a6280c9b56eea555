"LSPO in the spirit of its abstract: what is said, clusters, the game of clusters, and what it hides."
import pytest
import torch

from agentlab.env import Kuhn, check_env
from agentlab.selfplay.exploitability import (cfr, game_tree, game_value, nash_conv, strategy_of, uniform)
from agentlab.selfplay.phrases import PHRASES, TalkedKuhn, bags, kmeans, latent_game, lifted, lspo, preferred
from later import deferred

FEW = {'I am strong': (1, 0), 'I am very strong': (1, 0), 'I am weak': (0, 1), 'no word': (0, 0)}

def small_game(): return TalkedKuhn(dict(first=FEW, second=FEW))

GAME = deferred(small_game)
TREE = deferred(lambda: game_tree(small_game()))

def draw(seed=0): return torch.Generator().manual_seed(seed)

def honest(situation):
    if situation.legal[0] in ('pass', 'bet'): return [1, 1]
    worth = dict(J=(0, 1), Q=(0, 0), K=(1, 0))[situation.state[1]]
    return [7 if FEW[text] == worth else 1 for text in situation.legal]

def test_it_keeps_the_rules_of_an_environment():
    assert not [rule for rule, said in check_env(small_game()).items() if said != 'ok']

@pytest.mark.parametrize('king, jack, pays', [('no word', 'no word', 2), ('I am weak', 'no word', 1.5),
    ('no word', 'I am strong', 2.5), ('I am weak', 'I am strong', 2),
    ('I am strong', 'I am weak', 2)])
def test_a_showdown_uncovers_lies(king, jack, pays):
    game = small_game()
    game.reset(0, dict(cards=['K', 'J']))
    paid = [game.step(move).reward for move in (king, jack, 'bet', 'bet')][-1]
    assert paid == dict(first=pays, second=-pays)
    game.reset(0, dict(cards=['K', 'J']))
    assert [game.step(move).reward for move in (king, jack, 'bet', 'pass')][-1] == dict(first=1, second=-1)

def test_talk_that_costs_nothing_leaves_the_value_of_kuhn():
    tree = game_tree(TalkedKuhn(dict(first=FEW, second=FEW), lie=0.))
    assert abs(float(game_value(tree, cfr(tree, 300))[0]) + 1/18) < .01
    assert abs(float(game_value(game_tree(Kuhn()), cfr(game_tree(Kuhn()), 300))[0]) + 1/18) < .01

@pytest.mark.parametrize('said', [dict(first=FEW), dict(first=FEW, second={'no word': (0, 0)})])
def test_a_society_of_one_and_a_talk_of_one_text_are_refused(said):
    with pytest.raises(ValueError, match='a society of one'): TalkedKuhn(said)

def test_clusters_are_those_of_the_points():
    x = torch.tensor([[0., 0], [0, 1], [9, 9], [9, 8]], dtype=torch.float64)
    for seed in range(5):
        found = kmeans(x, 2, draw(seed), torch.ones(4)).tolist()
        assert found[0] == found[1] != found[2] == found[3]
    assert sorted(kmeans(x, 4, draw(), torch.ones(4)).tolist()) == [0, 1, 2, 3]
    line = torch.tensor([[0.], [1], [3]], dtype=torch.float64)
    heavy = [kmeans(line, 2, draw(seed), torch.tensor([9., 9, 0])).tolist() for seed in range(3)]
    assert all(one[0] != one[1] == one[2] for one in heavy)  # what was never said moves no centre
    with pytest.raises(ValueError, match='k=3'): kmeans(x[[0, 0, 1]], 3, draw(), torch.ones(3))
    assert bags(['a b', 'b b']).tolist() == [[1, 1], [0, 2]]

def lifted_solution(labels, iterations=200):
    "(exploitability in clusters, in words, values in clusters, in words) of what CFR finds over clusters."
    labels, once = dict.fromkeys(GAME.seats, torch.tensor(labels)), dict.fromkeys(GAME.seats, torch.ones(4))
    latent = game_tree(latent_game(GAME, labels, once))
    played = cfr(latent, iterations)
    rows = lifted(GAME, TREE, latent, played, labels)
    evenly = torch.where((TREE.turn == 0)[:, None], rows/rows.sum(1, keepdim=True), rows)
    return nash_conv(latent, played), nash_conv(TREE, evenly), latent, rows

def test_exploitability_in_clusters_is_not_that_in_words():
    "A cluster of a claim to be strong and one to be weak looks solved and is not; one of equal claims is."
    there, here, _, _ = lifted_solution([0, 0, 0, 1])
    assert there < .03 and here > 3*there
    there, here, _, _ = lifted_solution([0, 0, 1, 2])
    assert here < .1 and abs(here - there) < .06

def test_a_cluster_claims_what_its_texts_claim_as_often_as_they_were_said():
    labels = dict.fromkeys(GAME.seats, torch.tensor([0, 0, 0, 1]))
    game = latent_game(GAME, labels, dict.fromkeys(GAME.seats, torch.tensor([1., 1, 2, 5])))
    torch.testing.assert_close(torch.tensor(game.said['first']['z0']), torch.tensor([.5, .5]), atol=1e-5, rtol=0)
    assert game.said['second']['z1'] == (0., 0.)

def test_one_step_of_dpo_by_hand():
    "beta .1, at the reference: the odds of winner and loser move by e^.1; ties and bets do not move."
    even, says = uniform(TREE), TREE.turn == 0
    pair = torch.tensor([3, 1]).expand(1, int(says.sum()), 2)
    score = torch.zeros_like(even)
    score[:, 3] = 1
    moved = preferred(TREE, even, pair, score, steps=1)
    assert ((moved[says, 3]/moved[says, 1]).log() - .1).abs().max() < 1e-6
    assert ((moved[says, 0]/moved[says, 2]).log()).abs().max() < 1e-6 and moved[~says].equal(even[~says])
    assert (preferred(TREE, even, pair, torch.ones_like(even)) - even).abs().max() < 1e-6

def test_the_loop_is_seeded_and_random_pairs_do_worse():
    def fell(**how):
        talk, generator, ends = strategy_of(TREE, honest), draw(3), []
        for k in (3, 3):
            before, talk = lspo(GAME, TREE, talk, k, generator, n=3, iterations=60, **how)
            ends += [nash_conv(TREE, before), nash_conv(TREE, talk)]
        return ends[0] - ends[-1]
    assert fell() == fell()
    drawn = draw(4)
    assert fell() > fell(rate=lambda score, talk: torch.rand(score.shape, generator=drawn, dtype=torch.float64))
    with pytest.raises(ValueError, match='n=5'): lspo(GAME, TREE, uniform(TREE), 2, draw(), n=5)
    assert len(PHRASES) == 12 and set(PHRASES.values()) == {(1, 0), (0, 1), (0, 0)}
