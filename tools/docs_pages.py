"""What the site has beside its notebooks: words that explain themselves, a page of words and one of systems."""
import ast
import re
from collections import Counter
from functools import cache
from html import escape
from pathlib import Path

from atlas import PAPERS
from atlas import table as rows_of
from course import NO_PROSE, forms, glossary
from notebooks import ROOT, as_markdown, cells_of, lessons, notebooks

@cache
def cells(page: str) -> list[tuple[str, str]]:
    "(kind, source) of the cells of a notebook."
    return [(cell['cell_type'], ''.join(cell['source'])) for cell in cells_of(page)]

FENCE = re.compile(r'^```.*?^```|^\$\$.*?^\$\$', re.DOTALL | re.MULTILINE)
HEADING = re.compile(r'^(#{1,4}) +(.+?)\s*$', re.MULTILINE)

def plain(text: str) -> str:
    "A heading without its marks and formulas, as MyST takes it for an anchor."
    return re.sub(r'\$[^$]*\$|[*`]|\\(?=\W)', '', re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text))

@cache
def headings(page: str) -> list[tuple[int, int, str, str]]:
    "(number of the cell, level, text, anchor) of the headings of a notebook."
    found, times = [], Counter()
    for number, (kind, text) in enumerate(cells(page)):
        for marks, words in HEADING.findall(FENCE.sub('', text)) if kind == 'markdown' else ():
            anchor = re.sub(r'[^\w\- ]', '', plain(words).strip().lower().replace(' ', '-'))
            again, times[anchor] = times[anchor], times[anchor] + 1
            found.append((number, len(marks), plain(words), f'{anchor}-{again}' if again else anchor))
    return found

def above(page: str, number: int) -> tuple[str, str]:
    "(text, anchor) of the last heading at or before a cell, without the title; empty where there is none."
    found = [(text, anchor) for at, level, text, anchor in headings(page) if at <= number and level > 1]
    return found[-1] if found else ('', '')

def section(page: str, name: str, code: str) -> tuple[str, str]:
    "(text, anchor) of where a page tells of a name: a heading has it, a cell has its code, or a paragraph names it."
    has = re.compile(rf'(?<!\w){re.escape(name)}(?!\w)').search
    headed = [(text, anchor) for _, level, text, anchor in headings(page) if level > 1 and has(text)]
    if headed: return headed[0]
    defines = [i for i, (_, text) in enumerate(cells(page)) if code in text] if code else []
    names = [i for i, (kind, text) in enumerate(cells(page)) if kind == 'markdown' and has(text)]
    return above(page, (defines or names or [0])[0])

def link(page: str, heading: tuple[str, str] = ('', '')) -> str:
    "A link to a page, or to a section of it."
    words = ' › '.join(filter(None, [headings(page)[0][2], heading[0]]))
    return f'[{as_markdown(words)}]({page}{"#" if heading[1] else ""}{heading[1]})'

def table(head: tuple, rows: list[tuple]) -> str:
    "A table that filter.js gives a box."
    lines = [f'| {" | ".join(parts)} |' for parts in (head, ['---']*len(head), *rows)]
    return '\n'.join(['```{table}', ':class: filtered', '', *lines, '```', ''])

def named(role: str, shown: str, name: str) -> str:
    "What is found under a name: see `Named` of tools/docs/conf.py."
    return f'{{{role}}}`{re.sub("[`|<>]", "", shown)} <{re.sub("[`|<>]", "", name)}>`'

# systems

ARXIV = re.compile(r'arXiv[:\s]+(\d{4}\.\d{4,5})', re.IGNORECASE)
MADE_FROM = re.compile(r'File to edit: (?:\.\./)*(nbs/\S+\.ipynb)')

@cache
def recipes() -> dict[str, dict]:
    "Name -> paper, idea, page of every registered recipe, read from the source."
    found = {}
    for path in sorted((ROOT/'agentlab').rglob('*.py')):
        text = path.read_text(encoding='utf-8')
        for node in ast.parse(text).body if '@recipe(' in text else ():
            for call in getattr(node, 'decorator_list', []):
                if getattr(getattr(call, 'func', None), 'id', '') != 'recipe': continue
                found[node.name.removesuffix('_recipe')] = dict(paper=ast.literal_eval(call.args[0]),
                    page=MADE_FROM.search(text)[1], idea=ast.get_docstring(node) or '')
    return found

def short(system: str) -> str:
    "The name that a heading would have: `ARPO` of `Agentic Reinforced Policy Optimization (ARPO)`."
    inner = re.search(r'\(([A-Z][\w.-]*)\)', system)
    first = inner[1] if inner else re.split(r'[ /(:]', system)[0]
    return system if first in ('LLM', 'RL') else first

def systems() -> list[dict]:
    "system, recipe, idea, paper, page, section, state: the rows of the atlas, then recipes that no row names."
    rows = [dict(system=one['system'], recipe=one['recipe'], idea=one['mechanism'], page=one['where'],
        paper=recipes()[one['recipe']]['paper'] if one['recipe'] else '', state=one['state'])
        for one in rows_of(PAPERS)]
    rows += [dict(system=name, recipe=name, state='recipe', **one) for name, one in recipes().items()
        if name not in {row['recipe'] for row in rows}]
    for one in rows:
        code = f'def {one["recipe"]}_recipe(' if one['recipe'] else ''
        one['section'] = section(one['page'], short(one['system']), code) if one['page'] else ('', '')
    return sorted(rows, key=lambda one: (not one['page'], one['system'].lower()))

