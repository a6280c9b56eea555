"""Whatever an environment does, `play` pays every seat what it earned, trains on what was sampled, ends what failed,
and leaves nothing running."""
import contextlib, gc, random, sys, threading, time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings, strategies as st

from agentlab.env import Env, Isolated, KeyDoor, Step, TextEnv
from agentlab.episodes import Batch
from agentlab.policy.core import Chat, word_tokenizer
from agentlab.rollout import call_all, play
from later import deferred
from small import Paying, small_policy

quick = settings(max_examples=60, deadline=None)
words = 'speak end stop wait go boom red blue'.split()
tokenizer = deferred(lambda: word_tokenizer(words))
chat = deferred(lambda: Chat(tokenizer))

def reader(**changes):
    "All that `play` needs of a policy: no model."
    return SimpleNamespace(**dict(chat=chat, end_id=chat.end_id, max_context=100,
        text=lambda ids: tokenizer.decode(ids, skip_special_tokens=True)) | changes)

class Babble:
    "A sampler that says anything, with and without the end token, and remembers what it was shown."
    def __init__(self, seed=0): self.chance, self.calls = random.Random(seed), []
    def sample(self, contexts, max_tokens, temperature, top_p, stop, seeds):
        assert len(contexts) == len(seeds) and set(stop) == {chat.end_id}
        said = [self.say(max_tokens) for _ in contexts]
        self.calls.append([(list(context), said.ids) for context, said in zip(contexts, said)])
        return said
    def say(self, most):
        ids = self.chance.choices(tokenizer.convert_tokens_to_ids(words), k=self.chance.randint(1, most))
        if self.chance.random() < .7: ids[-1] = chat.end_id
        return SimpleNamespace(ids=ids, logprobs=[-self.chance.random() for _ in ids],
            entropies=[self.chance.random() for _ in ids], finish='stop')

# ---- environments drawn at random

class Table(Env):
    "Plays a script that its seed draws: who moves when, what is paid to whom, and whether it fails on the way."
    def __init__(self, seats=('player',), most=6, faults=0.):
        self.seats, self.most, self.faults, self.log = tuple(seats), most, faults, []
    def clone(self): return Table(self.seats, self.most, self.faults)
    def reset(self, seed, task=None):
        self.chance, self.paid, self.left = (random.Random(seed), dict.fromkeys(self.seats, 0.),
            random.Random(seed).randint(0, self.most))
        return self.answer()
    def step(self, action): return self.answer()
    def answer(self):
        if self.chance.random() < self.faults:
            raise self.chance.choice([ValueError('bad move'), KeyError('room'), RecursionError(), MemoryError(),
                AssertionError()])
        reward = {seat: self.chance.randint(-4, 4)/4 for seat in self.seats if self.chance.random() < .6}
        for seat, x in reward.items(): self.paid[seat] += x
        self.left -= 1
        done = self.left < 0
        info = dict(state=(self.left,), invalid=self.chance.random() < .3, cost=self.left/2,
            success=done and self.chance.random() < .5)
        return Step(self.chance.choice(self.seats), ' '.join(self.chance.choices(words, k=self.chance.randint(0, 3))),
            reward, done, info)

tables = st.builds(Table, st.sampled_from([('player',), ('red', 'blue'), ('a', 'b', 'c')]), st.integers(0, 6),
    st.sampled_from([0., .1, .5]))
games = dict(env=tables, seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3), group_size=st.integers(1, 3),
    max_turns=st.integers(1, 7), seed=st.integers(0, 9))

def played(env, seeds, group_size, max_turns, seed, **how):
    "Episodes, the environments that played them and what the sampler was shown."
    made, sampler = [], Babble(seed)
    def make():
        made.append(env.clone())
        return made[-1]
    return play(reader(), make, seeds, group_size, sampler=sampler, max_turns=max_turns, max_tokens=3,
        **how), made, sampler

@quick
@given(**games)
def test_every_seat_gets_what_was_paid_to_it(env, seeds, group_size, max_turns, seed):
    episodes, made, _ = played(env, seeds, group_size, max_turns, seed)
    assert [(e.game, e.seat) for e in episodes] == [(g, seat) for g in range(len(seeds)*group_size)
        for seat in env.seats]
    assert [e.group for e in episodes] == [i for i in range(len(seeds)) for _ in range(group_size*len(env.seats))]
    for e in episodes:
        assert e.outcome == made[e.game].paid[e.seat]
        if e.turns: assert sum(t.reward for t in e.turns) == e.outcome  # eighths add up exactly

