"""Second attempts: each system plays and updates, and each of its defining mechanisms, switched off, changes what is
read, learned from, paid, or compared."""
import copy
from functools import partial

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import GuessNumber, HopSearch, KeyDoor, check_env
from agentlab.env.own_tasks import OwnTasks, number
from agentlab.env.protocol import Step
from agentlab.episodes import Batch, Episode, state_key
from agentlab.metrics import MEASURES, METRICS
from agentlab.policy import tiny_policy
from agentlab.replay.splice import trained_only
from agentlab.rollout import play
from agentlab.rollout.again import (Again, Judged, Says, always, attempts, best_of_own, by_attempt, by_budget, by_units,
    corrections, earned, expert_hint, fewer_first, guided, improved, introspection,
    judgements, keep_all, keep_attempts, keep_better, keep_right, play_again, spoken,
    unit_reward, verdicts)
from agentlab.rollout.turns import UnaryFeedback
from agentlab.selfplay.preferences import dpo_credit
from agentlab.train import recipes, train
from later import deferred

SMALL = dict(steps=2, groups=4, group_size=6, minibatches=1, max_tokens=4, max_turns=8, test_tasks=0)

@pytest.fixture(autouse=True, scope='module')
def one_thread(): torch.set_num_threads(1)

def guess(**how): return GuessNumber(**dict(high=8, horizon=1) | how)

@pytest.fixture(scope='module')
def player():
    "A policy that knows the words of the game and has seen few games."
    return tiny_policy(Again(guess(), between=Says('Incorrect. Please think again. Correct!')), steps=60, pool=512,
        noise=1., progress=False)

@pytest.fixture
def beginner(player):
    return copy.deepcopy(player)

def games(policy, env, seed=0, n=8, size=4, rollout=play, **how):
    return Batch.from_episodes(rollout(policy, env, range(n), size, seed=seed, **dict(max_tokens=4) | how))

def trained(policy, recipe, out, env=None):
    run = train(policy, env or guess(), recipe, out, progress=False)
    rows = run.rows()
    assert all(set(row) <= set(METRICS) for row in rows)
    assert max(row['grad_norm'] or 0. for row in rows) > 1e-3, rows
    return run

# ---- the wrapper and its tables

WORLDS = dict(whole=lambda: Again(KeyDoor(horizon=4), 3, always), ufo=lambda: UnaryFeedback(KeyDoor(horizon=4)),
    limits=lambda: Again(KeyDoor(horizon=4), limits=(2, 4)), spoken=lambda: Again(KeyDoor(), 3, ends=spoken))

@pytest.mark.parametrize('world', WORLDS)
def test_tables_of_attempts(player, world):
    "Attempts are numbered without a gap, `right` stands once in each that ended, rewards stay with their attempt."
    b = games(player, WORLDS[world](), max_turns=7)
    k, episode = b.turns.attempt.long(), b.turns.episode
    first = torch.cat([torch.tensor([True]), episode.diff() != 0])
    assert (k[first] == 0).all() and set(k.diff()[~first[1:]].tolist()) <= {0, 1}
    ended = ~b.turns.right.isnan()
    assert (ended[:-1] == ((k.diff() != 0) | (episode.diff() != 0)))[~b.episodes.truncated[episode][:-1]].all()
    grid = attempts(b)
    assert (grid.isnan().long().diff(dim=1) >= 0).all()
    total = earned(b).nan_to_num().sum(1)
    assert torch.equal(total, b.episodes.outcome)
    found = corrections(b)
    if found['pairs']: assert abs(found['gain'] - (found['corrected'] - found['spoiled'])) < 1e-12

def test_metrics_are_those_of_the_table(player):
    b = games(player, Again(guess(), goes_on=always))
    found = corrections(b)
    assert found['pairs'] == len(b) and MEASURES['attempt_gain'](b) == found['gain']
    assert MEASURES['attempt_gain'](games(player, guess())) is None

