"""Several runs in one picture, a request to stop that travels through the run folder, and going on bit for bit: all
without a browser."""
import asyncio, json, math, os, re, shlex, threading, time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html.parser import HTMLParser

import pytest

from agentlab.env import KeyDoor
from agentlab.train import Run, recipes, train
from agentlab.view.dashboard import (LOOKS, MOST, Dashboard, Overlay, curves, dashboard_html, panes,
    resume_command, several, takes_resume, watch)
from small import Paying, facts, finish, fork, same_run, small_policy, small_recipe, train_small
from view_data import HOSTILE, write_run

def outside(work):
    "A coroutine in an event loop of its own."
    with ThreadPoolExecutor(1) as pool: return pool.submit(asyncio.run, work).result()

async def until(true, seconds=60):
    "Wait on the event loop."
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'it did not happen'
        await asyncio.sleep(.02)

def log(n=8, up=1., **more):
    return [dict(step=i, reward=up*i/n, success=up*i/n, entropy_by_turn=[1., .5, None], dead_groups=.1,
        clip_fraction=.02, grad_norm=1., seconds=.1) | more for i in range(n)]

def slow(on_row, should_stop, resume=False, began=None):
    "Counts; goes on at 3 whatever it had reached."
    if began is not None: began.append(resume)
    for step in range(3 if resume else 0, 10_000):
        if should_stop(): return step
        on_row(dict(step=step, reward=float(step)))
        time.sleep(.002)

# ---- stop and resume

def test_the_resume_button_goes_on_bit_for_bit(tmp_path):
    """A training run of the tiny model: a click on Stop ends it, a click on Resume goes on, and the whole is the run
    that nobody stopped."""
    def go(on_row, should_stop, resume=False):
        return train_small(tmp_path/'run', steps=24, checkpoint_every=1, on_row=on_row, should_stop=should_stop,
            resume=resume)
    async def main():
        dashboard = Dashboard(total=24, resume=go)
        dashboard.widget
        # a function it could call, though nothing ran yet
        assert dashboard.again.disabled is False and dashboard.again.layout.display == ''
        dashboard._start(dashboard.run(go))
        await until(lambda: len(dashboard.rows) >= 2)
        pressed = time.monotonic()
        dashboard.button.click()
        await dashboard
        assert time.monotonic() - pressed < 20 and dashboard.state == 'stopped' and 2 <= len(dashboard.rows) < 24
        assert not dashboard.again.disabled and dashboard.button.disabled
        threading.Thread(target=dashboard.again.click).start()  # JupyterLab may deliver a click in a thread of its own
        first = dashboard.task
        await until(lambda: dashboard.task is not first)
        assert not (await dashboard).stop_asked() and dashboard.state == 'finished' and dashboard.again.disabled
        return dashboard
    dashboard = outside(main())
    assert [row['step'] for row in dashboard.rows] == list(range(24)) == [x for x, _ in dashboard.plots.line('reward')]
    same_run(train_small(tmp_path/'whole', steps=24, checkpoint_every=1), Run(tmp_path/'run'))

def test_a_partial_of_train_can_be_gone_on_with(tmp_path):
    "train itself takes on_row, should_stop and resume: a partial of it is all that watch needs."
    part = partial(train, small_policy(), Paying(), small_recipe(steps=24), tmp_path/'run', progress=False)
    assert takes_resume(part) and takes_resume(train) and not takes_resume(lambda on_row, should_stop: 0)
    async def main():
        dashboard = Dashboard(resume=part)
        dashboard._start(dashboard.run(part))
        await until(lambda: dashboard.rows)
        dashboard.stop()
        await dashboard
        assert dashboard.state == 'stopped' and len(dashboard.rows) < 24
        await dashboard.resume()
        return dashboard
    dashboard = outside(main())
    assert dashboard.state == 'finished' and len(dashboard.rows) == 24
    same_run(train_small(tmp_path/'whole', steps=24), Run(tmp_path/'run'))

def test_rows_that_are_made_again_are_drawn_once():
    "A run that goes on behind what it had reached replaces those rows, also in the list that the reader gave."
    began, given = [], []
    async def main():
        dashboard = Dashboard(given, resume=partial(slow, began=began))
        dashboard.widget
        dashboard._start(dashboard.run(partial(slow, began=began)))
        await until(lambda: len(dashboard.rows) > 6)
        dashboard.stop()
        await dashboard
        dashboard.resume()
        await until(lambda: dashboard._cuts)
        await until(lambda: len(dashboard.rows) > 9)
        dashboard.stop()
        await dashboard
        return dashboard
    dashboard = outside(main())
    assert (began == [False, True] and [row['step'] for row in dashboard.rows] == list(range(len(dashboard.rows)))
        == [row['step'] for row in given])

