"The bench compares equal work, leaves nothing behind, and its command writes what the notebooks read."
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from later import needs
needs('trl', '1.16')
from agentlab.bench import kept
from bench import training_step as bench

ROOT = Path(__file__).resolve().parent.parent

@pytest.fixture(scope='module')
def sides():
    with bench.open_sides(turns=2, episodes=4) as sides: yield sides

def test_work_is_equal(sides):
    work = bench.same_work(sides)
    assert work['sampled'] == work['trained'] == 2*4*bench.SAID
    assert work['advantage_gap'] < 1e-5 and work['gradient_gap'] < 1e-5
    assert any(advantage != 0 for *_, advantage in sides['agentlab'].work()) # else any gradient would agree

def test_every_step_repeats_the_first(sides):
    "Weights are put back: the second step plays the same tokens and earns the same."
    for name, side in sides.items():
        before = side.work()
        lap = side.step()
        assert side.work() == before, name
        assert lap['sampling'] > 0 and lap['update'] > 0, name

def test_no_side_is_left_out(): assert bench.SIDES == ('agentlab', 'rollout_func', 'environment_factory')

@pytest.mark.parametrize('name', ['rollout_func', 'environment_factory'])
def test_unequal_work_is_found(sides, name):
    side = sides[name]
    kept = side.scored
    try:
        for key, said in dict(completion_ids='other ids', tool_mask='other tokens', advantages='differ').items():
            side.scored = {k: v.clone() for k, v in kept.items()}
            if key == 'tool_mask': side.scored[key][0, 0] = 0
            else: side.scored[key][0] += 1
            with pytest.raises(AssertionError, match=said): bench.same_work(sides)
    finally: side.scored = kept

def test_forced_draws_leave_torch_as_it_was():
    draw = torch.multinomial
    with bench.forced(iter([torch.tensor([[7]])])):
        assert torch.multinomial(torch.ones(1, 9), num_samples=1).item() == 7
    with bench.forced(None): assert torch.multinomial is draw
    assert torch.multinomial is draw

def test_a_failing_side_says_so_and_ends():
    with bench.quiet():
        side = bench.TrlSide('rollout_func', 2, 4, ids=[])  # no ids to put in the place of the drawn ones
        with pytest.raises(StopIteration): side.step()
        side.close()
    assert not side.thread.is_alive()

@pytest.fixture(scope='module')
def found():
    before = threading.enumerate()
    found = bench.measure(turns=2, episodes=4, repeats=1)
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith('TRL')]
    return found

def test_measure(found):
    for phases in found['shares'].values():
        assert sum(sum(parts.values()) for parts in phases.values()) == pytest.approx(1)
    rows = bench.summary(dict(turns={'2': found}))
    assert [row['side'] for row in rows] == list(bench.SIDES) and rows[0]['ratio'] == 1
    assert json.loads(json.dumps(found, default=float))['work'] == found['work']

def test_summary_by_hand():
    lap = lambda sampling, update: dict(sampling=sampling, update=update)
    found = dict(seconds=dict(agentlab=[lap(1, 1), lap(1, 3)], rollout_func=[lap(5, 1), lap(7, 1)]),
        shares=dict(agentlab=dict(sampling=dict(matrix=.1), update=dict(matrix=.4))))
    ours, theirs = bench.summary(dict(turns={'8': found}))
    assert (ours['step'], theirs['step']) == (3, 7)
    assert (theirs['ratio'], theirs['least'], theirs['largest']) == (2.5, 2, 3) # 6/2 and 8/4, round by round
    assert bench.limits(dict(turns={'8': found}))[8] == pytest.approx(dict(matrix=.5, update=2/3, no_sampling=3.5,
        only_matrix=7/1.5))

