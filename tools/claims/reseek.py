"ReSeek: paid for judging each page, where three of ten searches show a wrong one first."
from dataclasses import replace
from functools import partial
from random import Random

from _attempts import compared, turns_trained
from claims import Claim

START, STEPS, LR, PLANTED, DOUBT = dict(steps=200, pool=2048, noise=.2), 30, 1e-3, .3, .5
ARMS = ('reseek', 'unpaid', 'mean', 'outcome')

def planted():
    "The first time something is searched for, the page may be one that says nothing about it."
    from agentlab.env import HopSearch
    class Planted(HopSearch):
        name, tried, seed = 'planted', (), 0
        def reset(self, seed, task=None):
            self.tried, self.seed = (), seed
            return super().reset(seed, task)
        def search(self, words):
            new, self.tried, draw = words not in self.tried, (*self.tried, words), Random(f'{self.seed} {self.tried}')
            if not new or draw.random() >= PLANTED: return super().search(words)
            game = self.game
            way = game.world.chain(game.start, game.path)[0]
            other = draw.choice([fact for fact in game.world.pages if fact not in way])
            self.game = replace(game, found=tuple(sorted({*game.found, other})), shown=(*game.shown, other))
            return game.world.sentence(other), 0., dict(reached=(), cost=1., columns=dict(planted=1.))
    return Planted(hops=1, distractors=10, horizon=4)

def unsure(env):
    "The demonstrator's verdict is a coin half of the time; what it does then follows from it."
    from agentlab.rollout.again import Judged
    class Unsure(Judged):
        def demonstrator(self, noise=0., generator=None):
            said = super().demonstrator(noise, generator)
            if self.page is None or generator is None or generator.random() >= DOUBT: return said
            return f'{generator.choice(("yes", "no"))} {said.partition(" ")[2]}'
    return Unsure(env)

def averaged(b):
    "The judgements of an episode, divided by how many there are: more pages are not paid more."
    from agentlab.groups import group_count
    from agentlab.rollout.again import judgements
    worth, turns = judgements(b) - b.turns.reward, group_count(b.turns.judged, b.turns.episode)
    return b.turns.reward + worth/turns.clamp(min=1)

def row(arm: str, seed: int)->dict:
    from agentlab.reward import paid
    from agentlab.rollout.again import play_again
    from agentlab.train import recipes
    around = planted() if arm == 'outcome' else unsure(planted())
    pays = {} if arm == 'reseek' else dict(reward=averaged if arm == 'mean' else paid)
    recipe = recipes.reseek(rollout=partial(play_again, around=lambda env: env), steps=STEPS, lr=LR, seed=seed,
        groups=16, group_size=8, max_turns=8, test_tasks=0, **pays)
    b, first, rows = compared(around, around, around, recipe, seed, START, 100, max_tokens=8, max_turns=8)
    return measured(b) | {f'{name}_before': x for name, x in measured(first).items()} | dict(
        turns_trained=turns_trained(rows))

def measured(b)->dict:
    "Success, also of the episodes that met a wrong page; verdicts that are right; searches in an episode."
    met = b.total(b.turns.planted.nan_to_num(0.).float()) > 0
    share = lambda x: round(x.double().mean().item(), 5)
    found = dict(success=share(b.episodes.success), won_planted=share(b.episodes.success[met]),
        searches=round(b.turns.cost.sum().item()/len(b), 4))
    if 'judged' not in b.turns: return found
    said = ~b.turns.judged.isnan()
    return found | dict(verdicts=share((b.turns.judged == b.turns.useful)[said]))

CLAIM = Claim(
    key='reseek', says='Paid for judging each page rightly, a policy wins more of the episodes in which a search '
    'showed a wrong page than one whose judgements are not paid.',
    row=row, arms=ARMS, control='unpaid', measure='won_planted', margin=.03,
    budget=f'{STEPS} updates of 128 episodes in every arm',
    world='HopSearch of one hop, 12 people, 4 turns; 30 % of the searches show a wrong page the first time',
    settings=dict(start=START, steps=STEPS, lr=LR, planted=PLANTED, doubt=DOUBT))
