"The loss and its gradient are those of TRL's own GRPOTrainer on the same tensors."
import pandas as pd
import pytest
import torch

from agentlab.episodes import Batch
from agentlab.objective import clip, clip_fraction, kl_k3, loss_weights

from later import needs
needs('trl', '1.16')
rows, width = 6, 9
per = dict(grpo='row', bnpo='token', dapo='token', dr_grpo=width) # TRL's loss_type -> our aggregation

@pytest.fixture(scope='module')
def parts(tmp_path_factory):
    "What a trainer needs besides its config: a model of a few hundred parameters, a tokenizer, a dataset."
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    vocabulary = {word: i for i, word in enumerate(['<pad>', '<end>', 'go', 'stay'])}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token='<pad>')),
        pad_token='<pad>', eos_token='<end>')
    shape = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), **shape))
    return (dict(model=model, processing_class=tokenizer, train_dataset=Dataset.from_dict(dict(prompt=['go']*rows))),
        tmp_path_factory.mktemp('trl'))

@pytest.fixture
def trainer(parts, request):
    "A real GRPOTrainer with the config of the test."
    from trl import GRPOConfig, GRPOTrainer
    needs, folder = parts
    settings = dict(dict(gradient_accumulation_steps=1), **request.param)
    beta = settings.pop('beta', 0.)
    config = GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to='none', num_generations=rows,
        per_device_train_batch_size=rows//settings['gradient_accumulation_steps'],
        max_completion_length=width, **settings)
    trainer = GRPOTrainer(reward_funcs=lambda completions, **_: [0.]*len(completions), args=config, **needs)
    # in the config it would fetch a reference model by name; the test gives the reference's log-probabilities
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = config.gradient_accumulation_steps # train() sets it
    trainer.model.train()
    return trainer

def case(seed, token_advantage=False):
    "Random log-probabilities before and after, reference, advantages and a mask with holes, as TRL wants them."
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    old = -normal(rows, width).exp()
    mask = torch.arange(width) < torch.randint(1, width+1, (rows, 1), generator=g)
    tool = torch.rand(rows, width, generator=g) < .8 # holes: text of the environment inside a completion
    tool[:, 0] = True
    return dict(old=old, logp=(old + .5*normal(rows, width)).requires_grad_(), ref=old + .3*normal(rows, width),
        mask=mask.long(), tool=tool.long(),
        advantage=normal(rows, width) if token_advantage else normal(rows))

def trl_loss(trainer, c, part=slice(None)):
    "TRL's loss of these rows: its own code, fed with our log-probabilities in place of its forward pass."
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (c['logp'][part], torch.zeros_like(c['old'][part]),
        None)
    n, active = len(c['old'][part]), (c['mask']*c['tool']).sum()
    ids = torch.zeros(n, width, dtype=torch.long)
    return trainer._compute_loss(trainer.model, dict(prompt_ids=ids[:, :1], prompt_mask=ids[:, :1]+1,
        completion_ids=ids, completion_mask=c['mask'][part],
        tool_mask=c['tool'][part], advantages=c['advantage'][part], old_per_token_logps=c['old'][part],
        ref_per_token_logps=c['ref'][part], num_items_in_batch=active))

def our_tensors(c):
    "The same case as a batch with one row per completion: (logp, batch, advantage), one value per action token."
    actions = (c['mask']*c['tool']).bool()
    frame = pd.DataFrame(dict(group=0, episode=range(rows), t=0, n_tokens=actions.sum(1).tolist()))
    advantage = c['advantage'] if c['advantage'].ndim == 2 else c['advantage'][:, None].expand(rows, width)
    batch = Batch.from_turns(frame).with_action(old_logp=c['old'][actions], ref_logp=c['ref'][actions])
    return c['logp'][actions], batch, advantage[actions]

def our_loss(c, loss_type, low=.2, high=.2, dual=None, beta=0., corrected=True):
    logp, batch, advantage = our_tensors(c)
    return (loss_weights(batch, per[loss_type])*(clip(logp, batch, advantage, low=low, high=high, dual=dual)
        + beta*kl_k3(logp, batch, corrected))).sum()

def gradient(loss, c): return torch.autograd.grad(loss, c['logp'])[0]

kinds = [dict(), dict(low=.1, high=.28), dict(dual=1.5), dict(beta=.04), dict(beta=.04, corrected=False),
    dict(low=.3, high=.4, dual=2., beta=.1)]
names = dict(low='epsilon', high='epsilon_high', dual='delta', beta='beta', corrected='use_bias_correction_kl')
cases = [pytest.param(dict(loss_type=t, **{names[k]: v for k, v in kind.items()}), t, kind, id=f'{t}-{kind}')
    for t in per for kind in kinds]

@pytest.mark.parametrize('trainer, loss_type, kind', cases, indirect=['trainer'])
def test_loss_and_gradient(trainer, loss_type, kind):
    for seed in range(3):
        for token_advantage in (False, True):
            c = case(seed, token_advantage)
            theirs, ours = trl_loss(trainer, c), our_loss(c, loss_type, **kind)
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
            slope = gradient(ours, c)
            torch.testing.assert_close(slope, gradient(theirs, c), rtol=1e-10, atol=1e-12)
            assert slope.count_nonzero() > rows # the comparison is not one of zeros

@pytest.mark.parametrize('trainer, loss_type', [pytest.param(dict(loss_type=t, gradient_accumulation_steps=2), t, id=t)
    for t in per], indirect=['trainer'])
def test_micro_batches(trainer, loss_type):
    "Two micro-batches in TRL add up to our loss of the whole batch, except for bnpo, which averages local token means."
    c = case(3)
    theirs = trl_loss(trainer, c, slice(0, rows//2)) + trl_loss(trainer, c, slice(rows//2, None))
    agree = torch.allclose(gradient(our_loss(c, loss_type), c), gradient(theirs, c), rtol=1e-10, atol=1e-12)
    assert agree == (loss_type != 'bnpo')

@pytest.mark.parametrize('trainer', [dict(loss_type='dapo', epsilon_high=.28)], indirect=True)
def test_clip_fraction(trainer):
    for seed in range(3):
        c = case(seed)
        trl_loss(trainer, c)
        theirs = trainer._metrics['train']['clip_ratio/region_mean'][-1]
        assert float(clip_fraction(*our_tensors(c), high=.28)) == pytest.approx(theirs, abs=1e-6) and theirs > 0
