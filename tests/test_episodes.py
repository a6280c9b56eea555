"What goes into a batch comes out: through tables, files, joins and selections; and a file is whole or absent."
import json, math, os, random, signal

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from agentlab.episodes import SCHEMA_VERSION, Batch, Episode, Table, Turn, atomic, derive, need, state_key
from small import TABLES, exactly, finish, fork, same_batch

quick = settings(max_examples=40, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
fewer = settings(quick, max_examples=15)  # pandas is slow to start
number = st.one_of(st.sampled_from([0., -0., 1e-300, 1/3, math.inf, -math.inf, math.nan]), st.floats(-9, 9))
single = st.one_of(st.sampled_from([-math.inf, math.nan]), st.floats(-9, 9, width=32))
hostile = st.one_of(st.sampled_from(['', ' ', '\x00', '"', "\\'", '</script><b>', '\x1b[2J', '\ud800', '\u202e', 'é',
    'e\u0301', '🔑', 'NULL', 'nan', '-1', '{"a":1}', 'a\nb']), st.text(max_size=5))
plain = st.one_of(st.sampled_from(['', ' ', '</script><b>', '\x1b[2J', 'é', 'e\u0301', '🔑', 'b2']),
    st.text('abé🔑 <', max_size=4))
state = st.one_of(st.none(), st.integers(-2, 2), plain, st.tuples(hostile, st.booleans()),
    st.lists(st.integers(0, 1), max_size=2),
    st.dictionaries(st.sampled_from('ab'), st.integers(0, 1), max_size=2))

@st.composite
def a_turn(draw, t, window):
    ids = draw(st.lists(st.integers(0, 2**40), max_size=3))
    several = lambda values: draw(st.lists(values, min_size=len(ids), max_size=len(ids)))
    return Turn(t, draw(hostile), draw(hostile), draw(st.lists(st.integers(0, 9), max_size=3)), ids, several(single),
        several(single),
        draw(number), draw(state), draw(number), draw(st.booleans()), window)

@st.composite
def an_episode(draw):
    "An episode of up to four turns in up to three context windows, perhaps of no turn at all."
    times = sorted(draw(st.sets(st.integers(0, 9), max_size=4)))
    windows = sorted(draw(st.lists(st.integers(0, 2), min_size=len(times), max_size=len(times))))
    return Episode([draw(a_turn(t, w)) for t, w in zip(times, windows)], group=draw(st.integers(-2**62, 2**62)),
        game=draw(st.integers(0, 3)), seat=draw(hostile),
        outcome=draw(number), success=draw(st.booleans()), truncated=draw(st.booleans()),
        error=draw(st.none() | hostile), final=draw(hostile),
        source=draw(hostile), policy=draw(hostile), step=draw(st.integers(0, 3)), last_value=draw(number),
        instruction=draw(st.none() | hostile))

def with_origins(episodes, draw):
    "Some turns are copies of earlier ones."
    places = [(i, j) for i, e in enumerate(episodes) for j in range(len(e.turns))]
    for n, (i, j) in enumerate(places):
        if n and draw(st.integers(0, 3)) == 0: episodes[i].turns[j].origin = draw(st.sampled_from(places[:n]))
    return episodes

@st.composite
def lists_of_episodes(draw, least=0):
    return with_origins(draw(st.lists(an_episode(), min_size=least, max_size=5)), draw)

def has_state(episodes): return any(t.state is not None for e in episodes for t in e.turns)

# ---- from episodes to tables

@quick
@given(lists_of_episodes())
def test_tables_hold_what_the_episodes_held(episodes):
    batch = Batch.from_episodes(episodes)
    turns = [t for e in episodes for t in e.turns]
    assert batch.turns.t.tolist() == [t.t for t in turns]
    assert batch.turns.episode.tolist() == [i for i, e in enumerate(episodes) for _ in e.turns]
    assert batch.tokens.id.tolist() == [x for t in turns for x in [*t.context_ids, *t.ids]]
    assert batch.tokens.turn.tolist() == [x for i, t in enumerate(turns)
        for x in [-1]*len(t.context_ids) + [i]*len(t.ids)]
    assert batch.turn_lengths().tolist() == [len(t.ids) for t in turns]
    exactly(batch.action('sampler_logp'), torch.tensor([x for t in turns for x in t.logps], dtype=torch.float32))
    exactly(batch.turns.reward, torch.tensor([t.reward for t in turns], dtype=torch.float64))
    exactly(batch.episodes.outcome, torch.tensor([e.outcome for e in episodes], dtype=torch.float64))
    assert batch.episodes.group.tolist() == [e.group for e in episodes]
    for column in ('seat', 'error', 'instruction', 'final'):
        assert ([batch.labels[column].get(k) for k in batch.episodes[column].tolist()]
            == [getattr(e, column) for e in episodes])

@quick
@given(lists_of_episodes())
def test_every_row_of_tokens_begins_at_zero(episodes):
    "One row for each context window of each episode, with positions 0, 1, 2, ..."
    batch = Batch.from_episodes(episodes)
    windows = [(i, w) for i, e in enumerate(episodes) for w in dict.fromkeys(t.window for t in e.turns)]
    assert batch.rows.episode.tolist() == [i for i, _ in windows]
    for row, (i, window) in enumerate(windows):
        mine = batch.tokens.row == row
        assert batch.tokens.position[mine].tolist() == list(range(int(mine.sum())))
        assert int(mine.sum()) == sum(len(t.context_ids) + len(t.ids) for t in episodes[i].turns if t.window == window)

@quick
@given(lists_of_episodes(1))
def test_equal_states_and_only_they_have_equal_keys(episodes):
    "A turn without a state is compared with nobody."
    batch, turns = Batch.from_episodes(episodes), [t for e in episodes for t in e.turns]
    if not has_state(episodes):
        assert 'state' not in batch.turns
        return
    canonical = lambda x: json.dumps(x, sort_keys=True)
    assert (len(batch.turns.state.unique()) == len({canonical(t.state) for t in turns if t.state is not None})
        + sum(t.state is None for t in turns))
    for key, turn in zip(batch.turns.state.tolist(), turns):
        if turn.state is not None: assert key == state_key(turn.state)

def test_a_number_and_its_text_are_two_states():
    turns = [Turn(t, state=state) for t, state in enumerate(['1', 1, [1], '[1]', 'null', True, 'true'])]
    keys = Batch.from_episodes([Episode(turns)]).turns.state.tolist()
    assert keys == [state_key(t.state) for t in turns] and len(set(keys)) == len(turns)

def test_turns_without_a_state_stay_alone_when_batches_are_joined():
    one, two = (Batch.from_episodes([Episode([Turn(0, state='a'), Turn(1)], group=3, game=game)]) for game in (0, 1))
    assert len(Batch.concat([one, two]).turns.state.unique()) == 3

def test_ids_without_log_probabilities_are_refused():
    with pytest.raises(ValueError, match='2 ids, 1 logps and 2 entropies'):
        Batch.from_episodes([Episode([Turn(0, ids=[1, 2], logps=[0.], entropies=[0., 0.])])])

def test_a_state_that_is_no_json_is_refused():
    with pytest.raises(TypeError, match='cannot be written as JSON'):
        Batch.from_episodes([Episode([Turn(0, state={1, 2})])])

# ---- to a file and back

@quick
@given(lists_of_episodes())
def test_save_and_load_are_exact(tmp_path, episodes):
    batch = Batch.from_episodes(episodes)
    same_batch(Batch.load(batch.save(tmp_path/'b.parquet')), batch)

@quick
@given(lists_of_episodes(), st.data())
def test_added_columns_and_labels_survive(tmp_path, episodes, data):
    batch = Batch.from_episodes(episodes)
    old = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(len(batch.tokens)))
    batch = (batch.with_action(old_logp=old).with_turns(value=torch.rand(len(batch.turns), dtype=torch.float64))
        .with_episodes(score=torch.zeros(len(batch))))
    batch = batch.replace(labels=batch.labels | dict(token={i: data.draw(hostile) for i in range(3)}))
    back = Batch.load(batch.save(tmp_path/'b.parquet'))
    same_batch(back, batch)
    exactly(back.action('old_logp'), old)

