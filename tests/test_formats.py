"""Three ways to act: what is read is what was said, on ids and on text alike; what cannot be read is answered;
sampled ids are trained ids."""
import json
import random
import time
from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab import credit, objective
from agentlab.env import Env, GuessNumber, HopSearch, KeyDoor, PythonTool, Step, TextEnv, envs, tool
from agentlab.env.isolation import Isolated
from agentlab.episodes import ACTION, CALL, MARKUP, OTHER, THOUGHT, Batch
from agentlab.policy import Chat, Completion, Policy, tiny_model
from agentlab.policy.core import word_tokenizer
from agentlab.policy.formats import (Call, Calls, Plain, Spoken, Thinking, acted, codes_of, hermes, message,
    plan, spell, takes_tools, wordwise, xml)
from agentlab.rollout import play
from later import deferred

TAGS = ['<think>', '</think>', '<tool_call>', '</tool_call>']
SEARCH = tuple(HopSearch.tools)
GUESS = tuple(GuessNumber.tools)
STYLES = dict(hermes=hermes, message=message, xml=xml, wordwise=wordwise)

# ---- a tiny policy and what it is made to say

@cache
def words():
    "A tokenizer of words in which every tag is one id."
    return word_tokenizer([*TAGS, *GuessNumber().vocabulary(),
        *'hm the key is up there The thought did not end'.split(), '.', '{', '}', '"', ':'])

def policy(**chat):
    return Policy(tiny_model(len(words()), 512, hidden=16, layers=1), words(), chat=Chat(words(), **chat))

class Script:
    "A sampler that says what it is told to."
    def __init__(self, *texts, tokenizer=None, end=True):
        self.tokenizer, self.texts, self.given, self.said, self.end = tokenizer or words(), list(texts), [], [], end
    def sync(self, policy): pass
    def sample(self, contexts, max_tokens, stop=(), **how):
        found = []
        for context in contexts:
            text = self.texts.pop(0)
            ids = self.tokenizer.encode(text, add_special_tokens=False) + ([stop[0]] if self.end else [])
            self.given.append(list(context))
            self.said.append(ids[:max_tokens])
            found.append(Completion(ids[:max_tokens], [-1.]*len(ids[:max_tokens]), [1.]*len(ids[:max_tokens]), 'stop'))
        return found

GAME = dict(tasks=[dict(low=1, high=16, secret=2)], max_turns=4)

def said(*texts, format, end=True, **how):
    "One game of the script, and its sampler."
    script = Script(*texts, end=end)
    episode, = play(policy(), GuessNumber(), [0], sampler=script, format=format,
        **GAME | dict(max_turns=len(texts)) | how)
    return episode, script

# ---- reading: text alone

NASTY = st.lists(st.one_of(st.sampled_from([*TAGS, '<tool_call>{"name": "search", "arguments": {"relation": "mentor", '
    '"name": "Bora Tel"}}</tool_call>', '{"name": "guess", "arguments": {"number": 7}}',
    '<function=guess>', '</function>', '<parameter=number>', '</parameter>', '{', '}', '[', '"', '\\', '\\u', 'NaN',
    '1e999', '\x00', '\ud7ff', '<|im_end|>', '</thi', '<tool_', 'guess 7', ' ', '\n']), st.text(max_size=12)),
    max_size=30).map(''.join)

@settings(max_examples=400, deadline=None)
@given(NASTY, st.booleans(), st.sampled_from([None, *STYLES]), st.booleans())
def test_hostile_text_is_read(text, opened, style, thinks):
    "Never an exception; spans inside the text; at most so many actions; errors of bounded length."
    how = Thinking() if style is None else Calls(STYLES[style], thinks=Thinking() if thinks else None,
        tools=SEARCH + GUESS)
    found = how.read(text, opened)
    assert all(0 <= a <= b <= len(text) for a, b, _ in found.spans) and bool(found.error) == (not found.actions)
    assert len(found.actions) <= 9 and len(found.error) < 400
    assert len(found.thought) <= len(text)
    for action in found.actions:
        assert isinstance(action, str) if style is None else isinstance(action, Call) and len(action.error) < 400
    requests = plan(found, GuessNumber(), SEARCH + GUESS)
    assert sum(isinstance(x, tuple) for x in requests) >= 1 and isinstance(acted(requests), str)

@pytest.mark.parametrize('text', ['<tool_call>'*20_000, '<tool_call>{"a": "'*5_000, '['*100_000,
    '<tool_call>' + '{"a":'*50_000, '<think>'*50_000 + '</think>'*50_000,
    '<tool_call><function=guess>' + '<parameter=number>'*20_000, '<tool_call>{"name": '
    '"guess", "arguments": {"number": ' + '9'*50_000 + '}}</tool_call>',
    '{"name": "' + ' '*200_000], ids=range(8))
