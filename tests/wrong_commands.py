"""Command lines that cannot work, and what each must be told: the argument, its value, what to do.
`test_wrong_commands.py` tries some, `make attack` all.

A line is (what to type, words that the one paragraph must hold). The folder that it is typed in is made by `furnish`.
"""
import json
from pathlib import Path

MODULES = dict(
    world='''
from agentlab.env import KeyDoor

class World(KeyDoor):
    "A house of four rooms."
    name = 'world'
    def __init__(self): super().__init__(size=2, horizon=4, closed=0)

class Other(World):
    "Another one."
    name = 'other'

class Mute:
    "Has no reset."

class Lame:
    "Has no step."
    def reset(self, seed, task=None): return None

class Demanding(World):
    def __init__(self, size): super().__init__()

class Torn(World):
    def __init__(self): raise RuntimeError('the roof is \\x1b[31mopen')

class Exits(World):
    def __init__(self): raise SystemExit(0)

number = 7
nothing = None

def plain(**changes):
    from agentlab.train.recipes import grpo
    return grpo(**dict(name='plain', checkpoint_every=1, max_tokens=3) | changes)

def word(**changes): return 'grpo'
def none(**changes): return None
def empty(): return plain()
def breaks(**changes): raise KeyError('no such thing')
def endless(**changes): return endless()
''',
    torn_syntax='def f(:\n', torn_import='import nothing_of_this_name\n', torn_name='1/0\n',
    torn_exit='raise SystemExit(3)\n', torn_deep='def f(): return f()\nf()\n',
    torn_bytes='\x00')

def furnish(home: Path, trained: Path):
    "A user's folder: modules, a run, and files that are no runs. `trained` is the folder of a finished run."
    import shutil
    for name, text in MODULES.items(): (home/f'{name}.py').write_text(text)
    (home/'taken').write_text('a file')
    (home/'empty').mkdir()
    (home/'text.jinja').write_text('{{ messages }')
    (home/'letters.bin').write_bytes(bytes(range(256)))
    runs = dict(listed='[]', number='7', torn='{"schema_version": 1,', newer='{"schema_version": 99}',
        factless='{"schema_version": 1}', odd='{"schema_version": 1, "facts": []}',
        half='{"schema_version": 1, "facts": {"recipe": {}, "env": {}}}', bytes='\\x00')
    for name, text in runs.items():
        (home/'bad'/name).mkdir(parents=True)
        (home/'bad'/name/'run.json').write_text(text)
    (home/'bad'/'surrogate').mkdir()
    (home/'bad'/'surrogate'/'run.json').write_bytes(b'{"schema_version": 1, "facts": "\xff"}')
    shutil.copytree(trained, home/'runs'/'one')
    shutil.copytree(trained, home/'runs'/'unlogged')
    (home/'runs'/'unlogged'/'metrics.jsonl').unlink()
    (home/'model').mkdir()
    (home/'model'/'config.json').write_text('{"model_type": "nobody"}')
    (home/'model2').mkdir()
    (home/'model2'/'config.json').write_text('{')
    (home/'dump.jsonl').write_text(json.dumps(dict(input='p', output='o', score=1.)) + '\n')

WORLD = '--env world:World --recipe world:plain --model untrained --groups 2 --group-size 2 --test-tasks 0'
BAD_NUMBERS = dict(steps=('0', '-3', '1.5', 'x', 'nan', '99999999999999999999999'),
    seed=('-1', '1.5', 'x', '100000000000000000000000000', 'nan'), lr=('-1', 'nan', 'inf', 'x', '1e400'),
    groups=('-1', '1.5', 'x'),
    group_size=('1', '-2', 'x'), max_tokens=('-5', '1000000', 'x'), max_context=('-1', '100000000', 'x'),
    lora=('-2', 'x', '1000000'), temperature=('-1', 'nan', 'inf', '1e-320', 'x'), test_tasks=('-1', 'x'))

LONGEST = 20  # seconds until an answer

def option(name): return '--' + name.replace('_', '-')

