"Apps that keep a state: what changes and what must not, faults of calls, transactions; and LOOP, its parts off."
import copy
import json
from functools import partial
from random import Random

import pytest

from agentlab.env.apps import (Apps, asked, begun, changed, checked, draw_tables, draw_task, forms, manual, signatures,
    solve, subjects)
from agentlab.env.protocol import check_env, split_of
from agentlab.env.toolbox import ToolError
from words import says_known_words

def started(form='pay', world=3, level=3, **options):
    env = Apps(level, **options)
    env.reset(0, dict(form=form, world=world))
    return env

def played(env, *actions):
    for action in actions: step = env.step(action)
    return step

def solved(env):
    "The steps of the expert that are left, as texts."
    return [env.said(*step) for step in env.todo()]

# ---- the world

def test_apps_keeps_the_rules_of_worlds():
    from agentlab.env import load_env
    for options in ({}, dict(level=1), dict(level=3, renamed=False, sparse=True, penalty=.1)):
        assert set(check_env(load_env('apps', **options)).values()) == {'ok'}
    assert sum('docs' != app for app in manual) >= 4 and len(signatures) >= 15 and len(manual['docs']) == 3

@pytest.mark.parametrize('renamed', [True, False])
def test_apps_expert_does_every_task_and_breaks_nothing(renamed):
    for level in (1, 2, 3):
        env, seen = Apps(level, renamed=renamed), set()
        for task in env.tasks('test', 25, seed=level):
            step, reached = env.reset(0, task), [0.]
            seen.add(task['form'])
            while not step.done:
                step = env.step(env.expert())
                reached.append(step.info['milestone'])
            assert step.reward == dict(player=1) and step.info['success'] and step.info['columns']['collateral'] == 0
            assert reached == sorted(reached) and reached[-1] == 1
        assert seen <= {name for name, form in forms.items() if form['level'] <= level}
        assert any(forms[name]['level'] == level for name in seen)

def test_apps_every_form_takes_more_turns_on_a_higher_level():
    length = {level: [len(solve(asked(dict(form=name, world=world)))[0]) for name, form in forms.items()
        for world in range(20) if form['level'] == level] for level in (1, 2, 3)}
    mean = {level: sum(found)/len(found) for level, found in length.items()}
    assert mean[1] < mean[2] < mean[3] and max(map(max, length.values())) < Apps().horizon

def test_apps_splits_share_no_task():
    of = {split: {json.dumps(task) for task in Apps(3, split=split).tasks(split, 300)}
        for split in ('train', 'demo', 'test')}
    assert all(len(found) == 300 for found in of.values())
    assert not of['train'] & of['test'] and not of['train'] & of['demo'] and not of['demo'] & of['test']
    for split in of:
        task = draw_task(Random(1), split)
        assert split_of(['apps', task['form'], task['world']]) == split
        env = Apps(split=split)
        env.reset(5)
        assert split_of(['apps', env.task['form'], env.task['world']]) == split

def test_apps_question_tells_no_secret():
    "An id or a code stands in no question: an app has to be asked."
    for world in range(60):
        tables = draw_tables(world)
        ids = {str(id) for name in ('contacts', 'notes', 'calendar', 'mail') for id in tables[name]}
        codes = {row['code'] for row in tables['safe'].values()}
        for form in forms:
            said = forms[form]['text'].format(**subjects(world) | dict(amount='', large='', small=''))
            assert not (ids | codes) & set(said.rstrip('.').split())

# ---- arguments and faults

@pytest.mark.parametrize('action, said', [
    ('bank transfer amount lots to 98', '"amount" of bank transfer must be of type integer'),
    ('bank transfer amount 1.5 to 98', '"amount" of bank transfer must be of type integer'),
    ('bank transfer amount 5', 'bank transfer needs the argument "to". Read docs explain call transfer of bank.'),
    ('calendar move id 85 day moonday', 'must be one of "monday"'), ('contacts show id 7', 'No id 7 in contacts'),
    ('contacts find name nobody', 'No "nobody" in contacts'), ('bank balance', 'Login first'),
    ('bank login code amber', 'Wrong code'), ('contacts dance', 'contacts has no call "dance"'), ('', 'No call'),
    ('docs explain call dance of bank', 'No "dance" in bank'), ('safe code of moon', 'must be one of "docs"')])
