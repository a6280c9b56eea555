"What the claims about societies share: the largest of some digits, and a start that has watched all roles slip."
from random import Random

from agentlab.env.own_tasks import OwnTasks
from agentlab.env.protocol import Env, Step, noisy
from agentlab.rollout import play

START = dict(steps=400, episodes=32, pool=8192, lr=4e-3, noise=.4)

def read(question: str)->dict|None:
    "The task that a question asks; None where it is none."
    words = question.split()
    plain = len(words) > 2 and words[0] == 'max' and all(len(word) == 1 and word.isdigit() for word in words[1:])
    return dict(prompt=question, answer=max(words[1:])) if plain else None

def largest(tasks: int = 1000, sizes: tuple = (3,))->OwnTasks:
    "max 3 7 2"
    draw = Random('largest')
    asked = {' '.join(['max', *(str(draw.randrange(10)) for _ in range(draw.choice(sizes)))]) for _ in range(tasks)}
    return OwnTasks([read(question) for question in sorted(asked)])

class Shown(Env):
    "One message of a society, with what a demonstrator may write: `script` (generator) -> text, says, the best first."
    name, seats, split = 'shown', ('any',), 'demo'
    def __init__(self, script, words): self.script, self.words = script, words
    def reset(self, seed, task=None):
        text, self.says = self.script(Random(seed))
        return Step('any', text)
    def step(self, action): return Step('any', '', {}, True)
    def expert(self, noise=0., generator=None):
        return generator.choice(self.says) if noisy(noise, generator) else self.says[0]
    def vocabulary(self): return self.words
    def clone(self): return Shown(self.script, self.words)

WORDS = [*'max Said : . Listed List errors Score Asked Ask Judge fine wrong 10'.split(), *'0123456789']
DIGITS = [*'0123456789']

def best_first(says, best): return [best, *(x for x in says if x != best)]

def asked(pool, draw)->tuple:
    "A question, its answer, and an answer of a solver that is right half of the time."
    task = draw.choice(pool)
    return task['prompt'], task['answer'], task['answer'] if draw.random() < .5 else draw.choice(DIGITS)

def peers_script(world):
    from agentlab.selfplay.peers import asks
    pool = world.pool('demo')
    def script(draw):
        (question, answer, said), role = asked(pool, draw), draw.choice(list(asks))
        heard = [(draw.choice(DIGITS), draw.choice(['fine', 'wrong'])) for _ in range(draw.choice([0, 2]))]
        right = said == answer
        says = dict(solution=best_first(DIGITS, answer), evaluation=best_first(['fine', 'wrong'], 'fine' if right else
            'wrong'), score=best_first('123', '3' if right else '1'))[role]
        listed = draw.choice(['fine', 'wrong'])
        return asks[role](dict(question=question, heard=heard, solution=said, evaluation=listed)), says
    return script

def trio_script(world):
    "Whoever asks slips into shuffled words, whoever judges into any mark."
    pool = world.pool('demo')
    def script(draw):
        (question, answer, said), role = asked(pool, draw), draw.randrange(3)
        other = draw.choice(pool)['prompt']
        if role == 0:
            slips = [' '.join(draw.sample(other.split(), 4)) for _ in range(3)]
            return draw.choice(['Ask.', f'Asked: {question}. Ask.']), [other, *slips]
        if role == 1: return question, best_first(DIGITS, answer)
        broken = draw.random() < .25
        question = ' '.join(draw.sample(question.split(), 4)) if broken else question
        text = question if draw.random() < .3 else f'{question} Said: {said}.'
        good = read(question) is not None and ('Said' not in text or said == answer)
        return f'{text} Judge.', best_first([str(n) for n in range(1, 11)], '10' if good else '1')
    return script

def accuracy(policy, world, seed: int, tasks: int = 120)->float:
    "Share of held-out questions that are answered right, sampled as in training."
    asked = world.tasks('test', tasks)
    return sum(e.success for e in play(policy, world, range(tasks), 1, asked, max_tokens=4, seed=10**6 + seed))/tasks
