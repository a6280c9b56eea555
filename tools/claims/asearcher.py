"""Play that runs four updates ahead of learning: does the decoupled objective mend what old weights cost?

Decoupled (AReaL, ASearcher): the ratio is taken to the policy as the update begins, and the token's weight is that
policy over the one that played, without tokens above 5. Coupled: the ratio is taken to the policy that played.
"""
from claims import Claim

LAG = 4

def row(arm, seed):
    "One run from the usual start; held-out success, and how far the weights that played were behind."
    from ahead import lagged
    return lagged(0 if arm == 'synchronous' else LAG, arm, seed)

CLAIM = Claim(
    'asearcher', 'With old weights in play, the decoupled objective learns better than the coupled one', row,
    arms=('decoupled', 'coupled', 'truncated', 'none', 'synchronous'), control='coupled', measure='success', margin=.05,
    budget='20 updates of 4 groups of 8 from one start; weights 4 updates old', world='KeyDoor',
    settings=dict(lag=LAG, tasks=200))
