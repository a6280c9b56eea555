"""The buffer of past episodes: bounds, draws, exact content, resuming, and kills at any moment.

The episodes and the processes that are killed are in replay_story.py.
"""
import json, math, os, random, shutil, signal, time

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import tensor

from agentlab.episodes import Batch, Turn
from agentlab.replay.buffer import Buffer, Replay, alike, pick, prioritised, stratified, success_first, uniform
from replay_story import bounds, checkpointed, drawn, kept, live, numbered, played, story
from small import exactly, finish, fork, same_batch

def filled(folder=None, adds=6, **bounds):
    buffer = Buffer(folder, **bounds)
    for i in range(adds): buffer.add(played(4*i), step=i)
    return buffer

def is_numbered(batch, numbers):
    "Every episode of a batch is the one of that number, bit for bit (frame_row, group and game aside)."
    wanted = Batch.concat([played(n, 1) for n in numbers])
    assert batch.episodes.replay_number.tolist() == list(numbers)
    for name in ('rows', 'turns', 'tokens'):
        one, two = getattr(batch, name), getattr(wanted, name)
        for c in set(two.columns) - {'frame_row'}: exactly(one[c], two[c], c)
    for c in ('outcome', 'success', 'final', 'step', 'group'): exactly(batch.episodes[c], wanted.episodes[c], c)
    for name in ('state', 'final', 'seat'): assert batch.labels[name] == wanted.labels[name], name

def same_buffer(one, two):
    assert (one.start, one.end, one.max_priority, one.latest) == (two.start, two.end, two.max_priority, two.latest)
    assert set(one.facts.columns) == set(two.facts.columns)
    for c in one.facts.columns: exactly(one.facts[c], two.facts[c], c)
    if len(one): same_batch(one.take(torch.arange(len(one))), two.take(torch.arange(len(two))))

# ---- what comes back

@pytest.mark.parametrize('disk', [False, True])
def test_what_comes_back_is_what_was_added(tmp_path, disk):
    buffer = filled(tmp_path if disk else None)
    is_numbered(buffer.take(tensor([17, 3, 0, 22, 3])), [17, 3, 0, 22, 3])
    if disk: is_numbered(Buffer(tmp_path).take(tensor([17, 3, 3])), [17, 3, 3])
    copy = buffer.take(tensor([3, 3, 4]))
    assert len(copy.episodes.game.unique()) == 3 and (copy.episodes.game < 0).all()
    assert copy.labels['source'] == {copy.episodes.source[0].item(): 'replay'}
    buffer.add(copy, step=9)  # a replayed episode may be stored again
    is_numbered(buffer.take(tensor([3])), [3])

@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
def test_behaviour_logps_survive_exactly(tmp_path, dtype):
    batch = played(0, 20)
    batch = batch.with_action(old_logp=torch.rand(len(batch.actions), generator=drawn()).to(dtype).log())
    for folder in (None, tmp_path):
        buffer = Buffer(folder)
        buffer.add(batch, step=0)
        again = Buffer()
        if folder is None: again.restore(buffer.tensors())
        for one in (buffer, Buffer(folder) if folder else again):
            exactly(one.take(torch.arange(20)).tokens.old_logp, batch.tokens.old_logp)

def test_the_caller_may_change_its_tensors():
    batch, buffer = played(0), Buffer()
    buffer.add(batch, 0)
    batch.tokens.old_logp.zero_()
    is_numbered(buffer.take(tensor([1])), [1])

@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
@settings(deadline=None)
def test_pick_keeps_order_and_repeats(index):
    batch = played(0, 6)
    one = pick(batch, tensor(index))
    two = Batch.concat([batch.select([i]) for i in index])
    same_batch(one, two)

