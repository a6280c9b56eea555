"""Other people's dumps: what is recognised, what is called missing, what damage does, and that nothing a model wrote
reaches a page as markup."""
import json
import pickle
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import torch

from agentlab.credit import grpo
from agentlab.episodes import Batch, Episode, Turn
from agentlab.train.runs import open_run as new_run
from agentlab.view.foreign import FIELDS, MISSING, open_run, opened_html, sniff, split_turns

HERE = Path(__file__).parent/'foreign'


def parquet(path, rows, **more):
    pd.DataFrame([dict(dict(step=1, prompt='p', completion='c', right=1., advantage=0.), **row)
                  for row in rows]).to_parquet(path)
    return path


def jsonl(path, *rows, end=b''):
    path.write_bytes(b''.join((row if isinstance(row, bytes) else json.dumps(
        dict(dict(input='p', output='o', gts='g', score=1., step=1), **row)).encode()) + b'\n' for row in rows) + end)
    return path


# what TRL really wrote

@pytest.mark.parametrize('kind, columns', [('text', ['moves', 'brevity', 'verdict', 'words']), ('chat', ['moves'])])
def test_trl_wrote_these_columns(kind, columns):
    files = sorted((HERE/'trl'/kind/'completions').glob('*.parquet'))
    assert [f.name for f in files] == ['completions_00001.parquet', 'completions_00002.parquet']
    for f in files: assert list(pd.read_parquet(f)) == ['step', 'prompt', 'completion', *columns, 'advantage']


@pytest.mark.parametrize('path', ['trl/chat', 'trl/chat/completions', 'trl/chat/completions/completions_00002.parquet'])
def test_trl_folder_or_file(path):
    run = open_run(HERE/path)
    assert run.format == 'trl' and run.steps == ([2] if path.endswith('.parquet') else [1, 2])
    frame = pd.read_parquet(HERE/'trl/chat/completions/completions_00002.parquet')
    turns = run.turns(2)
    assert (turns.text.tolist() == [c[0]['content'] for c in frame.completion]
            and turns.outcome.tolist() == frame.moves.tolist())
    assert turns.group.tolist() == [0]*4 + [1]*4 and turns.advantage.tolist() == pytest.approx(frame.advantage.tolist())


@pytest.mark.parametrize('kind, reward', [('chat', None), ('text', dict(moves=1., brevity=1.))])
def test_our_grpo_gives_trls_advantages(kind, reward):
    run = open_run(HERE/'trl'/kind, reward=reward)
    for step in run.steps:
        turns = run.turns(step)
        ours = grpo(Batch.from_turns(turns[['group', 'episode', 't', 'reward', 'outcome']]), eps=1e-4)
        assert ours.tolist() == pytest.approx(turns.advantage.tolist(), abs=1e-5) and ours.abs().max() > .5


def test_several_rewards_are_not_guessed():
    run = open_run(HERE/'trl/text')
    assert (run.fields['reward'] == MISSING and run.summary().unknown.tolist() == [8, 8]
            and run.turns(1).outcome.isna().all())
    assert "['moves', 'brevity', 'words']" in run.notes[0]
    assert run.turns(1)[['moves', 'brevity', 'words']].notna().all(axis=None)       # shown, each under its own name
    assert open_run(HERE/'trl/text', reward='brevity').summary().reward.tolist() == [.5, .5]
    with pytest.raises(ValueError, match="no column of numbers 'verdict'"): open_run(HERE/'trl/text', reward='verdict')


@pytest.mark.slow
def test_trl_still_writes_this(tmp_path):
    pytest.importorskip('trl', minversion='1.16')
    subprocess.run([sys.executable, HERE/'make_trl.py', tmp_path], check=True, capture_output=True, timeout=300)
    for kind in ('text', 'chat'):
        for old in sorted((HERE/'trl'/kind/'completions').glob('*.parquet')):
            new = pd.read_parquet(tmp_path/kind/'completions'/old.name)
            assert list(new) == list(pd.read_parquet(old)) and len(new) == 8
        assert open_run(tmp_path/kind, reward='moves').steps == [1, 2]


# verl

