"""Views of a model with a real vocabulary: pieces of words, halves of letters, parts of a reply, long thoughts,
marks of the template, and text that attacks the page."""
import html, json, math, re
from functools import cache

import pytest
import torch

from agentlab.credit import grpo
from agentlab.episodes import PART_CODES, Batch, Episode
from agentlab.policy.text import control_ids, token_texts, with_token_text
from agentlab.train import recipes
from agentlab.view import game_of, group_html, report, side_by_side, turnscope, turnscope_html
from agentlab.view.entropy_widget import entropy_lab_html
from agentlab.view.reading import (Lexicon, joined, letters_shared, lexicon, parts_shown,
    read_pieces)
from agentlab.view.turnscope_layout import LONG, PARTS
from agentlab.view.turnscope_state import TOKENS
from later import deferred
from small import small_policy, train_small
from view_data import HOSTILE, played, turn, write_run

SENTENCES = ['the hall is dark and the door is shut', 'go north and take the key',
    'I think the number is low, so I guess high', '<think> </think> <tool_call>', 'print(1)\n    x = 2\n\n']
MARKS = '<|im_start|>', '<|im_end|>'

@cache
def bytewise():
    "A byte-level vocabulary with a chat template's marks, trained here on a few sentences."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=340, special_tokens=list(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=MARKS[1], additional_special_tokens=[MARKS[0]])

@cache
def pieced():
    "A vocabulary as sentencepiece writes it: a mark for the space in front, bytes where a letter is unknown."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = ['<unk>', '<s>', '</s>', *(f'<0x{b:02X}>' for b in range(256)), '▁the', '▁h', 'all', '▁', 't', 'h', 'e',
        'a', 'l']
    merges = [('▁', 't'), ('▁t', 'h'), ('▁th', 'e'), ('▁', 'h'), ('a', 'l'), ('al', 'l')]
    vocabulary = {w: i for i, w in enumerate([*words, '▁t', '▁th', 'al'])}
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=False)
    raw.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(' ', 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token='<s>', eos_token='</s>', unk_token='<unk>')

def encode(text): return bytewise()(text, add_special_tokens=False)['input_ids']

def plainly(text): return bytewise()(text, add_special_tokens=False, split_special_tokens=True)['input_ids']

START, END = (deferred(lambda mark=mark: encode(mark)[0]) for mark in MARKS)

def read(text): return [START, *plainly('user\n'), *plainly(text), END, *plainly('\n'), START, *plainly('assistant\n')]

def spoken(*parts, seen='The hall is dark.', **more):
    "A turn whose reply has these parts: (name, text); the last mark is the template's."
    ids = [(i, PART_CODES[name]) for name, text in parts for i in plainly(text)] + [(END, PART_CODES['markup'])]
    made = turn(0, read(seen), [i for i, _ in ids], **more)
    made.columns['codes'] = 0.
    return made, [code for _, code in ids]

def batch_of(*turns, parts=True):
    "One group with an episode for every turn."
    made = Batch.from_episodes([Episode([t], game=k, outcome=float(k % 2), success=bool(k % 2), final='ok')
        for k, (t, _) in enumerate(turns)])
    if parts: made = made.with_action(part=torch.tensor([code for _, codes in turns for code in codes]))
    return with_token_text(made, bytewise())

def text_of(page):
    "What a reader sees: without style, tags, and what is hidden until somebody asks."
    page = re.sub(r'<style>.*?</style>', '', page, flags=re.S)
    return html.unescape(re.sub(r'<[^>]+>', '', page))

ALL = (('thought', 'I think the door is shut.'), ('markup', '</think>'), ('call', 'guess high'), ('action', 'go north'),
    ('subgoal', 'the key'), ('switch', 'so'), ('other', 'and'))

# ---- the text of a token

@pytest.mark.parametrize('text', ['go to the hall', 'hello 日本 🤖!', '\n\n    x = 1\n', 'a\u0301 ﷽ \u202e', '7  7',
    ''.join(map(chr, range(32, 300)))])