@quick
@given(**games)
def test_turns_of_a_game_are_numbered_through(env, seeds, group_size, max_turns, seed):
    episodes, made, _ = played(env, seeds, group_size, max_turns, seed)
    for number in range(len(made)):
        mine = [e for e in episodes if e.game == number]
        assert sorted(t.t for e in mine for t in e.turns) == list(range(sum(len(e.turns) for e in mine)))
        assert sum(len(e.turns) for e in mine) <= max_turns
        assert len({(e.error, e.truncated, e.success) for e in mine}) == 1
        if mine[0].truncated: assert sum(len(e.turns) for e in mine) == max_turns
        assert not (mine[0].error and mine[0].truncated)

def test_whoever_watches_sees_every_turn_as_it_is_played():
    seen = []
    look = lambda live: seen.extend((g.number, g.last_side.turns[-1].t, g.last_side.turns[-1].text) for g in live)
    episodes, *_ = played(Table(('red', 'blue'), 4), [1, 2], 2, 9, 0, on_round=look)
    assert sorted(seen) == sorted((e.game, t.t, t.text) for e in episodes for t in e.turns) and seen
    assert [t for _, t, _ in seen] == sorted(t for _, t, _ in seen)

@quick
@given(**games)
def test_what_was_sampled_is_what_is_trained_on(env, seeds, group_size, max_turns, seed):
    "The tokens of a row are the context that the sampler was shown last, and the action it gave to it."
    episodes, _, sampler = played(env, seeds, group_size, max_turns, seed)
    batch = Batch.from_episodes(episodes)
    shown = [pair for call in sampler.calls for pair in call]
    rows = [batch.tokens.id[batch.tokens.row == row].tolist() for row in range(len(batch.rows))]
    for i, e in enumerate(episodes):
        assert bool(e.turns) == (i in batch.rows.episode.tolist())
        if e.turns: assert any(context + said == rows[batch.rows.episode.tolist().index(i)] for context, said in shown)
    # each id once
    assert sorted(x for _, said in shown for x in said) == sorted(batch.tokens.id[batch.actions].tolist())
    for e in episodes:  # and on the way: every context begins with all that this seat had read and said before
        so_far = []
        for t in e.turns:
            so_far = so_far + t.context_ids
            assert any(context == so_far and said == t.ids for context, said in shown)
            so_far = so_far + t.ids

@quick
@given(**games)
def test_one_call_of_the_sampler_a_round(env, seeds, group_size, max_turns, seed):
    episodes, made, sampler = played(env, seeds, group_size, max_turns, seed)
    lengths = [sum(len(e.turns) for e in episodes if e.game == number) for number in range(len(made))]
    assert [len(call) for call in sampler.calls] == [sum(length > i for length in lengths) for i in range(max(lengths))]

@quick
@given(**games)
def test_a_group_starts_from_one_state(env, seeds, group_size, max_turns, seed):
    episodes, *_ = played(Table(env.seats, env.most), seeds, group_size, max_turns, seed)
    for group in range(len(seeds)):
        first = {(t.observation, t.state, e.seat) for e in episodes if e.group == group for t in e.turns if t.t == 0}
        assert len(first) <= 1

@quick
@given(**games)
def test_the_same_seeds_play_the_same(env, seeds, group_size, max_turns, seed):
    assert played(env, seeds, group_size, max_turns, seed)[0] == played(env, seeds, group_size, max_turns, seed)[0]

def test_members_of_a_group_differ_in_what_is_sampled():
    "And a group plays the same whoever plays beside it: a draw depends on (seed, group, member, turn) alone."
    policy, env = small_policy(), Paying()
    episodes = play(policy, env, [5, 6], group_size=3, max_tokens=4, seed=1)
    said = lambda e: [t.ids for t in e.turns]
    assert len({str(said(e)) for e in episodes[:3]}) > 1
    alone = play(policy, env, [6], group_size=3, max_tokens=4, seed=1, groups=[1])
    assert [said(e) for e in alone] == [said(e) for e in episodes[3:]]
    assert {e.turns[0].observation for e in episodes[:3]} != {e.turns[0].observation for e in episodes[3:]}

# ---- budgets

@quick
@given(limit=st.integers(8, 40), seed=st.integers(0, 99))
def test_nothing_longer_than_the_context_is_shown(limit, seed):
    "The episode that would not fit is marked; nothing is cut away."
    sampler = Babble(seed)
    episodes = play(reader(max_context=limit), Table(most=20), [seed, seed + 1], sampler=sampler, max_tokens=3)
    for call in sampler.calls:
        for context, said in call: assert len(context) + 3 <= limit
    for e in episodes:
        read = sum(len(t.context_ids) + len(t.ids) for t in e.turns)
        assert read <= limit and not e.error

