"HopSearch over random worlds, texts and threads: what a notebook cell cannot show."
import copy, json, os, pickle, re, subprocess, sys, time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from agentlab.env.hopsearch import (HopSearch, World, draw_people, first_names, fts_query, full_name, last_names,
    names_of, relations, world_of)
from agentlab.env.isolation import Isolated
from agentlab.env.protocol import EnvError, canonical, check_env, random_states, splits

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**64)
pair = dict(seats=('planner', 'searcher'))
forms = st.sampled_from([dict(), dict(hops=1, distractors=10), dict(hops=3), dict(results=3),
    dict(horizon=3), dict(milestone=.25), pair, pair | dict(hops=3, milestone=.5),
    dict(seats=('left', 'right'), horizon=5)])
texts = st.one_of(st.sampled_from(['search mentor Bora Tel', 'search the of', 'answer Mina Dor', 'answer Mina',
    'ask rival mentor Bora Tel', 'ask', 'report Bora Tel', 'report nothing',
    'SEARCH: rival!']),
    st.text('searchankpot BTM"*()-:;\n\0\u00e9\ud800\U0001F511', max_size=40), st.text(max_size=20))

def play(env, task, choose, seed=0):
    "All steps of one episode."
    steps = [env.reset(seed, task)]
    while not steps[-1].done: steps.append(env.step(choose(steps[-1])))
    return steps

def random_legal(seed):
    generator = Random(seed)
    return lambda step: generator.choice(step.info['legal'])

# ---- the protocol

@pytest.mark.parametrize('split', splits)
@pytest.mark.parametrize('options', [dict(), dict(hops=1, distractors=10, results=4), dict(hops=3, distractors=55),
    pair, dict(seats=['a', 'b'], hops=3)])
def test_both_forms_keep_the_rules(options, split):
    assert set(check_env(HopSearch(split=split, **options)).values()) == {'ok'}

@few
@given(forms, seeds, seeds)
def test_same_seed_same_episode_and_no_global_randomness(options, seed, other):
    env, before = HopSearch(**options), random_states()
    first = play(env, None, random_legal(1), seed)
    play(env, None, random_legal(2), other)
    assert play(HopSearch(**options), None, random_legal(1), seed) == first
    env.tasks('test', 3), env.clone(), env.reset(seed), env.expert(.5, Random(0)), env.demonstrator(.5, Random(0))
    assert random_states() == before

@few
@given(forms, seeds, st.lists(texts, max_size=14))
def test_any_text_is_played_and_an_invalid_one_changes_only_the_clock(options, seed, actions):
    env = HopSearch(**options)
    step, refused = env.reset(seed), 0
    for turn, action in enumerate(actions, 1):
        before = step
        step = env.step(action)
        assert env.game.turns == turn <= env.horizon and set(step.reward) == set(env.seats)
        refused += step.info['invalid']
        assert step.info['refused'] == refused
        if step.info['invalid']:
            assert ((step.seat, step.info['state'], step.observation, sum(step.reward.values()))
                == (before.seat, before.info['state'], 'Nothing happens.', 0))
        assert step.done == (step.observation in ('Right.', 'Wrong.') or turn == env.horizon)
        assert not step.info['truncated']  # its horizon is a rule
        assert step.info['success'] == (step.observation == 'Right.')
        if step.done: break
    if step.done:
        with pytest.raises(EnvError, match='call reset'): env.step('search mentor')