def test_no_answer_is_handed_on(player):
    class Telling(GuessNumber):
        def turn(self, action):
            text, *rest = super().turn(action)
            return f"It was {self.task['secret']} .", *rest
    for episode in play(player, Again(Telling(high=8, horizon=1), 3), range(6), max_tokens=4, seed=1):
        assert not any('It was' in turn.observation for turn in episode.turns)

@pytest.mark.parametrize('fault, said', [
    (dict(between=lambda k, one: None), 'there is nothing to say'),
    (dict(between=lambda k, one: 1/0), 'division by zero'),
    (dict(goes_on=lambda one: 1/(1 - one.right)), 'division by zero')])
def test_a_fault_between_attempts_ends_the_episode_and_is_counted(beginner, tmp_path, fault, said):
    run = train(beginner, Again(guess(), **fault), recipes.grpo(**SMALL | dict(steps=1, groups=12)), tmp_path/'run',
        progress=False)
    row, b = run.rows()[0], run.episodes(0)
    assert 0 < row['errors'] < row['episodes']
    assert all(said in text for key, text in b.labels['error'].items() if key != -1)

def test_a_world_that_ends_before_the_first_attempt():
    class Over(GuessNumber):
        def reset(self, seed, task=None):
            return Step('player', 'over', done=True)
    with pytest.raises(RuntimeError, match='over before the first attempt'): Again(Over()).reset(0)

# ---- UFO

def test_ufo_learns(beginner, tmp_path):
    run = trained(beginner, recipes.ufo(**SMALL | dict(group_size=8)), tmp_path/'run')
    assert 'Incorrect' in run.episodes(0).frame().to_csv() or run.episodes(0).turns.attempt.max() > 0

def test_ufo_unary_feedback(player):
    "Without it the text between two answers says more: the hint of the game."
    read = lambda env: {t.observation for e in play(player, env, range(6), max_tokens=4, max_turns=4)
        for t in e.turns[1:]}
    told, plain = read(UnaryFeedback(guess(horizon=3))), read(guess(horizon=3))
    assert 'Incorrect. Please think again.' in told and not any('than' in text for text in told)
    assert any('than' in text for text in plain)

def test_ufo_repetition(player):
    "Two answers alike cost half of the share that was said before, and nothing without the penalty."
    paid = {}
    for repetition in (.5, 0.):
        b = games(player, UnaryFeedback(guess(), repetition=repetition), max_turns=5)
        paid[repetition] = b.episodes.outcome
    assert (paid[.5] <= paid[0.]).all() and (paid[.5] < paid[0.]).any()

# ---- SCoRe

@pytest.fixture(scope='module')
def pairs(player):
    return games(player, Again(guess(), goes_on=always, between=Says('Try again.')), size=8)

def test_score_learns(beginner, tmp_path):
    recipe = recipes.score(**SMALL)
    run = trained(beginner, recipe, tmp_path/'run')
    assert run.rows()[0]['attempt_gain'] is not None and run.rows()[1]['kl_reference'] is not None
    assert (torch.bincount(run.episodes(0).turns.episode) == 2).float().mean() > .5

def test_score_bonus(pairs):
    "The second attempt is paid for its change; without alpha it is paid for itself."
    grid, k = earned(pairs), pairs.turns.attempt
    own, more = improved(pairs, alpha=0.), improved(pairs, alpha=10.)
    assert torch.equal(own, pairs.turns.reward) and torch.equal(own[k == 0], more[k == 0])
    second = more[k == 1]
    assert torch.equal(second, (grid[:, 1] + 10*(grid[:, 1] - grid[:, 0]))[pairs.turns.episode[k == 1]])
    assert (second != own[k == 1]).any()

