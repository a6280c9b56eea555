"""Small runs and batches for the tests of the views: one that looks like training, one whose text attacks the page."""
import json, math, random
from pathlib import Path
import torch
from agentlab.episodes import Batch, Episode, Table, Turn
from agentlab.view.grid import recorded_group

WORDS = '> go north south take open key chest You are in room a1 b2 . Nothing happens'.split()
HOSTILE = ['<script>window.hit=1</script>', '"><img src=x onerror="window.hit=1">', "' onmouseover='window.hit=1",
    '\x1b[31mred\x1b[0m', '\x00\x07\r\n\t\x7f\x9b',
    '\u202eevil\u202c\u2066\u200f', 'zero\u200bwidth\ufeff', '\ud800', '</style></title></details><b>out</b>',
    '&lt;script&gt;', 'W'*100_000, '<!-- ', ']]>', 'javascript:window.hit=1', '', ' ', '\U000e0041']

def turn(t, seen, said, entropy=.5, **more):
    return Turn(t, '', '', seen, said, [-.5]*len(said), [entropy]*len(said), **more)

def hostile_batch():
    "One group of two episodes that say, see, end with and fail with every hostile text."
    ids = list(range(len(HOSTILE)))
    everything = ' '.join(HOSTILE[:10])
    batch = Batch.from_episodes([Episode([turn(0, ids, ids, state=everything)], outcome=1., success=True,
        final=everything, seat=HOSTILE[0]),
        Episode([turn(0, [999], [*ids, 999], state=everything)], error=everything,
        seat=HOSTILE[1])])
    batch.labels['token'] = dict(enumerate(HOSTILE))
    return batch

def played(step, skill, groups=2, size=4, turns=5):
    "A batch in which `skill` is the chance to succeed."
    draw, episodes = random.Random(step), []
    for group in range(groups):
        for member in range(size):
            won = draw.random() < skill or (member == 0)
            if member == 1: won = False
            line = [turn(t, [8, 9, 10, 11, 12 + t % 2, 14], [1, 2 + draw.randrange(2)], entropy=.7 - .5*skill + .02*t,
                state=t % 2, reward=float(won and t == turns - 1)) for t in range(turns)]
            episodes.append(Episode(line, group=group, game=len(episodes), outcome=float(won), success=won,
                truncated=not won, step=step))
    batch = Batch.from_episodes(episodes)
    batch.labels['token'] = dict(enumerate(WORDS))
    return batch

def _attempt(part, ids, draw)->list:
    "The turns of a recorded episode as tokens, with made-up probabilities."
    said = lambda word: [ids[w] for w in (
        {'key': ('take ', 'key'), 'chest': ('open ', 'chest')}.get(word, ('go ', word)))] + [0]
    turns = []
    for row in part.itertuples():
        p = [draw.uniform(.6, .99), draw.uniform(.2, .9), .999]
        entropies = [-q*math.log(q) - (1 - q)*math.log(1 - q) for q in p]
        seen = [ids[word] for word in ('You are in ', row.state, '. Doors ', 'north', ' ', 'south')]
        turns.append(Turn(row.t, '', '', seen, said(row.word), [math.log(q) for q in p], entropies,
            reward=row.reward, state=row.state))
    return turns

def recorded_house(seed:int=0,  # of the made-up probabilities
)->object:  # Batch
    """The recorded group as a batch with tokens; one token of the last episode was sampled from another policy than
    the trainer's."""
    draw, frame = random.Random(seed), recorded_group()
    words = ['<|end|>', 'go ', 'take ', 'open ', 'north', 'south', 'east', 'west', 'key', 'chest', 'You are in ',
        '. Doors ', ' ', *sorted({s for s in frame.state})]
    ids = {word: i for i, word in enumerate(words)}
    episodes = []
    for _, part in frame.groupby('episode'):
        won = part.reward.sum() > 0
        episodes.append(Episode(_attempt(part, ids, draw), outcome=float(part.reward.sum()), success=won,
            truncated=not won, final='The chest opens.' if won else ''))
    batch = Batch.from_episodes(episodes)
    batch.labels['token'] = dict(enumerate(words))
    old = batch.action('sampler_logp') + torch.linspace(-.03, .03, len(batch.actions))
    old[-2] -= .8
    return batch.with_action(old_logp=old)

def crowd(episodes:int=1000,
    turns:int=20,    # turns of an episode
    tokens:int=100,  # tokens of a turn, half of them read and half said
    group:int=8,     # episodes of a task
    seed:int=0,
)->object:           # Batch, made from columns, for measuring
    "A large step of made-up episodes."
    g = torch.Generator().manual_seed(seed)
    n, half = episodes*turns, tokens//2
    turn = torch.arange(n).repeat_interleave(tokens)
    said = (torch.arange(tokens) >= half).repeat(n)
    one = lambda low, high, size: low + (high - low)*torch.rand(size, generator=g)
    episode = torch.arange(n)//turns
    success = one(0, 1, episodes) < .4
    table = Table(group=torch.arange(episodes)//group, game=torch.arange(episodes),
        seat=torch.zeros(episodes, dtype=torch.int64), outcome=success.double(), success=success,
        truncated=~success, last_value=torch.zeros(episodes).double())
    reward = torch.where(torch.arange(n) % turns == turns - 1, success[episode].double(), 0.)
    played = Table(episode=episode, t=torch.arange(n) % turns, reward=reward, origin=torch.arange(n),
        state=torch.randint(0, 40, (n,), generator=g))
    nan = torch.full((len(turn),), math.nan)
    rest = Table(row=episode[turn], turn=torch.where(said, turn, -1),
        id=torch.randint(0, 1000, (len(turn),), generator=g),
        position=torch.arange(len(turn)) % (turns*tokens),
        sampler_logp=torch.where(said, -one(0, 3, len(turn)), nan),
        entropy=torch.where(said, one(0, 2, len(turn)), nan), weight=said.float())
    return Batch(table, Table(episode=torch.arange(episodes)), played, rest,
        dict(seat={0: 'player'}, token={i: f'word{i} ' for i in range(1000)},
        state={i: f'room {i}' for i in range(40)}))

def write_run(folder, steps=4, **facts):
    "A run folder as the trainer writes it, with made-up numbers."
    folder = Path(folder)
    (folder/'episodes').mkdir(parents=True)
    recipe = dict(name='gigpo', credit='agentlab.credit.step_groups:gigpo', steps=steps, test_tasks=512) | facts
    (folder/'run.json').write_text(json.dumps(dict(schema_version=1, facts=dict(
        recipe=recipe, env=dict(env='agentlab.env.keydoor:KeyDoor', size=3), policy='tiny'))))
    with open(folder/'metrics.jsonl', 'w') as f:
        for step in range(steps):
            skill = (step + 1)/(steps + 1)
            batch = played(step, skill)
            batch.save(folder/'episodes'/f'step_{step:06d}.parquet')
            f.write(json.dumps(dict(step=step, success=skill, reward=skill, entropy=.7 - .5*skill,
                entropy_by_turn=[.7 - .5*skill + .02*t for t in range(5)], kl=.01,
                clip_fraction=.02, grad_norm=math.exp(-step),
                dead_groups=0., sampler_gap=1e-6, turns=5., episodes=8, errors=0, tokens=80,
                seconds=1.5, skipped=None)) + '\n')
    (folder/'tests.jsonl').write_text(''.join(json.dumps(dict(step=s, tasks=512, test_greedy=g, test_sampled=g - .02))
        + '\n' for s, g in ((0, .27), (steps, .98))))
    return folder