@quick
@given(budget=st.integers(1, 12), seed=st.integers(0, 99))
def test_token_budget(budget, seed):
    for e in play(reader(), Table(('red', 'blue'), most=20), [seed], sampler=Babble(seed), max_tokens=3,
                  token_budget=budget):
        assert sum(len(t.ids) for t in e.turns) < budget + 3
        assert all(sum(len(t.ids) for t in e.turns[:i]) < budget for i in range(len(e.turns)))

# ---- faults

class Faulty(TextEnv):
    "Answers what `answer` says in the games whose seed is odd."
    name, horizon = 'faulty', 3
    def __init__(self, answer): self.answer = answer
    def start(self, seed, task=None):
        self.bad = seed % 2
        return 'speak'
    def turn(self, action): return 'speak', .5, False, {}
    def step(self, action): return self.answer() if self.bad and self.turns else super().step(action)

def boom(): raise RuntimeError('boom')
faulty = dict(raises=boom, exits=lambda: sys.exit(3), nothing=lambda: None,
    text=lambda: 'speak', unknown_seat=lambda: Step('nobody', 'speak'),
    unknown_payee=lambda: Step('player', 'speak', dict(nobody=1.)),
    no_reward=lambda: Step('player', 'speak', None),
    text_reward=lambda: Step('player', 'speak', dict(player='much')),
    empty_reward=lambda: Step('player', 'speak', dict(player=None)),
    list_reward=lambda: Step('player', 'speak', [1.]),
    no_info=lambda: Step('player', 'speak', {}, False, None), no_text=lambda: Step('player', None),
    number=lambda: Step('player', 3),
    bad_cost=lambda: Step('player', 'speak', {}, False, dict(cost='dear')))

@pytest.mark.parametrize('fault', faulty)
def test_a_fault_ends_its_own_episode(fault):
    good, bad, also = play(reader(), Faulty(faulty[fault]), [0, 1, 2], sampler=Babble(), max_tokens=2)
    assert bad.error and len(bad.turns) == 2 and bad.outcome == .5
    for e in (good, also): assert e.error is None and len(e.turns) == 3 and e.outcome == 1.5
    Batch.from_episodes([good, bad, also])

class Unready(Faulty):
    def start(self, seed, task=None): return boom() if seed % 2 else 'speak'
    bad = False

def test_a_fault_in_reset():
    good, bad = play(reader(), Unready(boom), [0, 1], sampler=Babble(), max_tokens=2)
    assert bad.error == 'RuntimeError: boom' and not bad.turns and good.error is None

def test_a_fault_in_close():
    class Stubborn(Faulty):
        def close(self): boom()
    assert play(reader(), Stubborn(boom), [0], sampler=Babble(), max_tokens=2)[0].error is None

def test_an_interruption_is_obeyed():
    "Ctrl-C in an environment is the user's, not a fault; and environments are closed."
    closed = []
    class Interrupted(Faulty):
        def close(self): closed.append(self)
    def interrupt(): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        play(reader(), Interrupted(interrupt), [0, 1], sampler=Babble(), max_tokens=2)
    assert len(closed) == 2

def test_a_state_that_cannot_be_compared():
    "A fault of one environment is found while it plays, not when all episodes are joined."
    class Odd(Faulty):
        def facts(self): return dict(state={1, 2} if self.bad else 'fine')
    good, bad = play(reader(), Odd(lambda: Step('player', 'speak', {}, False, dict(state={1, 2}))), [0, 1],
        sampler=Babble(), max_tokens=2)
    Batch.from_episodes([good, bad])
    assert bad.error and not good.error

# ---- worker processes

def stuck():
    """An environment whose class is made here: it is sent to a worker as it is, and the worker need not import this
    file and torch."""
    class Stuck(TextEnv):
        "Never answers the second action where the seed is odd; a thread of its own runs on."
        name, horizon = 'stuck', 3
        def start(self, seed, task=None):
            self.bad = seed % 2
            return 'speak'
        def turn(self, action):
            if self.bad and self.turns == 2:
                threading.Thread(target=time.sleep, args=(1000,)).start()
                while True: pass
            return 'speak', .5, False, {}
    return Stuck()

def family(): return set(psutil.Process().children(recursive=True)), set(threading.enumerate())