@pytest.mark.parametrize('style', STYLES)
def test_long_hostile_text_takes_no_time(text, style):
    start = time.process_time()
    found = Calls(STYLES[style], thinks=Thinking(), tools=GUESS).read(text)
    assert time.process_time() - start < 5 and len(found.error) + sum(len(a.error) for a in found.actions) < 4000
    assert not any(not a.error for a in found.actions)

ARGUMENTS = st.fixed_dictionaries(dict(relation=st.text(max_size=20), name=st.one_of(
    st.text(max_size=30), st.sampled_from(['a </tool_call> b', '{"}', 'x\ny', '<tool_call>', 'é世🔑', '\\"']))))

@settings(max_examples=200, deadline=None)
@given(ARGUMENTS, st.integers(1, 4), st.sampled_from(['hermes', 'message']), st.text(alphabet='abc .\n', max_size=9))
def test_json_calls_come_back(arguments, count, style, before):
    "Closing tags, braces, quotes and line ends inside a string; several calls; text before them."
    how = Calls(STYLES[style], tools=SEARCH)
    text = how.write(Call('search', arguments))
    text = text if style == 'message' else before + '\n'.join([text]*count)
    assert how.read(text).actions == [Call('search', arguments)]*(1 if style == 'message' else count)

@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='ab<>/"{} \n', max_size=20).filter(lambda x: '</parameter>' not in x), st.integers(-99, 99))
def test_xml_calls_come_back(value, number):
    how = Calls(xml, tools=(tool('note', 'Note.', text='a text', number=('integer', 'a number')),))
    call = Call('note', dict(text=value, number=number))
    assert how.read(how.write(call)).actions == [call]

def test_the_schema_tells_a_number_from_a_text():
    text = Calls(xml, tools=GUESS).write('guess 7')
    assert Calls(xml, tools=GUESS).read(text).actions == [Call('guess', dict(number=7))]
    as_text = (tool('guess', 'Guess.', number='the number'),)
    assert Calls(xml, tools=as_text).read(text).actions == [Call('guess', dict(number='7'))]
    assert 'must be of type integer' in Calls(xml, tools=GUESS).read(text.replace('7', 'seven')).actions[0].error

WRONG = {  # reply -> what the model reads
    'I would search.': 'No tool was called',
    '<tool_call>{"name": "fly", "arguments": {}}</tool_call>': 'There is no tool "fly". The tools are search, answer.',
    '<tool_call>{"name": "search", "arguments": {"relation": "mentor"}}</tool_call>': 'search needs the '
    'argument "name"',
    '<tool_call>{"name": "answer", "arguments": {"name": "x", "why": 1}}</tool_call>': 'answer has no argument "why"',
    '<tool_call>{"name": "answer", "arguments": {"name": 7}}</tool_call>': 'must be of type string, not "7"',
    '<tool_call>{"name": "answer" "arguments": {}}</tool_call>': "cannot be read: Expecting ',' delimiter",
    '<tool_call>{"name": "answer", "arguments": {"name": "x"}}': 'the closing tag is missing',
    '<tool_call>{"name": "answer", "arguments": {"name": "x"}} now</tool_call>': '"now" follows',
    '<tool_call>{"name": "answer", "arguments": {"name": NaN}}</tool_call>': 'NaN is no JSON',
    '<tool_call>{"name": "answer", "name": "search"}</tool_call>': 'a name stands twice',
    '<tool_call>["answer"]</tool_call>': 'must be an object with a "name"',
    '<tool_call>{"name": "answer", "arguments": 3}</tool_call>': '"arguments" must be an object',
    '<tool_call></tool_call>': 'cannot be read',
}

@pytest.mark.parametrize('reply', WRONG)
def test_a_call_that_cannot_be_made_says_why(reply):
    found = Calls(tools=SEARCH).read(reply)
    assert WRONG[reply] in (found.error or found.actions[0].error)
    env = HopSearch()
    env.reset(0)
    assert Spoken(env, Calls()).step(reply).info['invalid']

def test_arguments_inside_a_string_are_read_once_more():
    text = '<tool_call>' + json.dumps(dict(name='answer', arguments=json.dumps(dict(name='Bora Tel')))) + '</tool_call>'
    assert Calls(tools=SEARCH).read(text).actions == [Call('answer', dict(name='Bora Tel'))]

def test_a_call_inside_a_thought_is_a_thought():
    call = Calls(tools=GUESS).write('guess 7')
    assert Calls(thinks=Thinking(), tools=GUESS).read(f'<think>{call}</think>').error
    assert (Calls(thinks=Thinking(), tools=GUESS).read(f'<think>{call}</think>{call}').actions
        == [Call('guess', dict(number=7))])

# ---- ids and text agree

def of_text(how, text, opened=False):
    "A code per character, from the text alone."
    found, codes = how.read(text, opened), [OTHER]*len(text)
    for a, b, code in found.spans: codes[a:b] = [code]*(b - a)
    return codes

