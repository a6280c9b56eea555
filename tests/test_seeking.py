"Diagnosis, masked passages, a page known by heart: each mechanism is switched off and something changes."
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch

from agentlab.env import Diagnosis, HopSearch, Toolbox, check_env, final_answer
from agentlab.env.seeking import clinic, covered, filled, formed, masked, passage, patient, ramp, refer, similar
from agentlab.env.wrappers import Wrapper
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.reward.evidence import without_information
from agentlab.reward.gates import gated
from agentlab.rollout import Scripted, play
from agentlab.train import recipes, train

PAGE = Path(__file__).resolve().parent.parent/'nbs/env/32_seeking.ipynb'

@pytest.fixture(scope='module')
def page():
    "The worlds and the sampler that the page shows and does not export."
    from agentlab.env import seeking
    names = dict(vars(seeking))
    for cell in json.loads(PAGE.read_text('utf-8'))['cells']:
        text = ''.join(cell['source'])
        if any(f'\n{what}' in text for what in ('class SelfSearch(', 'class Indexed:')): exec(text, names)
    return names

class Paying(Wrapper):
    "Pays for the length of what is said, too, so that a policy that knows nothing has a gradient."
    def step(self, action):
        step = self.env.step(action)
        step.reward = {seat: paid + len(action) % 7/8 for seat, paid in step.reward.items()}
        return step

def updated(tmp_path, name, world, policy=None, **how):
    "The row of an update."
    policy = policy or tiny_policy(world, warm=False, progress=False)
    recipe = getattr(recipes, name)(steps=1, groups=4, group_size=4, test_tasks=0, max_turns=6, **how)
    return train(policy, world, recipe, tmp_path, progress=False).rows()[0]

# ---- Deep-DxSearch

def played(*actions, task=None):
    "Columns and reward of a diagnosis."
    env = Diagnosis()
    env.reset(4, task)
    for action in actions: step = env.step(action.format(**env.task, ask=env.task['calls'][0]))
    return [step.info['columns'][x] for x in ('refer', 'searched', 'answered')], step.reward['player']

def test_a_diagnosis_is_a_world():
    assert {*check_env(Diagnosis()).values()} == {'ok'}
    env, known = Diagnosis(), {*Diagnosis().vocabulary()}
    for task in env.tasks('test', 20):
        step = env.reset(0, task)
        texts = [step.observation]
        while not step.done:
            action = env.expert()
            step = env.step(action)
            texts += [action, step.observation]
        assert step.info['success'] and env.turns == 3
        assert {*' '.join(texts).replace('.', ' . ').replace(':', ' : ').split()} <= known
    clinics = [{patient(Random(seed), split)['clinic'] for seed in range(30)} for split in ('train', 'demo', 'test')]
    assert not clinics[0] & clinics[1] and not clinics[1] & clinics[2] and not clinics[0] & clinics[2]

def test_dx_matching_shows_the_nearest_cases():
    _, cases = clinic(5)
    name, some = cases[3]
    assert similar(5, some)[0] == name and len(similar(5, some)) <= 3 and similar(5, set()) == []
    assert similar(5, some) != similar(6, some)

@pytest.mark.parametrize('actions', [
    ('answer {answer}',), ('{ask}', 'answer nobody'), ('{ask}', 'search', 'answer {answer}'),
    ('{ask}',)*4 + ('answer {answer}',), ('{ask}', 'search {answer}')])
def test_dx_a_broken_form_pays_nothing(actions):
    assert played('{ask}', 'search {answer}', 'answer {answer}') == ([1., 1., 1.], 1.)
    assert played(*actions)[0] == [0.]*3

def test_dx_matching_is_paid_by_rounds():
    one, two, near = {'fever', 'rash'}, {'cough', 'thirst'}, {'fever', 'rash', 'cough'}
    rounds = [(one, ['Tel']), (two, ['Lam'])]
    assert refer('Tel', rounds[:1]) == 1. and refer('Tel', rounds) == .5 and refer('Lam', rounds) == 1.
    assert refer('Lam', [(one, ['Tel']), (near, ['Lam'])]) == .5 and refer('Tel', [(one, ['Tel']), (near, [])]) == 0.
    assert [refer('Dor', (rounds*2)[:n]) for n in (1, 2, 3)] == [0., .2, .4]
    assert refer('Dor', [(one, []), (near, [])]) == 0.

def test_dx_words_of_the_truth_are_covered():
    assert covered('Marfan syndrome', 'marfan') == pytest.approx(.5**(1/3)) and covered('Tel', 'Dor') == 0.
    assert covered('diabetes', 'Diabete, Tel, Dor') == 1.  # final s and other names do not count
    task = dict(patient(Random(0), 'train'), told=())
    everybody = ' '.join(clinic(task['clinic'])[0])
    assert played('{ask}', f'search {everybody}', 'answer {answer}', task=task)[0] == [1., 0., 1.]  # more than ten

