"""Play: every world can be played to its end, a seat sees its own side only, undo goes back exactly, faults end the
game and not the table, and the probabilities are the sampler's."""
import importlib.util, json, math, time
from random import Random
import pytest
import torch
from agentlab.env import (BesideExpert, BugWork, InjectBug, Isolated, KeyDoor, Kuhn, Planned, TextEnv, TicTacToe, envs,
    expert_player, games, load_env, random_player)
from agentlab.env.adapters import from_gymnasium
from agentlab.env.wrappers import Tagged
from agentlab.episodes import Batch
from agentlab.policy import Policy, tiny_model, warm_start, word_tokenizer
from agentlab.rollout import play, play_players
from agentlab.selfplay import Snapshot
from agentlab.selfplay.exploitability import action_logps, game_tree
from agentlab.view.playing import (ALL, LINES, MOST, NONE, Play, Words, called, chances, game_of, number_keys,
    own_seats, percent)
from agentlab.view.run_report import group_html
from test_view import ATTRIBUTES, TAGS, Reader
from view_data import HOSTILE

@pytest.fixture(autouse=True, scope='module')
def one_thread(): torch.set_num_threads(1)

WORLDS = [name for name in envs | games if name not in ('python_tool', 'bug_repair')
    or importlib.util.find_spec('pydantic_monty')]

def harmless(page):
    """Only our own tags, closed; no link, no script, no raw control character."""
    read = Reader(page)
    assert not read.crossed and not read.open
    assert {tag for tag, _ in read.tags} <= TAGS | {'section', 'small', 'i', 'em', 'b'}
    assert {name for _, name, _ in read.attributes} <= ATTRIBUTES | {'role', 'tabindex'}
    assert not any(name in ('href', 'src') or name.startswith('on') for _, name, _ in read.attributes)
    page.encode('utf-8')

def speaker(env, seed=0, context=2048):
    tokenizer = word_tokenizer(env.vocabulary() + ['.'])
    return Policy(tiny_model(len(tokenizer), context, hidden=16, layers=1, seed=seed), tokenizer,
        name=f'speaker {seed}')

def finished(table, draw, most=120):
    "Random legal moves by hand to the end; nonsense where none are listed."
    while not table.over and table.at < most: table.act(draw.choice(table.legal) if table.legal else 'xyzzy')
    return table

def story(table): return [(s.seat, s.observation, s.reward, s.done, s.info.get('state')) for s in table.steps]

# --- worlds

@pytest.mark.parametrize('name', WORLDS)
@pytest.mark.parametrize('hands', ['all', 'one'])
def test_every_world_is_played_to_its_end(name, hands):
    """By hand at all seats, or against random players: the record is whole, its rewards add up, the picture is
    harmless, and a step back and forth changes nothing."""
    env = load_env(name)
    others = {} if hands == 'all' else {seat: random_player if hasattr(env, 'moves') else (lambda env, draw: 'xyzzy')
        for seat in env.seats[1:]}
    table = finished(Play(env, others, seed=1), Random(name))
    assert table.over and table.game.error is None and table.message == ''
    for episode in table.episodes():
        assert math.isclose(episode.outcome, sum(t.reward for t in episode.turns), abs_tol=1e-9) or not episode.turns
        assert episode.source == ('opponent' if episode.seat in others and episode.turns else 'demonstration'
            if episode.turns else 'policy')
    batch = table.batch()
    assert len(batch.turns) == table.at and batch.action('sampler_logp').isnan().all()
    harmless(table.static())
    group_html(batch, torch.zeros(len(batch.actions)))
    json.dumps(table.state_of()).encode()
    before = story(table)
    table.undo()
    assert table.at < len(before) - 1 and story(table) == before[:table.at + 1]
    table.redo()
    assert story(table) == before and not table.message
    again = Play(env, others, seed=1)
    for said in table.moves:
        if said.kind == 'hand': again.act(said.text)
    assert story(again) == before

@pytest.mark.parametrize('name', list(games))
def test_a_policy_plays_every_game_as_the_rollout_does(name):
    """Watched to the end, a game is `play`'s: ids, log-probabilities, rewards, states."""
    env = load_env(name)
    policy = speaker(env)
    table = Play(env, policy, seat=(), seed=2, max_tokens=3).to_end()
    for mine, theirs in zip(table.game.episodes(), play(policy, env, [2], max_tokens=3)):
        assert (mine.seat, mine.outcome, mine.success, mine.truncated) == (theirs.seat, theirs.outcome, theirs.success,
            theirs.truncated)
        assert mine.turns == theirs.turns

