"Every notebook runs from top to bottom, each in a process of its own, its `gpu` cells where there is a GPU, its `slow` cells with --slow."
import pytest

from conftest import missing_for_browser, no_gpu
from notebooks import Nursery, lessons, notebooks, run


@pytest.fixture(scope='module')
def nursery():
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize('path', notebooks(), ids=str)
def test_notebook(path, request, nursery):
    if path in lessons() and not missing_for_browser() and not request.config.getoption('slow'): pytest.skip('runs in a real JupyterLab: tests/test_browser_lessons.py')
    flags = [flag for flag, wanted in dict(slow=request.config.getoption('slow'), gpu=not no_gpu()).items() if wanted]
    problem = nursery.run(path, tuple(flags))
    if problem: pytest.fail(problem, pytrace=False)


@pytest.mark.parametrize('source, said', [
    ('assert 1 + 1 == 3', 'AssertionError'),                # a cell that fails
    ('#| slow\nassert True', 'no code cell would run'),     # nothing would be tested
    ('while True: pass', 'still running after 5 seconds'),  # a cell that hangs
])
@pytest.mark.parametrize('forked', [False, True], ids=['started', 'forked'])
def test_failure_is_seen(source, said, tmp_path, nursery, forked):
    "The bridge reports what goes wrong."
    from fastcore.nbio import mk_cell, new_nb, write_nb
    path = tmp_path/'broken.ipynb'
    write_nb(new_nb([mk_cell(source)]), path)
    if not forked: assert said in run(path, seconds=5)
    else:
        assert said in nursery.run(path, seconds=5)
        write_nb(new_nb([mk_cell('import os, sys\nassert "torch" in sys.modules and os.getsid(0) == os.getpid() and not sys.stdin.read()')]), path)
        assert nursery.run(path, seconds=60) == ''      # the next one is not troubled


def test_numbers_of_live_figures_keep_six_digits():
    from save import rounded
    figure = dict(data=[dict(x=[1/3, 0., -123456.789, 7, None, True, float('inf')], name='1.23456789', y=dict(bdata='AAAA'))])
    assert rounded(figure) == dict(data=[dict(x=[.333333, 0., -123457., 7, None, True, float('inf')], name='1.23456789', y=dict(bdata='AAAA'))])
    assert rounded(rounded(figure)) == rounded(figure)


def test_pictures_get_smaller_and_stay_what_they_are():
    "A palette of 128 colours: shorter, of the same size, hardly another colour anywhere; transparent places stay transparent; a second time changes nothing."
    from io import BytesIO
    image = pytest.importorskip('PIL.Image', reason='pillow is not installed')
    from save import smaller
    for clear in (False, True):
        picture = image.linear_gradient('L').convert('RGBA').resize((300, 200))
        if clear: picture.putalpha(image.new('L', picture.size, 0))
        whole = BytesIO(); picture.save(whole, 'PNG')
        short = smaller(whole.getvalue())
        again = image.open(BytesIO(short)).convert('RGBA')
        assert len(short) <= len(whole.getvalue()) and again.size == picture.size and smaller(short) == short
        assert again.getextrema()[3] == ((0, 0) if clear else (255, 255))
        if not clear: assert max(abs(a - b) for a, b in zip(again.convert('L').tobytes(), picture.convert('L').tobytes())) <= 4
