"""Mechanisms that define a system, switched off: context, batch, reward or advantage is another one.

assets/mechanisms.csv.xz names these tests beside those that stand elsewhere: tools/atlas.py.
"""
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import Expectation, cm2, grpo, hgpo, mars, play_by_budget
from agentlab.credit.chunks import ipa_loss
from agentlab.entropy import aepo_advantage
from agentlab.entropy.control import phase_weight
from agentlab.env import HopSearch, KeyDoor
from agentlab.env.kuhn import Kuhn
from agentlab.env.signals import Signals
from agentlab.episodes import Batch
from agentlab.objective import epo, loss_weights
from agentlab.policy.tiny import warm_start
from agentlab.prompt.instruction import Instruction
from agentlab.prompt.population import Population
from agentlab.replay import Experienced, Library, NumberSelection, OwnLibrary, acted_bonus, play_recurring, rl_plus
from agentlab.replay.demonstrations import is_demonstration, play_beside_demonstration
from agentlab.reward import evident
from agentlab.rollout import more_hops, play, play_hops
from agentlab.rollout.players import play_players
from agentlab.rollout.turns import TurnLimit
from agentlab.rollout.windows import with_summaries
from agentlab.train import recipes, train
from agentlab.train.critic import Critic
from agentlab.train.learned import Prior
from small import Paying, small_policy, small_recipe, train_small
from test_python_recipes import Eager
from test_recipes_columns import Coin

def table(**columns): return Batch.from_turns(pd.DataFrame(dict(group=0, t=0) | columns))

def numbers(*values): return torch.tensor(values, dtype=torch.float64)

def differ(on, off):
    assert on.shape == off.shape and on.isfinite().all() and off.isfinite().all() and (on - off).abs().max() > 1e-3

def slope(objective, logp, batch, advantage, **keywords):
    logp = logp.clone().requires_grad_()
    return torch.autograd.grad(objective(logp, batch, advantage, **keywords).sum(), logp)[0]

def moves(rows):
    assert rows and all(row['skipped'] is None and row['grad_norm'] > 1e-5 for row in rows)

# ---- entropy

def test_aepo_advantage():
    open_and_sure = table(episode=[0, 1, 2]).with_action(entropy=numbers(.1, .5, 1.5))
    weighted = partial(aepo_advantage, open_and_sure, torch.ones(3, dtype=torch.float64))
    differ(weighted(coefficient=.2), weighted(coefficient=0.))
    assert weighted()[2] > 1 > weighted()[0]

def banded(**keywords):
    past = table(episode=[0], n_tokens=3, entropy_history=1.).with_action(old_logp=-torch.ones(3))
    return epo(-torch.ones(3), past, torch.zeros(3), torch.tensor([.4, 1., 1.6]), bonus=.1, **keywords)

def test_epo_entropy_bonus(): differ(banded(smooth=0.), banded(smooth=0.)*0)

def test_epo_entropy_smoothing(): differ(banded(smooth=1.), banded(smooth=0.))

def test_epo_entropy_phase():
    early, late = (phase_weight(step, 100) for step in (0, 99))
    assert early != late
    differ(banded(phase=early), banded(phase=late))

# ---- credit and objective

FORKED = dict(episode=[0, 0, 1, 1, 2, 2, 3, 3], t=[0, 1]*4, state=['a', 'c', 'a', 'c', 'b', 'c', 'b', 'c'],
    reward=[0, 2., 0, 4, 0, 0, 0, 2])

def test_hgpo_history(): differ(hgpo(table(**FORKED), scale=None), hgpo(table(**FORKED), history=0, scale=None))

def test_hgpo_weights(): differ(hgpo(table(**FORKED), scale=None), hgpo(table(**FORKED), alpha=0., scale=None))

def test_ipa_chunk_mask():
    "A turn that the trainer finds ten times as likely as the sampler did is left out."
    two = table(episode=0, t=[0, 1]).with_action(old_logp=numbers(-.1, -.1), sampler_logp=numbers(-.1, -2.5))
    masked, all_of_it = (slope(ipa_loss, numbers(-.2, -.2), two, numbers(1, 1), limit=limit) for limit in (5., None))
    assert masked[0] != 0 == masked[1] and (all_of_it != 0).all()

