"""A practitioner's guide, its fourth finding: of one budget some part should buy demonstrations, and not all of it. A
demonstration costs as much as ten games, as in the paper; harder: two doors are shut, and nobody trains there."""
from _practice import RUN, SETTINGS, UPDATES, WHERE, house, one_thread, reinforced, share, shown, start, taught
from claims import Claim

PRICE, STEPS = 10, 30
GAMES = RUN['groups']*RUN['group_size']*UPDATES

def row(arm: str, seed: int) -> dict:
    from agentlab.train.practice import divided
    harder, (bought, updates) = house(closed=2, horizon=12), divided(float(arm), GAMES, GAMES//UPDATES, PRICE)
    with one_thread():
        policy = start(seed)
        demos = shown(house(), policy, bought, seed)
        if demos: taught(policy, demos, STEPS, seed)
        imitated = share(policy, house(), seed)
        if updates: reinforced(policy, house(), seed, updates)
        return dict(harder=share(policy, harder, seed), success=share(policy, house(), seed), imitated=imitated,
            demonstrations=len(demos))

CLAIM = Claim(
    'practitioner', 'A budget that buys some demonstrations and leaves most for reinforcement ends better on harder '
    'tasks than one that buys demonstrations alone.', row, arms=('.3', '0', '.1', '.6', '1'), control='1',
    measure='harder', margin=.03, budget=f'{GAMES} games, or a demonstration for {PRICE} of them',
    world=f'{WHERE}; harder: two doors shut, 12 turns', settings=SETTINGS | dict(price=PRICE, steps=STEPS))