def test_score_stages(pairs):
    "Stage I does not pay the first attempt and holds it; stage II pays both and holds both alike."
    stages = recipes.score().schedule
    one, two = stages(0), stages(10**6)
    k = pairs.turns.attempt
    assert (one['reward'](pairs)[k == 0] == 0).all() and (two['reward'](pairs)[k == 0] != 0).any()
    held = pairs.with_action(ref_logp=pairs.action('sampler_logp') - 1)
    first = held.spread(k) == 0
    kl = [stage['kl'](held.action('sampler_logp'), held) for stage in (one, two)]
    assert (kl[0][first] > 0).all() and (kl[0][~first] == 0).all()
    assert (kl[1] > 0).all() and kl[0][first].mean() > 5*kl[1][first].mean()

def test_score_attempts_are_bandits_of_their_own(pairs):
    "With whole episodes compared, a first attempt is worth more where it was wrong."
    rewarded = pairs.with_turns(reward=improved(pairs))
    total = rewarded.turns.reward.new_zeros(len(pairs)).index_add(0, pairs.turns.episode, rewarded.turns.reward)
    rewarded = rewarded.with_episodes(outcome=total)
    mean = lambda advantage, right: advantage[rewarded.spread((rewarded.turns.attempt == 0)
        & (rewarded.turns.right == right))].mean()
    own, whole = by_attempt(rewarded), grpo(rewarded)
    assert mean(own, 1.) > mean(own, 0.) and mean(whole, 1.) < mean(whole, 0.)
    later = by_attempt(pairs.with_turns(reward=improved(pairs, 0., 0.)))
    assert (later[pairs.spread(pairs.turns.attempt == 0)] == 0).all() and (later != 0).any()

def test_score_second_attempts_are_not_announced(player):
    "What is read between the attempts does not depend on the first."
    episodes = play_again(player, guess(), range(12), max_tokens=4, seed=3,
        around=partial(Again, goes_on=always, between=Says('Try again.')))
    texts = {turn.observation for e in episodes for turn in e.turns if turn.columns['attempt'] == 1}
    assert all(text.startswith('Try again. Guess a number from') for text in texts)
    assert {turn.columns['right'] for e in episodes for turn in e.turns if turn.columns['attempt'] == 0} >= {0.}

# ---- RISE

def own(policy, samples, seed=0, **how):
    around = partial(Again, attempts=4, ends=spoken)
    return games(policy, guess(), seed, n=16, size=2, rollout=partial(best_of_own, samples=samples, around=around),
        **how)

def test_rise_learns(beginner, tmp_path):
    recipe = recipes.rise(**SMALL, rollout_args=dict(samples=3))
    run = trained(beginner, recipe, tmp_path/'run')
    assert run.episodes(0).turns.samples.nan_to_num().max() == 3

def test_rise_best_of_own(player):
    "More samples make better second attempts; the first is one sample, and what is read and trained is one row."
    few, many = own(player, 1), own(player, 8)
    assert verdicts(many)[:, 1].nanmean() > verdicts(few)[:, 1].nanmean() + .1
    for b in (few, many):
        logp, _ = player.logprobs(b)
        assert torch.allclose(logp, b.action('sampler_logp'), atol=1e-5) and len(b.rows) == len(b)
        assert b.turns.samples[b.turns.attempt == 0].isnan().all()
    first = lambda b: b.turns.action[b.turns.attempt == 0]
    assert torch.equal(first(few), first(many))

def test_rise_an_episode_ends_with_its_first_right_attempt(player):
    grid = attempts(own(player, 8))
    assert ((grid == 1).sum(1) <= 1).all() and (grid == 1).any() and not (grid[:, :-1] == 1)[~grid[:, 1:].isnan()].any()

def test_rise_weights_and_rules(player):
    b = own(player, 4)
    weight, right = introspection(b), b.spread(b.turns.right)
    assert weight[right == 1].min() > 10*weight[right == 0].max() > 0
    assert (introspection(b, temperature=1e9) - 1).abs().max() < 1e-6
    counts = [int((keep_attempts(b, keep).action('weight') > 0).sum()) for keep in (keep_all, keep_better, keep_right)]
    assert counts[0] == len(b.actions) and counts[0] > counts[1] > counts[2] > 0