def test_dx_listing_everything_is_paid_and_not_right():
    everybody = ' '.join(clinic(patient(Random(4), 'train')['clinic'])[0])
    task = patient(Random(4), 'train')
    parts, right = played('{ask}', f'answer {everybody}', task=task)
    assert parts == [1., 0., 1.] and right == 0.

def test_dx_a_term_that_is_off_pays_nothing():
    import pandas as pd
    frame = dict(group=0, episode=[0, 1], t=0, reward=0., refer=[1., 0.], searched=[0., 1.], answered=[1., 1.])
    b = Batch.from_turns(pd.DataFrame(frame))
    reward = recipes.deep_dxsearch().reward
    assert reward(b).tolist() == pytest.approx([.95, .2])
    assert reward.func is gated
    assert reward(b.with_turns(refer=torch.zeros(2).double())).tolist() == pytest.approx([.15, .2])
    bare = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0], t=0)))
    with pytest.raises(ValueError, match='turns.refer'): reward(bare)

def test_deep_dxsearch_plays_and_updates(tmp_path):
    world = Diagnosis()
    policy = tiny_policy(world, steps=40, episodes=8, pool=32, noise=.2, progress=False)
    row = updated(tmp_path, 'deep_dxsearch', world, policy, max_tokens=8)
    assert row['grad_norm'] > 0 and row['errors'] == 0

# ---- MaskSearch

def test_masks_are_drawn_by_words_and_with_replacement():
    some = ['mentor', 'Bora Tel', '7', 'Lam', 'Lam']
    drawn = Counter(i for seed in range(3000) for i in masked(some, Random(seed), 1))
    assert {*drawn} == {0, 1, 2} and all(abs(drawn[i]/3000 - p) < .04 for i, p in enumerate((.2, .4, .4)))
    assert {len(masked(some, Random(seed), 4)) for seed in range(60)} == {1, 2, 3}
    assert masked(['Lam', 'Lam'], Random(0), 2) == []

def test_another_number_of_words_fills_nothing():
    task = dict(answer='mentor Bora Tel')
    said = 'mentor Bora Tel', 'mentor Bora Lam', 'mentor Bora Tel rival', ''
    assert [filled(x, task) for x in said] == pytest.approx([1., 2/3, 0., 0.])

def test_gaps_are_filled_by_searching():
    "Every gap is answered by its search; where there is no such tool nothing can be looked up."
    world = ramp()
    assert {*check_env(ramp()).values()} == {'ok'}
    for task in world.tasks('test', 10):
        step = world.reset(0, task)
        read = step.observation.replace('.', '').split()
        assert read.count('_') == len(task['calls'])
        while not step.done: step = world.step(world.expert())
        assert step.reward['player'] == 1.
    closed = Toolbox([final_answer()], lambda generator, split: passage(generator, split), filled, horizon=4)
    step = closed.reset(0)
    assert closed.step(closed.task['calls'][0]).info['invalid']

def test_masksearch_begins_with_few_gaps():
    from agentlab.replay.tasks import Stages
    assert recipes.masksearch().memory is Stages
    tasks = ramp().tasks('train', 30)
    gaps = torch.tensor([float(len(task['calls'])) for task in tasks])
    memory = Stages(count=30)
    memory.length = gaps.double() + 1
    first = memory.stage_of() == 0
    assert gaps[first].max() <= gaps[~first].min() and gaps.unique().tolist() == [1., 2., 3.]
    flat = Stages(count=30, order=torch.neg)
    flat.length = memory.length
    assert gaps[flat.stage_of() == 0].min() >= gaps[flat.stage_of() != 0].max()

def test_masksearch_plays_and_updates_and_goes_on_with_questions(tmp_path):
    world = Paying(ramp(2))
    policy = tiny_policy(world, warm=False, progress=False)
    assert updated(tmp_path/'ramp', 'masksearch', world, policy)['grad_norm'] > 0
    questions = Paying(HopSearch(1, distractors=10))
    assert updated(tmp_path/'questions', 'grpo', questions, policy)['grad_norm'] > 0

# ---- SSRL

def reply(thinks, searches):
    blocks = ['<think> is </think>']*thinks
    for i in range(searches):
        blocks.insert(2*i + 1, '<search> rival Bora Tel </search> <information> Mina Lam </information>')
    return ' '.join([*blocks, '<answer> Mina Lam </answer>'])