def test_command(tmp_path, monkeypatch, found):
    "The command asks for what is typed and keeps it; `found` is measured once, memory in the test below."
    from bench.__main__ import main
    asked = []
    monkeypatch.setattr(bench, 'measure', lambda *how: asked.append(how) or found)
    monkeypatch.setattr(bench, 'memory', lambda *how: asked.append(how) or dict.fromkeys(bench.SIDES, 1.))
    main.__wrapped__(turns='2', episodes=4, repeats=1, only='training_step', out=str(tmp_path))
    record = kept(tmp_path, 'training_step')
    assert {'date', 'versions', 'command', 'machine', 'turns'} <= set(record) and asked == [(2, 4, 1), (2, 4)]
    assert record['command'] == 'python tools/bench --turns 2 --episodes 4 --repeats 1'

@pytest.mark.parametrize('line, said', [
    ([ROOT/'tools'/'bench', '--help'], '--turns'),
    # not in this process, whose server of forks has other modules; slow: imports TRL twice to measure a benchmark
    pytest.param(['-c', 'import json\nfrom bench.training_step import memory\n'
    'print(json.dumps(memory(2, 4, steps=1)))'], None, marks=pytest.mark.slow)],
    ids=['help', 'memory'])
def test_in_a_process(tmp_path, line, said):
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT/'tools')]), OMP_NUM_THREADS='1')
    done = subprocess.run([sys.executable, '-W', 'ignore', *line], env=env, cwd=tmp_path, capture_output=True,
        text=True)
    assert done.returncode == 0, done.stderr
    if said: assert said in done.stdout
    else:
        peaks = json.loads(done.stdout.splitlines()[-1])
        assert set(peaks) == set(bench.SIDES) and min(peaks.values()) > 0

def test_a_length_joins_a_record(tmp_path, monkeypatch):
    """The rows that were there stay as they are; other versions and another number of episodes are refused before
    anything is measured."""
    from bench.__main__ import training_step
    measured, lap = [], dict(sampling=1., update=1.)
    def measure(turns, episodes, repeats):
        measured.append(turns)
        return dict(seconds={side: [lap]*repeats for side in bench.SIDES})
    monkeypatch.setattr(bench, 'measure', measure)
    monkeypatch.setattr(bench, 'memory', lambda turns, episodes: dict.fromkeys(bench.SIDES, 1.))
    facts = lambda command, **other: dict(command=command, date='today', versions=dict(torch='2')) | other
    read = lambda: kept(tmp_path, 'training_step')
    training_step([16, 4], 64, 5, tmp_path, facts('first'))
    first = read()
    training_step([8], 64, 3, tmp_path, facts('second', date='tomorrow'), add=True)
    both = read()
    assert list(both['turns']) == ['4', '8',
        '16'] and {turns: both['turns'][turns] for turns in ('4', '16')} == first['turns']
    assert both | dict(turns=0) == first | dict(turns=0) and both['command'] == 'first'
    assert (both['turns']['8']['command'], both['turns']['8']['date'],
        len(both['turns']['8']['seconds']['agentlab'])) == ('second', 'tomorrow', 3)
    for episodes, versions in ((32, dict(torch='2')), (64, dict(torch='3'))):
        with pytest.raises(ValueError, match='measure all lengths anew'):
            training_step([2], episodes, 1, tmp_path, facts('third', versions=versions), add=True)
    assert read() == both and measured == [16, 4, 8]

def test_recorded_results_hold_what_is_claimed():
    "The record in the repository is complete; its claims are asserted in the notebook."
    record = kept(ROOT/'assets'/'bench', 'training_step')
    assert list(record['turns']) == ['4', '8', '16', '32', '64'] and record['episodes'] == 64
    for turns, found in record['turns'].items():
        assert found['work']['sampled'] == found['work']['trained'] == int(turns)*64*bench.SAID
        # a row that was measured by itself says when, how and beside what
        apart = 'command' in found and found['command'] != record['command']
        assert (all(len(laps) >= (3 if apart else 5) for laps in found['seconds'].values()) and len(found['load']) == 3
            and (not apart or found['date']))
        assert set(found['seconds']) == set(found['memory']) == set(bench.SIDES)

# A step of a pretrained model: the same three sides, with an adapter and a guide.