def test_a_wrapper_and_a_function_that_makes_environments():
    assert finished(Play(Tagged(KeyDoor())), Random(0)).over
    assert finished(Play(lambda: KeyDoor(size=2)), Random(0), 300).over
    assert Play(KeyDoor).seats == ('player',)

class Numbers:
    "In the form of Gymnasium: guess which of three doors."
    action_space, render_mode, spec = type('Space', (), dict(n=3)), None, None
    def reset(self, *, seed=None, options=None):
        self.door, self.t = Random(seed).randrange(3), 0
        return 0, {}
    def step(self, action):
        self.t += 1
        return self.t, float(action == self.door), action == self.door, self.t > 5, {}

def test_borrowed_and_wrapped_worlds():
    """An adapter, every wrapper, a world that tries bugs, and one in a process of its own."""
    worlds = [from_gymnasium(Numbers(), words=['left', 'middle', 'right']), BesideExpert(KeyDoor()), Planned(KeyDoor())]
    if importlib.util.find_spec('pydantic_monty'): worlds += [InjectBug(), BugWork()]
    for env in worlds:
        table = finished(Play(env, seed=1), Random(2))
        assert table.over and not table.game.error and len(table.batch().turns) == table.at
        before = story(table)
        table.undo().redo()
        assert story(table) == before and not table.message

class Endless(TextEnv):
    "Never answers."
    def start(self, seed, task=None): return 'Say anything.'
    def turn(self, action): time.sleep(60)

def test_a_process_of_its_own_that_never_answers():
    table = Play(Isolated(Endless(), limit=.5)).act('hello')
    assert table.over and 'EnvTimeout' in table.game.error
    table.undo()
    assert not table.over and table.legal == []
    table.game.env.close()

def test_players_as_in_rollout():
    """One policy, one script and one snapshot: the game of `play_players`."""
    env = TicTacToe()
    policy = speaker(env)
    players = dict(x=Snapshot(policy, name='old'), o=random_player)
    table = Play(env, players, seat=(), seed=4, max_tokens=3).to_end()
    theirs = play_players(policy, env, [4], players=players, keep=True, max_tokens=3)
    assert [[(t.ids, t.text) for t in e.turns] for e in table.game.episodes()] == [[(t.ids, t.text) for t in e.turns]
        for e in theirs]
    assert [e.policy for e in table.episodes() if e.turns][0] == 'old'

# --- what is hidden

@pytest.mark.parametrize('name', [n for n in games])
@pytest.mark.parametrize('place', [0, 1])
def test_a_seat_sees_its_own_side(name, place):
    """Neither the picture nor the controls hold what another seat read or said, unless ours read the same."""
    env = load_env(name)
    seat = env.seats[place]
    table = finished(Play(env, {s: random_player for s in env.seats if s != seat}, seat=seat, seed=3), Random(place))
    for turn in range(table.at, -1, -1):
        table.goto(turn)
        assert {line.seat for line in table.history()} <= {seat}
        own = {s.observation for s in table.steps if s.seat == seat} | {m.text for m in table.moves if m.seat == seat}
        others = {line.text for line in table.switch(show_all=True).history() if line.seat != seat
            and len(line.text) > 3} - own
        page = table.switch(show_all=False).static(style=False, moves=False)
        assert not [text for text in others if text not in ' '.join(own) and text in page]

def test_kuhn_hides_the_card_and_the_study_switch_shows_it():
    for seed in range(6):
        table = Play(Kuhn(), dict(second=expert_player), seed=seed).act('bet')
        card = table.game.env.cards[1] if hasattr(table.game.env, 'cards') else None
        assert 'second :' not in table.static()
        if card: assert not any(card in line.text.split() for line in table.history() if line.kind == 'read')
        assert 'second :' in table.switch(show_all=True).static()

def test_hot_seat_shows_who_moves_and_a_hidden_policy_is_not_asked():
    table = Play(Kuhn(), seat=('first', 'second'))
    assert table.seen == ('first',)
    table.act('pass')
    assert table.seen == ('second',)
    env = Kuhn()
    watched = Play(env, speaker(env), seat='first')
    watched.mine = ('second',)
    with pytest.raises(ValueError, match='hidden from you'): watched.probabilities()
    watched.show_chances = True
    assert watched.odds() == [] and 'hidden' in watched.message

# --- back and forth

