"""The trainer: what a step does to the weights, what stops an update, what stops a run, and what a number in a row
means."""
import ctypes, errno, json, math, os, socket, subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

import registries
from agentlab.episodes import Batch
from agentlab.objective import clip
from agentlab.policy import Policy
from agentlab.reward import measure_answers
from agentlab.rollout import play
from agentlab.train import METRICS, Run, load_recipe, recipes, trainer
from agentlab.train.runs import load_checkpoint
from later import deferred
from small import Paying, exactly, facts, finish, fork, small_policy, small_recipe, train_small

def weights(policy): return {name: p.detach().clone() for name, p in policy.model.named_parameters()}

def moved(before, policy): return any(not torch.equal(before[name], p) for name, p in policy.model.named_parameters())

# ---- a step

def test_a_row_says_what_was_played(tmp_path):
    "Its numbers, computed again from the episodes on disk."
    run = train_small(tmp_path, steps=2, groups=3, env=Paying(horizon=5))
    for row in run.rows():
        b = run.episodes(row['step'])
        assert (row['episodes'], row['errors'], row['tokens']) == (6, 0, len(b.actions)) == (len(b), 0, len(b.actions))
        assert row['reward'] == pytest.approx(b.episodes.outcome.mean().item())
        assert (row['success'] == b.episodes.success.double().mean().item()
            and row['truncated'] == b.episodes.truncated.double().mean().item())
        assert row['turns'] == len(b.turns)/len(b)
        assert row['entropy'] == pytest.approx(b.action('entropy').double().mean().item())
        for t, entropy in enumerate(row['entropy_by_turn']):
            assert entropy == pytest.approx(b.action('entropy')[b.turns.t[b.action_turn] == t].double().mean().item())
        assert row['dead_groups'] == sum(len(b.episodes.outcome[b.episodes.group == g].unique()) == 1
            for g in b.episodes.group.unique())/3
        assert (b.episodes.group.unique().tolist() == [row['step']*3 + i for i in range(3)]
            and set(b.episodes.step.tolist()) == {row['step']})
        words = run.episodes(row['step']).labels['token']
        assert set(words) >= set(b.tokens.id.unique().tolist())

def test_the_same_seed_trains_the_same_and_another_does_not(tmp_path):
    policies = [small_policy() for _ in range(3)]
    runs = [train_small(tmp_path/f'{i}', policy=p, seed=seed, steps=2)
        for i, (p, seed) in enumerate(zip(policies, (0, 0, 1)))]
    assert facts(runs[0]) == facts(runs[1]) != facts(runs[2])
    assert not moved(weights(policies[0]), policies[1]) and moved(weights(policies[0]), policies[2])

def test_the_global_random_state_is_not_touched(tmp_path):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    train_small(tmp_path, lora=dict(r=2))
    assert torch.equal(torch.random.get_rng_state(), before)

