"""verl's estimators beside ours, on one batch.

The page that explains it and shows what was found: nbs/bench/06_verl.ipynb.
"""
from __future__ import annotations
import time

import torch

from agentlab import credit
from agentlab.episodes import Batch

def counterparts(
    registry: dict,  # name -> verl's function: ADV_ESTIMATOR_REGISTRY of verl.trainer.ppo.core_algos
    config=dict,     # makes verl's configuration out of keywords (omegaconf's DictConfig of a dictionary)
) -> dict:  # name -> (ours: batch -> advantage or (targets, advantage), verl's: padded -> (advantages, returns))
    "Estimators that both have, verl's conventions set."
    def of(name, *others, **fixed):
        names = 'token_level_rewards', 'response_mask', *others
        return lambda held: registry[name](**{key: held[key] for key in names}, **fixed)
    two = lambda held: registry['gdpo'](**{key: held[key] for key in ('token_level_rewards', 'response_mask', 'index')},
        config=config(gdpo_reward_keys=['outcome', 'form']), non_tensor_batch=held,
        batch=dict(prompts=held['response_mask'][:, :0],
        attention_mask=held['response_mask']))
    return {'grpo': (credit.grpo, of('grpo', 'index')),
        'grpo_vectorized': (credit.grpo, of('grpo_vectorized', 'index')),
        'grpo, not divided': (credit.dr_grpo, of('grpo', 'index', norm_adv_by_std_in_grpo=False)),
        'grpo_passk': (credit.pass_at_k, of('grpo_passk', 'index', config=config())),
        'rloo': (credit.rloo, of('rloo', 'index')),
        'rloo_vectorized': (lambda b: credit.rloo(b, singleton='zero'), of('rloo_vectorized', 'index')),
        'reinforce_plus_plus': (credit.reinforce_pp, of('reinforce_plus_plus', config=config(gamma=1.))),
        'reinforce_plus_plus, gamma .99': (lambda b: credit.reinforce_pp(b, gamma=.99),
        of('reinforce_plus_plus', config=config(gamma=.99))),
        'reinforce_plus_plus_baseline': (credit.reinforce_pp_baseline, of('reinforce_plus_plus_baseline', 'index')),
        'remax': (credit.remax, of('remax', 'reward_baselines')), 'opo': (credit.opo, of('opo', 'index')),
        'gpg': (lambda b: credit.gpg(b, faithful=True), of('gpg', 'index')),
        'gdpo': (lambda b: credit.gdpo(b, columns=('outcome', 'form')), two),
        'gae': (credit.gae, of('gae', 'values', gamma=1., lam=1.)),
        'gae, gamma .99, lam .95': (lambda b: credit.gae(b, gamma=.99, lam=.95),
        of('gae', 'values', gamma=.99, lam=.95))}

def apart(
    ours, theirs,              # a pair of `counterparts`
    batch: Batch, held: dict,  # the same batch twice: `held` is `padded(batch)`
) -> float:                    # nan counts as infinite
    "Largest difference over the action tokens, of advantages and of a critic's targets."
    found, (advantage, target) = ours(batch), theirs(held)
    mask = held['response_mask'].bool()
    sides = [(found[0], target), (found[1], advantage)] if isinstance(found, tuple) else [(found, advantage)]
    return max(float((our - their[mask]).abs().nan_to_num(torch.inf).max()) for our, their in sides)

def race(
    ours, theirs, batch: Batch, held: dict,
    repeats: int = 7,  # rounds; in each, both run once
) -> dict:             # CPU and wall seconds of both, the least of the rounds; ratio of the CPU seconds
    "Time both on one batch. What either keeps with its batch is found before."
    rounds = []
    for _ in range(repeats + 1):
        found = []
        for work in (lambda: ours(batch), lambda: theirs(held)):
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            found += [time.process_time() - cpu, time.perf_counter() - wall]
        rounds.append(found)
    best = [min(column) for column in zip(*rounds[1:])]
    return dict(zip(('ours', 'ours_wall', 'verl', 'verl_wall'), best)) | dict(ratio=best[0]/best[2])

def problems(
    record: dict,      # of tools/verl_speed.py
    most: float = 3.,  # times verl's CPU seconds
) -> list[str]:        # empty: both agree, and none takes longer than allowed
    "Estimators that disagree with verl's (by more than 1e-6 in float64, or 1e-4 in float32), or are too slow."
    found = []
    for name, row in record['estimators'].items():
        for key, least in (('gap', 1e-6), ('gap_float32', 1e-4)):
            if not row[key] <= least: found.append(f'{name}: {row[key]:.1e} from verl, at most {least:.0e} is allowed')
        if not row['ratio'] <= most:
            found.append(f"{name}: {row['ratio']:.2f} times verl's time, at most {most:g} is allowed")
    return found
