"""The entropy lab: derivatives against finite differences, regions against the bounds that formulas give, words that
die, and text that stays text."""
import math, re, subprocess, sys, time
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab import entropy, objective as o
from agentlab.episodes import Batch, Episode, Turn
from agentlab.view.entropy_widget import (KINDS, bounded, controllers, died, effects, entropy_lab, entropy_lab_html,
    points, present, pull, region, shaped, silent_at, texts, words)
from view_data import HOSTILE, hostile_batch, played, write_run

def moved(seed=0, skill=.5, far=.4, **more):
    "A batch whose log-probabilities have moved since it was played; with advantages of both signs and some zeros."
    batch = played(3, skill, **more)
    g = torch.Generator().manual_seed(seed)
    n = len(batch.actions)
    batch = batch.with_action(old_logp=-.2 - 2*torch.rand(n, generator=g).double(),
        entropy=torch.rand(n, generator=g).double())
    return (batch, (batch.action('old_logp') + far*torch.randn(n, generator=g).double()).clamp(max=-1e-3),
        torch.randn(n, generator=g).double()*(torch.rand(n, generator=g) > .2))

# ---- derivatives

CONTROLLERS = ['clip (PPO)', 'clip-higher (DAPO)', 'dual clip', 'clip with a slope (AEPO)',
    'bounds by probability (DCPO)', 'Clip-Cov, 5 %', 'KL-Cov, 5 %', 'entropy bonus .01', 'EPO',
    'AEPO advantage', 'top 20 % entropy', 'most open turns (DART)',
    'CISPO', 'SAPO', 'GSPO by turn', 'DPPO-TV', 'no bound']

def test_no_controller_is_left_out(): assert list(controllers()) == CONTROLLERS

@pytest.mark.parametrize('name', CONTROLLERS)
def test_the_slope_is_the_derivative_of_the_sum(name):
    """Central differences of the summed loss, in float64, at tokens that do not stand on an edge; what the objective
    itself chooses once (a held token) is held."""
    batch, logp, advantage = moved(groups=1, size=3, turns=3)
    f, h = controllers()[name], batch.action('entropy')
    now = present(batch, logp)
    chosen = (f.func.plan(logp, now.batch, advantage, h, **f.keywords) if hasattr(getattr(f, 'func', None), 'plan')
        else {})
    b = now.batch.with_action(**chosen)
    slope, opening = pull(f, logp, b, advantage, h)
    once = lambda x: float(f(x, b, advantage, h).sum())
    # detached ratios (CISPO, SAPO's gate is not detached, DPPO, GSPO) are weights, not functions: their value says
    # nothing of their slope
    if name in ('CISPO', 'DPPO-TV', 'GSPO by turn', 'clip with a slope (AEPO)'):
        assert torch.isfinite(slope).all()
        return
    for i in range(len(logp)):
        step = torch.zeros_like(logp)
        step[i] = 1e-6
        assert float(slope[i]) == pytest.approx((once(logp + step) - once(logp - step))/2e-6, abs=1e-5), i
        if name in ('EPO', 'entropy bonus .01'):  # whose loss holds the entropy itself
            lift = (float(f(logp, b, advantage, h + step).sum()) - float(f(logp, b, advantage, h - step).sum()))/2e-6
            assert float(opening[i]) == pytest.approx(-lift, abs=1e-5)

def test_every_token_has_one_kind_and_the_marks_say_which():
    batch, logp, advantage = moved()
    found = effects(controllers(), present(batch, logp), advantage)
    for name, effect in found.items():
        assert not effect.problem, (name, effect.problem)
        assert (sum(effect.counts.values()) == len(batch.actions) == len(effect.mark)
            and set(effect.counts) == set(KINDS))
        for kind, mark, share in zip(effect.kind, effect.mark, effect.share):
            assert mark.startswith(KINDS[kind]) and (kind != 'reversed' or share < 0)
    assert (found['no bound'].counts['kept'] == int((advantage != 0).sum())
        and found['no bound'].counts['idle'] == int((advantage == 0).sum()))
    assert found['clip (PPO)'].counts['silent'] == int((o.clipped(logp, batch, advantage)).sum()) > 0
    assert found['top 20 % entropy'].counts['silent'] > .6*int((advantage != 0).sum())
    assert (found['AEPO advantage'].counts['scaled'] > 0 and (found['entropy bonus .01'].opening == .01).all()
        and (found['clip (PPO)'].opening == 0).all())

