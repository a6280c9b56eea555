"""Environments that go wrong in every way that we could think of: each ends its own episode, says why, and leaves
tables that can be saved and trained on."""

import pytest
import torch

from agentlab.credit import grpo
from agentlab.env import Isolated
from agentlab.episodes import Batch
from agentlab.policy import Policy, tiny_model, word_tokenizer
from agentlab.rollout import play
from agentlab.rollout.plain import admit
from hostile import ISOLATED, WAYS, Echo, Hostile
from later import deferred

policy = deferred(lambda: Policy(tiny_model(16, 64, hidden=16, layers=1), word_tokenizer(['speak', 'go'])))

def together(ways, at, wrap=lambda env: env, **how):
    "A hostile game and a good one, in turn, of every way; episodes in their order."
    envs = iter([wrap(env) for way in ways for env in (Hostile(way, at), Echo())])
    return play(policy, lambda: next(envs), list(range(2*len(ways))), max_tokens=2, **how)

def good(episodes):
    "The games beside them are whole."
    for e in episodes: assert (e.error, e.success, e.outcome, len(e.turns)) == (None, True, 1., 2)

def written(episodes, folder):
    "They fit into tables, into a file and into an estimator."
    batch = Batch.load(Batch.from_episodes(episodes).save(folder/'x.parquet'))
    assert len(batch) == len(episodes) and grpo(batch).isfinite().all()

@pytest.mark.parametrize('at', ['reset', 'step'])
def test_here(at, tmp_path):
    "All of them in one call, a good game between every two."
    episodes = together([*WAYS], at)
    good(episodes[1::2])
    for way, bad in zip(WAYS, episodes[::2]):
        assert (bad.error and len(bad.error) < 3000 and bad.error.encode()
            and len(bad.turns) == (at == 'step')), (way, bad)
        written([bad], tmp_path)
    written(episodes, tmp_path)

CHOSEN = [*list(WAYS)[::20], *ISOLATED]

@pytest.mark.parametrize('at', ['reset', 'step'])
def test_in_a_process_of_its_own(at, tmp_path):
    "A part of them; the others: --slow."
    isolated(CHOSEN, at, tmp_path)

@pytest.mark.slow
@pytest.mark.parametrize('at', ['reset', 'step'])
@pytest.mark.parametrize('part', range(8))
def test_all_in_processes_of_their_own(part, at, tmp_path): isolated([*WAYS][part::8], at, tmp_path)

def limit(env):
    "Seconds: whoever only sleeps is stopped soon, the others have time on a busy machine."
    return 1. if getattr(env, 'way', '') == 'sleeps' else 5.

def isolated(ways, at, folder):
    "A few at a time."
    for some in (ways[i:i + 4] for i in range(0, len(ways), 4)):
        episodes = together(some, at, lambda env: Isolated(env, limit=limit(env), start_limit=300.))
        good(episodes[1::2])
        for way, bad in zip(some, episodes[::2]):
            assert bad.error and bad.error.encode() and len(bad.error) < 3000, (way, bad)
        written(episodes, folder)

def test_what_is_changed_afterwards_is_not_ours():
    "An environment goes on writing in what it has returned."
    step = Echo().reset(0)
    step.info['state'] = state = [1, dict(a=2)]
    mine = admit(step, ('player',))
    state.append(3), state[1].update(a=4), step.reward.update(nobody=object()), step.info.update(success=object())
    assert mine.info['state'] == [1, dict(a=2)] and mine.reward == {} and 'success' not in mine.info

def test_numbers_of_other_libraries_are_numbers():
    import numpy as np
    step = Echo().reset(0)
    step.reward, step.done = dict(player=np.float32(.5)), np.bool_(False)
    step.info |= dict(cost=torch.tensor(2.), invalid=torch.tensor(True), success=dict(player=np.bool_(True)),
        columns=dict(mine=np.int64(3)))
    found = admit(step, ('player',))
    assert (found.reward, found.done, found.info['cost'], found.info['invalid'], found.info['success'],
        found.info['columns']) == (dict(player=.5), False, 2., True, dict(player=True), dict(mine=3.))
    assert {type(x) for x in (found.done, found.info['invalid'], found.info['success']['player'])} == {bool} and {type(
        x) for x in (found.reward['player'], found.info['cost'], found.info['columns']['mine'])} == {float}

def test_ctrl_c_is_ours():
    class Stops(Echo):
        def step(self, action): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): play(policy, Stops(), [0], max_tokens=2)