def test_apps_names_a_fault_and_goes_on(action, said):
    env = started(renamed=False)
    step = env.step(action)
    assert said in step.observation and not step.done and env.apps.tables == draw_tables(3)
    assert played(env, *solved(env), 'done').reward == dict(player=1)

@pytest.mark.parametrize('name, given', [
    ('bank_transfer', dict(amount='5', to=98)), ('bank_transfer', dict(amount=True, to=98)), ('bank_transfer', {}),
    ('contacts_show', dict(id=[1])), ('contacts_find', dict(name={})), ('docs_calls', dict(of=['bank'])),
    ('contacts_find', dict(name='bora', city='oslo')), ('bank_dance', {}), ('contacts_show', dict(id=10**30))])
def test_apps_json_arguments_of_other_types(name, given):
    env = started()
    step = env.call_tool(name, given)
    assert not step.done and not env.ledger[0]['ok'] and env.apps.tables == draw_tables(3)
    assert 0 < len(step.observation) < 500

def test_apps_takes_any_text():
    generator, env = Random(0), Apps(3)
    words = [*env.vocabulary(), 'ü', '\x00', '{', '9'*400, '-', '_']
    for seed in range(60):
        step = env.reset(seed)
        while not step.done: step = env.step(' '.join(generator.choice(words) for _ in range(generator.randint(0, 9))))
        assert 0 <= step.reward['player'] <= 1 and env.render()

def test_apps_a_call_that_fails_costs_a_turn_only(monkeypatch):
    from agentlab.env.apps import Held
    def falls(held, app): raise RuntimeError('no power')
    monkeypatch.setattr(Held, 'balance', falls)
    env = started(renamed=False)
    env.apps.opened.add('bank')
    assert 'no power' in env.step('bank balance').observation
    assert played(env, *solved(env), 'done').reward == dict(player=1)

@pytest.mark.parametrize('task', [dict(form='rob', world=1), dict(form='pay'), dict(form='pay', world=-1), 'pay',
    dict(form='pay', world=True)])
def test_apps_refuses_what_is_no_task(task):
    with pytest.raises(ValueError, match='a form of pay'): Apps().reset(0, task)

@pytest.mark.parametrize('options', [dict(level=4), dict(level=1.), dict(penalty=-1), dict(penalty=float('nan')),
    dict(horizon=0), dict(split='dev')])
def test_apps_refuses_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))): Apps(**options)

# ---- state

def test_apps_collateral_damage_costs():
    env = started('tidy')
    other = list(draw_tables(3)['notes'])[1]
    step = played(env, *solved(env), env.said('notes_remove', dict(id=other)), 'done')
    assert step.reward == dict(player=.5) and not step.info['success'] and step.info['columns']['collateral'] == 1

def test_apps_difference_is_that_of_the_whole_state():
    "Every single row, gone or altered or come, is seen."
    before = draw_tables(3)
    assert not changed(before, copy.deepcopy(before))
    for table, rows in before.items():
        for id, row in rows.items():
            gone, altered = copy.deepcopy(before), copy.deepcopy(before)
            del gone[table][id]
            altered[table][id][next(iter(row))] = 'else'
            assert changed(before, gone).total() == 1 and changed(before, altered).total() == 2
        come = copy.deepcopy(before)
        come[table][999] = dict(x=1)
        assert changed(before, come).total() == 1
        assert changed(come, before).total() == 1

def test_apps_checks_are_shares():
    before, (_, wanted) = draw_tables(3), solve(asked(dict(form='both', world=3)))
    assert checked(wanted, wanted) == (1, 0) and checked(changed(before, before), wanted)[0] == 1/(wanted.total() + 1)
    assert checked(wanted + wanted, wanted) == (wanted.total()/(wanted.total() + 1), wanted.total())