def test_ssrl_the_form_is_worth_thoughts_per_search():
    assert [formed(reply(n + 1, n)) for n in (0, 1, 7, 8)] == [.5, 1., 1., 0.]
    assert formed(reply(2, 2)) == pytest.approx(2/3) and formed(reply(3, 1)) == pytest.approx(2/3)

@pytest.mark.parametrize('old, new', [
    (' is ', ' '), (' is ', ' ... '), ('rival ', 'rival\n'), ('<search>', 'and <search>'), ('information', 'page'),
    ('<think> is </think> <s', '<s'), ('Mina Lam </i', '<b> </i'), ('</answer>', '</answer> <think> is </think>'),
    (' </answer>', '')])
def test_ssrl_a_broken_form_is_worth_nothing(old, new):
    assert formed(reply(2, 1)) == 1. and formed(reply(2, 1).replace(old, new, 1)) == 0.

def scripted(page, say, **how):
    "A game in which a function speaks."
    world = page['SelfSearch'](HopSearch(1, distractors=10))
    policy = tiny_policy(world, warm=False, progress=False)
    speaker = Scripted(policy, say)
    return policy, play(policy, world, [1], sampler=speaker, on_reset=speaker.begin, max_tokens=64)

def test_ssrl_pays_for_the_answer_and_the_form(page):
    right = lambda game: game.env.expert()
    last = lambda game: right(game)[right(game).index('<answer>'):]
    said = {'right': right, 'at once': lambda game: f'<think> is </think> {last(game)}',
        'wrong': lambda game: reply(2, 1), 'bare': lambda game: 'Mina Lam'}
    worth = {name: scripted(page, say)[1][0] for name, say in said.items()}
    assert [round(e.outcome, 3) for e in worth.values()] == [1., .95, .1, 0.]
    assert [e.success for e in worth.values()] == [True, True, False, False]
    assert {*check_env(page['SelfSearch'](HopSearch())).values()} == {'ok'}

def test_ssrl_nothing_is_learned_from_information(page):
    policy, games = scripted(page, lambda game: game.env.expert())
    batch = Batch.from_episodes(games)
    masked_out = without_information(batch, policy)
    words = [policy.tokenizer.decode([i]) for i in batch.action('id').tolist()]
    inside = slice(words.index('<information>') + 1, words.index('</information>'))
    weight = masked_out.action('weight')
    assert weight[inside].sum() == 0 and weight.sum() == batch.action('weight').sum() - len(words[inside])
    grads = []
    for b in (batch, masked_out):
        policy.model.zero_grad()
        logp = policy.forward(b)[0]
        (logp*b.action('weight')).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert not torch.allclose(*grads)

def test_ssrl_information_that_does_not_end_is_masked_to_the_end(page):
    policy, games = scripted(page, lambda game: '<think> is </think> <information> The rival of Bora Tel')
    weight = without_information(Batch.from_episodes(games), policy).action('weight')
    assert weight.tolist() == [1.]*4 + [0.]*5 + [1.]  # the end sign is no page

def test_ssrl_plays_and_updates(tmp_path, page):
    world = Paying(page['SelfSearch'](HopSearch(1, distractors=10)))
    assert updated(tmp_path, 'ssrl', world)['grad_norm'] > 0

def test_ssrl_with_an_index_the_page_is_real(page):
    "A policy that makes up every page reads the real one, and answers by it."
    world = page['SelfSearch'](HopSearch(1, distractors=10))
    policy = tiny_policy(world, warm=False, progress=False)
    names = page['full_name']

    class Liar:
        def sample(self, contexts, **how):
            found = []
            for ids in contexts:
                asked, _, read = policy.tokenizer.decode(ids).partition('</search>')
                name = (names.findall(read) or ['Bora Tel'])[-1]
                relation = next(word for word in asked.split() if word in ('mentor', 'rival', 'cousin', 'tailor'))
                search = f'<search> {relation} {names.findall(asked)[0]} </search>'
                ask = f'{search} <information> Bora Tel </information> '
                ids = policy.chat.text_ids(f'<think> is </think> {"" if read else ask}<answer> {name} </answer>')
                found.append(page['Completion'](ids, [0.]*len(ids), [0.]*len(ids), 'stop'))
            return found

    task, = world.tasks('test', 1)
    place = HopSearch(1, distractors=10)
    place.reset(0, task)
    index = page['Indexed'](policy, lambda text: place.game.world.sentence(place.game.world.search(text)[0]), Liar())
    won = [play(policy, world, [0], 1, [task], sampler=sampler, max_tokens=64)[0] for sampler in (Liar(), index)]
    assert [game.success for game in won] == [False, True] and 'Bora Tel </information>' not in won[1].turns[0].text
