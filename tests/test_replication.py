"The replication table: its verdicts follow from intervals and margins, and it is the one that the records give."
import random
import subprocess
import sys

import pytest
from notebooks import ROOT, pack, unpacked

import replication
from replication import FAILS, HOLDS, MORE, OPEN, paired, said, welch
from results import interval

ENDS = dict(mean=.1, low=.02, high=.18)

@pytest.fixture(scope='module')
def rows():
    return replication.table(replication.TABLE)

@pytest.mark.parametrize('low, high, margin, word', [
    (.02, .18, .05, HOLDS),    # above zero, however little
    (-.2, -.01, 0, FAILS),     # below zero
    (-.02, .04, .05, FAILS),   # wholly inside the margin
    (-.02, .06, .05, OPEN),
    (-.02, .04, 0, OPEN),      # without a margin only what is below zero fails
    (0, .1, .05, OPEN)])       # an interval that ends at zero decides nothing
def test_a_verdict_follows_from_interval_and_margin(low, high, margin, word):
    assert said(dict(low=low, high=high), 5, margin) == word

def test_few_seeds_decide_nothing():
    assert said(ENDS, 4, .05) == OPEN and said(ENDS, 5, .05) == HOLDS
    assert said(ENDS, 2, .05, 'SmolLM2-135M') == OPEN and said(ENDS, 3, .05, 'SmolLM2-135M') == HOLDS
    assert said(dict(low=None, high=None), 5, .05) == OPEN

def test_pairs_of_seeds_take_out_what_their_tasks_share():
    "Seeds whose tasks are hard or easy for both arms: the pairs see the small difference, Welch's interval does not."
    drawn = random.Random(0)
    base = [drawn.gauss(.5, .2) for _ in range(5)]
    arm = [one + .05 + drawn.gauss(0, .005) for one in base]
    near, wide = paired(arm, base), welch(interval(arm), interval(base))
    assert near['mean'] == pytest.approx(wide['mean'], abs=1e-4) == pytest.approx(.05, abs=.01)
    assert near['low'] > 0 and wide['low'] < 0

def test_welch_by_hand():
    "Variances .023 and .0005 of five seeds each: 4.17 degrees of freedom, rounded down; t is 2.776."
    arm, control = [.1, .5, .3, .4, .25], [.2, .22, .18, .21, .24]
    found = welch(interval(arm, least=-9), interval(control, least=-9))
    half = 2.776*(.023/5 + .0005/5)**.5
    assert found['mean'] == pytest.approx(.1)
    assert (found['low'], found['high']) == pytest.approx((.1 - half, .1 + half), abs=1e-4)

def test_an_end_that_was_cut_is_not_taken_for_the_width():
    cut, whole = dict(mean=.95, low=.75, high=1., seeds=5), dict(mean=.95, low=.75, high=1.15, seeds=5)
    other = dict(mean=.5, low=.4, high=.6, seeds=5)
    assert welch(cut, other) == welch(whole, other)

def test_the_table_is_the_one_that_the_records_give(rows):
    assert replication.faults() == []
    assert len({row['row'] for row in rows}) == len(rows)
    for row in rows:
        if row['verdict'] == MORE: continue
        ends = {end: float(row[end]) for end in ('low', 'high')}
        assert row['verdict'] == said(ends, int(row['seeds']), float(row['margin']), row['model']), row['row']

def test_a_changed_number_is_found(tmp_path, monkeypatch):
    text = unpacked(ROOT/replication.TABLE)
    pack(tmp_path/'table.csv.xz', text.replace(f',{HOLDS},', f',{OPEN},', 1))
    monkeypatch.setattr(replication, 'TABLE', tmp_path/'table.csv.xz')
    assert any('is old' in fault for fault in replication.faults())

def test_every_command_can_be_given(rows):
    "Of the mechanisms whose claims need more, recipe and world are known; each tool of a record is there."
    from agentlab.env import load_env
    from agentlab.train import recipes
    for row in rows:
        words = row['command'].split()
        if words[:1] == ['python']: assert (ROOT/words[1]).is_file(), row['row']
        if '--recipe' in words and words[0] == 'agentlab':
            assert hasattr(recipes, words[words.index('--recipe') + 1]), row['row']
        if '--env' in words: load_env(words[words.index('--env') + 1])

@pytest.mark.parametrize('given, said_', [(['--again', 'nosuch'], 'not one of the claims'),
    (['--again', 'rover', '--seeds', '777'], 'has the seeds')])
def test_what_cannot_be_played_again_is_refused(given, said_):
    run = subprocess.run([sys.executable, 'tools/replication.py', *given], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and said_ in run.stderr

def test_rows_are_played_again_beside_the_record(tmp_path, monkeypatch):
    from dataclasses import replace
    claim = replication.claims()['rover']
    quick = replace(claim, row=lambda arm, seed: dict(different=2. + (arm == 'rover') + seed))
    monkeypatch.setattr(replication, 'claims', lambda: dict(rover=quick))
    monkeypatch.setattr(replication, 'AGAIN', tmp_path)
    before = replication.record_of('rover')
    line, = replication.again('rover', [1])
    assert '+1.0000 now' in line and 'recorded' in line
    assert replication.record_of('rover') == before and list(tmp_path.iterdir())
