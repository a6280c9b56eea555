"""AgentGRPOTrainer trains on what agentlab played and compared: the same gradient, the same past, the same run after
a stop; and what would spoil it is refused."""
import ast, inspect, os, re, subprocess, sys
from functools import partial
from pathlib import Path

import pytest
import torch

from agentlab import credit
from agentlab.env import KeyDoor
from agentlab.episodes import Batch, Table
from agentlab.objective import cispo, kl_k3, loss_weights, sapo
from agentlab.policy import tiny_policy
from agentlab.policy.core import parts
from agentlab.train import recipes, trainer as ours
from agentlab.train.runs import Run
from later import deferred, needs
from replays import Joined
from small import Paying, small_policy

needs('trl', '1.16')
from accelerate import Accelerator
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict
from agentlab.interop import trl as interop
from agentlab.interop.trl import (NEUTRAL, AgentGRPOTrainer, check_config, counts, hand_over, of_trl, row_scale,
    trl_config)

pytestmark = pytest.mark.filterwarnings('ignore')
house = KeyDoor()

@deferred
def Watch():
    class Watch(TrainerCallback):
        "Keeps the gradients, and calls `look` before each optimiser step."
        def __init__(self, look=None): self.look, self.gradients = look, []
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            self.gradients.append({name: None if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()})
            if self.look: self.look(model)
    return Watch

def small(make=recipes.gigpo, **changes):
    return make(**dict(steps=1, groups=2, group_size=4, max_tokens=3, minibatches=1, max_grad_norm=1e9) | changes)

def host(recipe, folder, policy=None, env=None, accumulate=1, look=None, **more):
    "A trainer, its watch, and a list of the tensors that it hands over."
    env = env or Paying()
    watch = Watch(look)
    args = trl_config(recipe, folder, accumulate, use_cpu=True, disable_tqdm=True,
        **dict(save_strategy='no', logging_strategy='no') | more)
    trainer = AgentGRPOTrainer(policy or small_policy(env), env, recipe, args, callbacks=[watch])
    handed, inner = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: handed.append(inner(inputs)) or handed[-1]
    return trainer, watch, handed

def agentlab_gradient(recipe, policy, env, shake=False):
    "The gradient of agentlab's first optimiser step."
    training, found = ours.Training(policy, env, recipe), {}
    if shake: shaken(policy)
    training.optimizer.register_step_pre_hook(lambda *_: found.update(
        {name: p.grad.clone() for name, p in policy.model.named_parameters()}))
    ours.one_step(training, 0)
    return found

def same_gradient(one, two):
    "Equal up to float32, and not a comparison of zeros."
    flat = [torch.cat([g[name].flatten().double() for name in sorted(one)]) for g in (one, two)]
    assert flat[0].norm() > 1e-3
    assert float(torch.cosine_similarity(*flat, dim=0)) == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(*flat, rtol=1e-4, atol=2e-5*float(flat[0].abs().max()))

# ---- the same gradient as agentlab.train, end to end

def shaken(policy):
    "Other weights than those that the reference was copied from."
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in policy.model.parameters(): p += .02*torch.randn(p.shape, generator=g)

def half(batch):
    "Curation: every third turn does not count."
    return batch.with_action(weight=batch.action('weight')*(batch.action_turn % 3 > 0))

whole = [dict(more=dict(gradient_checkpointing=True)), dict(loss_per='row'), dict(loss_per='turn'),
    dict(loss_per='episode'), dict(make=recipes.dr_grpo, credit=credit.gigpo),
    dict(make=recipes.cispo, credit=credit.gigpo), dict(make=recipes.sapo, credit=credit.gigpo),
    dict(curate=half, loss_per='row'), dict(kl_coef=.5, loss_per='row', groups=3, group_size=3),
    dict(recompute_old=True, temperature=.8)]

# the slow ones are in the float64 test too
@pytest.mark.parametrize('changes, accumulate',
    [pytest.param(changes, 1 + i % 2, id=str(i), marks=[pytest.mark.slow] if i in (2, 3, 5, 6, 7)
    else []) for i, changes in enumerate(whole)])
