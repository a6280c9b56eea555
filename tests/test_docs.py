"""What `make docs` writes: pages without hidden cells, a reference with what stands beside each parameter, links that
are looked after, words that explain themselves, systems by name, galleries, pictures for dark pages."""
import base64
import csv
import io
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

import docs
import docs_pages
from lab import browser  # noqa: F401
from notebooks import ROOT, notebooks

TAG = re.compile(r'<abbr class="term" tabindex="0" title="([^"]*)">([^<]*)</abbr>')

def cell(source, outputs=()):
    return dict(cell_type='code', id='a', metadata={}, execution_count=3, source=source, outputs=list(outputs))

def test_a_page_has_what_a_reader_needs():
    figure, photograph = (dict(output_type='display_data', metadata={'image/png': dict(alt='two curves')},
        data={'image/png': base64.b64encode(picture(ground)).decode(), 'application/vnd.plotly.v1+json': {}})
        for ground in ('#ffffff00', '#ffffff'))
    table = dict(output_type='execute_result', metadata={},
        data={'text/html': '<a href="credit/index.ipynb">x</a> <a href="https://a.b/c.ipynb">y</a>'})
    page = docs.cleaned(dict(cells=[cell('#| hide\nsecret = 1'), cell('#| export\nf = 1', [figure]),
        cell('#| solution\nanswer = 2'), cell('#| echo: false\nshow()', [table]), cell('photo(page)', [photograph]),
        dict(cell_type='markdown', id='b', metadata={}, source='[below](#Some-Heading), [there](x.ipynb), '
        '[deep](y.ipynb#2.-What-Came:-of-it?)')]))
    text = str(page)
    assert 'secret' not in text and 'plotly' not in text and '#|' not in text
    assert [c['metadata'].get('tags') for c in page['cells'][:3]] == [[], ['hide-input'], ['remove-input']]
    assert page['cells'][0]['metadata']['mystnb'] == dict(image=dict(alt='two curves', classes='clear'))
    assert page['cells'][3]['metadata']['mystnb'] == dict(image=dict(alt='two curves'))  # a photograph stays
    assert 'credit/index.html' in text and 'https://a.b/c.ipynb' in text and '(#some-heading)' in text
    assert '(y.ipynb#2-what-came-of-it)' in text

def test_the_reference_tells_what_each_parameter_is():
    text = docs.module_reference(ROOT/'agentlab'/'credit'/'group_baselines.py')
    assert '{py:function} agentlab.credit.group_baselines.grpo(b, ' in text and '# sample' not in text.split('\n')[0]
    assert "scale:str='std'" in text and '](../nbs/credit/00_group_baselines.ipynb)' in text

def test_every_metric_is_in_the_dictionary(tmp_path):
    from agentlab.train import METRICS
    docs.write_metrics(tmp_path)
    text = (tmp_path/'metrics.md').read_text(encoding='utf-8')
    assert METRICS and all(f'| `{name}` |' in text for name in METRICS)

@pytest.mark.parametrize('html, said', [
    ('<a href="b.html#here">', None), ('<a href="https://elsewhere.org/x">', None),
    ('<a href="b.html#gone">', 'no such anchor'), ('<a href="c.html">', 'no such file'),
    ('<script src="https://cdn.org/x.js"></script>', 'loads'), ('<img src="//cdn.org/x.png">', 'loads'),
    ('<img src="x.png">', 'no such file')])
def test_links_are_checked(html, said, tmp_path):
    (tmp_path/'a.html').write_text(html)
    (tmp_path/'b.html').write_text('<p id="here">')
    found = docs.broken(tmp_path)
    assert len(found) == bool(said) and all(said in line for line in found)

def test_pages_of_users_come_before_their_sources():
    order = docs.in_order(Path('nbs/view/index.ipynb'))
    assert order[0] == '10_using' and sorted(order) == [path.stem for path in sorted((ROOT/'nbs/view').glob('[0-9]*'))]
    assert {*order[-4:]} == {'00_web', '05_turnscope_data', '05_turnscope_layout', '05_turnscope_state'}

def test_every_system_is_found_by_its_name(tmp_path):
    import agentlab.train  # noqa: F401
    from agentlab.recipe import registered
    assert docs_pages.recipes().keys() == registered.keys()
    docs_pages.write_systems(tmp_path)
    text = (tmp_path/'systems.md').read_text(encoding='utf-8')
    lines = {line.split('`')[1].split(' <')[0]: line for line in text.splitlines() if line.startswith('| {')}
    with open(ROOT/'assets'/'papers.csv', encoding='utf-8') as file:
        for one in csv.DictReader(file):
            assert all(one[part] in lines[one['system']] for part in ('where', 'recipe', 'state')), one
    assert 'arXiv 2510.14967, recipe igpo' in text and 'nbs/reward/05_information.ipynb' in lines['arXiv 2510.14967']
    anchors = re.findall(r'\((nbs/\S+?\.ipynb)#([^)]+)\)', text)
    assert len(anchors) > 100 and ('nbs/credit/15_information.ipynb', 'igpo') in anchors
    assert all(anchor in [heading[3] for heading in docs_pages.headings(page)] for page, anchor in anchors)

