"Every system on a workspace plays and updates; each mechanism that defines it changes something where it is off."
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from later import deferred

from agentlab.credit import eapo, grpo
from agentlab.env import CueDoor, KeyDoor
from agentlab.env.facts import Facts
from agentlab.env.protocol import check_env
from agentlab.episodes import Batch
from agentlab.objective import loss_weights
from agentlab.policy import tiny_policy
from agentlab.policy.core import Chat
from agentlab.replay.experience import Experienced, Library, Tipped
from agentlab.rollout import keep_multiple, play
from agentlab.rollout.workspace import (Moments, Noted, Retrying, Shortcuts, era_gae, era_reward, laid_out, last_said,
    mine_shortcuts, newest, only_seat, parted, report_of, stubbed, webagent,
    with_workspace)
from agentlab.train import recipes, train

def cue(report, heard, env): return heard.split()[1].rstrip('.') if heard.startswith('Cue') else report
def house(**other): return KeyDoor(**dict(size=2, closed=0, horizon=5) | other)
def untrained(env, **how): return tiny_policy(env, warm=False, progress=False, **how)

class Loud(KeyDoor):
    "Pays for the length of what is said: a gradient for a policy that knows nothing."
    name = 'loud'
    def turn(self, action):
        observation, reward, done, info = super().turn(action)
        return observation, reward + len(action) % 7/8, done, info

DOOR = deferred(lambda: Noted(CueDoor(), cue))
REPORT = deferred(lambda: dict(remember=report_of, memory=('', '')))

class Script:
    def __init__(self, policy, *texts): self.policy, self.texts, self.seeds = policy, list(texts), []
    def sample(self, contexts, seeds=(), **how):
        self.seeds += seeds
        chat = self.policy.chat
        said = [chat.text_ids(self.texts.pop(0)) + [chat.end_id] for _ in contexts]
        return [SimpleNamespace(ids=ids, logprobs=[-1.]*len(ids), entropies=[.5]*len(ids)) for ids in said]

def heard(env, script, **how):
    "What one scripted game read, turn by turn, and the game."
    policy = untrained(env)
    game, = with_workspace(policy, env, [0], sampler=Script(policy, *script), **how)
    return [policy.text(turn.context_ids) for turn in game.turns], game

def updated(recipe, env, tmp_path, **changes):
    made = recipe(**dict(steps=2, groups=3, group_size=4, max_tokens=6, max_turns=5, test_tasks=1) | changes)
    run = train(untrained(env), env, made, tmp_path, progress=False)
    for row in run.rows(): assert row['skipped'] is None and row['grad_norm'] > 0 and row['errors'] == 0
    return run

# ---- the mechanism

def test_every_row_is_what_was_sampled_from():
    env = Loud(size=2, closed=0, horizon=5)
    policy = untrained(env)
    b = Batch.from_episodes(with_workspace(policy, env, range(4), group_size=2, max_tokens=5, remember=stubbed))
    assert len(b.rows) == len(b.turns) and torch.equal(b.tokens.row[b.actions], b.action_turn)
    assert (policy.logprobs(b)[0] - b.action('sampler_logp')).abs().max() < 1e-4
    assert torch.equal(b.turns.workspace.long(), torch.bincount(b.tokens.row[b.tokens.turn < 0]))

def test_memory_off_and_on_changes_the_context():
    script = ['red ; wait', 'red ; wait', 'red ; open d1']
    without, _ = heard(DOOR, script, about=lambda env: env.goal())
    memory, game = heard(DOOR, script, about=lambda env: env.goal(), **REPORT)
    assert without[0] == memory[0] and 'red' not in without[2] and 'red wait' in memory[2]
    assert [turn.columns['memory'] for turn in game.turns] == [2, 2, 3]

def test_two_seats_keep_two_memories():
    env = Facts(sessions=2)
    policy = untrained(env)
    games = with_workspace(policy, env, [0], sampler=Script(policy, 'add', 'noop', 'Eva'),
        remember=lambda memory, turn, last: (*memory, turn.text))
    assert [[turn.columns['memory'] for turn in e.turns] for e in games] == [[1, 2], [1]]
    assert 'add' in games[0].turns[1].observation and 'noop' not in games[1].turns[0].observation

@pytest.mark.parametrize('how, turns, says', [
    (dict(memory='wait '*600), 0, 'the workspace has'),
    (dict(memory='wait '*40, most=30), 1, 'its limit is 30'),
    (dict(view=lambda task, memory, last: memory['no']), 0, 'TypeError'),
    (dict(remember=lambda memory, turn, last: 1/0), 1, 'ZeroDivisionError'),
    (dict(view=lambda task, memory, last: None), 0, 'Error')])