@few
@given(forms, seeds, st.integers(0, 5))
def test_legal_actions_are_valid_and_clones_are_independent(options, seed, turns):
    env, choose = HopSearch(**options), random_legal(seed)
    step = env.reset(seed)
    for _ in range(turns):
        if not step.done: step = env.step(choose(step))
    if step.done: return
    for action in step.info['legal']: assert not env.clone().step(action).info['invalid'], action
    game, stray = env.game, env.clone()
    stray.reset(seed + 1)
    action = choose(step)
    for copied in (env.clone(), copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.game.world is env.game.world and copied.step(action) == env.clone().step(action)
    assert env.game is game

def test_an_episode_can_live_in_another_process():
    for options in (dict(), pair):
        here, question = HopSearch(**options), HopSearch(**options).tasks('test', 1)[0]
        steps = play(here, question, lambda step: here.expert())
        there = Isolated(HopSearch(**options), limit=60)
        try:
            assert [there.reset(0, question)] + [there.step(action)
                for action in actions_of(options, question)] == steps
        finally: there.close()

def actions_of(options, question):
    "What the expert does, as texts."
    env, actions = HopSearch(**options), []
    play(env, question, lambda step: actions.append(env.expert()) or actions[-1])
    return actions

def test_nothing_depends_on_the_hash_seed():
    code = ("from agentlab.env.hopsearch import *; import json; env = HopSearch(); env.reset(0); w = env.game.world\n"
        "print(json.dumps([env.tasks(s, 5) for s in ('train', 'demo', 'test')] + [w.people, w.pages, [w.search(' "
        "'.join(f[::-1]), 3) for f in w.pages], w.search('mentor', 4)]))")
    runs = {subprocess.run([sys.executable, '-c', code],
        env=dict(os.environ, PYTHONHASHSEED=str(number), PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True, text=True, check=True).stdout for number in (1, 2)}
    assert len(runs) == 1 and len(json.loads(runs.pop())) == 7

def test_importing_it_does_not_import_torch():
    code = ("import sys, agentlab.env.hopsearch; assert not {'torch', 'numpy', 'transformers', 'pandas'} & "
        "set(sys.modules), sorted(sys.modules)")
    subprocess.run([sys.executable, '-c', code], env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)), check=True)

# ---- no leak, no guess

def test_splits_share_no_person_question_answer_or_page():
    assert all(word in first_names + last_names for split in splits for name in names_of(split)
        for word in name.split())
    for hops in (1, 2, 3):
        env, seen = HopSearch(hops), {}
        for split in splits:
            for task in env.tasks(split, 60):
                step = env.reset(0, task)
                world = env.game.world
                things = [*world.people, step.observation, *map(world.sentence, world.pages), canonical(task)]
                assert step.info['answer'] in world.people and step.info['answer'] not in step.observation
                for thing in things: assert seen.setdefault(thing, split) == split, thing

def test_reset_draws_from_its_split_and_the_demonstrations_from_theirs():
    from agentlab.policy.tiny import demonstration_env
    for split in splits:
        for seed in range(30):
            env = HopSearch(split=split)
            env.reset(seed)
            assert set(env.game.world.people) <= set(names_of(split))
    demo = demonstration_env(HopSearch())
    demo.reset(0)
    assert demo.game.world.key[0] == 'demo'

@pytest.mark.parametrize('options', [dict(), dict(hops=1, distractors=10), dict(hops=3), pair])
def test_without_search_the_answer_is_not_found(options):
    """Guessers that play: the answer most often right for this person, fitted to the very tasks it is judged on, and
    one that knows who lives in the world."""
    env, generator, right = HopSearch(**options), Random(0), Counter()
    tasks = env.tasks('test', 2400)
    answers = [world_of(task['split'], task['world'], task['people']).chain(task['start'], task['path'])[1]
        for task in tasks]
    seen = {}
    for task, answer in zip(tasks, answers): seen.setdefault(task['start'], Counter())[answer] += 1
    for task in tasks:
        for name, guess in dict(fitted=seen[task['start']].most_common(1)[0][0], peeking=generator.choice(
            world_of(task['split'], task['world'], task['people']).people)).items():
            env.reset(0, task)
            right[name] += env.step(f'answer {guess}').info['success']
    assert max(right.values()) < .1*len(tasks), right

def test_an_answer_is_equally_likely_for_every_relation():
    for relation in relations:
        counts = Counter(world_of('test', number, 24).links[relation, name] for number in range(150)
            for name in world_of('test', number, 24).people)
        assert len(counts) == 60 and max(counts.values())/sum(counts.values()) < .03

# ---- the world and its index

@few
@given(st.sampled_from(splits), st.integers(0, 10**6), st.integers(12, 58))
def test_every_page_is_found_by_its_own_question(split, number, people):
    world = World(split, number, people)
    assert (len(set(world.people)) == people and set(world.people) <= set(names_of(split))
        and len(world.pages) == 4*people)
    for relation in relations:  # one ring through everybody
        facts, back = world.chain(world.people[0], (relation,)*people)
        assert back == world.people[0] and {name for _, name in facts} == set(world.people)
    for fact in Random(number).sample(world.pages, 30):
        assert (world.search(' '.join(fact)) == world.search(f'{fact[1]}, {fact[0].upper()}?') == [fact]
            == world.search(' '.join(fact), 4)[:1])