def test_texts_of_bytes_join_to_what_was_written(text):
    ids = encode(text)
    texts = token_texts(bytewise(), ids)
    assert joined(texts[i] for i in ids) == text == bytewise().decode(ids)
    assert '\ufffd' not in ''.join(texts.values())

@pytest.mark.parametrize('text', ['the hall', 'hall 日', 'the\nhall'])
def test_texts_of_sentencepieces_join_to_what_was_written(text):
    ids = pieced()(text, add_special_tokens=False)['input_ids']
    texts = token_texts(pieced(), ids)
    assert joined(texts[i] for i in ids).removeprefix(' ') == text
    assert with_token_text(Batch.from_episodes([Episode([turn(0, ids, ids)])]), pieced()).labels['between'] == {0: ''}
    assert control_ids(pieced()) == {1, 2}  # not the mark for what is unknown

def test_whole_words_stay_as_they_were():
    "The tiny policy: what decode says of one id, and a space between two."
    tokenizer = small_policy().tokenizer
    ids = list(range(len(tokenizer)))
    assert token_texts(tokenizer, ids) == {i: tokenizer.decode([i]) for i in ids}
    batch = with_token_text(Batch.from_episodes([Episode([turn(0, ids, ids)])]), tokenizer)
    assert lexicon(batch).between == ' '
    assert {tokenizer.decode([i]) for i in batch.labels['control']} == {'<|end|>', '<|system|>', '<|user|>',
        '<|assistant|>'}

def test_an_id_that_the_tokenizer_lacks():
    assert token_texts(bytewise(), [10**6]) == {10**6: ''}

def test_labels_survive_a_file_and_an_old_file_opens(tmp_path):
    "Half letters too; a batch without the new labels shows everything, as before."
    batch = batch_of(spoken(('action', 'go 日')))
    kept = Batch.load(batch.save(tmp_path/'new.parquet'))
    assert kept.labels == batch.labels and any('\udc80' <= c <= '\udcff' for text in kept.labels['token'].values()
        for c in text)
    old = Batch.load(played(0, .5).save(tmp_path/'old.parquet'))
    assert lexicon(old).control == frozenset() and lexicon(old).between == ' '
    scope = turnscope(old, dict(grpo=grpo))
    assert scope.part('row')['controls'] == [False, 0] and 'al-switch"' not in turnscope_html(old, dict(grpo=grpo))
    assert 'go' in text_of(group_html(old, grpo(old)))

def test_words_that_were_likely_and_not_taken_have_texts():
    batch, extra = batch_of(spoken(('action', 'go'))), plainly('north')[0]
    batch = batch.with_action(top1_id=torch.full((len(batch.actions),), extra),
        top2_id=torch.full((len(batch.actions),), -1))
    assert extra in with_token_text(batch, bytewise()).labels['token']

# ---- pieces and words

def test_a_letter_of_three_tokens_stands_in_the_first():
    ids = plainly('日x')
    pieces = read_pieces(ids, Lexicon(token_texts(bytewise(), ids)))
    assert len(ids) > 2 and ''.join(p.text for p in pieces) == '日x' and [p.rest for p in pieces].count(True) >= 1
    assert pieces[0].begins and not any(p.begins for p in pieces[1:])

def test_a_letter_that_was_cut_is_an_escape():
    ids = plainly('日')[:-1]
    batch = batch_of((turn(0, read('x'), ids), [3]*len(ids)))
    page = group_html(batch, grpo(batch))
    assert r'\xe6' in page and '\ufffd' not in page
    page.encode()  # it can be written down

@pytest.mark.parametrize('texts', [['a', 'b'], ['\udce6', '\udc97', '\udca5'], ['x\udce6', 'y'],
    ['\udcf0\udc9f', '\udca4\udc96z', ''], ['', '\udcff'],
    ['日', '\udce6\udc97\udca5\udce6']])
def test_sharing_letters_loses_nothing(texts):
    shared = letters_shared(texts)
    assert len(shared) == len(texts) and ''.join(shared) == joined(texts)