def test_real_step_is_the_same_work():
    "A tiny model goes the way of the real one: equal ids, advantages, gradients, and numbers of episodes and tokens."
    from bench import real_step as page
    with bench.open_sides(turns=2, episodes=12, how=page.setting('tiny')) as sides:
        work = bench.same_work(sides)
        assert work['sampled'] == work['trained'] == 2*12*8
        for name, side in sides.items():
            tokens = side.tokens()
            assert (len(side.work()), tokens['sampled'], tokens['held']) == (12, work['sampled'], work['tokens']), name
            assert all(seconds > 0 for parts in side.laps[0].values() for seconds in parts.values()), name
        assert any(advantage != 0 for *_, advantage in sides['agentlab'].work())
        assert sides['agentlab'].tokens()['computed'] < work['tokens'] <= sides['rollout_func'].tokens()['computed']
        before = {name: side.work() for name, side in sides.items()}
        for side in sides.values(): side.step()
        assert before == {name: side.work() for name, side in sides.items()}  # the adapter is put back
        micro = sides['rollout_func'].trainer.args
        assert (micro.per_device_train_batch_size, micro.gradient_accumulation_steps) == (4, 3)

@pytest.mark.lm
def test_real_step_reads_what_smollm2_would_say():
    "With the real tokenizer a random model says anything: every side has to read the same in it."
    from dataclasses import replace
    from transformers import AutoTokenizer
    from agentlab.policy.reader import find_weights
    from bench import real_step as page
    tokenizer = page.chatml(AutoTokenizer.from_pretrained(find_weights('smollm2')[0]))
    how = replace(page.setting('tiny'), open=lambda turns: (page.random_llama(tokenizer), tokenizer), micro=6)
    with bench.open_sides(turns=2, episodes=6, how=how) as sides: work = bench.same_work(sides)
    assert work['sampled'] == 2*6*8

@pytest.mark.parametrize('text', ['a\nb\n', '\n\n', ' x ', '{"a": [1]}', 'a "b" \\n'])
def test_any_text_is_a_call(text):
    "What TRL's parser takes out of an answer is all that was said, as far as its letters go."
    from transformers.utils.chat_parsing import parse_response
    from bench import real_step as page
    for end in ('', '<|im_end|>'):
        said = parse_response(text + end, page.CHATML_PARSER,
            prefix='<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n')
        [call] = said['tool_calls']
        assert call['function']['name'] == 'say' and call['function']['arguments']['text'].split() == text.split()

def test_special_tokens_that_would_be_drawn_are_refused():
    from bench import real_step as page
    model, tokenizer = page.tiny(2)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad(): model.get_input_embeddings().weight.normal_(generator=draw)  # states without a direction
    with pytest.raises(ValueError, match='would still be drawn'): page.mute(model, tokenizer)

@pytest.mark.slow
def test_real_step_command(tmp_path):
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')
    words = '--only', 'real_step', '--model', 'tiny', '--rounds', '2'
    command = [sys.executable, '-W', 'ignore', ROOT/'tools'/'bench', *words]
    said = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    record = json.loads((tmp_path/'assets'/'bench'/'real_step.json').read_text())
    found = record['turns']['5']
    assert record['command'].endswith('--only real_step --model tiny --rounds 2') and record['episodes'] == 48
    for kind in ('seconds', 'wall'):
        assert {name: len(laps) for name, laps in found[kind].items()} == dict.fromkeys(bench.SIDES, 2)
    assert set(found['memory']) == set(found['tokens']) == set(bench.SIDES)
    assert set(record['ratio']) == set(bench.SIDES[1:])
    assert {tokens['sampled'] for tokens in found['tokens'].values()} == {5*48*8}

# What credit costs, and verl's estimators beside ours.

