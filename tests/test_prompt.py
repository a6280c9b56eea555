"Instructions, populations, proposers and the endpoint: properties and faults that no page shows."
import json, os, random, threading, time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.env import HopSearch, KeyDoor
from agentlab.env.cue_door import CueDoor
from agentlab.episodes import Batch
from agentlab.policy.core import Policy, word_tokenizer
from agentlab.policy.tiny import tiny_model
from agentlab.prompt.endpoint import Endpoint
from agentlab.prompt.instruction import (Instructed, Instruction, Turns, any_view, grammar, play_instructed,
    read_instruction, render, render_english, warm_views)
from agentlab.prompt.population import Population, fronts, lenient, pareto_chances, strict, survivors
from agentlab.prompt.propose import ask_model, batch_plays, mine, mutate, plays_of

instructions = st.builds(lambda slots, facts, text: Instruction(slots | dict(facts=facts), text),
    st.deferred(lambda: st.fixed_dictionaries({name: st.sampled_from(values) for name, values in grammar.items()})),
    st.lists(st.tuples(*[st.text(min_size=1).filter(str.strip)]*2), max_size=3), st.none() | st.text())

@pytest.fixture(scope='module')
def policy():
    env = Instructed(CueDoor())
    tokenizer = word_tokenizer(env.vocabulary())
    return warm_views(Policy(tiny_model(len(tokenizer), 128, hidden=16, layers=1), tokenizer),
        Instructed(CueDoor(split='demo'), any_view), steps=25, episodes=16, pool=64)

@given(instructions)
@settings(max_examples=60, deadline=None)
def test_an_instruction_survives_json(instruction):
    again = read_instruction(instruction.json())
    assert again == instruction and hash(again) == hash(instruction) and again.json() == instruction.json()
    shown = Turns('now', (('a', 'b'),)*3, ('x',), 'goal')
    assert 'now' in render(instruction, shown) and 'now' in render_english(instruction, shown)
    assert render(instruction, shown).count('Before: a > b') >= instruction.slots['history']

def test_a_view_decides_what_the_policy_can_read(policy):
    "Logits of the third turn are equal for all cues without a history, and are not with one."
    def last_contexts(history):
        told = [dict(rule=['d1', 'd2', 'd3', 'd4'], cue=cue, noise=['ka', 'lo', 'mi']) for cue in ('red', 'blue')]
        found = []
        for task in told:
            env = Instructed(CueDoor(), Instruction(dict(history=history)))
            step = env.reset(0, dict(instruction=Instruction(dict(history=history)).json(), task=task))
            for _ in range(2): step = env.step('wait')
            found.append(policy.chat.first(step.observation))
        return found
    one, two = last_contexts(0)
    assert one == two
    one, two = last_contexts(1)
    assert one == two
    one, two = last_contexts(2)
    assert one != two

@pytest.mark.parametrize('env', [CueDoor(), KeyDoor()])
def test_log_probabilities_are_the_samplers(policy, env):
    "Ids go in as they were sampled; the trainer's log-probabilities are the sampler's."
    view = Instructed(env)
    if not isinstance(env, CueDoor):
        tokenizer = word_tokenizer(view.vocabulary())
        policy = Policy(tiny_model(len(tokenizer), 256, hidden=16, layers=1), tokenizer)
    shown = [Instruction(dict(history=h, legal=True, goal=h == 1, facts=[('key', 'go')])) for h in (0, 1, 2)]
    episodes = play_instructed(policy, view, [0, 1, 2], 3, instructions=shown, max_turns=5, max_tokens=4)
    batch = Batch.from_episodes(episodes)
    torch.testing.assert_close(policy.logprobs(batch)[0], batch.action('sampler_logp'), atol=1e-5, rtol=0)
    assert len(batch.rows) == len(batch.turns)
    assert [e.instruction for e in episodes] == [i.json() for i in shown for _ in range(3)]
    for e in episodes:
        for number, turn in enumerate(e.turns):
            assert turn.window == number and turn.context_ids == policy.chat.first(turn.observation)

