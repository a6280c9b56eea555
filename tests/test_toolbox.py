"""The box of tools under stress: what fails is told, nothing gets out, nothing runs beside a change, episodes do not
feel each other; and policies play it in every form of a call."""
import gc
import os
import re
import sqlite3
import threading
import time
from types import SimpleNamespace
from typing import Literal

import cloudpickle
import pytest

from agentlab import credit, objective
from agentlab.env import (EnvError, Errands, Isolated, Toolbox, ToolError, ask_model, fault_of, final_answer,
    python_code, schema_of, scratch_files, splits, sql_query, text_search, tool_of)
from agentlab.env.errands import tool_for
from agentlab.env.protocol import as_reader, canonical
from agentlab.episodes import Batch
from agentlab.policy import Chat, Completion, Policy, tiny_model, tiny_policy
from agentlab.policy.core import word_tokenizer
from agentlab.policy.formats import Calls, Thinking, hermes, message, plan, wordwise, xml
from agentlab.rollout import play
from words import says_known_words

TASK = dict(question='What is it?', answer='7', calls=['echo 7'])

def echo(text: str):
    "Say it again."
    return text

def opened(*tools, over=None, **options):
    "A box with an episode under way."
    box = Toolbox([*tools], [TASK], horizon=99, **options)
    box.reset(0, TASK)
    return box

def called(box, tool, /, **arguments):
    "What one call comes to; the episode must go on."
    step = box.call_tool(tool, arguments)
    assert not step.done and step.reward == {'player': 0.} and len(step.observation) < 2000
    return SimpleNamespace(text=step.observation, error=step.info['columns']['tool_error'], **step.info)

# ---- what goes wrong

class Odd:
    def __str__(self): raise RuntimeError('no text')

def wrong(how: str):
    "Go wrong."
    if how == 'raise': raise KeyError('lost')
    if how == 'leave': raise SystemExit(3)
    if how == 'told': raise ToolError('Say it otherwise.')
    if how == 'odd': return {'x': Odd()}
    if how == 'nest':
        deep = []
        for _ in range(100_000): deep = [deep]
        return deep
    return {'long': 'y'*10**6, 'screen': '\x1b[2J\x00', 'none': None, 'list': [1, 2]}[how]

@pytest.mark.parametrize('how, hint', [('raise', 'KeyError'), ('leave', 'SystemExit'), ('told', 'Say it otherwise.'),
    ('odd', 'no text'), ('nest', 'RecursionError')])
def test_what_a_tool_raises_is_read_and_the_episode_goes_on(how, hint):
    box = opened(wrong, echo)
    found = called(box, 'wrong', how=how)
    assert hint in found.text and found.error == 1 and not found.invalid and not found.ledger[0]['ok']
    assert called(box, 'echo', text='on').text == 'on'

def test_what_a_tool_returns_is_cut_and_cleaned():
    box = opened(wrong, output=100)
    assert 'cut after 100 characters' in called(box, 'wrong', how='long').text
    assert called(box, 'wrong', how='screen').text == '\\x1b[2J\\x00'
    assert [called(box, 'wrong', how=how).text for how in ('none', 'list')] == ['null', '[1, 2]']

@pytest.mark.parametrize('name, arguments, hint', [
    ('ecko', dict(text='x'), 'The tools are echo'), ('echo', {}, 'needs the argument "text"'),
    ('echo', dict(text=3), 'of type string'), ('echo', dict(text='x', more=1), 'has no argument'),
    ('', {}, 'There is no tool'), ('\x1b'*500, {}, 'There is no tool')])
def test_a_call_that_does_not_fit_is_refused(name, arguments, hint):
    found = called(opened(echo), name, **arguments)
    assert hint in found.text and found.invalid and found.error == 1 and found.cost == 0