def agree(tokenizer, ids, how, opened=False):
    "The codes of the ids are those of their characters, where the text is read alone."
    spoken = spell(tokenizer, ids, how.markers)
    chars, codes = of_text(how, spoken.text, opened), codes_of(spoken, how.read(spoken, opened).spans)
    assert len(codes) == len(ids) and spoken.edges[-1] == len(spoken.text)
    for k, (a, b) in enumerate(zip(spoken.edges, spoken.edges[1:])):
        if spoken.control[k]: assert codes[k] == MARKUP
        elif b > a: assert codes[k] == max(chars[a:b])

SAID = st.lists(st.sampled_from([*TAGS, 'guess', '7', 'the key', ' ', '\n', 'up', '.',
    '{"name": "guess", "arguments": {"number": 7}}', 'é', '🔑']), max_size=16).map(''.join)

@settings(max_examples=200, deadline=None)
@given(SAID, st.booleans(), st.booleans())
def test_parts_of_ids_and_of_text_agree_in_words(text, opened, calls):
    agree(words(), words().encode(text), Calls(thinks=Thinking(), tools=GUESS) if calls else Thinking(), opened)

@cache
def byte_tokenizer():
    pytest.importorskip('trl')
    from families import tokenizer
    return tokenizer('qwen2_5')

@settings(max_examples=200, deadline=None)
@given(SAID, st.booleans(), st.randoms(use_true_random=False))
def test_parts_of_ids_and_of_text_agree_in_bytes(text, calls, chance):
    "Markers of several tokens, characters of several tokens, and ids that no tokenizer would choose."
    pieces = [text[i:i + 1 + chance.randrange(6)] for i in range(0, len(text), 3)]
    whole = byte_tokenizer().encode(text, add_special_tokens=False)
    apart = [i for piece in pieces for i in byte_tokenizer().encode(piece, add_special_tokens=False)]
    for ids in (whole, apart):
        agree(byte_tokenizer(), ids + [byte_tokenizer().eos_token_id], Calls(thinks=Thinking(), tools=GUESS) if calls
            else Thinking())
    assert spell(byte_tokenizer(), whole).text == byte_tokenizer().decode(whole)

@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 339), max_size=40))
def test_any_ids_can_be_spelled(ids):
    spoken = spell(byte_tokenizer(), ids, ('<think>', '</think>'))
    assert (len(spoken.edges) == len(ids) + 1 and spoken.edges == sorted(spoken.edges)
        and spoken.edges[-1] == len(spoken.text))
    assert len(codes_of(spoken, Thinking().read(spoken).spans)) == len(ids)

def test_a_marker_of_one_token_is_that_id_alone():
    "The same letters from other ids are text, as they are for the model."
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode('<think>x', add_special_tokens=False)
    assert spell(tokenizer, ids, ('<think>',)).marks == [(0, 7, '<think>')]
    import copy
    other = copy.deepcopy(tokenizer)
    other.add_tokens(['<think>'])
    assert spell(other, ids, ('<think>',)).marks == []
    assert spell(other, other.encode('<think>x'), ('<think>',)).marks == [(0, 7, '<think>')]

# ---- play: parts, actions, errors, budgets

def test_plain_stays_as_it_was():
    "No column, equal numbers, with the format or without one."
    one, two = (said('guess 3', 'guess 2', format=f)[0] for f in (None, Plain()))
    for e in (one, two):
        assert 'part' not in Batch.from_episodes([e]).tokens and [t.acted for t in e.turns] == [None, None]
    assert one == two

def test_a_thought_and_an_action():
    episode, script = said('<think> the key is up </think> guess 3', 'guess 2', format=Thinking())
    assert [t.acted for t in episode.turns] == ['guess 3', 'guess 2'] and episode.success
    assert episode.turns[0].parts == [MARKUP, THOUGHT, THOUGHT, THOUGHT, THOUGHT, MARKUP, ACTION, ACTION, MARKUP]
    assert 'the key' in episode.turns[0].text
    assert words().decode(script.given[1]).count('the key is up') == 1  # the thought stays in the context

def test_a_thought_that_never_ends_is_answered():
    episode, script = said('<think> hm hm hm', 'guess 2', format=Thinking())
    first = episode.turns[0]
    assert first.invalid and first.acted == '' and set(first.parts) == {MARKUP, THOUGHT}
    assert ('The thought did not end' in episode.turns[1].observation
        and 'Nothing happens.' in episode.turns[1].observation)
    assert not episode.turns[1].invalid and episode.success

def test_budgets_of_thought_and_action():
    for text, kept in (('<think> hm hm hm hm hm hm </think> guess 3', '<think>hm hm hm'),
                       ('<think> hm </think> guess 3 guess 3 guess 3', '<think>hm</think>guess 3'),
                       ('guess 3 guess 3', 'guess 3')):
        episode, script = said(text, format=Thinking(tokens=4), max_tokens=2, end=False)
        turn, = episode.turns
        assert spell(words(), turn.ids, ('<think>', '</think>')).text == kept
        assert (len(turn.ids) == len(turn.logps) == len(turn.entropies) == len(turn.parts)
            and turn.ids == script.said[0][:len(turn.ids)])