def test_the_policy_of_a_run_opens_in_transformers(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    policy = small_policy()
    run = train_small(tmp_path, policy=policy)
    for name, p in AutoModelForCausalLM.from_pretrained(run.folder/'policy').named_parameters():
        exactly(p.data, policy.model.get_parameter(name).data, name)
    assert AutoTokenizer.from_pretrained(run.folder/'policy').get_vocab() == policy.tokenizer.get_vocab()

# ---- the sampler and the trainer speak of one distribution

@pytest.mark.parametrize('temperature, top_p', [(1., 1.), (.5, 1.), (2., 1.), (1., .8)])
def test_the_trainer_finds_the_log_probabilities_of_the_sampler(tmp_path, temperature, top_p):
    run = train_small(tmp_path, steps=3, temperature=temperature, rollout_args=dict(top_p=top_p))
    assert max(row['sampler_gap'] for row in run.rows()) < 1e-4

def test_replayed_log_probabilities():
    "At the temperature of the sampler they agree; at another one they do not."
    policy = small_policy()
    batch = Batch.from_episodes(play(policy, Paying(), [0, 1, 2], group_size=2, max_tokens=4, temperature=.5))
    for budget in (32, 16384):
        logp, entropy = policy.logprobs(batch, temperature=.5, budget=budget)
        assert ((logp - batch.action('sampler_logp')).abs().max() < 1e-4
            and (entropy - batch.action('entropy')).abs().max() < 1e-4)
    assert (policy.logprobs(batch)[0] - batch.action('sampler_logp')).abs().max() > .01

def test_recomputed_old_log_probabilities(tmp_path):
    "`recompute_old` changes nothing where the sampler is exact."
    one, two = (train_small(tmp_path/f'{again}', recompute_old=again).rows()[0] for again in (False, True))
    assert one['grad_norm'] == pytest.approx(two['grad_norm'],
        rel=1e-4) and one['loss'] == pytest.approx(two['loss'], abs=1e-5)

# ---- the gradient of a minibatch, however it is cut

@deferred
def OfMany():
    class OfMany(trainer.Training):
        "The trainer that one of several processes would have."
        place, rank, ranks = 0, property(lambda self: self.place), 1
    return OfMany

def gradients(budget, ranks=1, **changes):
    training = OfMany(small_policy(), Paying(), small_recipe(groups=3, budget=budget, minibatches=1, **changes))
    batch, advantage, _ = trainer.prepare(training, trainer.collect(training, 0), 0)
    training.ranks = ranks
    rows = trainer.minibatches(batch, 1, 0)[0]
    measured = []
    for training.place in range(ranks): measured.append(trainer.backward(training, batch, advantage, rows))
    return {name: p.grad.clone() for name, p in training.weights.items()}, measured

@pytest.mark.parametrize('loss_per', ['token', 'turn', 'row', 'episode', 64.])
def test_micro_batches_and_processes_add_up_to_one_gradient(loss_per):
    whole, measured = gradients(16384, loss_per=loss_per, kl_coef=.1)
    assert max(g.abs().max() for g in whole.values()) > 1e-3
    for budget, ranks in ((1, 1), (150, 1), (16384, 2), (150, 4), (16384, 7)):
        cut, pieces = gradients(budget, ranks, loss_per=loss_per, kl_coef=.1)
        for name, gradient in whole.items(): torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)
        for key in ('loss', 'kl', 'clip_fraction', 'tokens'):
            assert sum(p[key] for p in pieces) == pytest.approx(measured[0][key], abs=1e-5)
        for key in ('kl_each', 'kl_reference_each'):  # every token once, whoever read it
            one, many = (torch.cat([x for p in ps for x in p[key]]).sort().values for ps in (measured, pieces))
            torch.testing.assert_close(many, one, rtol=1e-3, atol=1e-5)

def test_a_row_says_how_far_the_middle_token_moved_and_the_farthest(tmp_path):
    """Median and largest of k3 over the tokens of all minibatches; of the reference where there is one; one spike
    makes the mean and leaves the median."""
    plain, with_reference = (train_small(tmp_path/name, steps=2, minibatches=2, lr=.02, **more).rows()[1]
        for name, more in dict(a={}, b=dict(kl_coef=.1)).items())
    for row in (plain, with_reference): assert 0 < row['kl_median'] < row['kl_max'] > row['kl']
    assert (plain['kl_reference_median'] is None is plain['kl_reference_max'] and with_reference['kl_reference_median']
        < with_reference['kl_reference'] < with_reference['kl_reference_max'])
    moved = torch.tensor([.1]*6 + [8.])
    each = [part.exp() - 1 - part for part in (moved[:2], moved[2:])]
    assert trainer.spread_of('kl', each) == dict(kl_median=each[0][0].item(), kl_max=each[1][-1].item())
    assert torch.cat(each).mean() > 400 and each[0][0] < .01

# ---- what stops an update

class Odd(Paying):
    "Pays an impossible reward in the games that `strange` picks."
    name, amount = 'odd', math.nan
    def turn(self, action):
        observation, reward, done, info = super().turn(action)
        return observation, self.amount, done, info

def infinite(logp, batch, advantage, entropy=None): return logp*math.inf

def raising(error):
    def objective(logp, batch, advantage, entropy=None): raise error
    return objective

