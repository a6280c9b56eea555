"""Multi-Agent Evolve with SmolLM2 as the judge: one tiny policy asks and answers, a model that reads marks questions
and answers, by what it says or by what it knows (see _judges)."""
from mae import SEEDS, SIZES, begun, evolving, tested
from claims import Claim

def row(arm: str, seed: int) -> dict:
    from _attempts import one_thread
    from _judges import judges
    from _runs import learned
    with one_thread():
        (world, policy), rows = begun(seed), []
        if arm != 'none':
            rows = learned(policy, world, evolving(world, seed, judge=judges(10)[arm], learns=('proposer', 'solver')))
        found = tested(policy, world, seed)
        return {name: found[name] for name in ('accuracy', 'readable', 'distinct')} | dict(
            paid=[round(one['reward'], 3) for one in rows[::4]])

CLAIM = Claim(
    key='mae-judge', says='Marks by a model that reads, as it says them, are enough for a tiny policy that asks and '
    'answers to answer better.', row=row, arms=('says', 'none', 'fitted'), control='none', measure='accuracy',
    margin=.05, of='mae', model='tiny policy, SmolLM2-135M as the judge', seeds=(0, 1, 2),
    budget='25 updates of 32 messages of proposer and solver, from one start',
    world='the largest of three digits; 120 held-out questions',
    settings=dict(sizes=SIZES, seeds=SEEDS, start=dict(steps=400, noise=.4), known=150))