def test_the_first_gradient_is_agentlabs(tmp_path, changes, accumulate):
    changes, config = {k: v for k, v in changes.items() if k != 'more'}, changes.get('more', {})
    recipe = small(**changes)
    if recipe.groups == 3: accumulate = 1
    env = Paying()
    trainer, watch, handed = host(recipe, tmp_path, env=env, accumulate=accumulate, **config)
    if recipe.kl_coef: shaken(trainer.policy)  # away from the reference
    found = agentlab_gradient(recipe, small_policy(env), env, shake=bool(recipe.kl_coef))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    same_gradient(watch.gradients[0], found)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters())), 'no weight has moved'
    spread = [row[mask > 0].unique().numel() for row, mask in zip(handed[0]['advantages'], handed[0]['tool_mask'])]
    assert max(spread) > 1, 'every turn of an episode has the same advantage, so this test shows nothing'

def test_windows_are_rows_of_their_own(tmp_path):
    "An episode in several context windows is several rows; their number does not divide, so an empty one is added."
    recipe = recipes.supo(steps=1, groups=2, group_size=2, minibatches=1, max_grad_norm=1e9, credit=credit.gigpo,
        loss_per=64., rollout_args=dict(window=96, summary_tokens=4))
    trainer, watch, handed = host(recipe, tmp_path, tiny_policy(house, progress=False), house, accumulate=2)
    trainer.train()
    episodes = Run(tmp_path/'agentlab').episodes(0)
    assert len(episodes.rows) > len(episodes) and len(handed[0]['prompt_ids']) % 2 == 0
    same_gradient(watch.gradients[0], agentlab_gradient(recipe, tiny_policy(house, progress=False), house))

def test_what_is_trained_is_what_was_sampled(tmp_path):
    trainer, _, handed = host(small(), tmp_path)
    trainer.train()
    played, tables = Run(tmp_path/'agentlab').episodes(0), handed[0]
    ids, mask = (torch.cat([tables[f'prompt_{kind}'], tables[f'completion_{kind}']], 1) for kind in ('ids', 'mask'))
    assert torch.equal(ids[mask > 0], played.tokens.id)
    assert torch.equal(tables['completion_ids'][tables['tool_mask'] > 0], played.tokens.id[played.actions])
    torch.testing.assert_close(tables['old_per_token_logps'][tables['tool_mask'] > 0], played.action('sampler_logp'))
    torch.testing.assert_close(tables['advantages'][tables['tool_mask'] > 0], credit.gigpo(played).float())
    assert int(tables['num_items_in_batch']) == len(played.actions)

# ---- TRL's own loss on these tensors, for every loss type that both have, in float64

