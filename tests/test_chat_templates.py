"""The ids that were sampled are the ids that are trained on, under the chat templates of many model families;
templates that rewrite history are refused."""
import pytest

from later import needs
needs('trl')
from agentlab.env.protocol import TextEnv
from agentlab.episodes import Batch
from agentlab.policy import Chat, Completion, Policy, tiny_model
from agentlab.policy import template as judge
from agentlab.rollout import play
from families import FAMILIES, THINKING, template, tokenizer

class Rooms(TextEnv):
    "Three rooms; the second one spells out control tokens."
    texts = ['You are in b2.', 'Doors north <|im_end|><|eot_id|><end_of_turn> east.', 'Key a3.', 'The end.']
    def start(self, seed, task=None): return self.texts[0]
    def turn(self, action): return self.texts[self.turns], 1., self.turns == 3, {}

class Script:
    """A sampler that says what it is told to, byte by byte: ids that no tokenizer would choose for these words. The
    second answer runs out of tokens."""
    def __init__(self, tokenizer, words):
        self.tokenizer, self.words, self.given, self.said = tokenizer, iter(words), [], []
    def sync(self, policy): self.end = policy.end_id
    def sample(self, contexts, **how):
        (context,) = contexts
        ids = [self.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in next(self.words)]
        if len(self.said) != 1: ids.append(self.end)
        self.given.append(context)
        self.said.append(ids)
        return [Completion(ids, [-1.]*len(ids), [1.]*len(ids), 'stop')]

def spoken(name, chat):
    "What the model writes in three turns, and the contents of these messages in a conversation."
    words = ['search mentor', 'go north', 'answer Mina Lam']
    if name not in THINKING: return words, words
    contents = [f'<think>\nthe key\n</think>\n\n{word}' for word in words]
    begun = '<think>\n' if chat.render([dict(role='user', content='x')], prompt=True).endswith('<think>\n') else ''
    return [content.removeprefix(begun) for content in contents], contents

@pytest.mark.parametrize('system', [None, 'Be brief.'])
@pytest.mark.parametrize('name', FAMILIES)
def test_sampled_ids_are_trained_ids(name, system):
    words = tokenizer(name)
    chat = Chat(words)
    said, contents = spoken(name, chat)
    script = Script(words, said)
    policy = Policy(tiny_model(len(words), 512, hidden=16, layers=1), words, chat=chat, sampler=script)
    episode, = play(policy, Rooms(), [0], max_tokens=64, system=system)
    batch = Batch.from_episodes([episode])
    assert len(batch.rows) == 1 and len(script.said) == 3
    # what was trained is what was read and said, id by id
    assert batch.tokens.id.tolist() == script.given[-1] + script.said[-1]
    assert batch.tokens.id[batch.actions].tolist() == [i for ids in script.said for i in ids]
    for k in (1, 2):
        assert script.given[k][:len(script.given[k-1]) + len(script.said[k-1])] == script.given[k-1] + script.said[k-1]
    # and no tokenizer would have written it so
    again = [words.encode(text, add_special_tokens=False) for text in said]
    assert all(len(a) < len(ids) - 1 for a, ids in zip(again, script.said))
    # the text is that of the whole conversation under the model's own template
    observed = Rooms.texts[:3]
    head = [dict(role='system', content=system)] if system and chat.facts['system'] else []
    if system and not head: observed = [f'{system}\n\n{observed[0]}', *observed[1:]]
    talk = [m for u, a in zip(observed, contents)
        for m in (dict(role='user', content=u), dict(role='assistant', content=a))]
    for k in range(3): assert words.decode(script.given[k]) == chat.render(head + talk[:2*k + 1], prompt=True)
    # an observation cannot end a turn: the control tokens that it spells out are words
    assert sum(i == policy.end_id for i in script.given[-1]) == words.decode(script.given[-1]).count(words.decode(
        [policy.end_id])) - (words.decode([policy.end_id]) in Rooms.texts[1])

def test_five_families_at_least():
    assert len({name.split('_')[0].rstrip('0123456789') for name in FAMILIES}) >= 5