def test_a_word_of_the_model_is_one_box():
    batch = batch_of(spoken(('action', 'unheard')), parts=False)
    page, ids = group_html(batch, grpo(batch)), plainly('unheard')
    assert len(ids) > 2 and len(re.findall(r'<span class="al-w[ "]', page)) == 1
    row = turnscope(batch, dict(grpo=grpo)).part('row')
    assert [place.startswith('g') for place in row['places']] == [False] + [True]*(len(ids) - 1)

def test_line_breaks_are_marked_and_break():
    batch = batch_of(spoken(('action', 'x = 2\ngo')))
    assert '↵' in group_html(batch, grpo(batch)) and 'al-br' in group_html(batch, grpo(batch))
    assert any('b' in place for place in turnscope(batch, dict(grpo=grpo)).part('row')['places'])

# ---- marks of the template

def test_control_tokens_come_with_the_batch_not_from_their_text():
    "What the template wrote is hidden; what the model or the environment spelled is shown, escaped."
    batch = batch_of(spoken(('action', f'go {MARKS[0]} now'), seen=f'a sign says {MARKS[1]}'))
    page = group_html(batch, grpo(batch))
    bare = text_of(re.sub(r'<span class="[^"]*al-control[^"]*".*?</span>(<i></i><small>.*?</small></span>)?', '', page,
        flags=re.S))
    assert f'a sign says {MARKS[1]}' in bare and 'user' not in bare and 'assistant' not in bare
    assert '<|im' not in re.sub('&lt;', '', page)
    scope = turnscope(batch, dict(grpo=grpo))
    bubble = scope.part('pane')['sides'][0]['bubbles'][0]
    assert ''.join(text for _, text in bubble['read']) == f'a sign says {MARKS[1]}'
    assert ''.join(text for *_, shown, _ in bubble['said'] for _, text in shown) == f'go {MARKS[0]} now'
    assert END not in scope.part('row')['ids'] and scope.part('row')['controls'] == [False, 1]

def test_the_switch_shows_them():
    batch = batch_of(spoken(('action', 'go')))
    scope = turnscope(batch, dict(grpo=grpo))
    scope.act(dict(do='show_controls'))
    row = scope.part('row')
    assert row['ids'][-1] == END and row['controls'] == [True, 1] and 'c' in row['places'][-1]
    assert MARKS[0] in ''.join(text for _, text in scope.part('pane')['sides'][0]['bubbles'][0]['read'])
    scope.choose_token(len(row['ids']) - 1)
    scope.act(dict(do='show_controls'))
    assert scope.token in scope.part('row')['ats']  # the chosen token is one that is drawn
    assert group_html(batch, grpo(batch)).count('class="al-switch"') == 1

def test_a_game_out_of_a_batch_has_the_texts_that_were_read():
    batch = batch_of(spoken(('action', f'go {MARKS[0]}'), seen='The hall.'), parts=False)
    [episode] = game_of(batch, 0)
    assert (episode.turns[0].observation, episode.turns[0].text) == ('The hall.', f'go {MARKS[0]}')

# ---- parts

def test_every_part_has_a_name_and_a_shape():
    batch = batch_of(spoken(*ALL), spoken(('action', 'go')))
    assert parts_shown(batch, lexicon(batch)) == (1, 2, 3, 4, 5, 6)
    page = group_html(batch, grpo(batch))
    for name, _ in ALL[:-1]: assert f'al-p{PART_CODES[name]}' in page
    # told without a colour
    for name in ('thought', 'call', 'action', 'subgoal', 'switch'): assert f'<b class="al-part">{name}</b>' in page
    scope = turnscope(batch, dict(grpo=grpo))
    scope.choose_turn(0)
    said = scope.part('pane')['sides'][0]['bubbles'][0]['said']
    assert [code for _, code, _, _ in said] == [PART_CODES[name] for name, _ in ALL]
    assert {name for name, *_ in said} == {'thought', '', 'call', 'action', 'subgoal', 'switch'}
    assert [name for _, name in scope.part('row')['legend']] == ['switch', 'subgoal', 'action', 'thought', 'call',
        'markup']