@pytest.mark.parametrize('amount', [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number(tmp_path, amount):
    env, policy = Odd(), small_policy()
    env.amount, before = amount, weights(policy)
    run = train_small(tmp_path, policy=policy, env=env, steps=2)
    assert [row['step'] for row in run.rows()] == [0, 1] and not moved(before, policy)
    for row in run.rows():
        assert ('values of reward are NaN or infinite' in row['skipped'] and row['reward'] is None
            and row['loss'] is None)
    for line in run.folder.joinpath('metrics.jsonl').read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f'{name} is no JSON'))
    assert not run.episodes(0).episodes.outcome.isfinite().any()  # the episodes are kept as they were
    assert load_checkpoint(run)[0] == 2

def test_a_loss_that_is_no_number_stops_one_update_and_the_next_goes_on(tmp_path):
    policy, seen = small_policy(), []
    before = weights(policy)
    def once(logp, batch, advantage, entropy=None):
        return (infinite if not seen else clip)(logp, batch, advantage)
    run = train_small(tmp_path, policy=policy, objective=once, steps=2,
        on_row=lambda row: seen.append(moved(before, policy)))
    assert seen == [False, True]
    assert ('are not finite, so this update was not made' in run.rows()[0]['skipped']
        and run.rows()[1]['skipped'] is None)

def test_a_late_fault_does_not_hide_the_first_half(tmp_path):
    "Where the second minibatch has no finite loss, the first has already moved the weights: undo it, or say so."
    policy, calls = small_policy(), []
    before = weights(policy)
    def second(logp, batch, advantage, entropy=None):
        calls.append(1)
        return (infinite if len(calls) == 2 else clip)(logp, batch, advantage)
    row = train_small(tmp_path, policy=policy, objective=second, minibatches=2).rows()[0]
    assert len(calls) == 2 and row['skipped']
    assert not moved(before, policy) or 'this update was not made' not in row['skipped']

def test_the_message_is_shown(tmp_path, capsys):
    trainer.train(small_policy(), Odd(), small_recipe(), tmp_path, progress=True)
    assert 'step 0: ' in (said := capsys.readouterr().out) and 'values of reward are NaN' in said

def test_a_policy_that_has_blown_up(tmp_path):
    "An absurd learning rate: rows go on being written, or the run ends with the reason; nothing is lost."
    policy = small_policy()
    try: run = train_small(tmp_path, policy=policy, lr=1e30, steps=3)
    except RuntimeError as error: assert 'lower lr' in str(error).lower()
    else: assert [row['step'] for row in run.rows()] == [0, 1, 2] and run.rows()[2]['skipped']
    assert load_checkpoint(Run(tmp_path))[0] >= 1

# ---- what stops a run

def stopped(tmp_path, error, said):
    """The run ends in its second step; its checkpoint is whole, and once the cause is gone it goes on as if nothing
    had been."""
    fails = dict(now=False)
    def objective(logp, batch, advantage, entropy=None):
        return (error() if fails['now'] else clip(logp, batch, advantage))
    with pytest.raises(RuntimeError, match=said) as caught:
        train_small(tmp_path/'run', objective=objective, steps=2, on_row=lambda row: fails.update(now=True))
    assert 'resume' in str(caught.value) and load_checkpoint(Run(tmp_path/'run'))[0] == 1
    fails['now'] = False
    run = train_small(tmp_path/'run', objective=objective, steps=2, resume=True)
    assert facts(run) == facts(train_small(tmp_path/'whole', steps=2))

def out_of_memory(kind):
    def fail(): raise kind('tried to allocate 8 GiB')
    return fail

@pytest.mark.parametrize('error', [out_of_memory(MemoryError), deferred(lambda: out_of_memory(torch.OutOfMemoryError)),
    lambda: torch.empty(2**60)], ids=['python', 'cuda', 'cpu'])
def test_memory_runs_out(tmp_path, error): stopped(tmp_path, error, r'memory ran out.*Lower budget.*group_size')

def full(*_): raise OSError(errno.ENOSPC, 'No space left on device')

