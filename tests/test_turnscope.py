"""TurnScope without a browser: what it decides, what it sends, how much of it, and what it does with text that
attacks the page."""
import json, math, shutil, time
from pathlib import Path
import numpy as np
import pytest
import torch
from agentlab.credit import estimators, gigpo, grpo, mars
from agentlab.episodes import Batch, Episode
from agentlab.train.runs import Run
from agentlab.view import open as open_any
from agentlab.view.run_report import CHECKS, integrity, signed
from agentlab.view.turnscope_data import MODES, RETOKENISED, Played, clipped, findings, pieces, retokenised
from agentlab.view.turnscope_layout import ACTIONS, PARTS
from agentlab.view.turnscope_state import COLUMNS, ROWS, TOKENS
from agentlab.view.turnscope_widget import turnscope, turnscope_html
from view_data import HOSTILE, crowd, hostile_batch, played, turn, write_run

THREE = dict(grpo=grpo, gigpo=gigpo, mars=mars)

def sent(scope)->dict:
    "Bytes of every part; NaN in JSON would be an error of its own."
    return {name: len(json.dumps(scope.part(name), allow_nan=False)) for name in PARTS}

def cells(part)->dict:
    "turn -> cell of a grid."
    return {cell[0]: cell for line in part['lines'] for cell in line['cells']}

@pytest.fixture
def run(tmp_path): return write_run(tmp_path/'run')

@pytest.fixture
def scope(run): return turnscope(run, THREE | dict(remax=estimators['remax']))

# --- numbers

@pytest.mark.parametrize('name', THREE)
def test_the_numbers_are_the_estimators_own(run, name):
    """A cell holds the mean over its tokens of what the estimator gives for the whole batch of the step, and a token
    what the estimator gives for it."""
    scope = turnscope(run, THREE, step=1)
    scope.estimate(name)
    batch = Run(run).episodes(1)
    given = THREE[name](batch).double()
    mean = torch.zeros(len(batch.turns), dtype=torch.float64).index_add(0, batch.action_turn,
        given)/batch.turn_lengths()
    for group in scope.played.groups:
        scope.choose_group(group)
        shown = cells(scope.part('grid'))
        assert len(shown) == int((batch.episodes.group[batch.turns.episode] == group).sum())
        for place, cell in shown.items(): assert cell[2] == signed(float(mean[place]))
        scope.choose_turn(next(iter(shown)))
        assert scope.part('row')['columns']['advantage'] == pytest.approx(given[scope.played.span(scope.turn)].tolist(),
            rel=1e-5)

def test_the_scale_is_fixed_over_the_group(scope):
    """The largest number of the group has the full colour, wherever one looks; colours are symmetric."""
    shown = scope.part('grid')
    values = scope.values(scope.played, 'grpo')[1][scope.played.members(scope.group).turns]
    assert shown['top'] == signed(float(np.abs(values).max()))
    for place, cell in cells(shown).items():
        assert cell[3] == round(100*float(scope.values(scope.played, 'grpo')[1][place])/np.abs(values).max())
    scope.move(turns=3)
    assert scope.part('grid')['top'] == shown['top']

def test_a_pinned_estimator_and_the_difference(scope):
    """Both numbers, and first minus second, on every tile, in the row's name and in the pane."""
    scope.estimate('gigpo')
    scope.pin('mars')
    one, two = (scope.values(scope.played, name)[1] for name in ('gigpo', 'mars'))
    grid = scope.part('grid')
    assert grid['pinned']
    for place, cell in cells(grid).items():
        assert (cell[2], cell[4], cell[6]) == (signed(one[place]), signed(two[place]), signed(one[place] - two[place]))
    for line in grid['lines']:
        mine = [cell[0] for cell in line['cells']]
        assert line['delta'][0] == signed(float((one - two)[mine].mean()))
    facts = dict(fact[:2] for fact in scope.part('pane')['sides'][0]['facts'])
    assert facts['difference'] == signed(one[scope.turn] - two[scope.turn],
        3) and facts['advantage (mars)'] == signed(two[scope.turn], 3)
    assert set(scope.part('row')['columns']) >= {'advantage', 'pinned'}
    scope.pin('')
    assert not scope.part('grid')['pinned'] and all(cell[4] == cell[6] == ''
        for cell in cells(scope.part('grid')).values())