def test_where_all_is_action_nothing_is_marked():
    batch = batch_of(spoken(('action', 'go')), spoken(('action', 'wait')))
    assert parts_shown(batch, lexicon(batch)) == () and '<b class="al-part">' not in group_html(batch, grpo(batch))
    assert turnscope(batch, dict(grpo=grpo)).part('row')['legend'] == []

def test_a_long_thought_is_one_line():
    "Folded in the row, the conversation and the static page; the action behind it is there; one click or key opens it."
    long = 'I think. '*1000
    batch = batch_of(spoken(('thought', long), ('action', 'go north')))
    count = len(plainly(long))
    assert count > 3000
    scope = turnscope(batch, dict(grpo=grpo))
    row = scope.part('row')
    assert ([fold[1:3] for fold in row['folds']] == [[0, count]] and row['ids'] == plainly('go north')
        and row['total'] == count + len(row['ids']) + 1)
    assert scope.token == count and len(json.dumps(row)) < 20_000
    assert scope.part('pane')['sides'][0]['bubbles'][0]['said'][0][3] == count
    scope.act(dict(do='open_thoughts'))
    row = scope.part('row')
    assert len(row['ids']) <= TOKENS and row['folds'] == [] and scope.token in row['ats'] and row['earlier'] is not None
    scope.choose_token(0)
    seen = []
    while True:
        row = scope.part('row')
        seen += row['ats']
        if row['later'] is None: break
        scope.choose_token(row['later'])
    assert seen == list(range(count + len(plainly('go north'))))  # every token is on one page
    page = group_html(batch, grpo(batch), limit=200)
    assert f'{count:,} tokens' in page and 'go' in text_of(page) and len(page) < 300_000

def test_an_unsure_token_inside_of_a_thought_opens_it():
    made, codes = spoken(('thought', 'I think '*40), ('action', 'go'))
    made.entropies = [0.]*len(made.ids)
    made.entropies[5] = 3.
    scope = turnscope(batch_of((made, codes)), dict(grpo=grpo))
    scope.next_unsure()
    assert scope.token == 5 and scope.thoughts and 5 in scope.part('row')['ats']

def test_what_a_rule_put_inside_of_an_action_is_not_shown_as_said():
    "Context ids between two action tokens of one turn: the row holds the action tokens alone."
    made, codes = spoken(('action', 'go north'))
    batch = batch_of((made, codes), parts=False)
    at = int(batch.actions[1])
    forced = batch.with_tokens(turn=torch.where(torch.arange(len(batch.tokens)) == at, -1, batch.tokens.turn))
    scope = turnscope(forced, dict(grpo=grpo))
    scope.act(dict(do='show_controls'))
    assert scope.part('row')['ids'] == [*made.ids[:1],
        *made.ids[2:]] and scope.part('row')['total'] == len(made.ids) - 1
    assert 'The hall is dark.' in text_of(group_html(forced, grpo(forced)))

# ---- text that attacks, sizes

def test_hostile_text_in_every_part_and_on_every_page():
    names = list(PART_CODES)
    turns = [spoken(*[(names[(k + j) % len(names)], text[:3000])
        for j, text in enumerate(x.encode('utf-8', 'replace').decode() for x in HOSTILE) if text],
        seen=HOSTILE[k]) for k in range(2)]
    batch = batch_of(*turns)
    pages = [group_html(batch, grpo(batch)), turnscope_html(batch, dict(grpo=grpo)),
        side_by_side([('a', batch), ('b', batch)])]
    for page in pages:
        assert (not re.search(r'<(script|img|iframe|b>out)', page) and 'onerror="' not in page and '\x1b' not in page
            and '\u202e' not in page)
        page.encode()
    scope = turnscope(batch, dict(grpo=grpo))
    for name in PARTS: json.dumps(scope.part(name), allow_nan=False).encode()

