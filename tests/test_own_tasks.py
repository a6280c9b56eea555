"Tasks of a user's own: what is read, what is refused, what a reward may return, and the command line with all of it."
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.env import EnvError, Isolated, check_env
from agentlab.env import scratch_files, tool_of
from agentlab.env.own_tasks import LINE, OwnTasks, contains, exact, load_tasks, number, read_tasks
from agentlab.episodes import Batch
from agentlab.policy import Calls, tiny_policy, wordwise
from agentlab.rollout import play
from small import commanded

LANDS = dict(France='Paris', Japan='Tokyo', Peru='Lima', Chad='Ndjamena', Norway='Oslo', Cuba='Havana',
    Kenya='Nairobi', Italy='Rome', Egypt='Cairo', Ghana='Accra', Spain='Madrid', Iran='Tehran')
LINES = [dict(prompt=f'Capital of {land} ?', answer=town, split=('train', 'train', 'test')[i % 3])
    for i, (land, town) in enumerate(LANDS.items())]
MINE = '''
def pays(reply, task): return dict(reward=float(task['answer'].lower() in reply.lower()), letters=len(reply))
def fails(reply, task): return 1/0
def leaves(reply, task): raise SystemExit('no')
'''

def written(folder, *lines, name='mine.jsonl'):
    path = folder/name
    path.write_bytes(b'\n'.join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
    return path

# ---- the file

GOOD = dict(prompt='x', answer='y', split='train')

@pytest.mark.parametrize('line, why', [
    (b'{"prompt": "a"', 'no JSON'), (b'[1]', 'is no object'), (b'3', 'is no object'), (b'{}', '"prompt" is "null"'),
    (dict(prompt='  '), '"prompt"'), (dict(prompt=3), '"prompt" is "3"'), (dict(prompt='x', system=1), '"system"'),
    (dict(prompt='x', split='dev'), 'train or demo or test'), (dict(prompt='x', split=['train']), '"split"'),
    (dict(prompt='x', id=1.5), '"id"'), (dict(prompt='x', demonstration=[]), '"demonstration"'),
    (dict(prompt='x', demonstration=['a', '']), '"demonstration"'),
    (dict(prompt='x', demonstration=3), '"demonstration"'),
    (b'{"prompt": "x", "answer": NaN}', 'no JSON'), (b'{"prompt": "\xff"}', 'no JSON'),
    (b'{"prompt": "\\ud800"}', 'no JSON in UTF-8'), (b'{"prompt": ' + b'['*100_000, 'no JSON'),
    (b'{"prompt": "' + b'x'*LINE + b'"}', 'are read'), (b'\x00\x01', 'no JSON')])
def test_a_bad_line_is_named(tmp_path, line, why):
    with pytest.raises(ValueError) as error: OwnTasks(written(tmp_path, GOOD, b'', line))
    assert str(error.value).startswith('mine.jsonl, line 3: ') and why in str(error.value)
    assert len(str(error.value)) < 300

def test_too_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr('agentlab.env.own_tasks.LINES', 2)
    with pytest.raises(ValueError, match='line 3: at most 2 lines'): read_tasks(written(tmp_path, GOOD, GOOD, GOOD))

def test_files_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path/'nothing'):
        with pytest.raises(FileNotFoundError, match='no such file'): OwnTasks(path)
    with pytest.raises(ValueError, match='none of the split train'): OwnTasks(written(tmp_path, b''))
    with pytest.raises(ValueError, match='two tasks have the id'): OwnTasks(written(tmp_path, *[GOOD | dict(id='a')]*2))