@given(st.data())
@settings(max_examples=60, deadline=None)
def test_origins_stay_inside_what_was_added(data):
    """A copied turn leads to the turn that was sampled, in the same set of copies; where that is not there, to its
    first copy."""
    forks = [numbered(i, group=0) for i in range(4)]
    for i, (e, t) in {1: (0, 0), 2: (0, 0), 3: (2, 0)}.items():  # three fork from the first, one in a second step
        forks[i].turns[0] = Turn(**{**vars(forks[0].turns[0]), 'origin': (0, 0)})
    buffer = Buffer()
    for _ in range(2): buffer.add(Batch.from_episodes(forks), 0)
    index = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=12))
    batch = buffer.take(tensor(index))
    copies = [index[:i].count(x) for i, x in enumerate(index)]
    for turn, (episode, origin, t) in enumerate(zip(batch.turns.episode.tolist(), batch.turns.origin.tolist(),
                                                    batch.turns.t.tolist())):
        family = [j for j in range(len(index)) if index[j]//4 == index[episode]//4 and copies[j] == copies[episode]]
        if t > 0: assert origin == turn
        else:
            leader = next((j for j in family if index[j] % 4 == 0), family[0])
            assert batch.turns.episode[origin] == leader and batch.turns.t[origin] == 0

def test_columns_may_differ_from_add_to_add():
    buffer = Buffer()
    buffer.add(played(0, 2).with_episodes(hint=tensor([1., 2.])), 0)
    buffer.add(played(2, 2).with_turns(visits=torch.arange(len(played(2, 2).turns))), 1)
    both = buffer.take(tensor([3, 0]))
    assert (both.episodes.hint.isnan().tolist() == [True, False]
        and buffer.facts.hint.isnan().tolist() == [False, False, True, True])
    assert (both.turns.visits[both.turns.episode == 1] == -1).all()
    like = played(9, 2)
    joined = Batch.concat([like, alike(both, like)])
    assert len(joined) == 4 and 'hint' not in joined.episodes
    with pytest.raises(ValueError, match='no column tokens.old_logp'): alike(Batch.from_episodes([numbered(0)]), like)

# ---- bounds and staleness

@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.integers(1, 12), st.integers(4000, 30000))
@settings(max_examples=60, deadline=None)
def test_bounds(sizes, episodes, size):
    "Always the youngest episodes, as many as fit into both bounds."
    buffer, everything, first = Buffer(episodes=episodes, bytes=size), [], 0
    for step, n in enumerate(sizes):
        buffer.add(played(first, n), step)
        alone = Buffer()
        alone.add(played(first, n), step)
        everything += alone.facts.bytes.tolist()
        first += n
        facts = buffer.facts
        assert len(buffer) == len(facts) <= episodes and facts.bytes.sum() <= size
        assert facts.number.tolist() == list(range(first - len(buffer), first))
        if len(buffer) < min(episodes, first):
            assert sum(everything[-len(buffer) - 1:] if len(buffer) else everything[-1:]) > size
        is_numbered(buffer.take(torch.arange(len(buffer))), facts.number.tolist())

def test_stale_episodes_are_not_given_out():
    buffer = filled(adds=6, stale=2)  # the steps of the episodes are 0 ... 5
    assert buffer.facts.step.tolist() == sum([[s]*4 for s in (3, 4, 5)], [])
    for step in (5, 6, 7):
        given_out = set(buffer.sample(8, uniform if step == 5 else prioritised(), generator=drawn(), step=step)
            .episodes.step.tolist())
        assert given_out <= set(range(step - 2, 6))
    assert len(buffer.fresh(6)) == 8
    with pytest.raises(ValueError, match='n=9 different episodes of 8'): buffer.sample(9, generator=drawn(), step=6)
    with pytest.raises(ValueError, match='all 12 episodes are more than stale=2 steps older than step 8'):
        buffer.sample(1, generator=drawn(), step=8)

def test_clear(tmp_path):
    for folder in (None, tmp_path):
        buffer = filled(folder)
        buffer.clear()
        assert len(buffer) == 0 == len(buffer.facts)
        buffer.add(played(24), 6)
        assert buffer.facts.number.tolist() == [24, 25, 26, 27]
    assert Buffer(tmp_path).facts.number.tolist() == [24, 25, 26, 27]

# ---- who is drawn

@given(st.integers(0, 2**31), st.integers(0, 24))
@settings(deadline=None)
def test_uniform_and_success_first(seed, n):
    facts = filled().facts
    index = uniform(facts, n, drawn(seed))
    assert len(index) == n == len(index.unique())
    index = success_first(facts, n, drawn(seed))
    won = facts.success[index].tolist()
    assert len(index.unique()) == n and won == sorted(won, reverse=True) and sum(won) == min(n, 8)

def chi_square(counts, chances): return float(((counts - counts.sum()*chances)**2/(counts.sum()*chances)).sum())

def test_every_episode_is_equally_likely():
    facts = filled().facts
    for how, chance in ((uniform, torch.full((24,), 1/24)), (success_first, facts.success/8.)):
        counts = torch.zeros(24)
        for seed in range(3000): counts[how(facts, 1, drawn(seed))] += 1
        here = chance > 0
        assert counts[~here].sum() == 0
        assert chi_square(counts[here], chance[here]) < 2*here.sum()  # 23 degrees: above 48 once in 500 times