def test_rise_a_world_that_cannot_be_cloned(player):
    class Solid(GuessNumber):
        copied = False
        def clone(self):
            if self.copied: raise RuntimeError('made of stone')
            twin = super().clone()
            twin.copied = True
            return twin
    episodes = best_of_own(player, Solid(high=8, horizon=1), range(6), samples=2, max_tokens=4)
    assert {e.error is None for e in episodes} == {e.success for e in episodes} == {True, False}
    assert all('cannot be cloned' in e.error and 'made of stone' in e.error for e in episodes if not e.success)

# ---- Agent-RLVR

GUIDED = deferred(lambda: partial(Again, between=expert_hint))

def pairs_of(policy, strip=True, around=None):
    return guided(policy, guess(), range(16), 2, around=around or GUIDED, strip=strip, max_tokens=4, seed=5)

def test_agent_rlvr_learns(beginner, tmp_path):
    run = trained(beginner, recipes.agent_rlvr(**SMALL), tmp_path/'run')
    b = run.episodes(0)
    assert (b.episodes.source == state_key('guided')).any() and (b.action('advantage').nan_to_num() != 0).any()

def test_agent_rlvr_guidance(player):
    "The expert's word makes another second attempt than being told to be wrong."
    right = {}
    for name, between in dict(hint=expert_hint, wrong=Says()).items():
        b = games(player, Again(guess(), between=between), n=24)
        texts = [t.observation for e in play(player, Again(guess(), between=between), range(8), max_tokens=4)
            for t in e.turns[1:]]
        assert all(text.startswith('guess' if name == 'hint' else 'Incorrect') for text in texts) and texts
        right[name] = b.turns.attempt.max()
    assert right['hint'] == 1

@pytest.mark.parametrize('strip', [True, False])
def test_agent_rlvr_strip(player, strip):
    "Stripped, the guided attempt is read behind the task alone; else behind the failure, which is not learned from."
    episodes = pairs_of(player, strip)
    made = [(a, b) for a, b in zip(episodes, episodes[1:]) if b.source == 'guided']
    assert made and all(a.source == 'policy' and not a.success for a, _ in made)
    batch = trained_only(Batch.from_episodes([e for pair in made for e in pair]))
    for failure, success in made:
        assert (success.turns[0].context_ids == failure.turns[0].context_ids)
        assert (success.turns[0].text == failure.turns[0].text and len(success.turns) == 2) == (not strip)
        assert any('guess' in t.observation.split('Guess')[0] for t in success.turns) == (not strip)
    per = torch.bincount(batch.turns.episode[batch.action_turn], batch.action('weight'), minlength=len(batch))
    assert (per > 0).all()
    logp, _ = player.logprobs(batch)
    apart = (logp - batch.action('sampler_logp')).abs().max()
    assert apart > .1 if strip else apart < 1e-5

def test_agent_rlvr_pairs(player):
    "Only groups with a success and a failure give a pair; the success is pulled up, the failure down."
    b = Batch.from_episodes(pairs_of(player))
    logp, _ = player.logprobs(b)
    advantage = dpo_credit(b.with_action(old_logp=logp, ref_logp=logp))
    won = b.spread(b.of_turn('outcome')) > 0
    assert (advantage[won] >= 0).all() and (advantage[~won] <= 0).all() and (advantage > 0).any()

def test_agent_rlvr_a_task_without_guidance(player):
    class Alone(GuessNumber):
        def __getattribute__(self, name):
            if name == 'expert': raise AttributeError(name)
            return super().__getattribute__(name)
    episodes = guided(player, Alone(high=8, horizon=1), range(6), around=GUIDED, max_tokens=4)
    assert {e.success for e in episodes if not e.error} <= {True}
    assert all('nothing to say' in e.error for e in episodes if not e.success)

