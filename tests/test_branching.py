"""Wherever games are forked: what a fork says it copied is what was sampled there, groups are full, and without
forks it is `play`."""
import contextlib, random, tempfile
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit.branches import copied, hard_branches, once
from agentlab.credit.group_baselines import grpo
from agentlab.env import Env, HopSearch, Isolated, KeyDoor, Step
from agentlab.episodes import Batch, Episode, Turn, derive
from agentlab.rollout import play
from agentlab.rollout.branching import aepo, aepo_budget, arpo, segment_entropy
from small import Paying, same_batch, sent_whole, small_policy  # noqa: F401 (a fixture)
from test_rollout import chat, nothing_left, reader, tokenizer, words

quick = settings(max_examples=60, deadline=None)

class Seeded:
    "Says anything that (seed, context) decide, as the real sampler does, and remembers what it was shown."
    def __init__(self): self.shown = {}
    def sample(self, contexts, max_tokens, temperature, top_p, stop, seeds):
        return [self.say(context, seed, max_tokens) for context, seed in zip(contexts, seeds)]
    def say(self, context, seed, most):
        chance = random.Random(derive(seed, len(context)))
        ids = chance.choices(tokenizer.convert_tokens_to_ids(words), k=chance.randint(1, most))
        if chance.random() < .7: ids[-1] = chat.end_id
        self.shown.setdefault(tuple(context), []).append(ids)
        return SimpleNamespace(ids=ids, logprobs=[-chance.random() for _ in ids],
            entropies=[2*chance.random() for _ in ids], finish='stop')

class Walk(Env):
    "Draws as it goes: who moves, what is paid, when it ends, whether it fails; copied as a whole by `clone`."
    def __init__(self, seats=('player',), most=6, faults=0.):
        self.seats, self.most, self.faults = tuple(seats), most, faults
    def reset(self, seed, task=None):
        self.random, self.left = random.Random(seed), self.most
        return self.answer()
    def step(self, action): return self.answer()
    def answer(self):
        if self.random.random() < self.faults:
            raise self.random.choice([ValueError('bad move'), KeyError('room'), MemoryError()])
        reward = {seat: self.random.randint(-4, 4)/4 for seat in self.seats if self.random.random() < .6}
        self.left -= 1 + (self.random.random() < .2)
        info = dict(state=(self.left,), columns=dict(luck=self.random.random()))
        return Step(self.random.choice(self.seats), ' '.join(self.random.choices(words, k=self.random.randint(0, 3))),
            reward, self.left < 0, info)

walks = st.builds(Walk, st.sampled_from([('player',), ('red', 'blue')]), st.sampled_from([9, 6, 4, 2, 0]),
    st.sampled_from([0., 0., .1]))
common = dict(env=walks, seeds=st.lists(st.integers(0, 10**6), max_size=3), group_size=st.sampled_from([6, 4, 2, 1]),
    max_turns=st.sampled_from([9, 5, 2]), seed=st.integers(0, 9))
tree_rules = st.tuples(st.deferred(lambda: st.sampled_from([arpo, aepo])), st.fixed_dictionaries(
    dict(beam=st.sampled_from([2, 3, 4, 1]), threshold=st.sampled_from([.5, .8, .2]),
    weight=st.sampled_from([0., .2, 5.]), initial=st.just(1), faithful=st.booleans())))

def grown(rollout, env, seeds, group_size, sampler=None, **how):
    return rollout(reader(tokenizer=tokenizer), env, seeds, group_size, sampler=sampler or Seeded(), max_tokens=3,
        **how)

def said(episodes):
    return [(e.group, e.game, e.seat, e.outcome, e.error, e.truncated,
        [(t.t, t.ids, t.logps, t.observation, t.state) for t in e.turns]) for e in episodes]

def forks(episodes): return [e for e in episodes if e.turns and e.turns[0].origin is not None]

# ---- origins

