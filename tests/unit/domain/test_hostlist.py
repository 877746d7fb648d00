import pytest

from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import ValueRangeError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("gpu[01-03,7],login1", ("gpu01", "gpu02", "gpu03", "gpu7", "login1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("a-[1-2].example.org, b", ("a-1.example.org", "a-2.example.org", "b")),
    ],
)
def test_node_lists_are_expanded_in_order(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a-b]", "n[1-100000]", "n[1--2]", "n[]"])
def test_malformed_or_endless_lists_are_errors(text: str) -> None:
    with pytest.raises(ValueRangeError, match="node list"):
        expand_hostlist(text)