def test_the_disk_is_full(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match='the disk is full.*whole'):
        train_small(tmp_path/'run', steps=2, on_row=lambda row: monkeypatch.setattr(os, 'fsync', full))
    monkeypatch.undo()
    assert load_checkpoint(Run(tmp_path/'run'))[0] == 1
    assert facts(train_small(tmp_path/'run', steps=2, resume=True)) == facts(train_small(tmp_path/'whole', steps=2))

def small_disk(folder, size, again=False):
    "A file system of `size` kB of its own for this process, or a larger one."
    if not again and ctypes.CDLL(None, use_errno=True).unshare(0x00020000): raise SystemExit(77)  # CLONE_NEWNS
    flags = ['-o', f'remount,size={size}k'] if again else ['-t', 'tmpfs', '-o', f'size={size}k']
    made = not again and subprocess.run(['mount', '--make-rprivate', '/'], stderr=subprocess.DEVNULL).returncode
    if made or subprocess.run(['mount', *flags, 'tmpfs', folder], stderr=subprocess.DEVNULL).returncode:
        raise SystemExit(77)

def train_on_small_disks(folder, whole):
    "Whatever the size of the disk: a clear message, a whole checkpoint or none, and the same run once there is room."
    small_disk(folder, 100)
    for i, size in enumerate((60, 700, 1300, 2400, 2750)):
        small_disk(folder, size, again=True)
        out = Path(folder)/f'{i}'
        with pytest.raises(RuntimeError, match='the disk is full'): train_small(out, steps=3)
        assert (load_checkpoint(Run(out)) or [0])[0] == (0, 0, 1, 2, 2)[i], size
        small_disk(folder, 20_000, again=True)
        train_small(out, steps=3, resume=(out/'run.json').exists())
        assert facts(Run(out)) == facts(Run(whole))
        subprocess.run(['rm', '-r', out], check=True)
    small_disk(folder, 2200, again=True)  # enough for two checkpoints, and not for the policy beside them
    with pytest.raises(RuntimeError, match='the disk is full'): train_small(Path(folder)/'last', steps=2)
    assert load_checkpoint(Run(Path(folder)/'last'))[0] == 2

@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid() != 0, reason='only root can make a small disk')
@pytest.mark.xdist_group('forks')
def test_disks_that_really_are_full(tmp_path):
    (tmp_path/'disk').mkdir()
    whole = train_small(tmp_path/'whole', steps=3)
    process = fork(train_on_small_disks, str(tmp_path/'disk'), str(whole.folder), log=tmp_path/'log')
    status, said = finish(process, tmp_path/'log')
    if status == 77: pytest.skip('this system does not let us mount a small disk')
    assert status == 0, said[-3000:]

def test_other_faults_of_the_disk_say_what_they_are(tmp_path):
    "A file in the place of the folder is no full disk."
    (tmp_path/'run').write_text('a file')
    with pytest.raises(OSError): train_small(tmp_path/'run')

def test_should_stop(tmp_path):
    "Polled between steps: the run ends with a checkpoint of all it has done, and goes on from there."
    polls = []
    run = train_small(tmp_path/'run', steps=4, checkpoint_every=10, should_stop=lambda: polls.append(1)
        or len(polls) > 2)
    assert len(run.rows()) == 2 and load_checkpoint(run)[0] == 2 and not (run.folder/'policy').exists()
    run = train_small(tmp_path/'run', steps=4, checkpoint_every=10, resume=True)
    assert facts(run) == facts(train_small(tmp_path/'whole', steps=4, checkpoint_every=10))

def test_an_exception_in_on_row_loses_nothing(tmp_path):
    def stop(row): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): train_small(tmp_path/'run', steps=2, on_row=stop)
    assert facts(train_small(tmp_path/'run', steps=2, resume=True)) == facts(train_small(tmp_path/'whole', steps=2))

# ---- environments that fail

class Fragile(Paying):
    "Fails in the games of some seeds."
    name, share = 'fragile', 2
    def start(self, seed, task=None):
        if seed % self.share == 0: raise OSError('the house burned down')
        return super().start(seed, task)

