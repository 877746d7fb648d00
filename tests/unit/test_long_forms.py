"""`make test-long` runs every long form, and a form that left a test out has not passed."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SIGNS = ('"SLURM_ENERGY_TRIAL"', "mark.long", "IS_LONG", '"SLURM_ENERGY_PARTITION_CASES"')


@pytest.fixture(scope="module")
def long_tests() -> Any:
    spec = importlib.util.spec_from_file_location("long_tests", ROOT / "scripts" / "long_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_test_with_a_long_form_is_run(long_tests: Any) -> None:
    with_long_form = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and any(sign in path.read_text(encoding="utf-8") for sign in SIGNS)
    }
    forms = [form for form in long_tests.FORMS.values() if "SLURM_ENERGY_EXAMPLES" not in form.environment]
    assert with_long_form == {test for form in forms for test in form.tests}
    assert all((ROOT / test).exists() for form in long_tests.FORMS.values() for test in form.tests)


@pytest.mark.parametrize(
    ("exit_code", "last_line", "passed"),
    [
        (0, "17 passed, 3 deselected in 240.21s (0:04:00)", True),
        (1, "1 failed, 16 passed in 240.21s (0:04:00)", False),
        (0, "16 passed, 1 skipped in 240.21s (0:04:00)", False),
        (5, "3 deselected in 0.21s", False),
        (1, "4 errors in 2.00s", False),
    ],
)
def test_a_form_has_passed_when_all_its_tests_ran_and_passed(
    long_tests: Any, exit_code: int, last_line: str, passed: bool
) -> None:
    counts = long_tests.counted(last_line)
    outcome = long_tests.Outcome(name="systemd", exit_code=exit_code, counts=counts, seconds=61.0)
    assert outcome.passed is passed
    assert outcome.row.startswith(f"| systemd | {'passed' if passed else 'FAILED'} | ")
    assert outcome.row.endswith(" | 1:01 |")