def test_estimators_that_cannot_read_the_step_say_why(scope):
    """A missing column, an exception, a result of another length: a reason in the menu, and the old choice stays."""
    def raises(batch): raise RuntimeError('<b>boom\x1b</b>')
    scope.offered |= dict(raises=raises, short=lambda b: torch.zeros(3))
    reasons = dict(scope.part('menu')['estimators'])
    assert reasons['remax'] == 'not recorded: greedy' and reasons['grpo'] == reasons['raises'] == ''
    for name, why in (('remax', 'greedy'), ('raises', 'boom␛'), ('short', 'action tokens'), ('nobody', 'not offered')):
        scope.act(dict(do='estimate', to=name))
        assert why in scope.message and scope.first == 'grpo'
    assert 'boom' in dict(scope.part('menu')['estimators'])['raises']
    with pytest.raises(ValueError, match='greedy'): scope.pin('remax')

def test_the_runs_own_estimator_comes_first(run):
    """Without a choice the drop-down holds all of agentlab.credit, the recipe's first, with the recipe's arguments."""
    scope = turnscope(run)
    assert scope.first == 'gigpo' and scope.second == 'grpo' and set(scope.offered) == set(estimators)
    assert turnscope(run, first='grpo').second == ''  # not beside itself
    assert not [name for name, why in scope.part('menu')['estimators'] if name == 'gae' and not why]

# --- tokens

def test_missing_columns_are_named_not_invented(scope):
    """Without the trainer's log-probabilities there is no difference, no ratio, no KL, and no list of likely tokens."""
    lacking = {key: missing for key, _, missing in scope.part('menu')['modes']}
    assert lacking == dict(entropy=[], advantage=[], difference=['old_logp'], ratio=['new_logp', 'old_logp'],
        kl=['ref_logp'])
    row = scope.part('row')
    assert set(row['columns']) == {'entropy', 'sampler_logp',
        'advantage'} and row['likely'] is None and row['stopped'] is None
    scope.colour('ratio')
    assert scope.mode == 'entropy' and 'not recorded (new_logp, old_logp)' in scope.message
    with pytest.raises(ValueError, match='mode='): scope.colour('temperature')

def test_every_quantity_where_its_columns_are():
    """Difference, ratio with its clipped tokens, KL and the five likeliest tokens, as their formulas say."""
    batch = played(0, .5)
    n = len(batch.actions)
    wave = torch.linspace(-.6, .6, n)
    old = batch.action('sampler_logp') + wave
    batch = batch.with_action(old_logp=old, new_logp=old + wave, ref_logp=old - .3, top1_id=torch.full((n,), 2),
        top1_logp=torch.full((n,), -.25), top2_id=torch.full((n,), -1))
    scope = turnscope(batch, dict(grpo=grpo))
    scope.choose_turn(len(batch.turns) - 1)
    row, at = scope.part('row'), scope.played.span(scope.turn)
    x, advantage = wave.double()[at].numpy(), grpo(batch).double()[at].numpy()
    assert (row['columns']['difference'] == pytest.approx(x, abs=1e-5)
        and row['columns']['ratio'] == pytest.approx(np.exp(x), rel=1e-4))
    assert row['columns']['kl'] == pytest.approx([math.exp(-.3) + .3 - 1]*len(x), rel=1e-4)
    assert (row['stopped'] == clipped(np.exp(x), advantage, .2).tolist()
        == [bool((a > 0 and math.exp(v) > 1.2) or (a < 0 and math.exp(v) < .8)) for a, v in zip(advantage, x)])
    assert row['likely'][0] == [[[['t', 'north']], -.25]]
    for mode in MODES:
        scope.colour(mode)
        assert scope.part('row')['mode'] == mode and all(-100 <= s <= 100 for s in scope.part('row')['shares'])