def test_bad_input_ends_the_episode_with_a_reason(how, turns, says):
    env = CueDoor()
    policy = untrained(env)
    games = with_workspace(policy, env, [0, 1], sampler=Script(policy, *['wait']*6), **how)
    assert [len(game.turns) for game in games] == [turns]*2
    assert all(says in game.error and not game.success for game in games)

def test_a_fault_of_one_game_leaves_the_others_and_is_counted(tmp_path):
    env = Loud(size=2, closed=0, horizon=4)
    def picky(task, memory, last):
        if 'Chest a1' in task: raise ValueError('no view of this house')
        return laid_out(task, memory, last)
    made = recipes.grpo(rollout=partial(with_workspace, view=picky), steps=1, groups=6, group_size=2, max_tokens=3,
        test_tasks=0)
    row, = train(untrained(env), env, made, tmp_path, progress=False).rows()
    assert 0 < row['errors'] < 12 and row['grad_norm'] > 0

def test_arguments_that_cannot_work_are_refused():
    env = CueDoor()
    policy = untrained(env)
    policy.chat = Chat(policy.tokenizer, rewrites='window')
    with pytest.raises(ValueError, match='windows of its own'): with_workspace(policy, env, [0])
    with pytest.raises(ValueError, match='whole reply'): with_workspace(untrained(env), env, [0], format=object())

# ---- IterResearch

def test_iterresearch_plays_and_updates(tmp_path):
    run = updated(recipes.iterresearch, Noted(Loud(size=2, closed=0, horizon=4), cue), tmp_path)
    batch = run.episodes(1)
    assert len(batch.rows) == len(batch.turns) and run.rows()[0]['sampler_gap'] < 1e-4

def test_iterresearch_report():
    "Only the report and the last action are carried on; a reply without a report leaves the old one."
    script = 'blue ; wait', 'wait', 'red ; open d1'
    texts, _ = heard(DOOR, script, **REPORT)
    assert 'blue wait' in texts[1] and 'blue wait' in texts[2]
    rolled, _ = heard(DOOR, script, remember=lambda memory, turn, last: (*memory, last, turn.text))
    assert len(rolled[2]) > len(texts[2]) and parted('a ; b ; c') == ('a ; b', 'c') and parted('c') == (None, 'c')

def test_iterresearch_environment_hears_the_last_part():
    env, plain = Noted(CueDoor(), cue), CueDoor()
    env.reset(0), plain.reset(0)
    for action in ('wait', 'wait'):
        assert env.step(f'red ; open d1 ; {action}').observation == plain.step(action).observation
    assert env.report == 'red ; open d1' and env.step('red ; wait ; open d9').info['invalid']
    assert env.expert().startswith("red ; wait ; open d")

def test_iterresearch_retry():
    "A malformed reply is drawn again in its turn, from another seed; without retries it stands."
    env, policy = DOOR, untrained(DOOR)
    script = Script(policy, 'wait', 'wait', 'red ; wait', 'red ; wait', 'red ; open d1')
    good = lambda one: ';' in policy.text(one.ids)
    sampler = Retrying(script, good, tries=5)
    game, = with_workspace(policy, env, [0], sampler=sampler, **REPORT)
    assert sampler.drawn == 2 and game.turns[0].text == 'red ; wait' and len(set(script.seeds)) == 5
    game, = with_workspace(policy, env, [0], sampler=Retrying(Script(policy, 'wait', 'red ; wait', 'open d1'), good, 0),
        **REPORT)
    assert game.turns[0].text == 'wait'

def test_iterresearch_discount():
    import pandas as pd
    rounds = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 0, 0, 1, 1], t=[0, 1, 2, 0, 1],
        outcome=[1.]*3 + [0.]*2)))
    z = eapo(rounds, gamma=.9)
    torch.testing.assert_close(z, torch.tensor([.5367, .7170, .9172, -1.0855, -1.0855]).double(), atol=1e-4, rtol=0)
    assert len(eapo(rounds, gamma=1.)[:3].unique()) == 1

def test_iterresearch_cut_to_a_multiple():
    env = Noted(Loud(size=2, closed=0, horizon=4), cue)
    b = Batch.from_episodes(with_workspace(untrained(env), env, range(3), group_size=3, max_tokens=4, max_turns=3))
    made = recipes.iterresearch()
    assert made.curate.func is keep_multiple and made.loss_per == 'turn'
    live = lambda b: len(b.action_turn[b.action('weight') > 0].unique())
    assert live(b) == 27 and live(made.curate(b)) == 24

