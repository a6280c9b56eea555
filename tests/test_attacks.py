"A part of `make attack`, spread over every class; the whole of it is recorded in assets/attack/attack.json."
import json
import shutil

import pytest

from attacks import CLASSES
from small import ROOT

pytestmark = pytest.mark.xdist_group('forks')
EVERY = dict(environments=41, programs=37, damaged=30, commands=61, kills=24, dumps=9)  # pages: the browser's own tests

@pytest.mark.parametrize('name', EVERY)
def test_some_of_each(name, tmp_path):
    make, least = CLASSES[name]
    if name == 'programs' and not shutil.which('bwrap'): least = 200  # one sandbox of the two
    tries = make(tmp_path)
    assert len(tries) >= least and len({title for title, _ in tries}) == len(tries)
    for _, function in tries[::EVERY[name]]: function()

def test_a_lost_one_is_counted(monkeypatch, capsys):
    "The tool's own judgement: what raises has not survived."
    monkeypatch.syspath_prepend(str(ROOT/'tools'))
    import attack
    def broken(folder): return [(str(i), (lambda: 1/0) if i == 3 else (lambda: None)) for i in range(5)]
    monkeypatch.setitem(CLASSES, 'dumps', (broken, 5))
    row = attack.attacked('dumps', 1)
    assert (row['tries'], row['survived'], row['lost']) == (5, 4,
        ['3']) and 'ZeroDivisionError' in capsys.readouterr().err
    monkeypatch.setitem(CLASSES, 'dumps', (broken, 6))
    with pytest.raises(SystemExit, match='5 tries, 6 are promised'): attack.attacked('dumps', 1)

def test_the_record_says_that_all_survived():
    "It names its commands, and has every class with as many tries as are promised."
    record = json.loads((ROOT/'assets'/'attack'/'attack.json').read_text())
    assert set(record['rows']) == set(CLASSES)
    for name, row in record['rows'].items():
        assert (row['survived'] == row['tries'] >= CLASSES[name][1]
            and row['command'] == f'python tools/attack.py {name}' and row['date']), name
