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
    assert run.turns(1)[['moves', 'brevity', 'words']].notna().all(axis=None)  # shown, each under its own name
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
    assert (run.turns(1).outcome.tolist() == [1, 1, 0, 0, 1] and run.turns(1).group.tolist() == [0, 0, 0, 1, 1]
        and run.turns(1).acc.tolist() == [1, 1, 0, 0, 1])
    assert run.turns(1).text.tolist()[:3] == ['<tool>add(2, 3)</tool>', 'The sum is 5.', 'It is 6.']
    assert run.fields['turns'].startswith('a guess') and run.fields['group'] == 'equal prompts, a guess'
    assert {name for name, source in run.fields.items() if source != MISSING} == {
        'step', 'group', 'prompt', 'text', 'turns', 'reward', 'turn_rewards', 'answer'}
    assert 'advantage' not in run.turns(1) and 'advantage' not in run.batch(1).episodes

def test_verl_fixture_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, HERE/'make_verl.py', tmp_path], check=True)
    for name in ('1.jsonl', '2.jsonl'): assert (tmp_path/name).read_bytes() == (HERE/'verl'/name).read_bytes()

def test_untrusted_lines(tmp_path):
    path = jsonl(tmp_path/'7.jsonl', {}, b'not json', b'['*100_000, b'[]', dict(input=3), dict(score='high'),
        dict(score=10**400), dict(score=float('nan')), b'\xff\xfe', dict(step='x'),
        dict(output='\ud800'), end=b'{"input": "p", "outp')
    run = open_run(path)
    assert run.notes == ['7.jsonl: 6 of 12 lines left out: line 2 is not JSON; line 3 is not JSON; line 4 is no '
        'object']
    assert run.steps == [1, None] and run.turns(1).outcome.isna().tolist() == [False, True, True, True, False]
    assert 'step' in run.batch(None).episodes or run.fields['step'] == MISSING
    assert '<script' not in opened_html(run) and opened_html(run).encode()  # half a surrogate pair can be written

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
        assert len(batch.tokens) == 0 and len(batch) == len(run.episodes(step))
        assert len(batch.turns) == len(run.turns(step))
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
    assert turns.reward.isna().tolist() == [True, True, False]  # who of two turns earned it is not known
    assert run.episodes(1)[0].final == 'tool: bye' and run.fields['turns'] == 'messages of the assistant'
    assert (split_turns([], [dict(role='assistant', content=[dict(type='text', text='see'), dict(type='image')])])
        == ([('', 'see\n[image]')], ''))