def lines() -> list:
    "All of them: (command line, words of the answer)."
    found = [(f'train {WORLD} {option(name)} {value}', [name.replace('_', '-') if value in ('x', '1.5')
        or (value == 'nan' and name in ('steps', 'seed')) else name])
        for name, values in BAD_NUMBERS.items() for value in values]
    found += [(f'play --env world:World --model untrained {text}', words) for text, words in [
        ('--seed -1', ['seed=-1']), ('--seed 100000000000000000000000000', ['seed=1000']), ('--seed x', ['seed']),
        ('--temperature -1', ['temperature=-1']), ('--temperature nan', ['temperature=nan']),
        ('--temperature 1e-320', ['temperature=']), ('--temperature inf', ['temperature=inf']),
        ('--format nosuch', ["format='nosuch'", 'plain, thinking, calls']), ('--limit -1', ['limit=-1']),
        ('--limit nan --isolate', ['limit=nan']), ('--limit x', ['limit'])]]
    found += [(f'demo {text}', words) for text, words in [
        ('--seed -1 --out d1', ['seed=-1']), ('--steps -4 --out d2', ['steps=-4']),
        ('--model nosuch --out d3', ['nosuch']), ('--out taken', ["out='taken'"]), ('--out runs/one', ['runs/one']),
        ('--steps x', ['steps']),
        ('--model model --out d4', ['nobody']), ('--model empty --out d5', ['empty'])]]
    found += [(f'prime {text}', words) for text, words in [
        ('--env nosuch', ["env='nosuch'"]), ('--env world:Mute', ['reset and step']),
        ('--model nosuch --out p1', ['nosuch']), ('--out taken', ["out='taken'"]), ('--out empty', ["out='empty'"]),
        ('--steps 0 --out p2', ['steps=0']), ('--steps x', ['steps']),
        ('--episodes 0 --out p3', ['episodes=0']), ('--episodes -1 --out p4', ['episodes=-1']),
        ('--lr 0 --out p5', ['lr=0']), ('--lr nan --out p6', ['lr=nan']), ('--noise 2 --out p7', ['noise=2']),
        ('--noise -1 --out p8', ['noise=-1']), ('--noise nan --out p9', ['noise=nan']),
        ('--seed -1 --out p10', ['seed=-1']), ('--test-tasks -1 --out p11', ['test_tasks=-1']),
        ('--format nosuch --out p12', ["format='nosuch'"]), ('--format thinking --out p13', ['thinking']),
        ('--lora -7 --out p14', ['lora=-7']), ('--model tiny --out p15', ['tiny'])]]
    found += [(f'train --test-tasks 0 {text}', words) for text, words in [
        ('--env nosuch', ["env='nosuch'", 'keydoor']), ("--env ''", ['env']), ('--env :World', ["env=':World'"]),
        ('--env world:', ["env='world:'"]), ('--env world', ["env='world'"]), ('--env world:Nobody', ["'Nobody'"]),
        ('--env world:Mute', ['reset and step']),
        ('--env world:Lame', ['reset and step']), ('--env world:Demanding', ['world:Demanding', 'size']),
        ('--env world:Torn', ['world:Torn', 'the roof is']), ('--env world:Exits', ['world:Exits']),
        ('--env world:number', ['world:number']), ('--env world:nothing', ['world:nothing']),
        ('--env torn_syntax:World', ['torn_syntax', 'SyntaxError']),
        ('--env torn_import:World', ['nothing_of_this_name']),
        ('--env torn_name:World', ['torn_name', 'ZeroDivisionError']), ('--env torn_exit:World', ['torn_exit']),
        ('--env torn_deep:World', ['torn_deep', 'RecursionError']),
        ('--env torn_bytes:World', ['torn_bytes']), ('--env nowhere:World', ["no module 'nowhere'"]),
        ('--env ../world:World', ['../world']), ('--env world.World:World', ['world.World']),
        ('--env wor\x1bld:World', ['wor\\x1bld']),
        ('--recipe nosuch', ["recipe='nosuch'", 'grpo']), ("--recipe ''", ['recipe']),
        ('--recipe :plain', ["recipe=':plain'"]), ('--recipe world:', ["recipe='world:'"]),
        ('--recipe world:nobody', ["recipe='world:nobody'"]), ('--recipe world:number', ["recipe='world:number'"]),
        ('--recipe world:nothing', ["recipe='world:nothing'"]),
        ('--recipe world:word', ["recipe='world:word'", 'Recipe']),
        ('--recipe world:none', ["recipe='world:none'", 'Recipe']), ('--recipe world:empty', ["recipe='world:empty'"]),
        ('--recipe world:breaks', ["recipe='world:breaks'", 'KeyError']),
        ('--recipe world:endless', ["recipe='world:endless'", 'RecursionError']),
        ('--recipe torn_syntax:f', ['torn_syntax', 'SyntaxError']),
        ('--recipe torn_import:f', ['nothing_of_this_name']),
        ('--recipe torn_name:f', ['torn_name', 'ZeroDivisionError']), ('--recipe torn_exit:f', ['torn_exit']),
        ('--recipe nowhere:f', ['nowhere']), ('--recipe world:World', ["recipe='world:World'"])]]
    found += [(f'train --env world:World --recipe world:plain --groups 2 --group-size 2 --test-tasks 0 {text}', words)
        for text, words in [
        ('--model nosuch', ['nosuch']), ('--model empty', ['empty', 'config.json']), ('--model taken', ['taken']),
        ("--model ''", ['model']), ('--model model', ['nobody']), ('--model model2', ['model2']),
        ('--model bad/listed', ['bad/listed']), ('--model owner/name/more', ['owner/name/more']),
        ('--model untrained --template text.jinja', ['template']), ('--model tiny --template nosuch', ['template']),
        ('--model smollm2 --template nosuch', ["template='nosuch'"]),
        ('--model smollm2 --template text.jinja', ['text.jinja']),
        ('--model smollm2 --template letters.bin', ['letters.bin']),
        ('--model tiny --qlora', ['--qlora']), ('--model untrained --format nosuch', ["format='nosuch'"]),
        ('--model untrained --vllm nosuch', ["vllm='nosuch'"]),
        ('--model untrained --vllm http://127.0.0.1:9', ['127.0.0.1:9']),
        ('--model untrained --vllm ftp://x', ['ftp://x']),
        ('--model untrained --out taken', ["out='taken'"]), ('--model untrained --out taken/below', ['taken']),
        ('--model untrained --out runs/one', ['runs/one', '--resume']),
        ('--model untrained --out bad/torn --resume', ['bad/torn', 'run.json']),
        ('--model untrained --out bad/listed --resume', ['bad/listed']),
        ('--model untrained --out bad/factless --resume', ['bad/factless']),
        ('--model untrained --out bad/newer --resume', ['99']),
        ('--model untrained --out bad/odd --resume', ['bad/odd']),
        ('--model untrained --limit -1', ['limit=-1']), ('--model untrained --isolate --limit inf', ['limit=inf']),
        ('--model untrained --nosuch', ['--nosuch']), ('--model untrained extra', ['extra']),
        ('--model untrained --seed', ['--seed'])]]
    found += [('train --env world:Other --recipe world:plain --resume --out runs/one --groups 2 --group-size 2 '
        '--test-tasks 0', ['runs/one', 'world:World', 'world:Other']),
        ('train --env world:World --recipe grpo --resume --out runs/one --groups 2 --group-size 2 --test-tasks 0',
        ['runs/one', 'plain']),
        ('train --env tictactoe --recipe ui_s1 --out runs/ui', ['ui_s1', 'expert']),
        ('train --env world:World --recipe ui_s1 --test-tasks 100000000 --out runs/ui2',
        ['test_tasks=100000000']),
        ('train --env rock_paper_scissors --recipe tips --out runs/tips --test-tasks 0', ['tips']),
        ('train --env kuhn --recipe igpo --test-tasks 0 --out runs/igpo', ['igpo'])]
    found += [(f'{command} {text}', words) for command in ('report', 'view', 'stop') for text, words in [
        ('nosuch', ['nosuch']), ('taken', ['taken']), ('empty', ['empty']), ('bad/torn', ['bad/torn']),
        ('bad/listed', ['bad/listed']), ('bad/number', ['bad/number']), ('bad/factless', ['bad/factless']),
        ('bad/odd', ['bad/odd']), ('bad/surrogate', ['bad/surrogate']),
        ('bad/newer', ['99']), ("''", ['']), ('', ['required'])]]
    found += [(f'report {text}', words)
        for text, words in [('runs/one --out taken/page.html', ['taken']), ('runs/one --out empty', ['empty']),
        ('runs/one extra', ['extra'])]]
    found += [(f'view {text}', words) for text, words in [
        ('runs/one --reward nosuch', ["reward='nosuch'"]), ('dump.jsonl --reward nosuch', ["reward='nosuch'", 'score']),
        ('dump.jsonl --reward score=x', ['reward', 'score=x']), ('dump.jsonl --reward score=', ['reward', 'score=']),
        ('dump.jsonl --reward =1', ['reward', '=1']),
        ('dump.jsonl --reward score=1,other=2', ['other']), ('dump.jsonl --reward score=nan', ['reward', 'nan']),
        ('dump.jsonl --out taken/page.html', ['taken']), ('dump.jsonl --out empty', ['empty']),
        ('letters.bin', ['letters.bin']), ('world.py', ['world.py']), ('runs/one nosuch', ['nosuch'])]]
    found += [(f'push {text}', words) for text, words in [
        ('nosuch me/x', ['nosuch']), ('runs/one wise', ["repo='wise'", 'owner/name']), ('runs/one', ['required']),
        ('runs/one me/x/y --card-only', ["repo='me/x/y'"]), ('empty me/x --card-only', ['empty']),
        ('taken me/x', ['taken'])]]
    found += [(f'train {WORLD} --out runs/told --report-to {text}', words) for text, words in [
        ('nosuch', ["no tracker 'nosuch'"]), ('tensorboard,,', ['report_to', 'tensorboard'])]]
    found += [(f'bench {text}', words) for text, words in [
        ('--recipes nosuch --out b1', ['nosuch']), ('--envs nosuch --out b2', ['nosuch']),
        ('--seeds 0 --out b3', ['seeds=0']), ('--seeds -1 --out b4', ['seeds=-1']),
        ('--seeds x', ['seeds']), ('--steps 0 --out b5', ['steps=0']), ('--recipes grpo,grpo --out b6', ['twice']),
        ('--recipes , --out b7', ['recipes']),
        ('--envs world:Mute --out b8', ['reset and step']), ('--recipes world:word --out b9', ['Recipe']),
        ('--model nosuch --out b10', ['nosuch']), ('--out taken', ['taken'])]]
    found += [(f'fit {text}', words) for text, words in [
        ('--model nosuch/nobody/here', ['nosuch/nobody/here']), ('--model empty', ['empty']),
        ('--model model2', ['model2']), ('--model model', ['model']), ('--gpu nosuch', ['gpu', 'nosuch']),
        ('--gpu=-5GB --model runs/one/policy', ['gpu', '-5GB']), ('--gpu 0 --model runs/one/policy', ['gpu']),
        ('--length 0 --model runs/one/policy', ['length=0']), ('--length -1 --model runs/one/policy', ['length=-1']),
        ('--length x', ['length']), ('--groups 0 --model runs/one/policy', ['groups=0']),
        ('--group-size -1 --model runs/one/policy', ['group_size=-1'])]]
    found += [(f'tiny {text}', words) for text, words in [
        ('--env nosuch', ['nosuch']), ('--env world:World --out taken', ["out='taken'"]),
        ('--env world:Mute', ['reset and step']), ('--env world:World --out taken/deep', ['taken'])]]
    found += [('trian', ["no command 'trian'"]), ('--nosuch', ['--nosuch']), ('train --help-me', ['--help-me']),
        ('envs extra', ['extra']), ('recipes --nosuch', ['--nosuch']), ('runs taken', ['taken']),
        ('clean extra', ['extra']), ('doctor extra', ['extra']),
        ('stop runs/one extra', ['extra']), ('play --model runs/unlogged --env world:Mute', ['reset and step']),
        ('play --env world:World --model taken', ['taken']),
        ('play --env world:World --model bad/listed', ['bad/listed']),
        ('play --env torn_syntax:World', ['SyntaxError'])]
    return [(line if not line.startswith('train') or '--out' in line else f'{line} --out runs/new{i}', words)
        for i, (line, words) in enumerate(found)]

