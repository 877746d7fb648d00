import pytest
from small_clusters import make_node

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import NodeName
from slurm_energy.graph.groups import GroupTable
from slurm_energy.graph.schema import SWITCH, column

LIKE, SWITCHED = (0, None, "like"), (1, "leaf")


def make_table(count: int) -> GroupTable:
    table = GroupTable()
    for slot in range(count):
        table.set_node(slot, NodeName(f"n{slot}"), LIKE)
    table.regroup()
    return table


def test_a_group_that_is_cut_keeps_its_slot_for_one_part() -> None:
    table = make_table(32)
    (slot,) = table.members
    table.set_node(40, NodeName("n40"), LIKE)
    changed, gone = table.regroup()
    assert table.members == {slot: tuple(range(32)), slot + 1: (40,)}
    assert (changed, gone) == ({slot + 1}, set())


def test_a_group_that_loses_a_node_is_changed_and_one_that_loses_all_is_gone() -> None:
    table = make_table(2)
    (slot,) = table.members
    table.remove_node(0, NodeName("n0"))
    assert table.regroup() == ({slot}, set())
    table.remove_node(1, NodeName("n1"))
    assert table.regroup() == (set(), {slot})
    assert not table.members
    assert not table.group_of


def test_a_node_that_moves_to_a_switch_leaves_its_group() -> None:
    table = make_table(2)
    table.set_node(1, NodeName("n1"), SWITCHED)
    table.regroup()
    table.set_node(1, NodeName("n1"), SWITCHED)
    assert table.regroup() == (set(), set())
    assert sorted(table.members.values()) == [(0,), (1,)]
    assert table.store["cluster"][table.group_of[1]] == 1


def test_the_columns_of_a_group_count_its_nodes() -> None:
    table = make_table(2)
    table.set_node(7, NodeName("n7"), SWITCHED)
    table.regroup()
    states = {0: make_node("n0"), 1: make_node("n1", available=False), 7: make_node("n7")}
    table.write(table.members, states.__getitem__, lambda name: SwitchState(name=name, congestion=0.3))
    like, switched = (table.store["x"][table.group_of[slot]] for slot in (0, 7))
    assert like[column(SWITCH, "nodes_available")] == 0.5
    assert like[column(SWITCH, "is_known")] == like[column(SWITCH, "congestion")] == 0.0
    assert switched[column(SWITCH, "congestion")] == pytest.approx(0.3)
    assert switched[column(SWITCH, "is_known")] == 1.0
