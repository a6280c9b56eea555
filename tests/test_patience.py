"The helper that asks again, with a clock that only sleeping moves; the endpoint that uses it, against a real server."
import json, threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.patience import Budget, GaveUp, NotNow, Patience, Spent, retry_after, worth_again
from agentlab.prompt.endpoint import Endpoint, EndpointError

class Clock:
    "Time passes while somebody sleeps, and `each` seconds in every try."
    def __init__(self, each=0.): self.now, self.slept, self.each = 0., [], each
    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
    def __call__(self): return self.now
    def plan(self, **how): return Patience(sleep=self.sleep, clock=self, **how)
    def failing(self, times, afters=()):
        left, afters = [times], list(afters)
        def attempt():
            self.now += self.each
            if not left[0]: return 'answer'
            left[0] -= 1
            raise NotNow('busy', after=afters.pop(0) if afters else None)
        return attempt

@given(st.integers(1, 12), st.floats(0, 5), st.floats(0, 60), st.floats(0, 300), st.floats(0, 1), st.integers(0, 15),
    st.lists(st.none() | st.floats(0, 100), max_size=15), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_never_too_often_too_long_or_too_early(tries, wait, longest, total, jitter, fails, afters, seed):
    clock, again = Clock(each=.25), []
    plan = clock.plan(tries=tries, wait=wait, longest=longest, total=total, jitter=jitter, generator=Random(seed))
    try: answered = plan.ask(clock.failing(fails, afters), again=lambda: again.append(1)) == 'answer'
    except GaveUp as e:
        answered = False
        assert 'busy' in str(e) and isinstance(e.__cause__, NotNow)
    assert len(clock.slept) == len(again) <= tries - 1 and answered <= (fails < tries)
    assert sum(clock.slept) <= total
    assert clock.now <= total + .25  # a try that began in time
    for k, slept in enumerate(clock.slept):
        after = afters[k] if k < len(afters) else None
        full = min(wait*2**k, longest)
        if after is None: assert full*(1 - jitter) - 1e-9 <= slept <= full + 1e-9
        else: assert after <= slept <= after + jitter*min(wait, longest) + 1e-9

def test_a_caller_that_has_gone_is_not_waited_for():
    clock = Clock()
    with pytest.raises(GaveUp, match='1 try'): clock.plan().ask(clock.failing(9), given_up=lambda: True)
    assert not clock.slept

def test_what_is_no_notnow_passes_at_once():
    clock = Clock()
    for error in (ValueError, KeyboardInterrupt, LookupError):
        def attempt(): raise error('no')
        with pytest.raises(error): clock.plan().ask(attempt)
    assert not clock.slept

def test_dates_and_nonsense():
    at = 1_795_521_600.  # 24 November 2026, noon, in UTC
    assert retry_after('Tue, 24 Nov 2026 12:01:00 GMT', at) == 60
    assert retry_after('Tue, 24 Nov 2026 12:01:00 -0000', at) == 60
    assert retry_after('Tue, 24 Nov 2026 14:01:00 +0200', at) == 60
    assert retry_after('Tuesday, 24-Nov-26 12:01:00 GMT', at) == 60  # RFC 850
    assert retry_after('Tue Nov 24 12:01:00 2026', at) == 60         # asctime
    assert retry_after('1e400') is None and retry_after('Tue, 99 Nov 2026 12:01:00 GMT') is None
    assert retry_after('\x00') is None and retry_after('9'*400) is None

def test_refusals():
    assert not any(map(worth_again, (200, 301, 400, 401, 403, 404, 405, 413, 422, 501, 505)))
    assert all(map(worth_again, (408, 409, 425, 429, 500, 502, 503, 504, 529)))

def test_a_budget_is_kept_by_many_threads():
    budget, over, sent = Budget(requests=50), [], []
    def work():
        for _ in range(20):
            try: Clock().plan().ask(lambda: sent.append(1), budget=budget)
            except Spent: over.append(1)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join(20)
    assert len(sent) == budget.sent == 50 and len(over) == 8*20 - 50

@pytest.mark.parametrize('how', [dict(requests=0), dict(tokens=float('nan'))])
def test_no_budget(how):
    with pytest.raises(ValueError, match='at least one'): Budget(**how)

@pytest.mark.parametrize('how', [dict(tries=0), dict(wait=-1.), dict(total=float('nan')), dict(jitter=2.)])
def test_no_patience(how):
    with pytest.raises(ValueError, match=next(iter(how))): Patience(**how)

# ---- the endpoint

@contextmanager
def serving(*answers):
    "Each answer is (status, text, headers); the last one is given from then on."
    left, asked = list(answers), []
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_): pass
        def do_GET(self): self.do_POST()
        def do_POST(self):
            asked.append((self.command, self.path))
            self.rfile.read(int(self.headers['Content-Length'] or 0))
            status, text, headers = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in headers.items(): self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())
    httpd = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try: yield f'http://127.0.0.1:{httpd.server_port}/v1', asked
    finally:
        httpd.shutdown()
        httpd.server_close()