def test_verl():
    run = open_run(HERE/'verl')
    assert (run.format, run.steps) == ('verl', [1, 2])
    assert run.notes == ['2.jsonl: 1 of 3 lines left out: line 3 is cut off']
    assert (run.turns(1).outcome.tolist() == [1, 0, 0, 1] and run.turns(1).group.tolist() == [0, 0, 1, 1]
            and run.turns(1).acc.tolist() == [1, 0, 0, 1])
    assert {name for name, source in run.fields.items() if source != MISSING} == {'step', 'prompt', 'text', 'reward',
                                                                                  'answer'}
    assert 'advantage' not in run.turns(1) and 'advantage' not in run.batch(1).episodes


def test_verl_fixture_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, HERE/'make_verl.py', tmp_path], check=True)
    for name in ('1.jsonl', '2.jsonl'): assert (tmp_path/name).read_bytes() == (HERE/'verl'/name).read_bytes()


def test_untrusted_lines(tmp_path):
    path = jsonl(tmp_path/'7.jsonl', {}, b'not json', b'['*100_000, b'[]', dict(input=3), dict(score='high'),
                 dict(score=10**400), dict(score=float('nan')), b'\xff\xfe', dict(step='x'),
                 dict(output='\ud800'), end=b'{"input": "p", "outp')
    run = open_run(path)
    assert run.notes == ['7.jsonl: 6 of 12 lines left out: line 2 is not JSON; line 3 is not JSON; line 4 lacks the '
                         'texts input and output']
    assert run.steps == [1, None] and run.turns(1).outcome.isna().tolist() == [False, True, True, True, False]
    assert 'step' in run.batch(None).episodes or run.fields['step'] == MISSING
    assert '<script' not in opened_html(run) and opened_html(run).encode()      # half a surrogate pair can be written


def test_a_long_line_is_left_out(tmp_path, monkeypatch):
    import agentlab.view.foreign as module
    monkeypatch.setattr(module._lines, '__defaults__', (1000,))
    run = open_run(jsonl(tmp_path/'1.jsonl', {}, dict(output='x'*5000), {}))
    assert len(run.turns(1)) == 2 and 'line 2 is longer' in run.notes[0]


def test_hostile_columns_do_not_shadow_the_table(tmp_path):
    names = ['take', 'with_', 'self', 'columns', '__class__', 'group', 'success', 'reward', 'episode', 't', 'text',
             'outcome', 'advantage', 'step_', 'a.b', '\x1b[2J']
    run = open_run(jsonl(tmp_path/'1.jsonl', {name: 5. for name in names}, {}))
    batch = run.batch(1)
    assert (batch.episodes.group.tolist() == [0, 0] and len(batch.episodes.take(torch.tensor([0]))) == 1
            and 'success' not in batch.episodes)
    assert (batch.episodes.success_in_dump.tolist()[0] == 5 and run.turns(1).outcome.tolist() == [1, 1]
            and run.turns(1).reward_in_dump[0] == 5)
    back = Batch.load(batch.save(tmp_path/'batch.parquet'))
    assert back.labels == batch.labels and set(back.episodes.columns) == set(batch.episodes.columns)
    many = open_run(jsonl(tmp_path/'2.jsonl', *({f'x{i}_{j}': 1 for j in range(50)} for i in range(50))))
    assert len(many.batch(1).episodes.columns) < 90


# nothing is invented

@pytest.mark.parametrize('path', ['trl/chat', 'verl'])
def test_a_batch_of_what_there_is(path):
    run = open_run(HERE/path)
    for step in run.steps:
        batch = run.batch(step)
        assert len(batch.tokens) == 0 and len(batch) == len(batch.turns) == len(run.episodes(step))
        for name in ('success', 'truncated', 'error', 'policy', 'last_value'): assert name not in batch.episodes
        for name in ('cost', 'invalid', 'milestone', 'state'): assert name not in batch.turns
        assert [batch.labels['action'][k] for k in batch.turns.action.tolist()] == run.turns(step).text.tolist()
        assert ([batch.labels['observation'][k] for k in batch.turns.observation.tolist()]
                == run.turns(step).observation.tolist())
        assert batch.episodes.step.tolist() == [step]*len(batch)
        with pytest.raises(AttributeError, match='success'): batch.episodes.success
        batch.frame()


