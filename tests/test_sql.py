"Questions over three tables: what counts is the rows, the database can only be read, and its faults end one episode."
import re
import sqlite3
import time
from random import Random
from types import SimpleNamespace

import pytest

from agentlab.env import Isolated, load_env, splits
from agentlab.env.protocol import as_reader, canonical, check_env
from agentlab.env.sql import (Shop, SqlWorld, as_script, asked, equal, level_of, needed, query_of, questions, run,
    slips, tables, tight)
from agentlab.policy import tiny_policy
from agentlab.rollout import play
from words import says_known_words

ENDLESS = 'with recursive n(x) as (select 1 union all select x + 1 from n) select {} from n'
LEVELS = range(1, 7)

@pytest.fixture
def shop():
    one = Shop(as_script(dict(store=3)))
    yield one
    one.close()

def begun(task=None, seed=0, **how):
    env = SqlWorld(**how)
    env.reset(seed, task)
    return env

# ---- the database

@pytest.mark.parametrize('query', [
    "insert into orders values (1, 2, 'monday', 4)", 'delete from orders', 'update orders set amount = 1',
    'drop table orders', 'create table mine (x)', 'create temp table mine (x)', 'pragma table_info(orders)',
    "select * from pragma_table_info('orders')", "attach ':memory:' as other", 'begin', 'savepoint a', 'vacuum',
    "select load_extension('x')", 'select 1; drop table orders'])
def test_a_shop_can_only_be_read(shop, query):
    before = run(shop, 'select * from orders')
    assert run(shop, query) is None
    assert run(shop, 'select * from orders') == before and len(before[1]) == 12

def test_an_endless_query_is_ended(shop):
    began = time.monotonic()
    assert run(shop, ENDLESS.format('max(x)'), seconds=.2) is None and time.monotonic() - began < 20
    assert run(shop, 'select count(*) from orders')[1] == [(12,)]  # the shop is open all the same

def test_a_million_rows_are_cut(shop):
    assert len(run(shop, ENDLESS.format('x') + ' limit 1000000', rows=12)[1]) == 13
    env = begun()
    step = env.step('sql ' + ENDLESS.format('x') + ' limit 1000000')
    assert 'only 1 2 rows are shown' in step.observation and not step.done

def test_a_result_is_small(shop):
    assert run(shop, 'select hex(zeroblob(9000))') is None and run(shop, 'select zeroblob(1000000)') is None
    assert run(shop, f'select {", ".join("1"*21)}') is None and len(run(shop, f'select {", ".join("1"*20)}')[0]) == 20
    step = begun().step("sql select replace(hex(zeroblob(4000)), '0', 'x') from orders")
    assert len(step.observation) < 1100

@pytest.mark.parametrize('query', ['', 'select', 'select nothing', 'select \0', '\ud800', 'select 1' + ' '*2_000_000])
def test_what_is_no_query_is_no_fault(shop, query):
    assert run(shop, query) is None or run(shop, query)[1] in ([(1,)], [])
    env = begun()
    assert not env.step(f'sql {query}').done and env.step(f'answer {query}').info['success'] is False

class Locked(SqlWorld):
    "The shop of odd seeds is a file that somebody else holds."
    def start(self, seed, task=None):
        text = super().start(seed, task)
        if seed % 2:
            path = self.folder/f'{seed}.db'
            self.other = sqlite3.connect(path, isolation_level=None)
            self.other.executescript(self.shop.script + 'begin exclusive')
            self.shop.link = sqlite3.connect(path, timeout=.01, check_same_thread=False)
        return text

class Says:
    "A sampler that says one thing."
    def __init__(self, policy, text): self.ids = [*policy.chat.text_ids(text), policy.end_id]
    def sample(self, contexts, **how):
        return [SimpleNamespace(ids=self.ids, logprobs=[-1.]*len(self.ids), entropies=[0.]*len(self.ids))
            for _ in contexts]

def test_a_locked_database_ends_one_episode_only(tmp_path):
    world = Locked()
    world.folder = tmp_path
    policy = tiny_policy(world, warm=False, progress=False)
    how = dict(sampler=Says(policy, 'answer select name from customers'), max_tokens=8)
    games = play(policy, world, [0, 1, 2, 3], **how)
    assert [e.error is None for e in games] == [True, False, True, False] and 'locked' in games[1].error
    env = Locked()
    env.folder = tmp_path/'two'
    env.folder.mkdir()
    env.reset(1)  # as the answer of a tool it can be read, and the episode goes on
    env.reached = lambda query: 0.
    step = env.step('sql select name from customers')
    assert 'locked' in step.observation and not step.done

# ---- questions

def test_every_question_has_a_query_of_its_tables_and_its_level():
    seen = {}
    for level in LEVELS:
        for split in splits:
            for one in questions(level, split):
                query, words = query_of(one), asked(one)
                assert seen.setdefault(canonical(one), split) == split and level_of(one) == level
                assert set(query.split()) & set(tables) == set(needed(one))
                assert len(query.split()) <= 24 and len(words.split()) <= 9
                assert ('distinct' in query) == ('different' in words) and query not in slips(one) and slips(one)
    assert len(seen) > 1000