def test_the_next_unsure_token_visits_the_tenth_that_is_least_sure():
    """One round through the group meets every token at or above the 90 % quantile of its entropies once, in the
    order of the grid; N goes back."""
    scope = turnscope(crowd(16, 5, 8), dict(grpo=grpo))
    p, group = scope.played, scope.played.members(scope.group)
    entropy = p.action('entropy')[group.tokens]
    wanted = group.tokens[entropy >= np.quantile(entropy, .9)].tolist()
    seen = []
    for _ in wanted:
        scope.next_unsure()
        seen.append(int(p.start[scope.turn]) + scope.token)
    assert sorted(seen) == sorted(wanted) and len(set(seen)) == len(seen)
    order = {token: i for i, token in enumerate(group.tokens.tolist())}
    start = seen.index(min(seen, key=order.get))
    assert [order[t] for t in seen[start:] + seen[:start]] == sorted(order[t] for t in seen)
    scope.next_unsure(-1)
    assert int(p.start[scope.turn]) + scope.token == seen[-2]

def test_long_turns_are_sent_in_pages():
    """Of a turn of 2,000 tokens one page is sent, the one that holds the chosen token."""
    ids = list(range(2000))
    batch = Batch.from_episodes([Episode([turn(0, [], ids)], outcome=1.), Episode([turn(0, [], [1])])])
    scope = turnscope(batch, dict(grpo=grpo))
    assert (len(scope.part('row')['ids']), scope.part('row')['total']) == (TOKENS, 2000)
    scope.choose_token(1999)
    row = scope.part('row')
    assert row['ids'][-1] == 1999 and row['start'] <= 1999 < row['start'] + TOKENS and row['texts'][0] is None
    scope.choose_token(10**9)
    assert scope.token == 1999

# --- links

def test_links_of_states_and_of_branches():
    """s goes round all visits of a state; o goes from a copy to the turn that was sampled, and back."""
    line = lambda *turns: [turn(t, [1], [2], state=state, **more) for t, (state, more) in enumerate(turns)]
    batch = Batch.from_episodes([Episode(line(('a', {}), ('b', {}), ('a', {})), outcome=1.),
        Episode(line(('a', dict(origin=(0, 0))), ('c', {}))),
        Episode(line(('a', dict(origin=(0, 0))), ('b', {})), outcome=.5)])
    scope = turnscope(batch, dict(grpo=grpo))
    grid = cells(scope.part('grid'))
    assert {t: cell[13] for t, cell in grid.items()} == {0: 'a', 1: 'b', 2: 'a', 3: 'a', 4: '', 5: 'a', 6: 'b'}
    assert {t: (cell[14], cell[15]) for t, cell in grid.items() if cell[14]} == {0: ('o', 0), 3: ('b', 0), 5: ('b', 0)}
    scope.choose_turn(0)
    seen = [scope.next_visit() or scope.turn for _ in range(4)]
    assert seen == [2, 5, 3, 0]  # rows: best outcome first
    scope.choose_turn(5)
    scope.to_origin()
    assert scope.turn == 0
    assert ['copied by', '2 episodes', 'to_origin'] in scope.part('pane')['sides'][0]['facts']
    scope.to_origin()
    assert scope.turn == 3
    assert ['copied from', 'episode 1, turn 0', 'to_origin'] in scope.part('pane')['sides'][0]['facts']
    scope.choose_turn(4)
    scope.next_visit()
    assert scope.turn == 4 and 'No other turn' in scope.message

def test_search_goes_round_all_turns_that_hold_the_words(scope):
    """Upper and lower case alike, in the order of groups, rows and play, wrapping; the texts are marked in the pane."""
    wanted = [t for t in range(len(scope.played)) if 'go south' in '\n'.join(scope.played.texts(t))]
    first = scope.search('GO SOUTH') or scope.turn
    seen = [first] + [scope.search('GO SOUTH') or scope.turn for _ in wanted[1:]]
    assert sorted(seen) == wanted and scope.part('pane')['query'] == 'GO SOUTH'
    scope.search('GO SOUTH')
    assert scope.turn == first
    scope.search('no such\x00words')
    assert scope.turn == first and "'no such␀words'" in scope.message
    assert scope.search('') is None and scope.message == ''