# ---- ReSeek

@pytest.fixture(scope='module')
def reader():
    "Judges pages now and then, and has seen few questions."
    return tiny_policy(Judged(search()), steps=80, pool=256, noise=.5, progress=False)

def search(**how): return HopSearch(**dict(hops=1, distractors=10, horizon=4) | how)

def test_reseek_learns(reader, tmp_path):
    run = trained(copy.deepcopy(reader), recipes.reseek(**SMALL | dict(max_tokens=8)), tmp_path/'run', search())
    assert not run.episodes(0).turns.judged.isnan().all()

def test_reseek_judgements_are_paid(reader):
    b = games(reader, Judged(search()), max_tokens=8)
    said, useful = b.turns.judged, b.turns.useful
    more = judgements(b) - b.turns.reward
    assert torch.allclose(more[said == useful], torch.tensor(.3).double()) and (more[said.isnan()] == 0).all()
    for j, u, worth in ((1, 0, -.6), (0, 1, -.3)):
        assert torch.allclose(more[(said == j) & (useful == u)], torch.tensor(worth).double())
    assert (said == useful).any() and ((said != useful) & ~said.isnan()).any()
    faithful = judgements(b, faithful=True)
    right = b.of_turn('success').bool() & (said == 1)
    assert right.any() and torch.allclose((faithful - b.turns.reward)[right], torch.tensor(.4).double())

def test_reseek_no_drops_the_page():
    "After a no the page is not among what was found; after a yes, and without a judgement, it is."
    found = {}
    for word in ('yes ', 'no ', ''):
        env = Judged(search(hops=2))
        env.reset(0)
        start = env.game.start
        env.step(f'search mentor {start}')
        page = env.game.found
        step = env.step(f'{word}search rival {start}')
        found[word] = set(page) <= set(env.game.found)
        assert (step.info['columns']['judged'] == step.info['columns']['judged']) == bool(word)
    assert found == {'yes ': True, 'no ': False, '': True}

def test_reseek_nobody_judges_where_there_is_no_page():
    env = Judged(search())
    env.reset(0)
    step = env.step('no search mentor')
    assert str(step.info['columns']['judged']) == 'nan' and check_env(Judged(search()))['clone'] == 'ok'

# ---- MinD

@pytest.fixture(scope='module')
def thinker():
    "Thinks once more after a slip, and has seen few games."
    return tiny_policy(by_units(guess(), 'guess'), steps=60, pool=512, noise=.7, progress=False)

@pytest.fixture(scope='module')
def thoughts(thinker): return games(thinker, by_units(guess()), size=8)

def ends_of(b, reward): return reward(b)[b.last_turns()]

def test_mind_learns(thinker, tmp_path):
    run = trained(copy.deepcopy(thinker), recipes.mind(**SMALL | dict(group_size=8)), tmp_path/'run')
    assert run.episodes(0).turns.attempt.max() > 0 and not run.episodes(0).turns.answers.isnan().any()

def test_mind_a_turn_is_a_unit(thinker, thoughts):
    "A unit is read behind those before it, and nothing says whether they were right; without, an episode is one turn."
    texts = {t.observation for e in play(thinker, by_units(guess()), range(8), 4, max_tokens=4) for t in e.turns[1:]}
    assert texts == {'Go on.'} and len(thoughts.turns) > len(thoughts)
    later = thoughts.turns.attempt > 0
    assert thoughts.turns.t[later].min() == 1 and len(thoughts.rows) == len(thoughts)
    plain = games(thinker, guess(), size=8)
    assert len(plain.turns) == len(plain) and 'answers' not in plain.turns