def test_costs_are_told_and_a_refused_call_costs_nothing():
    box = opened(tool_of(echo, cost=2.), tool_of(wrong, cost=.5))
    step = box.call_tools([('echo', dict(text='a')), ('wrong', dict(how='raise')), ('echo', {})])
    assert step.info['cost'] == 2.5 and [x['cost'] for x in step.info['ledger']] == [2., .5, 0.]
    assert step.observation.splitlines()[0] == '[1] echo: a' and step.info['columns']['calls'] == 3

@pytest.mark.parametrize('make, hint', [
    (lambda: Toolbox([], [TASK]), 'at least one'), (lambda: Toolbox([echo, echo], [TASK]), 'no two of one name'),
    (lambda: Toolbox([echo], [TASK], horizon=0), 'horizon'), (lambda: tool_of(echo, seconds=0), 'seconds'),
    (lambda: tool_of(echo, cost=float('nan')), 'cost'), (lambda: Toolbox([echo], [dict(answer=1)]), 'question'),
    (lambda: Toolbox([echo], [TASK]).tasks('test', 9), 'n=9|no task'),
    (lambda: schema_of(lambda *x: x, 'f'), 'have names'),
    (lambda: schema_of(type('T', (), dict(__call__=1)), 'bad name'), 'no name'),
    (lambda: sql_query('/nowhere/x.db'), 'no file')])
def test_what_makes_no_box_is_refused(make, hint):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=hint): make()

# ---- time and order

def test_a_change_that_overruns_keeps_its_place_locked():
    "Nothing else touches the place until it has ended; then it can be used, and cloned, again."
    gate, seen = threading.Event(), []
    def hang(state=None):
        "Wait."
        gate.wait(20)
        seen.append('hang')
    def write(state=None):
        "Write."
        seen.append('write')
    box = opened(tool_of(hang, seconds=.05), tool_of(write, seconds=.05), echo)
    assert 'took longer' in called(box, 'hang').text and 'busy' in called(box, 'write').text
    assert called(box, 'echo', text='other places go on').error == 0 and seen == []
    with pytest.raises(EnvError, match='cannot be copied'): box.clone()
    gate.set()
    deadline = time.monotonic() + 10
    while called(box, 'write').error and time.monotonic() < deadline: pass
    assert seen == ['hang', 'write'] and box.clone().call_tool('write', {}).info['columns']['tool_error'] == 0

def test_pure_calls_meet_and_changing_ones_never_do():
    three, inside, most = threading.Barrier(3), [], []
    def meet():
        "Wait for two others."
        three.wait(10)
        return 'met'
    def change(x: int, state=None):
        "Change something."
        inside.append(x)
        time.sleep(.01)
        most.append(len(inside))
        inside.remove(x)
        return str(x)
    box = opened(meet, change, most=9)
    assert [x['text'] for x in box.call_tools([('meet', {})]*3).info['ledger']] == ['met']*3
    step = box.call_tools([('change', dict(x=i)) for i in range(6)])
    assert step.observation.splitlines() == [f'[{i + 1}] change: {i}' for i in range(6)] and set(most) == {1}

def test_at_most_four_calls_are_made_and_none_after_the_answer():
    box = opened(echo, final_answer())
    step = box.call_tools([('echo', dict(text=str(i))) for i in range(6)])
    assert [x['ok'] for x in step.info['ledger']] == [True]*4 + [False]*2 and 'at most 4' in step.observation
    step = box.call_tools([('answer', dict(text='7')), ('echo', dict(text='late'))])
    assert step.done and step.info['success'] and 'Not run' in step.info['ledger'][-1]['text']
    with pytest.raises(EnvError, match='over'): box.step('echo more')

def test_a_reply_without_a_call_is_the_answer_where_no_tool_is():
    assert opened(echo).step('7').info['success'] and not opened(echo).step('8').info['success']
    assert opened(echo).step(' ').info['invalid'] and opened(echo, final_answer()).step('7').info['invalid']
    step = opened(echo, score=lambda said, task: .25*len(said)).step('abc')
    assert step.done and step.reward == {'player': .75} and not step.info['success']
    over = Toolbox([echo], [TASK], over=lambda task, call: 1. if call['text'] == '7' else None)
    over.reset(0, TASK)
    step = over.step('echo 7')
    assert step.done and step.info['success'] and step.observation == '7'

