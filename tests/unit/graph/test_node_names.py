import pytest

from slurm_energy.graph.holdings import MAX_NAMES, node_names, sort_key


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a[1-3,7],b2", ("a1", "a2", "a3", "a7", "b2")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[3-4]x", ("r1n3x", "r1n4x", "r2n3x", "r2n4x")),
        ("a,a,a[1-1]", ("a", "a1")),
    ],
)
def test_a_node_list_is_taken_apart(text: str, names: tuple[str, ...]) -> None:
    assert node_names(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a]", "a[3-1]", "a[x]", "a[]", "a[1-2", "[", "a[1-2]]"])
def test_a_malformed_list_names_nobody(text: str) -> None:
    assert node_names(text) == ()


@pytest.mark.parametrize(
    "text", [f"a[0-{MAX_NAMES}]", "a[0-999999999]", "a[1-999]b[1-999]", ",".join("a[1-40000]" for _ in range(3))]
)
def test_a_list_of_too_many_names_nobody(text: str) -> None:
    assert node_names(text) == ()


def test_names_sort_as_people_count() -> None:
    names = ["n10", "n2", "a", "n1", "n2x", "m100", "n01"]
    assert sorted(names, key=sort_key) == ["a", "m100", "n01", "n1", "n2", "n2x", "n10"]