def test_mind_the_agent_says_whether_it_goes_on(thinker):
    "Behind `more` another unit follows, unless it was the last that is allowed; always going on makes other batches."
    played = play(thinker, by_units(guess(), most=3), range(8), 8, max_tokens=4)
    for e in played:
        on = [t.text.endswith('more') for t in e.turns]
        assert all(on[:-1]) and (len(on) == 3 or not on[-1])
    assert {len(e.turns) for e in played} == {1, 2, 3}
    on = play(thinker, by_units(guess(), most=3, goes_on=always), range(8), max_tokens=4)
    assert {len(e.turns) for e in on} == {3}

def test_mind_the_start_thinks_once_more_after_a_slip():
    "What is shown says `more` behind a wrong answer and nowhere else; the inner demonstrator never does."
    from random import Random
    said = {}
    for world in (by_units(guess()), guess()):
        luck, units = Random(0), []
        for seed in range(12):
            step = world.reset(seed)
            while not step.done:
                units.append(getattr(world, 'demonstrator', world.expert)(.7, luck))
                step = world.step(units[-1])
                right = step.info['columns']['right'] == 1 if 'columns' in step.info else None
                assert right is None or units[-1].endswith(' more') != right
        said[world.name] = any(unit.endswith(' more') for unit in units)
    assert list(said.values()) == [True, False]

def test_mind_the_last_answer_is_paid(thinker):
    "An earlier right answer is worth nothing, and so is a shorter way to the same one."
    b = games(thinker, by_units(guess(), goes_on=always, most=3), n=16, size=8)
    grid, paid = attempts(b), ends_of(b, partial(unit_reward, form=0., several=0.))
    assert torch.equal(paid, grid[:, -1]) and ((earned(b).sum(1) > 0) & (paid == 0)).any()
    assert (unit_reward(b)[~b.last_turns()] == 0).all()

def heard(*units):
    "A batch of one episode: what was said in each of its units."
    env = by_units(guess(), most=len(units), goes_on=always)
    begun = [env.reset(0), *map(env.step, units)]
    turns = [dict(group=0, episode=0, t=i, **s.info['columns']) for i, s in enumerate(begun[1:])]
    return Batch.from_turns(pd.DataFrame(turns))

@pytest.mark.parametrize('form', [.1, 0.])
def test_mind_format(form):
    "Every unit needs an answer; without the term it need not."
    both, one = (ends_of(heard('guess 1', second), partial(unit_reward, form=form)).item()
        for second in ('guess 2 more', 'well 2 guess'))
    assert both - one == pytest.approx(form)

@pytest.mark.parametrize('several', [-.1, 0.])
def test_mind_compactness(several):
    "A unit with two answers is paid less, however it is written; without the term it is not."
    once, twice = (ends_of(heard(unit, 'guess 2'), partial(unit_reward, several=several)).item()
        for unit in ('guess 1', 'Guess 3, no: guess 1 more'))
    assert twice - once == pytest.approx(several)
    assert heard('guess 3 guess 1').turns.answers.tolist() == [2.]

def test_mind_compactness_moves_the_advantage(thoughts):
    "Where a batch has a unit with two answers, its group is compared otherwise."
    n = thoughts.turns.answers.clone()
    n[0] = 2.
    b = thoughts.with_turns(answers=n)
    outcome = lambda several: b.with_episodes(outcome=ends_of(b, partial(unit_reward, several=several)))
    assert not torch.allclose(grpo(outcome(-.1)), grpo(outcome(0.)))

def test_mind_fewer_turns_first(thoughts):
    "Among right ones the shorter is ahead, wrong ones are tied; the paper's reward does not know how many there were."
    right, turns = ends_of(thoughts, lambda b: b.turns.right), ends_of(thoughts, lambda b: b.turns.attempt + 1)
    place, paid = ends_of(thoughts, fewer_first), ends_of(thoughts, unit_reward)
    for g in thoughts.episodes.group.unique():
        mine = thoughts.episodes.group == g
        ahead = (right/turns)[mine][:, None] > (right/turns)[mine]
        assert torch.equal(place[mine], ahead.sum(1).double())
    assert (place[right == 0] == 0).all() and (place[right == 1].unique().numel() > 1)
    assert len(set(turns[right == 1].tolist())) > 1 and paid[right == 1].unique().numel() == 1
    arms = [grpo(thoughts.with_episodes(outcome=x)) for x in (place, paid)]
    assert not torch.allclose(*arms)