def test_vl_dac_token_clip():
    "The border binds the token that has gone too far, and leaves the other one of its turn."
    turn = table(episode=[0], n_tokens=2).with_action(old_logp=numbers(-1, -1))
    bound, free = (slope(recipes.vl_dac(objective_args=dict(high=high)).objective, numbers(-1, -.8), turn,
        numbers(1, 1)) for high in (.1, 9.))
    assert bound[0] != 0 == bound[1] and (free != 0).all()

def test_lite_ppo_token_loss():
    unequal = table(episode=[0, 1], n_tokens=[1, 4])
    differ(loss_weights(unequal, recipes.lite_ppo().loss_per), loss_weights(unequal, 'episode'))

@pytest.mark.parametrize('game', [partial(Signals, n=3), Kuhn], ids=['together', 'against'])
def test_mars_games(tmp_path, game):
    "A run in which both seats learn; without seats they would be compared with each other."
    game = game()
    recipe = small_recipe(recipes.mars, groups=6, group_size=4, steps=2, minibatches=1, rollout=play_players)
    policy = warm_start(small_policy(game), game, steps=40, episodes=16, pool=64)  # it knows the words
    run = train(policy, game, recipe, tmp_path/'run', progress=False)
    moves(run.rows())
    b = run.episodes(0)
    assert len(b.episodes.seat.unique()) == 2
    b = b.with_turns(reward=b.turns.reward + b.turns.t)  # who moves second is paid more
    differ(mars(b), mars(b.with_episodes(seat=torch.zeros_like(b.episodes.seat))))

@pytest.mark.parametrize('kind', [Critic, Prior])
def test_stop_regressing_heads(kind):
    "A histogram learns other values than a number that is pulled by its square."
    policy = small_policy()
    b = Batch.from_episodes(play(policy, Paying(), range(6), 2, max_tokens=3))
    def learned(**head):
        critic = kind(policy, 0, passes=5, low=-1., high=3., **head)
        critic.read(policy, b, 4096)
        critic.fit(b.spread(b.turns.reward), 0)
        return critic.head.value(critic.hidden).detach()
    differ(learned(bins=51), learned(bins=1))

# ---- rollout

def test_supo_summaries_are_trained():
    policy = small_policy()
    b = Batch.from_episodes(with_summaries(policy, Paying(), range(3), 3, window=40, summary_tokens=4,
        instruction='Key Chest.', max_tokens=3))
    summary = b.spread(b.turns.summary) > 0
    assert 0 < summary.sum() < len(summary)
    loss = loss_weights(b)*grpo(b)
    differ(loss, loss_weights(b.with_action(weight=(~summary).float()))*grpo(b))
    assert (loss[summary] != 0).any()

def test_turn_control_trains(tmp_path):
    moves(train_small(tmp_path/'run', env=TurnLimit(Paying(horizon=9), 2, 3), steps=2, groups=4, group_size=4).rows())

def test_retool_trains(tmp_path):
    "GRPO on programs: what the tool said is read, and only what the agent said is learned from."
    env = Eager()
    run = train(small_policy(env), env, small_recipe(recipes.grpo, groups=4, group_size=6, max_tokens=24, steps=2),
        tmp_path/'run', progress=False)
    moves(run.rows())
    b = run.episodes(0)
    assert (b.turns.tool > 0).any() and grpo(b).any() and len(grpo(b)) == len(b.actions) < len(b.tokens)

def test_v05_budget():
    "Tasks whose outcomes contradict the prior are played further; where an episode is too dear, nobody is."
    policy, env = small_policy(), Coin()
    played = lambda **how: play_by_budget(policy, env, range(6), 2, max_tokens=4, **how)
    sizes = lambda episodes: [sum(e.group == g for e in episodes) for g in range(6)]
    more, fewer = played(prior=.9, cap=7), played(prior=.9, cost=9.)
    assert sizes(fewer) == [2]*6 and max(sizes(more)) > 2 and max(sizes(more)) <= 7
    assert len({e.game for e in more}) == len(more)
    memory = Expectation()
    memory.read(table(episode=[0, 1], outcome=[1., 1.]), 0)
    other = Expectation()
    other.restore(memory.tensors())
    assert memory.plan(1) == other.plan(1) != Expectation().plan(1)

def test_searchgym_hops():
    env = HopSearch(hops=2)
    said = lambda hops: play_hops(small_policy(env), env, [3], hops=hops, max_tokens=2)[0].turns[0].observation
    assert said(1).count(' of ') < said(2).count(' of ') and said(2) == said(9) and env.hops == 2
    assert [more_hops(step)['rollout_args']['hops'] for step in (0, 9, 10, 25)] == [1, 1, 2, 3]
    with pytest.raises(TypeError, match='KeyDoor'): play_hops(small_policy(), KeyDoor(), [0])

