"""Whatever a client does, a served episode holds what was sampled and read, each token once; nothing is lost, nothing
is mixed up, and a client that is not one costs nobody anything."""
import asyncio, json, os, signal, socket, threading, time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from agentlab.credit import gigpo, grpo
from agentlab.env import GuessNumber, KeyDoor
from agentlab.episodes import Batch, state_key
from agentlab.interop.conversations import Conversations, Refused
from agentlab.interop.programs import AgentProgram, Served
from agentlab.interop.serve import Hub, sampled, serve, serving
from agentlab.policy import Completion, Policy, tiny_model, tiny_policy
from agentlab.policy.core import Chat
from agentlab.rollout import play
from agentlab.train import Run, recipes, train
from later import needs
from small import as_main, finish, fork

needs('fastapi')
needs('uvicorn')
needs('openai')
needs('httpx')
ASK = dict(messages=[dict(role='user', content='Guess a number from 1 to 16.')])

def untrained(env): return tiny_policy(env, warm=False, progress=False)

@pytest.fixture(scope='module')
def guesser(): return untrained(GuessNumber())

def client(url, session, **how):
    from openai import OpenAI
    return OpenAI(base_url=f'{url}/s/{session.id}/v1', api_key='none', **dict(max_retries=0) | how)

def play_as_client(speaks, env, seed, turns):
    "A loop that plays, with nothing of agentlab in it but the game: what it earned, and whether it won."
    step, messages, earned = env.reset(seed), [], 0.
    for _ in range(turns):
        messages.append(dict(role='user', content=step.observation))
        messages.append(speaks.chat.completions.create(model='any', messages=messages).choices[0].message)
        step = env.step(messages[-1].content)
        earned += sum(step.reward.values())
        if step.done: break
    return earned, bool(step.info.get('success'))

def gradient(policy, batch):
    "Gradient of a policy loss on a batch, all weights in one."
    policy.model.zero_grad()
    advantage, logp = torch.arange(len(batch.actions)) % 3 - 1. + grpo(batch).float(), policy.forward(batch)[0]
    (advantage*(logp - batch.action('sampler_logp')).exp()).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])

# ---- the same as a rollout

@pytest.mark.parametrize('env', [GuessNumber(), KeyDoor(size=3, horizon=4)], ids=lambda env: env.name)
def test_a_client_in_a_loop_gives_what_a_rollout_gives(env):
    "One game at a time the sampler is asked the same: every id, log-probability and gradient is equal to the bit."
    policy, how = untrained(env), dict(max_tokens=8, seed=5)
    played = Batch.from_episodes([e for group in range(3) for e in play(
        policy, env, [group], groups=[group], max_turns=4, **how)])
    hub = Hub(policy, temperature=1., name='policy', **how)
    with serving(hub) as url:
        for group in range(3):
            hub.sampler = policy.sampler()
            one = hub.open(place=(group, 0))
            hub.end(one.id, *play_as_client(client(url, one), env.clone(), group, 4))
        served = Batch.from_episodes(hub.take())
    assert len(served.turns) > 6 and not played.turns.origin.equal(torch.zeros(1))
    for table in 'episodes', 'rows', 'turns', 'tokens':
        one, other = getattr(served, table), getattr(played, table)
        known = set(one.columns) - {'state', 'final', 'truncated', 'invalid', 'cut', 'reward', 'answer', 'milestone'}
        for name in known:
            assert torch.equal(one[name].nan_to_num(), other[name].nan_to_num()), f'{table}.{name}'
    assert served.turns.reward.sum() == played.turns.reward.sum()
    assert torch.equal(gradient(policy, served), gradient(policy, played))
    gap = (policy.logprobs(served)[0] - served.action('sampler_logp')).abs()
    assert gap.max() < 1e-4

