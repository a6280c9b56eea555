"""RL-PLUS, RoRecomp, Agent-R, imitation and task selection against loops written from their descriptions; edges;
state that is put back."""
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agentlab.credit import grpo
from agentlab.episodes import Batch, Episode, Turn, derive
from agentlab.objective import clip
from agentlab.policy import tiny_policy
from agentlab.policy.core import Chat, word_tokenizer
from agentlab.replay.demonstrations import (DEMONSTRATION, Demonstrations, first_state, grpo_split, is_demonstration,
    mixture, over_target, own_probability, rl_plus, with_demonstration)
from agentlab.replay.recomposition import Recomposition, all_together, n_tokens, n_turns, priority, priority_only
from agentlab.replay.splice import (Imitation, agent_r, find_rescues, first_errors, imitation, purified, trained_only)
from agentlab.replay.tasks import Stages, TaskSelection, chances, draw, hardness, learnability, play_with_length
from agentlab.rollout.filters import CurationError
from later import deferred
from small import same_batch

quick = settings(max_examples=40, deadline=None)

def table(**columns): return Batch.from_turns(pd.DataFrame(columns))

def tokens(n, seed, demos=True):
    "n episodes of one or two tokens, every other one a demonstration: batch, logp, advantage."
    g = torch.Generator().manual_seed(seed)
    b = table(group=[i//4 for i in range(n)], episode=range(n), t=0, n_tokens=[1 + i % 2 for i in range(n)],
        source=['demonstration' if demos and i % 2 else 'policy' for i in range(n)])
    m = len(b.actions)
    draw = lambda: -4*torch.rand(m, generator=g, dtype=torch.float64)
    return b.with_action(old_logp=draw(), target_logp=draw()), draw(), torch.randn(m, generator=g, dtype=torch.float64)

# ---- RL-PLUS

def by_loop(b, logp, advantage, clipped, mode, most=math.inf):
    "The loss of every token, one after the other, from the description of the released one."
    losses = []
    for x, old, target, a, shown in zip(logp.tolist(), b.action('old_logp').tolist(), b.action('target_logp').tolist(),
                                        advantage.tolist(), is_demonstration(b).tolist()):
        p, q = math.exp(x), math.exp(old)
        if not shown:
            r = p/q
            losses.append(max(-a*r, -a*min(max(r, .8), 1.2)) if clipped else -a*r)
            continue
        ratio = dict(plus=2*p/(q + .5*(q + 1)), plain=p, target=p/(math.exp(target) + 1e-6))[mode]
        losses.append(-min(ratio, most)*a*(math.sqrt(1 - p) if mode == 'plus' else 1))
    return torch.tensor(losses, dtype=torch.float64)

@given(seed=st.integers(0, 10**6), mode=st.sampled_from(['plus', 'plain', 'target']), faithful=st.booleans(),
    most=st.sampled_from([math.inf, .3]))
@quick
def test_rl_plus_is_the_described_loss(seed, mode, faithful, most):
    b, logp, advantage = tokens(9, seed)
    how = dict(plus={}, plain=dict(ratio=own_probability, explore=0.), target=dict(ratio=over_target, explore=0.))[mode]
    torch.testing.assert_close(rl_plus(logp, b, advantage, faithful=faithful, most=most, **how),
        by_loop(b, logp, advantage, not faithful, mode, most))

@pytest.mark.parametrize('seed', range(5))
def test_rl_plus_gradient(seed):
    """Closed form on demonstrations; finite differences with the exploration factor held fixed; the clip's gradient
    elsewhere."""
    b, logp, advantage = tokens(21, seed)
    x = logp.clone().requires_grad_()
    found, = torch.autograd.grad(rl_plus(x, b, advantage).sum(), x)
    shown, p, old = is_demonstration(b), logp.exp(), b.action('old_logp').exp()
    torch.testing.assert_close(found[shown], (-p/(.75*old + .25)*advantage*(1 - p).sqrt())[shown])
    h, factor = 1e-6, advantage*(1 - p).sqrt()
    torch.testing.assert_close(found[shown], (-(mixture(logp + h, b) - mixture(logp - h, b))/(2*h)*factor)[shown],
        rtol=1e-6, atol=1e-8)
    on, = torch.autograd.grad(clip(x, b, advantage).sum(), x)
    assert torch.equal(found[~shown], on[~shown])

def test_rl_plus_hand():
    b = table(group=0, episode=[0], t=0, source='demonstration').with_action(old_logp=torch.tensor([.2]).double().log())
    loss = rl_plus(torch.tensor([.3]).double().log(), b, torch.ones(1).double())
    assert (loss.item() == pytest.approx(-.62750, abs=1e-5)
        and mixture(torch.tensor([.3]).double().log(), b).item() == pytest.approx(.75))

def test_rl_plus_edges():
    b, logp, advantage = tokens(8, 0, demos=False)
    assert torch.equal(rl_plus(logp, b, advantage), clip(logp, b, advantage))
    only = b.with_episodes(source=torch.full((8,), DEMONSTRATION))
    x = torch.cat([logp[:-1], torch.zeros(1).double()]).requires_grad_()  # the last token is certain
    slope, = torch.autograd.grad(rl_plus(x, only, advantage).sum(), x)
    assert slope.isfinite().all() and slope[-1] == 0
    assert len(rl_plus(logp[:0], b.select([]), advantage[:0])) == 0
    assert not rl_plus(logp, only, advantage, certain=0.).any()
    with pytest.raises(ValueError, match='old_logp is NaN'):
        rl_plus(logp, only.with_action(old_logp=logp*math.nan), advantage)
    for wrong in (dict(high=.3, faithful=True), dict(low=.1, faithful=True), dict(explore=-1.),
                  dict(least=2., most=1.)):
        with pytest.raises(ValueError): rl_plus(logp, b, advantage, **wrong)

def split_by_loop(groups, scale):
    "[(outcome, demonstration)] of each group -> advantages; the description of the release."
    found = []
    for group in groups:
        own = [x for x, shown in group if not shown and not math.isnan(x)]
        mean = sum(own)/len(own) if len(own) > 1 else 0.
        std = (sum((x - mean)**2 for x in own)/(len(own) - 1))**.5 if len(own) > 1 else 1.
        if len(own) > 1 and max(own) == min(own): std, mean = 1., own[0]
        found += [0. if math.isnan(x) else (x - mean)/(std + 1e-6 if scale else 1.) for x, _ in group]
    return torch.tensor(found, dtype=torch.float64)

members = st.lists(st.tuples(st.sampled_from([0., 1., .1, .5, math.nan]), st.booleans()), min_size=1, max_size=6)

@given(groups=st.lists(members, min_size=1, max_size=4), scale=st.sampled_from(['std', None]),
    shuffle=st.integers(0, 100))
@quick
def test_grpo_split(groups, scale, shuffle):
    keys = torch.randperm(50, generator=torch.Generator().manual_seed(shuffle))[:len(groups)].tolist()  # any integers
    rows = [dict(group=k, outcome=x, source='demonstration' if shown else 'policy') for k, group in zip(keys, groups)
        for x, shown in group]
    b = Batch.from_turns(pd.DataFrame(rows).assign(episode=range(len(rows)), t=0))
    torch.testing.assert_close(grpo_split(b, scale=scale), split_by_loop(groups, scale))

def demo_game(state, group=0, outcome=1., source='demonstration', game=0, length=2, seat='player'):
    nothing = [math.nan]*2 if source == 'demonstration' else [-1.]*2
    return Episode([Turn(t, context_ids=[1, 2], ids=[3, 4], logps=nothing, entropies=nothing, state=(state, t))
        for t in range(length)], group=group, game=game, outcome=outcome, source=source, seat=seat)

@given(played=st.lists(st.integers(0, 4), min_size=1, max_size=5), shelf=st.lists(st.integers(0, 6), max_size=6),
    replace_=st.booleans(), seed=st.integers(0, 99))
@quick
def test_one_demonstration_of_the_task_joins_each_group(played, shelf, replace_, seed):
    b = Batch.from_episodes([demo_game(task, group=10*g, source='policy', game=3*g + i) for g, task in enumerate(played)
        for i in range(3)])
    b = b.with_action(old_logp=b.action('sampler_logp')).with_episodes(extra=torch.ones(len(b)))
    demos = Batch.from_episodes([demo_game(task, outcome=float(i), length=3) for i, task in enumerate(shelf)])
    demos = demos.with_action(old_logp=torch.full((len(demos.actions),), -2.))
    both = with_demonstration(b, demos, replace=replace_, generator=torch.Generator().manual_seed(seed))
    shown = both.episodes.source == DEMONSTRATION
    for g, task in enumerate(played):
        mine = both.episodes.group == 10*g
        has = task in shelf
        assert int((mine & shown).sum()) == has and int(mine.sum()) == 3 + has*(not replace_)
        if has:
            assert (first_state(both)[mine & shown] == first_state(b)[3*g]
                and shelf[int(both.episodes.outcome[mine & shown])] == task)
    assert len(both.episodes.game.unique()) == len(both)
    assert (both.turns.origin < len(both.turns)).all() and set(both.episodes.columns) == set(b.episodes.columns)
    assert is_demonstration(both).sum() == 6*shown.sum()

def test_a_demonstration_for_each_seat():
    b = Batch.from_episodes([demo_game('a', source='policy', game=g, seat=seat) for g in range(2) for seat in 'xy'])
    both = with_demonstration(b, Batch.from_episodes([demo_game('a', seat='y')]))
    assert len(both) == 4 and (both.episodes.seat == b.episodes.seat[1]).sum() == 2
    assert with_demonstration(b, Batch.from_episodes([demo_game('z')])) is b
    assert with_demonstration(b, Batch.from_episodes([demo_game('a')]).select([])) is b

def test_demonstrations_join_with_the_policys_own_probabilities():
    from agentlab.policy.tiny import demonstrate
    from agentlab.rollout import play
    from small import Paying, small_policy
    house = Paying()
    policy = small_policy(house)
    b = Batch.from_episodes(play(policy, house, [0, 1], 2, max_tokens=3))
    b = b.with_action(old_logp=b.action('sampler_logp'))
    demos = Batch.from_episodes(demonstrate(house, policy.chat, [0, 1], noise=0.))
    one, two = (Demonstrations(policy, demos, seed=1).join(b, 3) for _ in range(2))
    same_batch(one, two)
    assert (one.episodes.source == DEMONSTRATION).sum() == 2 and len(one) == 4
    torch.testing.assert_close(one.action('old_logp').float(), policy.logprobs(one)[0], rtol=0, atol=1e-4)
    assert one.action('entropy').isfinite().all() and one.action('sampler_logp').isfinite().all()

# ---- RoRecomp

lengths = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), min_size=1, max_size=12)

