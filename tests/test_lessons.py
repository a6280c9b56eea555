"""The course: a check that would accept an untouched notebook is found, the student edition has no solutions, and
nobody's answers are overwritten. The folded solutions of a page are run."""
import importlib.util
import json
import pytest
import course
from notebooks import ROOT, lessons, run

def cell(source, kind='code'):
    return (dict(cell_type=kind, id=f'c{abs(hash(source)) % 10**8}', metadata={}, source=source)
        | (dict(outputs=[], execution_count=None) if kind == 'code' else {}))

def lesson(check='assert answer == 4'):
    return dict(nbformat=4, nbformat_minor=5, metadata={}, cells=[cell('x = 2'),
        cell('#| exercise\nanswer = None # your number'), cell('#| solution\nif answer is None: answer = x*x'),
        cell('<details><summary>About the solution</summary>4</details>', 'markdown'), cell(f'#| check\n{check}')])

@pytest.mark.parametrize('check, said',
    [('assert answer == 4', ''), ('assert True', 'passes on the untouched notebook'),
    ('assert answer == 5', 'AssertionError')])
def test_a_check_must_fail_before_the_solution_and_pass_after_it(check, said, tmp_path):
    path = tmp_path/'lesson.ipynb'
    path.write_text(json.dumps(course.proved(lesson(check))))
    problem = run(path)
    assert said in problem and bool(said) == bool(problem)

def page(solution, check='if four is not None: check_four(four)'):
    fold = f'<details><summary>Solution</summary>\n\n```python\n{solution}\n```\nThe sum.\n</details>'
    return dict(nbformat=4, nbformat_minor=5, metadata={}, cells=[cell('two = 2'), cell('four = None # your number'),
        cell(fold, 'markdown'), cell(f'def check_four(n): assert n == two + 2, n\n{check}'), cell('assert two == 2')])

@pytest.mark.parametrize('solution, said', [('four = 2*two', ''), ('four = 5', 'AssertionError: 5'),
    ('four = twice(2)', 'NameError'), ('four = None', 'its own solution')])
def test_the_folded_code_is_run_and_looked_at(solution, said, tmp_path):
    path = tmp_path/'page.ipynb'
    path.write_text(json.dumps(course.solved(page(solution))))
    problem = run(path)
    assert said in problem and bool(said) == bool(problem)

def test_a_solution_runs_also_where_nothing_looks_at_it():
    cells = course.solved(page('four = 4', check=''))['cells']
    assert [c['source'] for c in cells[5:]] == ['four = 4']

@pytest.mark.parametrize('source, unfolded', [('figure = go.Figure()', True),
    ('assert two == 2\ntest_eq(two,\n    2)', True), ('#| code-fold: true\nassert two == 2', False),
    ('two = 2\nassert two == 2', False), ('#| check\nassert two', False), ('import plotly.graph_objects as go', False)])
def test_what_only_draws_or_asserts_is_folded(source, unfolded):
    from notebooks import tidy
    assert course.unfolded(cell(source)) == unfolded
    whole = dict(nbformat=4, nbformat_minor=5, metadata={}, cells=[cell(source)])
    [made] = json.loads(tidy(json.dumps(whole)))['cells']
    assert bool(made['metadata'].get('jupyter')) == source.startswith('#| code-fold')

def test_the_student_edition_has_no_solution():
    made = course.student(lesson())
    text = json.dumps(made)
    assert 'x*x' not in text and 'About the solution' not in text and 'your number' in text
    assert made['cells'][-1]['metadata'] == dict(tags=['raises-exception'])

def test_a_check_that_passes_is_kept_and_one_that_fails_is_not(tmp_path, monkeypatch):
    "In the student's copy, cell by cell: first untouched, then with an answer."
    from agentlab.course import read
    made = lesson()
    made['cells'].insert(0, cell('# Lesson 4: a test', 'markdown'))
    check = course.source(course.student(made)['cells'][-1])
    monkeypatch.chdir(tmp_path)
    for answer, solved in ((None, set()), (5, set()), (4, {(4, 1)})):
        try: exec(check, dict(answer=answer))
        except AssertionError: pass
        assert read()[1] == solved

def test_the_copy_knows_how_many_exercises_there_are(tmp_path):
    from agentlab.course import passed, read
    course.write(tmp_path)
    assert set(read(tmp_path)[0]) == {int(path.name[:2]) for path in lessons()} and min(read(tmp_path)[0].values()) > 2
    for k in range(read(tmp_path)[0][1]): passed(1, k + 1, tmp_path)
    passed(2, 1, tmp_path)
    assert course.marks([tmp_path])[0].endswith('lessons done: 1')
    course.write(tmp_path, again=True)
    assert {(1, 1), (2, 1)} <= read(tmp_path)[1]

