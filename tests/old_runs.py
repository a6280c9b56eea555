"""Run folders as an earlier version wrote them, in tests/old.tar.xz (62 kB; .5 MB as files).

`python tests/old_runs.py NAME FOLDER` wrote each of them, once, with the code of that version; `tar -c` of the files,
ordered by their suffix, and `xz --lzma2=preset=9e,lc=0,lp=2,pb=0` put them together.
Their tables are stored uncompressed since, because the archive compresses them better; no value was changed.

They were written at commit 85e4e55, before the classes, recipes and metrics were ordered anew ("The house in order").
test_old_runs.py opens, reports and resumes them. Never write them with newer code: a new format gets new runs beside
these. (Once that commit wrote them again, with half the width: at the first width it gave the runs of before, but for
the last digits of means.)
"""
import json
import sys
import tarfile
import tempfile
from functools import cache, partial
from pathlib import Path

import torch

from agentlab.env import CueDoor, TicTacToe
from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.train import Run, recipes, train
from small import Paying


@cache
def old() -> Path:
    "The folder of the runs, unpacked once in a process."
    folder = tempfile.mkdtemp(prefix='agentlab-old-')
    with tarfile.open(Path(__file__).parent/'old.tar.xz') as archive:
        archive.extraction_filter = getattr(tarfile, 'data_filter', None)  # Python 3.11.0 to 3.11.3 has none
        archive.extractall(folder)
    return Path(folder)/'old'


def small_model(env):
    "A model of a few hundred weights: of the archive, weights take less than tables."
    tokenizer = word_tokenizer(env.vocabulary())
    torch.manual_seed(0)
    return Policy(tiny_model(len(tokenizer), 512, hidden=4, heads=2), tokenizer)


def house(name, **changes):
    "A run in a house that pays for what is said, by the name of its recipe: something is learned."
    return Paying(), recipes.known[name](**dict(groups=2, group_size=3, minibatches=1) | changes)


def league():
    from agentlab.rollout import play_players
    from agentlab.selfplay import League, pfsp
    game = TicTacToe()
    memory = partial(League, seats=game.seats, choose=pfsp, mirror=.25, every=2, most=2, groups=2)
    return game, recipes.dr_grpo(name='league', groups=2, group_size=2, rollout=play_players, memory=memory)


def instructions():
    from agentlab.prompt import Inspo, Instructed, play_instructed
    env = Instructed(CueDoor())
    memory = partial(Inspo, env=env, every=2, checks=2, recent=2, groups=2, max_tokens=4)
    return env, recipes.grpo(name='inspo', rollout=play_instructed, test_rollout=play_instructed, memory=memory,
                             groups=2, group_size=2)


RUNS = ({name: partial(house, name) for name in ('ppo', 'success_replay')}
        | dict(league=league, instructions=instructions))


def go(name: str, folder: Path, steps: int, resume: bool = False) -> Run:
    "The run NAME, of `steps` updates."
    from dataclasses import replace
    env, recipe = RUNS[name]()
    tests = 0 if name == 'league' else 1
    recipe = replace(recipe, steps=steps, max_tokens=3, test_tasks=tests, checkpoint_every=2)
    return train(small_model(env), env, recipe, folder, resume=resume, progress=False)


def told(run: Run) -> dict:
    "What a reader must find in the run again."
    batches = [run.episodes(step) for step in range(2)]
    counts = [dict(episodes=len(b.episodes), turns=len(b.turns), tokens=len(b.tokens)) for b in batches]
    return dict(rows=run.rows(), counts=counts)


if __name__ == '__main__':
    torch.set_num_threads(1)
    name, folder = sys.argv[1], Path(sys.argv[2])
    run = go(name, folder/name, steps=2)
    (folder/f'{name}.json').write_text(json.dumps(told(run), indent=1) + '\n')
