"""Settings of Sphinx; tools/docs.py puts them beside the pages that it writes."""
from pathlib import Path

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.domains.std import ObjType, StandardDomain
from sphinx.util.docutils import ReferenceRole

project, author, html_title = 'agentlab', 'agentlab developers', 'agentlab'
extensions = ['myst_nb', 'sphinx.ext.mathjax']
nb_execution_mode = 'off'
myst_enable_extensions = ['dollarmath', 'amsmath', 'html_image']
myst_heading_anchors = 4
mathjax_path = 'mathjax/tex-svg.js'
html_theme = 'furo'
html_static_path, html_extra_path = ['_static'], ['_extra']
html_css_files, html_js_files = ['site.css'], ['terms.js', 'filter.js']
html_search_scorer = str(Path(__file__).parent/'_static'/'scorer.js')
templates_path, exclude_patterns = [], ['_extra']
html_show_sourcelink = html_copy_source = False
nb_render_markdown_format = 'myst'
nb_code_prompt_show = 'Show the solution'
nb_code_prompt_hide = 'Hide the solution'
suppress_warnings = ['mystnb.unknown_mime_type', 'myst.header']
add_module_names = False
NAMED = dict(system='system', paper='paper', word='word of the course')  # role -> what the search says it is

class Named(ReferenceRole):
    "{system}`HGPO <HGPO, arXiv 2602.22817>`: the place that the search leads to where somebody asks for that name."
    def run(self):
        place = f'{self.name}-{nodes.make_id(self.title)}'
        self.env.domains.standard_domain.note_object(self.name, self.target, place)
        return [nodes.inline('', self.title, ids=[place])], []

resolved = {}  # the navigation of the first page, as HTML

def quick_navigation(app, page, template, context, doctree):
    "Sphinx copies the headings of all pages to write the navigation of each, which is half of a build: once will do."
    def toctree(**how):
        if not resolved: resolved['tree'] = app.builder._get_local_toctree(app.config.root_doc, **how)
        tree = BeautifulSoup(resolved['tree'], 'html.parser')
        here = app.builder.get_target_uri(page)
        for link in tree('a', class_='internal'):
            current = [link, *link.find_parents(['li', 'ul'])] if link['href'] == here else []
            for part in current: part['class'] = [*part.get('class', []), 'current']
            link['href'] = '#' if current else '../'*page.count('/') + link['href']
        return str(tree)
    if 'toctree' in context: context['toctree'] = toctree

def setup(app):
    app.connect('html-page-context', quick_navigation, priority=400)  # before furo
    known = {name: ObjType(said, searchprio=0) for name, said in NAMED.items()}
    StandardDomain.object_types = StandardDomain.object_types | known
    for name in NAMED: app.add_role(name, Named())
    return dict(version='1', parallel_read_safe=True, parallel_write_safe=True)