# ---- files

BAD = ['/etc/passwd', '../x', 'a/../../x', '..', '.', '', '.hidden', 'link', 'file', 'dir', 'dir/x', 'a\0b', 'x'*300,
    'C:\\x', 'pipe', 'a\\..\\b', 'good.txt/under', 'good.txt\n']

@pytest.mark.parametrize('name', BAD, ids=range(len(BAD)))
def test_no_name_leads_out_of_the_folder(name, tmp_path):
    "Not even over links that another tool has made."
    (tmp_path/'secret').write_text('secret')
    box = opened(*scratch_files({'good.txt': 'good'}), output=500)
    folder, = (value.path for value, _ in box.held.values())
    (folder/'link').symlink_to(tmp_path)
    (folder/'file').symlink_to(tmp_path/'secret')
    (folder/'dir').mkdir()
    os.mkfifo(folder/'pipe')
    before = sorted(tmp_path.rglob('*'))
    for tool, more in (('read', {}), ('write', dict(text='mine'))):
        found = called(box, tool, name=name, **more)
        assert found.error == 1 and 'secret' not in found.text and 'root:' not in found.text, (tool, found.text)
    assert sorted(tmp_path.rglob('*')) == before and (tmp_path/'secret').read_text() == 'secret'
    assert called(box, 'list').text == 'good.txt (4 bytes)' and called(box, 'read', name='good.txt').text == 'good'

def test_a_folder_has_an_end_and_belongs_to_one_episode():
    box = opened(*scratch_files(size=10, most=2))
    assert called(box, 'write', name='a', text='\u00e9'*5).error == 0 == called(box, 'write', name='b', text='x').error
    assert 'at most 10' in called(box, 'write', name='a', text='\u00e9'*6).text
    assert 'full' in called(box, 'write', name='c', text='x').text
    assert called(box, 'write', name='a', text='y').error == 0
    twin, folder = box.clone(), next(iter(box.held.values()))[0].path
    called(twin, 'write', name='a', text='twin')
    assert called(box, 'read', name='a').text == 'y' and called(twin, 'read', name='a').text == 'twin'
    box.reset(1, TASK)
    assert called(box, 'list').text == 'No files.' and not folder.exists()
    last = next(iter(twin.held.values()))[0].path
    assert last.exists()
    del twin
    gc.collect()
    assert not last.exists()

# ---- databases

@pytest.fixture
def file(tmp_path):
    with sqlite3.connect(tmp_path/'shop.db') as link:
        link.executescript('create table t (x integer); insert into t values (1), (2), (3);')
    link.close()
    return tmp_path/'shop.db'

@pytest.mark.parametrize('query, hint', [
    ('attach "{other}" as o', 'not authorized'), ('pragma query_only = 0', 'not authorized'),
    ('select load_extension("x")', 'not authorized'), ('delete from t', 'readonly'), ('vacuum into "{other}"', ''),
    ('select 1; select 2', 'one statement'), ('begin', 'not authorized'), ('select randomblob(1000000000)', 'too big'),
    ('select * from nowhere', 'no such table'), ('sel\0ect', ''), ('\ud800', ''), ('x'*2_000_000, '')])
def test_no_statement_leaves_the_database(query, hint, file, tmp_path):
    before, other = file.read_bytes(), tmp_path/'other.db'
    for write in (False, True):
        if write and 'delete' in query: continue
        found = called(opened(sql_query(file, write)), 'sqlite', query=query.format(other=other))
        assert found.error == 1 and hint in found.text, found.text
    assert file.read_bytes() == before and not other.exists()

