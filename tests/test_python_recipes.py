"Recipes that look at how an agent with a tool has played: what they learn from, step by step, and runs of two updates."
import math
from functools import partial

import pytest
import torch

from agentlab.credit import grpo
from agentlab.env.python_tool import PythonTool
from agentlab.env.sandbox import Result
from agentlab.episodes import Batch, derive
from agentlab.objective import clip, gspo, spear_clip
from agentlab.recipe import arguments
from agentlab.replay.tasks import PacedSelection
from agentlab.rollout import chain, keep_mixed, play, roc, roc_penalty
from agentlab.train import METRICS, Run, recipes, train, trainer
from later import deferred
from small import Paying, same_run, small_policy

NAMES = ['roc', 'simpletir', 'dr_bot', 'spear_clip', 'dart']

def counted(code, names): return Result(True, str(len(code))) if len(code) % 2 else Result(False, '', 'NameError: odd')

class Eager(PythonTool):
    """An untrained agent neither calls nor answers. Here the length of what it says decides which of the two it has
    done, and whether the answer is right. Its tool runs nothing."""
    name = 'eager'
    def __init__(self, level=2, horizon=4, milestone=0., spaced=True, sandbox=counted, split='train'):
        super().__init__(level, horizon, milestone, spaced, sandbox, split)
    def turn(self, action):
        kind, right = len(action) % 4, len(action) % 3 > 0
        number = int(self.truth) + (not right)
        return super().turn([action, f'python {action}.', f'answer {number}', f'answer 0 answer {number}'][kind])

def played(groups=4, size=8, seed=0, max_tokens=6, max_turns=64):
    env = Eager()
    return Batch.from_episodes(play(small_policy(env), env, range(groups), size, max_tokens=max_tokens,
        max_turns=max_turns, seed=seed))

def sums(b, x): return torch.zeros(len(b), dtype=torch.float64).index_add(0, b.turns.episode, x.double())

def short(name, out, env=None, resume=False, should_stop=None, **changes):
    env = env or Eager()
    recipe = recipes.known[name](**dict(steps=2, groups=4, group_size=6, max_tokens=24, test_tasks=0,
        checkpoint_every=1) | changes)
    return train(small_policy(env), env, recipe, out, resume=resume, should_stop=should_stop, progress=False)

PACED = dict(n=4, count=4, most=6)
CHANGES = dict(roc=dict(curate=deferred(lambda: chain(keep_mixed, partial(roc, keep=4)))),
    dart=dict(memory=partial(PacedSelection, **PACED)))

@pytest.mark.parametrize('name', NAMES)
def test_it_trains_on_a_tool(tmp_path, name):
    rows = short(name, tmp_path/'run', **CHANGES.get(name, {})).rows()
    assert ([row['skipped'] for row in rows] == [None]*2
        and all(math.isfinite(row['loss']) and row['grad_norm'] > 1e-3 for row in rows)
        and all(set(row) <= set(METRICS) for row in rows))

@pytest.mark.parametrize('name', ['roc', 'dart'])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, name):
    changes, left = CHANGES.get(name, {}) | dict(max_tokens=4), iter([False] + [True]*9)
    whole = short(name, tmp_path/'whole', **changes)
    short(name, tmp_path/'cut', should_stop=lambda: next(left), **changes)
    same_run(whole, short(name, tmp_path/'cut', resume=True, **changes))

def test_roc_keeps_as_many_of_each_group_and_the_cleaner_successes():
    """Over many batches: `keep` of every group that was mixed, both kinds in it, successes that are cleaner on
    average; how unclean a failure is changes nothing."""
    before, after = [], []
    for seed in range(12):
        b = keep_mixed(played(groups=6, size=12, seed=seed))
        kept = roc(b, keep=6, seed=seed)
        groups, count = b.episodes.group.unique(return_counts=True)
        assert (count == 12).all() and torch.equal(torch.stack(kept.episodes.group.unique(return_counts=True)),
            torch.stack([groups, torch.full_like(groups, 6)]))
        wins = torch.bincount(kept.episodes.group[kept.episodes.outcome > 0], minlength=6)[groups]
        assert ((wins > 0) & (wins < 6)).all()
        unclean = lambda b: torch.where(b.episodes.outcome > 0, roc_penalty(b), 1 + torch.arange(len(b)) % 5)
        assert torch.equal(roc(b, keep=6, seed=seed, penalty=unclean).episodes.game, kept.episodes.game)
        for into, some in ((before, b), (after, kept)): into.append(roc_penalty(some)[some.episodes.outcome > 0])
    before, after = torch.cat(before), torch.cat(after)
    # the difference is three times its standard error
    assert after.mean() < before.mean() - .1 and (before - before.mean()).square().mean().sqrt()/len(after)**.5 < .04

def test_a_group_too_small_to_choose_from_makes_no_update(tmp_path):
    rows = short('roc', tmp_path/'run', steps=1, group_size=4).rows()
    assert rows[0]['skipped'].startswith('roc left none of') and rows[0]['episodes'] == 16