def test_a_budget_that_ends_inside_a_marker_of_several_tokens():
    tokenizer = byte_tokenizer()
    script = Script('<think>go</think>guess 2', 'guess 2', tokenizer=tokenizer)
    whole = tokenizer.encode('<think>go</think>', add_special_tokens=False)
    speaks = Policy(tiny_model(len(tokenizer), 512, hidden=16, layers=1), tokenizer)
    for tokens in range(len(whole) - 4, len(whole) + 1):
        script = Script('<think>go</think>guess 2', tokenizer=tokenizer)
        episode, = play(speaks, GuessNumber(), [0], sampler=script, format=Thinking(tokens=tokens),
            **GAME | dict(max_turns=1))
        turn, = episode.turns
        assert (len(turn.parts) == len(turn.ids) and turn.invalid == (tokens < len(whole))
            and episode.success == (tokens >= len(whole)))

def test_a_thought_closed_by_force():
    "The marker is context that nobody sampled; the action is sampled behind it, with ids of its own."
    episode, script = said('<think> hm hm hm hm', 'guess 2', format=Thinking(tokens=4, close=True), max_turns=1)
    turn, = episode.turns
    closing = words().encode('</think>')
    assert turn.inserted == (4, closing) and turn.acted == 'guess 2' and episode.success and not turn.invalid
    assert (turn.ids == script.said[0][:4] + script.said[1]
        and turn.parts == [MARKUP, THOUGHT, THOUGHT, THOUGHT, ACTION, ACTION, MARKUP])
    assert script.given[1] == script.given[0] + script.said[0][:4] + closing
    batch = Batch.from_episodes([episode])
    assert batch.tokens.id.tolist() == script.given[1] + script.said[1]
    assert (batch.tokens.id[batch.actions].tolist() == turn.ids
        and (batch.tokens.part[batch.tokens.turn < 0] == -1).all())

def test_a_forced_turn_is_in_the_next_context(tmp_path):
    script = Script('<think> hm hm hm hm', 'guess 3', 'guess 2')
    episode, = play(policy(), GuessNumber(), [0], sampler=script, format=Thinking(tokens=4, close=True), **GAME)
    batch = Batch.from_episodes([episode])
    assert len(batch.rows) == 1 and batch.tokens.id.tolist() == script.given[2] + script.said[2]
    back = Batch.load(batch.save(tmp_path/'x.parquet'))
    assert back.tokens.part.equal(batch.tokens.part) and back.tokens.turn.equal(batch.tokens.turn)

def test_a_thought_that_the_prompt_begins():
    tokenizer = byte_tokenizer()
    import copy
    begins = copy.deepcopy(tokenizer)
    begins.chat_template = tokenizer.chat_template.replace("'<|im_start|>assistant\\n'",
        "'<|im_start|>assistant\\n<think>\\n'")
    assert begins.chat_template != tokenizer.chat_template
    speaks = Policy(tiny_model(len(begins), 512, hidden=16, layers=1), begins, chat=Chat(begins, rewrites=True))
    assert speaks.chat.render([dict(role='user', content='x')], prompt=True).endswith('<think>\n')
    for text, wanted in (('hm</think>guess 2', 'guess 2'), ('guess 2', '')):
        episode, = play(speaks, GuessNumber(), [0], sampler=Script(text, tokenizer=begins), format=Thinking(tokens=32),
            **GAME | dict(max_turns=1))
        assert episode.turns[0].acted == wanted and episode.turns[0].parts[0] == THOUGHT

def test_several_calls_in_a_turn():
    call = '<tool_call> guess {} </tool_call>'
    episode, script = said(call.format(3) + call.format(5), call.format(2) + call.format(4), format=Calls(wordwise))
    first, second = episode.turns
    assert first.acted == 'guess 3\nguess 5' and second.acted == 'guess 2'  # the game was over before the fourth
    assert second.observation == 'Lower than 3.\nLower than 5.' and episode.success
    assert first.parts == [MARKUP, CALL, CALL, MARKUP]*2 + [MARKUP]

def test_a_bad_call_beside_a_good_one():
    episode, _ = said('<tool_call> hm up </tool_call> <tool_call> guess 3 </tool_call>', 'guess 2',
        format=Calls(wordwise))
    first, second = episode.turns
    assert first.acted == 'guess 3' and first.invalid and second.invalid and second.acted == ''
    assert 'There is no tool "hm"' in second.observation and 'Lower than 3.' in second.observation

class Duel(Env):
    "Two seats, each once a round; whoever says something else than `guess N` is refused and loses the turn."
    seats, name, tools = ('one', 'two'), 'duel', GUESS
    def reset(self, seed, task=None):
        self.said, self.turn = [], 0
        return Step('one', 'guess', info=dict(state=0))
    def step(self, action):
        self.said.append((self.seats[self.turn % 2], action))
        self.turn += 1
        bad = not action.startswith('guess ')
        return Step(self.seats[self.turn % 2], 'Nothing happens.' if bad else 'Higher', {}, self.turn == 4,
            dict(invalid=bad))
    def clone(self): return Duel()