@quick
@given(rule=tree_rules, **common)
def test_a_copied_turn_is_the_turn_at_its_origin(rule, env, seeds, group_size, max_turns, seed):
    (rollout, options), sampler = rule, Seeded()
    episodes = grown(rollout, env, seeds, group_size, sampler, max_turns=max_turns, seed=seed, **options)
    for e in episodes:
        own = [turn.origin is None for turn in e.turns]
        assert own == sorted(own)  # first the copies, then its own
        context = []
        for j, turn in enumerate(e.turns):
            context += turn.context_ids
            # what was sampled there is what is trained on
            if turn.origin is None: assert turn.ids in sampler.shown[tuple(context)]
            else:
                parent = episodes[turn.origin[0]]
                first = parent.turns[turn.origin[1]]
                assert (first.origin is None and turn.origin[1] == j
                    and (parent.group, parent.seat) == (e.group, e.seat) and parent.game < e.game)
                assert (turn.ids, turn.logps, turn.entropies, turn.context_ids, turn.t, turn.text, turn.state) == (
                    first.ids, first.logps, first.entropies, first.context_ids, first.t, first.text, first.state)
            context += turn.ids
    batch = Batch.from_episodes(episodes)
    copy = copied(batch)
    assert int(copy.sum()) == sum(turn.origin is not None for e in episodes for turn in e.turns)
    at = [batch.tokens.id[batch.tokens.turn == i].tolist() for i in range(len(batch.turns))]
    for i in copy.nonzero()[:, 0].tolist(): assert at[i] == at[batch.turns.origin[i]]

def test_there_are_forks_of_forks():
    "Else the properties on this page would say little."
    for rollout in (arpo, aepo):
        for seats in (('player',), ('red', 'blue')):
            episodes = grown(rollout, Walk(seats, most=9), range(4), 6, initial=1)
            assert len(forks(episodes)) > 12
            assert any(len({turn.origin[0] for turn in e.turns if turn.origin is not None}) > 1
                for e in forks(episodes))

