import numpy as np

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.graph.columns import ColumnStore
from slurm_energy.graph.partitions import Memberships

T4, L4 = GpuTypeName("t4"), GpuTypeName("l4")
COLUMNS = ("gpus", "devices", "free", "suspended")


def test_a_node_counts_in_each_of_its_partitions() -> None:
    nodes = ColumnStore(dict.fromkeys(COLUMNS, (np.int64, 0)))
    members = Memberships(3)
    for places, gpus, free, suspended in (((0, 2), 4, 3, 0), ((2,), 0, 1, 1), ((), 8, 8, 0)):
        slot = nodes.take()
        members.set_node(slot, places, ())
        for name, value in zip(COLUMNS, (gpus, gpus or 1, free, suspended), strict=True):
            nodes[name][slot] = value
    sums = members.sums(nodes)
    assert sums.nodes.tolist() == [1, 0, 2]
    assert sums.gpus.tolist() == [4, 0, 4]
    assert sums.devices.tolist() == [4, 0, 5]
    assert sums.free.tolist() == [3, 0, 4]
    assert sums.gpus_free.tolist() == [3, 0, 3]
    assert sums.suspended.tolist() == [0, 0, 1]
    members.remove_node(0)
    assert members.sums(nodes).nodes.tolist() == [0, 0, 1]


def test_types_of_a_partition_are_those_of_its_nodes() -> None:
    members = Memberships(2)
    members.set_node(5, (0, 1), (T4, None))
    members.set_node(3, (1,), (L4, T4))
    types = members.types()
    assert types == ((T4, None), (L4, T4, None))
    members.set_node(3, (1,), (L4, T4))
    assert members.types() is types
    members.set_node(5, (1,), (T4,))
    assert members.types() == ((), (L4, T4))


def test_flat_memberships_are_in_the_order_of_the_nodes() -> None:
    members = Memberships(3)
    members.set_node(9, (2,), ())
    members.set_node(4, (1, 0), ())
    assert [array.tolist() for array in members.flat()] == [[4, 4, 9], [1, 0, 2]]
    assert [array.tolist() for array in members.of(np.array([9, 4]))] == [[9, 4, 4], [2, 1, 0]]