def test_an_endless_statement_ends_and_the_next_one_is_answered(file):
    box = opened(sql_query(file, seconds=.2, rows=2))
    endless = 'with recursive n(x) as (select 1 union all select x + 1 from n) select max(x) from n'
    assert 'took longer' in called(box, 'sqlite', query=endless).text
    assert called(box, 'sqlite', query='select x from t').text == 'x\n1\n2\n... (only 2 rows are shown)'
    assert called(box, 'sqlite', query='select x from t where x > 9').text == 'No rows.'

def test_every_episode_has_a_database_of_its_own(file):
    box, before = opened(sql_query(file, write=True)), file.read_bytes()
    assert called(box, 'sqlite', query='delete from t where x = 1').text == 'Done.'
    twin = box.clone()
    called(twin, 'sqlite', query='insert into t values (10)')
    totals = [called(one, 'sqlite', query='select sum(x) from t').text for one in (box, twin)]
    box.reset(0, TASK)
    assert totals == ['5', '15'] and called(box, 'sqlite', query='select sum(x) from t').text == '6'
    assert file.read_bytes() == before
    grow = ('with recursive n(x) as (select 1 union all select x + 1 from n limit 3000) '
        'insert into t select randomblob(99999) from n')
    found = called(opened(sql_query(file, write=True, seconds=20.)), 'sqlite', query=grow)
    assert 'full' in found.text

# ---- search, python, a model

@pytest.mark.parametrize('words', ['cat" OR "', 'title:cat', 'NEAR(cat)', '*', "'; drop table pages", '\0', '',
    '\U0001F511'])
def test_no_query_is_an_operator(words):
    box = opened(text_search(['The cat is 3 years old.', ('Dogs', '\u00dcber 7 Hunde.')]))
    assert called(box, 'search', words=words).error == 0
    assert called(box, 'search', words='7 \u00fcber').text == 'Dogs: \u00dcber 7 Hunde.'

def test_python_knows_the_names_of_the_task():
    box = Toolbox([python_code(lambda task: dict(a=task['a']))], [TASK | dict(a=[1, 2, 3])])
    box.reset(0, TASK | dict(a=[1, 2, 3]))
    assert called(box, 'python', code='sum(a)').text == '6' and called(box, 'python', code='b').error == 1

def test_a_model_is_a_tool():
    asked = []
    def endpoint(messages):
        asked.append(messages)
        return 'it is 7'
    served = type('Served', (), dict(url='here', __call__=lambda self, messages: endpoint(messages)))()
    tiny = tiny_policy(Errands(), warm=False, progress=False)
    box = opened(ask_model(str.upper), ask_model(served, 'far', system='Be short.'), ask_model(tiny, 'near', tokens=5))
    assert called(box, 'ask', text='abc').text == 'ABC' and called(box, 'far', text='well?').text == 'it is 7'
    assert asked == [[dict(role='system', content='Be short.'), dict(role='user', content='well?')]]
    said = [called(box, 'near', text='What is the total price of the lamps?') for _ in range(2)]
    assert said[0].text == said[1].text and said[0].error == 0

# ---- schemas

def typed(a: int, b: list[str], c: str|None = None, d: Literal['x', 'y'] = 'x', e: bool = False, f: float = 1.,
          state=None):
    """Do a thing.

    Args:
        a: how often
    """

def test_a_schema_says_what_the_signature_says():
    found = schema_of(typed)
    kinds = found['parameters']['properties']
    assert found['parameters']['required'] == ['a', 'b'] and found['description'] == 'Do a thing.'
    assert list(kinds) == list('abcdef')
    assert kinds['a'] == dict(type='integer', description='how often') and kinds['b']['items'] == dict(type='string')
    good = dict(a=1, b=['x'], c=None, d='y', e=True, f=2)
    assert fault_of([found], 'typed', good) == ''
    for name, value in dict(a=True, b=['x', 3], c=3, d='z', e=1, f='2').items():
        assert f'"{name}"' in fault_of([found], 'typed', good | {name: value}), name
    with pytest.raises(TypeError, match='no JSON type'): schema_of(bytes_)