def test_apps_twice_is_not_once():
    "A payment that is made twice is damage, though its row looks alike."
    env = started('pay', renamed=False)
    steps = solved(env)
    step = played(env, *steps, steps[-1], 'done')
    assert not step.info['success'] and step.info['columns']['collateral'] >= 1

# ---- transactions

def refused_world():
    "A world in which the second payment of `both` is refused."
    steps = lambda world: solve(asked(dict(form='both', world=world)))[0]
    return next(world for world in range(99) if not all(ok for *_, ok in steps(world)))

def test_apps_a_refused_payment_is_rolled_back_with_the_first():
    env = started('both', refused_world())
    steps = solved(env)
    assert steps[-1] == 'bank rollback'
    step = played(env, *steps, 'done')
    assert step.reward == dict(player=1) and not env.apps.tables['payments']
    half = started('both', refused_world())
    half = played(half, *(text for text in steps if text not in ('bank begin', 'bank rollback')), 'done')
    assert not half.info['success'] and half.info['columns']['collateral'] > 0  # the first one was made

def test_apps_what_is_not_committed_is_undone_at_the_end():
    for last, paid in (('done', False), ('bank rollback', False), ('bank commit', True)):
        env = started('pay', renamed=False)
        steps = solved(env)
        step = played(env, *steps[:-1], 'bank begin', steps[-1], last)
        if not step.done: step = env.step('done')
        assert step.info['success'] == paid == bool(env.apps.tables['payments'])
    held = begun(asked(dict(form='pay', world=3)))
    for call in (held.commit, held.rollback):
        with pytest.raises(ToolError, match='Nothing has begun'): call('bank')

def test_apps_clone_is_another_state():
    env = started('pay', renamed=False)
    steps = solved(env)
    played(env, *steps[:-1], 'bank begin')
    twin = env.clone()
    played(twin, steps[-1], 'bank commit')
    assert twin.apps.tables['payments'] and not env.apps.tables['payments'] and env.apps.saved
    assert played(env, 'bank rollback', steps[-1], 'done').info['success']

# ---- documentation, habits, ends

def test_apps_words_differ_between_worlds_and_are_documented():
    words = set()
    for world in range(20):
        env = started('tidy', world)
        word = env.apps.spoken['notes_remove']
        assert word in env.step('docs calls of notes').observation.split()
        assert env.step(f'docs explain call {word} of notes').observation == (
            f'notes {word} id NUMBER. Forget a note.')
        words.add(word)
    assert len(words) == 3
    assert started(renamed=False).apps.spoken['notes_remove'] == 'remove'

def test_apps_counts_documentation_ids_and_giving_up():
    env = started('tidy', renamed=False)
    one = env.step('notes remove id 11').info['columns']
    assert (one['informed'], one['made_up']) == (0, 1) and one['gave_up'] != one['gave_up']
    last = env.step('done').info['columns']
    assert last['gave_up'] == 1 and last['made_up'] == 0
    env = started('tidy')
    rows = [env.step(text).info['columns'] for text in solved(env)]
    assert [row['informed'] for row in rows if row['informed'] == row['informed']] == [1] and not sum(
        row['made_up'] for row in rows)

def test_apps_reward_sparse_and_with_penalties():
    for options, reward in ((dict(), .5), (dict(sparse=True), 0), (dict(penalty=.1), .4), (dict(penalty=9.), 0)):
        assert played(started('tidy', **options), 'contacts dance', 'done').reward['player'] == pytest.approx(reward)

def test_apps_whoever_is_late_is_paid_for_what_is_done():
    env = started('tidy', horizon=3)
    step = played(env, *solved(env))
    assert step.done and step.info['success'] and not step.info['truncated']

def test_apps_demonstrators_in_a_hurry_do_worse():
    won = []
    for noise in (0., .5):
        env, generator = Apps(), Random(0)
        for task in env.tasks('demo', 40):
            step = env.reset(0, task)
            while not step.done: step = env.step(env.demonstrator(noise, generator))
            won.append(step.info['success'])
    assert all(won[:40]) and 0 < sum(won[40:]) < 36
    with pytest.raises(ValueError, match='needs a generator'): env.demonstrator(.5)