@pytest.mark.parametrize('alpha', [0, .5, .6, 1])
def test_prioritised_chances(alpha):
    "Chi-square of single draws against the formula."
    buffer = filled()
    buffer.update(torch.arange(24), torch.arange(24)/3.)
    facts, how = buffer.facts, prioritised(alpha)
    chance = ((torch.arange(24).double()/3 + 1e-6)**alpha)/((torch.arange(24).double()/3 + 1e-6)**alpha).sum()
    g, counts = drawn(7), torch.zeros(24, dtype=torch.float64)
    for _ in range(4000): counts[how(facts, 1, g)] += 1
    likely = chance*4000 > 5
    assert chi_square(counts[likely], chance[likely]/chance[likely].sum()) < 46

@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 999))
@settings(deadline=None)
def test_stratified_draws(leaf, n, seed):
    "As many as its share says, at most two off; ascending; never outside."
    index = stratified(tensor(leaf, dtype=torch.float64), n, drawn(seed))
    assert len(index) == n and (index.diff() >= 0).all() and 0 <= index.min() <= index.max() < len(leaf)
    share = tensor(leaf, dtype=torch.float64)/sum(leaf)
    assert ((torch.bincount(index, minlength=len(leaf)) - n*share).abs() < 2 + 1e-6).all()

@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=20), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None)
def test_weights(priority, alpha, beta, seed):
    buffer = Buffer()
    buffer.add(played(0, len(priority)), 0, priority=tensor(priority))
    batch = buffer.sample(5, prioritised(alpha, beta), generator=drawn(seed))
    p = (tensor(priority).double() + 1e-6)**alpha
    raw = (len(p)*p/p.sum())[batch.episodes.replay_number]**-beta
    torch.testing.assert_close(batch.episodes.replay_weight, raw/raw.max())
    assert batch.episodes.replay_weight.dtype == torch.float64 and batch.episodes.replay_weight.max() == 1

@given(st.lists(st.tuples(st.integers(0, 7), st.floats(-100, 100)), max_size=12))
@settings(deadline=None)
def test_updates_of_priorities(pairs):
    "The last one of an episode holds; the largest ever is what new ones get."
    buffer, model, largest = filled(adds=2), [1.]*8, 1.
    for part in (pairs[:5], pairs[5:]):
        buffer.update(tensor([i for i, _ in part], dtype=torch.int64),
            tensor([p for _, p in part], dtype=torch.float64))
        for i, p in part:
            model[i] = abs(p) + 1e-6
            largest = max(largest, model[i])
    assert buffer.facts.priority.tolist() == model
    buffer.update(torch.arange(8), torch.zeros(8))
    buffer.add(played(8), 2)
    assert buffer.facts.priority[8:].tolist() == [largest]*4

def test_priorities_of_episodes_that_have_gone():
    buffer = filled(adds=3, episodes=8)
    numbers = buffer.sample(8, generator=drawn()).episodes.replay_number
    buffer.add(played(12), 3)
    index = buffer.positions(numbers)
    assert sorted(index.tolist()) == [-1]*4 + [0, 1, 2, 3]
    buffer.update(index, torch.full((8,), 5.))
    assert buffer.facts.priority.tolist() == [5 + 1e-6]*4 + [1.]*4

# ---- memory and disk, resuming

def test_memory_and_disk_give_the_same(tmp_path):
    one, two = Buffer(**bounds), Buffer(tmp_path, **bounds)
    two.cache_bytes = 0
    for a, b in zip(story(one), story(two)): same_batch(a, b)
    same_buffer(one, two)
    three = Buffer(tmp_path, **bounds)  # opened again, without a checkpoint
    same_buffer(one, three)
    for a, b in zip(story(one, range(8, 12)), story(three, range(8, 12))): same_batch(a, b)

@pytest.mark.parametrize('disk', [False, True])
@pytest.mark.parametrize('at', range(7))
def test_resume_bit_for_bit(tmp_path, disk, at):
    "What happened after the checkpoint is as if it never had."
    from safetensors.torch import load, save
    whole, cut = Buffer(**bounds), Buffer(**bounds)
    if disk: cut.open(tmp_path)
    wanted = story(whole)
    story(cut, range(at))
    data = save(cut.tensors())
    story(cut, range(at, 8))  # later adds, evictions and updates
    again = Buffer(**bounds)
    if disk: again.open(tmp_path)
    again.restore(load(data))
    for a, b in zip(wanted[at:], story(again, range(at, 8))): same_batch(a, b)
    same_buffer(whole, again)
    if disk: same_buffer(whole, Buffer(tmp_path, **bounds))