def test_the_same_task_beside(run):
    """Another step that holds the state of the first turn is shown beside, with one scale for both; moves are
    followed; a step without the task says so."""
    scope = turnscope(run, THREE, step=0)
    scope.beside(3)
    other = scope.part('other')
    assert other['step'] == 3 and other['top'] == scope.part('grid')['top']
    values = [np.abs(scope.values(scope.load(s), 'grpo')[1][scope.load(s).members(k).turns]).max()
        for s, k in ((0, scope.group), scope.other)]
    assert other['top'] == signed(float(max(values)))
    sides = scope.part('pane')['sides']
    assert [side['step'] for side in sides] == [0, 3]
    scope.move(turns=2)
    assert scope.load(3).t[scope.partner()] == 2
    scope.beside(0)
    assert 'is the one shown' in scope.message
    strange = Batch.from_episodes([Episode([turn(0, [1], [2], state='elsewhere')])])
    scope = turnscope([(0, played(0, .5)), (1, strange)], THREE, step=0)
    scope.beside(1)
    assert scope.other is None and 'does not hold this task' in scope.message
    scope.find_beside()
    assert 'None of the 1 other steps' in scope.message
    scope = turnscope([(0, played(0, .5)), (1, strange), (2, played(2, .9))], THREE, step=0)
    scope.find_beside()
    assert scope.other[0] == 2

# --- checks

def damaged():
    "Two groups of two in which every check finds something."
    a = Episode([turn(0, [1, 2], [3, 4]), turn(1, [1], [3], reward=1.)], outcome=2.)
    b = Episode([turn(0, [1, 2], [3, 4], reward=math.nan)], truncated=True, error='lost')
    c = Episode([turn(0, [1, 2], [3], reward=1.)], group=1, outcome=1.)
    d = Episode([turn(0, [1, 2], [3], reward=1.)], group=1, outcome=1.)
    batch = Batch.from_episodes([a, b, c, d, Episode([turn(0, [1], [2])], truncated=True, group=2),
        Episode([turn(0, [1], [2], reward=1.)], outcome=1., group=2)])
    old = batch.action('sampler_logp').clone()
    old[1] -= .9
    weight = batch.tokens.weight.clone()
    weight[4] = 1.  # the token that turn 1 reads
    batch.labels['token'] = {i: f'w{i} ' for i in range(9)}
    return batch.with_action(old_logp=old).with_tokens(weight=weight)

def test_every_finding_leads_to_its_place():
    """As many findings as the report counts, and the turns are those that were damaged."""
    batch = damaged()
    scope = turnscope(batch, dict(grpo=grpo), encode=lambda text: {'w3 w4 ': [3, 4], 'w4 ': [4]}.get(text, [8]))
    counted = {f.name: f.found for f in integrity([batch])}
    assert list(counted) == list(CHECKS) and {name: n for name, _, _, n, *_ in scope.part('banner')['findings']
        if name != RETOKENISED} == counted and all(counted.values())
    wanted = {'numbers that are not finite': [2], 'cut before any reward': [2, 5], 'groups that all ended alike': [3],
        'sampler and trainer disagree': [0], "loss on the environment's text": [1],
        'outcome differs from the rewards': [1], 'environment failures': [2]}
    assert {f.name: places.tolist() for f, places in findings(scope.played)} == wanted
    scope.choose_group(0)
    assert dict((f.name, (f.found, f.total, p.tolist())) for f, p in scope.findings)[RETOKENISED] == (1, 3, [1])
    for name, places in wanted.items():
        scope.choose_turn(4)
        for place in places:
            scope.to_finding(name)
            assert scope.turn == place and f'of {len(places)}' in scope.message
    scope.to_finding('sampler and trainer disagree')
    assert (scope.turn, scope.token) == (0, 1)
    scope.to_finding('no such check')
    assert scope.turn == 0