def test_a_hundred_conversations_at_once(guesser):
    "Each has the ids that it has alone, and every answer went to who had asked."
    import httpx
    hub, games = Hub(guesser, max_tokens=4, temperature=1., seed=9), 100
    async def converse(http, one):
        said, messages = [], []
        for text in 'Guess a number from 1 to 16.', f'Higher than {one.group % 16 + 1}.':
            messages.append(dict(role='user', content=text))
            answer = await http.post(f'{url}/s/{one.id}/v1/chat/completions', json=dict(messages=messages))
            messages.append(answer.json()['choices'][0]['message'])
            said.append(messages[-1]['content'])
        return said
    async def all_of(sessions):
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=100), trust_env=False) as http:
            return await asyncio.gather(*(converse(http, one) for one in sessions))
    with serving(hub) as url:
        sessions = [hub.open(place=(i, 0)) for i in range(games)]
        said = asyncio.run(all_of(sessions))
        for i, one in enumerate(sessions): hub.end(one.id, reward=float(i))
        episodes = hub.take()
    calls = len(sessions)*2
    assert [e.outcome for e in episodes] == list(range(games)) and sum(len(e.turns) for e in episodes) == calls
    alone = Hub(guesser, max_tokens=4, temperature=1., seed=9)
    for e, texts in zip(episodes, said):
        assert [t.text for t in e.turns] == texts and {t.window for t in e.turns} == {0}
    for e in episodes[::20]:
        one, messages = alone.open(place=(e.group, 0)), []
        for turn in e.turns:
            messages.append(dict(role='user', content=turn.observation))
            heard = alone.ask(one.id, dict(messages=messages)).result()
            messages.append(heard.message)
            assert heard.turn.ids == turn.ids
    alone.close()
    batch = Batch.from_episodes(episodes)
    assert (guesser.logprobs(batch)[0] - batch.action('sampler_logp')).abs().max() < 1e-4

# ---- clients that go wrong

class Waiting:
    "A sampler that waits for a sign."
    def __init__(self, sampler): self.sampler, self.go, self.begun = sampler, threading.Event(), threading.Event()
    def sample(self, *arguments, **how):
        self.begun.set()
        assert self.go.wait(30)
        return self.sampler.sample(*arguments, **how)

def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(.02)

@pytest.mark.parametrize('comes_back', [False, True])
def test_a_client_that_disconnects_in_mid_request(guesser, comes_back):
    """What nobody has read is not in the episode; a client that asks again gets the answer that was sampled, and
    nothing is sampled twice."""
    import httpx
    waiting = Waiting(guesser.sampler())
    hub = Hub(guesser, waiting, max_tokens=4, temperature=1.)
    body, path = json.dumps(ASK).encode(), '/s/{}/v1/chat/completions'
    with serving(hub) as url:
        one, other = hub.open(), hub.open()
        host, port = url.removeprefix('http://').split(':')
        with socket.create_connection((host, int(port))) as line:
            line.sendall(f'POST {path.format(one.id)} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n'
                .encode() + body)
            assert waiting.begun.wait(30)
        time.sleep(.2)  # the server hears of it
        waiting.go.set()
        until(lambda: one.talk.windows and not one.talk.windows[0].heard[0].delivered)
        if comes_back:
            again = httpx.post(url + path.format(one.id), content=body, headers={'x-stainless-retry-count': '1'})
            assert again.json()['choices'][0]['message'] == one.talk.windows[0].heard[0].message
        assert client(url, other).chat.completions.create(model='any', **ASK).choices
        ends = [hub.end(x.id, 1.) for x in (one, other)]
    assert [len(e.turns) for e in ends] == [int(comes_back), 1] and one.talk.calls == 0

def test_a_connection_rests_while_a_tool_works(guesser):
    "A server that closed it after 5 seconds, uvicorn's own limit, would reset the next request of the loop."
    from http.client import HTTPConnection
    hub = Hub(guesser, max_tokens=4)
    with serving(hub) as url:
        one, line = hub.open(), HTTPConnection(url.removeprefix('http://'))
        for rest in 5.5, 0:
            line.request('POST', f'/s/{one.id}/v1/chat/completions', json.dumps(ASK))
            assert json.load(line.getresponse())['choices']
            time.sleep(rest)
            line.auto_open = False  # the same connection, or an error
        line.close()
    assert one.talk.calls == 2

