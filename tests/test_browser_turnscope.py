"""TurnScope in a real JupyterLab: the wiring of keys, drop-downs and pointer, what the page shows of hostile text,
and that nothing is fetched from elsewhere."""
import json
import shutil
from pathlib import Path
import pytest
from agentlab.credit import gigpo, grpo
from agentlab.episodes import Batch
from agentlab.view.run_report import signed
from agentlab.view.turnscope_data import Played
from lab import browser, keep_focus, lab  # noqa: F401 (fixtures)
from view_data import write_run

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parent

CELLS = [f'import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom agentlab.view.turnscope_widget import turnscope\n'
    'from view_data import crowd\nscope = turnscope("run", step=1)\nscope',
    'altered = turnscope("altered", step=1)\naltered', 'from view_data import '
    'hostile_batch\nturnscope(hostile_batch())', 'large = turnscope(crowd(400, 60, 4, group=400))\nlarge']

class Shown:
    "The widget of one cell."
    def __init__(self, lab, page, cell):
        self.page, self.node = page, lab.run(page, cell)
        page.wait_for_function(f"() => {self.node}.querySelector('.ts .ts-token')", timeout=90_000)
        self.root = page.locator('.jp-CodeCell').nth(cell).locator('.ts')
    def wait(self, expression):
        self.page.wait_for_function(f"() => {{ const root = {self.node}.querySelector('.ts'); return {expression} }}",
            timeout=20_000, polling=50)
    def get(self, expression):
        return self.page.evaluate(f"() => {{ const root = {self.node}.querySelector('.ts'); return {expression} }}")
    def chosen(self): return int(self.get("root.querySelector('.ts-tile.ts-chosen').dataset.turn"))
    def press(self, key, turn):
        "Press a key and wait until the chosen turn is `turn`."
        self.page.keyboard.press(key)
        self.wait(f"root.querySelector('.ts-tile.ts-chosen')?.dataset.turn === '{turn}' && "
            f"root.contains(document.activeElement)")
    def facts(self):
        return self.get("Object.fromEntries([...root.querySelectorAll('.ts-token-card [data-fact]')].map(node => "
            "[node.dataset.fact, node.textContent]))")
    def numbers(self):
        return self.get("[...root.querySelectorAll('.ts-tile')].map(tile => [tile.dataset.turn, "
            "[...tile.querySelectorAll('b:not([hidden])')].map(b => b.textContent), "
            "tile.querySelector('small').textContent])")

@pytest.fixture(scope='module')
def page(lab):
    write_run(lab.folder/'run')
    shutil.copytree(lab.folder/'run', lab.folder/'altered')
    path = lab.folder/'altered'/'episodes'/'step_000001.parquet'
    batch = Batch.load(path)
    batch.with_tokens(entropy=batch.tokens.entropy + .125, sampler_logp=batch.tokens.sampler_logp - 1).save(path)
    with lab.open('turnscope.ipynb', *CELLS) as page:
        page.asked, page.said = [], []
        page.on('request', lambda request: page.asked.append(request.url))
        page.on('pageerror', lambda error: page.said.append(str(error)))
        yield page

@pytest.fixture(scope='module')
def shown(lab, page): return Shown(lab, page, 0)

def minus(text): return float(text.replace('\u2212', '-'))

def test_the_drop_down_changes_the_numbers_shown(lab, page, shown):
    """The recipe's estimator first, beside grpo, with the difference; alone; another one gives its own means."""
    p = Played(Batch.load(lab.folder/'run'/'episodes'/'step_000001.parquet'))
    means = {f.__name__: p.mean(f(p.batch).double().numpy()) for f in (grpo, gigpo)}
    for turn, faces, note in shown.numbers():
        one, two = (means[name][int(turn)] for name in ('gigpo', 'grpo'))
        assert faces == [signed(one), signed(two)] and note == f'Δ {signed(one - two)}'
    shown.root.locator('select').nth(1).select_option('')
    shown.wait("!root.querySelector('.ts-tile b + b:not([hidden])')")
    assert all(faces == [signed(means['gigpo'][int(turn)])] for turn, faces, _ in shown.numbers())
    before = shown.numbers()
    shown.root.locator('select').nth(0).select_option('grpo')
    shown.wait(f"root.querySelector('.ts-tile b').textContent !== {json.dumps(before[0][1][0])}")
    assert all(faces == [signed(means['grpo'][int(turn)])] for turn, faces, _ in shown.numbers())
    shown.root.locator('select').nth(1).select_option('gigpo')
    shown.wait("root.querySelectorAll('.ts-tile b + b:not([hidden])').length")
    for turn, faces, note in shown.numbers():
        one, two = (means[name][int(turn)] for name in ('grpo', 'gigpo'))
        assert faces == [signed(one), signed(two)] and note == f'Δ {signed(one - two)}'
    shown.root.locator('select').nth(1).select_option('')
    shown.wait("!root.querySelector('.ts-tile b + b:not([hidden])')")