def test_a_thought_of_a_hundred_thousand_characters_is_cut():
    batch = batch_of(spoken(('thought', 'think '*17_000), ('action', 'go')))
    scope = turnscope(batch, dict(grpo=grpo))
    sizes = {name: len(json.dumps(scope.part(name))) for name in PARTS}
    assert sizes['pane'] < 4*LONG and sizes['row'] < 20_000
    assert 'characters cut' in json.dumps(scope.part('pane'))
    page = side_by_side([('a', batch), ('b', batch)])
    assert len(page) < 60_000 and 'characters cut' in page
    assert len(group_html(batch, grpo(batch), limit=500)) < 600_000

# ---- the entropy lab

def test_the_entropy_lab_joins_words_and_hides_marks():
    batch = batch_of(spoken(('thought', 'unheard'), ('action', 'go north')), spoken(('action', 'go')))
    page = entropy_lab_html({0: batch, 1: batch})
    assert 'al-el-g' in page and 'al-control' in page and 'class="al-switch"' in page and 'thought' in text_of(page)

# ---- before and after

def test_a_run_keeps_held_out_games_and_shows_them(tmp_path):
    run = train_small(tmp_path/'run', steps=3, test_every=2, test_tasks=1)
    assert run.tested() == [0, 2, 3] and [row['step'] for row in run.tests()] == [0, 2, 3]
    for step, row in zip(run.tested(), run.tests()):
        batch = run.tests_episodes(step)
        assert (len(batch) == 1 and float(batch.episodes.success[0]) == row['test_greedy']
            and batch.labels['between'] == {0: ' '})
    page = report(run.folder).read_text()
    assert 'id="said"' in page and 'before the first update' in page and 'after 3 updates' in page

def test_tests_of_later_updates_go_when_a_run_is_rewound(tmp_path):
    from agentlab.train.runs import rewind
    run = train_small(tmp_path/'run', steps=3, test_every=1, test_tasks=1)
    assert run.tested() == [0, 1, 2, 3]
    rewind(run, 2)
    assert run.tested() == [0, 1, 2] == [row['step'] for row in run.tests()]
    rewind(run, 0)
    assert run.tested() == run.tests() == []

def test_damaged_tests_never_block(tmp_path):
    run = train_small(tmp_path/'run', steps=2, test_every=1, test_tasks=1)
    (run.folder/'tests'/'step_000002.parquet').write_bytes(b'no')
    assert 'after 1 updates' in side_by_side(run)  # the latest that can be read
    for step in (0, 1): (run.folder/'tests'/f'step_{step:06d}.parquet').write_bytes(b'no')
    with pytest.raises(ValueError, match='two are needed'): side_by_side(run)
    assert 'two are needed' in report(run.folder).read_text()

def test_a_run_without_tests_has_no_such_section(tmp_path):
    assert 'id="said"' not in report(write_run(tmp_path/'run')).read_text()

@pytest.mark.parametrize('swap', [False, True])
def test_both_sides_say_what_was_said(swap):
    """Texts, endings and parts of both; a task that ends differently first; the first observation once where both
    read the same."""
    one = batch_of(spoken(('thought', 'I think low'), ('action', 'guess low'), seen='Between 0 and 15.'))
    two = batch_of(spoken(('action', 'guess high'), seen='Between 0 and 15.', reward=1.))
    pages = side_by_side([('told', two), ('trained', one)] if swap else [('told', one), ('trained', two)])
    text = text_of(pages)
    for words in ('I think low', 'guess low', 'guess high', 'thought', 'told', 'trained'): assert words in text
    assert text.count('Between 0 and 15.') == 1 and '<|im' not in text
    assert (text.index('guess low') < text.index('guess high')) != swap

# ---- what a step computed

