from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import make_node

from slurm_energy.domain.cluster import GpuLink
from slurm_energy.graph.groups import GROUP_NODES, bucket_of, groups_of, switch_of


def sets_of(names: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(group) for group in groups_of(list(names))}


def test_numbered_nodes_fill_their_groups() -> None:
    groups = list(groups_of([f"n{number}" for number in range(4096)]))
    assert [len(group) for group in groups] == [32] * 128
    assert groups[1] == tuple(f"n{number}" for number in range(32, 64))


def test_racks_stay_together() -> None:
    groups = list(groups_of([f"rack{rack}-n{number}" for rack in range(64) for number in range(16)]))
    assert all(len({name.split("-")[0] for name in group}) == 2 for group in groups)
    assert [len(group) for group in groups] == [32] * 32


@given(st.sets(st.text(max_size=5), max_size=200), st.randoms())
def test_groups_are_small_and_depend_on_the_names_alone(names: set[str], random: Random) -> None:
    listed = list(names)
    random.shuffle(listed)
    groups = list(groups_of(listed))
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert all(1 <= len(group) <= GROUP_NODES for group in groups)
    assert {frozenset(group) for group in groups} == sets_of(sorted(names))


@pytest.mark.parametrize("new", ["n4000", "n17b", "a1", "z"])
def test_one_node_more_leaves_the_other_groups_alone(new: str) -> None:
    names = [f"n{number}" for number in range(1000)]
    before, after = sets_of(names), sets_of([*names, new])
    assert len(before - after) <= 1


def test_names_of_no_pattern_end_in_reasonable_groups() -> None:
    names = ["a" * length for length in range(1, 3000)]
    assert all(len(group) <= GROUP_NODES for group in groups_of(names))


def test_nodes_of_one_switch_belong_together_whatever_they_are() -> None:
    one, other = make_node("a", switch="s"), make_node("b", switch="s", count=0, partition="q")
    assert bucket_of(one, 0) == bucket_of(other, 0)
    assert switch_of(bucket_of(one, 0)) == "s"
    assert bucket_of(one, 0) != bucket_of(one, 1)


@pytest.mark.parametrize(
    "change", [{"partition": "q"}, {"slurm_type": "v100"}, {"count": 8}, {"gpu_link": GpuLink(kind="pcie")}]
)
def test_without_a_switch_only_like_nodes_belong_together(change: dict[str, Any]) -> None:
    assert bucket_of(make_node("a"), 0) == bucket_of(make_node("b"), 0)
    assert bucket_of(make_node("a"), 0) != bucket_of(make_node("b", **change), 0)
    assert switch_of(bucket_of(make_node("a"), 0)) is None