def test_a_request_that_is_repeated_while_it_is_carried_out_is_one(guesser):
    waiting = Waiting(guesser.sampler())
    hub = Hub(guesser, waiting, max_tokens=4)
    one = hub.open()
    first = hub.ask(one.id, dict(ASK), 'key')
    assert hub.ask(one.id, dict(ASK), 'key', again=True) is first
    second = hub.ask(one.id, dict(ASK), 'key')  # no retry: the program wants another answer
    waiting.go.set()
    assert first.result().number == 0 and second.result().number == 1 and one.talk.calls == 2
    assert len({id(h.window) for f in (first, second) for h in [f.result()]}) == 2
    hub.close()

def test_a_session_without_an_end_is_an_error_and_keeps_nobody_waiting(guesser):
    hub = Hub(guesser, max_tokens=4, group_size=2, patience=.5)
    sessions = [hub.open(task=task) for task in ('a', 'a', 'b', 'b')]
    assert [(s.group, s.member) for s in sessions] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for one in sessions: hub.ask(one.id, dict(ASK)).result()
    for one in sessions[:2] + sessions[2:3]: hub.end(one.id, 1.)
    assert [e.group for e in hub.take()] == [0, 0] and hub.take() == []  # group 1 is not complete
    time.sleep(.6)
    done, lost = hub.take()
    assert (done.error, done.outcome, len(lost.turns)) == (None, 1., 1) and 'without a reward' in lost.error
    assert hub.open(task='b').group == 2 and hub.live == 1  # no late member of a group that is gone
    hub.close()

def test_settings_of_a_client_are_kept_and_the_recipe_rules(guesser):
    for temperature, wanted, replaced in ((None, '0', 'seed'), (1., '1.0', 'temperature, top_p, seed')):
        hub = Hub(guesser, max_tokens=4, temperature=temperature)
        with serving(hub) as url:
            one = hub.open()
            raw = client(url, one).chat.completions.with_raw_response.create(model='any', temperature=0, top_p=.5,
                seed=1, max_tokens=2, **ASK)
            assert (raw.headers['x-agentlab-temperature'], raw.headers['x-agentlab-replaced']) == (wanted, replaced)
            turn, = hub.end(one.id).turns
        assert len(turn.ids) <= 2 and turn.columns['temperature'] == 0.