def test_turns_of_a_conversation(tmp_path):
    talk = [dict(role='assistant', content='call'), dict(role='tool', content='5'),
            dict(role='assistant', content='five'), dict(role='tool', content='bye')]
    run = open_run(parquet(tmp_path/'a.parquet', [dict(prompt=[dict(role='user', content='q')], completion=talk),
                                                  dict(prompt=[dict(role='user', content='q')], completion=talk[:1])]))
    turns = run.turns(1)
    assert (turns.text.tolist() == ['call', 'five', 'call']
            and turns.observation.tolist() == ['user: q', 'tool: 5', 'user: q'] and turns.group.nunique() == 1)
    assert turns.reward.isna().tolist() == [True, True, False]      # who of two turns earned it is not known
    assert run.episodes(1)[0].final == 'tool: bye' and run.fields['turns'] == 'messages of the assistant'
    assert (split_turns([], [dict(role='assistant', content=[dict(type='text', text='see'), dict(type='image')])])
            == ([('', 'see\n[image]')], ''))


def test_fields_that_a_dump_lacks(tmp_path):
    frame = pd.DataFrame(dict(step=[None, None], prompt=['p', 'p'], completion=['a', None]))
    frame['step'] = frame.step.astype('Int64')
    frame.to_parquet(tmp_path/'a.parquet')
    run = open_run(tmp_path/'a.parquet')
    assert (run.steps == [None] and set(run.missing) == {*FIELDS} - {'prompt', 'text'}
            and 'step' not in run.batch(None).episodes)
    assert run.notes[-1].startswith('a.parquet: 1 of 2 rows left out') and opened_html(run).count('>missing<') >= 4
    assert run.table().loc['reward', 'source'] == MISSING


def test_repeated_rollouts_are_noted(tmp_path):
    parquet(tmp_path/'a.parquet', [{}, {}])
    parquet(tmp_path/'b.parquet', [dict(step=2), dict(step=2)])
    assert open_run(tmp_path).notes == ['steps [2] hold the same completions as the step before']


# agentlab's own

def ours(folder, labels=True):
    run = new_run(folder, dict(recipe=dict(name='grpo')))
    batch = Batch.from_episodes([Episode([Turn(0, context_ids=[0], ids=[1, 2], logps=[-.1]*2, entropies=[.2]*2,
                                               reward=1.)], outcome=1., success=True),
                                 Episode([Turn(0, context_ids=[0], ids=[2], logps=[-.1], entropies=[.2])])])
    if labels: batch.labels['token'] = {0: 'start', 1: '<b>', 2: 'go'}
    for step in (0, 3): run.save_episodes(step, batch)
    return batch


def test_agentlab_run(tmp_path):
    batch = ours(tmp_path/'with')
    run = open_run(tmp_path/'with')
    assert (run.format, run.steps) == ('agentlab', [0, 3]) and set(run.missing) == {'advantage', 'answer'}
    assert (run.batch(3).tokens.id.tolist() == batch.tokens.id.tolist()
            and [t.text for e in run.episodes(3) for t in e.turns] == ['<b> go', 'go'])
    assert (open_run(tmp_path/'with/episodes').steps == [0, 3]
            and open_run(tmp_path/'with/episodes/step_000003.parquet').steps == [3])
    assert '&lt;b&gt;' in opened_html(run) and '<b> go' not in opened_html(run)
    ours(tmp_path/'without', labels=False)
    assert {'text', 'prompt'} <= set(open_run(tmp_path/'without').missing)
    (tmp_path/'with/run.json').write_text('{"schema')
    with pytest.raises(ValueError, match='run.json is damaged'): open_run(tmp_path/'with')
    (tmp_path/'with/run.json').write_text('{"schema_version": 99}')
    with pytest.raises(ValueError, match='schema_version 99'): open_run(tmp_path/'with')


def test_a_run_without_episodes(tmp_path):
    new_run(tmp_path/'r', dict(recipe={}))
    run = open_run(tmp_path/'r')
    assert (run.steps == [] and len(run.missing) == len(FIELDS) and 'agentlab report' in run.notes[0]
            and 'Missing: step' in opened_html(run))


# refused

def test_recognised_by_content_not_by_name(tmp_path):
    (tmp_path/'data.bin').write_bytes((HERE/'trl/chat/completions/completions_00001.parquet').read_bytes())
    (tmp_path/'rollouts.txt').write_bytes((HERE/'verl/1.jsonl').read_bytes())
    (tmp_path/'fake.parquet').write_bytes((HERE/'verl/1.jsonl').read_bytes())
    assert ([sniff(tmp_path/name) for name in ('data.bin', 'rollouts.txt')] == ['trl', 'verl']
            and open_run(tmp_path/'data.bin').format == 'trl')
    assert open_run(tmp_path/'fake.parquet').format == 'verl'