def test_the_mark_that_ends_a_turn_is_no_text():
    """A chat template appends the end mark; a tokenizer that spells it out is right about the rest, and an odd last
    token is still found."""
    batch = Batch.from_episodes([Episode([turn(0, [9], [1, 2, 0]), turn(1, [9], [3, 0]), turn(2, [9], [3])])])
    batch.labels['token'] = {0: '<end>', 1: 'a', 2: 'b ', 3: 'ab ', 9: '?'}
    def encode(text): return [7, 7, 7] if '<end>' in text else [{'a': 1, 'b ': 2}[c] for c in ('a', 'b ') if c in text]
    wrong, looked = retokenised(Played(batch), 0, encode)
    assert (wrong.tolist(), looked) == ([1, 2], 3)  # 'ab ' was sampled as one token, and is tokenised as two

def test_checks_that_cannot_be_made_say_so(scope):
    """No trainer's log-probabilities, no tokenizer: not checked, which is not the same as nothing found."""
    found = {name: n for name, _, _, n, *_ in scope.part('banner')['findings']}
    assert (found['sampler and trainer disagree'] is None and found[RETOKENISED] is None
        and found['environment failures'] == 0)
    assert 'could not be made' in scope.static()

# --- sources

def test_a_run_is_read_when_it_is_asked_for(run, monkeypatch):
    """Opening loads one step; at most four stay; an altered Parquet file gives other numbers."""
    loaded = []
    original = Batch.load
    monkeypatch.setattr(Batch, 'load', staticmethod(lambda path: loaded.append(Path(path).stem) or original(path)))
    scope = turnscope(run, THREE)
    assert loaded == ['step_000003']
    scope.step_by(-1)
    scope.step_by(1)
    scope.step_by(1)
    assert loaded == ['step_000003', 'step_000002'] and scope.played.step == 3
    copy = shutil.copytree(run, run.parent/'copy')
    batch = original(copy/'episodes'/'step_000003.parquet')
    batch.with_tokens(entropy=batch.tokens.entropy*2, sampler_logp=batch.tokens.sampler_logp - 1).save(
        copy/'episodes'/'step_000003.parquet')
    ours, altered = (turnscope(folder, THREE).part('row')['columns'] for folder in (run, copy))
    assert (altered['entropy'] == pytest.approx([2*x for x in ours['entropy']])
        and altered['sampler_logp'] == pytest.approx([x - 1 for x in ours['sampler_logp']]))

@pytest.mark.parametrize('dump', ['trl/chat', 'trl/text', 'verl'])
def test_somebody_elses_dump(dump):
    """Texts and rewards as they are; tokens, entropies and success are called not recorded; the trainer's own
    advantages are offered where the dump has them."""
    scope = turnscope(open_any(Path(__file__).parent/'foreign'/dump))
    sent(scope)
    assert scope.part('row')['total'] is None and all(missing == ['tokens']
        for _, _, missing in scope.part('menu')['modes'])
    assert 'success' not in scope.part('grid')['lines'][0]['fate'] and 'succeeded' not in scope.part('grid')['title']
    assert any(text for bubble in scope.part('pane')['sides'][0]['bubbles'] for _, _, shown, _ in bubble['said']
        for _, text in shown)
    if 'trl' in dump:
        assert scope.first == 'recorded'
        batch = scope.played.batch
        assert (scope.values(scope.played, 'recorded')[1].tolist()
            == pytest.approx(batch.episodes.advantage[batch.turns.episode].tolist(), nan_ok=True))
    assert 'no success' not in scope.static()

