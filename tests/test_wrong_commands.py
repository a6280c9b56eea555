"""Command lines that cannot work: each is told its argument, its value and what to do, in one paragraph, soon;
nothing is left behind. `make attack` types all of them."""
import json, os

import pytest

import wrong_commands as wrong
from small import finish, fork

pytestmark = pytest.mark.xdist_group('forks')
ALL = wrong.lines()
PARTS = 12

def type_them(home, lines):
    "In a process of its own: what it imports and where it stands is nobody else's business."
    from agentlab import cli
    home.mkdir(parents=True)
    os.chdir(home)
    (home/'world.py').write_text(wrong.MODULES['world'])
    cli.main(f'train {wrong.WORLD} --steps 2 --out first'.split())
    wrong.furnish(home, home/'first')
    answers = [(line, words, *wrong.typed(line)) for line, words in lines]
    (home/'answers.json').write_text(json.dumps(answers))

def bad_answers(home, lines, log):
    status, said = finish(fork(type_them, home, lines, log=log), log, 590)
    assert status == 0, said[-3000:]
    return [(line, faults, errors[-600:])
        for line, words, status, errors, seconds in json.loads((home/'answers.json').read_text())
        if (faults := wrong.faults(words, status, errors, seconds))]

def test_there_are_enough(): assert len(ALL) >= 200 and len({line for line, _ in ALL}) == len(ALL)

@pytest.mark.parametrize('part',
    [0, 5, *(pytest.param(i, marks=pytest.mark.slow) for i in range(PARTS) if i not in (0, 5))])
def test_what_cannot_work_is_told(tmp_path, part):
    assert bad_answers(tmp_path/'home', ALL[part::PARTS], tmp_path/'log') == []

def test_it_would_be_noticed(tmp_path):
    "Answers that the check must not let pass."
    for status, errors, seconds, found in ((0, 'agentlab train: x', 1, 'status'),
                                           (2, '', 1, 'words'), (2, 'agentlab train: x\nmore', 1, 'paragraph'),
                                           (2, 'agentlab train: \x1b[2Jx', 1, 'escape'),
                                           ('Traceback: x', 'agentlab train: x', 1, 'traceback'),
                                           (2, 'agentlab train: x', 99, 'late')):
        assert found in wrong.faults(['x'], status, errors, seconds)
    assert wrong.faults(['x'], 2, 'a bar 12%\nagentlab train: x is wrong', 1) == []