@pytest.mark.parametrize('cell,folder', [(0, 'run'), (1, 'altered')])
def test_the_token_under_the_pointer_is_the_one_in_the_file(lab, page, cell, folder):
    """Id, log-probability, entropy and advantage on hover are those of the Parquet file; an altered file shows
    altered numbers; what is not there is not recorded."""
    batch = Batch.load(lab.folder/folder/'episodes'/'step_000001.parquet')
    p, shown = Played(batch), Shown(lab, page, cell)
    at = p.span(shown.chosen())
    for i in range(at.start, at.stop):
        shown.root.locator('.ts-token').nth(i - at.start).hover()
        shown.wait(f"root.querySelector('[data-fact=id]').textContent === '{batch.tokens.id[batch.actions[i]].item()}'")
        facts = shown.facts()
        assert (minus(facts['sampler_logp']) == pytest.approx(batch.action('sampler_logp')[i].item(), rel=1e-5)
            and minus(facts['entropy']) == pytest.approx(batch.action('entropy')[i].item(), rel=1e-5))
        assert minus(facts['advantage']) == pytest.approx(gigpo(batch)[i].item(), rel=1e-4)
        assert facts['old_logp'] == facts['kl'] == facts['ratio'] == facts['likely'] == 'not recorded'
        assert facts['text'] == batch.labels['token'][int(facts['id'])]

def test_the_keyboard_alone_goes_everywhere(lab, page):
    """j k h l along rows and turns, Enter to the tokens, arrows among them, Escape back, n, s, search, step:
    JupyterLab takes none of the keys."""
    shown = Shown(lab, page, 0)
    p = Played(Batch.load(lab.folder/'run'/'episodes'/'step_000001.parquet'))
    group = p.members(int(p.group[p.episode[shown.chosen()]]))
    rows = [r.episode for r in group.rollouts]
    keep_focus(page, f"{shown.node}.querySelector('.ts-tile.ts-chosen')")
    shown.press('j', p.first[rows[1]])
    shown.press('ArrowRight', p.first[rows[1]] + 1)
    shown.press('l', p.first[rows[1]] + 2)
    shown.press('k', p.first[rows[0]] + 2)
    shown.press('h', p.first[rows[0]] + 1)
    assert shown.get("document.activeElement.classList.contains('ts-chosen')")
    page.keyboard.press('Enter')
    page.keyboard.press('ArrowRight')
    shown.wait("document.activeElement.dataset.at === '1' && "
        "root.querySelector('[data-fact=id]').parentElement.textContent.startsWith('token 2')")
    page.keyboard.press('Escape')
    shown.wait("document.activeElement.classList.contains('ts-tile')")
    visits = p.visits(int(p.first[rows[0]] + 1)).tolist()
    shown.press('s', visits[1])
    page.keyboard.press('n')
    shown.wait("root.querySelector('.ts-message').textContent.startsWith('Unsure token')")
    page.keyboard.press('/')
    page.keyboard.type('go north')
    page.keyboard.press('Enter')
    shown.wait("root.querySelector('.ts-message').textContent.includes('turns that hold') && "
        "root.querySelector('mark')")
    page.keyboard.press('Escape')
    shown.root.locator('.ts-strip').focus()
    page.keyboard.press('ArrowRight')
    shown.wait("root.querySelector('.ts-strip').getAttribute('aria-valuenow') === '2'")
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex") == 0
    shown.root.locator('.ts-plot').first.click(position=dict(x=2, y=20))
    shown.wait("root.querySelector('.ts-strip').getAttribute('aria-valuenow') === '0'")

def test_scrolling_asks_for_what_comes_into_view(lab, page):
    """Of 24,000 tiles at most 576 are there; after a scroll to the end those of the last rows and turns are."""
    shown = Shown(lab, page, 3)
    assert shown.get("root.querySelectorAll('.ts-tile').length") <= 576
    shown.get("root.querySelector('.ts-scroll').scrollTo(1e6, 1e6)")
    shown.wait("root.querySelector('.ts-row[aria-rowindex=\"400\"] .ts-tile[aria-colindex=\"61\"]')")
    assert shown.get("root.querySelectorAll('.ts-tile').length") <= 576

def test_hostile_text_stays_text_and_nothing_is_fetched(lab, page, browser):
    """No script of a model runs, no picture is loaded, no request leaves for another host; both themes can be
    photographed."""
    shown = Shown(lab, page, 2)
    text = shown.get("root.innerText")
    for part in ('<script>window.hit=1</script>', '"><img src=x onerror="window.hit=1">', r'\u202e', '␛',
                 '99,952 characters cut'):
        assert part in text
    assert (shown.get("root.querySelectorAll('script, img, iframe, a').length") == 0
        and page.evaluate('window.hit') is None)
    backgrounds = set()
    for theme in ('JupyterLab Dark', 'JupyterLab Light'):
        page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", theme)
        page.wait_for_function("dark => document.body.dataset.jpThemeLight === String(!dark)", arg='Dark' in theme)
        page.wait_for_timeout(500)
        backgrounds.add(shown.get("getComputedStyle(root).backgroundColor"))
        assert len(shown.root.screenshot()) > 20_000
    assert len(backgrounds) == 2
    assert page.said == [] and {url.split('/')[2] for url in page.asked
        if url.startswith('http')} <= {lab.url.split('/')[2]}
