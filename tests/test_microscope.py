"""The credit microscope: its numbers are the estimators' own, a drag moves them, a case where two disagree is one,
and nothing that is typed breaks it."""
import math
from functools import partial
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from agentlab.credit import dr_grpo, estimators, gae, gigpo, grpo, hgpo, mars, reinforce_pp, rloo
from agentlab.episodes import Batch
from agentlab.view.microscope_widget import (FIELDS, Case, Microscope, accepted, advantages, disagreement, microscope,
    microscope_html, read_cells, regroup, small_turns, sweep, to_cells)
from later import deferred
from test_view import assert_harmless
from view_data import HOSTILE

ALL = deferred(lambda: {name: f for name, f in estimators.items() if set(f.needs) <= {'group', 'state', 'seat'}})

@st.composite
def tables(draw):
    """Up to four episodes of up to three turns, in any order of rows."""
    rows = []
    for episode in range(draw(st.integers(1, 4))):
        group, seat = draw(st.integers(0, 1)), draw(st.sampled_from(['A', 'B']))
        for t in range(draw(st.integers(1, 3))):
            rows.append(dict(group=group, episode=episode, t=t, seat=seat, state=draw(st.sampled_from('xyz')),
                reward=draw(st.sampled_from([-1., 0., .5, 2.]))))
    return pd.DataFrame(draw(st.permutations(rows)))

# --- the core

@given(tables(), st.sampled_from([0., .5, .95]), st.sampled_from([0, 1]))
@settings(max_examples=8, deadline=None)
def test_the_numbers_are_the_estimators_own(turns, gamma, ddof):
    """Every column is what the estimator gives for the batch of this table, in the order of the table's rows."""
    arguments = dict(gamma=gamma, ddof=ddof)
    values, problems = advantages(turns, ALL, arguments)
    assert problems.empty and list(values) == list(ALL) and len(values) == len(turns)
    batch = Batch.from_turns(turns)
    for name, function in ALL.items():
        direct = torch.empty(len(turns), dtype=torch.float64)
        direct[batch.turns.frame_row] = function(batch, **accepted(function, arguments))
        assert values[name].tolist() == direct.tolist(), name

@given(tables())
@settings(max_examples=8, deadline=None)
def test_a_failure_is_one_column(turns):
    """What raises, or gives something of another length, is NaN with its message; the neighbours do not notice."""
    def raises(b): raise RuntimeError('<b>boom</b>')
    broken = dict(raises=raises, short=lambda b: torch.zeros(99), text=lambda b: 'no numbers', critic=gae)
    values, problems = advantages(turns, dict(first=grpo) | broken | dict(last=gigpo))
    assert values[list(broken)].isna().all().all() and set(problems.estimator) == set(broken)
    assert 'RuntimeError: <b>boom' in problems.problem[0]
    assert values[['first', 'last']].equals(advantages(turns, dict(first=grpo, last=gigpo))[0])

def test_arguments_reach_those_that_have_them():
    """A partial keeps what it has set; an unknown name reaches nobody."""
    assert accepted(dr_grpo, dict(gamma=1, ddof=0, rows='turn')) == dict(rows='turn')
    assert accepted(lambda b, **more: b, dict(gamma=1)) == {}
    turns = small_turns()
    fixed = advantages(turns, dict(a=partial(gigpo, gamma=0.)), dict(gamma=1., nonsense=3))[0]
    assert fixed.a.equals(advantages(turns, dict(a=gigpo), dict(gamma=0.))[0].a)

def test_columns_reach_tokens_and_episodes():
    """A critic's value is the token's, a prior the episode's."""
    turns = small_turns().assign(value=[.5, .25, .5], greedy=[1., 1., 1.])
    values, problems = advantages(turns, dict(gae=gae, remax=estimators['remax']), dict(whiten=False))
    assert problems.empty
    assert (values.gae.tolist() == pytest.approx([.5, -.25, 0.])
        and values.remax.tolist() == pytest.approx([0., -1., -.5]))

def test_regroup_takes_walls_down():
    """Without walls between tasks two groups of one are a group of two; without states every turn is compared with
    all."""
    turns = pd.DataFrame(dict(group=[0, 1], episode=[0, 1], t=0, state=['x', 'y'], seat=['A', 'B'], reward=[1., 0.]))
    kept, merged = (advantages(regroup(turns, within), dict(dr_grpo=dr_grpo))[0].dr_grpo.tolist()
        for within in (('task', 'seat', 'state'), ()))
    assert kept == [1., 0.] and merged == [.5, -.5]
    with pytest.raises(ValueError, match="'house' is not among"): regroup(turns, ('house',))

def test_sweep_is_many_calls():
    """A sweep holds at every position what one call gives there."""
    turns = small_turns()
    moved = sweep(turns, dict(gigpo=gigpo, grpo=grpo), 'gamma', [0., .5])
    assert len(moved) == 3*2*2
    for (name, gamma), part in moved.groupby(['estimator', 'gamma']):
        assert part.advantage.tolist() == advantages(turns, {name: estimators[name]},
            dict(gamma=gamma))[0][name].tolist()