def test_a_stop_before_the_first_breath_counts():
    "The work begins at the next turn of the event loop; a stop in between is not forgotten."
    async def main():
        dashboard = Dashboard()
        dashboard._start(dashboard.run(slow))
        dashboard.stop()
        return await dashboard, dashboard.state
    assert outside(main()) == (0, 'stopped')

def test_what_resume_refuses(tmp_path):
    "Not while it runs, not a finished run, not while somebody writes the log; without a function, a hint."
    async def main():
        dashboard = Dashboard(resume=slow)
        dashboard.widget
        dashboard._start(dashboard.run(slow))
        await until(lambda: dashboard.rows)
        dashboard.draw(force=True)
        assert dashboard.again.disabled
        with pytest.raises(RuntimeError, match='stop it first'): dashboard.resume()
        dashboard.stop()
        await dashboard
    outside(main())
    plain = Dashboard(log())
    plain.widget
    assert plain.again.layout.display == 'none'
    folder = write_run(tmp_path/'run', steps=9)
    fresh = Dashboard(folder, resume=slow)
    fresh.resume()
    assert 'ask it to stop' in fresh.error and fresh.task is None
    os.utime(folder/'metrics.jsonl', (1, 1))
    assert not fresh._fresh()
    assert not Dashboard(folder)._may_resume.__self__.hint

def test_an_error_that_nobody_awaits_is_in_the_status_line():
    "A resumed run that fails says so, and the loop has nothing to complain about."
    heard = []
    def fails(on_row, should_stop, resume=False): raise ArithmeticError('<b>lost</b>')
    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
        dashboard = Dashboard(resume=fails)
        dashboard.widget
        dashboard.resume()
        await until(lambda: dashboard.state == 'failed')
        await asyncio.sleep(.05)
        dashboard.draw(force=True)
        return dashboard
    dashboard = outside(main())
    assert '&lt;b&gt;lost' in dashboard.label.value and not dashboard.again.disabled
    del dashboard
    assert not heard

# ---- a run of another process

def test_a_run_in_another_process_is_stopped_and_gone_on_with(tmp_path):
    """The request is read within an update and answered; Resume trains on in this process; the whole is bit for bit
    the run that nobody stopped."""
    folder = tmp_path/'run'
    how = dict(steps=400, checkpoint_every=300)
    def go(on_row, should_stop, resume=False):
        return train_small(folder, on_row=on_row, should_stop=lambda: len(Run(folder).rows()) >= seen + 2,
            resume=resume, **how)
    process = fork(partial(train_small, **how), folder, log=tmp_path/'log')
    try:
        end = time.monotonic() + 60
        while len(Run(folder).rows()) < 2 and time.monotonic() < end: time.sleep(.05)
        async def main():
            nonlocal seen
            dashboard = Dashboard(folder, resume=go)
            dashboard.widget
            dashboard._start(dashboard.follow(every=.05))
            await asyncio.sleep(.1)
            dashboard.draw(force=True)
            assert (dashboard.ask.layout.display == '' and not dashboard.ask.disabled
                and dashboard.button.description == 'Stop watching')
            dashboard.ask.click()
            assert dashboard.state == 'asked to stop'
            await dashboard
            assert dashboard.state == 'stopped' and not Run(folder).stop_asked()
            seen = len(dashboard.rows)
            assert finish(process, tmp_path/'log')[0] == 0 and seen < 400
            dashboard.draw(force=True)
            assert not dashboard.again.disabled
            dashboard.again.click()
            await dashboard
            return dashboard
        seen = 0
        dashboard = outside(main())
    finally:
        if process.is_alive(): process.kill()
    assert dashboard.state == 'stopped' and [row['step'] for row in dashboard.rows] == list(range(seen + 2))
    whole = train_small(tmp_path/'whole', should_stop=lambda: len(Run(tmp_path/'whole').rows()) >= seen + 2, **how)
    assert facts(whole) == facts(Run(folder)) and len(whole.rows()) == seen + 2

def test_a_request_that_nobody_answers(tmp_path):
    "It stays and the status line says so; a trainer that starts later takes no notice of it."
    folder = write_run(tmp_path/'old', steps=9)
    dashboard = Dashboard(folder)
    dashboard.state = 'watching'
    dashboard.ask_stop()
    assert Run(folder).stop_asked() and dashboard.state == 'asked to stop'  # the same file that the trainer looks for
    assert (dashboard._answered() is False and dashboard.error == '' and dashboard._answered(patience=0) is False
        and 'no answer yet' in dashboard.error)
    Run(folder).stop_answered()
    assert dashboard._answered() and dashboard.error == ''
    run = Run(tmp_path/'run')
    run.folder.mkdir()
    run.ask_stop()
    assert len(train_small(run.folder, steps=2).rows()) == 2 and not run.stop_asked()
    with pytest.raises(ValueError, match='nobody to ask'): Dashboard(log()).ask_stop()