def test_a_seat_never_acts_for_another():
    "Of several calls only the first is made, and reasons are not read by the other seat."
    env = Duel()
    call = '<tool_call> guess {} </tool_call>'
    script = Script(call.format(1) + call.format(2), 'hm', call.format(3), call.format(4))
    one, two = play(policy(), lambda: env, [0], sampler=script, format=Calls(wordwise), max_tokens=30)
    assert env.said == [('one', 'guess 1'), ('two', ''), ('one', 'guess 3'), ('two', 'guess 4')]
    assert one.turns[0].acted == 'guess 1' and one.turns[1].observation == 'Nothing happens.' and two.turns[0].invalid

class Kit(TextEnv):
    "An environment that takes parsed calls."
    tools = [tool('note', 'Note.', text='a text', times=('integer', 'how often'))]
    name = 'kit'
    def start(self, seed, task=None):
        self.seen = []
        return 'go'
    def turn(self, action): return 'Nothing happens.', 0., False, dict(invalid=True)
    def call_tool(self, name, arguments):
        self.turns += 1
        return Step('player', f'noted {len(arguments["text"])}', {'player': float(arguments['times'])}, self.turns > 3,
            dict(invalid=False, cost=1.))

@pytest.mark.parametrize('around', [lambda env: env, lambda env: Isolated(env, limit=20.)], ids=['here', 'isolated'])
def test_an_environment_may_take_the_call_itself(around):
    tokenizer = byte_tokenizer()
    speaks = Policy(tiny_model(len(tokenizer), 1024, hidden=16, layers=1), tokenizer)
    how = Calls(native=False)
    write = Calls(tools=tuple(Kit.tools)).write
    text = write(Call('note', dict(text='a {} </tool_call>', times=2)))
    script = Script(text + text, text, tokenizer=tokenizer)
    episode, = play(speaks, around(Kit()), [0], sampler=script, format=how, max_tokens=200, max_turns=2)
    assert ([t.reward for t in episode.turns] == [4., 2.] and [t.cost for t in episode.turns] == [2., 1.]
        and episode.turns[1].observation == 'noted 17\nnoted 17')

@pytest.mark.parametrize('name', [*envs])
def test_every_environment_refuses_an_empty_action(name):
    "What a reply without an action comes to."
    env = envs[name]()
    env.reset(0)
    assert env.step('').info['invalid']

def test_parts_go_with_branches_and_windows():
    from agentlab.rollout import branching
    learner = policy()
    how = dict(format=Thinking(tokens=6), max_tokens=4, max_turns=3)
    episodes = branching.arpo(learner, GuessNumber(), [0, 1], 4, initial=1, threshold=2., **how)
    batch = Batch.from_episodes(episodes)
    copied = batch.turns.origin != torch.arange(len(batch.turns))
    assert copied.any()
    for turn in copied.nonzero()[:, 0].tolist():
        mine, first = (batch.action('part')[batch.action_turn == k] for k in (turn, int(batch.turns.origin[turn])))
        assert mine.equal(first)
    with pytest.raises(ValueError, match='close'):
        branching.arpo(learner, GuessNumber(), [0], 2, format=Thinking(close=True))

# ---- learning

@pytest.mark.parametrize('format', [None, deferred(lambda: Thinking(tokens=6)),
    deferred(lambda: Thinking(tokens=6, close=True)),
    deferred(lambda: Calls(wordwise)),
    deferred(lambda: Calls(wordwise, thinks=Thinking(tokens=6)))],
    ids=['plain', 'thinking', 'closed', 'calls', 'both'])
def test_sampled_ids_are_trained_ids_and_learn(format):
    """A real sampler: recorded log-probabilities are those of the training forward, and an update of GRPO has a
    gradient."""
    learner = policy()
    episodes = play(learner, GuessNumber(), [0, 1], 4, max_tokens=6, max_turns=3, format=format, seed=3)
    for i, e in enumerate(episodes): e.outcome = float(i % 3)
    batch = Batch.from_episodes(episodes)
    assert batch.tokens.id[batch.actions].tolist() == [i for e in episodes for t in e.turns for i in t.ids]
    logp, _ = learner.logprobs(batch)
    assert (logp - batch.action('sampler_logp')).abs().max() < 1e-3
    batch = batch.with_action(old_logp=logp)
    fresh, _ = learner.forward(batch)
    loss = (objective.loss_weights(batch)*objective.clip(fresh, batch, credit.grpo(batch))).sum()
    loss.backward()
    assert sum(float(p.grad.abs().sum()) for p in learner.model.parameters() if p.grad is not None) > 0
    if format is not None:
        parts = set(batch.action('part').tolist())
        assert parts <= {OTHER, ACTION, THOUGHT, CALL, MARKUP} and MARKUP in parts