@settings(max_examples=300, deadline=None)
@given(st.one_of(texts, st.text('"*^:+-(){} ANDORTELnear\n', max_size=30)), st.integers(1, 4))
def test_no_query_is_an_error_or_changes_the_index(text, results):
    world = world_of('test', 0, 12)
    found = world.search(text, results)
    assert len(found) <= results and set(found) <= set(world.pages)
    assert re.fullmatch(r'("[a-z]+"( OR "[a-z]+")*)?', fts_query(text))
    assert world.index.execute('SELECT count(*) FROM pages').fetchone() == (48,)

def test_clones_share_one_index_and_threads_agree():
    env = HopSearch(split='test')
    env.reset(0)
    queries = [' '.join(fact) for fact in env.game.world.pages]*6 + ['mentor', 'Bora', 'nothing at all']*6
    def ask(text): return env.clone().step(f'search {text}').observation
    with ThreadPoolExecutor(8) as pool: together = list(pool.map(ask, queries))
    assert together == [ask(text) for text in queries] and 'Nothing found.' in together
    assert env.clone().game.world.index is env.game.world.index is world_of(*env.game.world.key).index

def test_threads_that_come_first_together_make_one_index(monkeypatch):
    import agentlab.env.hopsearch as module
    made, make = [], module.index_of
    def slow(world):
        made.append(time.sleep(.05))
        return make(world)
    monkeypatch.setattr(module, 'index_of', slow)
    world = World('test', 10**6 + 1, 12)
    with ThreadPoolExecutor(8) as pool: found = list(pool.map(world.search, ['mentor']*8))
    assert len(made) == 1 and found == [world.search('mentor')]*8

def test_worlds_beyond_the_cache_are_closed_and_made_again():
    first = world_of('test', 0, 12)
    first.search('mentor')
    index, found = first.index, first.search('rival')
    for number in range(1, 300): world_of('test', number, 12)
    again = world_of('test', 0, 12)
    assert again is not first and again.pages == first.pages and again.search('rival') == found
    del first
    with pytest.raises(Exception, match='closed'): index.execute('SELECT 1')

def test_too_many_people_are_refused():
    with pytest.raises(ValueError, match='no 61 names'): draw_people(Random(0), 'test', 61)

def test_a_python_without_full_text_search_is_told_so(monkeypatch):
    class Poor:
        def execute(self, *_): raise __import__('sqlite3').OperationalError('no such module: fts5')
        def close(self): pass
    monkeypatch.setattr('agentlab.env.hopsearch.sqlite3.connect', lambda *_, **__: Poor())
    with pytest.raises(EnvError, match='built with FTS5'): World('test', 10**6, 12).search('mentor')

# ---- playing

@few
@given(st.sampled_from([1, 2, 3]), st.integers(10, 50), seeds)
def test_the_expert_needs_one_turn_a_hop_and_hops_are_told(hops, distractors, seed):
    env = HopSearch(hops, distractors)
    steps = play(env, None, lambda step: env.expert(), seed)
    assert steps[-1].reward == {'player': 1.} and len(steps) == hops + 2
    assert [step.info['reached'] for step in steps] == [(), *((hop,) for hop in range(1, hops + 1)), ()]
    assert ([step.info['hops'] for step in steps] == [tuple(range(1, hop + 1)) for hop in range(hops + 1)]
        + [tuple(range(1, hops + 1))])
    assert (len({step.info['answer'] for step in steps}) == 1
        and [step.info.get('cost', 0) for step in steps] == [0] + [1]*hops + [0])
    assert env.game.question.count(' of ') == hops

@few
@given(st.sampled_from([dict(), dict(hops=3), pair, pair | dict(hops=1)]), seeds)
def test_experts_from_any_situation_and_seeded_noise(options, seed):
    """After some legal wandering the expert still answers rightly, if the clock allows; a planner that was lied to
    may not."""
    env = HopSearch(**options | dict(horizon=40))
    step, choose = env.reset(seed), Random(seed)
    for _ in range(4):
        wander = [action for action in step.info['legal'] if action.split()[0] in ('search', 'ask')]
        step = env.step(choose.choice(wander) if env.game.role != 'searcher' or choose.random() < .5 else env.expert())
    while not step.done: step = env.step(env.expert())
    assert step.info['success']
    def noisy(act, number):
        generator = Random(number)
        return play(env, None, lambda step: getattr(env, act)(.5, generator), seed)
    for act in ('expert', 'demonstrator'):
        assert noisy(act, 3) == noisy(act, 3)
        env.reset(seed)
        with pytest.raises(ValueError, match='noise needs a generator'): getattr(env, act)(.5)

