"A claim is compared as it was written down before, row by row, and its record says what the rows say."
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tools'))
import claims
from claims import FAILS, HOLDS, OPEN, Claim

from agentlab.bench import kept

def claim_of(row, **other):
    return Claim(**(dict(key='toy', says='more', row=row, arms=('toy', 'plain', 'third'), control='plain',
        measure='won', margin=.05, budget='8 games', world='none') | other))

def noisy(mean: dict, spread=.01): return lambda arm, seed: dict(won=mean[arm] + spread*(seed % 3))

def test_rows_are_kept_one_by_one_and_made_once(tmp_path):
    made = []
    def row(arm, seed):
        made.append((arm, seed))
        if made[-1] == ('third', 1): raise KeyboardInterrupt
        return dict(won=.5)
    claim = claim_of(row)
    with pytest.raises(KeyboardInterrupt): claims.play(claim, claim.arms, claim.seeds, tmp_path)
    assert len(claims.known(claim, tmp_path)) == 5
    claims.play(replace(claim, row=noisy(dict(toy=.5, plain=.5, third=.5))), claim.arms, claim.seeds, tmp_path)
    rows = claims.record_of('toy', tmp_path)['rows']
    assert kept(tmp_path, 'claims')['toy']['columns'].keys() == rows[0].keys()  # named once
    assert [(row['arm'], row['seed']) for row in rows] == [(a, s) for s in range(5) for a in ('toy', 'plain', 'third')]
    assert [row['won'] for row in rows[:5]] == [.5]*5 and all(row['cpu_seconds'] >= 0 for row in rows)

@pytest.mark.parametrize('toy, spread, word', [(.9, .01, HOLDS), (.5, .01, FAILS), (.2, .01, FAILS)])
def test_the_verdict_follows_from_the_interval(tmp_path, toy, spread, word):
    claim = claim_of(noisy(dict(toy=toy, plain=.5, third=0.), spread))
    record = claims.play(claim, claim.arms, claim.seeds, tmp_path)
    assert record['verdict'] == word and abs(record['difference']['mean'] - (toy - .5)) < 1e-6

def test_wide_or_few_is_not_decided(tmp_path):
    wide = claim_of(lambda arm, seed: dict(won=.5 + (arm == 'toy')*(seed - 1.8)*.3))
    assert claims.play(wide, wide.arms, wide.seeds, tmp_path)['verdict'] == OPEN
    few = claim_of(noisy(dict(toy=.9, plain=.5, third=0.)), key='few')
    assert claims.play(few, few.arms, few.seeds[:4], tmp_path)['verdict'] == OPEN
    real = replace(few, model='SmolLM2-135M', key='real')
    assert claims.play(real, real.arms, real.seeds[:3], tmp_path)['verdict'] == HOLDS

def test_rows_of_other_settings_are_refused(tmp_path):
    claim = claim_of(noisy(dict(toy=.9, plain=.5, third=0.)))
    claims.play(claim, claim.arms, claim.seeds[:1], tmp_path)
    with pytest.raises(ValueError, match='another margin, settings'):
        claims.play(replace(claim, margin=.1, settings=dict(lr=1)), claim.arms, claim.seeds, tmp_path)

def test_rows_of_another_machine_join_and_change_none(tmp_path, monkeypatch):
    here, there = tmp_path/'here', tmp_path/'there'
    for folder in (here, there): folder.mkdir()
    claim, other = (claim_of(noisy(dict(toy=mean, plain=.5, third=0.))) for mean in (.9, .2))
    monkeypatch.setattr(claims, 'claims', lambda: dict(toy=claim))
    claims.play(claim, claim.arms, (0, 1), here)
    claims.play(other, claim.arms, (1, 2), there)
    assert claims.join(there/'claims.json.xz', here) == ['toy']
    rows = claims.known(claim, here)
    assert [row['seed'] for row in rows if row['arm'] == 'toy'] == [0, 1, 2]
    assert [row['won'] for row in rows if row['arm'] == 'toy'] == pytest.approx([.9, .91, .22])

def test_two_processes_lose_no_row(tmp_path):
    "Rows that are made side by side stand together in the file."
    from concurrent.futures import ThreadPoolExecutor
    many = [claim_of(noisy(dict(toy=.9, plain=.5, third=0.)), key=f'toy{i}') for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda claim: claims.play(claim, claim.arms, claim.seeds, tmp_path), many))
    assert [len(claims.known(claim, tmp_path)) for claim in many] == [15]*4

def test_every_claim_of_the_repository_is_whole():
    "Keys of the atlas, a control among the arms, a record that says what its rows say."
    import csv
    with open(claims.ROOT/'assets'/'papers.csv', encoding='utf-8') as file:
        keys = {row['key'] for row in csv.DictReader(file)}
    for key, claim in claims.claims().items():
        assert (claim.of or key.removesuffix('-real')) in keys and claim.control in claim.arms[1:], key
        assert claim.margin > 0 and len(claim.seeds) >= (5 if claim.model == 'tiny' else 3), key
        for row in claims.known(claim): assert claim.measure in row and row['arm'] in claim.arms, key
        record = claims.record_of(key)
        assert not record or record['verdict'] == claims.verdict(record['rows'], claim.facts())['verdict'], key

@pytest.mark.parametrize('rows, columns', [
    ([dict(arm='a', seed=0, won=1.), dict(won=0., arm='b', seed=0)], dict(arm=['a', 'b'], seed=[0, 0], won=[1., 0.])),
    ([dict(arm='a', won=1.), dict(arm='b', won=0., rate=.1)], dict(arm=['a', 'b'], won=[1., 0.], rate=[None, .1]))])
def test_rows_are_kept_by_column_and_come_back(rows, columns):
    assert claims.tabled(rows) == dict(columns=columns) and claims.opened(claims.tabled(rows))['rows'] == rows

def test_what_an_arm_found_is_in_the_order_of_its_seeds():
    rows = claims.record_of('archer')['rows']
    assert claims.measured('archer', 'ppo', 'seed') == [0, 1, 2, 3, 4]
    assert claims.measured('archer', 'ppo', 'area') == [one['area'] for one in rows if one['arm'] == 'ppo']