@quick
@given(rule=tree_rules, **common)
def test_groups_are_full_and_everybody_is_paid(rule, env, seeds, group_size, max_turns, seed):
    rollout, options = rule
    episodes = grown(rollout, env, seeds, group_size, max_turns=max_turns, seed=seed, **options)
    assert ([(e.group, e.game, e.seat) for e in episodes]
        == [(i//group_size, i, seat) for i in range(len(seeds)*group_size) for seat in env.seats])
    for game in range(len(seeds)*group_size):
        sides = [e for e in episodes if e.game == game]
        turns = sorted(turn.t for e in sides for turn in e.turns)
        assert turns == list(range(len(turns))) and len(turns) <= max_turns
    for e in episodes:
        if e.turns: assert sum(turn.reward for turn in e.turns) == e.outcome
    once_more = grown(rollout, env, seeds, group_size, max_turns=max_turns, seed=seed, **options)
    assert said(once_more) == said(episodes)

@quick
@given(rule=tree_rules, **common)
def test_a_game_goes_on_in_at_most_beam_ways_from_one_place(rule, env, seeds, group_size, max_turns, seed):
    (rollout, options), env.seats = rule, ('player',)
    episodes = grown(rollout, env, seeds, group_size, max_turns=max_turns, seed=seed, **options | dict(faithful=False))
    places = Counter([turn.origin for turn in e.turns if turn.origin is not None][-1] for e in forks(episodes))
    assert all(n < options['beam'] for n in places.values())
    for e in forks(episodes):  # a fork stands where its parent stood before it acted
        begin = next(j for j, turn in enumerate(e.turns) if turn.origin is None)
        parent = episodes[e.turns[begin - 1].origin[0]]
        assert (parent.turns[begin].context_ids, parent.turns[begin].state) == (e.turns[begin].context_ids,
            e.turns[begin].state)

@quick
@given(rule=tree_rules, **common)
def test_a_group_does_not_depend_on_the_others(rule, env, seeds, group_size, max_turns, seed):
    (rollout, options), how = rule, dict(max_turns=max_turns, seed=seed)
    options = options | dict(faithful=False)  # the release counts streaks over all groups
    whole = grown(rollout, env, seeds, group_size, **how, **options)
    for i, s in enumerate(seeds):
        assert said(grown(rollout, env, [s], group_size, groups=[i], **how,
            **options)) == said([e for e in whole if e.group == i])

def test_groups_draw_for_themselves():
    episodes = grown(arpo, Walk(most=9), [5]*8, 6, initial=2, weight=0.)
    patterns = {tuple(sum(turn.origin is not None for turn in e.turns) for e in episodes if e.group == group)
        for group in range(8)}
    assert len(patterns) > 1

# ---- without forks it is play

never = st.sampled_from([(arpo, dict(threshold=-.01, weight=0.)), (arpo, dict(beam=1)),
    (arpo, dict(beam=1, faithful=True)), (arpo, dict(initial=6)), (aepo, dict(threshold=1.01)),
    (aepo, dict(initial=6)),
    (aepo, dict(beam=1)), (aepo, dict(initial=2, threshold=1.01, weight=0., faithful=True)),
    (aepo, dict(threshold=1.01, faithful=True))])

@quick
@given(rule=never, **common | dict(group_size=st.just(6)))
def test_without_forks_it_is_play(rule, env, seeds, group_size, max_turns, seed):
    rollout, options = rule
    how = dict(max_turns=max_turns, seed=seed)
    assert said(grown(rollout, env, seeds, group_size, **how,
        **options)) == said(grown(play, env, seeds, group_size, **how))

@quick
@given(**common | dict(group_size=st.integers(2, 6)))
def test_the_first_look_is_game_0_and_sets_the_budget(env, seeds, group_size, max_turns, seed):
    how = dict(max_turns=max_turns, seed=seed)
    episodes, plain = grown(aepo, env, seeds, group_size, **how), grown(play, env, seeds, group_size, **how)
    for group in range(len(seeds)):
        games = [[e for e in episodes if e.game == group*group_size + m] for m in range(group_size)]
        assert said(games[0]) == said([e for e in plain if e.game == group*group_size])
        seen = [segment_entropy(turn.entropies)
            for turn in sorted((turn for e in games[0] for turn in e.turns), key=lambda turn: turn.t)]
        root, later = (seen or [0.])[0], seen[1:]
        begun = aepo_budget(root, sum(later)/len(later) if later else root, group_size)
        assert not any(forks(sides) for sides in games[:begun])

@given(st.floats(-50, 50), st.floats(-50, 50), st.integers(1, 64), st.booleans())
def test_budgets(root, tools, group_size, faithful):
    n = aepo_budget(root, tools, group_size, faithful=faithful)
    assert 1 <= n <= group_size
    assert (aepo_budget(root + 1, tools, group_size, faithful=faithful) >= n
        >= aepo_budget(root, tools + 1, group_size, faithful=faithful))

# ---- what is read

def strictly_distinct(episodes):
    "Tokens that have to be read once: the questions once per group, what a fork shares nowhere but at its parent."
    questions = {(e.group, e.seat): len(e.turns[0].context_ids) for e in episodes}
    shown = sum(len(turn.context_ids) for e in episodes for before, turn in zip(e.turns, e.turns[1:])
        if turn.origin is None and before.origin is None)
    return sum(questions.values()) + shown + sum(len(turn.ids) for e in episodes for turn in e.turns
        if turn.origin is None)

@pytest.mark.parametrize('rollout, options', [(arpo, {}), (arpo, dict(initial=1, beam=3)), (arpo, dict(faithful=True)),
    (aepo, {}), (aepo, dict(initial=2))])
@pytest.mark.parametrize('env', [KeyDoor(), HopSearch()], ids=lambda env: env.name)
def test_no_token_is_read_twice(env, rollout, options):
    policy = small_policy(env)
    sampler = policy.sampler()
    episodes = rollout(policy, env, range(3), 6, sampler=sampler, max_tokens=8, **options)
    assert len(forks(episodes)) >= 6
    read = sampler.counts['positions'] - sampler.counts['padding']
    assert read <= 1.05*strictly_distinct(episodes)
    batch = Batch.from_episodes(episodes)
    logp, entropy = policy.logprobs(batch)  # and the trainer, which reads every row whole, agrees
    assert ((logp - batch.action('sampler_logp')).abs().max() < 1e-4
        and (entropy - batch.action('entropy')).abs().max() < 1e-4)

# ---- faults and processes

def test_a_fault_in_a_parent_spares_its_fork():
    class Fragile(Walk):
        def clone(self):
            twin = super().clone()
            twin.sound = True
            return twin
        def step(self, action):
            if self.left == 2 and not getattr(self, 'forked', False): raise KeyError('broken')
            return super().step(action)
        def reseed(self, seed): self.random, self.forked = random.Random(seed), True  # only forks are reseeded
    episodes = grown(arpo, Fragile(most=9), [0, 1, 2], 4, threshold=1., initial=2)
    broken = [e.error for e in episodes]
    assert any(error == "KeyError: 'broken'" for error in broken) and any(error is None for error in broken)
    assert all(e.error is None for e in forks(episodes))

def test_what_a_fork_draws_is_its_own():
    class Shared(Walk):
        # as KeyDoor does: the generator itself is shared, so a fork that drew from it would disturb its parent
        def clone(self):
            twin = object.__new__(type(self))
            vars(twin).update(vars(self))
            return twin
    alone = grown(play, Shared(most=9), [3], 1)
    episodes = grown(arpo, Shared(most=9), [3], 2, initial=1, threshold=1.)
    assert said(episodes[:1]) == said(alone) and forks(episodes)

@pytest.mark.xdist_group('isolation')
def test_a_game_in_a_process_of_its_own_is_forked_too(sent_whole):
    policy, how = small_policy(), dict(seeds=[0], group_size=3, initial=1, threshold=1., max_tokens=3)
    with contextlib.closing(Isolated(Paying(), limit=30.)) as env:
        with nothing_left(): apart = arpo(policy, env, **how)
    assert len(forks(apart)) == 2 and all(e.error is None for e in apart)
    assert said(apart) == said(arpo(policy, Paying(), **how))

@pytest.mark.parametrize('rollout', [arpo, aepo])
def test_what_cannot_be_forked_is_refused_and_everything_is_closed(rollout):
    closed = []
    class Single(Walk):
        def clone(self): raise NotImplementedError('one of a kind')
        def close(self): closed.append(self)
    with pytest.raises(ValueError, match=r'cannot be forked .*one of a kind.*needs clone\(\)'):
        grown(rollout, lambda: Single(), [0, 1], 3, initial=1, threshold=1. if rollout is arpo else 0.)
    assert len(closed) == 6

@pytest.mark.parametrize('how, message',
    [(dict(initial=0), 'initial=0'), (dict(initial=5), 'initial=5'),
    (dict(beam=0), 'beam=0'), (dict(k=0), 'k=0'), (dict(baselines={}), 'faithful=True'),
    (dict(tasks=[1, 2]), '2 tasks for 1 seeds')])
def test_bad_input(how, message):
    for rollout in (arpo, aepo):
        with pytest.raises(ValueError, match=message): grown(rollout, Walk(), [0], 4, **how)

def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match='colour'): grown(arpo, Walk(), [0], 2, colour=1)

# ---- credit

@st.composite
def forked_groups(draw):
    "Tables of groups whose episodes share beginnings."
    episodes = []
    for group in range(draw(st.integers(1, 3))):
        first = len(episodes)
        for i in range(draw(st.integers(1, 6))):
            turns, parent = [], draw(st.integers(0, i - 1)) if i and draw(st.booleans()) else None
            if parent is not None:
                shared = episodes[first + parent].turns[:draw(st.integers(1, len(episodes[first + parent].turns)))]
                turns = [Turn(t.t, context_ids=[1], ids=t.ids, logps=t.logps, entropies=t.entropies,
                    origin=t.origin or (first + parent, j)) for j, t in enumerate(shared)]
            for _ in range(draw(st.integers(1, 3))):
                n = draw(st.integers(1, 3))
                turns.append(Turn(len(turns), context_ids=[1], ids=[2]*n, logps=[-1.]*n, entropies=[1.]*n))
            episodes.append(Episode(turns, group, len(episodes),
                outcome=draw(st.sampled_from([0., 0., 1., .3, float('nan')]))))
    return Batch.from_episodes(episodes)

@quick
@given(forked_groups())
def test_hard_is_the_mean_of_soft_over_the_copies(batch):
    soft, hard, known = grpo(batch), hard_branches(batch), ~batch.of_turn('outcome').isnan()
    origin, known = batch.turns.origin[batch.action_turn], batch.spread(known)
    for key in origin.unique():
        here = origin == key
        assert torch.allclose(hard[here], soft[here & known].mean() if (here & known).any()
            else torch.zeros(1, dtype=hard.dtype))
        # so is the gradient, where nothing is clipped
        if (here & known).equal(here): assert torch.allclose(hard[here].sum(), soft[here].sum())
    alone = batch.with_turns(origin=torch.arange(len(batch.turns)))
    assert torch.allclose(hard_branches(alone), grpo(alone))

@quick
@given(forked_groups())
def test_once_leaves_every_sampled_token_once(batch):
    counted = once(batch)
    weight, copy = counted.action('weight'), batch.spread(copied(batch))
    assert weight.tolist() == (~copy).float().tolist() and counted.tokens.weight[batch.tokens.turn < 0].eq(0).all()
    same_batch(once(counted), counted)
    assert hard_branches(batch, once=True)[copy].eq(0).all()
    # an episode votes once, with or without its copies
    assert torch.allclose(hard_branches(batch, once=True)[~copy], hard_branches(batch)[~copy])

@quick
@given(forked_groups())
def test_origins_outlive_a_file_and_a_join(batch):
    with tempfile.TemporaryDirectory() as folder: same_batch(Batch.load(batch.save(f'{folder}/batch.parquet')), batch)
    joined = Batch.concat([batch, batch])
    same_batch(joined.select(torch.arange(len(joined)) >= len(batch)), batch)