def test_a_group_shares_instruction_and_question(policy):
    episodes = play_instructed(policy, Instructed(CueDoor()), [5, 6], 4,
        instructions=[Instruction(), Instruction(dict(history=2)).json()], max_tokens=4)
    for group in (0, 1):
        own = [e for e in episodes if e.group == group]
        assert len({e.instruction for e in own}) == 1 and len({e.turns[0].observation for e in own}) == 1
    again = play_instructed(policy, Instructed(CueDoor()), [5, 6], 4,
        instructions=[Instruction(), Instruction(dict(history=2)).json()], max_tokens=4)
    assert [t.ids for e in again for t in e.turns] == [t.ids for e in episodes for t in e.turns]
    with pytest.raises(ValueError, match='2 instructions for 3 seeds'):
        play_instructed(policy, Instructed(CueDoor()), [0, 1, 2], instructions=[Instruction()]*2)

def test_a_batch_tells_what_episodes_tell(policy):
    "Plays decoded from tables are those of the episodes, up to the spaces that a tokenizer sets."
    episodes = play_instructed(policy, Instructed(CueDoor()), range(6), 2,
        instructions=[Instruction(dict(history=i % 3, legal=i > 2)) for i in range(6)],
        max_tokens=4)
    squeeze = lambda play: (play.instruction, [tuple(''.join(x.split()) if isinstance(x, str) else x for x in turn)
        for turn in play.turns], play.success, play.truncated, play.group)
    assert [squeeze(p) for p in batch_plays(Batch.from_episodes(episodes),
        policy)] == [squeeze(p) for p in plays_of(episodes)]

