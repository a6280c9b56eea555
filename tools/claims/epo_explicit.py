"EPO explicit: a trained strategist before a frozen actor, and before one that it has never met."
from functools import partial

from _delegate import start, success
from _runs import learned
from claims import Claim

from agentlab.env import Clarify
from agentlab.rollout import Delegate, play_players
from agentlab.rollout.delegate import last_seen
from agentlab.train import recipes

SHOWN = dict(steps=300, episodes=16, noise=.6)
SIZES = dict(steps=25, groups=8, group_size=8, test_tasks=0, max_turns=16)
WORDS = ('day', 'hour', 'people', 'place', 'style', 'book')

def actor(env, generator, follows=.8):
    "Frozen: asks what the strategist says, or books; else something at random."
    client, word = env.env, env.errand.split()[0] if env.errand else ''
    if word not in WORDS or generator.random() >= follows: word = generator.choice(WORDS)
    if word != 'book': return f'ask {word}'
    return generator.choice([action for action in client.legal if action.startswith('book')])

def advise(env, noise, generator):
    "The word that helps: a fact that is missing, else book."
    if noise and generator.random() < noise: return f'do {generator.choice(WORDS)}'
    return 'do ' + (env.env.expert().split()[1] if env.env.expert().startswith('ask') else 'book')

class Client(Clarify):
    "Clarify with eight turns, that keeps what can be done."
    name = 'client'
    @property
    def legal(self): return self.facts()['legal']

def row(arm, seed):
    world = Delegate(Client(8), budget=1, report=last_seen, script=advise)
    met, other = (dict(executor=partial(actor, follows=share)) for share in (.8, .6))
    policy = start(world, players=met, **SHOWN)
    loose = dict(random=lambda env, generator: f'do {generator.choice(WORDS)}',
        none=lambda env, generator: 'do nothing')
    if arm in ('epo-explicit', 'outcome'):
        # no value rises by 2: the last round alone is paid
        paid = dict(credit_args=dict(rise=2.)) if arm == 'outcome' else {}
        learned(policy, world, recipes.epo_explicit(**SIZES, seed=seed, rollout_args=dict(players=met), **paid))
    planner = dict(planner=loose[arm]) if arm in loose else {}
    ends = lambda executor: success(policy, world, seed, rollout=partial(play_players, players=executor | planner,
        keep=bool(planner)))
    return dict(success=ends(met), other_actor=ends(other))

CLAIM = Claim(
    key='epo-explicit', row=row,
    says='Paid for the rounds that mattered, a strategist before a frozen actor learns more than by outcomes.',
    arms=('epo-explicit', 'outcome', 'start', 'random', 'none'), control='outcome', measure='success', margin=.05,
    budget='25 updates of 64 games after 4800 demonstrated ones; start, random words and no words are not trained',
    world='Clarify with eight turns and a scripted actor that follows a word four times of five; 200 held-out requests',
    settings=dict(start=SHOWN, recipe=SIZES))
