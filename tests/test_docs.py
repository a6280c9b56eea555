"""What `make docs` writes: pages without hidden cells, a reference with what stands beside each parameter, and links
that are looked after."""

import pytest

import docs
from notebooks import ROOT

def cell(source, outputs=()):
    return dict(cell_type='code', id='a', metadata={}, execution_count=3, source=source, outputs=list(outputs))

def test_a_page_has_what_a_reader_needs():
    figure = dict(output_type='display_data', metadata={'image/png': dict(alt='two curves')},
        data={'image/png': 'AAAA', 'application/vnd.plotly.v1+json': {}})
    table = dict(output_type='execute_result', metadata={},
        data={'text/html': '<a href="credit/index.ipynb">x</a> <a href="https://a.b/c.ipynb">y</a>'})
    page = docs.cleaned(dict(cells=[cell('#| hide\nsecret = 1'), cell('#| export\nf = 1', [figure]),
        cell('#| solution\nanswer = 2'), cell('#| echo: false\nshow()', [table]),
        dict(cell_type='markdown', id='b', metadata={}, source='[below](#Some-Heading), [there](x.ipynb), '
        '[deep](y.ipynb#2.-What-Came:-of-it?)')]))
    text = str(page)
    assert 'secret' not in text and 'plotly' not in text and '#|' not in text
    assert [c['metadata'].get('tags') for c in page['cells'][:3]] == [[], ['hide-input'], ['remove-input']]
    assert page['cells'][0]['metadata']['mystnb'] == dict(image=dict(alt='two curves'))
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
