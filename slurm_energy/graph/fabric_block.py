"""Groups of nodes as a block: their nodes, switch, and the partitions of the nodes."""

import numpy as np

from slurm_energy.graph.blocks import FabricBlock, Indices
from slurm_energy.graph.group_table import GroupTable
from slurm_energy.graph.memberships import Memberships
from slurm_energy.graph.node_table import NodeTable


def fabric_block(nodes: NodeTable, groups: GroupTable, members: Memberships, slots: Indices) -> FabricBlock:
    """Return whole groups in the order of the slots, their nodes in that of `GroupTable.nodes_of`."""
    inside = groups.nodes_of(slots)
    local = np.full(nodes.store.capacity, -1, dtype=np.int64)
    local[inside] = np.arange(len(inside))
    member_node, member_partition = members.of(inside)
    sizes = np.array([len(groups.members[group]) for group in slots.tolist()], dtype=np.int64)
    return FabricBlock(
        node_group=np.repeat(np.arange(len(slots)), sizes),
        uplink_x=nodes.store["uplink_x"][inside],
        switch_x=groups.store["x"][slots],
        member_node=local[member_node],
        member_partition=member_partition,
    )
