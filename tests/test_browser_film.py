"""The moving picture of the README: TurnScope over a run, played in a real JupyterLab. `make film` records it.

The scenes are played in the longer part of CI, where each must change what is on the screen; with FILM=1 in the
environment they are written to assets/view/turnscope.webp.
"""
import os
from io import BytesIO
import pytest
from lab import ROOT, browser, lab, need  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.browser, pytest.mark.long]
VIEW, WIDTH, BAR = ROOT/'assets'/'view', 1200, 40  # of the window; the line that says what is seen
HIGH = 860  # of the picture
MOST = 1_500_000  # bytes of the moving picture
TRAIN = ('from agentlab.env import KeyDoor\nfrom agentlab.policy import tiny_policy\n'
    'from agentlab.train import recipes, train\nfrom agentlab.view import turnscope\nhouse = KeyDoor()\n'
    "run = train(tiny_policy(house, progress=False), house, recipes.gigpo(steps=40, seed=0, test_tasks=0), 'film', "
    "progress=False)\nscope = turnscope(run, step=0)\nscope")
# what is said; the keys before each of its pictures; seconds for which the last of them stays
SCENES = (
    ('Eight episodes at one house, a row each: what two estimators, GiGPO | GRPO, think of every turn', [[]], 4),
    ('Along one episode: what the agent read, and what it said', [['l', 'l']], 3),
    ('Same letter, same place: there GiGPO compares what was done next', [['s']], 3),
    ('Inside a turn: each token, and how open the choice was', [['Enter'], ['ArrowRight']], 3),
    ('Along the run: ten updates later', [['Escape', *'.'*10]], 3.5))
CAPTION = '''([ts, text, high]) => {
    const bar = document.querySelector('#film') ?? document.body.appendChild(document.createElement('div'))
    const box = ts.getBoundingClientRect()
    bar.id = 'film'
    bar.textContent = text
    bar.style.cssText = `position: fixed; z-index: 9; left: ${box.x}px; top: ${box.y - high}px; width: ${box.width}px;
        height: ${high}px; background: #fff; color: #111; font: 600 19px/${high}px 'Liberation Sans', sans-serif` }'''

def shots(page, ts):
    "(milliseconds, picture) of every scene; keys that change nothing are an error."
    for text, pictures, stays in SCENES:
        page.evaluate(CAPTION, [ts.element_handle(), text, BAR])
        for i, keys in enumerate(pictures):
            before = ts.inner_html()
            for key in keys: page.keyboard.press(key)
            page.wait_for_timeout(900)
            assert bool(keys) == (ts.inner_html() != before), (text, keys)
            box = ts.bounding_box()
            clip = dict(x=box['x'], y=box['y'] - BAR, width=box['width'], height=HIGH)
            yield int(1000*stays) if i == len(pictures) - 1 else 900, page.screenshot(clip=clip)

def one_palette(pictures, colors=32):
    "The same few colors in all pictures: what does not change costs nothing, and a film is a quarter as long."
    from PIL import Image
    wide, high = pictures[0].size
    tall = Image.new('RGB', (wide, high*len(pictures)))
    for i, picture in enumerate(pictures): tall.paste(picture, (0, high*i))
    palette = tall.quantize(colors, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    return [picture.quantize(palette=palette, dither=Image.Dither.NONE).convert('RGB') for picture in pictures]

def test_the_film_can_be_played(lab):
    need('PIL')
    from PIL import Image
    with lab.open('film.ipynb', TRAIN) as page:
        page.set_viewport_size(dict(width=WIDTH, height=1400))
        node = lab.run(page, 0)
        page.wait_for_function(f"() => {node}.querySelector('.ts .ts-token')", timeout=240_000)
        ts = page.locator('.ts').first
        ts.locator('.ts-tile').first.click()
        page.wait_for_timeout(1000)
        times, frames = zip(*shots(page, ts))
    pictures = [Image.open(BytesIO(frame)).convert('RGB') for frame in frames]
    assert {picture.size[1] for picture in pictures} == {HIGH}
    if not os.environ.get('FILM'): return
    first, *others = one_palette(pictures)
    first.save(VIEW/'turnscope.webp', save_all=True, append_images=others, duration=list(times), loop=0,
        lossless=True, quality=100, method=6, minimize_size=True)

def test_the_recorded_film_is_small_and_moves():
    need('PIL')
    from PIL import Image
    assert Image.open(VIEW/'turnscope.webp').n_frames == sum(len(pictures) for _, pictures, _ in SCENES)
    assert (VIEW/'turnscope.webp').stat().st_size <= MOST