@pytest.mark.parametrize('rows, gold, multiset, sets', [
    ([(1,), (1,), (2,)], [(2,), (1,)], False, True), ([(2,), (1,)], [(1,), (2,)], True, True),
    ([(4.0,)], [(4,)], True, True), ([('a', 1)], [(1, 'a')], False, False), ([], [], True, True)])
def test_results_are_multisets_and_in_the_release_sets(rows, gold, multiset, sets):
    assert (equal(rows, gold), equal(rows, gold, faithful=True)) == (multiset, sets)

def test_the_right_query_finds_something_and_the_usual_slip_something_else():
    env = SqlWorld()
    for task in env.tasks('test', 40):
        env.reset(0, task)
        assert env.gold[1] and env.reached(env.task['answer']) == 1 > env.reached(slips(task)[0])

def test_a_task_is_played_as_it_was_drawn():
    task = SqlWorld().tasks('test', 1)[0]
    one, two = begun(task, seed=1), begun(task, seed=2)
    assert one.gold == two.gold and one.task == two.task

GOOD = dict(show='name', of=[], where=['city', 'rome'], different=False, store=1)

@pytest.mark.parametrize('task', [3, {}, GOOD | dict(show='city'), GOOD | dict(store='1'), GOOD | dict(of=['total']),
    GOOD | dict(where=['city', 'paris'])])
def test_what_is_no_question_is_refused(task):
    assert SqlWorld().reset(0, GOOD).observation == 'List every name in rome.'
    with pytest.raises(ValueError, match='no task of SqlWorld'): SqlWorld().reset(0, task)

@pytest.mark.parametrize('how', [dict(levels=()), dict(levels=(0,)), dict(levels=(1, 7)), dict(horizon=1),
    dict(split='all')])
def test_bad_settings_are_refused(how):
    with pytest.raises(ValueError): SqlWorld(**how)

# ---- play

def test_the_world_keeps_the_rules():
    assert set(check_env(load_env('sql')).values()) == {'ok'}

def test_the_answer_is_judged_and_in_the_release_the_last_query():
    task = SqlWorld().tasks('train', 1)[0]
    right, wrong = query_of(task), slips(task)[0]
    for tried, said, won, won_there in ((right, wrong, False, True), (wrong, right, True, False)):
        for faithful, due in ((False, won), (True, won_there)):
            env = begun(task, faithful=faithful)
            env.step(f'sql {tried}')
            assert env.step(f'answer {said}').info['success'] is due

def test_milestones_are_quarters():
    task = dict(show='name', of=[], where=['city', 'rome'], different=False, store=3)
    env, shares = begun(task), []
    for query in ('select', 'select foo from customers', 'select job from customers', 'select name from customers',
                  'select job from customers', query_of(task)):
        shares.append(env.reached(query))
    assert shares == [0, .25, .5, .75, .5, 1]
    share = [env.step(f'sql {query}').info['milestone'] for query in ('select job from customers', 'select')]
    assert share == [.5, .5]  # what was reached stays reached

def test_only_known_words_are_said_and_read():
    says_known_words(SqlWorld(), SqlWorld().tasks('demo', 40), .6)

def test_the_expert_wins_and_the_careless_do_not():
    env, won = SqlWorld(), {0.: 0, 1.: 0}
    for noise in won:
        for number, task in enumerate(env.tasks('demo', 20)):
            step, generator = env.reset(0, task), Random(number)
            while not step.done: step = env.step(env.demonstrator(noise, generator))
            won[noise] += step.info['success']
    assert won == {0.: 20, 1.: 0}

def test_a_reader_writes_as_usual():
    env = as_reader(SqlWorld())
    for seed in range(6):
        step = env.reset(seed)
        while not step.done:
            action = env.expert()
            assert "' " not in action.replace("' group", '').rstrip() and not re.search(r'\d \d', step.observation)
            step = env.step(action)
        assert step.info['success']
    assert all(name in env.guide for name in (*tables, 'sql', 'answer')) and tight("a = ' b '") == "a = 'b'"

def test_a_clone_has_a_shop_of_its_own():
    env = begun()
    twin = env.clone()
    twin.step('answer select 1')
    assert not env.step(env.expert()).done and env.step(env.expert()).info['success']

def test_it_plays_in_another_process():
    here, there = SqlWorld(), Isolated(SqlWorld(), limit=60.)
    try:
        assert here.reset(3).observation == there.reset(3).observation
        action = here.expert()
        assert here.step(action).observation == there.step(action).observation
    finally: there.close()

def test_it_can_be_drawn():
    env = begun(seed=2)
    orders = run(env.shop, 'select * from orders')[1]
    assert all(name in env.render() for name in tables) and all(str(row) in env.render() for row in orders)