def test_files_outlive_the_last_two_checkpoints(tmp_path):
    buffer, checkpoints = Buffer(episodes=8), []
    buffer.open(tmp_path)
    for step in range(12):
        buffer.add(played(4*step), step)
        if step % 3 == 2: checkpoints.append((step + 1, buffer.tensors()))
        for upto, tensors in checkpoints[-2:]:
            reader = Buffer(episodes=8)
            reader.open(tmp_path, write=False)
            reader.restore(tensors)
            is_numbered(reader.take(torch.arange(len(reader))), range(max(0, 4*upto - 8), 4*upto))
    oldest = lambda: min(int(p.stem) for p in tmp_path.glob('0*.parquet'))
    assert oldest() == 16  # files go in the next add: then the newest checkpoint has been written
    buffer.add(played(48), 12)
    assert oldest() == 28  # 8 episodes before the checkpoint of step 9
    with pytest.raises(FileNotFoundError):
        fresh = Buffer()
        fresh.open(tmp_path, write=False)
        fresh.restore(checkpoints[0][1])

def test_only_the_writer_writes(tmp_path):
    writer, other = Buffer(**bounds), Buffer(**bounds)
    writer.open(tmp_path)
    other.open(tmp_path, write=False)
    for a, b in zip(story(writer, range(4)), story(other, range(4))): same_batch(a, b)
    tensors, before = writer.tensors(), {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other.restore(tensors)
    story(other, range(4, 6))
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}

def test_what_a_killed_run_left_goes_with_the_first_add(tmp_path):
    filled(tmp_path, adds=5)
    buffer = Buffer()
    buffer.open(tmp_path)
    assert len(buffer) == 0 and len(list(tmp_path.glob('0*.parquet'))) == 5
    buffer.add(played(0), 0)
    assert len(Buffer(tmp_path)) == 4

def test_a_filled_buffer_moves_to_a_folder(tmp_path):
    buffer = filled()
    buffer.open(tmp_path/'one')
    buffer.open(tmp_path/'two')
    for folder in ('one', 'two'): same_buffer(Buffer(tmp_path/folder), filled())

def test_replay_passes_everything_through(tmp_path):
    nothing, batch = Replay(), played(0)
    nothing.open(tmp_path, True)
    nothing.restore({})
    assert (nothing.join(batch, 0) is batch and list(nothing.updates(batch, None, 0)) == []
        and nothing.keep(batch, None, 0) == {} == nothing.tensors())
    class Keeps(Replay):
        def __init__(self): self.buffer = Buffer()
        def keep(self, batch, advantage, step):
            self.buffer.add(batch, step)
            return super().keep(batch, advantage, step)
    one, two = Keeps(), Keeps()
    one.open(tmp_path/'replay', True)
    assert one.keep(batch, None, 0) == dict(stored=4)
    two.open(tmp_path/'replay', True)
    two.restore(one.tensors())
    same_buffer(one.buffer, two.buffer)

# ---- errors

def test_errors(tmp_path):
    with pytest.raises(ValueError, match='the buffer is empty'): Buffer().sample(1, generator=drawn())
    with pytest.raises(ValueError, match='the buffer is empty'): Buffer().take(tensor([0]))
    buffer = filled()
    assert len(buffer.sample(0, prioritised(), generator=drawn())) == 0 == len(buffer.take([]))
    assert len(buffer.sample(60, prioritised(), generator=drawn())) == 60  # with repetition: any n
    for how in (uniform, success_first):
        with pytest.raises(ValueError, match='n=25 different episodes of 24'): buffer.sample(25, how, generator=drawn())
    for bad, said in ((math.nan, 'nan'), (math.inf, 'inf')):
        with pytest.raises(ValueError, match=rf'priority\[1\] = {said}'):
            buffer.update(tensor([0, 1]), tensor([1., bad]))
        with pytest.raises(ValueError, match=rf'priority\[1\] = {said}'):
            buffer.add(played(24, 2), 6, priority=tensor([1., bad]))
    assert buffer.facts.priority.tolist() == [1.]*24
    with pytest.raises(ValueError, match='shape'): buffer.update(tensor([0, 1]), tensor([1.]))
    with pytest.raises(ValueError, match='index goes from -2 to 0'): buffer.update(tensor([-2, 0]), torch.ones(2))
    for index, said in (([24], 'index goes from 24 to 24'), ([.5], 'float32'), ([True], 'bool')):
        with pytest.raises(ValueError, match=said): buffer.take(tensor(index))
    with pytest.raises(ValueError, match='more than bytes=100'): Buffer(bytes=100).add(played(0), 0)
    for arguments, said in ((dict(episodes=0), 'episodes=0'), (dict(bytes=0), 'bytes=0'), (dict(stale=-1), 'stale=-1')):
        with pytest.raises(ValueError, match=said): Buffer(**arguments)
    with pytest.raises(ValueError, match='alpha=nan'): prioritised(math.nan)
    with pytest.raises(ValueError, match='tokens.old_logp is torch.bfloat16'):
        Buffer().add(played(0).with_action(old_logp=torch.ones(len(played(0).actions), dtype=torch.bfloat16)), 0)
    disk = filled(tmp_path)
    with pytest.raises(ValueError, match='Open it first'): Buffer().restore(disk.tensors())
    with pytest.raises(ValueError, match='replay_version 99'):
        tensors = buffer.tensors()
        tensors['state'][0] = 99
        Buffer().restore(tensors)