def test_any_walk_of_moves_undo_and_redo_is_a_straight_game():
    draw = Random(0)
    for seed in range(6):
        table = Play(TicTacToe(), dict(o=random_player), seed=seed)
        for _ in range(25):
            what = draw.choice('mmmur') if not table.over else 'u'
            table.act(draw.choice(table.legal)) if what == 'm' else table.undo() if what == 'u' else table.redo()
        straight = Play(TicTacToe(), dict(o=random_player), seed=seed)
        for said in table.moves[:table.at]:
            if said.seat == 'x': straight.act(said.text)
        assert story(straight) == story(table)

def test_undo_forgets_what_is_not_repeated():
    table = Play(TicTacToe(), seat=('x', 'o')).act('1').act('2')
    table.undo()
    assert (table.at, table.seat, len(table.moves)) == (1, 'o', 2)
    table.act('3')
    assert [m.text for m in table.moves] == ['1', '3']
    table.redo()
    assert 'nothing to repeat' in table.message
    table.undo()
    table.undo()
    table.undo()
    assert 'nothing to undo' in table.message and table.at == 0

# --- faults

class Odd(TextEnv):
    "Answers as it is told to."
    told = None
    def start(self, seed, task=None):
        if isinstance(task, Exception): raise task
        return task or 'begin'
    def turn(self, action): return self.told(action) if callable(self.told) else self.told

@pytest.mark.parametrize('told', [lambda a: 1/0, None, ('x',), (5, 0., False, {}),
    ('x', 'much', False, {}), ('x', 0., False, dict(state={1, 2})),
    lambda a: (_ for _ in ()).throw(SystemExit(3)), lambda a: 'x'*4],
    ids=['raises', 'none', 'short', 'number', 'words', 'set', 'exit', 'long'])
def test_a_broken_environment_ends_the_game_only(told):
    env = Odd()
    env.told = told
    table = Play(env)
    table.widget
    table.told(None, dict(do='say', text='go', at=0))
    assert table.over and table.game.error and 'error' in table.table.state['status'] and 'error' in table.picture.value
    harmless(table.static())
    table.told(None, dict(do='say', text='go', at=table.at))
    assert 'over' in table.message
    table.told(None, dict(do='undo'))
    assert not table.over
    assert table.episode().error is None and Batch.from_episodes([table.act('x').episode()]).labels['error']

@pytest.mark.parametrize('legal', [5, 'abc', [1, 'ok', 'ok'], None, {'a': 1}, [['ok']]])
def test_broken_lists_of_legal_texts(legal):
    env = Odd()
    env.told = ('x', 0., False, dict(legal=legal))
    assert Play(env).act('go').legal == (['ok'] if legal == [1, 'ok', 'ok'] else [])

def test_a_world_that_cannot_begin_or_be_copied():
    table = Play(Odd(), task=KeyError('nothing'))
    assert table.over and 'nothing' in table.game.error and table.history() == [] and table.episodes()[0].turns == []
    harmless(table.static())
    table.widget
    table.undo()
    table.act('x')
    table.let()
    class Stuck(Odd):
        def clone(self): raise NotImplementedError('no copies')
    assert 'no copies' in Play(Stuck()).game.error

def test_players_that_fail():
    for player, why in ((lambda env, draw: 1/0, 'ZeroDivisionError'), (lambda env, draw: None, 'no text')):
        table = Play(TicTacToe(), dict(o=player)).act('5')
        assert why in table.message and table.seat == 'o' and not table.over
        assert table.offered == [] and table.legal  # a hidden seat's legal texts are not shown
        table.act('1')
        assert table.seat == 'x' and not table.message
    env = TicTacToe()
    short = Play(env, speaker(env, context=16))
    assert 'leaves no room' in short.act('5').message or short.over  # the policy's context is full: you may move for it
    with pytest.raises(ValueError, match='another vocabulary'): Play(env, dict(x=speaker(env), o=speaker(KeyDoor())))