def test_references_give_our_numbers():
    from agentlab import credit
    from bench import credit_speed as speed
    for seed in range(3):
        batch = speed.big_batch(16, 5, 3, seed)
        rows = speed.turn_rows(batch, torch.float64)
        flat = lambda padded: padded[rows['mask'].bool()]
        assert torch.allclose(flat(speed.dictionary_gigpo(rows)), credit.gigpo(batch), atol=1e-6)
        assert torch.allclose(flat(speed.dictionary_hgpo(rows)), credit.hgpo(batch), atol=1e-6)
        assert torch.allclose(flat(speed.dictionary_hgpo(rows, history=0)), credit.hgpo(batch, history=0), atol=1e-6)

@pytest.mark.parametrize('distinct', [1, 2, 7, 128])
def test_texts_meet_the_one_they_were_made_from(distinct):
    from agentlab.credit import similar_states
    from bench.credit_speed import similarity_speed, state_texts, worded_batch
    assert len(set(state_texts(distinct))) == distinct
    batch = worded_batch(distinct, groups=1)
    assert len(batch.turns.state.unique()) == distinct and len(batch) == 8
    if distinct == 128: return  # the slow one: looked at, not timed
    [row] = similarity_speed(similar_states, [distinct], groups=1, repeats=1)
    assert row['clusters'] == (distinct + 1)//2 and row['distinct'] == distinct

def scatter(batch, x):
    "(action tokens,) values at verl's places."
    out = torch.zeros(len(batch), int(batch.tokens.position.max()) + 1, dtype=x.dtype)
    return out.index_put((batch.tokens.row[batch.actions], batch.tokens.position[batch.actions]), x)

@pytest.mark.parametrize('episodes, seed', [(12, 0), (13, 1), (1, 2)])
def test_padded_is_the_same_batch(episodes, seed):
    from agentlab.interop.verl import padded, ragged_batch
    batch = ragged_batch(episodes, seed=seed)
    held = padded(batch, torch.float64)
    assert torch.equal(scatter(batch, torch.ones(len(batch.actions), dtype=torch.int64)), held['response_mask'])
    assert torch.equal(scatter(batch, batch.action('value')), held['values'])
    last = torch.cat([batch.action_turn[1:] != batch.action_turn[:-1], torch.tensor([True])])
    assert torch.equal(scatter(batch, torch.where(last, batch.spread(batch.turns.reward), 0)),
        held['token_level_rewards'])
    assert [int(name) for name in held['index']] == batch.episodes.group.tolist()

def test_counterparts_read_what_they_should():
    "With stand-ins that return our own numbers every pair agrees, is timed, and is found when it does not agree."
    from agentlab.interop.verl import padded, ragged_batch
    from bench.verl import apart, counterparts, problems, race
    batch = ragged_batch()
    held, asked = padded(batch, torch.float64), {}
    class Registry(dict):
        def __getitem__(self, name):
            return lambda **words: (asked.setdefault(name, []).append(set(words)), theirs[current])[1]
    theirs, rows = {}, {}
    for current, (ours, other) in counterparts(Registry()).items():
        found = ours(batch)
        target, advantage = found if isinstance(found, tuple) else (found, found)
        theirs[current] = scatter(batch, advantage), scatter(batch, target)
        rows[current] = race(ours, other, batch, held, repeats=1) | dict(gap=apart(ours, other, batch, held),
            gap_float32=0.)
        assert rows[current]['gap'] == 0, current
        theirs[current] = theirs[current][0] + held['response_mask'], theirs[current][1]
        assert apart(ours, other, batch, held) == pytest.approx(1), current
    assert ({'token_level_rewards', 'response_mask'}
        <= set.intersection(*(words for calls in asked.values() for words in calls)))
    assert problems(dict(estimators=rows), most=float('inf')) == []
    assert len(problems(dict(estimators=rows), most=0.)) == len(rows)

def test_recorded_comparison_with_verl_holds():
    from agentlab.bench import kept
    from bench.verl import problems
    record = kept(ROOT/'assets'/'bench', 'verl')
    assert record['versions']['verl'] == '0.9.1' and (record['episodes'], record['turns'],
        record['tokens']) == (1024, 16, 128)
    assert problems(record) == [] and len(record['estimators']) == 15