def cut(file): os.truncate(file, os.path.getsize(file) - 20)
def empty(file): os.truncate(file, 0)
def flip(file):
    import pyarrow.parquet as pq
    column = pq.read_metadata(file).row_group(0).column(0)
    data = bytearray(file.read_bytes())
    data[4 + column.total_compressed_size - 3] ^= 1  # in the last page of the first column; the footer has no checksum
    file.write_bytes(data)

@pytest.mark.parametrize('damage', [cut, empty, flip])
@pytest.mark.parametrize('name', ['000000000004.parquet', 'state.parquet'])
def test_a_damaged_file_is_named(tmp_path, damage, name):
    filled(tmp_path).update(tensor([0]), tensor([1.]))
    damage(tmp_path/name)
    with pytest.raises(ValueError, match=name):
        buffer = Buffer(tmp_path)
        buffer.take(torch.arange(len(buffer)))

def test_no_flipped_bit_of_the_state_is_believed(tmp_path):
    filled(tmp_path).update(torch.arange(24), torch.rand(24, generator=drawn()))
    file, wanted = tmp_path/'state.parquet', Buffer(tmp_path, write=False).facts.priority
    whole = file.read_bytes()
    for place in range(4, len(whole), 23):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        file.write_bytes(data)
        try: assert torch.equal(Buffer(tmp_path, write=False).facts.priority, wanted)
        except ValueError as e: assert 'state.parquet' in str(e)

def test_foreign_and_missing_files_are_named(tmp_path):
    import pyarrow.parquet as pq
    filled(tmp_path)
    (tmp_path/'notes.parquet').write_text('not ours')
    (tmp_path/'.000000000024.parquet.1.tmp').write_text('half')
    assert len(Buffer(tmp_path)) == 24
    shutil.copytree(tmp_path, tmp_path/'gap')
    (tmp_path/'gap'/'000000000008.parquet').unlink()
    with pytest.raises(ValueError, match='lacks the episodes 8 to 11'): Buffer(tmp_path/'gap')
    played(0).save(tmp_path/'000000000024.parquet')
    with pytest.raises(ValueError, match='000000000024.parquet is no segment of a replay buffer'): Buffer(tmp_path)
    (tmp_path/'000000000024.parquet').unlink()
    table = pq.read_table(tmp_path/'state.parquet')
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b'replay_version': b'9'}),
        tmp_path/'state.parquet')
    with pytest.raises(ValueError, match='state.parquet has replay_version 9'): Buffer(tmp_path)

# ---- kills

pytestmark = pytest.mark.xdist_group('forks')
def check_left(folder, said, known):
    "What a killed process left: a whole stretch of episodes up to the last that was acknowledged, or one add further."
    lines = [json.loads(line) for line in said.read_text().splitlines() if line.endswith('}')] if said.exists() else []
    ends = [x['end'] for x in lines if 'end' in x]
    buffer = Buffer(folder, episodes=kept, write=False)
    end = max([known, *ends])
    assert buffer.end in (end, end + 4)
    assert len(buffer) == min(kept, buffer.end)
    if len(buffer): is_numbered(buffer.take(torch.arange(len(buffer))), range(buffer.start, buffer.end))
    return buffer, lines

