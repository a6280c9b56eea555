"""Past episodes in the real trainer: they change the gradient as the formula says, an idle buffer is found out, and
a killed run goes on with the same past."""
import pytest, torch
from agentlab.credit import grpo
from agentlab.env import KeyDoor
from agentlab.episodes import state_key
from agentlab.policy import tiny_policy
from agentlab.policy.core import parts
from agentlab.replay import Buffer
from agentlab.train import recipes, train, trainer
from replays import HIGH, LOW, Afterwards, Idle, Joined, Nothing

house = KeyDoor()
def recipe(**changes):
    return recipes.grpo(**dict(steps=4, groups=3, group_size=4, minibatches=1, test_tasks=0, checkpoint_every=2,
        objective_args=dict(low=LOW, high=HIGH)) | changes)
def begun(replay, steps=1):
    "A training with `steps` updates behind it."
    training = trainer.Training(tiny_policy(house, progress=False), house, recipe(replay=replay))
    for step in range(steps): trainer.one_step(training, step)
    return training

def formula(policy, batch, advantage):
    """The gradient of the clipped loss, mean over the action tokens, with the ratio to whatever `old_logp` says:
    written from the paper, not with the trainer's functions."""
    for p in policy.model.parameters(): p.grad = None
    total = len(batch.actions)
    for part, which in parts(batch, torch.arange(len(batch.rows)), 4096):
        ratio = (policy.forward(part, 1.)[0] - part.action('old_logp')).exp()
        a = advantage[which]
        (-torch.minimum(ratio*a, ratio.clamp(1 - LOW, 1 + HIGH)*a).sum()/total).backward()
    found = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    for p in policy.model.parameters(): p.grad = None
    return found

def gradient(training, batch, advantage):
    "The gradient that the trainer makes of a batch."
    training.optimizer.zero_grad()
    trainer.backward(training, batch, advantage, torch.arange(len(batch.rows)))
    found = [p.grad.clone() for p in training.weights.values() if p.grad is not None]
    training.optimizer.zero_grad()
    return found

def close(a, b): return len(a) == len(b) and all(torch.allclose(x, y, rtol=1e-3, atol=1e-6) for x, y in zip(a, b))

def contract(replay):
    "What any replay that joins episodes to a step must keep: raises AssertionError where it does not."
    training = begun(replay)
    played = trainer.usable(trainer.collect(training, 1))
    batch, advantage, _ = trainer.prepare(training, played, 1)
    past = batch.action('past') > 0
    assert past.any(), 'no past token is learned from'
    assert len(batch) > len(played) and (advantage[past] != 0).any(), 'past episodes have no advantage'
    now = training.policy.logprobs(batch, 1.)[0]
    off = (now - batch.action('old_logp')).abs()
    assert (off[past].max() > 1e-3
        > off[~past].max()), 'the ratio of a past token is not taken against the policy that sampled it'
    torch.testing.assert_close(batch.action('old_logp')[past], batch.action('sampler_logp')[past])
    # peers of the fresh ones, and the other way round
    torch.testing.assert_close(advantage.double(), grpo(batch), rtol=1e-5, atol=1e-5)
    found = gradient(training, batch, advantage)
    assert close(found, formula(training.policy, batch, advantage)), 'the gradient is not that of the formula'
    assert not close(found, formula(training.policy, batch.select(batch.episodes.source == state_key('policy')),
        advantage[~past])), 'past episodes do not change the gradient'

def test_past_episodes_change_the_gradient_as_the_formula_says(): contract(Joined)

def test_an_idle_buffer_is_found_out():
    with pytest.raises(AssertionError, match='no past token'): contract(Idle)

def test_updates_on_the_past_are_the_steps_of_the_formula():
    training = begun(Afterwards)
    twin = begun(Nothing)
    played = trainer.usable(trainer.collect(training, 1))
    batch, advantage, _ = trainer.prepare(training, played, 1)
    row = trainer.learn(training, batch, advantage, None, 1)
    trainer.move(twin, batch, advantage, 1)
    past, found = begun(Afterwards).replay.last
    for p, g in zip(twin.weights.values(), formula(twin.policy, past, found)): p.grad = g
    torch.nn.utils.clip_grad_norm_(twin.weights.values(), twin.recipe.max_grad_norm)
    twin.optimizer.step()
    for name, p in training.weights.items(): torch.testing.assert_close(p, twin.weights[name], rtol=1e-4, atol=2e-5)
    assert (row['replayed'] == pytest.approx(len(past.actions)/(len(past.actions) + len(batch.actions)))
        and row['stored'] == len(batch))

def test_weights_of_a_prioritised_draw_are_in_the_gradient():
    class Weighted(Afterwards):
        def updates(self, batch, advantage, step):
            for past, found, fields in super().updates(batch, advantage, step):
                weight = torch.linspace(.1, 1., len(past), dtype=torch.float64)
                yield past.with_episodes(replay_weight=weight), found, fields
    training, twin = begun(Weighted), begun(Nothing)
    batch, advantage, _ = trainer.prepare(training, trainer.usable(trainer.collect(training, 1)), 1)
    row = trainer.learn(training, batch, advantage, None, 1)
    trainer.move(twin, batch, advantage, 1)
    past, found = begun(Afterwards).replay.last
    weight = torch.linspace(.1, 1., len(past), dtype=torch.float64)[past.turns.episode[past.action_turn]]
    for p, g in zip(twin.weights.values(), formula(twin.policy, past, found*weight.float())): p.grad = g
    torch.nn.utils.clip_grad_norm_(twin.weights.values(), twin.recipe.max_grad_norm)
    twin.optimizer.step()
    for name, p in training.weights.items(): torch.testing.assert_close(p, twin.weights[name], rtol=1e-4, atol=2e-5)
    assert 0 < row['past_outside'] < 1

