"The atlas: a state follows from what a row names, and what it names is looked up."
import csv
import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tools'))
import atlas

ROW = dict(key='hgpo', system='', family='', mechanism='', where='nbs/credit/07_histories.ipynb', evidence='',
    recipe='hgpo', plays='', record='', state='')
LINE = dict(key='hgpo', mechanism='history', functions='credit.histories.hgpo',
    tests='tests/test_atlas_mechanisms.py::test_hgpo_history', lacks='')
RECORD = 'assets/results/grid.json.xz#cells/keydoor/hgpo|cells/keydoor/grpo'

@pytest.mark.parametrize('row, line, state', [
    (dict(record=RECORD), {}, 'measured'), ({}, {}, 'runs'), (dict(recipe=''), {}, 'unit'),
    (dict(recipe='', plays='tests/test_train.py::test_x'), {}, 'runs'),
    (dict(record=RECORD), dict(tests='', lacks='all'), 'part'), (dict(where=''), {}, ''),
    (dict(record='assets/results/ssp.json.xz#cells/hopsearch/open|cells/hopsearch/ssp'), {}, 'runs')])  # three seeds
def test_the_state_follows_from_what_a_row_names(row, line, state):
    assert atlas.state(ROW | row, [LINE | line]) == state

def test_a_row_that_names_what_is_there_has_no_fault():
    assert atlas.name_faults(ROW | dict(record=RECORD), [LINE]) == []

@pytest.mark.parametrize('row, line, said', [
    (dict(where='nbs/none.ipynb'), {}, 'no such page'), (dict(recipe='none'), {}, 'no such recipe'),
    (dict(plays='tests/test_train.py::test_a_known_recipe_trains[none]'), {}, 'no such case'),
    (dict(plays='tests/none.py::test_none'), {}, 'no such file'),
    (dict(plays='tests/test_train.py::test_a_known_recipe_trains[gigpo]'), {}, 'it uses none of hgpo'),
    ({}, dict(functions='credit.histories.none'), 'no such function'),
    ({}, dict(tests='nbs/credit/07_histories.ipynb#none'), 'no such cell'),
    ({}, dict(tests='nbs/credit/02_batch_baselines.ipynb#z'), 'it uses none of hgpo'),
    ({}, dict(tests='tests/small.py::small_policy'), 'nothing in it can fail'),
    ({}, dict(tests=''), 'either tests, or what lacks'), ({}, dict(lacks='much'), 'either tests, or what lacks'),
    ({}, dict(key='other'), 'has no line for it'),
    (dict(record='assets/results/grid.json.xz#cells/keydoor/hgpo|cells/keydoor/none'), {}, 'no such arms'),
    (dict(where=''), {}, 'and no page')])
def test_a_name_that_leads_nowhere_is_said(row, line, said):
    assert any(said in fault for fault in atlas.name_faults(ROW | row, [LINE | line]))

def claim(path, seeds=5, **other):
    rows = [dict(arm=arm, seed=seed, won=0.) for arm in ('hgpo', 'plain') for seed in range(seeds)]
    path.write_text(json.dumps(dict(hgpo=dict(key='hgpo', arms=['hgpo', 'plain'], control='plain',
        budget='as many episodes', model='tiny', rows=rows) | other)))

@pytest.mark.parametrize('how, said', [
    ({}, None), (dict(seeds=4), '4 of 5 seeds'), (dict(seeds=3, model='SmolLM2-135M'), None),
    (dict(seeds=2, model='SmolLM2-135M'), '2 of 3 seeds'), (dict(key='other'), 'a record of other'),
    (dict(budget=''), 'no control at an equal budget'), (dict(control='none'), 'no control at an equal budget')])
def test_a_record_of_a_claim_has_control_seeds_and_budget(tmp_path, how, said):
    claim(tmp_path/'claims.json', **how)
    found = atlas.record_faults('hgpo', f"{tmp_path/'claims.json'}#hgpo")
    assert not found if said is None else said in found[0]

def test_a_record_that_still_grows_is_no_fault(tmp_path):
    claim(tmp_path/'claims.json', seeds=1)
    row = ROW | dict(record=f"{tmp_path/'claims.json'}#hgpo")
    assert atlas.name_faults(row, [LINE]) == [] and atlas.state(row, [LINE]) == 'runs'

def test_functions_import():
    "What tools/atlas.py finds in the text of the package is what Python finds."
    for name in {name for line in atlas.table(atlas.MECHANISMS) for name in line['functions'].split()}:
        module, _, function = name.rpartition('.')
        assert callable(getattr(import_module(f'agentlab.{module}'), function)), name

def test_the_mechanisms_are_opened_and_packed_again(tmp_path, monkeypatch):
    (tmp_path/'assets').mkdir()
    shutil.copy(atlas.ROOT/atlas.MECHANISMS, tmp_path/'assets')
    lines = atlas.table(atlas.MECHANISMS)
    monkeypatch.setattr(atlas, 'ROOT', tmp_path)
    monkeypatch.setattr(sys, 'argv', ['atlas.py', '--open'])
    assert atlas.main() == 0 and atlas.edited().read_text().startswith('key,mechanism,functions,tests,lacks')
    with open(atlas.edited(), 'a') as file: file.write('hgpo,one more,,,all of it\n')
    assert atlas.main() == 0  # opened once more: what was edited stays
    atlas.put_away()
    assert not atlas.edited().exists()
    added = dict(key='hgpo', mechanism='one more', functions='', tests='', lacks='all of it')
    assert atlas.table(atlas.MECHANISMS) == [*lines, added]

def test_the_front_page_counts_the_states():
    papers = atlas.table(atlas.PAPERS)
    assert atlas.told(papers).replace('(papers.ipynb)', '(nbs/papers.ipynb)') in (atlas.ROOT/'README.md').read_text()
    changed = [row | dict(state='unit') for row in papers]
    assert f'{len(papers)} tested in their parts' in atlas.front_page(changed) != atlas.front_page(papers)

def test_the_tool_writes_what_it_derives(tmp_path, monkeypatch):
    "A state that somebody typed is refused, then put right."
    (tmp_path/'assets').mkdir()
    for name in (atlas.PAPERS, atlas.MECHANISMS): shutil.copy(atlas.ROOT/name, tmp_path/name)
    for name in ('agentlab', 'tests', 'assets/results'): (tmp_path/name).symlink_to(atlas.ROOT/name)
    shutil.copytree(atlas.ROOT/'nbs', tmp_path/'nbs', ignore=shutil.ignore_patterns('.*'))
    monkeypatch.setattr(atlas, 'ROOT', tmp_path)
    honest = (tmp_path/atlas.PAPERS).read_text()
    rows = atlas.table(atlas.PAPERS)
    rows[0]['state'] = 'part'
    with open(tmp_path/atlas.PAPERS, 'w', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    said = [f'{rows[0]["key"]}: part, and is measured: python tools/atlas.py',
        f'{atlas.FRONT} counts other states: python tools/atlas.py']
    assert atlas.faults() == said
    atlas.write()
    assert (tmp_path/atlas.PAPERS).read_text() == honest and atlas.faults() == []