def test_faulty_episodes_are_counted_and_not_trained_on(tmp_path):
    run = train_small(tmp_path, env=Fragile(), groups=6)
    row, played = run.rows()[0], run.episodes(0)
    errors = int((played.episodes.error != -1).sum())
    assert 0 < errors < 12 and row['errors'] == errors and row['episodes'] == 12
    assert set(played.labels['error'].values()) == {'OSError: the house burned down'}

def test_an_environment_that_always_fails(tmp_path):
    env = Fragile()
    env.share = 1
    with pytest.raises(RuntimeError, match='all 4 episodes ended with an error.*the house burned down'):
        train_small(tmp_path, env=env)

# ---- less than all weights, and not too far

def test_lora_trains_the_adapter_alone(tmp_path):
    fresh, policy = small_policy(), small_policy()
    run = train_small(tmp_path, policy=policy, steps=2, minibatches=1, lora=dict(r=2), kl_coef=.1)
    saved, now = load_checkpoint(run)[1]['model'], dict(policy.model.named_parameters())
    assert all('lora_' in name for name in saved) and any('lora_B' in name and p.abs().max() > 0
        for name, p in saved.items())
    base = {name.replace('.base_layer', ''): p for name, p in now.items() if 'lora_' not in name}
    for name, p in fresh.model.named_parameters(): exactly(base[name].data, p.data, name)
    one, two = run.rows()
    # the reference is the model without its adapter, which began as nothing
    assert one['kl_reference'] < 1e-9 < two['kl_reference']

def test_the_reference_is_where_training_began():
    "A copy, or the model with its adapter switched off; after a step of either the policy has left it."
    began = small_policy()
    for lora in ({}, dict(r=2)):
        training = trainer.Training(small_policy(), Paying(), small_recipe(kl_coef=.1, lora=lora))
        trainer.one_step(training, 0)
        batch = Batch.from_episodes(play(training.policy, Paying(), [0, 1], max_tokens=3))
        reference = trainer.reference_logp(training, batch)
        torch.testing.assert_close(reference, began.logprobs(batch)[0], rtol=0, atol=1e-5)
        assert (reference - training.policy.logprobs(batch)[0]).abs().max() > 1e-3

def test_the_policy_of_a_lora_run_can_be_played(tmp_path):
    policy = small_policy()
    run = train_small(tmp_path, policy=policy, lora=dict(r=2))
    played = Policy.load(run.folder/'policy')
    batch = run.episodes(0)
    adapted = small_policy()
    assert (played.logprobs(batch)[0] - adapted.logprobs(batch)[0]).abs().max() > 1e-3

def test_lora_resumes(tmp_path):
    settings = dict(steps=3, lora=dict(r=2), kl_coef=.1)
    whole = train_small(tmp_path/'whole', **settings)
    train_small(tmp_path/'run', should_stop=iter([False, True]).__next__, **settings)
    run = train_small(tmp_path/'run', resume=True, **settings)
    assert facts(run) == facts(whole)
    for name, p in load_checkpoint(whole)[1]['model'].items(): exactly(load_checkpoint(run)[1]['model'][name], p, name)

def test_another_precision_in_the_same_process(tmp_path):
    "As in a notebook: one run after another."
    train_small(tmp_path/'no')
    assert train_small(tmp_path/'bf16', precision='bf16').rows()[0]['grad_norm'] > 0