def test_void_turns_are_counted_and_not_learned_from():
    """The advantages are those of all episodes; the tokens of an episode with a void turn carry no weight; their
    gradient is nothing."""
    training = trainer.Training(small_policy(Eager()), Eager(),
        recipes.simpletir(groups=4, group_size=8, max_tokens=6, test_tasks=0))
    whole = trainer.collect(training, 0)
    batch, advantage, _ = trainer.prepare(training, whole, 0)
    void = sums(batch, batch.turns.void > 0) > 0
    owner = batch.rows.episode[batch.tokens.row[batch.actions]]
    assert void.any() and not void.all() and ((batch.action('weight') == 0) == void[owner]).all()
    e = whole.episodes
    share = torch.stack([e.success[e.group == g].double().mean() for g in range(4)])
    assert batch.episodes.group.unique().tolist() == ((share >= .1) & (share <= .9)).nonzero().flatten().tolist()
    everybody = grpo(batch.with_action(weight=torch.ones_like(advantage)))
    assert torch.allclose(advantage.double(), everybody.double()) and advantage[void[owner]].abs().max() > .1
    from agentlab.objective import loss_weights
    assert (loss_weights(batch, 'token')[void[owner]] == 0).all()

@pytest.mark.parametrize('name, column', [('roc', 'turns.tool_error'), ('simpletir', 'turns.void')])
def test_an_environment_without_the_columns_is_refused(tmp_path, name, column):
    with pytest.raises(ValueError, match=f"{column}.*Let your environment give"):
        short(name, tmp_path/'run', Paying(), curate=recipes.known[name]().curate.filters[1])

def test_dart_weighs_what_another_policy_sampled():
    """Where trainer and sampler agree, GSPO with its clip; where the sampler was surer, the weight is below 1, and
    never above."""
    b, r = played(), recipes.dart()
    b = b.with_action(old_logp=b.action('sampler_logp'))
    advantage = torch.linspace(-1, 1, len(b.actions))
    logp = b.action('old_logp') + .02
    alone = gspo(logp, b, advantage, low=.1, high=.28)
    assert torch.equal(r.objective(logp, b, advantage), alone)
    surer = b.with_action(sampler_logp=b.action('old_logp') + 1)
    assert torch.allclose(r.objective(logp, surer, advantage), alone*math.exp(-1))
    shyer = b.with_action(sampler_logp=b.action('old_logp') - 1)
    assert torch.allclose(r.objective(logp, shyer, advantage), alone)

def test_dart_plays_as_its_tasks_need(tmp_path):
    "A memory that reads the same games plans the same numbers and lengths; what is mostly won gets fewer games."
    run = short('dart', tmp_path/'run', steps=5, max_tokens=6, **CHANGES['dart'])
    again, sizes = PacedSelection(seed=derive(0, 'memory'), **PACED), []
    for step in range(5):
        plan, games = again.plan(step)['group_args'], run.episodes(step)
        count = torch.bincount(games.episodes.group - 4*step, minlength=4)
        turns = torch.bincount(games.turns.episode)
        assert count.tolist() == plan['sizes']
        assert all(t <= plan['limits'][g - 4*step] for t, g in zip(turns.tolist(), games.episodes.group.tolist()))
        again.read(games, step)
        sizes += plan['sizes']
    assert min(sizes) < 6 == max(sizes) and again.longest.max() > 0

def test_what_dr_bot_leaves_out():
    "Three quarters of the groups, those that differ most; of them, who was cut short is only counted."
    b = played(groups=8, max_turns=3)
    left = recipes.dr_bot().curate(b)
    std = torch.stack([b.episodes.outcome[b.episodes.group == g].std() for g in range(8)])
    assert (sorted(left.episodes.group.unique().tolist())
        == sorted(std.argsort(descending=True, stable=True)[:6].tolist()))
    owner = left.rows.episode[left.tokens.row[left.actions]]
    assert left.episodes.truncated.any() and ((left.action('weight') == 0) == left.episodes.truncated[owner]).all()

def test_the_clips_are_those_of_the_papers():
    made = {name: recipes.known[name]() for name in NAMES}
    given = {name: arguments(r.objective) for name, r in made.items()}
    clips = {name: (given[name].get('low'), given[name].get('high'), r.kl_coef) for name, r in made.items()}
    assert clips == dict(roc=(.2, .28, 0), simpletir=(.2, .28, 0), dr_bot=(.2, .28, 0), spear_clip=(None, None, 0),
        dart=(.1, .28, .1))
    assert (made['roc'].objective.func is clip and made['roc'].group_size == 16 and made['simpletir'].max_turns == 5
        and made['spear_clip'].objective is spear_clip)

def test_the_command_line_leaves_a_recipe_its_numbers(tmp_path):
    """`agentlab train --recipe roc --env python_tool`: 16 attempts as the recipe has it, 24 tokens as the
    environment asks."""
    from agentlab import cli
    cli.train(recipe='roc', env='python_tool', model='untrained', steps=1, groups=2, test_tasks=0,
        out=str(tmp_path/'run'))
    facts = Run(tmp_path/'run').info['facts']['recipe']
    assert (facts['groups'], facts['group_size'], facts['max_tokens'], facts['lr']) == (2, 16, 24, 1e-3)
    cli.train(recipe='roc', env='python_tool', model='untrained', steps=1, groups=1, max_tokens=9, lr=.01, test_tasks=0,
        out=str(tmp_path/'own'))
    facts = Run(tmp_path/'own').info['facts']['recipe']
    assert (facts['max_tokens'], facts['lr']) == (9, .01)