@contextlib.contextmanager
def nothing_left():
    gc.collect()
    before = family()
    yield
    for now, then in zip(family(), before): assert not now - then  # what an earlier test left may end meanwhile

def test_nothing_outlives_play():
    env = Isolated(KeyDoor(), limit=20.)
    with nothing_left(): play(reader(), env, [0, 1], sampler=Babble(), max_tokens=2, max_turns=2)
    env.close()

def test_an_endless_loop_ends_its_own_episode():
    with nothing_left(), contextlib.closing(Isolated(stuck(), limit=1.)) as env:
        good, bad = play(reader(), env, [0, 1], sampler=Babble(), max_tokens=2)
    assert bad.error.startswith('EnvTimeout') and len(bad.turns) == 2 and bad.outcome == .5
    assert good.error is None and good.outcome == 1.5

def test_workers_end_when_play_fails():
    class Broken(Babble):
        def sample(self, *a, **k): raise RuntimeError('out of memory')
    with (nothing_left(), contextlib.closing(Isolated(KeyDoor(), limit=20.)) as env,
          pytest.raises(RuntimeError, match='out of memory')):
        play(reader(), env, [0], sampler=Broken())

# ---- bad input

@pytest.mark.parametrize('how, said',
    [(dict(group_size=0), 'group_size=0'), (dict(tasks=[1, 2]), '2 tasks for 1 seeds'),
    (dict(groups=[]), '0 groups for 1 seeds')])
def test_bad_input(how, said):
    with pytest.raises(ValueError, match=said): play(reader(), Table(), [0], sampler=Babble(), **how)

def test_nothing_to_play(): assert play(reader(), Table(), [], sampler=Babble()) == []

# ---- tools that wait

class Waits(TextEnv):
    "Two turns, each a tool call of 50 ms; the games with these seeds never hear from their tool again."
    def __init__(self, hangs=()): self.hangs = hangs
    def start(self, seed, task=None):
        self.seed, self.said = seed, 0
        return 'speak'
    def turn(self, action):
        if self.seed in self.hangs: threading.Event().wait()
        time.sleep(.05)
        self.said += 1
        return 'end', 1., self.said == 2, {}

def clocked(call):
    start = time.monotonic()
    return call(), time.monotonic() - start

def test_64_waiting_tools_take_less_than_four_calls():
    def waiting(n): return [SimpleNamespace(env=Waits()) for _ in range(n)]
    def call(games, **how):
        call_all(games, 'reset', [(0,)]*len(games))
        return call_all(games, 'step', [('speak',)]*len(games), **how)
    _, serial = clocked(lambda: call(waiting(8)))
    # this test shares its machine with others
    best = min(clocked(lambda: call(waiting(64), workers=64))[1] for _ in range(3))
    assert best < 4*serial/8
    assert all(e.error is None and len(e.turns) == 2
        for e in play(reader(), Waits(), range(64), sampler=Babble(), workers=64))

def test_a_hanging_tool_delays_nobody_beyond_its_limit():
    episodes, seconds = clocked(lambda: play(reader(), Waits(hangs=(5, 6)), range(8), sampler=Babble(), workers=8,
        limit=.4))
    assert [e.error is None for e in episodes] == [i not in (5, 6) for i in range(8)]
    assert all(e.outcome == 2. for i, e in enumerate(episodes)
        if i not in (5, 6)) and 'has not returned after 0.4 s' in episodes[5].error
    alone, least = clocked(lambda: play(reader(), Waits(), range(8), sampler=Babble(), workers=8))
    assert seconds < least + 4*.4

@pytest.mark.parametrize('workers', [1, 3, 20])
def test_threads_change_nothing_but_the_time(workers):
    serial, threaded = (play(reader(), Waits(), range(6), sampler=Babble(), workers=n) for n in (0, workers))
    assert serial == threaded

def test_more_hanging_calls_than_threads():
    episodes = play(reader(), Waits(hangs=(0, 1, 2)), range(6), sampler=Babble(), workers=2, limit=.2)
    assert [e.error is None for e in episodes] == [False]*3 + [True]*3

def test_a_scripted_sampler_has_to_know_the_games():
    from agentlab.rollout import Scripted
    env = KeyDoor(3)
    policy = small_policy(env)
    sampler = Scripted(policy, lambda game: 'go north')
    with pytest.raises(ValueError, match='on_reset='): play(policy, env, [0], sampler=sampler, max_tokens=4)
    games = play(policy, env, [0, 1], sampler=sampler, on_reset=sampler.begin, max_tokens=4, max_turns=2)
    assert {turn.text for e in games for turn in e.turns} == {'go north'}
