"AI-SearchPlanner: success over searches of a planner who pays for them, against stopping after the best fixed number."
from functools import partial
from random import Random

from _attempts import begun, one_thread
from _delegate import search, walked
from _runs import learned
from claims import Claim

from agentlab.env import HopSearch
from agentlab.episodes import derive
from agentlab.rollout import play
from agentlab.rollout.delegate import Flow, play_scored, priced
from agentlab.train import recipes

START = dict(steps=600, pool=4096, noise=.3)
SIZES = dict(steps=60, groups=64, group_size=1, test_tasks=0, max_turns=6, lr=1e-3)
PRICES = {'ai-searchplanner': .1, 'fixed': .1, 'free': 0., 'price_05': .05, 'price_2': .2, 'price_4': .4}
LIMIT, TASKS, ERROR = 6, 200, .1

class Mixed(HopSearch):
    "Questions of one, two and three hops."
    def reset(self, seed, task=None):
        self.hops = len(task['path']) if task else 1 + seed % 3
        self.people = self.hops + 1 + self.distractors
        return super().reset(seed, task)

    def tasks(self, split, n, seed=0):
        of = [HopSearch(hops, self.distractors).tasks(split, n, seed) for hops in (1, 2, 3)]
        return [of[i % 3][i] for i in range(n)]

class Planned(Flow):
    "A planner who is shown by an expert of the search, and says `stop` where that would answer."
    def expert(self, noise=0., generator=None):
        said = self.env.expert(noise, generator)
        return said if said.startswith('search') else 'stop'
    demonstrator = expert

    def vocabulary(self): return [*self.env.vocabulary(), 'stop', 'Nothing', ':']

def answer(env, error=ERROR):
    "The frozen generator: it walks along what was found, and names somebody else one time in ten."
    luck, names = Random(derive(env.question, *map(list, env.memory))), env.env.game.world.links
    return f'answer {luck.choice(list(names.values())) if luck.random() < error else walked(env)}'

def world(limit=LIMIT, error=ERROR):
    stops = lambda env: env.memory[-1][0].startswith('stop')
    return Planned(Mixed(3, distractors=10, horizon=LIMIT + 1), search, stops, partial(answer, error=error), limit)

def tested(policy, seed, **how) -> dict:
    "Success and searches on held-out questions, sampled."
    env = world(**how)
    episodes = play(policy, env, range(TASKS), 1, env.tasks('test', TASKS), seed=10**6 + seed, max_tokens=8)
    searches = sum(t.text.startswith('search') for e in episodes for t in e.turns)/TASKS
    success = sum(e.success for e in episodes)/TASKS
    return dict(success=round(success, 5), searches=round(searches, 4), utility=round(success - .1*searches, 5))

def row(arm: str, seed: int) -> dict:
    price = 0. if arm == 'fixed' else PRICES[arm]
    with one_thread():
        policy = begun(world(), seed, **START)
        before = tested(policy, seed)
        learned(policy, world(), recipes.ai_searchplanner(
            **SIZES, seed=seed, rollout=partial(play_scored, score=priced(price), by=play)))
        if arm == 'fixed':
            found = {k: tested(policy, seed, limit=k) for k in range(1, LIMIT)}
            best = max(found, key=lambda k: found[k]['utility'])
            return found[best] | dict(after=best, front=[[found[k]['searches'], found[k]['success']] for k in found])
        return tested(policy, seed) | dict(worse_generator=tested(policy, seed, error=.3)['success'],
            before=before['success'], searches_before=before['searches'])

CLAIM = Claim(
    key='ai-searchplanner', says='A planner that pays for every search is worth more than the best fixed number of '
    'searches.', row=row, arms=tuple(PRICES), control='fixed', measure='utility', margin=.02,
    budget='60 updates of 64 games in every arm; `fixed` is the planner that searches for nothing, stopped after the '
    'number of searches that is best on the same questions',
    world='HopSearch of one to three hops, 12 to 14 people, at most six steps; a generator that errs one time in ten; '
    'utility: success minus .1 a search on 200 held-out questions',
    settings=dict(start=START, recipe=SIZES, error=ERROR, limit=LIMIT))