def test_a_run_in_a_format(tmp_path):
    "Training, tests and the run folder know the format; a run that goes on with another one is refused."
    from agentlab.train import load_recipe, train
    from agentlab.train.recipes import in_format
    small = dict(steps=2, groups=2, group_size=3, max_turns=2, max_tokens=4, test_tasks=4)
    recipe = in_format(load_recipe('grpo', **small), Thinking(tokens=5))
    run = train(policy(), GuessNumber(), recipe, tmp_path/'run', progress=False)
    assert len(run.rows()) == 2 and run.tests()
    batch = run.episodes(0)
    assert batch.of_part('thought', 'action', 'markup').any()
    assert run.info['facts']['recipe']['rollout_args']['format']['tokens'] == 5
    with pytest.raises(ValueError):
        train(policy(), GuessNumber(), in_format(load_recipe('grpo', **small | dict(steps=3)), Thinking(tokens=6)),
            tmp_path/'run', resume=True, progress=False)

def test_a_run_that_trains_some_parts(tmp_path):
    from agentlab.rollout.filters import only_parts
    from agentlab.train import load_recipe, train
    from agentlab.train.recipes import in_format
    recipe = in_format(load_recipe('grpo', steps=1, groups=2, group_size=3, max_turns=2, max_tokens=4,
        test_tasks=0, curate=only_parts, curate_args=dict(parts=('action', 'thought'))),
        Thinking(tokens=5))
    run = train(policy(), GuessNumber(), recipe, tmp_path/'run', progress=False)
    assert len(run.rows()) == 1

# ---- the templates of many families

HERMES, XML, MESSAGE = (['qwen2_5', 'qwen3', 'qwen3_training', 'qwen3_instruct_2507'],
    ['qwen3_5_think', 'qwen3_8', 'nemotron_3_nano'], ['llama3_1', 'llama3_2'])

def of_family(name, **how):
    pytest.importorskip('trl')
    from families import tokenizer
    one = tokenizer(name)
    return Policy(tiny_model(len(one), 4096, hidden=16, layers=1), one, chat=Chat(one, **how))

@pytest.mark.parametrize('name,style', [pytest.param(n, s, id=f'{n}-{said}')
    for names, s, said in ((HERMES, hermes, 'hermes'), (XML, xml, 'xml'),
    (MESSAGE, message, 'message')) for n in names])
def test_the_style_is_that_of_the_template(name, style):
    "The tools are in the context as the template writes them, and a call that the template writes is read."
    speaks = of_family(name, rewrites=True)
    how = Calls().fitted(speaks.chat, SEARCH)
    assert how.style is style and how.native and takes_tools(speaks.chat)
    made = dict(role='assistant', content='', tool_calls=[dict(type='function', id='abcdefghi', function=dict(
        name='search', arguments=dict(relation='mentor', name='Bora </x> "Tel"')))])
    user = dict(role='user', content='Who?')
    told = speaks.chat.told(tools=how.render(how.tools, 'Be brief.')['tools'])
    text = told.render([user, made]).removeprefix(told.render([user])).rpartition('</think>')[2]
    text = text[text.index('{'):].split(speaks.tokenizer.decode([speaks.end_id]))[0] if style is message else text
    assert how.read(text).actions == [Call('search', dict(relation='mentor', name='Bora </x> "Tel"'))]
    begun = '</think>' if Thinking().opened(told) else ''
    script = Script(begun + how.write('search mentor Bora Tel'), begun + how.write('answer Mina Lam'),
        tokenizer=speaks.tokenizer)
    episode, = play(speaks, HopSearch(), [0], sampler=script, format=Calls(thinks=Thinking(tokens=400)), max_tokens=400,
        system='Be brief.')
    assert [t.acted for t in episode.turns] == ['search mentor Bora Tel', 'answer Mina Lam'] and not episode.truncated
    context = speaks.tokenizer.decode(script.given[0])
    assert '"search"' in context or '<name>search</name>' in context
    assert 'Be brief.' in context

@pytest.mark.parametrize('name', ['lfm2', 'gptoss', 'glm4moe'])
def test_a_style_that_nobody_reads_is_refused(name):
    speaks = of_family(name, rewrites=True)
    with pytest.raises(ValueError, match='no style reads'): Calls().fitted(speaks.chat, SEARCH)
    assert Calls(native=False).fitted(speaks.chat, SEARCH).style is hermes

def test_plain_tags_where_the_template_has_no_tools():
    speaks = of_family('gemma')
    script = Script(Calls(tools=SEARCH).write('answer Mina Lam'), tokenizer=speaks.tokenizer)
    episode, = play(speaks, HopSearch(), [0], sampler=script, format=Calls(), max_tokens=400,
        system='Answer.\nExample: answer Mina Lam')
    context = speaks.tokenizer.decode(script.given[0])
    assert (json.dumps(SEARCH[0]) in context and 'Example: <tool_call>{"name": "answer", "arguments": {"name": "Mina '
        'Lam"}}</tool_call>' in context)
    assert episode.turns[0].acted == 'answer Mina Lam'