def bytes_(x: bytes): "Bytes."

# ---- calls, in every form

TEXTS = ['two words', '{"a": [1]} }', '</tool_call>', 'line\nline', '\u00fc \U0001F511', '"', '\\n', '', ' spaces ',
    '<parameter=x>']

@pytest.mark.parametrize('style', [hermes, xml, message, wordwise], ids=lambda one: one.name)
def test_calls_come_back_as_they_were_written(style):
    box = opened(*scratch_files())
    how = Calls(style, tools=tuple(box.tools))
    for text in TEXTS:
        if style is wordwise and text != text.strip() or style is wordwise and text in ('', '</tool_call>'): continue
        # raw text: its own closing tag ends it
        if style is xml and ('</tool_call>' in text or '<parameter' in text): continue
        written = how.write(SimpleNamespace(name='write', arguments=dict(name='a.txt', text=text)))
        (method, (calls, _)), = plan(how.read(written), box)
        assert (method, calls) == ('call_tools', [('write', dict(name='a.txt', text=text), '')]), (style.name, text)

class Script:
    "A sampler that says what it is told to."
    def __init__(self, tokenizer, *texts): self.tokenizer, self.texts = tokenizer, list(texts)
    def sync(self, policy): pass
    def sample(self, contexts, max_tokens, stop=(), **how):
        ids = [self.tokenizer.encode(self.texts.pop(0), add_special_tokens=False) + [stop[0]] for _ in contexts]
        return [Completion(one, [-1.]*len(one), [1.]*len(one), 'stop') for one in ids]

def words(text): return word_tokenizer('<think> </think> <tool_call> </tool_call> { } " : , .'.split() + text.split())

@pytest.mark.parametrize('around', [lambda box: box, lambda box: Isolated(box, limit=30.)], ids=['here', 'isolated'])
def test_a_whole_reply_is_one_turn(around):
    "Two calls and one that cannot be read are answered in order; a reply without a call ends the episode."
    tokenizer = words('hm 7 echo name arguments text x y')
    speaker = Policy(tiny_model(len(tokenizer), 1024, hidden=16, layers=1), tokenizer, chat=Chat(tokenizer))
    script = Script(tokenizer, '<tool_call> echo x </tool_call> <tool_call> echo y </tool_call> '
        '<tool_call> </tool_call>',
        '<think> hm </think> 7')
    how = Calls(wordwise, thinks=Thinking(tokens=8))
    box = around(Toolbox([echo], [TASK]))
    episode, = play(speaker, box, [0], tasks=[TASK], sampler=script, format=how, max_tokens=30, max_turns=4)
    one, two = episode.turns
    assert two.observation.splitlines()[:2] == ['[1] echo: x', '[2] echo: y'] and 'cannot be read' in two.observation
    assert one.invalid and one.columns['calls'] == 3 and one.columns['tool_error'] == 1
    assert episode.success and not episode.error and two.reward == 1

def test_an_open_thought_is_no_answer():
    box = opened(echo)
    reading = Calls(hermes, thinks=Thinking(tokens=8), tools=tuple(box.tools)).read('<think> it is 7')
    assert [x[0] for x in plan(reading, box) if isinstance(x, tuple)] == ['step'] and box.step('').info['invalid']

# ---- episodes beside each other

def count(state=None):
    "Count."
    state['n'] = state.get('n', 0) + 1
    return str(state['n'])