@quick
@given(lists_of_episodes(1), st.data())
def test_a_selection_survives(tmp_path, episodes, data):
    "The offsets in a file are its own."
    batch = Batch.from_episodes(episodes)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(episodes), max_size=len(episodes))))
    part = batch.select(mask)
    same_batch(Batch.load(part.save(tmp_path/'b.parquet')), part)

def test_a_frame_survives(tmp_path):
    "A batch from a table has no sampler's columns, and does not need them."
    batch = Batch.from_turns(pd.DataFrame(dict(group=[0, 0, 1], episode=list('aab'), t=[0, 1, 0],
        reward=[0., 1., math.nan], n_tokens=[2, 0, 1], state=['x', 'y', 'x'])))
    same_batch(Batch.load(batch.save(tmp_path/'b.parquet')), batch)

def test_one_line_per_episode(tmp_path):
    frame = pd.read_parquet(played().save(tmp_path/'b.parquet'))
    assert len(frame) == 3 and frame['tokens.id'].tolist()[0].tolist() == [7, 8, 1, 2, 9, 3]

# ---- files that cannot be read

def played():
    "Three episodes: of two turns, of none, of one."
    one = [Turn(0, context_ids=[7, 8], ids=[1, 2], logps=[-.1, -.2], entropies=[.5, .6], state='s0'),
        Turn(1, context_ids=[9], ids=[3], logps=[-.3], entropies=[.7], reward=1.)]
    return Batch.from_episodes([Episode(one, outcome=1., success=True), Episode(error='it broke', group=1),
        Episode([Turn(0, context_ids=[4], ids=[5], logps=[0.], entropies=[0.])], group=1)])

