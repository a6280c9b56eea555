"A doctor paid by the turn, a recommender paid by the length of a session: their mechanisms, switched off."
from random import Random

import pytest

from agentlab.env import Doctor, Reco, as_reader, check_env
from agentlab.env.protocol import canonical, splits
from agentlab.env.talks import fewer, genres, judged, shuffled, symptoms, table
from agentlab.episodes import Batch
from agentlab.policy import tiny_policy
from agentlab.rollout import play
from agentlab.train import recipes, train
from words import says_known_words

WORLDS = [Doctor, Reco]
PATIENT = dict(disease='influenza', told='cough', patient=1, budget=6)

def points(env, *texts, task=PATIENT):
    env.reset(0, task)
    return [round(10*env.step(text).reward['player'], 6) for text in texts]

def ended(env, act, seed=0, task=None):
    step = env.reset(seed, task)
    while not step.done: step = env.step(act(env))
    return step

@pytest.mark.parametrize('kind', WORLDS)
def test_a_world_keeps_the_rules_and_its_splits(kind):
    assert {*check_env(kind()).values()} == {'ok'}
    env, seen = kind(), {}
    for split in splits:
        for task in env.tasks(split, 60): assert seen.setdefault(canonical(task), split) == split
    for number, task in enumerate(env.tasks('test', 60)):
        last = ended(env, lambda env: env.expert(), number, task)
        assert last.info['success'] and last.reward == dict(player=1.)
    says_known_words(env, env.tasks('test', 60), .5)

@pytest.mark.parametrize('kind', WORLDS)
def test_a_policy_plays_updates_and_a_reader_is_told(tmp_path, kind):
    "`recipes.grpo` on the world, from a policy that was shown a few games."
    env = kind()
    policy = tiny_policy(env, progress=False, steps=20, pool=64, noise=.4)
    recipe = recipes.grpo(steps=1, groups=6, group_size=4, max_turns=12, max_tokens=6, test_tasks=0)
    row = train(policy, env, recipe, tmp_path, progress=False).rows()[0]
    assert row['grad_norm'] > 0 and row['errors'] == 0
    reader = as_reader(kind())
    reader.reset(0)
    assert 'does nothing here' in reader.step('Let me sing!').observation

# ---- DoctorAgent-RL

def test_doctoragent_every_turn_has_its_points():
    env = Doctor()
    env.reset(0, PATIENT)
    unsure = env.unsure[0]
    assert points(env, 'rash ?', 'rash ?', 'rash', f'{unsure} ?', 'fever ? rash ?') == [1, -2, -2, -1, -2]
    assert points(Doctor(answer=0.), 'rash ?', 'rash ?') == [0, -2]  # without the point for an answer
    assert points(env, 'rash ?', 'rash ?', task=PATIENT | dict(budget=2)) == [1, -7]
    assert env.over and points(env, 'diagnosis influenza clinic') == [10]

def test_doctoragent_the_budget_is_shown_and_ends_the_talk():
    "Without it the context is another one."
    class Silent(Doctor):
        def left(self): return ''
    for budget in (2, 7):
        env, quiet = Doctor(), Silent()
        task = PATIENT | dict(budget=budget)
        assert env.reset(0, task).observation == f'I have cough. {budget} left.' != quiet.reset(0, task).observation
        assert env.step('rash ?').observation.endswith(f'{budget - 1} left.')
        for _ in range(budget - 1): step = env.step('cough ?')
        assert step.done and not step.info['success']
    budgets = {task['budget'] for task in Doctor().tasks('train', 200)}
    assert budgets == {*range(2, 11)} and {x['budget'] for x in Doctor(least=3, most=4).tasks('train', 40)} == {3, 4}

def test_doctoragent_a_judge_scores_diagnosis_and_advice():
    assert judged('influenza', 'clinic', 'influenza') == (5, 5) and judged('influenza', 'home', 'influenza') == (5, 0)
    assert judged('eczema', 'home', 'malaria') == (0, 0) and 0 < judged('malaria', 'clinic', 'influenza')[0] < 5
    env = Doctor()
    assert points(env, 'diagnosis malaria clinic') == [2 + 5]
    assert env.facts()['answer'] == 'diagnosis influenza clinic'
    assert points(env, 'diagnosis plague clinic') == [-2]

def test_diseases_can_be_told_apart_and_a_patient_never_lies():
    assert len(table) == 12 and len(symptoms) == 16 and len({frozenset(some) for some in table.values()}) == 12
    env = Doctor()
    for number, task in enumerate(env.tasks('test', 40)):
        env.reset(number, task)
        for one in [x for x in symptoms if x != task['told']][:task['budget'] - 1]:
            said = env.step(f'Do you have {one}?').observation
            assert said.startswith('I do not know.' if one in env.unsure else
                'Yes.' if one in table[task['disease']] else 'No.')
        assert task['disease'] in env.possible()

@pytest.mark.parametrize('task', [dict(disease='gout'), PATIENT | dict(told='rash'), PATIENT | dict(budget=11), 3])
def test_a_patient_that_is_none(task):
    with pytest.raises(ValueError, match='a task of Doctor'): Doctor().reset(0, task)

# ---- RecoWorld

def user_of(patience):
    env = Reco()
    return next(dict(user=n) for n in range(200) if env.reset(0, dict(user=n)) and env.patience == patience)

def disliked(env): return [one for one in genres if one not in env.likes]

def test_recoworld_a_user_leaves_and_the_length_is_paid():
    for patience in (3, 4, 5):
        env = Reco()
        env.reset(0, user_of(patience))
        bad, lists = disliked(env), 0
        while not env.over: step, lists = env.step(f'show {bad[lists % 3]}'), lists + 1
        assert lists == patience and step.observation == 'I leave.' and not step.info['success']
        assert step.reward['player'] == pytest.approx((patience - 1)/12)
    liked = ended(Reco(horizon=5), lambda env: f'show {env.likes[2]}')
    assert liked.reward['player'] == 1 and liked.info['success']

def test_recoworld_an_instruction_before_the_end():
    "Said at a patience of 1 only; shuffled or silent, the context is another one and the session shorter."
    env = Reco()
    env.reset(0, user_of(3))
    bad = disliked(env)
    said = [env.step(f'show {one}').observation for one in (bad[0], env.likes[0], bad[1])]
    assert said == ['Next.', 'Next.', f'Fewer {bad[1]}.']
    length = {}
    for says in (fewer, shuffled, lambda some, generator: []):
        env, generator = Reco(says=says), Random(0)
        length[says] = sum(ended(env, lambda env: env.demonstrator(0., generator), task=task).reward['player']
            for task in env.tasks('test', 60))/60
    assert length.pop(fewer) > max(length.values()) + .1

@pytest.mark.parametrize('text', ['', 'show', 'show pop', 'show jazz jazz', 'show jazz rock folk', 'play jazz', 'jazz'])
def test_what_is_no_list_costs_patience(text):
    env = Reco()
    env.reset(0, user_of(4))
    step = env.step(text)
    assert step.info['invalid'] and env.patience == 3 and not step.done

def test_an_untrained_policy_plays_both():
    for kind in WORLDS:
        policy = tiny_policy(kind(), warm=False, progress=False)
        batch = Batch.from_episodes(play(policy, kind(), range(4), 2, max_tokens=4, max_turns=12))
        assert (batch.episodes.error == -1).all()