def test_a_run_without_rollouts(tmp_path):
    """Curves without groups, and no episode at all: a message instead of an error."""
    folder = write_run(tmp_path/'run')
    for file in (folder/'episodes').iterdir(): file.unlink()
    scope = turnscope(folder)
    assert scope.message == 'This run saved no episodes.' and len(scope.part('strip')['panels']) == 4
    sent(scope)
    [scope.act(dict(do=name)) for name in ACTIONS]
    assert 'saved no episodes' in scope.static()
    with pytest.raises(ValueError, match='source=dict'): turnscope({})
    scope = turnscope(played(0, .5), {})  # nobody to give credit
    sent(scope)
    assert scope.first == '' and 'advantage' not in scope.part('row')['columns'] and 'nothing to show' in scope.static()

def test_the_strip_says_what_the_log_says(scope):
    """Readings at the chosen step; a click takes the nearest saved step; a metric that nobody logged is not
    recorded."""
    assert scope.part('head')['readings']['reward'] == '0.8' and scope.part('head')['place'] == 1
    scope.act(dict(do='step_near', to=.7))
    assert scope.played.step == 1
    panels = {panel['name']: panel for panel in scope.part('strip')['panels']}
    assert (len(panels['reward']['lines'][0]) == 4 and len(panels['entropy_by_turn']['shades']) == 4
        and scope.part('strip')['saved'] == [0, 333, 667, 1000])
    lone = turnscope(played(0, .5), THREE)
    panels = {panel['name']: panel for panel in lone.part('strip')['panels']}
    assert panels['clip_fraction']['lines'] is None and len(panels['reward']['lines'][0]) == 1

# --- what is sent

def test_only_the_visible_parts_are_sent():
    """25 times the episodes or a group of 400 rollouts of 60 turns: no more rows, no more bytes; scrolling brings
    other ones."""
    sizes = [sum(sent(turnscope(crowd(n, 6, 20), THREE)).values()) for n in (16, 400)]
    assert sizes[1] < 1.3*sizes[0]
    scope = turnscope(crowd(400, 60, 4, group=400), THREE)
    grid = scope.part('grid')
    assert (grid['rows'], len(grid['lines']), grid['columns'],
        len(grid['lines'][0]['cells'])) == (400, ROWS, 60, COLUMNS)
    assert max(sent(scope).values()) < 60_000
    scope.act(dict(do='look', row=390, column=50, other=False))
    grid = scope.part('grid')
    assert grid['row'] + len(grid['lines']) == 400 and grid['column'] + len(grid['times']) == 60
    for _ in range(30): scope.move(turns=1)
    assert scope.turn in cells(scope.part('grid'))  # the grid follows the chosen turn
    scope.act(dict(do='look', row=-5, column=10**9))
    assert scope.part('grid')['lines']

def test_unchanged_parts_are_not_sent_again(run):
    """A move changes the head, the grid's mark, the pane and the row; the strip, the menu and the banner stay where
    they are."""
    pytest.importorskip('anywidget')
    scope = turnscope(run, THREE)
    changed = []
    scope.widget.observe(lambda change: changed.append(change['name']), list(PARTS))
    scope.answer(dict(do='move', turns=1))
    assert set(changed) == {'head', 'grid', 'pane', 'row'}
    changed.clear()
    scope.answer(dict(do='choose_token', to=1))
    assert changed == ['head']
    changed.clear()
    scope.answer(dict(do='estimate', to='gigpo'))
    assert set(changed) == {'head', 'grid', 'pane', 'row'}

@pytest.mark.slow
def test_two_million_tokens_open_in_two_seconds(tmp_path):
    """1,000 episodes of 2,000 tokens, from the Parquet file to the first screen, and the moves after it; CPU time,
    as the machine is shared."""
    folder = write_run(tmp_path/'run', steps=1)
    crowd(1000, 20, 100).save(folder/'episodes'/'step_000000.parquet')
    def took(work):
        start = time.process_time()
        work()
        return time.process_time() - start
    opened = []
    def first_screen():
        opened.append(turnscope(folder, THREE))
        sent(opened[-1])
    first_screen()  # imports
    seconds = dict(open=min(took(first_screen) for _ in range(3)))
    scope = opened[-1]
    for name, move in dict(move=lambda: scope.move(rows=1),
                           group=lambda: scope.group_by(1), unsure=lambda: scope.next_unsure(),
                           look=lambda: scope.look(0, 8), estimate=lambda: scope.estimate('gigpo'),
                           search=lambda: scope.search('word17 word3')).items():
        seconds[name] = took(lambda: (move(), sent(scope)))
    print({name: f'{1000*s:.0f} ms' for name, s in seconds.items()},
        {name: f'{size:,} bytes' for name, size in sent(scope).items()})
    assert seconds['open'] < 2 and max(seconds[name] for name in ('move', 'group', 'unsure', 'look')) < .2

