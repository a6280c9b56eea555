"""Small runs and batches for the tests of the views: one that looks like training, one whose text attacks the page."""
import json, math, random
from pathlib import Path
from agentlab.episodes import Batch, Episode, Turn

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
