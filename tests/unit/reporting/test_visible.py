import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.reporting.visible import spreadsheet_cell, visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain äöü \U0001f525", "plain äöü \U0001f525"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\nb\r\tc\x00", "a\\x0ab\\x0d\\x09c\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202efdp.exe", "abc\\u202efdp.exe"),
        ("zero\u200bwidth\u2066", "zero\\u200bwidth\\u2066"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("latin \udce4", "latin \\xe4"),
    ],
)
def test_hidden_characters_become_visible(text: str, expected: str) -> None:
    assert visible(text) == expected


@given(st.text(alphabet=st.characters()))
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    assert not {unicodedata.category(character) for character in visible(text)} & {"Cc", "Cs", "Zl", "Zp"}


def test_long_text_ends_in_an_ellipsis_at_its_width() -> None:
    assert visible("x" * 100, 10) == "x" * 9 + "…"
    assert visible("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", "  ="])
def test_formula_is_not_run_by_a_spreadsheet(start: str) -> None:
    assert spreadsheet_cell(f'{start}cmd|"/c calc"!A1').startswith("'")


def test_harmless_cell_stays_as_it_is() -> None:
    assert spreadsheet_cell("train-a=b") == "train-a=b"