def test_many_episodes_side_by_side():
    "In threads, each with places of its own."
    box = Toolbox([tool_of(count), sql_query(lambda task: 'create table t (x); insert into t values (1)', write=True),
        *scratch_files()], [TASK], horizon=99)
    games, out = [box.clone() for _ in range(12)], {}
    def run(i):
        games[i].reset(i, TASK)
        for _ in range(i + 1):
            games[i].call_tools([('count', {}), ('sqlite', dict(query='update t set x = x + 1')),
                ('write', dict(name='n', text=str(i)))])
        out[i] = [x['text'] for x in games[i].call_tools([('count', {}), ('sqlite', dict(query='select x from t')),
            ('read', dict(name='n'))]).info['ledger'][-3:]]
    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert out == {i: [str(i + 2), str(i + 2), str(i)] for i in range(12)}

def test_a_box_travels_to_another_process():
    box = Errands()
    box.reset(3)
    twin = Isolated(Errands(), limit=60.)
    mine, there = Errands(), cloudpickle.loads(cloudpickle.dumps(Errands()))
    for one in (mine, twin, there): one.reset(3)
    action = mine.expert()
    assert mine.step(action).observation == twin.step(action).observation == there.step(action).observation
    twin.close()

def test_tasks_are_split_by_what_they_are():
    box = Toolbox([echo], [TASK | dict(answer=str(i)) for i in range(60)])
    some = dict(train=20, demo=10, test=5)
    found = {split: {task['answer'] for task in box.tasks(split, n)} for split, n in some.items()}
    assert not (found['train'] & found['demo'] | found['train'] & found['test'] | found['demo'] & found['test'])
    assert box.tasks('test', 5) == box.tasks('test', 5) != box.tasks('test', 5, seed=1)
    box.split = 'test'
    assert not {box.reset(seed).info['answer'] for seed in range(20)} & (found['train'] | found['demo'])

# ---- Errands

def test_errands_keep_their_splits_and_say_known_words_only():
    env, seen = Errands(), {}
    for split in splits:
        for task in env.tasks(split, 60):
            assert seen.setdefault(canonical(task), split) == split
    says_known_words(env, env.tasks('demo', 60), .6)

def test_a_reader_reads_numbers_in_one_piece_and_a_list_of_tools():
    env = as_reader(Errands())
    for seed in range(20):
        step = env.reset(seed)
        assert not re.search(r'\d \d', step.observation)
        while not step.done: step = env.step(env.expert())
        assert step.info['success'] and env.ledger[0]['tool'] == tool_for[env.task['kind']]
    assert all(name in env.guide for name in ('python', 'sqlite', 'search', 'answer'))

def test_a_mistake_can_be_mended_where_there_is_time():
    env = Errands(horizon=3)
    env.reset(0)
    right = env.expert()
    assert env.step('search the masks').info['columns']['right_tool'] == 0 and not env.over
    step = env.step(right)
    assert 'right_tool' not in step.info['columns'] and env.step(env.expert()).info['success']

def test_an_untrained_policy_plays_errands_and_has_a_gradient():
    learner = tiny_policy(Errands(), warm=False, progress=False)
    class Eager(Errands):
        "Pays a call, so that there is something to compare."
        def turn(self, action):
            text, reward, done, info = super().turn(action)
            return text, reward + info['columns']['calls'] + .1*len(action), done, info
    episodes = play(learner, Eager(), [0, 1], 4, max_tokens=6, seed=1)
    assert not any(episode.error for episode in episodes)
    batch = Batch.from_episodes(episodes)
    first = batch.turns.t == 0
    assert set(batch.turns.right_tool[first].tolist()) <= {0., 1.} and batch.turns.right_tool[~first].isnan().all()
    logp, _ = learner.logprobs(batch)
    assert (logp - batch.action('sampler_logp')).abs().max() < 1e-3
    fresh, _ = learner.forward(batch.with_action(old_logp=logp))
    batch = batch.with_action(old_logp=logp)
    loss = (objective.loss_weights(batch)*objective.clip(fresh, batch, credit.grpo(batch))).sum()
    loss.backward()
    assert sum(float(p.grad.abs().sum()) for p in learner.model.parameters() if p.grad is not None) > 0
