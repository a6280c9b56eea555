"""Generated files agree with their sources, and the files of the repository keep its rules: one test for each
function of tools/check.py."""
import pytest

import check
import imports

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

def test_imports_are_put_in_order():
    "Sections, then modules, then names; what a comment or a blank line parts stays apart, and what is wide is wrapped."
    def ordered(*lines, width=120): return imports.in_order('\n'.join(lines), width).split('\n')
    assert ordered('from agentlab.x import b, A, C_D', 'import re', 'import numpy', 'x = 1') == [
        'import re', 'import numpy', 'from agentlab.x import C_D, A, b', 'x = 1']
    apart = ['import re', '', 'import json', '# first', 'import ast']
    assert ordered(*apart) == apart
    inside = ordered('def f():', '    import re, ast', '    import json')
    assert inside == ['def f():', '    import ast, re', '    import json']
    assert ordered('from os import (path,', '                cpu_count)', 'import re', 'y = 2', width=28) == [
        'import re', 'from os import (cpu_count,', '                path)', 'y = 2']
    remarked = ['from os import (path,   # of files', '    cpu_count)']
    assert ordered(*remarked) == remarked
    assert ordered('try: import b', 'except ImportError: pass') == ['try: import b', 'except ImportError: pass']