def test_weights_of_joined_episodes_are_in_the_advantage():
    class Weighted(Joined):
        def join(self, batch, step):
            weight = lambda b: torch.where(b.episodes.source == state_key('policy'), torch.nan, .25)
            return (joined := super().join(batch, step)).with_episodes(replay_weight=weight(joined).double())
    training, plain = begun(Weighted), begun(Joined)
    for one in (training, plain): one.policy = training.policy
    (batch, advantage, _), (same_batch, whole, _) = (trainer.prepare(one, trainer.usable(trainer.collect(one, 1)), 1)
        for one in (training, plain))
    past = batch.action('past') > 0
    assert past.any() and torch.equal(batch.tokens.id, same_batch.tokens.id)
    torch.testing.assert_close(advantage, torch.where(past, whole*.25, whole))

def without_time(rows): return [{k: v for k, v in row.items() if k != 'seconds'} for row in rows]

@pytest.mark.parametrize('minibatches', [1, 2])
def test_a_run_says_how_much_was_past_and_is_another_run(tmp_path, minibatches):
    rows = {name: train(tiny_policy(house, progress=False), house, recipe(replay=replay, minibatches=minibatches),
        tmp_path/name, progress=False).rows()
        for name, replay in dict(none=None, idle=Idle, nothing=Nothing, joined=Joined, again=Afterwards).items()}
    assert without_time(rows['nothing']) == [row | dict(replayed=0.) for row in without_time(rows['none'])]
    assert ([row['stored'] for row in rows['joined']] == [12, 24, 36, 48]
        and [row['replayed'] > 0 for row in rows['joined']] == [False, True, True, True])
    assert ([row['loss'] for row in rows['idle']] == [row['loss'] for row in rows['none']]
        and all(row['replayed'] == 0 for row in rows['idle']))
    for name in ('joined', 'again'):
        assert (rows[name][0]['loss'] == rows['none'][0]['loss'] and rows[name][-1]['loss'] != rows['none'][-1]['loss']
            and rows[name][-1]['replayed'] > 0)
    # of fresh tokens; a past one had another sampler
    assert all(row['sampler_gap'] < 1e-3 for found in rows.values() for row in found)

def test_a_killed_run_goes_on_with_the_same_past(tmp_path):
    whole = train(tiny_policy(house, progress=False), house, recipe(replay=Joined), tmp_path/'whole', progress=False)
    calls = iter([False]*3 + [True])
    train(tiny_policy(house, progress=False), house, recipe(replay=Joined), tmp_path/'parts',
        should_stop=lambda: next(calls), progress=False)
    checkpoints = sorted((tmp_path/'parts'/'checkpoints').iterdir())
    # the kill came before the newest checkpoint: two steps are played again, the buffer has seen them
    for file in checkpoints[-1].iterdir(): file.unlink()
    checkpoints[-1].rmdir()
    resumed = train(tiny_policy(house, progress=False), house, recipe(replay=Joined), tmp_path/'parts', resume=True,
        progress=False)
    assert without_time(resumed.rows()) == without_time(whole.rows()) and len(resumed.rows()) == 4
    assert len(Buffer(tmp_path/'parts'/'replay',
        write=False)) == len(Buffer(tmp_path/'whole'/'replay', write=False)) == 48

def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_an_empty_past(tmp_path):
    def stop(row): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        train(tiny_policy(house, progress=False), house, recipe(replay=Joined, steps=2), tmp_path/'parts', on_row=stop,
            progress=False)
    resumed = train(tiny_policy(house, progress=False), house, recipe(replay=Joined, steps=2), tmp_path/'parts',
        resume=True, progress=False).rows()
    assert [row['stored'] for row in resumed] == [12, 24] and resumed[0]['replayed'] == 0

def test_a_schedule_of_the_memory_and_arguments_of_each_group(tmp_path):
    class Planner:
        def __init__(self, policy, seed): self.steps = torch.zeros(1)
        def plan(self, step): return dict(group_args=dict(tasks=[7 + i for i in range(2 + step)]), group_size=2 + step)
        def read(self, batch, step):
            self.steps += 1
            return batch
        def learn(self, row): return {}
        def tensors(self): return dict(steps=self.steps)
        def restore(self, tensors): self.steps = tensors['steps']
    run = train(tiny_policy(house, progress=False), house, recipe(memory=Planner, steps=2, curate=None, rollout=told),
        tmp_path/'run', progress=False)
    assert [(row['episodes'], len(run.episodes(i).episodes.group.unique()))
        for i, row in enumerate(run.rows())] == [(4, 2), (9, 3)]

def told(policy, env, seeds, group_size, tasks=None, **more):
    from agentlab.rollout import play
    assert len(tasks) == len(seeds)
    return play(policy, env, tasks, group_size, **more)

@pytest.mark.parametrize('lists', [dict(tasks=[]), dict(tasks=[1], instructions=[1, 2])])
def test_lists_of_unequal_length_are_refused(lists):
    with pytest.raises(ValueError, match='group_args=.*one length'): recipe(group_args=lists)
