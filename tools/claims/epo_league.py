"EPO, explicit: strategists who practise against those of earlier rounds, or against the same one all the time."
from functools import partial

from _delegate import start
from _runs import learned
from claims import Claim

from agentlab.env import Negotiation
from agentlab.env.negotiation import divisions, worth
from agentlab.rollout import FrozenActor, play_players
from agentlab.selfplay import League
from agentlab.train import recipes

SHOWN = dict(steps=150, episodes=16, noise=.9)
SIZES = dict(steps=40, groups=16, group_size=4, test_tasks=0, max_turns=8)
AIMS, FOLLOWS, GAMES, EVERY = dict(firm=9, fair=7, soft=5), .8, 200, 5
PHRASES = *AIMS, 'accept'

def actor(game, phrase, generator):
    "Frozen: asks for as much as the phrase says, or accepts; one time in five it takes another phrase."
    if phrase not in PHRASES or generator.random() >= FOLLOWS: phrase = generator.choice(PHRASES)
    if phrase == 'accept' and game.offers: return 'accept'
    aim, own = AIMS.get(phrase, AIMS['fair']), game.values[game.mover]
    kept = min((one for one in divisions(game.counts) if worth(one, own) >= aim), key=sum)
    return f'offer {" ".join(map(str, kept))}'

def concede(game, generator):
    "Firm, then fair, then soft; takes what is worth the aim, and anything in the last turn."
    at = min(2, len(game.offers)//2)
    due, last = game.due(), len(game.offers) == game.limit - 1
    if due and (last or worth(due, game.values[game.mover]) >= 9 - 2*at): return 'accept'
    return PHRASES[at]

def stubborn(game, generator):
    "Fair to the end."
    due = game.due()
    return 'accept' if due and worth(due, game.values[game.mover]) >= AIMS['fair'] else 'fair'

def patient(game, generator):
    "Firm, and takes anything in the last two turns."
    return 'accept' if len(game.offers) >= game.limit - 2 else 'firm'

def earned(policy, world, seed, other):
    "What a seat is paid on held-out tasks, half of the games at each."
    def one(mine, theirs):
        played = play_players(policy, world, range(GAMES//2), tasks=world.tasks('test', GAMES//2), max_turns=8,
            max_tokens=4, seed=10**6 + seed, players={theirs: other})
        return sum(e.outcome for e in played)/len(played)
    return sum(one(*sides) for sides in (world.seats, world.seats[::-1]))/2

def row(arm, seed):
    world = FrozenActor(Negotiation(), actor, PHRASES, concede)
    policy = start(world, **SHOWN)
    strangers = {one.__name__: lambda env, generator, one=one: one(env.env, generator)
        for one in (concede, stubborn, patient)}
    memory = dict(earlier=partial(League, mirror=0., every=EVERY, groups=SIZES['groups']),
        first=partial(League, mirror=0., every=10**6, groups=SIZES['groups']),
        itself=partial(League, mirror=1., groups=SIZES['groups'])).get(arm)
    if memory: learned(policy, world, recipes.epo_explicit(**SIZES, seed=seed, memory=memory))
    found = {name: earned(policy, world, seed, stranger) for name, stranger in strangers.items()}
    return dict(paid=sum(found.values())/len(found)) | found

CLAIM = Claim(
    key='epo-explicit-league', of='epo-explicit', row=row,
    says='A strategist that practises against those of earlier rounds gets more '
    'from strangers than one that practises against the first one.', arms=('earlier', 'first', 'itself', 'start'),
    control='first', measure='paid', margin=.03,
    budget='40 updates of 64 games after 2400 demonstrated ones; itself learns from both seats, start is not trained',
    world='Negotiation of six turns, actors that follow a phrase four times of five; mean pay from three scripted '
    'strategists that nobody has practised against, 200 held-out tasks each',
    settings=dict(start=SHOWN, recipe=SIZES, every=EVERY, follows=FOLLOWS, games=GAMES))
