"""What the tests of the replay buffer add, and the child processes that they kill; imports little, so that a child
starts in no time.

`numbered(n)` is an episode whose every number follows from n, so that any copy of it can be recognised.
"""
import json
from pathlib import Path

import torch

from agentlab.episodes import Batch, Episode, Turn, atomic
from agentlab.replay.buffer import Buffer, prioritised, success_first, uniform

def numbered(n, group=None):
    "Episode n: 1 to 3 turns of 1 to 4 tokens; labels and log-probabilities name it."
    turns = [Turn(t, ids=[n % 50]*(1 + (n + t) % 4), logps=[-(n + 1)/(t + 7)]*(1 + (n + t) % 4),
        entropies=[.5]*(1 + (n + t) % 4), context_ids=[1]*(t + 1), reward=float(n), state=f'state {n}.{t}')
        for t in range(1 + n % 3)]
    return Episode(turns, n//2 if group is None else group, n, outcome=n/7, success=n % 3 == 0, step=n//4,
        final=f'end {n}')

def played(first, n=4):
    "The episodes first ... first+n-1, with old_logp."
    batch = Batch.from_episodes([numbered(i) for i in range(first, first + n)])
    return batch.with_action(old_logp=batch.action('sampler_logp')/3)

def drawn(seed=0): return torch.Generator().manual_seed(seed)

def story(buffer, steps=range(8)):
    "Adds, draws and updates; what was drawn."
    found = []
    for step in steps:
        buffer.add(played(4*step), step, None if step % 2 else torch.arange(4.)*step)
        how = (uniform, success_first, prioritised(.7, .5, steps=6))[step % 3]
        batch = buffer.sample(3, how, generator=drawn(step), step=step)
        buffer.update(buffer.positions(batch.episodes.replay_number), batch.episodes.outcome)
        found.append(batch)
    return found

bounds = dict(episodes=10, stale=3)

# ---- child processes

kept = 22  # 5 or 6 of the files

def live(folder, said):
    "Adds, evicts and updates until it is killed; says so after each call that returned."
    buffer = Buffer(folder, episodes=kept)
    with open(said, 'a') as log:
        for _ in range(100_000):
            first = buffer.end
            buffer.add(played(first), first//4)
            print(json.dumps(dict(end=buffer.end)), file=log, flush=True)
            index = buffer.sample(3, generator=drawn(first)).episodes.replay_number
            print(json.dumps(dict(trying={int(i): first + int(i) for i in index})), file=log, flush=True)
            buffer.update(buffer.positions(index), first + index)
            print(json.dumps(dict(done=True)), file=log, flush=True)

def checkpointed(folder, at=None, seen=None):
    "Eight steps with a checkpoint after every other, resumed from the newest; killed at the disk operation `at`."
    from safetensors.torch import load_file, save_file
    from test_resume import Scissors
    scissors = Scissors(at)
    scissors.everywhere()
    buffer, marks = Buffer(**bounds), sorted(Path(folder).glob('mark*'))
    buffer.open(Path(folder)/'replay')
    begin = 0
    if marks:
        buffer.restore(load_file(marks[-1]))
        begin = int(marks[-1].name[4:])
    for step in range(begin, 8):
        story(buffer, [step])
        if step % 2:
            with atomic(Path(folder)/f'mark{step + 1}') as path: save_file(buffer.tensors(), path)
    if seen: Path(seen).write_text(json.dumps(scissors.seen))
