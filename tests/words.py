"What a world says stands in its vocabulary: a word-level policy can read and say nothing else."
import re
from random import Random

def says_known_words(env, tasks: list, noise: float):
    "Observations, legal actions and what a demonstrator of this noise says in these tasks."
    known = {*env.vocabulary()}
    for number, task in enumerate(tasks):
        step, generator = env.reset(number, task), Random(number)
        while not step.done:
            action = env.demonstrator(noise, generator)
            texts = [step.observation, *step.info['legal'], action]
            step = env.step(action)
            for text in [*texts, step.observation]: assert {*re.findall(r'\w+|[^\w\s]', text)} <= known, text