def games(those):
    return Batch.from_turns(pd.DataFrame([dict(episode=i, group=g, t=t, success=won, reward=float(won and t == n - 1))
        for i, (g, n, won) in enumerate(those) for t in range(n)]))

@given(those=lengths, good=st.sampled_from([0., .25, .5, 1.]), bad=st.sampled_from([0., .25, .5, 1.]),
    whole=st.booleans())
@quick
def test_priority(those, good, bad, whole):
    b = games(those)
    found = priority(b, keep_correct=good, keep_incorrect=bad, **dict(by=all_together) if whole else {})
    expected = [False]*len(those)
    for group in ({0} if whole else {g for g, *_ in those}):
        for kind, share in ((True, good), (False, bad)):
            mine = [i for i, (g, _, won) in enumerate(those) if (whole or g == group) and won == kind]
            mine.sort(key=lambda i: those[i][1] if kind else -those[i][1])
            for i in mine[:math.ceil(share*len(mine) - 1e-9)]: expected[i] = True
    assert found.tolist() == expected

@given(those=lengths)
@quick
def test_priority_and_rest_are_everything(those):
    b = games(those)
    masked = priority_only(b)
    assert torch.equal(masked.tokens.weight + masked.tokens.rest,
        b.tokens.weight) and not (masked.tokens.weight*masked.tokens.rest).any()
    assert torch.equal(grpo(masked), grpo(b))
    assert torch.equal(n_tokens(b), n_turns(b))