def test_a_run_that_ended_before_it_read_the_request(tmp_path):
    "finished, not stopped."
    folder = write_run(tmp_path/'run', steps=4)
    async def main():
        dashboard = Dashboard(folder, total=4)
        await dashboard.follow(every=.01)
        return dashboard.state
    assert outside(main()) == 'finished'

def test_the_command_to_go_on(tmp_path):
    "Exact: its options give the recipe of run.json, number by number; where none do, Python."
    run = train(small_policy(KeyDoor()), KeyDoor(),
        recipes.gigpo(steps=1, groups=2, group_size=3, lr=2e-3, test_tasks=0, seed=4), tmp_path/'a run',
        progress=False)
    words = shlex.split(resume_command(run.folder))
    assert words[:2] == ['agentlab', 'train'] and words[-3:] == ['--out', str(run.folder), '--resume']
    said = dict(zip(words[2:-1:2], words[3:-1:2]))
    assert said == {'--recipe': 'gigpo', '--env': 'keydoor', '--model': 'untrained', '--steps': '1',
        '--seed': '4', '--test-tasks': '0', '--lr': '0.002', '--groups': '2', '--group-size': '3',
        '--out': str(run.folder)}
    import sys
    from agentlab.cli import main
    argv, sys.argv = sys.argv, words
    try: main()
    except SystemExit as e: assert not e.code
    finally: sys.argv = argv
    assert len(Run(run.folder).rows()) == 1
    other = train_small(tmp_path/'own')
    assert resume_command(other.folder).startswith('train(policy, env, recipe, ')
    dashboard = Dashboard(run.folder, total=9)
    dashboard.widget
    os.utime(run.folder/'metrics.jsonl', (1, 1))
    dashboard.again.click()
    assert dashboard.hint == resume_command(run.folder) and '--resume</bdi></code>' in dashboard.note.value

# ---- several runs

def test_what_counts_as_several():
    assert several({'a': []}) and several(['a', 'b']) and several([[], []]) and several([Dashboard([])])
    assert not several([]) and not several(log()) and not several('a') and not several(None) and not several(slow)

def test_runs_are_told_apart_without_colour():
    "Colour, dash and mark of every run differ from those of every other; more than six are refused."
    for part in range(4): assert len({look[part] for look in LOOKS}) == MOST == len(LOOKS)
    with pytest.raises(ValueError, match='7 runs: give 1 to 6'): Overlay([log()]*7)
    with pytest.raises(ValueError, match='0 runs'): Overlay({})
    assert list(Overlay([log(), log(), 'x'][:2]).runs) == ['run', 'run 2']

def test_lines_are_hidden_and_shown():
    "A box takes its run out of all panes, of the picture and of its twin, and of nothing else."
    overlay = Overlay({'a': log(), 'b': log(up=.5), 'c': log(up=.2)})
    overlay.widget
    assert [len(overlay.plots.line(name, i)) for i in range(3) for name in ('reward', 'entropy', 'grad_norm')] == [8]*9
    assert [y for _, y in overlay.plots.line('reward', 1)] == [.5*i/8 for i in range(8)]
    overlay.boxes['b'].value = False
    shown = lambda: [run['shown'] for run in overlay.figure.head['runs']]
    assert shown() == [True, False, True]
    assert (set(re.findall(r'stroke="(#\w+)"', overlay.html())) <= {look[0] for look in LOOKS}
        and '· <bdi>b' not in overlay.html())
    with pytest.raises(ValueError, match='not among'): overlay.show('d')
    overlay.show('b')
    assert overlay.html().count('role="img" aria-label="') == 3 + 6 and overlay.static() == overlay.html()
    assert shown() == [True]*3

def test_the_mean_entropy_of_a_row_without_one():
    "The mean of its turns; a turn that nobody reached does not count."
    assert (curves(log(2))['entropy'][1].tolist() == [.75, .75]
        and curves([dict(step=0, entropy=.3)])['entropy'][1].tolist() == [.3])
    assert math.isnan(curves([dict(step=0)])['entropy'][1][0])