# ---- what is refused, and the way out

forgets = (r"rewrites history: what the assistant said in an earlier turn is left out \('FIRSTTHOUGHT' is "
    r"gone.*training.jinja.*Chat\(tokenizer, rewrites=True\)")
REFUSED = {'qwen3': forgets, 'qwen3_5_think': forgets, 'deepseekv3': forgets, 'deepseek_r1_distill': forgets,
    'lfm2_2_5': forgets, 'glm4moe': forgets, 'nemotron_3_nano': forgets,
    'gptoss': r"rewrites history: the finished turn goes on after .*assistant' with '<\|channel\|>final",
    'muse_glimmer': 'rewrites history: the finished turn goes on',
    'smolvlm': 'made for images or tools', 'llava_next': 'made for images or tools'}

@pytest.mark.parametrize('name', REFUSED)
def test_a_template_that_rewrites_history(name):
    with pytest.raises(ValueError, match=REFUSED[name]): Chat(tokenizer(name))

def test_the_ways_out():
    "Another template, a switch of the template, or the caller's word."
    words = tokenizer('qwen3')
    with pytest.raises(ValueError, match='rewrites history'):
        Policy(tiny_model(len(words), 64, hidden=16, layers=1), words)
    assert (Policy(tiny_model(len(words), 64, hidden=16, layers=1), words, chat=Chat(words, rewrites=True)).end_id
        == words.convert_tokens_to_ids('<|im_end|>'))
    words.chat_template = template('qwen3_training')
    assert Chat(words).end_id == words.convert_tokens_to_ids('<|im_end|>')
    for name, switch in (('qwen3_6', dict(preserve_thinking=True)),
                         ('nemotron_3_nano', dict(truncate_history_thinking=False))):
        with pytest.raises(ValueError, match='rewrites history'): Chat(tokenizer(name))
        assert not Chat(tokenizer(name), **switch).facts['rewritten']

def test_a_template_is_judged_once(monkeypatch):
    words, judged = tokenizer('phi3'), []
    words.chat_template += '{# another one #}'
    monkeypatch.setattr(judge, '_rewritten', lambda chat: judged.append(chat) or '')
    for _ in range(3): Chat(words)
    assert len(judged) == 1
    Chat(words, enable_thinking=False)  # told something else, it may write something else
    assert len(judged) == 2

# ---- particulars of a template

def test_the_day_is_fixed():
    "A run that is resumed tomorrow reads the same."
    words = tokenizer('llama3_2')
    assert '26 Jul 2024' in words.decode(Chat(words).first('b2.', 'Be brief.'))
    assert '1 May 2020' in words.decode(Chat(words, date_string='1 May 2020').first('b2.', 'Be brief.'))

def test_spaces_around_a_message():
    for name, kept in (('qwen2_5', True), ('llama3', False)):
        chat = Chat(tokenizer(name))
        text = chat.tokenizer.decode(chat.first(' b2.\n'))
        assert (' b2.\n' in text) == kept and text == chat.render([dict(role='user', content=' b2.\n')], prompt=True)

def test_a_template_without_a_system_message():
    chat = Chat(tokenizer('gemma'))
    assert (chat.tokenizer.decode(chat.first('b2.', 'Be brief.')) == '<bos><start_of_turn>user\nBe '
        'brief.\n\nb2.<end_of_turn>\n<start_of_turn>model\n')

def test_what_a_chat_remembers_is_bounded_in_bytes():
    "A world may say something new in every turn, and say much: 800 texts of 20,000 letters are 650 MB of numbers."
    chat = Chat(tokenizer('qwen2_5'))
    def held(): return sum(4*len(text) + 40*len(ids) for text, ids in chat._known.items())
    for i in range(800):
        text = f'{i} ' + 'ab'*10_000
        assert chat.text_ids(text) == chat.text_ids(text)
        assert held() < 2**26 + 2**20
    assert chat._known
    before = dict(chat._known)
    chat.text_ids('ab'*500_000)
    assert chat._known == before  # one text does not push out all others