def test_recomposition_of_the_description():
    b = games([(0, 3, True), (0, 9, True), (0, 4, False), (0, 8, False)])
    assert n_turns(b)[priority(b)].tolist() == [3, 8] and n_turns(b)[~priority(b)].tolist() == [9, 4]
    with pytest.raises(CurationError): priority_only(b, keep_correct=0., keep_incorrect=0.)

def recompose(replay, steps):
    "Steps of play by a fixed script: what each compensation batch held."
    given_back = []
    for step in steps:
        b = games([(g + 3*step, n, won) for g, n, won in ((0, 3, True), (0, 4, True), (0, 2, False), (0, 4, False),
            (1, 1, False), (1, 3, True))])
        b = b.with_episodes(step=torch.full((len(b),), step)).with_action(
            old_logp=torch.arange(len(b.actions)).double()*-.01 - step)
        b = priority_only(b)
        advantage = grpo(b)
        given_back += [(step, past.episodes.replay_number.tolist(), past.action('old_logp').tolist(), a.tolist())
            for past, a, _ in replay.updates(b, advantage, step)]
        replay.keep(b, advantage, step)
    return given_back

@pytest.mark.parametrize('disk', [False, True])
def test_recomposition_goes_on_where_it_was(tmp_path, disk):
    make = lambda: Recomposition(seed=5, comp_every=2, n=2, stale=4)
    whole, first, second = make(), make(), make()
    if disk: first.open(tmp_path, True)
    expected = recompose(whole, range(9))
    begun = recompose(first, range(4))
    kept = {name: x.clone() for name, x in first.tensors().items()}
    recompose(first, range(4, 6))  # after the checkpoint: a killed process had got further
    if disk: second.open(tmp_path, True)
    second.restore(kept)
    assert begun + recompose(second, range(4, 9)) == expected and len(expected) == 4
    # of earlier steps, with the log-probabilities of then
    for step, _, old, _ in expected: assert -math.floor(max(old) + 1e-9) <= step