def test_apps_vocabulary_knows_what_is_read_and_said():
    for level in (1, 2, 3):
        assert {*Apps(level).vocabulary()} == {*Apps().vocabulary()}
        says_known_words(Apps(level), Apps(level).tasks('train', 30), .5)

def test_apps_is_played_by_hand():
    from agentlab.view import Play
    game = Play(Apps(1), seed=0)
    assert game.game is not None and set(game.legal) >= {'done', 'docs apps'}

# ---- LOOP

def outcomes(*values, lengths=None, **columns):
    "A group of episodes of one turn."
    import pandas as pd
    from agentlab.episodes import Batch
    return Batch.from_turns(pd.DataFrame(dict(group=0, episode=range(len(values)), t=0, n_tokens=lengths or 1,
        outcome=values, reward=values) | columns))

def numbers(*values):
    import torch
    return torch.tensor(values, dtype=torch.float64)

def test_loop_baseline_is_the_mean_of_the_others():
    import torch
    from agentlab.credit import grpo, loop
    b = outcomes(1., 0., .5)
    torch.testing.assert_close(loop(b), numbers(.75, -.75, 0))
    off = grpo(b, scale=None)  # the mean of all of them
    assert (loop(b) - off).abs().max() > .2

def test_loop_leaves_out_whoever_is_like_the_others():
    from agentlab.credit.group_baselines import loop_passes
    b = outcomes(1., 0., .5)
    (kept, advantage), = loop_passes(b, None, passes=1)
    (everybody, _), = loop_passes(b, None, passes=1, least=0.)
    assert kept.tolist() == [True, True, False] and everybody.all() and advantage[2] == 0

def test_loop_passes_clip_against_the_policy_that_played():
    import torch
    from agentlab.credit.group_baselines import clip_played
    from agentlab.objective import clip
    from agentlab.train import recipes
    now = numbers(.5, -.5, .05).requires_grad_()
    b = outcomes(1., 0., .5).with_action(old_logp=now.detach(), sampler_logp=numbers(0, 0, float('nan')))
    slope = lambda loss, **how: torch.autograd.grad(loss(now, b, numbers(1, -1, 1), **how).sum(), now)[0]
    objective = recipes.loop().objective
    assert objective is clip_played
    assert slope(objective).tolist()[:2] == [0, 0] and slope(objective)[2] != 0  # no sampler: the trainer's number
    assert (slope(clip, low=.1, high=.1) != 0).all() and (slope(objective, low=1., high=9.) != 0).all()

def test_loop_episodes_count_alike():
    from agentlab.objective import loss_weights
    from agentlab.train import recipes
    b = outcomes(1., 0., lengths=[1, 4])
    assert loss_weights(b, recipes.loop().loss_per).tolist() == [.5, .125, .125, .125, .125]
    assert loss_weights(b, recipes.grpo().loss_per).tolist() == [.2]*5

def test_loop_has_one_copy_of_the_model():
    from agentlab.credit.group_baselines import loop_passes
    from agentlab.train import recipes
    assert recipes.loop().updates is loop_passes and recipes.loop().critic is None
    assert recipes.loop().kl_coef == 0 and recipes.ppo().critic is not None

class Paid(Apps):
    "Pays for the length of what is said, too: games of a policy that knows nothing differ."
    def turn(self, action):
        observation, reward, *rest = super().turn(action)
        return observation, reward + len(action) % 7/8, *rest

def test_loop_plays_and_updates(tmp_path):
    "The second pass moves the weights further."
    import torch
    from agentlab.credit.group_baselines import loop_passes
    from agentlab.policy import tiny_policy
    from agentlab.train import recipes, train
    moved = []
    for passes in (1, 2):
        policy = tiny_policy(Paid(1), warm=False, progress=False)
        recipe = recipes.loop(steps=1, groups=2, group_size=3, test_tasks=0, minibatches=1, max_tokens=3, max_turns=3,
            updates=partial(loop_passes, passes=passes))
        row, = train(policy, Paid(1), recipe, tmp_path/str(passes), progress=False).rows()
        assert row['grad_norm'] > 0 and row['skipped'] is None
        moved.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert not torch.equal(*moved)