REPLY = '<think>\nthe {}\n</think>\n\nguess {}'
def thoughts_of(name, count=3, **how):
    "A game of thoughts under a template, and what was shown to the sampler."
    speaks = of_family(name, **how)
    begun = '<think>\n' if Thinking().opened(speaks.chat) else ''
    script = Script(*[REPLY.format(n, n).removeprefix(begun) for n in (9, 7, 5)][:count], tokenizer=speaks.tokenizer)
    episode, = play(speaks, GuessNumber(), [0], sampler=script, format=Thinking(tokens=200), max_tokens=60,
        system='Guess <think>.', **GAME | dict(max_turns=count))
    return speaks, script, episode

@pytest.mark.parametrize('name', ['qwen3', 'deepseek_r1_distill', 'qwen3_5_think', 'nemotron_3_nano', 'deepseekv3'])
def test_a_rewritten_context_opens_a_window(name):
    "As deployed: every context is what the template writes for the conversation so far, and each is a row of its own."
    speaks, script, episode = thoughts_of(name, rewrites='window')
    assert ([t.window for t in episode.turns] == [0, 1, 2]
        and [t.acted for t in episode.turns] == ['guess 9', 'guess 7', 'guess 5'])
    batch = Batch.from_episodes([episode])
    assert len(batch.rows) == 3
    for k, (context, ids) in enumerate(zip(script.given, script.said)):
        assert batch.tokens.id[batch.tokens.row == k].tolist() == context + ids
        talk = [dict(role='system', content='Guess <think>.')]
        for i in range(k):
            talk += [dict(role='user', content=episode.turns[i].observation),
                dict(role='assistant', content=REPLY.format(9 - 2*i, 9 - 2*i))]
        wanted = speaks.chat.render([*talk, dict(role='user', content=episode.turns[k].observation)], prompt=True)
        assert speaks.tokenizer.decode(context) == wanted and 'the 9' not in wanted
    assert batch.action('sampler_logp').isfinite().all()

def test_the_other_ways_keep_one_row():
    "Append all the same; or observations as a tool's answers, behind which the thoughts stay."
    for how in (dict(rewrites=True), dict(role='tool')):
        speaks, script, episode = thoughts_of('qwen3', **how)
        batch = Batch.from_episodes([episode])
        assert len(batch.rows) == 1 and batch.tokens.id.tolist() == script.given[-1] + script.said[-1]
        assert 'the 9' in speaks.tokenizer.decode(script.given[-1])
    talk = [dict(role='system', content='Guess <think>.'), dict(role='user', content=episode.turns[0].observation)]
    for t, n in zip(episode.turns[1:], (9, 7)):
        talk += [dict(role='assistant', content=REPLY.format(n, n)), dict(role='tool', content=t.observation)]
    assert speaks.tokenizer.decode(script.given[-1]) == speaks.chat.render(talk, prompt=True)  # as deployed, exactly

def test_a_talk_is_read_as_the_template_rewrites_it():
    "`agentlab chat`, by a template that leaves earlier thoughts out: the context is what a deployed model reads."
    from agentlab.policy import Conversation
    speaks = of_family('qwen3', rewrites='window')
    script = Script(REPLY.format(9, 9), REPLY.format(7, 7), tokenizer=speaks.tokenizer)
    speaks.samples_by = script
    talk = Conversation(speaks, 'Be brief.', max_tokens=400, piece=400)
    said = [''.join(talk.reply(text)) for text in ('First?', 'Next?')]
    assert said == [REPLY.format(9, 9), REPLY.format(7, 7)]
    wanted = speaks.chat.render([dict(role='system', content='Be brief.'), dict(role='user', content='First?'),
        dict(role='assistant', content=REPLY.format(9, 9)),
        dict(role='user', content='Next?')], prompt=True)
    assert speaks.tokenizer.decode(script.given[-1]) == wanted and 'the 9' not in wanted

def test_windows_stay_shut_where_nothing_is_rewritten():
    speaks, script, episode = thoughts_of('qwen3_training', rewrites='window')
    assert [t.window for t in episode.turns] == [0, 0, 0]

@pytest.mark.parametrize('name,match', [('gemma', "refuses a tool's answer"),
    ('llama3_1', "leaves a tool's answer out, or quotes it"),
    ('deepseek_r1_distill', 'rewrites history')])
def test_a_role_that_a_template_lacks(name, match):
    with pytest.raises(ValueError, match=match): of_family(name, role='tool')

def test_the_refusal_names_the_choices():
    with pytest.raises(ValueError, match=r"rewrites=True\).*rewrites='window'\).*role='tool'\)"): of_family('qwen3')