def test_words_explain_themselves_once_and_nothing_else_changes():
    for path in notebooks():
        before = [text for kind, text in docs_pages.cells(path.as_posix()) if kind == 'markdown']
        page = [dict(cell_type='markdown', source=text) for text in before]
        docs_pages.with_terms(page)
        assert [TAG.sub(r'\2', one['source']) for one in page] == before, path
        meanings = [meaning for one in page for meaning, _ in TAG.findall(one['source'])]
        assert len(meanings) == len(set(meanings)) and (meanings or path.parts[0] != 'tutorials'), path

@pytest.mark.parametrize('text, marked', [
    ('# Entropy\nThe entropy, again entropy.', ['entropy']), ('`turn` $turn$ [turn](x.ipynb) **turn**', ['turn']),
    ('an entropy bonus, then entropy', ['entropy bonus', 'entropy']), ('to turn, in turn', []), ('- a turn', ['turn']),
    ('a **group**s and **token**, dead groups', ['token', 'dead groups']), ('<summary>turn</summary>', []),
    ('by *A policy gradient of great length*', []), ('## References\nGRPO', []), ('```\nturn\n```', [])])
def test_which_words_are_explained(text, marked):
    assert [word for _, word in TAG.findall(docs_pages.explained(text, set()))] == marked

def test_every_term_is_in_the_glossary(tmp_path):
    docs_pages.write_glossary(tmp_path)
    text = (tmp_path/'glossary.md').read_text(encoding='utf-8')
    assert all(f'`{term["term"]} <' in text for term in docs_pages.glossary())
    assert '](tutorials/01_your_first_agent.ipynb#' in text

def picture(ground) -> bytes:
    "A figure of few colours, as tools/save.py keeps it."
    from PIL import Image
    from save import smaller
    out = io.BytesIO()
    Image.new('RGBA', (100, 100), ground).save(out, 'PNG')
    return smaller(out.getvalue())

def test_every_world_is_in_the_gallery():
    import docs_gallery
    worlds = [docs_gallery.world(name) for name in [*docs_gallery.envs, *docs_gallery.games]]
    text = docs_gallery.filled('worlds.jinja', worlds=worlds)
    for one in worlds: assert f'## {one["name"]}\n{one["says"]}' in text and '    > ' in one['game'], one
    assert '| C ' in worlds[0]['map'] and all((ROOT/one['page']).exists() for one in worlds)

def test_recorded_games_are_read_again_on_a_page_without_scripts():
    import docs_gallery
    one, = docs_gallery.reading(None)
    assert '4 of 8 games won' in one['look'] and one['still'].count('<rect') > 20
    assert one['page'].count('Right.') == 7  # each that was won ends with the number, as it was recorded
    assert '<script' not in one['page'] and 'http' not in one['page'].replace('http-equiv', '')

@pytest.mark.long
@pytest.mark.browser
def test_the_search_finds_names_first(browser, tmp_path):  # noqa: F811
    python = ROOT/'.venv-docs'/'bin'/'python'
    if not python.exists(): pytest.skip('needs the environment of the site: make docs')
    shutil.copytree(ROOT/'tools'/'docs', tmp_path/'_static')
    shutil.copy(ROOT/'tools'/'docs'/'conf.py', tmp_path)
    (tmp_path/'_extra').mkdir()
    for write in docs_pages.write_systems, docs_pages.write_glossary: write(tmp_path)
    (tmp_path/'index.md').write_text('# x\n' + docs.toctree(['systems', 'glossary']))
    subprocess.run([python, '-m', 'sphinx', '-Q', tmp_path, tmp_path/'html'], check=True)
    index = unescape((tmp_path/'html'/'searchindex.js').read_text(encoding='utf-8'))
    for one in docs_pages.systems(): assert re.split(r'[."]', one['system'])[-1] in index, one
    page = browser.new_page()
    first = {'Agentic Reinforced Policy Optimization': '(ARPO) (arXiv 2507.19849, recipe arpo) (system',
        'hgpo': 'HGPO hierarchy-of-groups', 'arXiv 2510.14967': 'recipe igpo', 'dead group': 'word of the course'}
    for asked, found in first.items():
        page.goto((tmp_path/'html'/'search.html').as_uri() + f'?q={asked}')
        assert found in page.locator('ul.search li').first.inner_text()
    page.close()

@pytest.mark.browser
def test_in_a_browser_words_open_and_tables_are_filtered(browser, tmp_path):  # noqa: F811
    scripts = ''.join(f'<script src="{ROOT/"tools"/"docs"/name}"></script>' for name in ('terms.js', 'filter.js'))
    (tmp_path/'a.html').write_text(f'{scripts}<abbr class="term" tabindex="0" title="One exchange">turn</abbr>'
        '<table class="filtered"><thead><tr><th>a<tbody><tr><td>Policy Optimisation<tr><td>Search</table>')
    page = browser.new_page()
    page.goto((tmp_path/'a.html').as_uri())
    page.keyboard.press('Tab')
    assert page.locator('#meaning').inner_text() == 'One exchange'
    page.keyboard.press('Escape')
    assert page.locator('#meaning').is_hidden()
    page.locator('.filter input').fill('policy optimization')
    assert page.locator('tbody tr:visible').all_inner_texts() == ['Policy Optimisation']
    page.close()