class Bomb:
    def __reduce__(self): return (pytest.fail, ('it was unpickled',))


def test_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere does not exist. Give the folder'): open_run(tmp_path/'nowhere')
    with pytest.raises(ValueError, match='holds nothing that can be opened'): open_run(tmp_path)
    (tmp_path/'b.pkl').write_bytes(pickle.dumps(Bomb()))
    (tmp_path/'empty.jsonl').touch()
    pd.DataFrame(dict(prompt=['a'], completion=['b'])).to_parquet(tmp_path/'sft.parquet')   # a dataset, no dump
    for name, what in (('b.pkl', 'never opened'), ('empty.jsonl', 'it is empty'), ('sft.parquet', 'Known are')):
        with pytest.raises(ValueError, match=what): open_run(tmp_path/name)
    (tmp_path/'cut.jsonl').write_bytes(b'{"input": "p", "outp')
    with pytest.raises(ValueError, match='no whole row in cut.jsonl'): open_run(tmp_path/'cut.jsonl')


@pytest.mark.parametrize('damage', [lambda x: x[:-50], lambda x: x[:200], lambda x: b'',
                                    lambda x: x[:40] + b'\xff'*400 + x[440:], lambda x: x[:4] + b'\0'*(len(x) - 4)])
def test_damaged_parquet(tmp_path, damage):
    whole = (HERE/'trl/chat/completions/completions_00001.parquet').read_bytes()
    (tmp_path/'x.parquet').write_bytes(damage(whole))
    with pytest.raises(ValueError, match='x.parquet is damaged.*Open the file|x.parquet is damaged.*open the file'):
        open_run(tmp_path/'x.parquet')


def test_mixed_folder_and_limits(tmp_path):
    jsonl(tmp_path/'1.jsonl', {})
    parquet(tmp_path/'a.parquet', [{}])
    with pytest.raises(ValueError, match='several formats: verl .1.jsonl., trl .a.parquet.. Open one file'):
        open_run(tmp_path)
    with pytest.raises(ValueError, match='max_bytes=300'): open_run(jsonl(tmp_path/'1.jsonl', {}, {}), max_bytes=300)
    with pytest.raises(ValueError, match="step=4 is not in 1.jsonl; it has .1."): open_run(tmp_path/'1.jsonl').batch(4)

def peak(read)->int:
    "Bytes that arrow held at most while `read` was refused."
    import pyarrow as pa
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ValueError, match='bomb.parquet.*(max_bytes|unfolds to)'): read()
    finally: pa.set_memory_pool(before)
    return pool.max_memory()

def folded_text(messages):
    "One text of 20 million letters, in every row."
    import pyarrow as pa
    rows = 400
    said = pa.DictionaryArray.from_arrays(pa.array([0]*rows, pa.int32()), pa.array(['x'*20_000_000]))
    if messages:
        said = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), pa.StructArray.from_arrays(
            [pa.array(['assistant']*rows), said], ['role', 'content']))
    return pa.table(dict(step=pa.array([1]*rows), prompt=pa.array(['p']*rows), completion=said))

def folded_numbers(name, **others):
    "Forty million zeros in one row."
    import numpy as np, pyarrow as pa
    zeros = np.zeros(40_000_000, np.int64)
    return pa.table({name: pa.LargeListArray.from_arrays(pa.array([0, len(zeros)], pa.int64()), pa.array(zeros))}
                    | {other: pa.array([value]) for other, value in others.items()})

BOMBS = dict(text=lambda: folded_text(False), messages=lambda: folded_text(True),
             numbers=lambda: folded_numbers('extra', step=1, prompt='p', completion='c'),
             ours=lambda: folded_numbers('turns.t', **{'episodes.group': 0}))

@pytest.mark.parametrize('kind', BOMBS)
def test_a_file_that_unfolds_to_far_more_than_it_is(tmp_path, kind):
    import pyarrow.parquet as pq
    pq.write_table(BOMBS[kind](), path := tmp_path/'bomb.parquet', compression='zstd', store_schema=False)
    assert path.stat().st_size < 100_000
    assert peak(lambda: open_run(path, max_bytes=2**26)) < 2**26


