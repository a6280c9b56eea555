"""Every notebook runs from top to bottom, each in a process of its own, its `gpu` cells where there is a GPU, its
`lm` cells where the pretrained model is (those of lessons with --slow), its `slow` cells with --slow."""
import json
import re

import pytest

from conftest import missing_for_browser, no_gpu, no_model
from notebooks import ROOT, Nursery, lessons, notebooks, reads, run

LONG = {  # pages that compute for more than twelve seconds where CI runs: the longer part has them
    '00_groups', '01_episodes', '02_settings', 'bench/00_training_step', 'bench/04_learning', 'bench/13_sweep',
    'bench/99_main', 'credit/03_weighted_baselines', 'credit/05_tags', 'credit/06_agents', 'credit/09_critics',
    'credit/12_hierarchy', 'credit/19_forward_values', 'entropy/00_measures', 'entropy/03_control',
    'env/03_isolation', 'env/04_hopsearch', 'env/07_python_tool', 'env/08_sandbox', 'env/17_leduc',
    'env/19_bug_repair', 'env/29_apps', 'env/30_service', 'env/33_workbench', 'interop/05_programs',
    'policy/05_pretrained', 'policy/06_prime', 'policy/08_formats', 'prompt/03_inspo', 'replay/07_utterance_critic',
    'replay/09_written_rules', 'replay/11_stored_values', 'reward/08_implicit_rewards', 'rollout/02_branching',
    'rollout/04_resampling', 'rollout/05_turns', 'rollout/06_windows', 'rollout/09_workspace', 'rollout/12_search',
    'rollout/14_from_trees', 'rollout/15_ahead', 'rollout/16_retold', 'selfplay/09_bugs', 'selfplay/10_oracles',
    'selfplay/12_role_weights', 'selfplay/13_phrases', 'selfplay/14_peers', 'train/02_trainer',
    'train/04_learned', 'train/05_fit', 'train/06_ranks',
    'view/04_microscope_widget'}

def name_of(path): return path.with_suffix('').as_posix().removeprefix('nbs/')

def page(path):
    "`make test` runs it, or `make test-long`."
    return pytest.param(path, marks=pytest.mark.long) if name_of(path) in LONG else path

@pytest.fixture(scope='module')
def nursery():
    made = Nursery()
    yield made
    made.close()

@pytest.mark.parametrize('path', [*map(page, notebooks())], ids=str)
def test_notebook(path, request, nursery):
    slow = request.config.getoption('slow')
    if path in lessons() and not reads(path) and not missing_for_browser() and not slow:
        pytest.skip('runs in a real JupyterLab: tests/test_browser_lessons.py, make test-long')
    model = not no_model() and (slow or path not in lessons())
    flags = [flag for flag, wanted in dict(slow=slow, gpu=not no_gpu(), lm=model).items() if wanted]
    problem = nursery.run(path, tuple(flags))
    if problem: pytest.fail(problem, pytrace=False)

def test_the_longer_part_has_the_pages_that_are_named():
    there = set(map(name_of, notebooks()))
    assert there > LONG, f'LONG: no page {", ".join(sorted(LONG - there))}; give names as nbs/ has them'

@pytest.mark.parametrize('source, said', [
    ('assert 1 + 1 == 3', 'AssertionError'),                # a cell that fails
    ('#| slow\nassert True', 'no code cell would run'),     # nothing would be tested
    ('while True: pass', 'still running after 2 seconds'),  # a cell that hangs
])
@pytest.mark.parametrize('forked', [False, True], ids=['started', 'forked'])
def test_failure_is_seen(source, said, tmp_path, nursery, forked):
    "The bridge reports what goes wrong."
    from fastcore.nbio import mk_cell, new_nb, write_nb
    path = tmp_path/'broken.ipynb'
    write_nb(new_nb([mk_cell(source)]), path)
    seconds = 2 if 'while' in source else 60  # a slow machine needs longer than that to start
    if not forked: assert said in run(path, seconds=seconds)
    else:
        assert said in nursery.run(path, seconds=seconds)
        write_nb(new_nb([mk_cell('import os, sys\nassert "torch" in sys.modules and os.getsid(0) == os.getpid() and '
            'not sys.stdin.read()')]), path)
        assert nursery.run(path, seconds=60) == ''  # the next one is not troubled

