import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import StoreError
from slurm_energy.store.types import MAX_JSON_CHARACTERS, JsonText, bounded, storable, stored_text


@given(st.text(alphabet=st.characters(), max_size=300))
def test_every_text_becomes_one_that_all_databases_take(text: str) -> None:
    result = stored_text(text, 64)
    assert len(result) <= 64
    assert "\x00" not in result
    result.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b", "a\\x00b"),
        ("latin \udce4", "latin \\xe4"),
        ("lone \ud800", "lone \\ud800"),
        ("\U0001f525\u202e\x1b[31m\n'\"", "\U0001f525\u202e\x1b[31m\n'\""),
    ],
)
def test_only_what_a_database_refuses_is_escaped(text: str, expected: str) -> None:
    assert storable(text) == expected


def test_text_at_the_limit_is_whole_and_one_over_is_marked() -> None:
    assert bounded("x" * 64, 64) == "x" * 64
    cut = bounded("x" * 65, 64)
    assert len(cut) == 64
    assert "…[cut from 65 characters, sha256 " in cut


def test_long_texts_that_differ_at_the_end_stay_different() -> None:
    assert bounded("x" * 100_000 + "a", 64) != bounded("x" * 100_000 + "b", 64)


def test_json_over_the_bound_is_refused_with_both_sizes() -> None:
    with pytest.raises(StoreError, match=f"over the database's {MAX_JSON_CHARACTERS}"):
        JsonText().process_bind_param("x" * MAX_JSON_CHARACTERS, None)  # type: ignore[arg-type]  # no dialect is needed