# ---- replay

def test_arpo_gui_selection():
    "Tasks that are sometimes won are drawn more often, and the numbers that were drawn are played."
    memory = NumberSelection(count=6, n=3)
    equal = memory.chances()
    memory.wins, memory.losses = numbers(0, 0, 0, 3, 6, 6), numbers(6, 6, 6, 3, 0, 0)
    differ(memory.chances(), equal)
    assert memory.chances().argmax() == 3
    policy, env = small_policy(), Paying()
    first = lambda **how: [e.turns[0].state for e in play_recurring(policy, env, [0]*2, max_tokens=2, **how)]
    assert first(numbers=[3, 3], groups=[8, 9]) == [first(groups=[3, 4])[0]]*2 != first()

def test_spear_tool_bonus():
    turns = dict(episode=[0, 0], t=[0, 1], reward=[0., 1.], invalid=[False, True])
    early, late = (acted_bonus(table(**turns, step=step)) for step in (0, 200))
    differ(early, late)
    assert late.tolist() == [0, 1] and acted_bonus(table(**turns, tool=[1., 1.], step=0)).sum() > early.sum()
    assert recipes.spear().reward is acted_bonus

def test_rl_plus_demonstration():
    "One game of each group is the expert's, and the policy's probabilities of it are what the loss compares with."
    policy, env = small_policy(), Paying()
    with_one, without = (Batch.from_episodes(f(policy, env, range(3), 3, max_tokens=3))
        for f in (play_beside_demonstration, play))
    shown = is_demonstration(with_one)
    assert shown.any() and not is_demonstration(without).any() and with_one.episodes.game.tolist() == [*range(9)]
    found = policy.logprobs(with_one)[0]
    assert torch.allclose(found[shown], with_one.action('sampler_logp')[shown].float(), atol=1e-4)
    with_one = with_one.with_action(old_logp=with_one.action('sampler_logp'))
    logp, gain = with_one.action('old_logp') + .01, torch.ones(len(shown))
    differ(slope(rl_plus, logp, with_one, gain), slope(rl_plus, logp, with_one.with_episodes(
        source=torch.zeros_like(with_one.episodes.source)), gain))

def test_slea_trains(tmp_path):
    "Tips are read from the second update on, and what is read is another context."
    env = Experienced(Coin(), Library())  # its words; the library of the run is another one
    run = train(small_policy(env), Coin(), small_recipe(recipes.slea, memory=partial(OwnLibrary, warm_up=1, least=1),
        steps=3, groups=4, group_size=4, max_tokens=4, test_tasks=1),
        tmp_path/'run', progress=False)
    moves(run.rows())
    before, after = (run.episodes(step) for step in (0, 2))
    assert before.turns.tips.max() == 0 < after.turns.tips.max()
    context = lambda b: float((b.tokens.turn < 0).sum()/len(b.turns))
    assert context(after) > context(before) + 3

# ---- reward

def test_cm2_checklist():
    b = table(episode=[0, 0, 1, 1], t=[0, 1]*2, reward=[0., 1, 0, 0], invalid=[False, False, True, False],
        success=[True, True, False, False])
    differ(evident(b), b.turns.reward)
    assert evident(b).tolist() == [.5, .5, 0, .125]
    differ(cm2(b.with_turns(reward=evident(b)), members=2), cm2(b, members=2))

def test_longcat_hispo_masks():
    gap = table(episode=[0], n_tokens=3).with_action(old_logp=numbers(-1, -1, -1), sampler_logp=numbers(-1, -1.2, -2))
    objective = recipes.hispo(objective_args=dict(sequence=9.)).objective
    tight, wide = (slope(objective, numbers(-1, -1, -1), gap, numbers(1, 1, 1), token=token, high=9.)
        for token in (.5, 9.))
    assert (tight != 0).tolist() == [True, True, False] and (wide != 0).all()
    assert not slope(recipes.hispo().objective, numbers(-1, -1, -1), gap, numbers(1, 1, 1), token=9., high=9.).any()

# ---- prompts

def test_inspo_attribution():
    "An outcome moves the weight of the instruction under which it was earned, and of no other."
    population = Population([Instruction(), Instruction(dict(legal=True))])
    before = [member.w for member in population.members]
    population.learn(1, 1.)
    after = [member.w for member in population.members]
    assert before[0] == after[0] and before[1] != after[1]
