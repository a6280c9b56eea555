"Every notebook runs from top to bottom, each in a process of its own, its `gpu` cells where there is a GPU, its `slow` cells with --slow."
import pytest

from conftest import no_gpu
from notebooks import notebooks, run


@pytest.mark.parametrize('path', notebooks(), ids=str)
def test_notebook(path, request):
    flags = [flag for flag, wanted in dict(slow=request.config.getoption('slow'), gpu=not no_gpu()).items() if wanted]
    problem = run(path, tuple(flags))
    if problem: pytest.fail(problem, pytrace=False)


@pytest.mark.parametrize('source, said', [
    ('assert 1 + 1 == 3', 'AssertionError'),                # a cell that fails
    ('#| slow\nassert True', 'no code cell would run'),     # nothing would be tested
    ('while True: pass', 'still running after 5 seconds'),  # a cell that hangs
])
def test_failure_is_seen(source, said, tmp_path):
    "The bridge reports what goes wrong."
    from fastcore.nbio import mk_cell, new_nb, write_nb
    path = tmp_path/'broken.ipynb'
    write_nb(new_nb([mk_cell(source)]), path)
    assert said in run(path, seconds=5)