def check_priorities(buffer, lines, model):
    """Every priority is the last one whose update returned; of the update under way it may be the new one, for all
    or for none."""
    pending = None
    for x in lines:
        if 'trying' in x: pending = {int(k): v + 1e-6 for k, v in x['trying'].items()}
        if 'done' in x:
            model.update(pending)
            pending = None
    found = dict(zip(buffer.facts.number.tolist(), buffer.facts.priority.tolist()))
    wrong = {n: p for n, p in found.items() if n in model and model[n] != p}
    assert not wrong or pending and all(found[n] == p for n, p in pending.items()
        if n in found) and set(wrong) <= set(pending)
    if pending and all(found.get(n) == p for n, p in pending.items() if n in found): model.update(pending)

@pytest.mark.parametrize('kills', [10, pytest.param(30, marks=pytest.mark.slow)])  # each starts a process
def test_kills_at_random_moments(tmp_path, kills):
    chance, folder, known, model = random.Random(0), tmp_path/'buffer', 0, {}
    for death in range(kills):
        said, log = tmp_path/f'said{death}', tmp_path/'log'
        process = fork(live, folder, said, log=log)
        # so many lines were said: a busy machine is as far as an idle one
        lines, deadline = chance.randint(0, 25), time.monotonic() + 100
        while (process.exitcode is None and time.monotonic() < deadline
               and (not said.exists() or said.read_bytes().count(b'\n') < lines)):
            time.sleep(.002)
        time.sleep(chance.uniform(0, .05))
        os.kill(process.pid, signal.SIGKILL)
        status, printed = finish(process, log)
        assert status == -signal.SIGKILL, printed[-3000:]
        buffer, lines = check_left(folder, said, known)
        check_priorities(buffer, lines, model)
        known = buffer.end
    assert known > 4*kills  # it got somewhere
    assert len(list(folder.glob('*.parquet'))) <= kept//4 + 3

def test_a_reader_beside_the_writer(tmp_path):
    "Opened while another process writes and evicts: always a stretch of whole episodes that never goes back."
    folder, said, log, seen = tmp_path/'buffer', tmp_path/'said', tmp_path/'log', [0]
    process = fork(live, folder, said, log=log)
    try:
        while len(set(seen)) < 12 and process.exitcode is None:
            reader = Buffer(folder, episodes=kept, write=False)
            assert reader.end >= seen[-1] and len(reader) <= kept
            seen.append(reader.end)
            try:
                if len(reader): is_numbered(reader.take(torch.arange(len(reader))), range(reader.start, reader.end))
            except FileNotFoundError as e: assert 'another process writes' in str(e)
    finally: os.kill(process.pid, signal.SIGKILL)
    status, printed = finish(process, log)
    assert status == -signal.SIGKILL and len(set(seen)) >= 12, printed[-3000:]

def check_end(folder):
    from safetensors.torch import load_file
    whole = Buffer(**bounds)
    story(whole)
    buffer = Buffer(**bounds)
    buffer.open(folder/'replay', write=False)
    buffer.restore(load_file(folder/'mark8'))
    same_buffer(whole, buffer)
    same_buffer(whole, Buffer(folder/'replay', **bounds, write=False))

def cut_at(tmp_path, places):
    "Kill at each place, go on to the end, compare."
    for kind, number in places:
        folder, log = tmp_path/f'{kind}{number}', tmp_path/f'{kind}{number}.log'
        status, printed = finish(fork(checkpointed, folder, (kind, number), log=log), log)
        assert status == -signal.SIGKILL, printed[-3000:]
        Buffer(folder/'replay', **bounds, write=False)  # readable as it is
        status, printed = finish(fork(checkpointed, folder, log=log), log)
        assert status == 0, printed[-3000:]
        check_end(folder)
        assert not list((folder/'replay').glob('.*'))

def operations(tmp_path):
    folder, log = tmp_path/'whole', tmp_path/'whole.log'
    status, printed = finish(fork(checkpointed, folder, None, tmp_path/'seen', log=log), log)
    assert status == 0, printed[-3000:]
    check_end(folder)
    seen = json.loads((tmp_path/'seen').read_text())
    assert {'parquet', 'fsync', 'replace', 'unlink'} <= set(seen)
    return [(kind, i) for kind in sorted(set(seen)) for i in range(seen.count(kind))]

def test_killed_in_the_middle_of_a_write(tmp_path):
    places = operations(tmp_path)
    cut_at(tmp_path, [p for p in places if p[1] in (0, 5)] + random.Random(0).sample(places, 4))

@pytest.mark.slow
def test_killed_at_every_disk_operation(tmp_path):
    cut_at(tmp_path, operations(tmp_path))
