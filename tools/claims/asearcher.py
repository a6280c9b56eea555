"""Play that runs four updates ahead of learning: does the decoupled objective mend what old weights cost?

Decoupled (AReaL, ASearcher): the ratio is taken to the policy as the update begins, and the token's weight is that
policy over the one that played, without tokens above 5. Coupled: the ratio is taken to the policy that played.
"""
from claims import Claim

LAG = 4


def row(arm, seed):
    "One run from the usual start; held-out success, and how far the weights that played were behind."
    from tempfile import TemporaryDirectory

    from agentlab.env import load_env
    from agentlab.policy import tiny_policy
    from agentlab.rollout import Ahead
    from agentlab.train import load_recipe, train
    from ahead import SIZES, losses
    env = load_env('keydoor')
    policy = tiny_policy(env, progress=False)
    lag = 0 if arm == 'synchronous' else LAG
    made = load_recipe('grpo', seed=seed, ahead=Ahead(lag), **SIZES | losses()[arm])
    with TemporaryDirectory() as out: rows = train(policy, env, made, out, progress=False).rows()
    return dict(success=held_out(policy, env, made, seed), lag=round(sum(r['lag'] for r in rows)/len(rows), 3))


def held_out(policy, env, recipe, seed):
    "Share of 200 held-out tasks that are solved, sampled as in training."
    from agentlab.train import evaluate
    return evaluate(policy, env, 200, greedy=False, seed=seed, max_turns=recipe.max_turns,
                    max_tokens=recipe.max_tokens)


CLAIM = Claim(
    'asearcher', 'With old weights in play, the decoupled objective learns better than the coupled one', row,
    arms=('decoupled', 'coupled', 'truncated', 'none', 'synchronous'), control='coupled', measure='success', margin=.05,
    budget='20 updates of 4 groups of 8 from one start; weights 4 updates old', world='KeyDoor',
    settings=dict(lag=LAG, tasks=200))