def rewritten(path, change):
    "The file with its arrow table changed."
    pq.write_table(change(pq.read_table(path)), path)
    return path

@pytest.mark.parametrize('column', ['episodes.group', 'episodes.outcome', 'rows.index', 'turns.t', 'turns.reward',
    'tokens.id', 'tokens.row', 'tokens.turn'])
def test_a_missing_column_is_named(tmp_path, column):
    path = rewritten(played().save(tmp_path/'b.parquet'), lambda table: table.drop_columns([column]))
    with pytest.raises(ValueError, match=rf"b\.parquet.*lacks the columns \['{column}'\]"): Batch.load(path)

def test_a_foreign_file(tmp_path):
    pd.DataFrame(dict(a=[1])).to_parquet(tmp_path/'b.parquet')
    with pytest.raises(ValueError, match=r'is no batch of agentlab.*Write it with Batch\.save'):
        Batch.load(tmp_path/'b.parquet')

def test_a_newer_schema(tmp_path):
    path = rewritten(played().save(tmp_path/'b.parquet'), lambda table: table.replace_schema_metadata(
        {**table.schema.metadata, b'schema_version': str(SCHEMA_VERSION + 1).encode()}))
    with pytest.raises(ValueError, match=rf'schema_version {SCHEMA_VERSION + 1}.*Upgrade'): Batch.load(path)