@pytest.mark.parametrize('options, low, high',
    [(dict(), .17, .33), (dict(hops=1), .4, .6), (dict(hops=3), .06, .2), (pair, .04, .2)])
def test_the_demonstrator_is_perfect_without_slips_and_often_wrong_with_them(options, low, high):
    env, generator = HopSearch(**options), Random(0)
    tasks = env.tasks('demo', 300)
    assert all(play(env, task, lambda step: env.demonstrator())[-1].info['success'] for task in tasks[:50])
    won = sum(play(env, task, lambda step: env.demonstrator(.5, generator))[-1].info['success'] for task in tasks)/300
    assert low < won < high

def test_states_recur_by_what_was_found_not_by_the_way():
    env = HopSearch()
    one, two = [' '.join(('search', *fact)) for fact in play_facts(env)]
    def state(*actions):
        env.reset(5)
        return [env.step(action).info['state'] for action in actions][-1]
    assert state(one, two) == state(two, one) == state(one, one, two) == state(one, 'search', two) != state(one)
    env.reset(6)
    assert env.facts()['state'][0] != state(one)[0]

def play_facts(env):
    env.reset(5)
    return env.game.world.chain(env.game.start, env.game.path)[0]

def test_milestones_pay_once_and_the_seat_that_found_them():
    env = HopSearch(milestone=.5, **pair)
    steps = play(env, env.tasks('test', 1)[0], lambda step: env.expert())
    assert ([step.reward.get('searcher') for step in steps] == [None, 0, .5, 0, 0, .5, 0, 1]
        and [step.reward.get('planner') for step in steps] == [None, 0, 0, 0, 0, 0, 0, 1])
    alone = HopSearch(milestone=.5, results=4)
    alone.reset(0, env.tasks('test', 1)[0])
    # all four pages on the first person, one of them a hop
    assert sum(alone.step(f'search {alone.game.start}').reward['player'] for _ in range(3)) == .5

@few
@given(seeds)
def test_seats_see_only_what_is_theirs(seed):
    env, generator = HopSearch(horizon=30, **pair), Random(seed)
    for step in play(env, None, lambda step: env.expert(.4, generator), seed)[:-1]:
        if step.observation == 'Nothing happens.': continue
        assert step.observation.startswith(dict(planner=('Who is', 'Told: '),
            searcher=('Asked: ', 'The ', 'Nothing found.'))[step.seat])
        read = set(full_name.findall(' '.join(step.info['legal'])))
        if step.seat == 'planner':
            assert read <= {env.game.start} | {name for _, told in env.game.told for name in full_name.findall(told)}
    env.reset(seed)
    assert 'search mentor Bora Tel' not in env.legal() and env.clone().step('search mentor Bora Tel').info['invalid']
    step = env.step('ask <|end|> MENTOR of "Bora Tel"; rival cousin tailor search one two three')
    # words only, eight of them
    assert (step.seat, step.observation) == ('searcher', 'Asked: end mentor of Bora Tel rival cousin tailor.')

@few
@given(forms, seeds)
def test_vocabulary_covers_what_is_said(options, seed):
    env, generator = HopSearch(**options), Random(seed)
    words = env.vocabulary()
    assert len(words) == len(set(words)) <= 250
    for step in play(env, None, lambda step: env.expert(.6, generator) if generator.random() < .8
                     else generator.choice(['search the', 'fly']), seed):
        for text in [step.observation, *step.info['legal']]: assert set(re.findall(r'\w+|[^\w\s]', text)) <= set(words)

def test_tasks_are_distinct_and_repeatable():
    env = HopSearch()
    for split in splits:
        tasks = env.tasks(split, 200)
        assert (len({canonical(task) for task in tasks}) == 200
            and tasks[:50] == HopSearch(split='demo').tasks(split, 50) != env.tasks(split, 50, seed=1))
        assert json.loads(json.dumps(tasks)) == tasks
        assert env.reset(0, tasks[0]).info['state'] == env.reset(9, json.loads(json.dumps(tasks[0]))).info['state']

# ---- demonstrations of several seats