# --- disagreement

PAIRS = [(grpo, gigpo), (grpo, mars), (reinforce_pp, grpo), (hgpo, gigpo), (grpo, gae)]

@pytest.mark.parametrize('first, second', PAIRS, ids=lambda f: f.__name__)
def test_a_case_is_one_and_minimal(first, second):
    """For several seeds: opposite signs at that turn, the same case again for the same seed, and none left when any
    one turn is taken out."""
    both = dict(first=first, second=second)
    for seed in (0, 1) if second is gigpo else (1,):
        case = disagreement(first, second, seed)
        values = advantages(case.turns, both)[0]
        assert (case.kind == 'opposite signs' and case.first*case.second < 0
            and values.iloc[case.turn].tolist() == [case.first, case.second])
        for row in case.turns.index if len(case.turns) else ():
            fewer = case.turns.drop(index=row).assign(t=lambda f: f.groupby('episode').cumcount())
            if fewer.groupby(['group', 'seat']).episode.nunique().min() < 2: continue  # somebody would be alone
            left = advantages(fewer, both)[0]
            share = left/left.abs().max()
            assert not ((left['first']*left['second'] < 0) & (share.abs().min(axis=1) >= .05)).any()
    again = disagreement(first, second, 1)
    assert again.turns.equals(case.turns) and (again.turn, again.kind) == (case.turn, case.kind)

def test_those_that_never_contradict_each_other():
    """rloo and dr_grpo differ by n/(n-1), so only tasks of different sizes tell them apart; nobody disagrees with
    himself; who cannot read is named."""
    case = disagreement(rloo, dr_grpo, tries=40)
    assert case.kind == 'size' and case.turns.groupby('group').episode.nunique().nunique() == 2
    assert disagreement(grpo, grpo, tries=10) is None
    with pytest.raises(ValueError, match='KeyError'): disagreement(grpo, lambda b: {}['x'], tries=3)

# --- text

@given(st.lists(st.text(st.characters(), max_size=30), min_size=3, max_size=3),
    st.text(st.characters(codec='utf-8'), max_size=20))
@settings(max_examples=25, deadline=None)
def test_any_text_stays_text(states, name):
    """States, seats and names of estimators cannot leave their cells."""
    assert_harmless(microscope_html(small_turns().assign(state=pd.Series(states, dtype=object), episode=[0, 0, 1]),
        {name: grpo, 'broken': lambda b: {}[states[0]]}))

def test_hostile_states():
    """Scripts, control characters, right-to-left marks, 100 kB: harmless, small."""
    for start in range(0, len(HOSTILE), 3):
        states = [*HOSTILE[start:start + 3], 'x', 'x'][:3]
        page = microscope_html(small_turns().assign(**{name: pd.Series(x, dtype=object) for name, x in dict(
            state=states, seat=states[:1]*3, episode=[0, 0, 1]).items()}), dict(grpo=grpo))
        assert_harmless(page)
        assert len(page) < 20_000

def test_every_number_shows_its_sign():
    """Mark, sign and word; the row where signs differ says so."""
    plain = dict(scale=None, gamma=1., rows='episode')
    page = microscope_html(small_turns(), dict(grpo=grpo, gigpo=gigpo, mars=mars), plain)
    for text in ('▲ +0.75', '▼ −0.25', '● 0', 'grpo: praise +0.25', 'gigpo: blame −0.25', '≠ opposite', '≠ one is 0',
                 'agree', 'gamma=1'):
        assert text in page, text

# --- cells

@given(tables())
@settings(max_examples=8, deadline=None)
def test_cells_and_table_are_inverse(turns):
    """What is written into cells and read back has the same advantages."""
    back = read_cells(to_cells(turns))
    assert back.reward.tolist() == turns.reward.tolist()
    assert advantages(back, ALL)[0].to_numpy() == pytest.approx(advantages(turns, ALL)[0].to_numpy(), abs=1e-9)

@pytest.mark.parametrize('name, text, message',
    [('reward', 'x', "row 2, reward: 'x' is no number"), ('reward', 'nan', 'a reward is a number'),
    ('reward', 'inf', 'is infinite'), ('t', '1.5', 'no whole number'),
    ('outcome', '?', 'row 2, outcome')])
def test_what_cannot_be_read_is_named(name, text, message):
    """Row and column stand in the message."""
    cells = to_cells(small_turns())
    cells[1][name] = text
    with pytest.raises(ValueError, match=message.replace('?', r'\?')): read_cells(cells)

# --- the widget, without a browser

def ready(**more):
    scope = microscope(small_turns(), dict(grpo=grpo, gigpo=gigpo, mars=mars), **more)
    scope.widget
    return scope