# ---- two processes

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def in_processes(count, out, **settings):
    "What `torchrun` or `accelerate launch` would start: one process per rank."
    shared = dict(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count), MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(free_port()), ACCELERATE_USE_CPU='true', OMP_NUM_THREADS='1')
    processes = [fork(train_ranked, out, settings, log=f'{out}.{rank}', RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank in range(count)]
    for rank, process in enumerate(processes):
        status, said = finish(process, f'{out}.{rank}')
        assert status == 0, said[-3000:]
    return Run(out)

def train_ranked(out, settings): train_small(out, **settings)

# Adam divides by the size of a gradient, so its rounding error grows with lr
two_processes = dict(steps=2, groups=3, kl_coef=.1, test_tasks=1, lr=1e-4)

@pytest.fixture(scope='module')
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp('ranks')
    return train_small(folder/'one', **two_processes), in_processes(2, folder/'two', **two_processes)

@pytest.mark.xdist_group('forks')
def test_two_processes_train_the_same_weights(both):
    one, two = both
    began = small_policy()
    assert max((p - began.model.get_parameter(name)).abs().max()
        for name, p in load_checkpoint(one)[1]['model'].items()) > 3e-4
    for name, p in load_checkpoint(one)[1]['model'].items():
        torch.testing.assert_close(load_checkpoint(two)[1]['model'][name], p, rtol=0, atol=1e-5)
    assert one.steps() == two.steps() and one.tests() == two.tests()
    for step in one.steps(): assert one.episodes(step).tokens.id.tolist() == two.episodes(step).tokens.id.tolist()

@pytest.mark.xdist_group('forks')
def test_two_processes_write_the_same_rows(both):
    for one, two in zip(*map(facts, both), strict=True):
        assert set(one) == set(two)
        for name, value in one.items():
            if name == 'computed': continue  # each process pads its own share
            assert two[name] == (value if value is None or isinstance(value, str)
                else pytest.approx(value, rel=1e-3, abs=1e-5)), name

# ---- bad input

def test_a_group_of_one_is_refused():
    compare = [name for name, make in recipes.known.items() if 'group' in getattr(make().credit, 'needs', ())]
    assert {'grpo', 'rloo', 'gigpo'} <= set(compare)
    for name in compare:
        with pytest.raises(ValueError, match='group_size=1.*compare'): load_recipe(name, group_size=1)

@pytest.mark.parametrize('changes, said', [
    (dict(steps=0), 'steps=0'), (dict(groups=2.5), 'groups=2.5'), (dict(group_size=True), 'group_size=True'),
    (dict(lr=-1.), r'lr=-1\.0: give a number above 0'), (dict(lr=math.nan), 'lr=nan'),
    (dict(temperature=0.), 'temperature'), (dict(minibatches=100), 'minibatches=100: at most'),
    (dict(learning_rate=1), "no field 'learning_rate'. Fields: .*lr"), (dict(budget=0), 'budget=0'),
    (dict(lr='much'), 'lr'), (dict(kl_coef=-1.), 'kl_coef'), (dict(loss_per='word'), 'loss_per'),
    (dict(test_tasks=-1), 'test_tasks'), (dict(test_every=.5), 'test_every')])
def test_recipes_that_cannot_work(changes, said):
    "Refused before anything is played, naming the field."
    with pytest.raises(ValueError, match=said): load_recipe('grpo', **changes)

@pytest.mark.parametrize('precision', ['int3', 'fp16'])
def test_a_precision_that_cannot_work(tmp_path, precision):
    with pytest.raises(ValueError, match=f'precision=.{precision}.*bf16'): train_small(tmp_path, precision=precision)
    assert not (tmp_path/'run.json').exists()

@pytest.mark.parametrize('name, said', [('gigpoo', "recipe='gigpoo' is unknown. Known: adaptive, aepo, agent_r, "),
    ('nowhere:grpo', "no module 'nowhere'"),
    ('agentlab.train.recipes:nothing', "has no 'nothing'"),
    ('agentlab.train.recipes:known', 'cannot be called')])
def test_recipes_that_nobody_knows(name, said):
    with pytest.raises(ValueError, match=said): load_recipe(name)

# ---- every recipe that can be named

# worlds of their own: test_delegate, workspace, minds, again, evidence, sql_seats, workbench and seeking train them;
# pairs and stored games: test_forward_values, test_stored_values
ELSEWHERE = ('ai_searchplanner', 'comas', 'mae', 'coda', 'himac', 'hi_agent', 'memory_r1', 'iterresearch', 'era',
    'hiersearch', 'hcsp', 'mind', 'smartsnap', 'mars_sql', 'rl_mle', 'deep_dxsearch', 'refuel', 'digi_q')

@pytest.mark.parametrize('name', [name for name in registries.recipes() if name not in ELSEWHERE])
def test_a_known_recipe_trains(tmp_path, name):
    """Two updates, from the policy that the package ships; information gain where somebody knows the answer, tags
    and subgoals where they can be said, void turns and errors where there is a tool."""
    from agentlab.env import Clarify, HopSearch, KeyDoor
    from agentlab.env.wrappers import Planned, Tagged
    from agentlab.policy import tiny_policy
    from agentlab.rollout import more_hops
    from test_python_recipes import Eager
    house = dict(igpo=Clarify(), hae=Planned(Paying()), rlvmr=Tagged(Paying()), roc=Eager(),
        simpletir=Eager(), searchgym=HopSearch()).get(name, KeyDoor())
    closing = dict(igpo=dict(columns=partial(measure_answers, closing='book')),
        searchgym=dict(schedule=partial(more_hops, every=1))).get(name, {})  # its policy knows two hops only
    size = dict(remax=dict(groups=20, group_size=1), roc=dict(groups=3,
        group_size=16)).get(name, dict(groups=4, group_size=5))
    recipe = load_recipe(name, steps=2, test_tasks=0, **size, **closing)
    run = trainer.train(tiny_policy(house, warm=isinstance(house, KeyDoor | HopSearch)), house, recipe, tmp_path/'run',
        progress=False)
    rows = run.rows()
    assert (run.info['facts']['recipe']['name'] == name and recipe.paper
        and all(set(row) <= set(METRICS) for row in rows))
    late = recipe.critic_warmup  # updates in which only the critic learns
    assert (all('warming up' in row['skipped'] for row in rows[:late])
        and [row['skipped'] for row in rows[late:]] == [None]*(2 - late))
    assert all(math.isfinite(row['loss']) for row in rows[late:])
    assert max(row['grad_norm'] for row in rows[late:]) > 1e-3
    assert (rows[1]['value_loss'] is not None) == (recipe.critic is not None)

def test_information_gain_without_an_answer_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"this environment does not say it: info\['answer'\]"):
        train_small(tmp_path/'run', columns=measure_answers)
    assert not (tmp_path/'run').exists()  # it was asked before anything was made
    with pytest.raises(ValueError, match=r"no episode of this batch has one.*info\['answer'\]"):
        measure_answers(train_small(tmp_path/'other', steps=1).episodes(0), small_policy())