def tables(seed=0, windows=True):
    "Five episodes of 1 to 3 turns, the second in two context windows, with everything different from token to token."
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 4, (12,), generator=g)
    turn_of = [0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4]
    row_of = [0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 5] if windows else turn_of
    run = torch.stack([torch.randint(1, 3, (12,), generator=g), lengths], 1).flatten()  # context, action, context, ...
    owner = torch.arange(24).repeat_interleave(run)
    row = torch.tensor(row_of)[owner//2]
    tokens = Table(row=row, turn=torch.where(owner % 2 == 1, owner//2, -1),
        id=torch.randint(0, 9, (len(row),), generator=g),
        position=torch.arange(len(row)) - torch.searchsorted(row, row), weight=(owner % 2).double())
    e = torch.tensor(turn_of)
    batch = Batch(Table(group=torch.zeros(5, dtype=torch.int64)),
        Table(episode=torch.tensor([e[row_of.index(i)] for i in range(max(row_of) + 1)])),
        Table(episode=e, t=torch.arange(12)), tokens)
    n = len(batch.actions)
    draw = lambda scale: scale*torch.randn(n, generator=g, dtype=torch.float64)
    old = -draw(1).exp()
    weight = (torch.rand(n, generator=g) < .8).double()
    weight[batch.action_turn == 8] = 0  # one row that does not count at all
    return (batch.with_action(old_logp=old, ref_logp=old + draw(.3), weight=weight), (old + draw(.5)).requires_grad_(),
        draw(1.))

@pytest.fixture(scope='module')
def loss_of(tmp_path_factory):
    "TRL's own loss of a batch, in pieces: function (recipe, batch, logp, advantage, pieces, beta, **config) -> loss."
    trainer, _, _ = host(small(), tmp_path_factory.mktemp('loss'))
    def call(recipe, batch, logp, advantage, pieces=1, entropy=None, **more):
        args = trl_config(recipe, tmp_path_factory.getbasetemp(), use_cpu=True, **more)
        for name in ('loss_type', 'max_completion_length', 'importance_sampling_level', 'off_policy_mask_threshold',
                     'top_entropy_quantile'):
            setattr(trainer, name, getattr(args, name))
        trainer.args, trainer.epsilon_low, trainer.epsilon_high = (args, args.epsilon, args.epsilon
            if args.epsilon_high is None else args.epsilon_high)
        Accelerator(cpu=True)  # a new config has reset the state that all accelerators share
        args.steps_per_generation = trainer.current_gradient_accumulation_steps = pieces
        weight = counts(batch, recipe.loss_per)
        rows = batch.tokens.row[batch.actions][weight > 0].unique()
        count = -(-len(rows)//pieces)*pieces
        scale = row_scale(args.loss_type, batch, weight, count)
        trainer.beta = recipe.kl_coef*scale
        held = (hand_over(batch, advantage*scale, weight, rows, count)
            | dict(logp=hand_over(batch.with_action(old_logp=torch.zeros(len(advantage)).double()), logp, weight,
            rows, count)['advantages'], num_items_in_batch=weight.sum()))
        held['entropy'] = (torch.ones_like(held['logp']) if entropy is None
            else hand_over(batch, entropy, weight, rows, count)['advantages'])
        trainer.model.train()
        total = 0
        for part in split_tensor_dict(held, pieces):
            trainer._get_per_token_logps_and_entropies = lambda *_, **__: (part['logp'], part['entropy'], None)
            total = total + trainer._compute_loss(trainer.model, part)
        return total
    return call

def our_loss(recipe, batch, logp, advantage):
    losses = recipe.objective(logp, batch, advantage, None)
    if recipe.kl_coef: losses = losses + recipe.kl_coef*recipe.kl(logp, batch)
    return (loss_weights(batch, recipe.loss_per)*losses).sum()

corrected = partial(kl_k3, corrected=True)
cases = dict(dapo=dict(), clip_higher=dict(objective_args=dict(low=.2, high=.28, dual=3.)),
    grpo=dict(loss_per='row'), grpo_kl=dict(loss_per='row', kl_coef=.1),
    dapo_kl=dict(kl_coef=.1, kl=corrected), dr_grpo=dict(loss_per=7.),
    dr_grpo_kl=dict(loss_per=7., kl_coef=.1), turn=dict(loss_per='turn'), episode=dict(loss_per='episode'),
    cispo=dict(objective=cispo), sapo=dict(objective=sapo, loss_per='row'), bnpo=dict())

@pytest.mark.parametrize('name', cases)
def test_trls_loss_of_these_tensors_is_ours(loss_of, name):
    recipe, more = small(**cases[name]), dict(loss_type='bnpo') if name == 'bnpo' else {}
    for seed in range(2):
        batch, logp, advantage = tables(seed)
        mine, = torch.autograd.grad(our_loss(recipe, batch, logp, advantage), logp)
        assert mine.count_nonzero() > 8 and len(set(advantage.tolist())) == len(advantage)
        # five rows that count: two, four and three empty rows' worth of padding
        for pieces in (1, 2, 4) if name != 'bnpo' else (1,):
            theirs = loss_of(recipe, batch, logp, advantage, pieces, **more)
            found, = torch.autograd.grad(theirs, logp)
            assert float(torch.cosine_similarity(mine, found, dim=0)) == pytest.approx(1, abs=1e-12)
            torch.testing.assert_close(found, mine, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(theirs, our_loss(recipe, batch, logp, advantage), rtol=1e-9, atol=1e-12)

def row_means(batch, advantage):
    "Every token of a row with the mean advantage of its tokens that count."
    row, weight = batch.tokens.row[batch.actions], batch.action('weight')
    total, count = (torch.zeros(len(batch.rows), dtype=torch.float64).index_add_(0, row, x)
        for x in (weight*advantage, weight))
    return (total/count.clamp(min=1))[row]

def slope(loss_of, recipe, case, advantage=None, **more):
    batch, logp, own = case
    return torch.autograd.grad(loss_of(recipe, batch, logp, own if advantage is None else advantage, **more), logp)[0]

@pytest.mark.parametrize('loss_type', ['luspo', 'vespo', 'grpo', 'dapo', 'cispo', 'sapo', 'dr_grpo'])
def test_every_loss_type_of_trl_keeps_the_turns_apart(loss_of, loss_type):
    "With one ratio a token: the gradient changes when the advantages of a row trade places."
    case, recipe = tables(3), small(objective=of_trl)
    assert not torch.allclose(slope(loss_of, recipe, case, loss_type=loss_type),
        slope(loss_of, recipe, case, row_means(case[0], case[2]), loss_type=loss_type))

def test_why_one_ratio_a_row_is_refused(loss_of):
    "Where the clip does not bind, its gradient is that of the mean advantage of the row: the turns are gone."
    batch, logp, advantage = tables(3)
    case, recipe = (batch, (batch.action('old_logp') + .01*advantage).requires_grad_(),
        advantage), small(objective=of_trl)
    mean = row_means(batch, advantage)
    gone = dict(loss_type='grpo', importance_sampling_level='sequence')
    torch.testing.assert_close(slope(loss_of, recipe, case, **gone), slope(loss_of, recipe, case, mean, **gone))
    kept = dict(loss_type='grpo')
    assert not torch.allclose(slope(loss_of, recipe, case, **kept), slope(loss_of, recipe, case, mean, **kept))

def test_why_the_off_policy_mask_is_refused(loss_of):
    "Far rows lose their bad tokens and keep their good ones."
    case = tables(3)
    batch, _, advantage = case
    case = batch, (batch.action('old_logp') - .1).requires_grad_(), advantage
    masked = slope(loss_of, small(objective=of_trl), case, off_policy_mask_threshold=.05)
    counted = batch.action('weight') > 0
    assert (masked[counted & (advantage < 0)] == 0).all() and (masked[counted & (advantage > 0)] != 0).all()

def test_why_an_entropy_quantile_is_refused(loss_of):
    "A turn of which the policy was sure has no gradient left, whatever it was worth."
    case = tables(3)
    batch = case[0]
    sure = batch.action_turn % 2 == 0
    found = slope(loss_of, small(objective=of_trl), case, entropy=torch.where(sure, .01, 1.).double(),
        top_entropy_quantile=.4)
    counted = batch.action('weight') > 0
    assert (sure & counted).any() and (found[sure] == 0).all() and (found[~sure & counted] != 0).any()

def test_why_the_others_would_do_nothing():
    "They are read in the method that is replaced, and nowhere in the loss."
    replaced, loss = (inspect.getsource(f)
        for f in (GRPOTrainer._generate_and_score_completions, GRPOTrainer._compute_loss))
    for name in ('mask_truncated_completions', 'scale_rewards', 'reward_weights', 'multi_objective_aggregation'):
        assert f'self.{name}' in replaced and f'self.{name}' not in loss

def test_why_cispo_needs_its_cap(loss_of):
    "TRL's default caps the weight at .2, where the paper's cap is a few units."
    case = tables(3)
    left, ours_ = (slope(loss_of, small(objective=of_trl), case, loss_type='cispo', epsilon_high=high)
        for high in (None, 5.))
    assert (left/ours_)[ours_ != 0].max() < .9 and (left/ours_).nan_to_num().min() >= 0

def test_why_gmpo_is_refused(tmp_path):
    from datasets import Dataset
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
    policy = small_policy()
    trainer = GMPOTrainer(policy.model, lambda completions, **_: [0.]*len(completions),
        args=GMPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to='none',
        per_device_train_batch_size=4, num_generations=4, scale_rewards='none',
        learning_rate=1e-3),
        processing_class=policy.tokenizer, train_dataset=Dataset.from_dict(dict(prompt=['go']*4)))
    batch, _, advantage = tables()
    held = (hand_over(batch, advantage, batch.action('weight'), torch.arange(6))
        | dict(num_items_in_batch=torch.tensor(9.)))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    with pytest.raises((RuntimeError, ValueError, IndexError)): trainer._compute_loss(trainer.model, held).backward()
    with pytest.raises(ValueError, match='GMPOConfig'): check_config(trainer.args, small())

# ---- refusals

WRONG = dict(importance_sampling_level='sequence', off_policy_mask_threshold=.1, top_entropy_quantile=.2,
    mask_truncated_completions=True, scale_rewards='group', reward_weights=[1.],
    multi_objective_aggregation='normalize_then_sum', beta=.1,
    log_completions=True, eval_strategy='steps', fp16=True, use_vllm=True,
    use_transformers_continuous_batching=True, top_p=.9, top_k=5, min_p=.1, repetition_penalty=1.1,
    generation_kwargs=dict(num_beams=2), cache_implementation='static',
    chat_template_kwargs=dict(tools=[]), max_tool_calling_iterations=3)

def test_every_refused_switch_is_tested(): assert set(WRONG) == set(NEUTRAL)

more = dict(loss_type='luspo', learning_rate=1e-6, temperature=.7, num_generations=2, weight_decay=.1, max_grad_norm=.5,
    epsilon=.3, delta=2., entropy_coef=.01, use_adaptive_entropy=True, max_steps=-1, steps_per_generation=2,
    gradient_accumulation_steps=2,
    save_strategy='epoch', bf16=True)

@pytest.mark.parametrize('name', [*WRONG, *more])
def test_refused_before_anything_is_played(tmp_path, name):
    recipe = small()
    args = trl_config(recipe, tmp_path, use_cpu=True)
    setattr(args, name, (WRONG | more)[name])  # as GRPOConfig would hold it; fp16 and vLLM cannot be made on a CPU
    with pytest.raises(ValueError, match=name.replace('gradient_accumulation_steps',
                                                      'steps_per_generation')) as refused:
        AgentGRPOTrainer(None, None, recipe, args)
    assert re.search(r'Use|Leave|Set|use|Make|Give|give|sets|played with|kept in|Weigh',
        str(refused.value)), 'it does not say what to do'
    assert not [*tmp_path.iterdir()]

@pytest.mark.parametrize('changes, match', [
    (dict(minibatches=2, save_steps=3), 'multiple of the 2 optimiser steps'),
    (dict(loss_type='bnpo', accumulate=2), "Use 'dapo'"), (dict(loss_type='new'), "loss_type='new'")],
    ids=['save', 'bnpo', 'unknown'])
def test_refused_combinations(tmp_path, changes, match):
    recipe = small(minibatches=changes.pop('minibatches', 1),
        **dict(objective=of_trl) if changes.get('loss_type') == 'new' else {})
    args = trl_config(recipe, tmp_path, changes.pop('accumulate', 1), use_cpu=True)
    for name, value in changes.items(): setattr(args, name, value)
    with pytest.raises(ValueError, match=match): check_config(args, recipe)

class Planning:
    def plan(self, step): return {}
def test_refused_recipes(tmp_path):
    for make, match in ((recipes.ppo, 'critic='), (recipes.seeupo, 'updates='), (recipes.epo, 'schedule='),
                        (recipes.spear, 'replay='), (partial(small, make=recipes.gmpo), 'objective=gmpo'),
                        (partial(small, memory=Planning), 'memory='),
                        (partial(small, kl=partial(interop.clip), kl_coef=.1), 'kl=clip'),
                        (partial(small, kl=partial(kl_k3, bound=10.), kl_coef=.1), 'kl_k3 with bound=10')):
        with pytest.raises(ValueError, match=match):
            recipe = make()
            AgentGRPOTrainer(None, None, recipe, trl_config(small(), tmp_path) if 'kl' not in match
                else trl_config(recipe, tmp_path))
    with pytest.raises(ValueError, match='of_trl'): of_trl(None, None, None)

def test_dropout_is_refused(tmp_path):
    policy = small_policy()
    policy.model.config.attention_dropout = .1
    with pytest.raises(ValueError, match='attention_dropout'): host(small(), tmp_path, policy)

def test_trls_evaluation_is_refused(tmp_path):
    trainer, _, _ = host(small(), tmp_path)
    trainer.model.eval()
    with pytest.raises(NotImplementedError, match='agentlab.train.evaluate'): trainer._prepare_inputs([])

# ---- what TRL must go on doing

def test_contract_with_trl():
    "The loss reads nothing that we do not know of, and makes (B,) advantages (B, 1) only where they are (B,)."
    known = {'prompt_ids', 'prompt_mask', 'completion_ids', 'completion_mask', 'tool_mask', 'advantages',
        'old_per_token_logps', 'ref_per_token_logps', 'num_items_in_batch'}
    # read only with off_policy_mask_threshold, vespo (None is fine) and use_vllm
    unused = {'sampling_per_token_logps', 'importance_sampling_ratio',
        'pixel_values', 'image_grid_thw', 'num_images', 'pixel_attention_mask', 'spatial_shapes', 'num_tiles',
        'image_sizes', 'token_type_ids', 'mm_token_type_ids', 'image_position_ids'}
    read = set(re.findall(r'inputs(?:\.get\(|\[)"(\w+)"', inspect.getsource(GRPOTrainer._compute_loss)))
    assert known <= read | {'tool_mask'} and read <= known | unused, read ^ known
    assert list(inspect.signature(GRPOTrainer._generate_and_score_completions).parameters) == ['self', 'inputs']
    given = set(re.findall(r'output\["(\w+)"\]|^            "(\w+)":',
        inspect.getsource(GRPOTrainer._generate_and_score_completions), re.M))
    assert known <= {name for pair in given for name in pair}, "TRL's own method names its tensors otherwise"
    own = ({name for part in interop.AgentTrainer.__mro__[:-1] for name in vars(part) if not name.startswith('__')}
        - {'_generate_and_score_completions'} | {'policy', 'guest', 'split', 'skipped', 'own_beta'})
    assert not [name for name in own if hasattr(GRPOTrainer, name)
        or f'self.{name} ' in inspect.getsource(GRPOTrainer)], 'a name of ours is a name of TRL'
    fields = set(GRPOConfig.__dataclass_fields__)
    assert set(NEUTRAL) <= fields and set(interop.fixed_fields(small(kl_coef=.1))) <= fields
    switches = [name for name in fields if re.search('mask|quantile|threshold|importance|sampling_level', name)
        and 'vllm' not in name]
    assert sorted(switches) == [
        'importance_sampling_level', 'mask_truncated_completions', 'off_policy_mask_threshold',
        'top_entropy_quantile'], 'TRL has a new switch of this kind: does it keep the turns apart?'

def test_trl_is_imported_when_it_is_needed():
    top = [name.name for node in ast.parse(inspect.getsource(interop)).body if isinstance(
        node, ast.Import) for name in node.names] + [node.module for node in ast.parse(inspect.getsource(interop)).body
        if isinstance(node, ast.ImportFrom)]
    assert not {'trl', 'transformers', 'datasets'} & {name.partition('.')[0] for name in top}
    assert issubclass(AgentGRPOTrainer, GRPOTrainer) and AgentGRPOTrainer.__name__ == 'AgentGRPOTrainer'
    with pytest.raises(AttributeError, match='no attribute'): interop.nothing

# ---- replay goes through the trainer

def formula(policy, batch, advantage, low=.2, high=.2):
    "Gradient of the clipped loss, mean over the action tokens: written from the paper."
    kept = [p.grad for p in policy.model.parameters()]
    for p in policy.model.parameters(): p.grad = None
    for part, which in parts(batch, torch.arange(len(batch.rows)), 4096):
        ratio, a = (policy.forward(part)[0] - part.action('old_logp')).exp(), advantage[which]
        (-torch.minimum(ratio*a, ratio.clamp(1 - low, 1 + high)*a).sum()/len(batch.actions)).backward()
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    for p, grad in zip(policy.model.parameters(), kept): p.grad = grad
    return found

def test_past_episodes_go_through_the_trainer(tmp_path):
    seen, expected = [], []
    def watch(batch, advantage):
        seen.append((batch, advantage))
        return advantage
    recipe = small(steps=2, replay=Joined, shape=watch, lr=1e-2)
    def look(model): expected.append(formula(trainer.policy, seen[-1][0], seen[-1][1].float()))
    trainer, watched, handed = host(recipe, tmp_path, look=look)
    trainer.train()
    (first, _), (batch, advantage) = seen
    past = batch.action('past') > 0
    assert not (first.action('past') > 0).any() and past.any() and (advantage[past] != 0).any()
    assert len(handed[1]['prompt_ids']) == len(batch) == len(first) + recipe.groups
    now = handed[1]['old_per_token_logps'][handed[1]['tool_mask'] > 0]
    torch.testing.assert_close(now, batch.action('old_logp'))
    torch.testing.assert_close(now[past], batch.action('sampler_logp')[past])  # the past policy's
    for found, formula_ in zip(watched.gradients, expected): same_gradient(found, formula_)
    row = Run(tmp_path/'agentlab').rows()[1]
    assert row['replayed'] == pytest.approx(past.double().mean().item()) and row['stored'] == 2*len(first)

def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    recipe = small(steps=2, replay=Joined, checkpoint_every=1)
    def run(folder, steps, resume=None):
        trainer, _, handed = host(recipe, folder, max_steps=steps, save_strategy='no' if steps == 2 else 'steps')
        trainer.train(resume_from_checkpoint=resume)
        return trainer, handed
    straight, handed = run(tmp_path/'straight', 2)
    run(tmp_path/'stopped', 1)
    resumed, again = run(tmp_path/'stopped', 2, str(tmp_path/'stopped/checkpoint-1'))
    assert len(again) == 1 and len(again[0]['prompt_ids']) == 10  # eight episodes, and one of the past in each group
    for key, x in handed[1].items(): assert torch.equal(x, again[0][key]), key
    for a, b in zip(straight.model.parameters(), resumed.model.parameters()): assert torch.equal(a, b)
    one, two = (Run(tmp_path/name/'agentlab') for name in ('straight', 'stopped'))
    assert (one.steps() == two.steps() == [0, 1]
        and [{**r, 'seconds': 0} for r in one.rows()] == [{**r, 'seconds': 0} for r in two.rows()])
    (tmp_path/'stopped/checkpoint-1'/interop.STATE).unlink()
    with pytest.raises(FileNotFoundError, match='past episodes of this run'):
        run(tmp_path/'stopped', 2, str(tmp_path/'stopped/checkpoint-1'))

def test_a_folder_with_another_run_is_refused(tmp_path):
    host(small(), tmp_path)[0].train()
    with pytest.raises(FileExistsError, match='already holds a run'): host(small(), tmp_path)[0].train()

# ---- updates that cannot be made

def test_a_skipped_update_leaves_the_weights(tmp_path):
    "Adam's momentum would move them although the gradient is zero."
    weights = []
    def curate(batch):
        return batch.select(torch.zeros(len(batch), dtype=torch.bool)) if int(batch.episodes.step.max()) == 1 else batch
    trainer, watch, _ = host(small(steps=3, curate=curate), tmp_path)
    class After(TrainerCallback):
        def on_step_end(self, *_, **__): weights.append([p.detach().clone() for p in trainer.model.parameters()])
    trainer.add_callback(After())
    trainer.train()
    moved = lambda i: any(not torch.equal(a, b) for a, b in zip(weights[i], weights[i + 1]))
    assert (moved(0), moved(1)) == (False, True)
    rows = Run(tmp_path/'agentlab').rows()
    assert [r['skipped'] is not None for r in rows] == [False, True,
        False] and 'curation left no episode' in rows[1]['skipped']

def test_a_gradient_that_is_not_finite_leaves_the_weights(tmp_path):
    def poison(model): next(model.parameters()).grad.fill_(torch.inf)
    trainer, _, _ = host(small(), tmp_path, look=poison)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    assert (all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters()))
        and trainer.state.log_history[-1]['agentlab/skipped'] == 1.)

def test_two_optimiser_steps_on_one_rollout(tmp_path):
    trainer, watch, handed = host(small(steps=2, minibatches=2), tmp_path, accumulate=2)
    trainer.train()
    assert (len(handed), len(watch.gradients), trainer.state.global_step) == (2, 4, 4)

def test_a_rollout_may_be_used_again(tmp_path):
    "num_iterations: the ratio of the second pass is to the probabilities at sampling."
    trainer, watch, handed = host(small(lr=1e-2), tmp_path, num_iterations=2, max_steps=2, logging_strategy='steps',
        logging_steps=1)
    trainer.train()
    assert (len(handed), len(watch.gradients), Run(tmp_path/'agentlab').steps()) == (1, 2, [0])
    assert [log['clip_ratio/region_mean'] > 0 for log in trainer.state.log_history[:2]] == [False, True]

def test_agentlab_shows_the_run(tmp_path):
    from agentlab.view import report
    from agentlab.view.foreign import open_run, opened_html
    host(small(), tmp_path)[0].train()
    assert report(tmp_path/'agentlab', None).stat().st_size > 10_000
    assert len(opened_html(open_run(tmp_path/'agentlab'))) > 10_000

def test_another_optimiser(tmp_path):
    if not hasattr(recipes.Recipe, 'optimizer'): pytest.skip('recipes have no optimiser of their own')
    trainer, _, _ = host(small(optimizer=torch.optim.SGD), tmp_path)
    assert type(trainer.optimizer) is torch.optim.SGD

def test_spiral_keeps_its_memory(tmp_path):
    from agentlab.env import TicTacToe
    env = TicTacToe()
    trainer, _, handed = host(recipes.spiral(steps=2, groups=4, group_size=1, minibatches=1, max_tokens=3), tmp_path,
        small_policy(env), env)
    trainer.train()
    # both seats; a game may end before the second has moved
    assert len(trainer.guest.memory.known) == 2 and len(handed[0]['prompt_ids']) > 4

def test_reference_is_the_policy_as_it_began(tmp_path):
    "A copy of the model that is made after TRL has changed it would run the live weights."
    trainer, _, handed = host(small(kl_coef=.1, steps=2, lr=1e-2), tmp_path)
    trainer.train()
    played = Run(tmp_path/'agentlab').episodes(1)
    first = small_policy(Paying()).logprobs(played)[0]
    found = handed[1]['ref_per_token_logps'][handed[1]['tool_mask'] > 0]
    torch.testing.assert_close(found, first, rtol=1e-4, atol=1e-4)
    assert (found - handed[1]['old_per_token_logps'][handed[1]['tool_mask'] > 0]).abs().max() > .01

def test_adapter(tmp_path):
    pytest.importorskip('peft')
    trainer, watch, _ = host(small(lora=dict(r=2), kl_coef=.1), tmp_path)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed and all('lora' in name for name in changed)

# ---- two processes

SCRIPT = '''
import sys, torch
from agentlab.interop.trl import AgentGRPOTrainer, trl_config
from test_interop_trl import Watch, small, small_policy, Paying
torch.set_num_threads(1)
recipe = small(groups=3, group_size=4, loss_per=sys.argv[2] if len(sys.argv) > 2 else 'token')
args = trl_config(recipe, sys.argv[1], use_cpu=True, disable_tqdm=True, save_strategy='no', logging_strategy='no')
watch = Watch()
trainer = AgentGRPOTrainer(small_policy(Paying()), Paying(), recipe, args, callbacks=[watch])
trainer.train()
if trainer.accelerator.is_main_process:
    gradient = {k.removeprefix('module.'): v for k, v in watch.gradients[0].items()}
    torch.save(gradient, sys.argv[1] + '/gradient.pt')
'''

@pytest.mark.slow
@pytest.mark.parametrize('per', ['token', 'row'])
def test_two_processes_make_the_gradient_of_one(tmp_path, per):
    script = tmp_path/'two.py'
    script.write_text(SCRIPT)
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parent.parent)]), OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    for name, start in dict(one=[], two=['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
                                         '2']).items():
        (tmp_path/name).mkdir()
        subprocess.run([sys.executable, *start, str(script), str(tmp_path/name), per], check=True, env=environment,
            timeout=300)
    same_gradient(torch.load(tmp_path/'two/gradient.pt'), torch.load(tmp_path/'one/gradient.pt'))