def test_an_overlay_runs_follows_stops_and_goes_on(tmp_path):
    """A function, a run folder and a live dashboard in one picture, each with its own buttons; an error of one ends
    no other."""
    folder, began = write_run(tmp_path/'run', steps=9), []
    (folder/'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in log(3)))
    def fails(on_row, should_stop): raise KeyError('no')
    async def main():
        own = Dashboard()
        own._start(own.run(slow))
        overlay = Overlay({'made': partial(slow, began=began), 'folder': folder, 'own': own, 'bad': fails})
        overlay.widget
        overlay._start(overlay.follow(.05))
        made, other, bad = overlay.runs['made'], overlay.runs['folder'], overlay.runs['bad']
        await until(lambda: len(made.rows) > 5 and len(overlay.plots.line('reward')) > 3
            and len(overlay.plots.line('reward', 1)) == 3)
        assert bad.state == 'failed' and not overlay.task.done() and 'KeyError' in bad.label.value
        made.button.click()
        await until(lambda: made.state == 'stopped')
        assert own.state == 'running' and other.state == 'watching' and other.ask.layout.display == ''
        other.ask.click()
        assert Run(folder).stop_asked()
        Run(folder).stop_answered()
        await until(lambda: other.state == 'stopped')
        overlay.stop()
        found = await overlay
        assert (own.state in ('stopping', 'stopped') and set(found) == {'made', 'folder', 'own', 'bad'}
            and len(found['made']) > 5)
        await own
        made.again.click()  # it ended, and is drawn again
        await until(lambda: not overlay.task.done() and made.state == 'running')
        await until(lambda: overlay.plots.line('reward')[-1][0] > 20)
        overlay.stop()
        await overlay
        return began
    assert outside(main()) == [False, True]

def test_watch_of_several_outside_a_notebook():
    with pytest.raises(RuntimeError, match='event loop of a notebook'): watch([log(), log()])

# ---- without JavaScript

class Reader(HTMLParser):
    "Tags and text of a page."
    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(str(page))
    def handle_starttag(self, tag, attributes): self.tags.append((tag, dict(attributes)))
    def handle_data(self, data): self.text.append(data)

def harmless(page):
    read = Reader(page)
    assert not {tag for tag, _ in read.tags} - {'section', 'style', 'h3', 'ul', 'li', 'svg', 'path', 'span', 'bdi', 'b',
        'em', 'g', 'div', 'figure', 'figcaption', 'line', 'text', 'title',
        'desc', 'rect', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'p'}
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith('on')
        or name in ('href', 'src')] and not re.search(r'https?:|url\(|@import', page)
    return read

def test_hostile_names_are_text():
    "In the twin, in the boxes and in the status line."
    for name in HOSTILE:
        page = dashboard_html({name: log(), 'x': log(up=.5)}, title=name)
        harmless(page)
        assert len(page) < 60_000
    overlay = Overlay({name: log(2) for name in (HOSTILE[0], HOSTILE[3], HOSTILE[5], HOSTILE[10])})
    overlay.widget
    for name, box in overlay.boxes.items():
        assert (not getattr(box, 'description_allow_html', False) and '\u202e' not in box.description
            and '\x1b' not in box.description and len(box.description) < 70)
        # the curves are told no name at all
        assert not name.strip() or json.dumps(name)[1:-1] not in json.dumps(overlay.figure.get_state())
    assert HOSTILE[0] in ''.join(Reader(dashboard_html({HOSTILE[0]: log(), 'b': log()})).text)

def test_the_twin_says_what_the_picture_shows(tmp_path):
    "Six pictures with a title, a description and the numbers; the table holds the last ones."
    page = dashboard_html({'gigpo': log(), 'grpo': log(up=.5)}, title='two runs')
    read = harmless(page)
    text = ''.join(read.text)
    always = [pane for pane in panes(compared=True) if not pane.optional]
    assert page.count('<figure>') == len(always) == 7 and page.count('<desc>') == 6  # the KL has no numbers
    assert ('run 1: 0 at update 0, 0.875 at update 7, between 0 and 0.875; run 2: 0 at update 0, 0.438 '
        'at update 7' in text)
    assert '0.88 at 7' in text and '0.44 at 7' in text
    one = dashboard_html(write_run(tmp_path/'run'))
    assert 'entropy by turn' in one and len(Reader(one).tags) > 40 and one == Dashboard(tmp_path/'run').html()
    assert 'No update was recorded yet.' in harmless(dashboard_html([])).text
    nothing = dashboard_html([dict(step=0, reward=None), dict(step=1, reward=math.nan)])
    assert 'no number was recorded' in nothing
    assert len(dashboard_html([dict(step=i, reward=math.sin(i)) for i in range(50_000)])) < 60_000
