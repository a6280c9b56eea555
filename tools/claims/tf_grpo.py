"""Training-Free GRPO: rules that were mined from a policy's own groups, read as text before the first observation by
the same policy, against their words in random order. The weights stand still; the policy was warm-started with rules in
its context (each of two is there in six of ten games, and names the other one's action in two of ten). `acts`: a
wrapper that plays what the rules say, the most that reading could give."""
from functools import partial

from _tips import shuffled
from claims import Claim

WORLD = dict(size=2, closed=1, horizon=8)
START = dict(steps=600, episodes=16, pool=9600, noise=.4)
MINED = dict(houses=32, group_size=5, temperature=.7)
PLAYED = dict(max_turns=8, max_tokens=6)
TESTS = dict(tests=12, each=20)
RIGHT = {'You are in A. Key A.': 'take key', 'You are in A. You hold the key. Chest A.': 'open chest'}
OTHER = {'take key': 'open chest', 'open chest': 'take key'}

def drawn(generator) -> dict:
    "The rules that a demonstrator of the start is told in a game, and obeys."
    from agentlab.replay.written_rules import Evidence, write_rule
    found = {}
    for pattern, action in generator.sample(sorted(RIGHT.items()), 2):
        action = action if generator.random() < .8 else OTHER[action]
        if generator.random() < .6: found[f'G{len(found)}'] = write_rule(Evidence(pattern, action, *[[0, 0]]*3))
    return found

def plain(library: dict) -> str:
    "Rules as they are shown: without their counts, which this reader has no use for."
    from agentlab.replay.written_rules import read_rule
    return '\n'.join(f'After "{rule.pattern}" do "{rule.action}"' for rule in map(read_rule, library.values()))

def begun(env, seed: int):
    from agentlab.policy import tiny_policy
    from agentlab.replay import Ruled
    return tiny_policy(Ruled(env, drawn, plain), seed=seed, progress=False, **START)

def worlds(env, library: dict) -> dict:
    "Arm -> what the policy plays in."
    from agentlab.replay import Advised, Ruled
    shown = dict(mined=plain, shuffled=lambda those: shuffled(plain(those)))
    return {arm: Ruled(env, library, text) for arm, text in shown.items()} | dict(none=env, acts=Advised(env, library))

def row(arm: str, seed: int) -> dict:
    from agentlab.env import KeyDoor
    from agentlab.replay import training_free
    from agentlab.rollout import play
    env = KeyDoor(**WORLD)
    policy = begun(env, seed)
    played = partial(play, policy, temperature=MINED['temperature'], **PLAYED)
    library = training_free({}, played(env, [1000*seed + i for i in range(MINED['houses'])],
        group_size=MINED['group_size'], seed=seed))
    games = played(worlds(env, library)[arm], range(TESTS['tests']), TESTS['each'], env.tasks('test', TESTS['tests']),
        seed=10**6 + seed)
    return dict(success=round(sum(e.success for e in games)/len(games), 5), rules=len(library))

CLAIM = Claim(
    key='tf-grpo', says='Rules mined from the groups of a policy help it when it reads them, and not as words alone.',
    row=row, arms=('mined', 'shuffled', 'none', 'acts'), control='shuffled', measure='success', margin=.05,
    budget='the same start, the same 160 games to mine from, no weight moves',
    world='KeyDoor(size=2, closed=1, horizon=8); success on 12 held-out houses, 20 games each',
    settings=dict(start=START, mined=MINED, played=PLAYED, tests=TESTS))