DEEP = '{"messages":' + '['*100_000 + ']'*100_000 + '}'
CHAT = '/s/{id}/v1/chat/completions'
HOSTILE = [  # path, body, status
    (CHAT, b'x'*(2**22 + 1), 413), (CHAT, b'{"messages": [', 400), (CHAT, b'\xff\xfe', 400), (CHAT, DEEP.encode(), 400),
    (CHAT, b'[]', 400), (CHAT, b'{"messages": NaN}', 400), (CHAT, b'{}', 400), (CHAT, b'null', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    (CHAT, dict(messages='x'), 400), (CHAT, dict(messages=[7]), 400), (CHAT, dict(messages=[dict(role=['user'])]), 400),
    (CHAT, dict(messages=[dict(role='user', content=7)]), 400), (CHAT, ASK | dict(evil=1), 400),
    (CHAT, ASK | dict(stop=['']), 400), (CHAT, ASK | dict(stop=[7]), 400), (CHAT, ASK | dict(stop=['x']*17), 400),
    (CHAT, ASK | dict(n=10**9), 400), (CHAT, ASK | dict(max_tokens=-1), 400),
    (CHAT, ASK | dict(temperature=1e400), 400), (CHAT, ASK | dict(tools=[dict(function=dict(name=7))]), 400),
    (CHAT, ASK | dict(tools=[dict(function=dict(name='a', parameters=dict(properties=[])))]), 400),
    (CHAT, ASK | dict(tools=[dict(function=dict(name='a'))]*2), 400),
    (CHAT, dict(messages=[dict(role='user', content='Guess ' * 5000)]), 400),
    ('/s/nobody/v1/chat/completions', ASK, 404), ('/s/%2e%2e%2f{id}/v1/chat/completions', ASK, 404),
    ('/s/{id}/../{id}/v1/chat/completions', ASK, 404), ('/s/{id}/v1/../../sessions', {}, 404), ('/docs', {}, 404),
    ('/s//v1/chat/completions', ASK, 404), ('/sessions', dict(task=1, seed=7), 400), ('/sessions', b'7', 400),
    ('/s/{id}/end', {}, 400), ('/s/{id}/end', dict(reward='1'), 400), ('/s/{id}/end', dict(reward=True), 400),
    ('/s/{id}/end', b'{"reward": 1e999}', 400), ('/s/{id}/end', dict(reward=1, group=0), 400),
    ('/s/nobody/end', dict(reward=1), 404), ('/s/nobody/reward', dict(reward=1), 404),
    ('/s/{id}/reward', dict(reward=1), 404), ('/s/{id}/reward', b'{"reward": NaN}', 400),
    ('/v1/chat/completions', ASK, 400), ('/v1/chat/completions', ASK | dict(metadata=dict(session='../x')), 400)]

def test_a_hostile_client_gets_a_reason_and_costs_nobody_anything(guesser):
    hub = Hub(guesser, max_tokens=4, temperature=1.)
    with serving(hub) as url:
        one = hub.open()
        host, port = url.removeprefix('http://').split(':')
        for path, body, status in HOSTILE:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            with socket.create_connection((host, int(port)), timeout=30) as line:  # no client tidies the path
                line.sendall(f'POST {path.format(id=one.id)} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n'
                    f'Content-Length: {len(raw)}\r\n\r\n'.encode())
                try: line.sendall(raw)
                except (BrokenPipeError, ConnectionResetError): pass  # it does not read a long body to its end
                answer = line.recv(2000).decode()
            assert answer.startswith(f'HTTP/1.1 {status}'), (path, raw[:80], answer)
        assert len(hub.sessions) == 1 and one.episode is None and one.talk.windows == []
        assert client(url, one).chat.completions.create(model='any', **ASK).choices
        assert len(hub.end(one.id, 1.).turns) == 1
        with pytest.raises(Exception, match='410'): client(url, one).chat.completions.create(model='any', **ASK)

def test_other_hosts_need_a_token(guesser):
    import httpx
    hub = Hub(guesser)
    with pytest.raises(ValueError, match='--token'), serving(hub, host='0.0.0.0'): pass
    with serving(hub) as url:  # a page of somebody else that found out the port
        assert httpx.post(f'{url}/sessions', headers=dict(Host='evil.example')).status_code == 403
        assert httpx.post(f'{url}/sessions', headers=dict(Host='localhost')).status_code == 200
    hub = Hub(guesser)
    with serving(hub, token='secret') as url:
        one = hub.open()
        for key, status in (('secret', 200), ('secre', 401), ('x', 401), ('sécret', 401)):
            header = {b'Authorization': f'Bearer {key}'.encode()}
            assert httpx.get(f'{url}/s/{one.id}/v1/models', headers=header).status_code == status

def test_more_sessions_than_there_may_be_are_refused(guesser):
    hub = Hub(guesser, most=2)
    for _ in range(2): hub.open()
    with pytest.raises(Refused, match='2 sessions are open'): hub.open()
    hub.end(next(iter(hub.sessions)), 1.)
    hub.open()
    hub.close()
    with pytest.raises(Refused, match='no more'): hub.open()

# ---- stop strings

class Recites:
    "A sampler that says these ids, whatever it is asked."
    def __init__(self, ids): self.ids, self.start, self.drawn = ids, None, 0
    def sample(self, contexts, max_tokens, temperature, top_p, stop, seeds):
        self.start = self.start or len(contexts[0])
        ids = self.ids[len(contexts[0]) - self.start:][:max_tokens]
        self.drawn += len(ids)
        return [Completion(ids, [float(-i) for i in ids], [.5]*len(ids), 'stop' if ids[-1] in stop else 'length',
            top_ids=[[i] for i in ids], top_logps=[[-1.] for _ in ids])]

@pytest.fixture(scope='module')
def reader():
    pytest.importorskip('trl')
    from families import tokenizer
    one = tokenizer('qwen2_5')
    one.add_tokens(['Thou', 'Action', 'Obser', 'vation: bo'])
    return Policy(tiny_model(len(one), 4096, hidden=16, layers=1), one)

SAYS = 'Thought: look it up.\nAction: search[Mina]\nObservation: born 1900 \u00e9\u20ac.\nObservation: done'

@pytest.mark.parametrize('piece', [1, 3, 100])
@pytest.mark.parametrize('stop', [('Observation:',), ('rvat', 'Observa'), ('zz', '\u20ac'), ('zz',)], ids=repr)
def test_an_answer_ends_with_the_token_that_completes_a_stop_string(reader, stop, piece):
    ids, text = reader.tokenizer.encode(SAYS) + [reader.end_id], reader.text
    recites = Recites(ids)
    said, = sampled(reader, recites, [[5, 6, 7]], [0], [stop], 200, 1., 1., piece)
    n = next((n for n in range(1, len(ids) + 1) if any(s in text(ids[:n]) for s in stop)), len(ids))
    assert said.ids == ids[:n] and said.logprobs == [-float(i) for i in ids[:n]] and said.finish == 'stop'
    assert said.top_ids == [[i] for i in ids[:n]] and said.truncated_logprobs is None
    assert recites.drawn - n < piece

@pytest.mark.parametrize('stop,calls', [('Observation:', 1), ('Mina', 0), ('</tool_call>', 0)])
def test_a_call_counts_where_it_stands_before_the_stop_string(reader, stop, calls):
    said = 'Well. <tool_call>\n{"name": "search", "arguments": {"query": "Mina"}}\n</tool_call>\nObservation: x'
    tools = [dict(type='function', function=dict(name='search', parameters=dict(properties=dict(query={}))))]
    hub = Hub(reader, Recites(reader.tokenizer.encode(said) + [reader.end_id]), max_tokens=200)
    heard = hub.ask(hub.open().id, ASK | dict(tools=tools, stop=[stop])).result()
    hub.close()
    assert len(heard.message.get('tool_calls', ())) == calls and heard.finish == ('tool_calls' if calls else 'stop')
    assert stop not in (heard.message['content'] or '')

def test_stop_strings_over_http_streamed_and_not(guesser):
    "The stream never shows one; the ids begin like those without `stop`."
    hub, free = (Hub(guesser, max_tokens=16, temperature=1., seed=4) for _ in range(2))
    met, stop = 0, [' guess', ' higher', ' 1', ' 4', ' number']
    with serving(hub) as url:
        for i in range(8):
            one, whole = hub.open(place=(i, 0)), free.ask(free.open(place=(i, 0)).id, dict(ASK)).result().turn.ids
            create = client(url, one).chat.completions.create
            answer = create(model='any', stop=stop, **ASK)
            pieces = create(model='any', stop='guess', stream=True, **ASK)
            assert 'guess' not in ''.join(piece.choices[0].delta.content or '' for piece in pieces)
            assert one.talk.answered(0).turn.ids == whole[:answer.usage.completion_tokens]
            assert not any(s in answer.choices[0].message.content for s in stop)
            met += answer.usage.completion_tokens < len(whole)
    free.close()
    assert met > 3

def test_rewards_on_the_way_land_in_their_turns(guesser):
    import httpx
    hub, answers = Hub(guesser, max_tokens=4, temperature=1.), []
    with serving(hub) as url:
        one, http = hub.open(), httpx.Client(base_url=url, trust_env=False)
        def pay(**body): return http.post(f'/s/{one.id}/reward', json=body)
        for messages in (ASK['messages'], [dict(role='system', content='Lower'), *ASK['messages']]):
            for _ in range(2):
                answers.append(http.post(f'/s/{one.id}/v1/chat/completions', json=dict(messages=messages)).json())
                messages = [*messages, answers[-1]['choices'][0]['message'], dict(role='user', content='Higher')]
            assert pay(reward=.5).json() == dict(reward=.5)  # the latest: calls 1 and 3
        assert pay(reward=1, turn=0).json() == dict(reward=1.) and pay(reward=-3, turn=0).json() == dict(reward=-2.)
        assert pay(reward=4, turn=answers[2]['id']).json() == dict(reward=4.)
        for body, why in ((dict(reward=1, turn=4), 'the latest is 3'), (dict(reward=True), 'a number'),
                          (dict(reward=1, turn='x-0'), 'the id of its answer')):
            assert why in pay(**body).json()['error']['message']
        for pays in hub.reward, hub.end:
            with pytest.raises(Refused, match='give a number'): pays(one.id, float('nan'))
        hub.end(one.id, 8.)
        assert pay(reward=1).status_code == 410
    batch = Batch.from_episodes(hub.take())
    assert batch.turns.reward.tolist() == [-2., .5, 4., 8.5] and batch.turns['call'].tolist() == [0., 1., 2., 3.]
    assert batch.episodes.outcome.tolist() == [11.]

@pytest.mark.parametrize('told', [{}, {'x-agentlab-state': 'hall'}])
def test_states_of_a_served_agent_make_the_steps_of_gigpo(guesser, told):
    hub = Hub(guesser, max_tokens=4, temperature=1., group_size=2)
    with serving(hub) as url:
        for reward in 1., 0.:
            one = hub.open(task='find it')
            for _ in range(2): client(url, one).chat.completions.create(model='any', extra_headers=told, **ASK)
            with pytest.raises(Refused, match='JSON'): hub.ask(one.id, dict(ASK, state={1, 2}))
            hub.end(one.id, reward)
    batch = Batch.from_episodes(hub.take())
    if told: assert set(batch.turns.state.tolist()) == {state_key('hall')} and not gigpo(batch).equal(grpo(batch))
    else:
        with pytest.raises(ValueError, match='state'): gigpo(batch)

# ---- tools, and templates of known families

@pytest.mark.parametrize('name', ['qwen2_5', 'llama3'])  # one knows tools, one does not
def test_tools_are_told_called_and_answered(name):
    pytest.importorskip('trl')
    from families import tokenizer
    one = tokenizer(name)
    policy = Policy(tiny_model(len(one), 4096, hidden=16, layers=1), one)
    talk, tools = Conversations(policy), [dict(type='function', function=dict(name='search', parameters=dict(
        type='object', properties=dict(query=dict(type='string')))))]
    def say(text, messages):
        asked = talk.ask(messages, tools)
        ids = one.encode(text, add_special_tokens=False) + [policy.end_id]
        context = asked.context
        return context, talk.hear(asked, Completion(ids, [-1.]*len(ids), [.1]*len(ids), 'stop'))
    messages = [dict(role='system', content='Be brief.'), dict(role='user', content='Who?')]
    context, heard = say('<tool_call>\n{"name": "search", "arguments":  {"query": "Tel"}}\n</tool_call>', messages)
    assert '"search"' in one.decode(context) and 'Be brief.' in one.decode(context)
    call, = heard.message['tool_calls']
    assert heard.finish == 'tool_calls' and json.loads(call['function']['arguments']) == dict(query='Tel')
    assert heard.message['content'] is None and len(set(heard.turn.parts)) > 1
    call['function']['arguments'] = '{"query":"Tel"}'  # the client writes it anew
    messages += [heard.message, dict(role='tool', tool_call_id=call['id'], content='Mina <|im_end|>')]
    _, second = say('Mina.', messages)
    assert second.message['content'] == 'Mina.' and second.window is heard.window
    assert one.decode(heard.turn.ids) in one.decode(second.window.ids)  # two spaces, as they were said
    assert second.turn.context_ids.count(policy.end_id) == 1
    other = [messages[0], messages[1], dict(heard.message, content='Well.'), *messages[3:]]
    _, third = say('No.', other)  # another history: written anew
    assert third.window is not heard.window and 'search' in one.decode(third.turn.context_ids[-150:])
    Batch.from_episodes([AgentProgram.scored(AgentProgram(print, [0], lambda t, a: 1), *ended(policy, talk))])

def ended(policy, talk):
    "A hub with one session that has said all this, and the answer of its program."
    hub = Hub(policy)
    one = hub.open()
    one.talk = talk
    hub.close()
    return hub, one, 'done'

def test_a_template_that_rewrites_thoughts_begins_a_window():
    pytest.importorskip('trl')
    from families import tokenizer
    one = tokenizer('qwen3')
    policy = Policy(tiny_model(len(one), 4096, hidden=16, layers=1), one, chat=Chat(one, rewrites='window'))
    talk, messages = Conversations(policy), []
    for text in 'Go', 'On':
        messages.append(dict(role='user', content=text))
        asked = talk.ask(messages)
        context, ids = asked.context, one.encode('<think>\nWhy?\n</think>\n\nBecause.', add_special_tokens=False)
        heard = talk.hear(asked, Completion(ids + [policy.end_id], [-1.]*(len(ids) + 1), [.1]*(len(ids) + 1), 'stop'))
        messages.append(heard.message)
    assert 'Why?' not in one.decode(context) and 'Because.' in one.decode(context)
    assert [t.window for t in talk.turns()] == [0, 1]

# ---- programs

def sleeper(base_url, task): time.sleep(task)

def test_programs_that_fail_end_their_own_episode_only(guesser, tmp_path):
    "One overruns its limit and asks on, one reports its reward itself, one never does."
    import httpx
    late = []
    def agent(url, task):
        http = dict(timeout=30, trust_env=False)
        httpx.post(f'{url}/chat/completions', json=ASK, **http)
        if task == 'slow':
            time.sleep(3.)
            late.append(httpx.post(f'{url}/chat/completions', json=ASK, **http))
        if task == 'own': httpx.post(f'{url.removesuffix("/v1")}/end', json=dict(reward=.5, success=True), **http)
        if task == 'last': time.sleep(3.5)  # the endpoint outlives the slow one
    program = AgentProgram(agent, ['x'], limit=2., workers=4)
    program.limit = 2.
    episodes = play(guesser, program, range(3), tasks=['slow', 'own', 'silent'], max_tokens=4)
    assert 'has not returned after 2.0 s' in episodes[0].error and len(episodes[0].turns) == 1
    assert (episodes[1].error, episodes[1].outcome, episodes[1].success) == (None, .5, True)
    assert 'without a reward' in episodes[2].error

def test_a_command_is_killed_with_what_it_started(guesser, tmp_path):
    note = tmp_path/'pid'
    script = f'sleep 60 & echo $! > {note}; sleep 60'
    e, = play(guesser, AgentProgram(['sh', '-c', script], ['x'], limit=2.), [0])
    assert 'TimeoutError' in e.error
    until(lambda: not _alive(int(note.read_text())))
    e, = play(guesser, AgentProgram(['sh', '-c', 'echo no luck >&2; exit 3'], ['x']), [0])
    assert 'status 3: no luck' in e.error

def _alive(pid):
    try: state = open(f'/proc/{pid}/stat').read().split()[2]
    except FileNotFoundError: return False
    return state != 'Z'

def test_a_sampler_that_fails_ends_the_run(guesser):
    class Broken:
        def sample(self, *arguments, **how): raise FloatingPointError('diverged')
    def agent(url, task):
        import httpx
        assert httpx.post(f'{url}/chat/completions', json=ASK, trust_env=False).status_code >= 500
    with pytest.raises(FloatingPointError, match='diverged'):
        play(guesser, AgentProgram(agent, ['x'], lambda t, a: 1.), range(3), sampler=Broken())

@pytest.mark.parametrize('how,error', [
    (dict(agent='python x'), 'list of words'), (dict(tasks=[]), 'at least one task'), (dict(limit=0), 'above 0')])
def test_a_program_that_cannot_be_played_is_refused(how, error):
    with pytest.raises(ValueError, match=error): AgentProgram(**dict(agent=print, tasks=['x']) | how)

def test_tests_of_a_program_need_tasks(guesser, tmp_path):
    program = AgentProgram(lambda url, task: task, [1, 2], reward=lambda task, answer: answer, held_out=[3, 4])
    assert program.tasks('test', 2) == [3, 4] and {program.task(i) for i in range(20)} == {1, 2}
    with pytest.raises(ValueError, match='held_out has 2'): program.tasks('test', 3)
    with pytest.raises(ValueError, match='token_budget'): play(guesser, program, [0], token_budget=9)
    with pytest.raises(TypeError, match='is a program'):
        train(untrained(GuessNumber()), program, recipes.arpo(steps=1, test_tasks=0), tmp_path/'run', progress=False)

# ---- agents that somebody else has started

def test_waiting_for_agents_is_bounded_and_a_group_of_one_is_said(guesser):
    hub, how = Hub(guesser, group_size=2), dict(group_size=2, max_tokens=2)
    with serving(hub), Served(hub, limit=.3) as agents:
        with pytest.raises(TimeoutError, match='0 of 2 groups were complete; 0 sessions were open'):
            play(guesser, agents, range(2), **how)
        for task in 'aab': hub.end(hub.open(task).id, 1.)
        with pytest.warns(UserWarning, match='1 of 2 groups were complete'):
            played = play(guesser, agents, range(2), **how)
        assert [(e.group, e.game) for e in played] == [(0, 0), (0, 1)]
        for _ in range(2): hub.end(hub.open().id, 1.)
        with pytest.warns(UserWarning, match='2 of 2 groups hold one episode'): play(guesser, agents, range(2), **how)
        with pytest.raises(ValueError, match='group_size=3'): play(guesser, agents, range(2), group_size=3)
        with pytest.raises(ValueError, match='test_tasks=0'): agents.tasks('test', 3)

# ---- the command

@pytest.mark.xdist_group('forks')
@pytest.mark.parametrize('sign', [signal.SIGINT, signal.SIGTERM])
def test_the_command_keeps_what_was_said_when_it_is_stopped(tmp_path, sign):
    import httpx
    out, log = tmp_path/'served', tmp_path/'log'
    server = fork(as_main, ['serve', '--model', 'untrained', '--env', 'guess', '--port', '0', '--out', str(out),
        '--max-tokens', '4'], str(tmp_path/'errors'), log=log, folder=tmp_path)
    try:
        until = time.monotonic() + 100
        while '\n' not in (log.read_text() if log.exists() else '') and time.monotonic() < until: time.sleep(.02)
        url = log.read_text().splitlines()[0].strip()
        for reward in (None, 1.):
            one = httpx.post(f'{url}/sessions', json=dict(task=reward)).json()
            httpx.post(f'{one["base_url"]}/chat/completions', json=ASK, timeout=60)
            if reward is not None: httpx.post(f'{url}/s/{one["id"]}/end', json=dict(reward=reward))
        os.kill(server.pid, sign)
        assert finish(server, log)[0] == 130
    finally: server.kill()
    run = Run(out)
    batches = [run.episodes(step) for step in run.steps()]
    assert sorted(x for b in batches for x in b.episodes.outcome.tolist()) == [0., 1.]
    assert sum(int((b.episodes.error != -1).sum()) for b in batches) == 1 and all(b.labels['token'] for b in batches)

@pytest.mark.parametrize('how,error', [
    (dict(port=70000), 'port=70000'), (dict(max_tokens=0), 'max_tokens=0'), (dict(host='0.0.0.0'), '--token'),
    (dict(vllm='http://127.0.0.1:9'), 'does not answer'), (dict(out=__file__), 'is a file')])
def test_a_command_that_cannot_serve_is_refused(tmp_path, monkeypatch, how, error):
    monkeypatch.setattr(signal, 'signal', lambda *arguments: None)
    with pytest.raises((ValueError, OSError), match=error):
        serve(**dict(model='untrained', env='guess', out=str(tmp_path/'served')) | how)

# ---- the pretrained model

@pytest.mark.lm
def test_smollm2_answers_and_nothing_is_tokenised_again(smollm2):
    hub = Hub(smollm2, max_tokens=16, temperature=1.)
    with serving(hub) as url, ThreadPoolExecutor(4) as threads:
        def converse(one):
            speaks, messages = client(url, one, timeout=300), [dict(role='system', content='Tell stories.')]
            for text in 'Tell me of 12 cats.', 'And  7 dogs?':
                messages.append(dict(role='user', content=text))
                messages.append(speaks.chat.completions.create(model='any', messages=messages).choices[0].message)
            return hub.end(one.id, 1.)
        episodes = list(threads.map(converse, [hub.open() for _ in range(4)]))
    batch = Batch.from_episodes(episodes)
    assert len(batch.rows) == 4 and len(batch.turns) == 8
    with smollm2.inexact() if not smollm2.settle() else torch.no_grad():
        assert (smollm2.logprobs(batch)[0] - batch.action('sampler_logp')).abs().max() < 1e-3