def test_recomposition_gives_back_what_is_fresh():
    replay = Recomposition(comp_every=1, n=3, stale=1)
    recompose(replay, range(6))
    past, _, _ = next(iter(replay.updates(games([(0, 1, True)]), torch.zeros(1), 6)))
    assert past.episodes.step.min() >= 5 and (past.action('weight') == 1).all()

# ---- imitation and splices

tokenizer = deferred(lambda: word_tokenizer('at go a b c d e wait end ok .'.split()))
chat = deferred(lambda: Chat(tokenizer))

def walk(rooms, won, group, game):
    turns = []
    for t, (here, next) in enumerate(zip(rooms, [*rooms[1:], 'end'])):
        ids = chat.text_ids(f'go {next}') + [chat.end_id]
        turns.append(Turn(t, f'at {here}', f'go {next}', chat.next(f'at {here}', chat.end_id) if t
            else chat.first(f'at {here}'), ids, [-1.]*len(ids), [.5]*len(ids), state=here))
    return Episode(turns, group=group, game=game, outcome=float(won), success=won, final='at end')

walks = st.lists(st.tuples(st.integers(0, 1), st.lists(st.sampled_from('abcde'), min_size=1, max_size=5),
    st.booleans()), min_size=1, max_size=6)

@given(those=walks, parting=st.booleans())
@quick
def test_splices(those, parting):
    episodes = [walk(rooms, won, group, i) for i, (group, rooms, won) in enumerate(those)]
    b = Batch.from_episodes(episodes)
    error, expected = first_errors(b), []
    for i, bad in enumerate(episodes):
        winners = [e for e in episodes if e.group == bad.group and e.success]
        wrong = [k for k, t in enumerate(bad.turns) if any(t.state == u.state for e in winners for u in e.turns)
            and not any((t.state, t.text) == (u.state, u.text) for e in winners for u in e.turns)]
        assert error[i] == (wrong[0] if wrong else -1)
        if not wrong or (not parting and wrong[0] + 1 == len(bad.turns)): continue
        k, options = wrong[0], []
        for j, good in enumerate(episodes):
            if good.group != bad.group or not good.outcome > max(.5, bad.outcome): continue
            common = next((n for n, (t, u) in enumerate(zip(bad.turns, good.turns)) if t.text != u.text),
                min(len(bad.turns), len(good.turns)))
            places = [common] if parting else [n for n, u in enumerate(good.turns) if u.state == bad.turns[k + 1].state]
            options += [(len(good.turns) - n, j, n) for n in places if n < len(good.turns)]
        if options: expected.append([i, k, *min(options)[1:]])
    found = find_rescues(b, error, parting=parting).tolist()
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    rest = lambda row: len(episodes[row[2]].turns) - row[3]
    assert [rest(row) for row in found] == [rest(row) for row in expected]
    made = agent_r(episodes, chat, revisions=('wait',) if parting else (), faithful=parting)
    assert len(made) == len(expected) and len({e.game for e in episodes + made}) == len(episodes) + len(made)
    for e, (i, k, j, n) in zip(made, found):
        assert [t.columns['trained'] for t in e.turns] == [0.]*(k + 1) + [1.]*(len(e.turns) - k - 1)
        assert ([t.t for t in e.turns] == list(range(len(e.turns)))
            and len(e.turns) == k + 1 + parting + len(episodes[j].turns) - n)
        whole = chat.first(e.turns[0].observation)
        for m, t in enumerate(e.turns):
            whole = whole + (chat.next(t.observation, chat.end_id) if m else []) + chat.text_ids(t.text) + [chat.end_id]
        assert [x for t in e.turns for x in t.context_ids + t.ids] == whole
    if made:
        learned = trained_only(Batch.from_episodes(made))
        assert torch.equal(learned.action('weight') > 0, learned.spread(learned.turns.trained == 1))