# ---- WebAgent-R1

def test_webagent_r1_plays_and_updates(tmp_path):
    run = updated(recipes.webagent_r1, Loud(size=2, closed=0, horizon=4), tmp_path)
    assert run.rows()[0]['sampler_gap'] < 1e-4 and run.rows()[1]['kl_reference'] is not None

def test_webagent_r1_stubs():
    env = house()
    policy = untrained(env)
    played = lambda keep: with_workspace(policy, env, [0], sampler=Script(policy, *['go up']*5), remember=keep)[0]
    short, full = played(stubbed), played(lambda memory, turn, last: (*memory, last, turn.text))
    assert short.turns[4].observation.count('Doors') == 2 and full.turns[4].observation.count('Doors') == 5
    assert short.turns[4].observation.count('. . .') + short.turns[4].observation.count('...') == 3

def test_webagent_r1_faithful_row():
    env = house()
    policy = untrained(env)
    gaps = []
    for faithful in (False, True):
        b = Batch.from_episodes(webagent(policy, env, range(4), group_size=2, max_tokens=4, faithful=faithful))
        gaps.append((policy.logprobs(b)[0] - b.action('sampler_logp')).abs().mean().item())
        assert len(b.rows) == (len(b) if faithful else len(b.turns))
    assert gaps[0] < 1e-5 < .01 < gaps[1]

def test_webagent_r1_weights():
    import pandas as pd
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 0, 1], t=[0, 1, 0], outcome=[1., 1., 0.],
        n_tokens=[2, 4, 3])))
    nested = torch.tensor([1/8]*2 + [1/16]*4 + [1/6]*3).double()
    torch.testing.assert_close(loss_weights(b, 'nested'), nested)
    assert recipes.webagent_r1().loss_per == 'nested' and not torch.equal(loss_weights(b, 'turn'), nested)

def test_webagent_r1_starts():
    "From nothing, or from demonstrations in stubs: another policy begins."
    env = house()
    moment = Moments(env, remember=stubbed)
    cloned, zero = tiny_policy(moment, steps=30, pool=64, progress=False), untrained(env)
    legal = lambda policy: sum(not turn.invalid for game in webagent(policy, env, range(8), max_tokens=5)
        for turn in game.turns)
    assert cloned.tokenizer.get_vocab() == zero.tokenizer.get_vocab() and legal(cloned) > legal(zero)

# ---- Memory-R1

def test_memory_r1_plays_and_updates(tmp_path):
    env = Facts(sessions=2, replaced=.9, chat=0.)
    policy = tiny_policy(Moments(env, view=newest, slip=.7), steps=60, pool=256, progress=False)
    made = recipes.memory_r1(steps=2, groups=6, group_size=8, max_tokens=4, test_tasks=0)
    rows = train(policy, env, made, tmp_path, progress=False).rows()
    assert all(row['errors'] == 0 for row in rows) and any((row['grad_norm'] or 0) > 0 for row in rows)
    assert max(row['sampler_gap'] or 0 for row in rows) < 1e-3

def told(task, *actions, **how):
    env = Facts(sessions=len(task['facts']), seats=('manager',), **how)
    env.reset(0, task)
    for action in actions: step = env.step(action)
    return env, step

NEWS = dict(facts=[['mentor', 'Ana', 'Eva'], ['mentor', 'Ana', 'Finn']], asked=['mentor', 'Ana', 'Finn'])

@pytest.mark.parametrize('operation, bank, right', [('update 1', {1: 'Finn'}, True), ('noop', {1: 'Eva'}, False),
    ('add', {1: 'Eva', 2: 'Finn'}, True), ('delete 1', {}, None)])
def test_memory_r1_operations(operation, bank, right):
    env, step = told(NEWS, 'add', operation)
    assert {i: fact[2] for i, fact in env.bank.items()} == bank and step.done
    if right is not None: assert step.info['success']['manager'] == right

def test_memory_r1_numbers_are_stable():
    three = dict(facts=[['mentor', 'Ana', 'Eva'], ['rival', 'Bo', 'Gus'], ['rival', 'Dan', 'Hal'],
        ['doctor', 'Bo', 'Ida']], asked=['doctor', 'Bo', 'Ida'])
    env, step = told(three, 'add', 'add', 'delete 1', 'add')
    assert list(env.bank) == [2, 3] and step.info['success']['manager']
    env, step = told(three, 'add', 'add', 'delete 1', 'update 1')  # what is gone cannot be updated
    assert step.info['invalid'] and not step.info['success']['manager']