def test_jitter_moves_the_weights_of_a_training(tmp_path, monkeypatch):
    "By about a millionth, and only where somebody asks for it; the same number moves them alike."
    from fastcore.nbio import mk_cell, new_nb, write_nb
    path = tmp_path/'training.ipynb'
    step = ('p = torch.nn.Parameter(torch.linspace(.5, 1, 9)); p.grad = torch.zeros(9); torch.optim.AdamW([p], '
        'lr=0.).step(); p = p.detach()')
    write_nb(new_nb([mk_cell(f'import torch\n{step}\nfirst = p\n{step}\nmoved = (p - torch.linspace(.5, 1, '
        f'9)).abs().max()\nassert torch.equal(p, first) and 1e-7 < moved < 1e-5')]), path)
    monkeypatch.setenv('JITTER', '2')
    assert run(path, seconds=60) == ''
    monkeypatch.delenv('JITTER')
    assert 'AssertionError' in run(path, seconds=60)

def test_a_picture_replaces_the_data_of_its_live_figure():
    """What the figure says of itself goes into the alternative text first, and stays there when the file is tidied
    again."""
    from fastcore.nbio import mk_cell, new_nb
    from notebooks import PLOTLY, tidy
    live = dict(layout=dict(title=dict(text='Curves'), xaxis=dict(title=dict(text='update'))),
        data=[dict(name='gigpo')])
    cell = dict(mk_cell('figure.show()'),
        outputs=[dict(output_type='display_data', metadata={}, data={'image/png': 'AAAA', PLOTLY: live})])
    alone = dict(mk_cell('figure'), outputs=[dict(output_type='display_data', metadata={}, data={PLOTLY: live})])
    once = tidy(json.dumps(new_nb([mk_cell('Look at the end.', 'markdown'), cell, alone])))
    outputs = [output for cell in json.loads(once)['cells'] for output in cell.get('outputs', [])]
    assert (outputs[0]['data'] == {'image/png': 'AAAA'} and outputs[0]['metadata']['image/png']['alt']
        == 'panels: Curves; axes: update; shown: gigpo. Look at the end.')
    assert PLOTLY in outputs[1]['data'] and tidy(once) == once

def test_names_of_cells_shrink_and_stay_apart():
    from notebooks import as_file
    def names(*old):
        written = as_file(dict(cells=[dict(id=name, source='') for name in old], metadata={}))
        return [cell['id'] for cell in json.loads(written)['cells']]
    one, other, third = names('5f1d83c0-1b2e', 'a', '5f1d83c0-ffff')
    assert other == 'a' and len({one, other, third}) == 3 and len(one) == len(third) == 1
    assert names('5f1d83c0-1b2e', 'zz') == ['a', 'zz'] == names('a', 'zz')
    many = names(*(f'long{i}' for i in range(100)))
    assert len(set(many)) == 100 and max(map(len, many)) == 2

