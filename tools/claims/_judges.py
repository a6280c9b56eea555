"""SmolLM2 as a judge of a society of tiny agents, never trained: by what it says, how sure it is of each of three
digits after four worked examples; or by what it knows, a line on its hidden state, fitted to known cases.

    python tools/claims/_judges.py   how well either tells right from wrong answers"""
from functools import lru_cache, partial
from random import Random

KNOWN = 150  # cases with a known truth, of questions that nobody trains on or is tested with
RUBRICS = dict(answer='max asks for the largest digit. Score the answer: 3 is right, 1 is wrong.',
    question='A question is max and three digits. Score the question: 3 is well formed, 1 is not.')
SHOTS = dict(answer=(('max 3 7 2 = 7', '3'), ('max 8 1 4 = 4', '1'), ('max 5 0 9 = 9', '3'), ('max 6 2 3 = 2', '1')),
    question=(('max 3 7 2', '3'), ('8 max 1 4', '1'), ('max 5 0 9', '3'), ('6 2 max max', '1')))

def cases(kind: str, split: str = 'demo', count: int = KNOWN):
    "Pairs of a text and whether it is right: answers, or questions whose words were shuffled where they are not."
    from _society import DIGITS, largest, read
    draw = Random('known')
    for task in largest().tasks(split, count):
        question, right = task['prompt'], draw.random() < .5
        wrong = [digit for digit in DIGITS if digit != task['answer']]
        answer = task['answer'] if right else draw.choice(wrong)
        words = question if right else ' '.join(draw.sample(question.split(), 4))
        yield (f'{question} = {answer}', right) if kind == 'answer' else (words, read(words) is not None)

@lru_cache(4)
def judge(kind: str, fitted: bool):
    "A function, texts -> (n,) scores from 0 to 1; NaN where the digits have less than a fifth of the mass."
    from agentlab.policy import pretrained
    from agentlab.reward.judge import Form, Head, Judge, expected
    form = Form(('1', '2', '3'), expected, RUBRICS[kind], SHOTS[kind], closing='\nScore: ')
    reader = pretrained('smollm2', source='package')
    if not fitted: return Judge(reader, form, least=.2)
    texts, truth = zip(*cases(kind))
    head = Head(reader, texts, truth, form=form)
    return lambda asked: ((head(asked) + 1)/2).clamp(0, 1)

def marked(tasks: list, most: int, fitted: bool) -> list:
    "Texts of numbers from 1 to `most`, '' where the judge abstains: of answers, and of questions without one."
    told, scores = [(t['question'], t.get('solution', t.get('said'))) for t in tasks], {}
    for kind in SHOTS:
        those = [i for i, (_, said) in enumerate(told) if (said is None) == (kind == 'question')]
        texts = [told[i][0] if kind == 'question' else f'{told[i][0]} = {told[i][1]}' for i in those]
        if those: scores |= dict(zip(those, judge(kind, fitted)(texts).tolist()))
    return ['' if score != score else f'{1 + (most - 1)*score:.2f}' for _, score in sorted(scores.items())]

def judges(most: int) -> dict:
    "Name of an arm -> who scores."
    return {name: partial(marked, most=most, fitted=name == 'fitted') for name in ('fitted', 'says')}

def apart(fitted: bool, count: int = 120) -> float:
    "Of all pairs of a right and a wrong held-out answer, the share in which the right one scores higher."
    texts, truth = zip(*cases('answer', 'test', count))
    found = sorted(zip(judge('answer', fitted)(list(texts)).tolist(), truth))
    right, wrong = ([score for score, is_right in found if is_right == kind] for kind in (True, False))
    return sum((a > b) + .5*(a == b) for a in right for b in wrong)/len(right)/len(wrong)

if __name__ == '__main__':
    for fitted, how in enumerate(('says', 'knows')):
        print(f'what SmolLM2 {how}: {apart(bool(fitted)):.2f} of all pairs')