def test_ppo_by_hand():
    "Ratio 1.3: with a positive advantage the gradient is 0, with a negative one it is kept."
    batch, _, _ = moved(groups=1, size=2, turns=2)
    n = len(batch.actions)
    logp, sign = batch.action('old_logp') + math.log(1.3), torch.tensor([1., -1.]*n).double()[:n]
    assert effects(dict(clip=o.clip), present(batch, logp), sign)['clip'].kind == ['silent', 'kept']*(n//2)

def test_weight_nan_and_the_unapplicable():
    """A token outside the loss and one that is not a number are unknown; a controller without its column says so and
    the others go on; no tokens are no error."""
    batch, logp, advantage = moved()
    n = len(batch.actions)
    weight = torch.ones(n)
    weight[:3] = 0
    advantage[5] = math.nan
    found = effects({'clip': o.clip, 'needs': lambda logp, batch, advantage, entropy=None: logp*batch.action('nothing'),
        'ref': lambda logp, batch, a, e=None: o.kl_k3(logp, batch)},
        present(batch.with_action(weight=weight), logp), advantage)
    assert (found['clip'].kind[:3] == ['unknown']*3 and found['clip'].kind[5] == 'unknown'
        and 'unknown' not in found['clip'].kind[6:])
    assert 'nothing' in found['needs'].problem and 'ref_logp' in found['ref'].problem
    nothing = Batch.from_episodes([Episode([Turn(t=0, context_ids=[1])])])
    assert effects(dict(clip=o.clip), present(nothing), torch.zeros(0))['clip'].counts == dict.fromkeys(KINDS, 0)
    assert 'No entropy' in entropy_lab_html(nothing) or 'hold' in entropy_lab_html(nothing)

def test_a_token_without_advantage_can_be_pushed_by_a_penalty():
    "added: the plain gradient is 0, the controller's is not."
    batch, logp, _ = moved(groups=1, size=2, turns=2)
    both = lambda logp, batch, a, e=None: o.clip(logp, batch, a) + .1*(logp - batch.action('old_logp')).square()
    assert set(effects(dict(pen=both), present(batch, logp), torch.zeros(len(logp)))['pen'].kind) == {'added'}

def test_what_is_missing_is_said():
    batch = played(1, .5)
    assert ('old_logp is missing' in present(batch).notes[0] and 'current=' in present(batch).notes[1]
        and (present(batch).ratio == 1).all())
    bare = batch.replace(tokens=type(batch.tokens)(**{k: v for k, v in vars(batch.tokens).items()
        if k not in ('sampler_logp', 'entropy')}))
    notes = present(bare).notes
    assert 'no ratio' in notes[0] and present(bare).entropy is None
    html = entropy_lab_html(bare)
    # the bonus says why it cannot be shown
    assert 'there is no ratio' in html and 'hold no entropies' in html and 'got entropy=None' in html
    here = batch.with_action(now=batch.action('sampler_logp') + .1)
    for current in ('now', lambda b: b.action('now'), here.action('now'),
                    lambda b: (b.action('now'), b.action('entropy'))):
        assert np.allclose(present(here, current).ratio,
            math.exp(.1)) and not any('current=' in note for note in present(here, current).notes)
    class Policy:
        def logprobs(self, batch): return batch.action('now'), batch.action('entropy')*2
    assert torch.allclose(present(here, Policy()).entropy, here.action('entropy').double()*2)

# ---- regions

@given(st.floats(.01, .7), st.floats(.01, 2.), st.floats(-3, -.1))
@settings(deadline=None, max_examples=15)
def test_the_borders_of_a_clip_are_its_bounds(low, high, old):
    zone = region(partial(o.clip, low=low, high=high), old=old)
    assert (zone.lines[1.] == [pytest.approx((1 + high, 4.), rel=1e-5)]
        and zone.lines[-1.] == [pytest.approx((.25, 1 - low), rel=1e-5)])

def test_regions_agree_with_the_tokens_in_them():
    """A token that autograd calls silent stands in the region, and no other does: for objectives that look at one
    token at a time."""
    batch, logp, advantage = moved(far=.7)
    found, ratio = effects(controllers(), present(batch, logp), advantage), present(batch, logp).ratio
    for name in ('clip (PPO)', 'clip-higher (DAPO)', 'dual clip', 'clip with a slope (AEPO)', 'CISPO', 'SAPO',
                 'no bound'):
        zone = region(controllers()[name], span=(1e-2, 1e2))
        for r, a, kind in zip(ratio, advantage.tolist(), found[name].kind):
            if a: assert (kind == 'silent') == any(x < r < y for x, y in zone.lines[math.copysign(1, a)]), (name, r, a)

def test_a_region_that_depends_on_others_is_not_drawn():
    "The random few of Clip-Cov are no region; an objective that cannot be asked says why; a gate has none."
    assert 'depends on the other tokens' in region(controllers()['Clip-Cov, 5 %']).problem
    assert 'nothing' in region(lambda logp, b, a, e=None: logp*b.action('nothing')).problem
    assert (region(o.sapo).lines == {-1.: [], 1.: []}
        and region(o.sapo).words == 'advantage −1.0: a gradient everywhere; advantage +1.0: a gradient everywhere')
    assert ('everywhere' in region(lambda logp, b, a, e=None: 0*logp).words
        and region(lambda logp, b, a, e=None: 0*logp).lines[1.] == [(.25, 4.)])
    batch, _, _ = moved()
    # needs a column, which takes its median
    assert region(o.epo, like=present(batch).batch).lines[1.] == [pytest.approx((1.2, 4.), rel=1e-5)]

def test_asking_costs_nothing_of_the_batch():
    "points have one token each and the columns of the batch that they stand for."
    batch = points(5, present(moved()[0]).batch)
    assert (len(batch) == len(batch.actions) == len(batch.turns) == 5 and 'entropy_history' in batch.turns
        and batch.episodes.group.tolist() == list(range(5)))
    assert not silent_at(o.clip, np.array([1.5, .5]), np.array([0., 1.])).any()

def test_bounds_go_to_those_that_have_them():
    assert bounded(o.clip, dict(low=.3)).keywords == dict(low=.3) and bounded(o.sapo, dict(low=.3)) is o.sapo
    assert (bounded(shaped(entropy.aepo_advantage), dict(high=.5)).keywords == dict(high=.5)
        and bounded(partial(o.clip, high=.1), dict(high=.5)).keywords == dict(high=.5))
    assert region(bounded(shaped(entropy.aepo_advantage),
        dict(high=.5))).lines[1.] == [pytest.approx((1.5, 4.), rel=1e-5)]

# ---- words

def said(*pairs):
    names = sorted({word for word, _ in pairs})
    batch = Batch.from_episodes([Episode([Turn(t=t % 2, ids=[names.index(word)], logps=[-.5], entropies=[h])])
        for t, (word, h) in enumerate(pairs)])
    batch.labels['token'] = dict(enumerate(names))
    return batch

def test_words_die_in_two_ways():
    early, late = said(('a', 1.), ('b', .5), ('c', .05), ('d', .5),
        ('e', math.nan)), said(('a', .2), ('d', .4), ('c', 0.))
    assert [(x['word'], x['fate'], x['after']) for x in died(early, late)] == [('a', 'settled', 1), ('b', 'gone', 0)]
    # d is of turn 1 then and now
    assert died(early, late, turn=0)[0]['word'] == 'a' and [x['word'] for x in died(early, late, turn=1)] == ['b']
    assert died(early, early) == [] and died(late, early, opened=5.) == [] and 'e' not in words(early)
    assert texts(Batch.from_episodes([Episode([Turn(t=0, ids=[7], logps=[-1.], entropies=[.1])])])) == ['#7']

# ---- the lab

def test_a_run_folder_and_what_is_changed_in_it(tmp_path):
    "The numbers come from the Parquet files and the row log: another file, another picture."
    folder = write_run(tmp_path/'run')
    lab = entropy_lab(folder)
    assert (lab.steps == [0, 1, 2, 3] and (lab.step, lab.later, lab.turn) == (0, 3, None) and lab.estimator == 'gigpo'
        and lab.turns() == [0, 1, 2, 3, 4])
    before = str(lab.static())
    assert ('has died by update 3' in before and 'frame is update 0' in before
        and before.count('<svg class="al-plot') == 3)
    batch = Batch.load(folder/'episodes'/'step_000000.parquet')
    batch.with_action(entropy=batch.action('entropy')*0 + 1.2345).save(folder/'episodes'/'step_000000.parquet')
    after = str(entropy_lab(folder).static())
    assert after != before and '1.23' in after and '1.23' not in before
    with pytest.raises(ValueError, match='update 9 is not kept'): entropy_lab(folder, step=9)
    with pytest.raises(ValueError, match="'x' is not among the controllers"): entropy_lab(folder, pair=('x', 'x'))
    with pytest.raises(FileNotFoundError, match='is no run folder'): entropy_lab(tmp_path)

def test_batches_without_a_run():
    """A batch, a list, a dictionary; the advantages are GRPO's unless a credit is given, and an estimator that lacks
    a column is replaced with a note."""
    assert (entropy_lab(played(0, .5)).steps == [0] and entropy_lab([played(0, .5), played(1, .9)]).steps == [0, 1]
        and entropy_lab({7: played(0, .5)}).step == 7)
    lab = entropy_lab(played(0, .5), credit=lambda batch: torch.ones(len(batch.actions)))
    assert (lab.advantage == 1).all()
    def lacks(batch): return batch.turns.value
    stood = entropy_lab(played(0, .5), credit=lacks)
    assert 'cannot read these episodes' in stood.notes[0] and len(stood.advantage) == len(stood.now.batch.actions)

def test_own_controllers_and_a_pretended_move():
    "Yours stand beside ours; a pretended move says that it is one."
    lab = entropy_lab(played(1, .5), controllers={'mine': lambda logp, batch, a, e=None: -.5*a*logp, 'clip': o.clip},
        move=.5)
    assert (lab.effects['mine'].counts['scaled'] > 0 and 'pretended' in lab.notes[-1] and lab.now.ratio.max() > 1.2
        and lab.effects['clip'].counts['silent'] > 0)
    assert 'pretended' in lab.static() and entropy_lab(played(1, .5)).now.ratio.max() == 1

def test_the_widget_without_a_browser(tmp_path):
    "Sliders redraw, drop-downs choose, own bounds forget; what cannot be computed is a message and the picture stays."
    lab = entropy_lab(write_run(tmp_path/'run'), move=.4)
    lab.widget
    before, silent = lab.lower.value, lab.effects['clip (PPO)'].counts['silent']
    lab.controls['high'].value = 1.
    lab.controls['low'].value = .9
    assert (lab.lower.value != before and lab.effects['clip (PPO)'].counts['silent'] < silent
        and 'bounds set: high=1, low=0.9' in lab.lower.value)
    lab.forget()
    # nothing moved: every ratio is 1
    assert lab.effects['clip (PPO)'].counts['silent'] == 0 and lab.controls['move'].value == 0.
    lab.controls['first'].value = 'GSPO by turn'
    assert 'GSPO by turn' in lab.lower.value and lab.pair[0] == 'GSPO by turn'
    upper = lab.upper.value
    lab.controls['turn'].value = 4
    lab.controls['step'].value = 2
    assert lab.upper.value != upper and 'frame is update 2, turn 4' in lab.upper.value and lab.turn == 4
    lab.controls['turn'].value = -1
    assert lab.turn is None and lab.controls['turn'].label == 'all turns'
    kept = lab.lower.value
    lab.current = torch.zeros(1)
    lab.draw()
    assert 'Not redrawn' in lab.note.value and lab.lower.value == kept

class Reader(HTMLParser):
    "Tags and text of a page."
    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(str(page))
    def handle_starttag(self, tag, attributes): self.tags.append((tag, dict(attributes)))
    def handle_data(self, data): self.text.append(data)

def test_hostile_text_is_text():
    """Tokens, names of controllers, errors: no tag of theirs, no attribute that acts, no direction changed; a token
    of 100 kB does not make the page large."""
    def trap(logp, batch, a, e=None): raise ValueError(HOSTILE[0] + HOSTILE[5])
    lab = entropy_lab(hostile_batch(), controllers={HOSTILE[1]: o.clip, HOSTILE[0]: trap, HOSTILE[5]: o.clip},
        pair=(HOSTILE[1], HOSTILE[0]))
    page = lab.static()
    read = Reader(page)
    assert len(page) < 300_000
    assert not {tag for tag, _ in read.tags} - {'section', 'style', 'h3', 'p', 'svg', 'path', 'span', 'small', 'bdi',
        'b', 'em', 'div', 'figure', 'figcaption', 'line', 'text', 'title',
        'desc', 'rect', 'defs', 'pattern', 'table', 'thead', 'tbody', 'tr',
        'th', 'td'}
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith('on')
        or name in ('href', 'src')] and not re.search(r'https?:|@import', page)
    assert '\u202e' not in page and '\x1b' not in page and HOSTILE[0] in ''.join(read.text)
    lab.widget
    assert not re.search('<script|<img', lab.lower.value + lab.upper.value + lab.note.value)

def test_many_tokens_are_thinned(tmp_path):
    "40,000 tokens: a page of bounded size, in a few seconds, with what was left out said."
    batch = Batch.from_episodes([Episode([Turn(t=t, context_ids=[0], ids=[k % 50 for k in range(50)], logps=[-.5]*50,
        entropies=[.01*(k % 50) for k in range(50)]) for t in range(8)],
        group=i//4, outcome=float(i % 2)) for i in range(100)])
    began = time.monotonic()
    page = entropy_lab_html(batch)
    assert (len(page) < 250_000 and time.monotonic() - began < 20 and '220 of 40,000 tokens drawn' in page
        and '40,000 tokens' in page and '26 more' in page)

def test_it_loads_without_torch():
    "The page can be imported where only numbers are looked at."
    code = ('import sys, agentlab.view.entropy_widget; print([m for m in ("plotly", "ipywidgets", "torch", "pandas") '
        'if m in sys.modules])')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
        cwd=Path(__file__).resolve().parent.parent)
    assert done.stdout.strip() == '[]', done.stdout + done.stderr