def system_row(one: dict) -> tuple:
    "A line of the table of systems."
    number, recipe = ARXIV.search(one['paper']), one['recipe']
    more = ', '.join(filter(None, [number and number[0], recipe and f'recipe {recipe}']))
    name = named('system', one['system'], f'{one["system"]} ({more})' if more else one['system'])
    cited = as_markdown(one['paper'])
    if number: cited = cited.replace(number[0], f'[{number[0]}](https://arxiv.org/abs/{number[1]})')
    return ('<br>'.join(filter(None, [name, cited])), recipe and f'`{recipe}`', as_markdown(one['idea']),
        one['page'] and link(one['page'], one['section']), one['state'] or 'not here yet')

def paper_rows() -> list[tuple]:
    "A line for each arXiv number that pages name."
    found = {}
    for page in map(Path.as_posix, notebooks()):
        for number in set(ARXIV.findall('\n'.join(text for _, text in cells(page)))):
            found.setdefault(f'arXiv {number}', []).append(page)
    return [(named('paper', said, f'{said}, on: {headings(pages[0])[0][2]}'), ', '.join(map(link, pages)))
        for said, pages in sorted(found.items())]

SYSTEMS = '''# Systems by name
Every system of [the paper atlas](nbs/papers.ipynb), and every recipe: `load_recipe('hgpo')` of `agentlab.train` gives
one. The page tells the mechanism. *State*: `measured` against a control, `runs` in a test, `unit` or `part` of its
mechanisms tested ([what that means](nbs/papers.ipynb)), `recipe` for a recipe that is no row of the atlas.

{}
## Papers by arXiv number
{}'''

def write_systems(folder: Path) -> None:
    "The page on which a system is found by its name, and a paper by its number."
    head = 'system', 'recipe', 'what is new', 'page and section', 'state'
    text = SYSTEMS.format(table(head, list(map(system_row, systems()))), table(('paper', 'pages'), paper_rows()))
    (folder/'systems.md').write_text(text, encoding='utf-8')

# words

# what is no prose beside code, formulas, headings and links: some tags, indented code, titles of papers, references
NO_TERMS = re.compile(r'<(summary|a|svg|pre|code|table|button)\b.*?</\1>|^(?: {4}|\t).*?$|(?<!\*)\*[^*\n]{25,}\*(?!\*)'
    r'|^## References.*', re.DOTALL | re.MULTILINE)
# such a word behind one of these is a verb, or part of a phrase
VERBS = re.compile(r'\b(?:to|in|can|cannot|will|would|may|must|by|not)\s+$')
DOES = {'turn', 'return', 'group', 'clip', 'update', 'mask', 'branch', 'guide', 'replay', 'collapse', 'state', 'reward'}

@cache
def starts() -> dict[str, list[tuple[dict, re.Pattern]]]:
    "First word of a form -> the terms that begin with it, the longest first, and what finds them."
    found = {}
    for term in sorted(glossary(), key=lambda term: -len(term['term'])):
        for form in filter(None, [term['term'], *term['also'].split(';')]):
            found.setdefault(re.match(r'[\w-]+', form)[0].lower(), []).append((term, forms(term)))
    return found

def blank(match: re.Match) -> str: return re.sub(r'[^\n]', '\0', match[0])

def explained(text: str, seen: set[str]) -> str:
    "Markdown in which the first use of every term that was not `seen` tells what the term means."
    prose, parts, at = NO_PROSE.sub(blank, NO_TERMS.sub(blank, text)), [], 0
    for word in re.finditer(r'[\w-]+', prose):
        first, begin = word[0].lower(), word.start()
        terms = starts().get(first) or starts().get(first.removesuffix('s'), [])
        term, hit = next(((term, hit) for term, form in terms if (hit := form.match(prose, begin))), ({}, None))
        if not hit or begin < at or first in DOES and VERBS.search(prose[max(begin - 9, 0):begin]): continue
        stars = re.search(r'\w\*+$', text[:begin]) or re.match(r'\*+\w', text[hit.end():])
        if term['term'] in seen or stars: continue  # with a tag between, such stars would not close
        seen.add(term['term'])
        meaning = escape(term['meaning']).replace('|', '&#124;')
        parts += [text[at:begin], f'<abbr class="term" tabindex="0" title="{meaning}">{hit[0]}</abbr>']
        at = hit.end()
    return ''.join([*parts, text[at:]])

def with_terms(page: list[dict]) -> None:
    "Cells of a page, changed: each term of the glossary is explained where it is used first."
    seen = set()
    for cell in page:
        if cell['cell_type'] == 'markdown': cell['source'] = explained(cell['source'], seen)

def told_in(term: dict) -> str:
    "The lesson that explains a term, with a link to the section."
    page = next((path.as_posix() for path in lessons() if int(path.name[:2]) == int(term['lesson'])), '')
    bold = re.compile(rf'\*\*[^*\n]*?{forms(term).pattern}', re.IGNORECASE).search
    here = [i for i, (kind, text) in enumerate(cells(page)) if kind == 'markdown' and bold(text)] if page else []
    text, anchor = above(page, here[0]) if here else ('', '')
    said = as_markdown(f'lesson {term["lesson"]}' + (f': {text}' if text else ''))
    return f'[{said}]({page}{"#" if anchor else ""}{anchor})' if page else said

def write_glossary(folder: Path) -> None:
    "The page of all words of the course."
    rows = [(named('word', term['term'], term['term']), as_markdown(term['also'].replace(';', ', ')),
        as_markdown(term['meaning']), told_in(term)) for term in sorted(glossary(), key=lambda t: t['term'].lower())]
    (folder/'glossary.md').write_text('# Glossary\nThe words of the course. Where a page uses one first, it has dots '
        'below it: point at it, or go to it with the tab key.\n\n' + table(('word', 'also', 'means', 'explained in'),
        rows), encoding='utf-8')