def test_a_split_model_is_played_by_a_whole_copy(tmp_path, monkeypatch):
    """As under FSDP, in one process: the copy plays with the weights as they are, and the gradient is that of the
    model itself."""
    recipe = small(steps=2, lr=1e-2)
    plain, watch, _ = host(recipe, tmp_path/'plain')
    plain.train()
    monkeypatch.setattr(interop, 'is_split', lambda args: True)
    trainer, seen, _ = host(recipe, tmp_path/'split')
    assert trainer.guest.policy is not trainer.policy and trainer.guest.policy.model is not trainer.model
    trainer.train()
    for one, two in zip(watch.gradients, seen.gradients): same_gradient(one, two)
    played = Run(tmp_path/'split/agentlab').episodes(1)
    torch.testing.assert_close(played.action('sampler_logp'), plain_logp(tmp_path/'plain/agentlab'))

def plain_logp(folder): return Run(folder).episodes(1).action('sampler_logp')

SPLIT = '''
import copy, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from agentlab.interop.trl import bring_together
from small import small_policy
torch.set_num_threads(1)
dist.init_process_group('gloo')
model = small_policy().model
whole = copy.deepcopy(model)
for p in whole.parameters(): p.data.zero_()
wanted = {k: v.clone() for k, v in model.state_dict().items()}
mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (2,))
for layer in model.model.layers: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
assert all(p.to_local().numel() < p.numel() for p in model.parameters() if p.shape[0] > 1)
bring_together(model, whole)
for name, x in whole.state_dict().items(): assert torch.equal(x, wanted[name]), name
dist.destroy_process_group()
'''

@pytest.mark.slow
def test_weights_in_two_processes_come_together(tmp_path):
    (tmp_path/'split.py').write_text(SPLIT)
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parent.parent)]), OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2',
        str(tmp_path/'split.py')], check=True, env=environment, timeout=300)