def typed(line: str) -> tuple:
    "What `agentlab ...` does with a line, in this process: (exit status, errors, seconds)."
    import io, shlex, signal, time, traceback
    from contextlib import redirect_stderr, redirect_stdout
    from agentlab import cli
    errors, began = io.StringIO(), time.monotonic()
    def enough(*_): raise BaseException('it goes on and on')
    signal.signal(signal.SIGALRM, enough)
    signal.alarm(LONGEST)
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        try: status = cli.main(shlex.split(line))
        except SystemExit as e: status = e.code
        except BaseException: status = 'Traceback: ' + traceback.format_exc()[-400:]
        finally: signal.alarm(0)
    return status, errors.getvalue(), time.monotonic() - began

def faults(words: list, status, errors: str, seconds: float) -> list:
    "What is wrong with an answer."
    said = [line for line in errors.strip().splitlines() if line.startswith('agentlab')]
    paragraph = said[-1] if said else ''
    missing = [word for word in words if word not in paragraph]
    wrong = dict(status=status != 2, traceback='Traceback' in f'{status}{errors}', paragraph=len(said) != 1
        or not errors.rstrip().endswith(paragraph), escape=any(not c.isprintable() for c in paragraph),
        late=seconds > LONGEST, words=bool(missing))
    return [name for name, bad in wrong.items() if bad]