def test_a_truncated_file(tmp_path):
    "However short it was cut."
    data = played().save(tmp_path/'b.parquet').read_bytes()
    for end in {0, 1, 4, 8, len(data) - 1, len(data) - 4, *range(0, len(data), len(data)//40)}:
        (tmp_path/'b.parquet').write_bytes(data[:end])
        with pytest.raises(ValueError, match='b.parquet cannot be read as Parquet'): Batch.load(tmp_path/'b.parquet')

def test_a_damaged_file(tmp_path):
    """A changed byte is noticed, or changes no number. (In a column's name it makes another column; in a label
    another text.)"""
    whole, chance = played(), random.Random(0)
    path = whole.save(tmp_path/'b.parquet')
    data = path.read_bytes()
    for place in chance.sample(range(len(data)), 150):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place+1:])
        try: back = Batch.load(path)
        except ValueError as error:
            assert 'b.parquet' in str(error)
            continue
        for name in TABLES:
            for column in set(getattr(back, name).columns) & set(getattr(whole, name).columns):
                exactly(getattr(back, name)[column], getattr(whole, name)[column], f'{place}: {name}.{column}')

# ---- written whole, or not at all

def test_an_exception_leaves_the_old_file(tmp_path):
    path = tmp_path/'folder'/'file'
    with atomic(path) as new: new.write_text('old')
    with pytest.raises(RuntimeError, match='on the way'):
        with atomic(path) as new:
            new.write_text('ne')
            raise RuntimeError('on the way')
    assert path.read_text() == 'old' and os.listdir(path.parent) == ['file']

@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = played().save(tmp_path/'b.parquet')
    def fail(*_): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match='No space'): played().select([0]).save(path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ['b.parquet'] and len(Batch.load(path)) == 3

def die_writing(path, call):
    "Write half a file, or flush it, or rename it, and die there."
    if call != 'write': setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with atomic(path) as new:
        new.write_text('ne')
        if call == 'write': os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.xdist_group('forks')
@pytest.mark.parametrize('call', ['write', 'fsync', 'replace'])
def test_a_killed_writer_leaves_the_old_file(tmp_path, call):
    path, log = tmp_path/'file', tmp_path/'log'
    path.write_text('old')
    assert finish(fork(die_writing, path, call, log=log), log)[0] == -signal.SIGKILL
    assert path.read_text() == 'old'
    assert [p.name for p in tmp_path.glob('[!.]*') if p != log] == ['file']  # what is left has a hidden, temporary name

# ---- joining and choosing

pairs = st.tuples(lists_of_episodes(1), lists_of_episodes(1)).filter(lambda two: has_state(two[0]) == has_state(two[1]))

@quick
@given(pairs)
def test_join_then_choose_gives_the_parts_back(two):
    first, second = map(Batch.from_episodes, two)
    whole = Batch.concat([first, second])
    numbered = torch.arange(len(whole))
    same_batch(whole.select(numbered < len(first)), first, labels=False)
    same_batch(whole.select(numbered >= len(first)), second, labels=False)
    for column in first.labels:
        for part in (first, second): assert part.labels[column].keys() <= whole.labels[column].keys()

@quick
@given(lists_of_episodes(1), st.data())
def test_choose_then_join_gives_the_whole_back(episodes, data):
    "Also where a copied turn is chosen and the turn it was copied from is not: then it is its own origin."
    for e in episodes:
        for t in e.turns: t.origin = None
    batch = Batch.from_episodes(episodes)
    cut = data.draw(st.integers(0, len(episodes)))
    mask = torch.arange(len(batch)) < cut
    same_batch(Batch.concat([batch.select(mask), batch.select(~mask)]), batch)

@quick
@given(lists_of_episodes(1), st.data())
def test_a_choice_is_the_batch_of_the_chosen_episodes(episodes, data):
    for e in episodes:
        for t in e.turns: t.origin = None
    index = sorted(data.draw(st.sets(st.integers(0, len(episodes) - 1), min_size=1)))
    batch, part = Batch.from_episodes(episodes), Batch.from_episodes([episodes[i] for i in index])
    chosen = batch.select(index)
    # a turn without a state is told apart by its place; frame_row names the row of the whole
    stateful = {'state', 'frame_row'}
    assert chosen.turns.frame_row.tolist() == [i for i, e in enumerate(batch.turns.episode.tolist()) if e in index]
    drop = lambda b: b.replace(turns=Table(**{c: b.turns[c] for c in b.turns.columns if c not in stateful}))
    same_batch(drop(chosen), drop(part), labels=False)

def test_origins_in_a_choice():
    turn = lambda origin=None: Turn(0, context_ids=[1], ids=[2], logps=[0.], entropies=[0.], origin=origin)
    batch = Batch.from_episodes([Episode([turn()]), Episode([turn((0, 0))]), Episode([turn((1, 0))])])
    assert batch.turns.origin.tolist() == [0, 0, 1]
    assert batch.select([1, 2]).turns.origin.tolist() == [0, 0]  # the copied-from turn is gone, the chain goes on
    assert Batch.concat([batch, batch]).turns.origin.tolist() == [0, 0, 1, 3, 3, 4]

def test_choosing_nothing():
    for nothing in ([], torch.tensor([], dtype=torch.long), [False]*3): assert len(played().select(nothing)) == 0

def test_columns_that_cannot_be_joined():
    batch = played()
    with pytest.raises(ValueError, match='tokens: cannot join columns'):
        Batch.concat([batch, batch.with_action(old_logp=batch.action('sampler_logp'))])

def test_nothing_to_join():
    with pytest.raises(ValueError, match='no batches'): Batch.concat([])

# ---- from a table

@st.composite
def frames(draw):
    "A shuffled table of turns, and the same as episodes."
    rows, episodes = [], []
    for name in draw(st.lists(st.text('abc', min_size=1, max_size=3), unique=True, min_size=1, max_size=4)):
        group, seat, times = (draw(st.integers(-3, 3)), draw(plain),
            sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=3))))
        turns = [dict(t=t, reward=draw(st.integers(-8, 8))/8, state=draw(plain), n_tokens=draw(st.integers(0, 3)))
            for t in times]
        rows += [dict(group=group, episode=name, seat=seat, **turn) for turn in turns]
        episodes.append((name, Episode([Turn(x['t'], ids=[0]*x['n_tokens'], logps=[0.]*x['n_tokens'],
            entropies=[0.]*x['n_tokens'], reward=x['reward'], state=x['state'])
            for x in turns],
            group=group, seat=seat, outcome=sum(x['reward'] for x in turns))))
    order = draw(st.permutations(range(len(rows))))
    shuffled = pd.DataFrame([rows[i] for i in order])
    named = dict(episodes)
    # episodes are numbered as they first appear
    return shuffled, [named[name] for name in dict.fromkeys(rows[i]['episode'] for i in order)]