# ---- a real model's tokenizer

@pytest.mark.lm
def test_the_parts_of_a_real_tokenizer(smollm2):
    "Markers of several tokens, some of which hold a bit of the text beside them."
    chance = random.Random(0)
    texts = ['<think>the key.</think>guess 7', '<think>\nhm\n</think>\n\nguess 7',
        '<think>é🔑</think> guess 7', 'x<think>.</think>.</think>y',
        '<tool_call>{"name": "guess", "arguments": {"number": 7}}</tool_call>\n<tool_call>{}</tool_call>']
    for text in texts + [''.join(chance.choices([*TAGS, ' ', '\n', '.', 'key', '{"a":', '}', '世'], k=9))
                         for _ in range(60)]:
        ids = smollm2.tokenizer.encode(text, add_special_tokens=False)
        assert spell(smollm2.tokenizer, ids).text == text or '世' in text
        for how in (Thinking(), Calls(thinks=Thinking(), tools=GUESS)):
            agree(smollm2.tokenizer, ids + [smollm2.end_id], how)

@pytest.mark.lm
@pytest.mark.long
@pytest.mark.parametrize('format', [deferred(lambda: Thinking(tokens=12)),
    deferred(lambda: Thinking(tokens=12, close=True)),
    deferred(lambda: Calls())],
    ids=['thinking', 'closed', 'calls'])
def test_a_real_model_acts_in_a_format(smollm2, format):
    episodes = play(smollm2, GuessNumber(), [0, 1], 2, max_tokens=24, max_turns=2, format=format,
        system='Guess the number.\nExample: guess 7')
    for t in [t for e in episodes for t in e.turns]: assert len(t.parts) == len(t.ids) == len(t.logps)
    batch = Batch.from_episodes(episodes)
    assert batch.of_part('markup').any()
    assert (smollm2.logprobs(batch)[0] - batch.action('sampler_logp')).abs().max() < 5e-3

# ---- bad input

def test_what_cannot_work_is_refused_before_anything_is_played():
    for format, match in ((Calls(), 'names none'), ('calls', 'use Plain'),
                          (Calls(native=True, tools=GUESS), 'ignores `tools`')):
        with pytest.raises(ValueError, match=match): play(policy(), KeyDoor(), [0], sampler=Script(), format=format)
    with pytest.raises(ValueError, match='tokens=0'): Thinking(tokens=0)
    with pytest.raises(ValueError, match="role='assistant'"): Chat(words(), role='assistant')
    with pytest.raises(ValueError, match='rewrites='): Chat(words(), rewrites='keep')

def test_rollouts_that_read_the_whole_reply_refuse_a_format():
    from agentlab.rollout import play_players, windows
    from agentlab.rollout.resampling import with_rollback
    for rollout in (play_players, windows.with_summaries, with_rollback):
        with pytest.raises(ValueError, match='reads the whole reply'):
            rollout(policy(), GuessNumber(), [0], format=Thinking())
    with pytest.raises(ValueError, match='windows of its own'):
        windows.with_summaries(policy(rewrites='window'), GuessNumber(), [0])

def test_a_world_of_demonstrations():
    "What an expert says in a format, the format reads."
    for format in (Thinking(), Calls(wordwise), Calls(hermes, thinks=Thinking())):
        for env in (GuessNumber(), HopSearch(), PythonTool()):
            world = Spoken(env, format, thought=lambda inner: 'hm')
            step = world.reset(0)
            while not step.done:
                step = world.step(world.expert())
                assert not step.info['invalid']
            assert step.info['success'] and set(format.markers) <= set(world.vocabulary())

@pytest.mark.parametrize('close', [False, True])
def test_the_likeliest_words_are_cut_and_joined_with_the_ids(close):
    class Looks(Script):
        def sample(self, contexts, **how):
            said = super().sample(contexts, **how)
            for c in said: c.top_ids, c.top_logps = [[i] for i in c.ids], [[-1.] for _ in c.ids]
            return said
    episode, = play(policy(), GuessNumber(), [0], sampler=Looks('<think> hm hm hm hm hm', 'guess 2'),
        format=Thinking(tokens=4, close=close), **GAME | dict(max_turns=1))
    turn, = episode.turns
    assert [x for x, in turn.top_ids] == turn.ids and len(Batch.from_episodes([episode]).actions) == (7 if close else 4)

def test_a_policy_that_lacks_the_words_is_not_told():
    "The sentence of the format would be unknown words; one that reads gets guide and sentence."
    for speaks, told in ((policy(), False), (of_family('qwen2_5'), True)):
        script = Script('guess 2', tokenizer=speaks.tokenizer)
        play(speaks, GuessNumber(), [0], sampler=script, format=Thinking(), **GAME | dict(max_turns=1))
        assert ('Think first' in speaks.tokenizer.decode(script.given[0])) == told
        assert speaks.tokenizer.unk_token_id is None or speaks.tokenizer.unk_token_id not in script.given[0]