def test_the_attempts_are_not_changed():
    episodes = [walk('abcd', True, 0, 0), walk('abeb', False, 0, 1), walk('aebcd', True, 0, 2)]
    before = [[(t.text, dict(t.columns), list(t.context_ids)) for t in e.turns] for e in episodes]
    assert len(agent_r(episodes, chat)) == 1
    assert before == [[(t.text, dict(t.columns), list(t.context_ids)) for t in e.turns] for e in episodes]
    assert agent_r([], chat) == []

def test_imitation():
    b = Batch.from_episodes([walk('abc', True, 0, 0)])
    x = torch.linspace(-3, -.1, len(b.actions), dtype=torch.float64).requires_grad_()
    weight = torch.linspace(0, 2, len(x))
    assert torch.equal(torch.autograd.grad(imitation(x, b, weight).sum(), x)[0], -weight.double())
    with pytest.raises(ValueError, match='negative weights'): imitation(x, b, -weight)
    with pytest.raises(ValueError, match='one per action token'): imitation(x, b, weight[1:])
    assert trained_only(b) is b

def test_imitation_goes_on_where_it_was(tmp_path):
    def run(replay, steps):
        found = []
        for step in steps:
            b = Batch.from_episodes([replace(walk('abc'[:1 + i % 3], i % 2 == 0, 0, i), step=step) for i in range(4)])
            found += [some.episodes.replay_number.tolist()
                for some, *_ in replay.updates(b, torch.zeros(len(b.actions)), step)]
            replay.keep(b, torch.zeros(len(b.actions)), step)
        return found
    make = lambda: Imitation(seed=2, select=lambda b: purified(b, repaired=False), n=2)
    whole, first, second = make(), make(), make()
    first.open(tmp_path, True)
    expected, begun = run(whole, range(6)), run(first, range(3))
    kept = {name: x.clone() for name, x in first.tensors().items()}
    run(first, range(3, 5))
    second.open(tmp_path, True)
    second.restore(kept)
    assert begun + run(second, range(3, 6)) == expected and len(expected) == 5
    assert len(second.buffer) == 12

def test_spliced_episodes_can_be_stored():
    replay = Imitation(select=None, n=4)
    made = Batch.from_episodes(agent_r([walk('abcd', True, 0, 0), walk('abeb', False, 0, 1), walk('aebcd', True, 0, 2)],
        chat))
    replay.add(made, 0)
    (some, weight, fields), = replay.updates(made, torch.zeros(3), 1)
    assert (len(some) == 1 and (some.action('weight') == 0).any() and (some.action('weight') > 0).any()
        and fields['objective'] is imitation)
    assert some.action('old_logp').isfinite().all() and len(weight) == len(some.actions)
    assert replay.keep(made, weight, 1) == dict(stored=1)

# ---- tasks