def test_a_value_without_a_critic_is_refused(tmp_path):
    with pytest.raises(ValueError, match='critic=None: .*agentlab.train.Critic'): load_recipe('ppo', critic=None)

# ---- one after the other

def halves(batch, policy):
    "First the odd turns, then the even ones, with opposite advantages."
    odd = batch.turns.t[batch.action_turn] % 2 == 1
    halves.seen.append(batch)
    for which, sign in ((odd, 1.), (~odd, -1.)): yield which, torch.where(which, sign, math.nan)

def nobody(batch, policy): yield torch.zeros(len(batch.actions), dtype=torch.bool), torch.zeros(len(batch.actions))

def test_updates_see_their_tokens_alone(monkeypatch):
    "Each round trains the selected tokens only, and the second one begins where the first has left the policy."
    halves.seen, training = [], trainer.Training(small_policy(), Paying(), small_recipe(updates=halves, minibatches=1))
    batch, advantage, _ = trainer.prepare(training, trainer.collect(training, 0), 0)
    rounds = trainer.rounds(training, batch, advantage)
    for number in range(2):
        part, found = next(rounds)
        weight, t = part.action('weight'), batch.turns.t[batch.action_turn]
        assert torch.equal(weight > 0, t % 2 == 1 - number)
        assert torch.equal(part.action('old_logp'), batch.action('old_logp')) == (number == 0)
        for rows in trainer.minibatches(part, 1, 0): trainer.optimise(training, part, found, rows)

def test_updates_that_select_nothing(tmp_path):
    assert 'no action token counts' in train_small(tmp_path/'run', updates=nobody, steps=1).rows()[0]['skipped']
