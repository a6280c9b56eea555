"""README.md from nbs/index.ipynb: `make readme`. Hidden cells are left out, and those that say `#| readme: false`, or,
where they are text, `<!-- not in the README -->`; pictures go to assets/readme, links are made relative to the root."""
import posixpath
import re
import shutil
import sys

from notebooks import ROOT

INDEX = ROOT/'nbs'/'index.ipynb'
PICTURES = 'assets/readme'
MADE = '<!-- Made by tools/readme.py from nbs/index.ipynb: edit it there, then `make readme`. -->\n\n'
DIRECTIVE = re.compile(r'^#\s*\|\s*([\w-]+):?[ \t]*(.*)\n?', re.MULTILINE)
CODE = re.compile(r'(^```.*?^```$)', re.MULTILINE | re.DOTALL)
OFF = '<!-- not in the README -->'
LINK = re.compile(r'(\]\(|\b(?:src|href)=")(?![a-z]+:|#|/|assets/readme/)([^)"#\s]+)')

def shown_source(source: str) -> tuple[str, bool, bool]:
    "The text of a code cell without its directives, whether they hide the cell, and whether they hide its text."
    said = dict(DIRECTIVE.findall(source))
    hidden = 'hide' in said or said.keys() == {'default_exp'} or said.get('include') == 'false'
    return DIRECTIVE.sub('', source), hidden, 'hide_input' in said or said.get('echo') == 'false'

def shown(cell):
    "The cell as a reader sees it: without its directives, or None if they hide it."
    if cell.source.startswith(OFF): return None
    said = dict(DIRECTIVE.findall(cell.source)) if cell.cell_type == 'code' else {}
    if not said: return cell
    cell.source, hidden, no_input = shown_source(cell.source)
    if hidden or said.get('readme') == 'false': return None
    if no_input: cell.metadata['transient'] = dict(remove_source=True)
    if 'hide_output' in said or said.get('output') == 'false': cell.outputs = []
    return cell

def prose(text: str) -> str:
    """Text between code blocks: links relative to nbs/ become relative to the root, and no more than one empty line
    at a time."""
    text = LINK.sub(lambda link: link[1] + posixpath.normpath('nbs/' + link[2]), text)
    return re.sub(r'\n{3,}', '\n\n', re.sub(r'[ \t]+\n', '\n', text))

def render() -> tuple[str, dict[str, bytes]]:
    "The text of README.md, and each picture it shows: {path from the root: bytes}."
    import nbformat
    from nbconvert import MarkdownExporter
    nb = nbformat.read(INDEX, as_version=4)
    nb.cells = [cell for cell in map(shown, nb.cells) if cell]
    nb.metadata.language_info = dict(name='python')
    exporter = MarkdownExporter()
    exporter.exclude_input_prompt = True
    made = dict(unique_key='figure', output_files_dir=PICTURES)
    text, resources = exporter.from_notebook_node(nb, resources=made)
    text = re.sub(r'<style scoped>.*?</style>\n?', '', text, flags=re.DOTALL)
    spoken = iter([about['alt'] for cell in nb.cells for output in cell.get('outputs', [])
        for about in output.metadata.values() if 'alt' in about])
    text = re.sub(r'!\[png\]', lambda _: f"![{next(spoken, 'picture')}]".replace('\n', ' '), text)
    parts = [part if part.startswith('```') else prose(part) for part in CODE.split(text)]
    return MADE + ''.join(parts).strip() + '\n', resources.get('outputs', {})

def main() -> int:
    text, pictures = render()
    shutil.rmtree(ROOT/PICTURES, ignore_errors=True)
    for name, picture in pictures.items():
        (ROOT/name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT/name).write_bytes(picture)
    (ROOT/'README.md').write_text(text, encoding='utf-8')
    print(f'README.md: {len(text)} characters, {len(pictures)} pictures')
    return 0

if __name__ == '__main__': sys.exit(main())