class Script:
    """A policy for `agentlab.rollout.play`, and its sampler, that says what it was given, turn by turn, whatever it
    reads."""
    max_context = 10**6
    def __init__(self, chat, actions):
        self.chat, self.end_id, self.actions, self.read = chat, chat.end_id, iter(actions), []
    def sampler(self): return self
    def text(self, ids): return self.said
    def sample(self, contexts, **how):
        from agentlab.policy.sampler import Completion
        self.read += contexts
        self.said = next(self.actions)
        ids = self.chat.text_ids(self.said) + [self.end_id]
        return [Completion(ids, [float('nan')]*len(ids), [float('nan')]*len(ids), 'stop')]

class Early(HopSearch):
    "Pays the searcher before it has moved, at the reset and at every step, and tells a number."
    def reset(self, seed, task=None):
        step = super().reset(seed, task)
        step.reward[self.seats[-1]] = 4.
        return step
    def step(self, action):
        step = super().step(action)
        step.reward[self.seats[-1]] += .25
        step.info['columns'] = dict(words=len(action.split()))
        return step
    def demonstrator(self, noise=0., generator=None):
        return super().demonstrator(noise, generator) if generator.random() < .7 else generator.choice([
            'fly', 'ask', 'report nothing', f'answer {self.game.start}', f'search {self.game.start}'])

def demonstrated_and_played(env, seed, noise, game=0):
    """The episodes of one demonstrated game, and those of `play` when the same actions are said; with the contexts
    that were read."""
    from agentlab.policy.core import Chat, word_tokenizer
    from agentlab.policy.tiny import demonstrate
    from agentlab.rollout import play as play_many
    chat = Chat(word_tokenizer(env.vocabulary() + ['.']))
    shown = demonstrate(env, chat, [seed + 1]*game + [seed], noise)[-len(env.seats):]
    policy = Script(chat, [turn.text for turn in sorted((turn for side in shown for turn in side.turns),
        key=lambda turn: turn.t)])
    played = play_many(policy, env, [seed], groups=[game], max_tokens=1000)
    assert next(policy.actions, None) is None
    return shown, played, policy

def plain_facts(episode):
    "What is recorded of an episode, without who played it."
    facts = {name: value for name, value in vars(episode).items() if name not in ('source', 'policy', 'turns')}
    return facts, [{name: value for name, value in vars(turn).items() if name not in ('logps', 'entropies')}
        for turn in episode.turns]

@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(HopSearch, dict()), (HopSearch, pair),
    (HopSearch, pair | dict(hops=3, milestone=.5, horizon=7)), (HopSearch, pair | dict(results=3)),
    (Early, pair | dict(seats=('left', 'right'))), (Early, dict(horizon=4))]),
    seeds, st.sampled_from([0., .5, 1.]), st.integers(0, 2))
def test_a_demonstration_is_what_play_records_of_the_same_actions(form, seed, noise, game):
    "Ids of every context, rewards, outcomes, times, states: all of it, for every seat."
    make, options = form
    shown, played, policy = demonstrated_and_played(make(**options), seed, noise, game)
    assert [episode.seat for episode in shown] == list(options.get('seats', ['player']))
    for one, other in zip(shown, played, strict=True):
        assert plain_facts(one) == plain_facts(other) and one.source == 'demonstration'
        assert one.outcome == pytest.approx(sum(turn.reward for turn in one.turns)) or not one.turns
        for turn in one.turns:
            assert (len(turn.logps) == len(turn.entropies) == len(turn.ids)
                and all(x != x for x in turn.logps + turn.entropies))
    moves = sorted(((turn.t, k) for k, side in enumerate(shown) for turn in side.turns))
    assert [t for t, _ in moves] == list(range(len(moves)))
    contexts = [[] for _ in shown]  # what each seat has read and said so far: exactly what the sampler was given
    for (t, k), given_to in zip(moves, policy.read, strict=True):
        turn = next(turn for turn in shown[k].turns if turn.t == t)
        assert contexts[k] + turn.context_ids == given_to
        contexts[k] = given_to + turn.ids
    unknown = policy.chat.tokenizer.unk_token_id
    if make is HopSearch: assert unknown not in [i for context in contexts for i in context]

def test_a_seat_reads_nothing_of_the_other():
    shown, _, policy = demonstrated_and_played(HopSearch(**pair), 3, 0.)
    planner, searcher = (policy.chat.tokenizer.decode([i for turn in side.turns for i in turn.context_ids])
        for side in shown)
    assert 'Who is' in planner and 'Told' in planner and 'Asked' not in planner
    assert 'Asked' in searcher and 'Who' not in searcher and 'Told' not in searcher
    assert [turn.reward for turn in shown[1].turns] == [0, 0, 0, 1] and shown[0].success and shown[1].success

