"""CM2: a checklist whose items show their evidence, dense in criteria and paid once a request, as its authors train,
against the outcome alone; and the same list paid where its items were met. No item asks whether the shop is right."""
from functools import partial

from _attempts import turns
from _service import AREA, LEVEL, SIZES, START, served
from claims import Claim

SIZES = SIZES | dict(group_size=8)
WEIGHTS = dict(looked=.15, asked=.15, called=.35, told=.35)

def answered(episode, i: int) -> str:
    "What came back for a turn."
    return episode.turns[i + 1].observation if i + 1 < len(episode.turns) else episode.final

def first(met, episode, i: int) -> bool: return met(episode, i) and not any(met(episode, k) for k in range(i))
def looked(episode, i): return answered(episode, i).startswith('Order ')
def asked(episode, i): return answered(episode, i).startswith('Yes')

def due(episode) -> tuple:
    "The call that the rules of the shop ask for, '' for none, and the words that must be said."
    words = episode.answer.split()
    ends = 0 if words[0] == 'sorry' or words[0].isdigit() else 2 if words[0] == 'refund' else len(words)
    return ' '.join(words[:ends]), words[ends:]

def called(episode, i: int) -> bool:
    "At the end: the call that is due was made, and no other one that changes an order."
    from agentlab.env.service import kinds
    said = [turn.text for turn in episode.turns if not turn.invalid]
    acts = {text for text in said if text.split()[:1] and text.split()[0] in {*kinds, 'human'} and '?' not in text}
    return i == len(episode.turns) - 1 and acts == {due(episode)[0]} - {''}

def told(episode, i: int) -> bool:
    "At the end: what must be said was said."
    said = ' '.join(turn.text for turn in episode.turns if not turn.invalid).split()
    return i == len(episode.turns) - 1 and {*due(episode)[1]} <= {*said}

def once_a_request(b):
    "CM2's reward: the share of the list, on the last turn."
    from agentlab.reward import checklist
    one = b.with_turns(request=b.turns.t*0)
    return checklist(one, tuple(WEIGHTS), weights=tuple(WEIGHTS.values()), user_turn='request', max_turns=1)

def where_met(b): return sum(weight*b.turns[name] for name, weight in WEIGHTS.items())

def recipe_of(arm: str, seed: int):
    from agentlab.reward import Item, by_rule, listed
    from agentlab.train import recipes
    if arm == 'outcome': return recipes.dr_grpo(**SIZES, seed=seed)
    focus = dict(looked=partial(first, looked), asked=partial(first, asked), called=called, told=told)
    played = listed(*(Item(name, bool, at) for name, at in focus.items()), judge=by_rule)['rollout']
    make = recipes.cm2 if arm == 'where_met' else recipes.dr_grpo
    return make(**SIZES, seed=seed, rollout=played, reward=where_met if arm == 'where_met' else once_a_request)

def row(arm: str, seed: int) -> dict:
    found, after = served(recipe_of(arm, seed), seed)
    return found | dict(turns=turns(after))

CLAIM = Claim(
    key='cm2', says='A checklist of items with evidence, paid once a request, teaches more than the outcome alone.',
    row=row, arms=('cm2', 'outcome', 'where_met'), control='outcome', measure='success', margin=.05,
    budget='30 updates of 96 games in every arm',
    world=AREA, settings=dict(start=START, recipe=SIZES, level=LEVEL, weights=WEIGHTS))