@given(st.lists(st.dictionaries(st.sampled_from(['prompt', 'answer', 'system', 'split', 'id', 'demonstration', 'x']),
    st.text(max_size=9) | st.integers() | st.none() | st.sampled_from(['train', 'test'])
    | st.lists(st.text(max_size=3), max_size=2), max_size=6), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_list_is_a_world_or_is_refused(tasks):
    try: env = OwnTasks(tasks, lambda reply, task: .5)
    except ValueError as e: assert str(e).startswith('tasks')
    else:
        step = env.reset(0)
        assert step.observation and env.step('x').done

def test_a_prompt_is_in_one_split():
    twice = [dict(prompt=f'p{i % 30}', answer=str(i)) for i in range(60)]
    env = OwnTasks(twice)
    of = {split: {task['prompt'] for task in env.tasks(split, len(pool))} for split, pool in env._pools.items()}
    assert sum(map(len, of.values())) == 30 and all(of.values())
    again = OwnTasks(list(reversed(twice)))
    assert {task['prompt'] for task in again._pools['test']} == of['test']  # the order of the lines means nothing
    with pytest.raises(ValueError, match='ask for fewer'): env.tasks('test', 1000)
    assert env.most(1000) == len(env._pools['test']) and env.most(1) == 1

def test_what_a_system_message_is():
    same = OwnTasks([dict(GOOD, prompt=p, system='Be short.') for p in 'ab'])
    assert same.guide == 'Be short.' and same.reset(0).observation in 'ab'
    apart = OwnTasks([dict(GOOD, prompt='a', system='Be short.'), dict(GOOD, prompt='a')])
    assert apart.guide == '' and {apart.reset(i).observation for i in range(9)} == {'a', 'Be short.\n\na'}
    assert OwnTasks([GOOD], guide='Told.').guide == 'Told.'

# ---- the reward

@pytest.mark.parametrize('returned, paid, won', [(True, 1., True), (False, 0., False), (.5, .5, False), (2, 2., True),
    (dict(reward=.2, success=True), .2, True), (dict(reward=1, success=False), 1., False)])
def test_what_a_reward_may_return(returned, paid, won):
    env = OwnTasks([GOOD], lambda reply, task: torch.tensor(returned) if returned == 2 else returned)
    env.reset(0)
    step = env.step('z')
    assert (step.reward, step.info['success'], step.done) == (dict(player=paid), won, True)

@pytest.mark.parametrize('returned', [None, 'good', float('nan'), float('inf'), [], dict(), dict(reward=None),
    dict(reward=1, feedback=3), dict(reward=1, length='long'), dict(reward=1, success='yes'), 1j])
def test_what_it_may_not(returned):
    env = OwnTasks([GOOD], lambda reply, task: returned)
    env.reset(0)
    with pytest.raises(EnvError, match="tasks, id 0: test_own_tasks:.*returned .*Return a finite number"): env.step('z')

def test_a_reward_cannot_change_the_task():
    def greedy(reply, task):
        task['answer'] = task['more']['x'] = reply
        return True
    env = OwnTasks([GOOD | dict(more=dict(x=1))], greedy)
    env.reset(0)
    env.step('changed')
    assert env._pools['train'][0]['answer'] == 'y' and env._pools['train'][0]['more'] == dict(x=1)

def test_the_three_rewards():
    assert [number(text, dict(answer='-3.50')) for text in ('so: -3.5', '3.5', '-3,5', '', '-35e-1', '-3.5 or 4')] == [
        True, False, False, False, True, False]
    assert [contains(x, dict(answer='C++')) for x in ('use c++ now', 'c', 'C++.', 'c++x')] == [True, False, True, False]
    assert exact('A  B.', dict(answer=['x', 'a b'])) and not exact('', dict(answer=['x']))
    with pytest.raises(ValueError, match='no "answer"'): exact('x', {})

def test_faults_end_their_episode_only(tmp_path):
    "A reward that raises, one that calls exit(): an error of the episode, which names line and function."
    path = written(tmp_path, *LINES)
    def sometimes(reply, task):
        if task['line'] % 2: raise SystemExit('no')
        return 1.
    env = OwnTasks(path, sometimes)
    policy = tiny_policy(env, warm=False)
    found = play(policy, env, list(range(8)), 2)
    errors = [e for e in found if e.error]
    assert 0 < len(errors) < len(found) == 16 and all(e.success for e in found if not e.error)
    for e in errors: assert 'mine.jsonl, line ' in e.error and 'sometimes failed: SystemExit: no' in e.error

def test_it_keeps_the_rules_of_an_environment():
    report = check_env(OwnTasks(LINES), actions=('Paris', 'Lima'))
    assert all(found == 'ok' for found in report.values()), report
    env = OwnTasks(LINES)
    env.reset(0)
    assert env.clone()._pools is env._pools  # not copied for every game
    other = Isolated(OwnTasks(LINES), limit=20.)
    assert other.reset(3).observation == OwnTasks(LINES).reset(3).observation
    other.close()

# ---- experts

def test_experts():
    shown = OwnTasks([dict(prompt='a', demonstration='do a', split='train'), dict(prompt='c', split='train'),
        dict(prompt='b', answer=['1', '2'], split='test')])
    shown.split = 'demo'  # none of its own: what can be shown of train
    assert shown.reset(0).observation == 'a' and shown.expert() == 'do a'
    shown.reset(0, task=dict(prompt='b', answer=['1', '2']))
    assert shown.expert() == '1' and shown.max_tokens >= 8
    shown.reset(0, task=dict(prompt='c'))
    with pytest.raises(ValueError, match='no "answer" and no "demonstration"'): shown.expert()
    mute = OwnTasks([dict(prompt='c', split='train')])
    mute.split = 'demo'
    with pytest.raises(ValueError, match='"demonstration" to show'): mute.reset(0)

def test_the_words_of_a_tiny_policy():
    "Cut as its tokenizer cuts them: nothing that is read or shown is unknown to it."
    env = OwnTasks([dict(prompt="It's 2+2=4, isn't_it? 5\u00d76 \u2013 \u20ac3", answer='x_y: \u00bd', split='train')])
    policy = tiny_policy(env, warm=False)
    unknown = policy.tokenizer.unk_token_id
    for text in (env.reset(0).observation, env.expert()): assert unknown not in policy.chat.text_ids(text)
    many = OwnTasks([dict(prompt=' '.join(f'w{i}x{j}' for j in range(3000)), split='train') for i in range(9)])
    with pytest.raises(ValueError, match='too many for a tiny policy.*smollm2'): many.vocabulary()

# ---- tools

def look_up(land: str, times: int = 1)->str:
    "The capital of a land. And more."
    return LANDS[land]*times

def test_tools_over_several_turns():
    env = OwnTasks(LINES, tools=[look_up], horizon=3)
    assert [one['name'] for one in env.tools] == ['look_up', 'answer']
    assert env.tools[0]['description'] == 'The capital of a land. And more.'
    assert env.tools[0]['parameters']['properties']['times']['type'] == 'integer'
    env.reset(0, task=LINES[0])
    assert env.call_tool('look_up', dict(land='France', times=1)).observation == 'Paris'
    assert env.call_tool('look_up', dict(land='France', times='1')).info['invalid']
    step = env.call_tool('look_up', dict(land='Mars', times=1))
    assert step.done and step.observation.startswith('look_up failed: KeyError') and not step.info['success']
    env.reset(0, task=LINES[0])
    step = env.step('answer Paris')
    assert step.done and step.info['success']
    with pytest.raises(ValueError, match="no two of one name"):
        def answer(text): return text
        OwnTasks(LINES, tools=[answer])

def test_ready_tools_have_a_place_of_their_own():
    "Files of an episode: a twin's are its own, several calls of one reply are made in order, the cost is counted."
    env = OwnTasks(LINES, tools=[*scratch_files(), tool_of(look_up, cost=2.)])
    env.reset(0, task=LINES[0])
    step = env.call_tools([('write', dict(name='a', text='Lyon')), ('read', dict(name='a')),
        ('look_up', dict(land='France', times=1))])
    assert 'Lyon' in step.observation and 'Paris' in step.observation and step.info['cost'] == 2.
    twin = env.clone()
    twin.call_tool('write', dict(name='a', text='Nice'))
    assert 'Lyon' in env.call_tool('read', dict(name='a')).observation
    assert 'Nice' in twin.call_tool('read', dict(name='a')).observation
    step = env.call_tools([('read', dict(name='a')), ('answer', dict(text='Paris'))])
    assert step.done and step.info['success'] and step.info['columns']['calls'] == 2
    for one in (env, twin): one.close()

def test_tools_in_the_format_of_calls():
    "A policy that calls; what is sampled is read as a call or is invalid, and nothing ends the run."
    env = OwnTasks([dict(prompt='Capital of France ?', answer='Paris', split='train',
        demonstration=['look_up France', 'answer Paris'])], tools=[look_up], horizon=4)
    env.reset(0)
    said = []
    while not env.over: said.append(env.expert()) or env.step(said[-1])
    assert said == ['look_up France', 'answer Paris']
    policy = tiny_policy(env, warm=False)
    found = play(policy, env, [0, 1], 2, max_tokens=8, format=Calls(style=wordwise, native=False))
    assert all(not e.error for e in found) and all(t.invalid for e in found for t in e.turns if not t.acted)
    Batch.from_episodes(found)

# ---- the command line

def test_a_tiny_policy_trains_on_a_file(tmp_path):
    written(tmp_path, *LINES)
    (tmp_path/'my_own.py').write_text(MINE)
    env = OwnTasks(LINES)
    tiny_policy(env, warm=False).save_pretrained(tmp_path/'begun')
    small = '--steps 2 --groups 2 --group-size 2 --model begun --lr 1e-3'
    answers = commanded(
        tmp_path, f'train --tasks mine.jsonl --reward my_own:pays {small} --out run',
        f'train --tasks mine.jsonl --reward my_own:fails {small} --out fails --test-tasks 0',
        f'train --tasks mine.jsonl --reward my_own:leaves {small} --out leaves --test-tasks 0',
        'play --tasks mine.jsonl --model run', 'train --reward exact', 'train --tasks mine.jsonl --reward nosuch',
        'train --tasks mine.jsonl --reward my_own:nosuch', 'play --tasks nosuch.jsonl',
        'eval expert,run,random --tasks mine.jsonl --reward my_own:pays --samples 2 --out seen', 'view seen/run')
    (trained, fails, leaves, played, lone, unknown, missing, nothing, table, view) = answers
    assert trained[0] == 0 and 'success on 4 held-out tasks' in trained[1], trained
    facts = json.loads((tmp_path/'run'/'run.json').read_text())['facts']['env']
    assert facts['file'] == 'mine.jsonl' and facts['reward'] == 'my_own:pays' and len(facts['digest']) == 16
    for status, said in (fails, leaves): assert status == 2 and 'mine.jsonl, line' in said and 'my_own:' in said
    assert played[0] == 0 and 'Capital of' in played[1]
    for (status, said), word in ((lone, '--tasks FILE'), (unknown, "reward='nosuch' is unknown"), (missing, "'nosuch'"),
                                 (nothing, 'no such file')):
        assert status == 2 and word in said, said
    assert table[0] == 0 and 'expert 1.00' in table[1] and view[0] == 0

@pytest.mark.lm
def test_smollm2_trains_on_a_file(tmp_path):
    written(tmp_path, *LINES)
    (status, said), = commanded(tmp_path, 'train --tasks mine.jsonl --reward contains --model smollm2 --lora 4 '
        '--steps 1 --groups 2 --group-size 2 --test-tasks 0 --max-tokens 8 --out run')
    assert status == 0 and 'run: run' in said, said

def test_rewards_by_name(tmp_path):
    assert load_tasks(written(tmp_path, GOOD)).reward == 'agentlab.env.toolbox:exact'
    with pytest.raises(ValueError, match='Known: exact, number, contains'): load_tasks(written(tmp_path, GOOD), 'no')