def test_memory_r1_linked_and_stream():
    "Linked: one operation on an expert's bank. Stream: all operations, and one outcome for them."
    linked, stream = Facts(8, linked=True, seats=('manager',)), Facts(8, seats=('manager',))
    step = linked.reset(3)
    assert linked.told == 7 and linked.bank and linked.step(step.info['legal'][-1]).done
    step, turns = stream.reset(3), 0
    while not step.done: step, turns = stream.step(stream.expert()), turns + 1
    assert turns == 8

def test_memory_r1_answerer_reads_the_question_alone():
    env = Facts(sessions=2)
    policy = untrained(env)
    manager, answerer = with_workspace(policy, env, [0], sampler=Script(policy, 'add', 'noop', 'Eva'), view=newest)
    turn, = answerer.turns
    assert 'Who is' in turn.observation and 'New' not in turn.observation and len(manager.turns) == 2
    assert manager.outcome == answerer.outcome  # one outcome pays both

def test_memory_r1_stages():
    "First the manager learns, then the answerer; never both."
    env = Facts(sessions=2)
    policy = untrained(env)
    b = Batch.from_episodes(with_workspace(policy, env, [0], sampler=Script(policy, 'add', 'noop', 'Eva'), view=newest))
    learns = {seat: only_seat(b, seat).action('weight') > 0 for seat in env.seats}
    assert not (learns['manager'] & learns['answerer']).any() and (learns['manager'] | learns['answerer']).all()
    assert torch.equal(grpo(only_seat(b, 'manager')), grpo(b))  # the others stay in the statistics
    seats = [recipes.memory_r1().schedule(step)['curate'].keywords['seat'] for step in (0, 14, 15, 99)]
    assert seats == ['manager']*2 + ['answerer']*2

def test_facts_is_a_world():
    for env in (Facts(), Facts(linked=True), Facts(places=1, seats=('manager',))):
        assert set(check_env(env).values()) == {'ok'}
    env = Facts(8, 8, seats=('manager',))
    for task in env.tasks('test', 40):  # with room for all, an expert is never wrong
        step = env.reset(0, task)
        while not step.done: step = env.step(env.expert())
        assert step.info['success']['manager']

# ---- ERA

def after(report, heard, env): return f'You are in {env.room} | go {"Chest" if env.has_key else "Key"}'

def test_era_plays_and_updates(tmp_path):
    env = Noted(Loud(size=2, closed=0, horizon=4), after, words=('|',))
    made = recipes.era(critic_warmup=1, steps=3, groups=3, group_size=3, max_tokens=6, test_tasks=0)
    rows = train(untrained(env), env, made, tmp_path, progress=False).rows()
    assert 'warming up' in rows[0]['skipped'] and all(row['grad_norm'] > 0 for row in rows[1:])
    assert all(row['value_loss'] is not None for row in rows)

def test_era_context_is_the_last_turn():
    env = Noted(house(), after, words=('|',))
    script = ['You are in a1 | go Key ; go up', 'are in | go Chest ; go up', 'go up', 'go up', 'go up']
    texts, _ = heard(env, script, remember=last_said)
    assert 'go Key' in texts[1] and 'go Key' not in texts[2] and 'go Chest' in texts[2]
    assert '|' not in texts[1]  # the description of the scene is cut
    whole, _ = heard(env, script, remember=lambda memory, turn, last: turn.text)
    assert '|' in whole[1]

def three_turns():
    import pandas as pd
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=0, t=[0, 1, 2], reward=[0., 1., 3.], n_tokens=[2, 1, 3],
        milestone=[.5, .5, 1.], invalid=[False, True, False], success=True)))
    return b.with_action(value=torch.tensor([.5, 9, .2, -.1, 9, 9]))