@fewer
@given(frames())
def test_a_table_and_episodes_say_the_same(both):
    frame, episodes = both
    one, two = Batch.from_turns(frame), Batch.from_episodes(episodes)
    for column in ('group', 'outcome', 'seat', 'source', 'truncated', 'success', 'last_value', 'error', 'instruction'):
        exactly(one.episodes[column], two.episodes[column], column)
    for column in ('episode', 't', 'reward', 'state'): exactly(one.turns[column], two.turns[column], column)
    for column in ('row', 'turn', 'position', 'weight'): exactly(one.tokens[column], two.tokens[column], column)

@fewer
@given(frames())
def test_the_order_of_the_caller_comes_back(both):
    frame, batch = both[0], Batch.from_turns(both[0])
    for column in ('t', 'reward'):
        assert frame[column].to_numpy()[batch.turns.frame_row.tolist()].tolist() == batch.turns[column].tolist()
    mine = torch.empty(len(frame), dtype=torch.float64)
    mine[batch.turns.frame_row] = batch.turns.reward  # one value for each row of the caller
    assert mine.tolist() == frame['reward'].tolist()

@fewer
@given(frames())
def test_a_table_of_the_batch_gives_the_batch_back(both):
    one = Batch.from_turns(both[0])
    two = Batch.from_turns(one.frame())
    for column in ('episode', 't', 'reward', 'state'): exactly(one.turns[column], two.turns[column], column)
    for column in ('group', 'outcome', 'seat'): exactly(one.episodes[column], two.episodes[column], column)