@given(wins=st.lists(st.floats(0, 50), min_size=1, max_size=6), lost=st.floats(0, 50),
    prior=st.sampled_from([.5, 1., 3.]))
@quick
def test_learnability_is_the_posteriors_mean(wins, lost, prior):
    w = torch.tensor(wins, dtype=torch.float64)
    losses = torch.full_like(w, lost)
    posterior = torch.distributions.Beta(w + prior, losses + prior)
    expected = posterior.mean - (posterior.variance + posterior.mean**2)  # E[p] - E[p^2]
    torch.testing.assert_close(learnability(w, losses, prior), expected)
    torch.testing.assert_close(hardness(w, losses, prior), 1 - posterior.mean)
    torch.testing.assert_close(learnability(w, losses, prior), learnability(losses, w, prior))

@given(score=st.lists(st.sampled_from([0., 1e-9, .1, .25, math.nan]), min_size=1, max_size=8),
    floor=st.sampled_from([0., .1, 1.]), n=st.integers(0, 20), seed=st.integers(0, 999))
@quick
def test_draws(score, floor, n, seed):
    chance = chances(torch.tensor(score), floor)
    assert chance.sum().item() == pytest.approx(1) and chance.min() >= floor/len(score) - 1e-12
    drawn = draw(chance, n, torch.Generator().manual_seed(seed))
    counts = torch.bincount(drawn, minlength=len(score))
    assert len(drawn) == n and counts.max() - counts.min() <= 1  # again only when all have been drawn
    assert torch.equal(drawn, draw(chance, n, torch.Generator().manual_seed(seed)))

def play_tasks(memory, steps, size=3):
    "Steps in which task k is won k times of 9, by a fixed script; one group of step 2 is lost to an error."
    planned = []
    for step in steps:
        planned.append(memory.plan(step)['group_args']['tasks'])
        n = memory.n
        won = [(task*size + i*7 + step) % 9 < task for task in planned[-1] for i in range(size)]
        b = table(group=[step*n + g for g in range(n) for _ in range(size)], episode=range(n*size), t=0, success=won)
        if step == 2: b = b.select(b.episodes.group != step*n + 1)
        read = memory.read(b, step)
        assert [memory.tasks[i] for i in read.episodes.task.tolist()] == [planned[-1][g - step*n]
            for g in b.episodes.group.tolist()]
    return planned

def test_task_selection_goes_on_where_it_was():
    make = lambda: TaskSelection(None, 3, tasks=range(10), n=4)
    whole, first, second = make(), make(), make()
    expected, begun = play_tasks(whole, range(8)), play_tasks(first, range(5))
    kept = first.tensors()
    play_tasks(first, range(5, 7))
    second.restore(kept)
    assert begun + play_tasks(second, range(5, 8)) == expected
    assert torch.equal(whole.wins, second.wins) and torch.equal(whole.losses, second.losses)
    assert whole.plan(8) == whole.plan(8) == second.plan(8)
    assert (make().numbers(0).tolist() != TaskSelection(None, 4, tasks=range(10), n=4).numbers(0).tolist()
        or make().numbers(1).tolist() != TaskSelection(None, 4, tasks=range(10), n=4).numbers(1).tolist())

def test_counts_are_what_was_seen():
    memory = TaskSelection(tasks=range(5), n=2, decay=.5)
    for step in range(3): play_tasks(memory, [step])
    assert (memory.wins + memory.losses).sum().item() == pytest.approx(6*.25 + 6*.5 + 3)  # the third step lost a group
    assert memory.learn({})['tasks'] == 1
    with pytest.raises(ValueError, match='n=2'): memory.read(table(group=[99], episode=[0], t=0), 0)
    with pytest.raises(ValueError, match='counted 5 tasks'): TaskSelection(tasks=range(4)).restore(memory.tensors())

@pytest.mark.parametrize('seed', range(5))
def test_selection_concentrates_and_nothing_starves(seed):
    rates, memory, visits = torch.linspace(0, 1, 20), TaskSelection(None, seed, tasks=range(20), n=4), torch.zeros(20)
    g = torch.Generator().manual_seed(seed)
    template = table(group=list(range(4))*8, episode=range(32), t=0, success=False)
    for step in range(150):
        task = memory.numbers(step)
        visits[task] += 1
        owner = template.episodes.group
        memory.read(template.with_episodes(group=step*4 + owner,
            success=torch.rand(32, generator=g) < rates[task][owner]), step)
    assert visits.min() >= 1 and visits[5:15].mean() > 1.5*torch.cat([visits[:3], visits[-3:]]).mean()