def test_a_searcher_that_is_never_asked_still_has_an_episode():
    class Rash(HopSearch):
        def demonstrator(self, noise=0., generator=None): return f'answer {self.game.start}'
    shown, played, _ = demonstrated_and_played(Rash(**pair), 0, .5)
    assert ([len(side.turns) for side in shown] == [1, 0]
        and list(map(plain_facts, shown)) == list(map(plain_facts, played)))

def test_a_warm_start_learns_from_both_seats():
    "Every update holds both sides of its games: the policy comes to speak as a planner and as a searcher."
    import torch
    from agentlab.episodes import Batch
    from agentlab.policy import tiny_policy
    from agentlab.policy.tiny import demonstrate, tiny_name, warm_start
    env, seen = HopSearch(split='demo', **pair), []
    policy = tiny_policy(env, warm=False)
    held_out = Batch.from_episodes(demonstrate(HopSearch(split='test', **pair), policy.chat, range(16)))
    seat = held_out.of_turn('seat')[held_out.action_turn]
    def loss(): return [-policy.logprobs(held_out)[0][seat == key].mean().item() for key in seat.unique()]
    before = loss()
    warm_start(policy, env, steps=60, episodes=8, pool=160, on_step=lambda step, loss: seen.append(loss))
    assert len(seen) == 60 and all(after < .6*first for first, after in zip(before, loss(), strict=True))
    assert len({tiny_name(HopSearch()), tiny_name(env), tiny_name(HopSearch(hops=3, **pair))}) == 3
    assert torch.isfinite(torch.tensor(seen)).all()

# ---- bad input

@pytest.mark.parametrize('options, message', [(dict(hops=0), 'hops must'), (dict(hops='2'), 'hops must'),
    (dict(distractors=9), 'can be guessed'), (dict(distractors=10.), 'distractors must'),
    (dict(distractors=57), 'no more names'),
    (dict(results=0), 'results must'), (dict(horizon=2), 'from 3'), (dict(horizon=4, **pair), 'from 5'),
    (dict(horizon=9.), 'horizon=.*whole'), (dict(milestone=float('nan')), 'milestone must'),
    (dict(milestone='1'), 'milestone must'),
    (dict(seats=()), 'seats must'), (dict(seats='ab'), 'seats must'), (dict(seats=('a', 'b', 'c')), 'seats must'),
    (dict(seats=('a', 'a')), 'seats must'), (dict(seats=(1,)), 'seats must'), (dict(split='dev'), 'split must')])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message): HopSearch(**options)

@pytest.mark.parametrize('change, message', [(dict(split='dev'), 'split must'), (dict(world=-1), 'world=.*whole'),
    (dict(world='7'), 'world=.*whole'), (dict(people=25), 'make HopSearch'), (dict(path=['mentor']), 'hops=1'),
    (dict(path='mentor'), 'path must'),
    (dict(path=['mentor', 'boss']), 'path must'), (dict(path=[]), 'path must'), (dict(start='Bora'), 'does not live'),
    (dict(start=None), 'does not live')])
def test_bad_tasks(change, message):
    env = HopSearch()
    question = env.tasks('test', 1)[0]
    with pytest.raises(ValueError, match=message): env.reset(0, question | change)
    with pytest.raises(ValueError, match='lacks path'):
        env.reset(0, {part: value for part, value in question.items() if part != 'path'})
    with pytest.raises(ValueError, match='is a question'): env.reset(0, 'Who?')

def test_a_path_that_comes_back_is_refused():
    world = world_of('test', 0, 24)
    back = next((name, one, two) for name in world.people for one in relations for two in relations
        if world.chain(name, (one, two))[1] == name)
    with pytest.raises(ValueError, match='meets somebody twice'):
        HopSearch().reset(0, dict(split='test', world=0, people=24, start=back[0], path=list(back[1:])))

def test_a_step_needs_an_episode_and_a_text():
    with pytest.raises(EnvError, match='call reset'): HopSearch().step('search mentor')
    env = HopSearch()
    env.reset(0)
    with pytest.raises(TypeError, match='takes a str'): env.step(3)
    with pytest.raises(TypeError, match='seed must'): env.reset('0')
    with pytest.raises(ValueError, match='train, demo, test'): env.tasks('valid', 1)
