"""Generated files agree with their sources, and the files of the repository keep its rules: one test for each
function of tools/check.py."""
import pytest

import check


@pytest.mark.parametrize('holds', check.CHECKS, ids=lambda holds: holds.__name__)
def test_drift(holds):
    problems = holds()
    if problems: pytest.fail('\n'.join([f'does not hold: {holds.__doc__}', *problems]), pytrace=False)