# --- text that attacks

def test_hostile_text_is_cut_and_made_visible():
    """Markup stays letters, nothing that has no shape or turns the direction is sent, 100 kB become a few hundred
    characters."""
    scope = turnscope(hostile_batch())
    text = json.dumps({name: scope.part(name) for name in PARTS}, ensure_ascii=False)
    assert '<script>window.hit=1</script>' in text and len(text) < 40_000
    for char in '\x1b\x00\x07\u202e\u2066\u200b\ufeff\x9b\U000e0041': assert char not in text
    text.encode()  # no half surrogate pair is left
    html = scope.static()
    assert '<script' not in html and '<img' not in html and '\u202e' not in html
    for query in HOSTILE:
        scope.act(dict(do='search', text=query))
        sent(scope)

def test_pieces_lose_nothing_but_what_they_name():
    """Joined, the plain pieces and symbols stand for every character that was kept."""
    assert pieces('') == [] and pieces('\n', lines=True) == [['t', '\n']] and pieces('\n') == [['e', '↵']]
    assert ''.join(text for _, text in pieces('élan שלום')) == 'élan שלום'
    head, cut, tail = pieces('x'*100_000, 30)
    assert (head, cut, tail) == (['t', 'x'*20], ['c', '99,970 characters cut'], ['t', 'x'*10])

def test_nothing_but_the_listed_actions_can_be_called(scope):
    """A message is a name from a list with its arguments; everything else becomes a message to read."""
    for wrong in (None, 3, [], {}, dict(do='load', step=0), dict(do='__class__'), dict(do='static'),
                  dict(do='move', rows='a'), dict(do='move', sideways=1), dict(do='choose_turn', to='x'),
                  dict(do='choose_turn', to=-1), dict(do='choose_step', to=99), dict(do='step_near', to='x')):
        scope.act(wrong)
        sent(scope)
        assert scope.message and scope.played.step == 3

# --- the twin

def test_the_twin_shows_both_estimators_and_their_difference(run):
    """No script, no link to elsewhere; the numbers of both grids and of the difference; titles and descriptions on
    every picture."""
    html = turnscope_html(run, THREE, first='gigpo', second='grpo', step=1, beside=3)
    assert '<script' not in html and 'http' not in html
    assert (html.count('<svg') == html.count('<desc>') and 'gigpo − grpo' in html and 'Step 3: the same task' in html
        and '<details' in html)
    scope = turnscope(run, THREE, step=1)
    turns = scope.played.members(scope.group).turns
    one, two = (scope.values(scope.played, name)[1][turns] for name in ('gigpo', 'grpo'))
    for value in [*one, *two, *(one - two)]: assert f'<b>{signed(float(value))}</b>' in html
    with pytest.raises(ValueError, match='not offered'): turnscope_html(run, THREE, first='nobody')

def test_every_link_of_the_twin_leads_somewhere():
    """Grids without tokens of their own have tiles that can be focused but are no links."""
    import re
    b = crowd(8, 4, 6, group=4)
    twin = turnscope_html(b, dict(grpo=grpo, gigpo=gigpo), second='gigpo')
    wanted, there = set(re.findall(r'href="#([^"]+)"', twin)), set(re.findall(r'\bid="([^"]+)"', twin))
    assert wanted and wanted <= there and 'tabindex="0" role="img"' in twin