@given(st.lists(st.lists(st.sampled_from([0., .5, 1.]), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_survivors_cover_every_front(rows):
    scores = torch.tensor(rows)
    kept = survivors(scores)
    assert fronts(scores)[kept].any(0).all()
    chances = pareto_chances(scores)
    assert chances.sum().item() == pytest.approx(1) and set(chances.nonzero()[:, 0].tolist()) == set(kept)

@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_rules_of_admission(scores, weights, room):
    scores, weights = torch.tensor(scores, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    chosen = lenient(scores, weights, room)
    assert len(chosen) == min(room, len(scores)) and all(w >= weights.min() for _, w in chosen)
    assert all(scores[i] >= weights.max() for i, _ in strict(scores, weights, room))

def test_a_population_goes_on_where_it_was():
    population, rng = Population([Instruction()]), torch.Generator().manual_seed(0)
    for step in range(60):
        for number in population.draw(4, rng): population.learn(number, random.Random(step).random())
        population.record(step)
        if step % 20 == 19:
            population.prune(step)
            population.admit(mutate([population.members[population.best].instruction], [], random.Random(step)),
                [.1, .2, .3, .4], [population.best]*4, step)
    again = Population([Instruction()]).restore(population.tensors())
    assert again.json() == population.json() and again.alive == population.alive and again.best == population.best
    assert all(m.gone < 0 or m.groups >= population.patience for m in population.members)

def test_mining_counts_groups_not_copies():
    "One task played a hundred times is one piece of evidence."
    from agentlab.prompt.propose import Play
    def play(group, cue, door, won):
        return Play(Instruction(), (('', cue, 'wait', False), ('', 'pick', door, False)), won, group=group)
    copies = [play(0, 'red', door, door == 'd1') for door in ('d1', 'd2')*50]
    assert mine(copies) == []
    spread = [play(g, 'red', door, door == 'd1') for g in range(5) for door in ('d1', 'd2')*2]
    assert {(f.after, f.do, f.won, f.lost,
        f.otherwise) for f in mine(spread)} == {('red', 'd1', 10, 0, 0.), ('pick', 'd1', 10, 0, 0.)}

class Handler(BaseHTTPRequestHandler):
    answer = (200, '', 0)
    def log_message(self, *_): pass
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        status, text, delay = type(self).answer
        time.sleep(delay)
        try:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())
        except OSError: pass

@pytest.mark.parametrize('answer, reason', [((500, 'sk-secret', 0), 'answered 500'),
    ((200, 'no JSON', 0), 'chat completion'), ((200, '', 1.5), 'within'),
    ((200, json.dumps(dict(choices=[dict(message=dict(content='{"instructions": []}'))])), 0), 'will not do')])
def test_the_reflector_falls_back_to_the_grammar(answer, reason, monkeypatch, capsys):
    pytest.importorskip('httpx')
    monkeypatch.setenv('AGENTLAB_TEST_KEY', 'sk-secret')
    httpd = ThreadingHTTPServer(('127.0.0.1', 0), type('Told', (Handler,), dict(answer=answer)))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        model, reasons = Endpoint(f'http://127.0.0.1:{httpd.server_port}/v1', 'm', key_name='AGENTLAB_TEST_KEY',
            timeout=.4, attempts=1), []
        found = ask_model([Instruction()], [], random.Random(0), model, on_failure=reasons.append)
    finally:
        httpd.shutdown()
        httpd.server_close()
    assert found == mutate([Instruction()], [], random.Random(0), 8)[:4]
    assert (len(reasons) == 1 and reason in reasons[0]
        and 'sk-secret' not in reasons[0] + repr(model) + ''.join(capsys.readouterr()))

def test_the_key_is_not_in_a_recipe():
    "A recipe writes its functions into run.json."
    from functools import partial
    from agentlab.recipe import plain
    os.environ['AGENTLAB_TEST_KEY'] = 'sk-secret'
    try:
        text = json.dumps(plain(dict(
            propose=partial(ask_model, model=Endpoint('http://localhost:1/v1', 'm', key_name='AGENTLAB_TEST_KEY')))))
    finally: del os.environ['AGENTLAB_TEST_KEY']
    assert 'sk-secret' not in text and 'Endpoint' in text

def test_gepa_finds_what_scores(monkeypatch):
    pytest.importorskip('gepa', reason='the gepa package is not installed')
    from agentlab.prompt.propose import with_gepa
    score = lambda instruction, tasks: [float(instruction.slots['legal'])*t for t in tasks]
    found = with_gepa(score, [1., 1., 1., 1.], calls=120)([Instruction()], [], random.Random(0))
    assert found[0].slots['legal']

def test_instructions_evolve_in_the_trainer_and_a_killed_run_goes_on(tmp_path):
    """Plan, play, credit, renew and test through the real trainer; stopped after three updates it gives the same
    rows and tests."""
    from agentlab.prompt import Inspo, play_instructed
    from agentlab.train import recipes, train
    env = Instructed(CueDoor())
    tokenizer = word_tokenizer(env.vocabulary())
    def policy():
        return warm_views(Policy(tiny_model(len(tokenizer), 128, hidden=32), tokenizer),
            Instructed(CueDoor(split='demo'), any_view), steps=10, episodes=8, pool=64)
    def run(folder, **how):
        memory = partial(Inspo, env=env, every=3, checks=4, recent=2, groups=2, max_tokens=4)
        recipe = recipes.grpo(name='inspo', rollout=play_instructed, test_rollout=play_instructed, memory=memory,
            steps=4, groups=2, group_size=2, max_tokens=4, test_tasks=4, checkpoint_every=2)
        return train(policy(), env, recipe, folder, progress=False, **how)
    whole, calls = run(tmp_path/'whole'), iter([False]*3 + [True])
    run(tmp_path/'parts', should_stop=lambda: next(calls))
    parts = run(tmp_path/'parts', resume=True)
    plain = lambda rows: [{k: v for k, v in row.items() if k != 'seconds'} for row in rows]
    assert plain(parts.rows()) == plain(whole.rows()) and parts.tests() == whole.tests()
    assert [row['checked'] > 0 for row in whole.rows()] == [False, False, True,
        False] and whole.rows()[-1]['instructions'] > 1
    assert (whole.info['facts']['recipe']['memory'].startswith('agentlab.prompt.inspo:Inspo(')
        and 'object at' not in str(whole.info))

def test_held_out_tasks_are_played_under_the_instruction_that_is_asked_for(policy):
    "A task of `Instructed.tasks` has an instruction of its own, which gives way; the inner task stays."
    from agentlab.train import evaluate
    env, asked = Instructed(CueDoor()), Instruction(dict(history=1, goal=True))
    told, inner = env.tasks('test', 6), CueDoor().tasks('test', 6)
    views = [[t.observation for t in e.turns] for tasks in (told, inner)
        for e in play_instructed(policy, env, range(6), tasks=tasks, instructions=asked, max_tokens=4)]
    assert views[:6] == views[6:] and all('Goal:' in seen for view in views for seen in view)
    assert 0 <= evaluate(policy, env, 6, rollout=play_instructed, instructions=asked, max_tokens=4) <= 1

def test_a_test_in_which_every_episode_breaks_is_no_success_rate(policy):
    from agentlab.train import evaluate
    class Broken(CueDoor):
        def turn(self, action): raise ConnectionError('the door is gone')
    with pytest.raises(RuntimeError, match='all 4 held-out episodes .*the door is gone'):
        evaluate(policy, Broken(), 4, max_tokens=4)

@pytest.mark.parametrize('world', [KeyDoor, HopSearch])
def test_instructions_evolve_in_other_worlds(world, tmp_path):
    """KeyDoor and HopSearch with instruction slots, through the real trainer: every group is played under the
    instruction that was drawn for it, and held-out tasks under the best one."""
    from agentlab.prompt.inspo import Inspo
    from agentlab.train import recipes, train
    env, drawn = Instructed(world()), Instructed(world(split='demo'), any_view)
    tokenizer = word_tokenizer(env.vocabulary())
    policy = warm_views(Policy(tiny_model(len(tokenizer), 512, hidden=16, layers=1), tokenizer), drawn, steps=6,
        episodes=8, pool=16)
    start = (Instruction(), Instruction(dict(history=2, goal=True)))
    recipe = recipes.grpo(name='inspo', steps=2, groups=3, group_size=2, minibatches=1, max_turns=4, max_tokens=6,
        test_tasks=3, rollout=play_instructed, test_rollout=play_instructed,
        memory=partial(Inspo, env=env, start=start, groups=3, every=1, recent=1, checks=2,
        max_tokens=6, max_turns=4))
    run = train(policy, env, recipe, tmp_path/'run', progress=False)
    for row in run.rows():
        assert (row['errors'] == 0 and row['episodes'] == 6 and row['instructions'] >= 2 and row['checked'] > 0
            and not row['skipped'])
        batch = run.episodes(row['step'])
        assert len(batch.rows) == len(batch.turns)  # a window for each turn
        text = batch.labels['instruction']
        for i, instruction in enumerate(batch.episodes.instruction.tolist()):
            slots = read_instruction(text[instruction]).slots
            own = (batch.rows.episode == i).nonzero()[:, 0].tolist()
            read = [policy.text(batch.tokens.id[(batch.tokens.row == r) & (batch.tokens.turn < 0)].tolist())
                for r in own]
            # further on stands what an untrained model says
            assert [('Goal' in view.split('Before')[0].split('Now')[0]) for view in read] == [slots['goal']]*len(own)
            for t, view in enumerate(read):
                # an untrained model says 'Before' itself now and then
                assert view.count('Before') >= min(slots['history'], t) and (slots['history'] or 'Before' not in view)
    assert len(run.tests()) == 2