def test_a_run_keeps_what_a_step_computed(tmp_path):
    "Trainer, reference and advantage of every token, where there are any; TurnScope shows them."
    run = train_small(tmp_path/'run', steps=2, kl_coef=.1, recompute_old=True)
    for step in run.steps():
        batch = run.episodes(step)
        assert {'old_logp', 'ref_logp', 'advantage'} <= {*batch.tokens.columns}
        assert (batch.action('old_logp') - batch.action('sampler_logp')).abs().max() < 1e-4
    # the reference is where it began
    assert (run.episodes(0).action('ref_logp') - run.episodes(0).action('old_logp')).abs().max() < 1e-4
    assert (run.episodes(1).action('ref_logp') - run.episodes(1).action('old_logp')).abs().max() > 1e-4
    scope = turnscope(run)
    lacking = {key: missing for key, _, missing in scope.part('menu')['modes']}
    assert lacking['difference'] == lacking['kl'] == [] and lacking['ratio'] == ['new_logp']
    # the recipe's own comes first, what was recorded is offered
    assert scope.first == 'gigpo' and 'recorded' in dict(scope.part('menu')['estimators'])
    assert {'old_logp', 'ref_logp', 'difference', 'kl'} <= {*scope.part('row')['columns']}

def drop_first(batch): return batch.select(torch.arange(len(batch)) > 0)

def test_what_a_filter_dropped_is_unknown(tmp_path):
    run = train_small(tmp_path/'run', curate=drop_first)
    batch = run.episodes(0)
    first = batch.turns.episode[batch.action_turn] == 0
    assert batch.action('old_logp')[first].isnan().all() and batch.action('old_logp')[~first].isfinite().all()
    turnscope(run).part('row')

def test_a_skipped_step_has_the_columns_too(tmp_path):
    "Steps of one run can be put together."
    run = train_small(tmp_path/'run', steps=2, schedule=lambda step: dict(reward=lambda b: b.turns.reward*math.nan)
        if step else {})
    assert run.rows()[1]['skipped'] and run.episodes(1).action('advantage').isnan().all()
    assert len(Batch.concat([run.episodes(0), run.episodes(1)])) == 8

@pytest.mark.parametrize('recipe', ['success_replay', 'ppo', 'arpo'])
def test_columns_of_replay_critic_and_branches_are_those_of_the_token(tmp_path, recipe):
    "Whatever joined or was copied: the trainer's number of a token is the sampler's."
    run = train_small(tmp_path/'run', make=getattr(recipes, recipe), steps=2, groups=2, group_size=4)
    for step in run.steps():
        batch = run.episodes(step)
        known = batch.action('old_logp').isfinite()
        assert known.any() and (batch.action('old_logp') - batch.action('sampler_logp'))[known].abs().max() < 1e-4

# ---- the real model

@pytest.mark.lm
def test_games_of_smollm2_can_be_read(smollm2):
    "What it read and said stands on the page as text, without a mark of its template, in whole letters."
    from agentlab.env import GuessNumber
    from agentlab.rollout import play
    episodes = play(smollm2, GuessNumber(), [0, 1], max_turns=2, max_tokens=12, seed=3)
    batch = with_token_text(Batch.from_episodes(episodes), smollm2.tokenizer)
    for i, e in enumerate(episodes):
        for t, was in zip(e.turns, game_of(batch, i)[0].turns):
            assert (smollm2.tokenizer.decode(t.ids, skip_special_tokens=True).strip()
                == was.text.replace('\udce2', '').strip() or '\ufffd' in smollm2.tokenizer.decode(t.ids))
            assert was.observation.endswith(t.observation.strip())
    page = text_of(re.sub(r'<span class="[^"]*al-control[^"]*".*?</span>', '', turnscope_html(batch, dict(grpo=grpo)),
        flags=re.S))
    assert '<|im_' not in page and '\ufffd' not in page

@pytest.mark.lm
@pytest.mark.parametrize('text', ['guess  7', '\n\n7', 'def f(x):\n    return x + 10\n', 'hello 日本 🤖'])
def test_texts_of_smollm2_join(smollm2, text):
    ids = smollm2.tokenizer.encode(text, add_special_tokens=False)
    assert joined(token_texts(smollm2.tokenizer, ids).values() if len({*ids}) == len(ids)
        else [token_texts(smollm2.tokenizer, ids)[i] for i in ids]) == text
