"""Play in a real JupyterLab: whole games by pointer and by keyboard, the policy's mind on demand, and hostile text
that stays text."""
import pytest
from lab import browser, keep_focus, lab  # noqa: F401 (fixtures)

pytestmark = pytest.mark.browser

POINTER = '''
from agentlab import env
from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.view.playing import Play
game = env.TicTacToe()
words = word_tokenizer(game.vocabulary())
novice = Policy(tiny_model(len(words), 256, hidden=16, layers=1), words, name='novice')
table = Play(game, dict(x=novice, o=env.expert_player), seat='x', max_tokens=2)
table
'''
KEYS = '''
poker = Play(env.Kuhn(), dict(second=env.expert_player), seat='first', seed=2)
poker
'''

def test_games_are_finished_by_pointer_and_by_keyboard(lab):
    """Buttons to the end, then again with Tab, Enter and number keys alone; probabilities when asked; typed markup
    is shown, not run; the notebook keeps its cells."""
    with lab.open('play.ipynb', POINTER, KEYS) as page:
        lab.run(page, 0)
        moves = page.locator('.agentlab-play .al-pl-moves button')
        status = page.locator('.agentlab-play .al-pl-status').first
        moves.nth(8).wait_for(timeout=90_000)
        assert page.locator('.al-pl-moves small').count() == 0
        page.get_by_label('probabilities').check()
        page.wait_for_function("() => document.querySelectorAll('.al-pl-moves small').length == 9", timeout=20_000)
        assert all(text.endswith('%') for text in page.locator('.al-pl-moves small').all_inner_texts())
        page.get_by_label('probabilities').uncheck()
        left = 9
        while 'is over' not in status.inner_text():  # pointer
            moves.first.click()
            page.wait_for_function("n => document.querySelectorAll('.al-pl-moves button').length < n", arg=left,
                timeout=20_000)
            left = moves.count()
        assert 'x earned' in status.inner_text()
        page.get_by_role('button', name='New game').click()
        page.wait_for_function("() => document.querySelectorAll('.al-pl-moves button').length == 9", timeout=20_000)
        keep_focus(page, "document.querySelector('.agentlab-play .al-pl-moves button')")
        page.keyboard.press('5')  # keyboard: the key of a digit is that digit
        page.wait_for_function("() => [...document.querySelectorAll('.al-pl-said > span')].at(-1)?.innerText == '5'",
            timeout=20_000)
        left = moves.count()
        while 'is over' not in status.inner_text():
            page.keyboard.press('Enter')  # the focus has stayed on the moves
            page.wait_for_function("n => document.querySelectorAll('.al-pl-moves button').length < n", arg=left,
                timeout=20_000)
            left = moves.count()
        page.get_by_role('button', name='Undo').click()
        page.wait_for_function("() => document.querySelectorAll('.al-pl-moves button').length > 0", timeout=20_000)
        page.locator('.al-pl-text').fill('<img src=x onerror=window.hit=1>')
        page.locator('.al-pl-text').press('Enter')
        page.wait_for_function("() => document.querySelector('.al-pl-talk').innerText.includes('<img src=x "
            "onerror=window.hit=1>')", timeout=20_000)
        assert 'is over' in status.inner_text() and page.evaluate('window.hit') is None
        lab.run(page, 1)
        page.wait_for_function("() => document.querySelectorAll('.agentlab-play').length == 2", timeout=20_000)
        second = page.locator('.agentlab-play').nth(1)
        keep_focus(page, "document.querySelectorAll('.agentlab-play')[1].querySelectorAll('.al-pl-moves button')[1]")
        page.keyboard.press('1')  # Lab would make the cell a heading of this key
        page.wait_for_function("() => document.querySelectorAll('.agentlab-play')[1].querySelector('.al-pl-said')",
            timeout=20_000)
        assert 'second :' not in second.inner_text()
        second.get_by_label('show all seats').check()
        page.wait_for_function("() => document.querySelectorAll('.agentlab-play')[1].innerText.includes('second :')",
            timeout=20_000)
        assert (page.evaluate('window.jupyterapp.shell.currentWidget.content.widgets.map(w => w.model.type)')
            == ['code', 'code'])
