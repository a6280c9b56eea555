"""CORY: an answer of three words about two topics, two prices of KL. Does a pioneer with an observer end on a better
front of reward against KL than a policy alone?
"""
from functools import partial
from random import Random

from claims import Claim

from agentlab.env.protocol import TextEnv, check_split, noisy, split_of

TOPICS = dict(sea='wave foam salt tide', hill='peak rock path crag', wood='leaf root moss bark',
    sky='star moon dusk haze', town='gate wall lamp yard', field='corn hay plow seed')
WORDS = tuple(' '.join(TOPICS.values()).split())
SHOWN = dict(steps=100, episodes=32, noise=.6, pool=1024)
SIZES = dict(steps=20, group_size=8, max_turns=2, max_tokens=4, test_tasks=0, lr=2e-3)
PRICES, ASKED = (.03, .2), 400

class Topics(TextEnv):
    "Three words about two topics; paid the share that fits. Many answers are right."
    name, horizon, grammar = 'topics', 1, 'Write three words.'

    def __init__(self, split='train'): self.split = check_split(split)

    def pairs(self):
        return [(a, b) for a in TOPICS for b in TOPICS if a != b and split_of(['topics', a, b]) == self.split]

    def start(self, seed, task=None):
        self.task = tuple(self.random.choice(self.pairs()) if task is None else task)
        return f'Write about {self.task[0]} and {self.task[1]} .'

    def fits(self): return ' '.join(TOPICS[topic] for topic in self.task).split()

    def turn(self, action):
        said = action.split()
        good = sum(word in self.fits() for word in said)/3 if len(said) == 3 else 0.
        return 'Thanks .', good, True, dict(success=good == 1, invalid=len(said) != 3 or not {*said} <= {*WORDS})

    def facts(self): return dict(state=list(self.task))

    def expert(self, noise=0., generator=None):
        generator = generator or Random(0)
        return ' '.join(generator.choice(WORDS if noisy(noise, generator, 'expert') else self.fits()) for _ in range(3))

    def vocabulary(self): return ['Write', 'about', 'and', '.', 'Thanks', *TOPICS, *WORDS]

def recipe(arm, price, seed):
    "128 answers of an update in every arm, but for the policy alone that is given as many as one of two."
    from agentlab.credit import rloo
    from agentlab.rollout import play_players
    from agentlab.selfplay.role_weights import Exchange, priced
    from agentlab.selfplay.roles import shared_reward
    from agentlab.train import recipes
    alone = arm.startswith('ppo')
    how = {} if alone else dict(rollout=play_players, reward=shared_reward)
    if arm in ('cory', 'blind'): how['memory'] = Exchange
    return recipes.rloo(**SIZES, **how, groups=16 if arm == 'ppo' else 8, seed=seed, kl_coef=1e-6,
        credit=partial(priced, credit=rloo, price=price))

def trained(start, arm, price, seed):
    "The policy that is deployed: the one alone, or who sits on the pioneer's chair at the end."
    import copy

    from _runs import learned
    from agentlab.selfplay.role_weights import Observed, RoleWeights
    policy, world = copy.deepcopy(start), Topics()
    if not arm.startswith('ppo'):
        world = Observed(world, '{query} Write again .') if arm == 'blind' else Observed(world)
        policy = RoleWeights(policy, world.seats)
    learned(policy, world, recipe(arm, price, seed))
    return policy if arm.startswith('ppo') else policy.at('pioneer')

def asked(policy, start, seed):
    "On held-out pairs of topics: reward, KL to the start (nats an answer), entropy of a word, different answers."
    from agentlab.episodes import Batch
    from agentlab.rollout import play
    world = Topics('test')
    tasks = [world.pairs()[i % len(world.pairs())] for i in range(ASKED)]
    played = play(policy, world, range(ASKED), tasks=tasks, max_tokens=6, seed=10**6 + seed)
    b = Batch.from_episodes(played)
    logp, entropy = policy.logprobs(b)
    kl = float((logp - start.logprobs(b)[0]).sum())/ASKED
    different = len({(task, one.turns[0].text) for task, one in zip(tasks, played)})/ASKED
    return dict(reward=float(b.episodes.outcome.mean()), kl=kl, entropy=float(entropy.mean()), different=different)

def row(arm, seed):
    "Two trainings, one a price; `front` is the mean of reward minus price times KL, each at its own price."
    from agentlab.policy import tiny_policy
    from agentlab.selfplay.role_weights import Observed
    start = tiny_policy(Observed(Topics()), progress=False, **SHOWN)
    found = {price: asked(trained(start, arm, price, seed), start, seed) for price in PRICES}
    front = sum(one['reward'] - price*one['kl'] for price, one in found.items())/len(PRICES)
    each = {f'{what} at {price}': value for price, one in found.items() for what, value in one.items()}
    return {name: round(value, 4) for name, value in (dict(front=front) | each).items()}

CLAIM = Claim(
    'cory', 'A pioneer that learned with an observer, both paid together and trading places, earns more at the same KL '
    'than a policy that learned alone', row, arms=('cory', 'ppo', 'ppo half', 'no swap', 'blind'), control='ppo',
    measure='front', margin=.01,
    budget='20 updates of 128 answers from one start: one policy gives all of them, or two give 64 each; ppo half: 64',
    world='Topics: three words about two topics, held-out pairs; the answer of the pioneer alone',
    settings=dict(shown=SHOWN, sizes=SIZES, prices=PRICES, asked=ASKED))