# the page

class Reader(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.attrs = set(), [], []
        self.feed(page)
    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attrs += attrs
    def handle_data(self, data): self.text.append(data)


NASTY = ['<script>alert(1)</script>', '</details></main><img src=x onerror=alert(1)>', '\x1b[31mred\x1b[0m', '\0\a\x08',
         'abc\u202edcba', '\u200b\ufeff', 'x'*100_000, '"\'&amp;', '\ud800', '{{7*7}}']


def test_nothing_runs_and_everything_can_be_seen(tmp_path):
    rows = [dict(input=x, output=x, gts=x, **{x[:50]: 1.}) for x in NASTY]
    path = jsonl(tmp_path/'1.jsonl', *rows)
    page = opened_html(open_run(path), groups=20)
    read = Reader(page)
    assert not read.tags & {'script', 'img', 'iframe', 'object', 'link', 'base', 'form',
                            'a'} and not any(name.startswith('on') or name in ('src', 'href') for name, _ in read.attrs)
    assert not any(c in page for c in '\x1b\0\a\x08\u202e\u200b\ufeff\ud800') and len(page) < 300_000
    text = ''.join(read.text)
    for wanted in ('alert(1)', '␛[31mred', '␀␇␈', r'abc\u202edcba', r'\u200b\ufeff', '98,000 characters cut',
                   r'\ud800'):
        assert wanted in text
    assert page.count('<details') == page.count('</details>') == len(NASTY) and "default-src 'none'" in page


def test_page_says_what_it_left_out(tmp_path):
    path = jsonl(tmp_path/'1.jsonl', *(dict(input=str(i % 9), step=s) for s in range(9) for i in range(27)))
    text = ''.join(Reader(opened_html(open_run(path), steps=2, groups=4, rows=2)).text)
    assert ('9 steps, 2 of them drawn' in text and 'not drawn: 5 of 9 groups' in text
            and 'not drawn: 1 of 3 completions' in text and 'Step 8' in text and 'Step 4' not in text)


def test_page_of_missing_fields():
    text = ''.join(Reader(opened_html(open_run(HERE/'verl'))).text)
    assert (text.count('advantage missing') == text.count('its turns are missing') == 6 and 'entropies– missing' in text
            and 'right: 5' in text)
    assert 'reward missing' in ''.join(Reader(opened_html(open_run(HERE/'trl/text'))).text)
    assert 'nothing was written' in opened_html(open_run(HERE/'trl/chat'))


def test_a_large_dump_opens_soon(tmp_path):
    import time
    path = jsonl(tmp_path/'1.jsonl',
                 *(dict(input=f'task {i//8}', output='word '*400, step=i//500) for i in range(5000)))
    start = time.perf_counter()
    page = opened_html(open_run(path))
    assert time.perf_counter() - start < 10 and len(page) < 2_000_000


def test_importing_it_loads_no_torch():
    code = 'import sys, agentlab.view.foreign; print([m for m in ("torch", "pandas", "pyarrow") if m in sys.modules])'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          check=True).stdout.strip() == '[]'


def test_a_damaged_file_of_our_own_is_named(tmp_path):
    ours(tmp_path/'r')
    path = tmp_path/'r/episodes/step_000003.parquet'
    path.write_bytes(path.read_bytes()[:-100])
    run = open_run(tmp_path/'r')
    assert run.batch(0) is not None and 3 not in run.steps and list(run.summary().step) == run.steps
    assert '1 damaged files left out: step_000003.parquet' in run.notes
    with pytest.raises(ValueError, match='step_000003.parquet'): open_run(path)


def test_what_seats_read_is_shown_with_each(tmp_path):
    run = new_run(tmp_path/'r', dict(recipe={}))
    says = lambda ids: Episode([Turn(0, context_ids=ids, ids=[2], logps=[-.1], entropies=[.2])])
    batch = Batch.from_episodes([says([0]), says([1])])
    batch.labels['token'] = {0: 'Jack', 1: 'Queen', 2: 'bet'}
    run.save_episodes(0, batch)
    text = ''.join(Reader(opened_html(open_run(tmp_path/'r'))).text)
    assert (text.count('Jack') == text.count('Queen') == 1
            and text.index('completion 1') < text.index('Jack') < text.index('completion 2') < text.index('Queen'))