def test_no_lesson_tells_its_solutions(tmp_path):
    "Of every lesson: no cell of the student edition has the text of a solution, and nothing in it was run."
    course.write(tmp_path)
    longest = []
    for path in lessons():
        ours = json.loads((ROOT/path).read_text(encoding='utf-8'))['cells']
        theirs = json.loads((tmp_path/path.name).read_text(encoding='utf-8'))['cells']
        lines = {line.strip() for c in ours if course.mark(c) == 'solution'
            for line in course.source(c).splitlines()[2:] if len(line.strip()) > 40}
        assert not any(line in course.source(c) for c in theirs for line in lines)
        longest += lines
        assert (not any(c.get('outputs') for c in theirs)
            and sum(course.mark(c) == 'exercise' for c in theirs) >= course.EXERCISES)
    assert len(longest) > 20

def test_what_a_student_wrote_is_kept(tmp_path):
    course.write(tmp_path)
    mine = tmp_path/lessons()[0].name
    mine.write_text(mine.read_text(encoding='utf-8').replace('= None #', '= 7 #'), encoding='utf-8')
    said = course.write(tmp_path)
    assert '= 7 #' in mine.read_text(encoding='utf-8') and sum(line.startswith('kept') for line in said) == 1
    course.write(tmp_path, again=True)
    assert '= 7 #' not in mine.read_text(encoding='utf-8')

@pytest.mark.parametrize('pages, said', [
    ({1: 'A **turn** is one exchange. Turns end.'}, ''), ({1: 'A turn is one exchange. **Turns** end.'}, 'not bold'),
    ({1: 'Here.', 2: 'A **turn** ends.'}, 'in lesson 2'), ({1: 'What returns is no term.'}, 'no lesson uses it')])
def test_a_term_is_explained_where_it_is_first_used(pages, said):
    found = course.unexplained(pages, [dict(term='turn', also='', lesson='1', meaning='')])
    assert len(found) == bool(said) and all(said in line for line in found)

def test_what_is_no_prose_uses_no_term():
    head = ('# Lesson 1: turns\n> A turn.\n\n| | |\n|---|---|\n| **Goal** | a turn |\n\n'
        '| part | you see |\n|---|---|\n| 1 | turn |')
    cells = [cell(f'{head}\n\n{course.map_of(1)}', 'markdown'), cell('turn = 1'),
        cell('`turn`, $turn$, [a turn](x.ipynb)\n## A turn\nSeen.\n## References\n* A turn', 'markdown')]
    assert 'turn' not in course.prose(cells) and 'Seen.' in course.prose(cells)

def test_the_map_names_every_lesson_and_stands_in_each():
    parts = [n for first, last in course.PARTS.values() for n in range(first, last + 1)]
    assert parts == [int(path.name[:2]) for path in lessons()]
    text = course.map_of(4)
    assert text.count('.ipynb)') == len(parts) - 1 and '**4 what a turn is worth**' in text

@pytest.fixture
def first_cell(monkeypatch, tmp_path, capsys):
    "A function that runs the first cell in a folder of these files: what it asked pip for, and what it said."
    def run(*files, installed=False, below=''):
        for name in files: (tmp_path/name).write_text('')
        place = tmp_path/below
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        asked = []
        shell = type('Shell', (), dict(run_line_magic=lambda self, *words: asked.append(words)))
        monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name if installed else None)
        exec(course.INSTALL, dict(get_ipython=shell))
        return asked, capsys.readouterr().out
    return run

def test_where_agentlab_is_there_the_first_cell_only_says_which(first_cell):
    assert first_cell('agentlab_rl-0.1.0-py3-none-any.whl', installed=True) == ([], 'agentlab from a clone\n')

@pytest.mark.parametrize('files, below, wanted', [
    ((), '', 'agentlab-rl'),
    (('settings.ini',), 'tutorials', '{}'),
    (('agentlab_rl-0.1.0-py3-none-any.whl',), '', '{}/agentlab_rl-0.1.0-py3-none-any.whl'),
    (('settings.ini', 'agentlab_rl-0.1.0-py3-none-any.whl'), '', '{}/agentlab_rl-0.1.0-py3-none-any.whl')])
def test_the_first_cell_installs_from_a_wheel_a_clone_or_the_index(first_cell, tmp_path, files, below, wanted):
    "The wheel beside the lesson first, then the clone around it."
    asked, said = first_cell(*files, below=below)
    assert asked == [('pip', f'install -q "{wanted.format(tmp_path)}[lab]"')] and said.startswith('agentlab from ')