# ---- stages: in the spirit of CRAFT-GUI

def staged(memory, step, won, length=lambda task: 3. + task.double()):
    "A step of one game for each planned task, all won or all lost; its batch as `read` gives it."
    task = memory.numbers(step)
    b = Batch.from_turns(pd.DataFrame(dict(group=[step*memory.n + i for i in range(memory.n)], episode=range(memory.n),
        t=0, success=bool(won))))
    return memory.read(b.with_episodes(expert_turns=length(task)), step)

def test_stages_look_at_every_task_and_then_play_the_shortest():
    memory = Stages(count=12, n=4, games=4)
    for step in range(3): staged(memory, step, False)
    assert not memory.length.isnan().any() and memory.stage_of().tolist() == [0]*4 + [1]*4 + [2]*4
    assert {i for step in range(20) for i in memory.numbers(step).tolist()} == {0, 1, 2, 3}

def test_a_stage_ends_where_it_is_won_and_earlier_tasks_stay():
    "Switched off (enough=1, keep=0) nothing moves, or nothing stays."
    memory, stuck, forgets = (Stages(count=12, n=4, games=8, **how) for how in ({}, dict(enough=1.), dict(keep=0.)))
    for one in (memory, stuck, forgets):
        for step in range(9): staged(one, step, True)
    assert (memory.stage, stuck.stage, forgets.stage) == (2, 0, 2)  # the last one has no end
    assert memory.chances()[:8].sum().item() == pytest.approx(.2) and forgets.chances()[:8].sum() == 0
    assert stuck.chances()[:4].sum() == 1

def test_a_lost_stage_does_not_end_and_counts_anew():
    memory = Stages(count=12, n=4, games=8)
    for step in range(3): staged(memory, step, False)
    for step in range(3, 7): staged(memory, step, step == 3)
    assert (memory.stage, memory.played.item()) == (0, 0)

def test_stages_go_on_from_a_checkpoint_and_refuse_what_they_cannot_sort():
    memory, other = Stages(None, 5, count=12, n=4, games=4), Stages(None, 5, count=12, n=4, games=4)
    for step in range(5): staged(memory, step, True)
    other.restore(memory.tensors())
    assert (other.stage, other.numbers(5).tolist()) == (memory.stage, memory.numbers(5).tolist())
    assert memory.learn({})['stage'] == memory.stage > 0
    with pytest.raises(ValueError, match='stages=13'): Stages(count=12, stages=13)
    bare = Batch.from_turns(pd.DataFrame(dict(group=[24, 25], episode=range(2), t=0, success=False)))
    with pytest.raises(ValueError, match='play_with_length'): memory.read(bare, 6)

def test_lengths_are_those_of_the_expert():
    from agentlab.env import KeyDoor
    from agentlab.env.keydoor import shortest
    house = KeyDoor()
    games = play_with_length(tiny_policy(house, warm=False, progress=False), house, range(4), 2, numbers=[3, 5, 3, 7],
        max_tokens=4, max_turns=12)
    house.reset(derive('recurring', 5))
    lengths = {e.columns['expert_turns'] for e in games if e.columns['task_number'] == 5}
    assert lengths == {float(shortest(house.layout))}
    assert len(games) == 8 and all('expert_turns' in e.columns for e in games)

def test_craft_gui_pays_by_rules_and_a_judge():
    "A lost game earns a tenth of what its turns are judged to be worth; a won one this on top of 1."
    from agentlab.train import recipes
    reward = recipes.craft_gui().reward
    b = Batch.from_turns(pd.DataFrame(dict(group=0, episode=[0, 0, 1], t=[0, 1, 0], outcome=[1., 1., 0.],
        reward=[0., 1., 0.], success=[True, True, False], judged=[1., .5, .5])))
    assert reward(b).tolist() == pytest.approx([.1, 1.05, .05])
    assert reward(b.with_turns(judged=torch.zeros(3))).tolist() == [0., 1., 0.]