def test_pictures_get_smaller_and_stay_what_they_are():
    """A palette of few colours: shorter, of the same size, hardly another colour anywhere; transparent places stay
    transparent; a second time changes nothing."""
    from io import BytesIO
    image = pytest.importorskip('PIL.Image', reason='pillow is not installed')
    from save import fewer_colors, smaller
    for clear in (False, True):
        picture = image.linear_gradient('L').convert('RGBA').resize((300, 200))
        if clear: picture.putalpha(image.new('L', picture.size, 0))
        whole = BytesIO()
        picture.save(whole, 'PNG')
        short = smaller(whole.getvalue())
        again = image.open(BytesIO(short)).convert('RGBA')
        assert len(short) <= len(whole.getvalue()) and again.size == picture.size and smaller(short) == short
        assert again.getextrema()[3] == ((0, 0) if clear else (255, 255))
        if not clear:
            greys = zip(again.convert('L').tobytes(), picture.convert('L').tobytes())
            assert max(abs(a - b) for a, b in greys) <= 18  # of 256, in a picture of nothing but shades
    both = image.new('RGBA', (300, 200), (0, 0, 0, 0))  # a white field stays white beside a ground that is none
    both.paste((255, 255, 255, 255), (0, 0, 90, 90))
    both.paste((0, 114, 178, 128), (0, 100, 300, 110))  # and a pale color keeps its opacity
    whole = BytesIO()
    both.save(whole, 'PNG')
    again = image.open(BytesIO(smaller(whole.getvalue()))).convert('RGBA')
    assert [again.getpixel(at) for at in ((5, 5), (200, 5), (5, 105))] == [(255,)*4, (0,)*4, (0, 114, 178, 128)]
    lines = image.new('RGB', (300, 200), 'white')  # a pale orange stays apart from a grey, though both are rare
    for x, color in enumerate([(240, 170, 90), (200, 180, 160), (236, 240, 248)]): lines.putpixel((x, 0), color)
    again, kept = fewer_colors(lines.quantize(8))
    assert kept == [(255, 255, 255, 255), (200, 180, 160, 255), (240, 170, 90, 255)]
    assert [again.getpixel((x, 0)) for x in range(4)] == [2, 1, 0, 0]

def test_spaces_beside_the_lines_of_a_table_are_left_out():
    from notebooks import tight
    assert tight('| a | b \\| c |\n|--- | :-- |\n\n x | y \n') == '|a|b \\| c|\n|---|:--|\n\n x | y \n'

def test_tables_of_pandas_take_a_line_a_row():
    pd = pytest.importorskip('pandas')
    from notebooks import short_table
    html = pd.DataFrame(dict(a=[1, 2], b=['x\n<td>', ' y'])).to_html(notebook=True)
    short = short_table(html.splitlines(keepends=True))
    assert 2*len(''.join(short)) < len(html) and short_table(short) == short
    assert '<tr><th>0</th><td>1</td><td>x\\n&lt;td&gt;</td></tr>\n' in short
    assert re.sub(r'\s|<style.*?</style>', '', html, flags=re.DOTALL) == re.sub(r'\s', '', ''.join(short))
    assert short_table('<p>\n  any other') == '<p>\n  any other'

def test_tables_of_pandas_are_kept_in_markdown():
    "Letters stay what they are, numbers stand on the right, and a table that Markdown cannot say stays HTML."
    pd = pytest.importorskip('pandas')
    from notebooks import markdown_table, shorten
    table = pd.DataFrame({'a_b': [1, 20], '_c': ['x | *y*', '$2 <b> &amp;']}, index=pd.Index(['p', 'q'], name='of'))
    lines = markdown_table(table.to_html(notebook=True))
    assert ''.join(lines).split('\n') == ['|of|a_b|\\_c|', '|---|--:|---|', '|p|1|x \\| \\*y\\*|',
        '|q|20|\\$2 \\<b\\> \\&amp;|']
    several = pd.DataFrame([[1.5], [2], [3]], pd.MultiIndex.from_tuples([('a', 0), ('a', 1), ('b', 0)]), ['x'])
    assert markdown_table(several.to_html(notebook=True))[2:] == ['|a|0|1.5|\n', '||1|2.0|\n', '|b|0|3.0|']
    with pd.option_context('display.max_rows', 1):
        assert ''.join(markdown_table(table._repr_html_())).endswith('|\n\n2 rows × 2 columns')
    for html in (several.unstack().to_html(notebook=True), table.to_html(notebook=True, escape=False)):
        assert markdown_table(html) is None
    output = dict(metadata={}, data={'text/html': table.to_html(notebook=True), 'text/plain': 'a table'})
    shorten(output, '')
    assert output['data'] == {'text/markdown': ''.join(lines)}

@pytest.mark.parametrize('path', sorted((ROOT/'assets'/'results').glob('*.png')), ids=lambda path: path.name)
def test_recorded_pictures_have_no_ground(path):
    "They stand on light and on dark pages."
    image = pytest.importorskip('PIL.Image', reason='pillow is not installed')
    assert image.open(path).convert('RGBA').getextrema()[3][0] == 0
