"""Generated files agree with their sources, and the files of the repository keep its rules: one test for each
function of tools/check.py."""
import pytest

import check


@pytest.mark.parametrize('holds', check.CHECKS, ids=lambda holds: holds.__name__)
def test_drift(holds):
    problems = holds()
    if problems: pytest.fail('\n'.join([f'does not hold: {holds.__doc__}', *problems]), pytrace=False)


def test_what_counts_as_a_file_in_a_string():
    "Sheets, scripts and pages are found, in plain strings and in those with places to fill in; a piece of one is none."
    sheet, page = '.a { color: red }\n.b > c { margin: 0 }\n#d, e { top: 1px; left: 2px }', '<html><head></head><body>'
    script = 'const a = 1;\nconst b = () => {\n  f(a);\n};'
    source = f'A = {sheet!r}\nB = {script!r}\nC = f{page!r} + f"{{A}} of {{B:.2f}}"\nD = "#a {{ top: 0 }}"'
    assert check.web_strings(source) == [(1, 'CSS', 3), (2, 'JavaScript', 4), (3, 'HTML', 1)]
    assert not check.web_strings("raise ValueError(f'{a}: {b}, give {c!r}; const is no name') # function(")