def answer(text, **usage): return 200, json.dumps(dict(choices=[dict(message=dict(content=text))], usage=usage)), {}
ASK = [dict(role='user', content='Well?')]

def test_an_endpoint_waits_as_it_is_told():
    clock, busy = Clock(), (429, 'slow down', {'Retry-After': '12'})
    with serving(busy, (503, '', {}), answer('yes')) as (url, asked):
        assert Endpoint(url, 'm', patience=clock.plan(jitter=0.))(ASK) == 'yes'
    assert clock.slept == [12., 2.] and len(asked) == 3

@pytest.mark.parametrize('status', [400, 401, 403, 404, 422, 501])
def test_an_endpoint_that_refuses_is_asked_once(status):
    clock = Clock()
    with serving((status, 'no', {'Retry-After': '1'})) as (url, asked):
        model = Endpoint(url, 'm', patience=clock.plan())
        with pytest.raises(EndpointError, match=f'answered {status}: no'): model(ASK)
    assert len(asked) == 1 and not clock.slept

def test_an_address_that_cannot_work_is_not_tried_again():
    clock = Clock()
    with pytest.raises(EndpointError, match='cannot be reached'):
        Endpoint('http://127.0.0.1:1/v1\x01', 'm', patience=clock.plan())(ASK)
    assert not clock.slept

def test_what_a_server_does_not_count_is_counted_in_bytes():
    budget = Budget(tokens=10**6)
    with serving(answer('vier'), answer('vier', prompt_tokens=7, completion_tokens=2),
                 (200, json.dumps(dict(choices=[dict(message=dict(content='vier'))], usage=[])), {})) as (url, _):
        model = Endpoint(url, 'm', budget=budget, patience=Clock().plan(tries=1))
        assert model.answer(ASK) == ('vier', None) and len('Well?vier') < budget.paid < 200
        before = budget.paid
        assert model.answer(ASK) == ('vier', 2) and budget.paid == before + 9
        assert model.answer(ASK) == ('vier', None)

def test_the_budget_of_requests_counts_failed_ones():
    clock, budget = Clock(), Budget(requests=3)
    with serving((500, 'broken', {})) as (url, asked):
        with pytest.raises(EndpointError, match='budget of 3 requests'):
            Endpoint(url, 'm', patience=clock.plan(), budget=budget)(ASK)
    assert len(asked) == 3

def test_names_of_models():
    with serving((200, json.dumps(dict(data=[dict(id='one'), dict(id='two')])), {})) as (url, asked):
        assert Endpoint(url, '').models() == ['one', 'two'] and asked == [('GET', '/v1/models')]
    with serving((200, '{"data": 3}', {})) as (url, _):
        with pytest.raises(EndpointError): Endpoint(url, '', patience=Clock().plan(tries=2)).models()