def test_era_whitening():
    "By token or by turn: the first turn changes its sign."
    by = {tokens: era_gae(three_turns(), tokens=tokens)[1][[0, 2, 3]] for tokens in (True, False)}
    torch.testing.assert_close(by[True], torch.tensor([.2713, 1.7576, -.7667]).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(by[False], torch.tensor([-.1178, 1.0537, -.9359]).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(era_gae(three_turns())[0][[0, 2, 3]], torch.tensor([3.8629, 3.9393, 3.]).double(),
        atol=1e-4, rtol=0)

def test_era_dense_reward():
    assert era_reward(three_turns()).tolist() == [1., -.5, 4.]
    assert era_reward(three_turns(), until=0).tolist() == [0., 0., 3.]

def test_era_priors():
    plain = Moments(house(), slip=0.)
    priors = [plain, Moments(Noted(house(), after, words=('|',)), remember=last_said, slip=0.),
        Moments(house(), slip=0., asks=lambda env, said: ('Chest are', 'Key')),
        Moments(house(), slip=0., asks=lambda env, said: (f'{said.split()[0]} are', said.split()[-1]))]
    shown = [(one.reset(5).observation, one.expert()) for one in priors]
    assert len(set(shown)) == 4 and shown[2][0] == f'{shown[0][0]} Chest are' and shown[1][1].endswith(shown[0][1])
    assert shown[3][1] == shown[0][1].split()[-1]

# ---- Mobile-Agent-E

def games(env, seeds):
    for seed in seeds:
        step, turns = env.reset(seed), []
        while not step.done:
            turns.append(SimpleNamespace(observation=step.observation, text=env.expert()))
            step = env.step(turns[-1].text)
        yield SimpleNamespace(turns=turns, success=step.info['success'])

MINED = deferred(lambda: mine_shortcuts(list(games(house(horizon=8), range(30)))))

def test_mobile_agent_e_plays_and_updates(tmp_path):
    run = updated(recipes.grpo, Shortcuts(Loud(size=2, closed=0, horizon=4), MINED), tmp_path)
    assert (run.episodes(1).turns.cost >= 1).all()

def test_mobile_agent_e_mines_successes():
    played = list(games(house(horizon=8), range(30)))
    assert mine_shortcuts(played) == MINED and 1 <= len(MINED) <= 4
    for run, needs in MINED.values():
        begun = [e for e in played if any(tuple(t.text for t in e.turns[i:i + len(run)]) == run
            for i in range(len(e.turns)))]
        assert len(begun) >= 3 and needs
    assert mine_shortcuts([SimpleNamespace(turns=e.turns, success=False) for e in played]) == {}

def test_mobile_agent_e_shortcut_is_one_turn():
    env, short = house(horizon=8), Shortcuts(house(horizon=8), MINED)
    for seed in range(60):
        step, steps, turns, cost = short.reset(seed), 0, 0, 0.
        while not step.done:
            step = short.step(short.expert())
            turns, cost = turns + 1, cost + step.info['cost']
        plain = env.reset(seed)
        while not plain.done: plain, steps = env.step(env.expert()), steps + 1
        assert (step.info['success'], cost) == (plain.info['success'], steps) and turns <= steps
        if turns < steps: break
    assert turns < steps and step.reward == plain.reward

def test_mobile_agent_e_precondition():
    "Where it fails the world refuses the name; unchecked, the run begins."
    shortcut = dict(m0=(('go north', 'go south'), frozenset({'nowhere'})))
    checked, free = Shortcuts(house(), shortcut), Shortcuts(house(), shortcut, checked=False)
    checked.reset(1), free.reset(1)
    refused = checked.step('do m0')
    assert refused.info['invalid'] and 'Nothing happens' in refused.observation
    assert free.run('do m0') == ('go north', 'go south') and checked.run('do m0') == ('do m0',)

def test_mobile_agent_e_blind():
    shortcut = dict(m0=(('open chest', 'go up', 'go up'), frozenset()))
    stops, blind = (Shortcuts(house(), shortcut, blind=blind) for blind in (False, True))
    costs = []
    for env in (stops, blind):
        env.reset(1)
        costs.append(env.step('do m0').info['cost'])
    assert costs == [1., 3.]
    assert stops.step('do m7').info['invalid']  # no such name

def test_mobile_agent_e_tips():
    "Written by the miner after an episode, read at the next one; switched off, nothing but the world is read."
    env = Shortcuts(house(horizon=8), MINED)
    policy = untrained(Tipped(env))
    def played(most):
        library = Library(golden=1, warm_up=0, least=1)
        world = Experienced(env, library, golden=most, warning=0)
        return [library.play(policy, world, [3], max_tokens=6, rollout=partial(play, sampler=Script(policy, *says)))[0]
            for says in (told, ['go up']*8)], library
    scout, told = env.clone(), []
    step = scout.reset(3)
    while not step.done:
        told.append(scout.expert())
        step = scout.step(told[-1])
    ((first, second), library), ((_, plain), _) = played(1), played(0)
    assert first.success and library.zone('golden') and any('do m' in tip.content for tip in library.tips) == any(
        'do m' in said for said in told)
    read = lambda game: policy.text(game.turns[0].context_ids)
    assert read(first) == read(plain) != read(second) and 'Tip' in read(second)
    assert second.turns[0].columns['tips'] == 1 and plain.turns[0].columns['tips'] == 0