def test_a_drag_changes_the_numbers():
    """Each slider moves the estimators that have its argument, and only those; Own defaults brings the first numbers
    back."""
    scope = ready()
    first = scope.numbers.copy()
    for name, value, moved in (('gamma', .2, set()), ('step_weight', 2., {'gigpo'}), ('ddof', '0', {'grpo', 'gigpo'}),
                               ('scale', 'no', {'grpo', 'gigpo'}), ('eps', '1', {'grpo', 'gigpo'})):
        scope.forget()
        assert scope.numbers.equals(first)
        before = scope.picture.value
        scope.controls[name].value = value
        assert {n for n in first if not scope.numbers[n].equals(first[n])} == moved, name
        assert (scope.picture.value != before
            and scope.numbers.equals(advantages(scope.turns, scope.estimators, scope.arguments)[0]))
    scope.controls['eps'].value = 'own default'
    assert scope.arguments == {}

def test_typing():
    """A good cell redraws; a bad one says where, keeps the picture, and is forgiven."""
    scope = ready()
    scope.inputs[2]['reward'].value = '3'
    assert scope.numbers.grpo[0] < 0 and scope.message == ''
    before = scope.picture.value
    for bad in ('', 'x', '1e999', '<b>', 'nan', '0'*200_000 + 'x'): scope.inputs[2]['t'].value = bad
    assert ('row 3, t' in scope.note.value and '<b>' not in scope.note.value and scope.picture.value == before
        and len(scope.note.value) < 2_000)
    scope.inputs[2]['t'].value = '1'
    assert scope.note.value == ''
    scope.inputs[2]['episode'].value = 'a'  # now episode a has two turns with t=1: no estimator can read that
    assert 'two rows with t=1' in scope.picture.value and len(scope.problems) == 3

def test_extreme_cells():
    """Huge numbers, no states at all, a table that no estimator can read: shown, or said, never raised."""
    scope = ready()
    for row, name, text in ((0, 't', '9'*30), (0, 't', '0'), (1, 'reward', '1e308'), (2, 'reward', '-1e308'),
                            (0, 'group', '∞'), (0, 'seat', 'other'), (1, 'seat', 'other'),
                            *((i, 'state', '') for i in range(3))):
        scope.inputs[row][name].value = text
        assert len(scope.numbers) == 3 and scope.picture.value
        assert_harmless(scope.static())

def test_turns_come_and_go():
    """Add to twelve, remove to none, and again."""
    scope = ready()
    scope.replace(scope.cells + [scope.cells[-1] | dict(t=str(t)) for t in range(1, 8)])
    for _ in range(3): scope.add()
    assert len(scope.cells) == 12 and scope.more.disabled and '12 turns are the most' in scope.note.value
    assert len(scope.numbers) == 12 and scope.problems.empty
    scope.remove(0)
    assert len(scope.cells) == 11 and not scope.more.disabled
    scope.replace(scope.cells[:1])
    scope.remove(0)
    assert len(scope.numbers) == 0 and '0 turns' in scope.picture.value
    scope.more.click()
    assert len(scope.numbers) == 1 and list(scope.inputs[0]) == list(FIELDS)

def test_the_button_makes_a_case():
    """The found table stands in the cells and in the picture; the message names row and numbers; walls are up again."""
    scope = ready()
    scope.walls['task'].value = False
    scope.first.value, scope.second.value, scope.seed.value = 'grpo', 'mars', 1
    scope.find.click()
    case = disagreement(grpo, mars, 1)
    assert ('opposite signs' in scope.note.value and scope.shown == ['grpo', 'mars'] == list(scope.choice.value)
        and scope.walls['task'].value)
    assert scope.numbers.iloc[case.turn].tolist() == pytest.approx([case.first, case.second])
    scope.disagree('grpo', 'grpo', tries=10)
    assert 'agree, up to a factor' in scope.note.value

def test_six_are_the_most():
    """Seven estimators are refused where they are given and where they are chosen."""
    seven = {str(i): grpo for i in range(7)}
    with pytest.raises(ValueError, match='6 fit'): microscope(small_turns(), seven)
    with pytest.raises(ValueError, match='6 fit'): microscope_html(small_turns(), seven)
    scope = Microscope()
    scope.widget
    scope.choice.value = list(scope.offered)[:7]
    assert '6 fit' in scope.note.value
    scope.choice.value = list(scope.offered)[:6]
    assert scope.note.value == '' and len(scope.numbers.columns) == 6

def test_twin_is_the_picture():
    """static() is what the widget shows, without a script, and a NaN outcome is no exception."""
    scope = ready()
    scope.inputs[0]['outcome'].value = 'nan'
    assert str(scope.static()) == scope.picture.value and scope.message == ''
    assert_harmless(scope.static())
    assert scope.numbers.grpo.tolist()[:2] == [0., 0.] and scope.turns.outcome.isna().tolist() == [True, True, False]
    assert isinstance(disagreement(grpo, gigpo), Case) and math.isfinite(scope.numbers.gigpo[2])