@pytest.mark.parametrize('text', HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_text(text):
    """Said by the person, the environment, as a legal move, as a state: visible, cut, harmless, and sent to the
    browser as plain text."""
    env = Odd()
    env.told = lambda action: (text, 1., False, dict(legal=[text, 'b'], state=text))
    for table in (Play(env, task=text), Play(env, speaker(KeyDoor()), task=text)):
        table.show_all = True
        table.widget
        table.act(text)
        harmless(table.static())
        sent = json.dumps(table.table.state, ensure_ascii=False).encode()
        assert len(sent) < 6_000 and len(table.static(style=False)) < 60_000
        for bad in ('\u202e', '\x1b', '\u200b', '\x00'): assert bad not in table.static() and bad.encode() not in sent
    long = Play(env)
    for _ in range(LINES + 5): long.act('a')
    if text == '\ud800': assert long.over and 'half a character' in long.game.error
    else: assert 'earlier lines are not drawn' in long.static()

# --- probabilities

@pytest.mark.parametrize('name', ['keydoor', 'clarify', 'hopsearch', 'bug_repair', 'tictactoe', 'negotiation', 'kuhn',
    'leduc'])
def test_probabilities_are_the_samplers(name):
    """What the sampler says has the log-probability that was shown before, token by token, and the legal texts hold
    at most the whole."""
    if name not in WORLDS: pytest.skip('needs pydantic-monty')
    env = load_env(name)
    policy = warm_start(speaker(env), env, steps=25, episodes=8, pool=64)  # so that it says whole texts at all
    for temperature in (1., .7):
        compared = 0
        for seed in range(3):
            table = Play(env, policy, seat=env.seats, seed=seed, temperature=temperature, max_tokens=24)
            if seed and not table.act(table.legal[-1]) or table.over: continue
            texts = {c.text: c for c in table.probabilities()}
            assert 0 <= sum(c.p for c in texts.values()) <= 1 + 1e-6 and not any(c.note for c in texts.values())
            said = policy.sampler().sample([table.game.side.context]*30, 24, temperature, stop=(policy.end_id,),
                seeds=list(range(30)))
            for one in said:
                if one.finish != 'stop': continue
                text = policy.text(one.ids)
                chance = texts.get(text) or table.probabilities([text])[0]
                if chance.note or chance.ids != one.ids: continue
                compared += 1
                assert chance.logps == pytest.approx(one.logprobs, abs=2e-5)
        assert compared

def test_probabilities_agree_with_the_game_tree():
    """`agentlab.selfplay.exploitability` computes the same numbers for a whole game."""
    env = Kuhn()
    policy = speaker(env)
    tree = game_tree(env)
    expected = action_logps(tree, policy)
    for task in env.deals():
        table = Play(env, policy, task=task)
        number = next(i for i, s in enumerate(tree.situations) if s.reads[0] == table.game.step.observation
            and len(s.reads) == 1)
        assert [c.logp for c in table.probabilities()] == pytest.approx(expected[number, :2].tolist(), abs=1e-5)

def test_empirical_frequency():
    """A uniform policy over V tokens: 4,000 draws of a one-word text, within four standard deviations of the
    probability shown."""
    env = TicTacToe()
    policy = speaker(env)
    table = Play(env, policy)
    chance = max(table.probabilities(), key=lambda c: c.p)
    said = policy.sampler().sample([table.game.side.context]*4000, 2, stop=(policy.end_id,), seeds=list(range(4000)))
    found = sum(one.ids == chance.ids for one in said)/4000
    assert abs(found - chance.p) < 4*math.sqrt(chance.p*(1 - chance.p)/4000) + 1e-3

def test_what_cannot_be_said():
    env = TicTacToe()
    policy = speaker(env)
    found = {c.text: c for c in chances(policy, policy.chat.first('x'), ['1', ' 1', 'banana', '1 '*30, ''],
        max_tokens=4)}
    assert found['1'].p > 0 and found[''].p > 0 and [found[t].p for t in (' 1', 'banana')] == [0, 0]
    assert 'same tokens' in found[' 1'].note and 'spell' in found['banana'].note and 'may say 4' in found['1 '*30].note
    assert 'no room' in chances(policy, [1]*policy.max_context, ['1'])[0].note
    with pytest.raises(ValueError, match='a script has no probabilities'):
        Play(env, dict(x=expert_player)).probabilities()
    with pytest.raises(ValueError, match='the game is over'): Play(env, policy).act('banana').probabilities()
    assert [percent(x) for x in (0., 1e-9, .25, .9999, 1.)] == ['0 %', '< 0.1 %', '25.0 %', '> 99.4 %', '100.0 %']

# --- records

def test_a_mixed_game_keeps_the_ids_that_were_sampled():
    env = KeyDoor()
    policy = speaker(env)
    table = Play(env, policy)
    table.let()
    table.act(table.legal[0])
    table.let()
    first, second, third = table.episode().turns
    assert (first.ids == table.moves[0].completion.ids and all(math.isfinite(x) for x in first.logps)
        and all(math.isnan(x) for x in second.logps))
    assert ([t.columns['by_hand'] for t in (first, second, third)] == [0., 1., 0.]
        and table.episode().source == 'demonstration' and table.episode().policy == 'speaker 0 + you')
    batch = table.batch()
    own = (batch.turns.by_hand == 0)[batch.action_turn]
    assert policy.logprobs(batch)[0][own].tolist() == pytest.approx(batch.action('sampler_logp')[own].tolist(),
        abs=2e-5)

@pytest.mark.parametrize('name', list(games))
def test_replay(name):
    """Through the record alone, out of a batch, and through the environment: the same outcomes, and back to the
    start."""
    env = load_env(name)
    policy = speaker(env)
    episodes = play_players(policy, env, [3], players=dict.fromkeys(env.seats, random_player), keep=True)
    batch = Batch.from_episodes(episodes)
    batch.labels['token'] = {i: policy.tokenizer.decode([i]) for i in batch.tokens.id.unique().tolist()}
    for film in (Play.replay(episodes), Play.replay(game_of(batch, 0)), Play.replay(episodes, env, seed=3),
                 Play.replay(episodes, env, seed=3, policy=policy)):
        while film.at < len(film.moves): film.redo()
        assert film.over and not film.message
        assert [(e.outcome, e.success) for e in film.game.episodes()] == [(pytest.approx(e.outcome), e.success)
            for e in episodes]
        harmless(film.static())
        film.goto(0)
        assert film.at == 0 and not film.over
    assert ([[t.ids for t in e.turns] for e in film.redo().goto(len(film.moves)).game.episodes()]
        == [[t.ids for t in e.turns] for e in episodes])

def test_replay_tells_of_another_seed_of_a_fault_and_of_several_games():
    policy = speaker(KeyDoor())
    episodes = play(policy, KeyDoor(), [5], max_tokens=2)
    assert 'something else than the record' in Play.replay(episodes, KeyDoor(), seed=6).redo().message
    env = Odd()
    env.told = lambda a: 1/0
    broken = Play(env).act('x').episodes()
    film = Play.replay(broken).redo()
    assert film.over and 'ZeroDivisionError' in film.game.error
    with pytest.raises(ValueError, match='one per seat'): Play.replay(episodes*2)
    empty = Play.replay(Play(KeyDoor()).episodes())
    assert empty.over and not empty.moves

# --- controls

def test_controls_and_messages():
    env = TicTacToe()
    table = Play(env, dict(x=speaker(env), o=expert_player), seat='x')
    table.widget
    def press(**content): table.told(None, dict(at=table.at) | content)
    assert [m['key'] for m in table.table.state['moves']] == list('123456789')
    press(do='move', i=4)
    assert table.moves[0].text == '5' and table.table.state['at'] == 2
    # the key 6 plays 6, wherever it stands
    assert [m['key'] for m in table.table.state['moves']] == [m['text'] for m in table.table.state['moves']]
    table.told(None, dict(do='say', text='1', at=0))
    assert table.at == 2  # too late
    press(do='chances', on=True)
    assert all('share' in m for m in table.table.state['moves'])
    press(do='all', on=True)
    assert 'all seats shown' in table.picture.value
    press(do='sit', seat=NONE)
    assert table.mine == ()
    press(do='sit', seat=ALL)
    assert table.mine == ('x', 'o')
    press(do='sit', seat='x')
    for content in (dict(do='move', i=99), dict(do='move'), dict(do='no'), {}, dict(do='sit', seat='q'),
                    dict(do='new', seed='x')):
        press(**content)
        assert table.message and not table.over
    press(do='end')
    assert table.over
    press(do='new', seed=-3)
    assert (table.seed, table.at) == (0, 0)
    assert (number_keys(['go', 'stay']) == ['1', '2'] and number_keys(['a']*12)[9:] == ['0', '', '']
        and number_keys([]) == [])

def test_many_legal_texts_are_cut():
    env = Odd()
    env.told = ('x', 0., False, dict(legal=[f'move {i}' for i in range(300)]))
    table = Play(env).act('go')
    assert (len(table.state_of()['moves']) == MOST and f'{300 - MOST} more' in table.state_of()['rest']
        and f'{300 - MOST} more' in table.static())

def test_names_and_seats():
    assert (own_seats(None, ('a', 'b'), {}) == ('a', 'b') and own_seats((), ('a', 'b'), {}) == ()
        and own_seats('b', ('a', 'b'), dict(a=1)) == ('b',))
    class Nameless:
        def __call__(self, env, draw): return 'x'
    assert [called(x) for x in (random_player, Nameless())] == ['random_player', 'Nameless']
    words = Words()
    assert words.text_ids('') == [] and words.decode(words.first('a b')) == '<reads> a b <says>'
