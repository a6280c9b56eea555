"""Mechanisms that define a system, switched off: context, batch, reward or advantage is another one.

assets/mechanisms.csv names these tests beside those that stand elsewhere: tools/atlas.py.
"""
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo, hgpo, mars
from agentlab.credit.chunks import ipa_loss
from agentlab.entropy import aepo_advantage
from agentlab.entropy.control import phase_weight
from agentlab.env.kuhn import Kuhn
from agentlab.env.signals import Signals
from agentlab.episodes import Batch
from agentlab.objective import epo, loss_weights
from agentlab.policy.tiny import warm_start
from agentlab.prompt.instruction import Instruction
from agentlab.prompt.population import Population
from agentlab.rollout import play
from agentlab.rollout.players import play_players
from agentlab.rollout.turns import TurnLimit
from agentlab.rollout.windows import with_summaries
from agentlab.train import recipes, train
from agentlab.train.critic import Critic
from agentlab.train.learned import Prior
from small import Paying, small_policy, small_recipe, train_small
from test_python_recipes import Eager


def table(**columns): return Batch.from_turns(pd.DataFrame(dict(group=0, t=0) | columns))

def numbers(*values): return torch.tensor(values, dtype=torch.float64)

def differ(on, off):
    "Both are numbers, and not the same ones."
    assert on.shape == off.shape and on.isfinite().all() and off.isfinite().all() and (on - off).abs().max() > 1e-3

def slope(objective, logp, batch, advantage, **keywords):
    logp = logp.clone().requires_grad_()
    return torch.autograd.grad(objective(logp, batch, advantage, **keywords).sum(), logp)[0]

def moves(rows):
    "A run that has updated in every row, with a gradient."
    assert rows and all(row['skipped'] is None and row['grad_norm'] > 1e-5 for row in rows)


# ---- entropy

def test_aepo_advantage():
    open_and_sure = table(episode=[0, 1, 2]).with_action(entropy=numbers(.1, .5, 1.5))
    weighted = partial(aepo_advantage, open_and_sure, torch.ones(3, dtype=torch.float64))
    differ(weighted(coefficient=.2), weighted(coefficient=0.))
    assert weighted()[2] > 1 > weighted()[0]

BAND = dict(logp=-torch.ones(3), advantage=torch.zeros(3), entropy=torch.tensor([.4, 1., 1.6]))
def banded(**keywords):
    past = table(episode=[0], n_tokens=3, entropy_history=1.).with_action(old_logp=-torch.ones(3))
    return epo(batch=past, bonus=.1, **BAND, **keywords)

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
    policy = warm_start(small_policy(game), game, steps=40, episodes=16, pool=64)   # it knows the words
    run = train(policy, game, recipe, tmp_path/'run', progress=False)
    moves(run.rows())
    b = run.episodes(0)
    assert len(b.episodes.seat.unique()) == 2
    b = b.with_turns(reward=b.turns.reward + b.turns.t)     # who moves second is paid more
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


# ---- prompts

def test_inspo_attribution():
    "An outcome moves the weight of the instruction under which it was earned, and of no other."
    population = Population([Instruction(), Instruction(dict(legal=True))])
    before = [member.w for member in population.members]
    population.learn(1, 1.)
    after = [member.w for member in population.members]
    assert before[0] == after[0] and before[1] != after[1]