def test_text_that_no_file_can_hold_in_a_table_to_read():
    "Half a surrogate pair, as a model may write it."
    frame = Batch.from_episodes([Episode([Turn(0)], final='\ud800')]).frame()
    assert len(frame) == 1

def table(**columns): return pd.DataFrame(dict(group=[0, 0, 1], episode=['a', 'a', 'b'], t=[0, 1, 0]) | columns)

def test_groups_with_names():
    batch = Batch.from_turns(table(group=['left', 'left', 'right']))
    assert batch.episodes.group.dtype == torch.int64 and len(batch.episodes.group.unique()) == 2

def test_a_turn_without_a_state_in_a_table():
    "As from episodes: it is compared with nobody."
    keys = Batch.from_turns(table(state=[None, 'x', None])).turns.state
    assert len(keys.unique()) == 3

@pytest.mark.parametrize('columns, said', [
    (dict(t=[0, 0, 0]), "episode 'a' has two rows with t=0"),
    (dict(outcome=[1, 2, 3]), "'outcome' belongs to an episode, but it varies in episode 'a'"),
    (dict(seat=['x', 'y', 'x']), "'seat' belongs to an episode"), (dict(n_tokens=[1, -1, 1]), 'n_tokens'),
    (dict(n_tokens=[1., math.nan, 1.]), 'n_tokens'),
    (dict(text=['x', 'y', 'z']), "'text'|'x', which is no number")])
def test_tables_that_are_refused(columns, said):
    with pytest.raises(ValueError, match=said): Batch.from_turns(table(**columns))

@pytest.mark.parametrize('column', ['group', 'episode', 't'])
def test_a_table_without(column):
    with pytest.raises(ValueError, match=rf"lacks \['{column}'\]"): Batch.from_turns(table().drop(columns=column))

# ---- keys and small things

@quick
@given(st.recursive(st.none() | st.booleans() | st.integers() | hostile, lambda x: st.lists(x, max_size=2)
    | st.dictionaries(hostile, x, max_size=2), max_leaves=4), st.randoms())
def test_state_keys(value, chance):
    "Lists and tuples are one thing, and the order of a dictionary does not matter."
    def other(x):
        if isinstance(x, list): return tuple(map(other, x))
        if isinstance(x, dict): return {k: other(x[k]) for k in chance.sample(sorted(x), len(x))}
        return x
    assert state_key(other(value)) == state_key(value)
    assert -2**63 <= state_key(value) < 2**63 and 0 <= derive(value) < 2**63

def test_moving_values_down_the_tree():
    batch = played()
    assert batch.of_turn('outcome').tolist() == [1, 1, 0] and batch.spread(batch.turns.reward).tolist() == [0, 0, 1, 0]
    assert len(batch.of_turn('group', 'seat').unique()) == 2
    assert batch.unit('turn') is None and batch.unit('episode').tolist() == [0, 0, 2]
    with pytest.raises(ValueError, match="rows='token'"): batch.unit('token')
    with pytest.raises(ValueError, match='2 values for 3 turns'): batch.spread(torch.zeros(2))
    with pytest.raises(ValueError, match='old_logp.*with_action'): batch.action('old_logp')
    with pytest.raises(ValueError, match='5 values for 4 action tokens'): batch.with_action(old_logp=torch.zeros(5))
    with pytest.raises(AttributeError, match="no column 'value'"): batch.turns.value
    with pytest.raises(ValueError, match='one length'): batch.with_turns(value=torch.zeros(2))
    with pytest.raises(ValueError, match='a critic reads values.*Train it'):
        need(batch.turns, 'value', 'a critic reads values', 'Train it.')