def test_fields_that_a_dump_lacks(tmp_path):
    frame = pd.DataFrame(dict(step=[None, None], prompt=['p', 'p'], completion=['a', None]))
    frame['step'] = frame.step.astype('Int64')
    frame.to_parquet(tmp_path/'a.parquet')
    run = open_run(tmp_path/'a.parquet')
    assert (run.steps == [None] and set(run.missing) == {*FIELDS} - {'prompt', 'text', 'group'}
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
    pd.DataFrame(dict(prompt=['a'], completion=['b'])).to_parquet(tmp_path/'sft.parquet')  # a dataset, no dump
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
    assert text.count('advantage missing') == 6 and 'entropies– missing' in text and 'right: 5' in text
    assert text.count('as guessed') == 7
    whole = ''.join(Reader(opened_html(open_run(HERE/'verl/2.jsonl'))).text)
    assert whole.count('its turns are missing') == 2
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

# formats of others

OTHERS = dict(verifiers='verifiers/traces.jsonl', results='verifiers_results/results.jsonl',
    swift='swift/completions.jsonl', rllm='rllm/episodes/episode_000001_add-0.json',
    messages='messages/runs.jsonl', verl='verl/1.jsonl')

def records(kind):
    text = (HERE/OTHERS[kind]).read_text(encoding='utf-8')
    return [json.loads(text)] if kind == 'rllm' else [json.loads(line) for line in text.splitlines()]

def test_others_fixtures_are_what_their_script_writes(tmp_path):
    subprocess.run([sys.executable, HERE/'make_others.py', tmp_path], check=True)
    made = [p for p in sorted(tmp_path.rglob('*')) if p.is_file()]
    assert len(made) == 7
    for p in made: assert p.read_bytes() == (HERE/p.relative_to(tmp_path)).read_bytes()

@pytest.mark.parametrize('path, format, groups, turns, outcomes, missing', [
    ('verifiers', 'verifiers', 2, 12, [1, 0, 1, 0], 'step turn_rewards advantage answer success entropies'),
    ('verifiers_results', 'verifiers-results', 1, 3, [1, 0], 'step advantage success ids logps entropies'),
    ('swift', 'swift', 1, 4, [1, 0], 'turn_rewards answer success truncated ids logps entropies'),
    ('rllm', 'rllm', 1, 4, [1, 0], 'step turn_rewards advantage answer ids logps entropies'),
    ('messages', 'messages', 1, 3, [1, 0], 'advantage answer success truncated ids logps entropies')])
def test_what_others_wrote(path, format, groups, turns, outcomes, missing):
    run = open_run(HERE/path)
    first = run.steps[0]
    assert run.format == format and run.notes == [] and run.missing == missing.split()
    batch, table = run.batch(first), run.turns(first)
    assert batch.episodes.outcome.tolist() == outcomes and len(batch.episodes.group.unique()) == groups
    assert len(table) == len(batch.turns) == turns and table.text.str.len().min() > 0
    assert 'success' in batch.episodes or 'success' in run.missing
    assert ('truncated' in batch.episodes) == ('truncated' not in run.missing)
    assert '<script' not in opened_html(run)

def test_traces_bring_tokens():
    batch = open_run(HERE/'verifiers').batch(None)
    assert (len(batch), len(batch.rows), len(batch.tokens), len(batch.actions)) == (4, 8, 132, 28)
    # 4 + 4 + 5 + 4 + 4 tokens on the way to the answer; its header is context, its end was sampled
    first = batch.tokens.row == 0
    assert batch.tokens.id[first].tolist() == [1, 10, 11, 2, 1, 12, 13, 2, 1, 14, 20, 21, 2, 1, 15, 16, 2, 1, 14, 30, 2]
    assert batch.action('id').tolist()[:7] == [20, 21, 2, 30, 2, 40, 2]
    assert batch.action('sampler_logp').tolist()[:7] == pytest.approx([-.1, -.2, -.3, -.4, -.5, -.6, -.7])
    assert 'entropy' not in batch.tokens and len(grpo(batch)) == 28

@pytest.mark.parametrize('change', [lambda node: node.update(mask=[True, False, True, False]),
    lambda node: node.update(logprobs=[-.1]), lambda node: node.update(token_ids=[]),
    lambda node: node.pop('mask'), lambda node: node.update(token_ids=[1, -5, 3, 2]),
    lambda node: node.update(logprobs=['a', 'b'])])
def test_tokens_that_do_not_fit_are_missing(tmp_path, change):
    rows = records('verifiers')
    change(rows[1]['traces'][0]['nodes'][4])
    (tmp_path/'traces.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    run = open_run(tmp_path)
    assert {'ids', 'logps'} <= set(run.missing) and len(run.batch(None).tokens) == 0 and len(run.turns(None)) == 12
    assert 'none are shown' in run.notes[0]

def test_prime_rl_folders(tmp_path):
    text = (HERE/'verifiers/traces.jsonl').read_text()
    for place in ('traces/step_3/train', 'traces/step_4/train', 'traces/step_4/eval'):
        (tmp_path/place).mkdir(parents=True)
        (tmp_path/place/'traces.jsonl').write_text(text)
    run = open_run(tmp_path)
    assert (run.steps, run.fields['step']) == ([3, 4], 'name of the folder') and len(run.episodes(4)) == 4
    assert run.notes[0] == '1 files of eval left out; open one of them: traces/step_4/eval/traces.jsonl'
    assert open_run(tmp_path/'traces/step_4/eval').steps == [4]
    for subset in ('all', 'effective'):
        (tmp_path/'old/rollouts/step_0/train'/subset).mkdir(parents=True)
        (tmp_path/'old/rollouts/step_0/train'/subset/'traces.jsonl').write_text(text)
    assert len(open_run(tmp_path/'old').episodes(0)) == 4  # the second holds copies

def test_seats_share_a_game(tmp_path):
    row = records('verifiers')[0]
    row['traces'].append(json.loads(json.dumps(row['traces'][0])))
    row['traces'][1]['agent']['name'] = 'critic'
    (tmp_path/'a.jsonl').write_text(json.dumps(row))
    batch = open_run(tmp_path/'a.jsonl').batch(None)
    assert batch.episodes.game.tolist() == [0, 0] and len(batch.episodes.seat.unique()) == 2

def inspect_log(path, member, compression):
    "A log of Inspect, packed anew."
    import zipfile
    with zipfile.ZipFile(path, 'w', compression) as archive:
        archive.writestr('header.json', json.dumps(dict(version=2, status='success', eval={})))
        for i, sample in enumerate(member): archive.writestr(f'samples/{i}_epoch_1.json', json.dumps(sample))
    return path

def inspect_sample(score='C', **more):
    return dict(id='s', epoch=1, target='1', scores={'includes': dict(value=score)}, messages=[
        dict(role='user', content='attachment://' + 'a'*32, source='input'),
        dict(role='assistant', content='one', source='generate')], attachments={'a'*32: 'What is 1+0?'}) | more

def test_inspect_log(tmp_path):
    needs = pytest.importorskip('zipfile_zstd', reason='reads what Inspect packs: pip install zipfile-zstd')
    run = open_run(HERE/'inspect')
    assert run.format == 'inspect' and needs and run.notes == []
    assert run.batch(None).episodes.outcome.tolist() == [1, 1, 0, 0]
    assert run.turns(None).text.tolist()[1] == 'The answer is 1' and run.fields['answer'] == 'target'
    assert run.turns(None).group.tolist() == [0, 0, 1, 1, 0, 1, 1]
    import zipfile
    with zipfile.ZipFile(HERE/'inspect/addition.eval') as archive:  # the same log as JSON
        log = json.loads(archive.read('header.json')) | dict(samples=[
            json.loads(archive.read(name)) for name in archive.namelist() if name.startswith('samples/')])
    for indent in (None, 2):
        (tmp_path/f'{indent}.json').write_text(json.dumps(log, indent=indent))
        again = open_run(tmp_path/f'{indent}.json')
        assert again.turns(None).equals(run.turns(None)) and again.fields == run.fields

def test_inspect_without_zstandard(tmp_path):
    "Python's own zipfile reads what is packed otherwise, and says what is missing where it cannot."
    import zipfile
    path = inspect_log(tmp_path/'a.eval', [inspect_sample(), inspect_sample('P'), inspect_sample(dict(a=1, b='C'))],
        zipfile.ZIP_DEFLATED)
    run = open_run(path)
    assert run.turns(None).observation.tolist() == ['user: What is 1+0?']*3
    outcome = run.turns(None).outcome
    assert outcome.tolist()[:2] == [1, .5] and outcome.isna().tolist() == [False, False, True]
    code = ('import sys; sys.modules["zipfile_zstd"] = None\nfrom agentlab.view.foreign import open_run\n'
        f'open_run({str(HERE/"inspect")!r})')
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stderr
    assert 'pip install "agentlab-rl[inspect]"' in said and '--log-format json' in said or sys.version_info >= (3, 14)

def test_hostile_archives(tmp_path):
    import zipfile
    zeros = inspect_sample(more='0'*60_000_000)
    path = inspect_log(tmp_path/'bomb.eval', [inspect_sample(), zeros], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    run = open_run(path)
    assert 'sample 2 is longer than' in run.notes[0] and len(run.turns(None)) == 1
    with pytest.raises(ValueError, match='max_bytes'): open_run(path, max_bytes=10_000)
    many = inspect_sample(messages=[dict(role='assistant', content='attachment://' + 'a'*32 + ' ')]*5000,
        attachments={'a'*32: 'x'*100_000})
    with pytest.raises(ValueError, match='unfolds to too much text'):
        open_run(inspect_log(tmp_path/'many.eval', [many], zipfile.ZIP_DEFLATED))
    whole = path.read_bytes()
    for i, damage in enumerate((whole[:-30], whole[:200], whole[:60] + b'\xff'*60 + whole[120:])):
        (tmp_path/f'{i}.eval').write_bytes(damage)
        with pytest.raises(ValueError, match='damaged|left out'):
            notes = open_run(tmp_path/f'{i}.eval').notes
            raise ValueError(notes[0])
    row = records('verifiers')[0]
    node = dict(parent=None, sampled=False, message=dict(role='user', content='x'*10_000))
    deep = [node, *(dict(parent=0, sampled=True, message=dict(role='assistant', content='y')) for _ in range(9000))]
    row['traces'][0]['nodes'] = deep  # every branch reads the same long text
    (tmp_path/'wide.jsonl').write_text(json.dumps(row))
    with pytest.raises(ValueError, match='unfolds to too much text'): open_run(tmp_path/'wide.jsonl')
    row['traces'][0]['nodes'] = [dict(node, parent=1), dict(node, parent=0, sampled=True)]
    (tmp_path/'loop.jsonl').write_text(json.dumps(row))
    with pytest.raises(ValueError, match='no tree'): open_run(tmp_path/'loop.jsonl')

HOSTILE = [None, 5, -1, 'x', '\ud800', '', [], {}, [[]], [None], dict(a=1), True, float('nan'), 10**400, [[['deep']]]]

def places(value, at=()):
    "Every place in a value of JSON."
    yield at
    for key in (value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()):
        yield from places(value[key], (*at, key))

def replaced(value, at, new):
    if not at: return new
    found = dict(value) if isinstance(value, dict) else list(value)
    found[at[0]] = replaced(value[at[0]], at[1:], new)
    return found

@pytest.mark.parametrize('kind', [*OTHERS, 'inspect'])
def test_a_record_of_wrong_types_costs_nothing_else(tmp_path, kind):
    "Every value of a record is put in place of something hostile; the record beside it is read all the same."
    import random
    import zipfile
    good = inspect_sample() if kind == 'inspect' else records(kind)[-1]
    where = [at for at in places(good) if len(at) <= 6]
    random.Random(0).shuffle(where)
    bad = [replaced(good, at, new) for at in where[:60] for new in HOSTILE]
    if kind == 'rllm':
        for i, row in enumerate([good, *bad]): (tmp_path/f'{i:05}.json').write_text(json.dumps(row, indent=1))
        path = tmp_path
    elif kind == 'inspect': path = inspect_log(tmp_path/'a.eval', [good, *bad], zipfile.ZIP_STORED)
    else:
        path = tmp_path/'a.jsonl'
        path.write_text('\n'.join(map(json.dumps, [good, *bad])))
    run = open_run(path)
    assert len(run.steps) and opened_html(run, groups=50, limit=100).encode()
    for step in run.steps: assert len(run.batch(step)) == len(run.episodes(step))
    assert sum(len(run.episodes(step)) for step in run.steps) > len(bad)/20

def test_several_runs_on_one_page(tmp_path):
    runs = [open_run(HERE/name) for name in ('verl', 'trl/chat', 'verifiers')]
    page = opened_html(runs)
    text = ''.join(Reader(page).text)
    for wanted in ('3 runs', '1. verl', '2. chat', '3. verifiers', 'Mean reward', 'What they hold'):
        assert wanted in text
    assert page.count('<details') == page.count('</details>') and '<script' not in page
    assert opened_html([runs[0]]) == opened_html(runs[0])

def test_a_format_of_your_own(tmp_path):
    from agentlab.view.foreign import Format, Sample
    from agentlab.view.foreign_formats import FORMATS
    mine = Format('mine', 'lines with q and a', lambda look: any('q' in row for row in look.rows),
        lambda row, path: [Sample(row['q'], row['a'], reward=1.)], dict(prompt='q', text='a'))
    (tmp_path/'a.jsonl').write_text('{"q": "2+3", "a": "5"}\n{"q": "2+3"}\n')
    run = open_run(tmp_path/'a.jsonl', formats=[*FORMATS, mine])
    assert run.format == 'mine' and run.notes == ['a.jsonl: 1 of 2 lines left out: line 2 is no record of mine']
    with pytest.raises(ValueError, match='nothing that can be opened'): open_run(tmp_path/'a.jsonl')