def test_mind_words():
    "The word of an answer is that of the world's last tool, and what follows `more` is no wish to go on."
    assert [by_units(world).word for world in (guess(), HopSearch(), OwnTasks([dict(prompt='?', split='train')]))] == [
        'guess', 'answer', 'answer']
    env = by_units(guess())
    check_env(env)
    env.reset(0)
    assert env.step('guess 1, more guess 2').done

@pytest.mark.lm
def test_mind_plays_with_a_model_that_reads(smollm2):
    "One small batch of sums by the same recipe: what was sampled is what would be learned from."
    sums = OwnTasks([dict(prompt=f'{a} + {b} =', answer=a + b, split='train') for a, b in ((2, 3), (4, 1))], number,
        guide='Add.\nExample: answer 7')
    recipe = recipes.mind()
    b = Batch.from_episodes(recipe.rollout(smollm2, sums, [0, 1], 3, max_tokens=10, max_turns=3, seed=1))
    assert len(b) == 6 and (b.episodes.error == -1).all() and (b.turns.answers > 0).any()
    logp, _ = smollm2.logprobs(b)
    assert (logp - b.action('sampler_logp')).abs().max() < 5e-3
    paid = b.with_episodes(outcome=ends_of(b, recipe.reward))
    assert grpo(paid).isfinite().all()

# ---- MINT

def test_mint_budgets_answers_and_feedback(player):
    "More turns are more answers, but never more than two; the slope is of what was found."
    asked = []
    def rollout(policy, env, *arguments, **how):
        episodes = play(policy, env, *arguments, **how)
        asked.append(max(len(e.turns) for e in episodes))
        assert all('turns left' in e.turns[0].observation for e in episodes)
        return episodes
    found = by_budget(player, guess(), tasks=9, budgets=(1, 2, 4), rollout=rollout, max_tokens=4)
    assert asked == [1, 2, 2] and found['errors'] == 0 and all(0 <= found[k] <= 1 for k in (1, 2, 4))
    told = by_budget(player, guess(), tasks=9, budgets=(1, 2), feedback=lambda k, one: 'Higher.', max_tokens=4)
    assert told[1] == found[1]  # no feedback is read with one turn

def test_mint_feedback_that_tells(player):
    class Known(GuessNumber):
        def facts(self): return super().facts() | dict(answer=str(self.task['secret']))
    tell = lambda k, one: f"It is {one.env.task['secret']}."
    found = by_budget(player, Known(high=8, horizon=1), tasks=9, budgets=(1, 2), feedback=tell, max_tokens=4)
    assert 0 < found['errors'] <= 9

def test_mint_tools():
    "Somebody who reads pages needs two turns for one hop, and without the tool no number of turns is enough."
    class Blind(HopSearch):
        def search(self, words): return 'Nothing found.', 0., {}
    def expert(policy, env, seeds, size, tasks, seed):
        episodes = []
        for task in tasks:
            step = env.reset(0, task)
            while not step.done: step = env.step(env.expert())
            episodes.append(Episode(success=step.info['success']))
        return episodes
    how = dict(tasks=12, budgets=(1, 2, 4), rollout=expert)
    seen, blind = (by_budget(None, make(hops=1, distractors=10), **how) for make in (HopSearch, Blind))
    assert (seen[1], seen[2], seen[4]) == (0., 1., 1.) and seen['slope'] > 0
    assert (blind[1], blind[4], blind['slope']) == (0., 0., 0.)
