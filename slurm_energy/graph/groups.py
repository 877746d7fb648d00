"""Nodes in groups of at most 32: those under one leaf switch or, where no topology is known, like nodes.

A group keeps its slot as long as some of its nodes stay together.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from slurm_energy.domain.cluster import NodeState, SwitchState
from slurm_energy.domain.ids import NodeName
from slurm_energy.graph.blocks import FabricBlock, Indices
from slurm_energy.graph.columns import ColumnStore
from slurm_energy.graph.holdings import sort_key
from slurm_energy.graph.node_table import NodeTable
from slurm_energy.graph.partitions import Memberships
from slurm_energy.graph.place_features import SWITCH_SCALER, switch_row
from slurm_energy.graph.schema import SWITCH

GROUP_NODES = 32
"""A group never has more nodes: its cost stays bounded."""
Bucket = tuple[object, ...]
"""What nodes of one group have in common; the first entry is the cluster's number, the second the switch or None."""


def bucket_of(node: NodeState, cluster: int) -> Bucket:
    """Return what a node shares with the nodes that it may be grouped with."""
    if node.switch is not None:
        return (cluster, node.switch)
    types = tuple((gpus.slurm_type, gpus.count) for gpus in node.gpus)
    return (cluster, None, tuple(sorted(node.partitions)), types, node.gpu_link)


def switch_of(bucket: Bucket) -> str | None:
    """Return the leaf switch of a bucket, None for like nodes without one."""
    return bucket[1] if isinstance(bucket[1], str) else None


def groups_of(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Yield groups of at most 32 names that lie together in people's order.

    The names are cut in two at the first bit in which their sort keys differ, and again, until each part is small
    enough: a binary trie. Of numbers that follow each other, a group has 32 that agree in all but their last five bits.
    """
    keyed = sorted((sort_key(name), name) for name in names)
    keys = [int.from_bytes(key, "big") for key in _padded([key for key, _ in keyed])]
    pending = [(0, len(keys))]
    while pending:
        begin, end = pending.pop()
        if end - begin <= GROUP_NODES:
            if end > begin:
                yield tuple(name for _, name in keyed[begin:end])
            continue
        # The first bit in which the smallest and the largest differ is the first in which any two differ.
        bit = (keys[begin] ^ keys[end - 1]).bit_length() - 1
        cut = bisect_left(keys, (keys[end - 1] >> bit) << bit, begin, end)
        pending += [(cut, end), (begin, cut)]


def _padded(keys: list[bytes]) -> list[bytes]:
    """Return keys of one length, so that they compare as numbers as they do as bytes."""
    length = max(map(len, keys), default=0)
    return [key.ljust(length, b"\0") for key in keys]


class GroupTable:
    """Which nodes lie together, by node slot."""

    def __init__(self) -> None:
        self.store = ColumnStore({"x": (np.float32, len(SWITCH)), "cluster": (np.int64, 0)})
        self.members: dict[int, tuple[int, ...]] = {}
        """Node slots of each group, in people's order of their names."""
        self.group_of: dict[int, int] = {}
        self.bucket_of_group: dict[int, Bucket] = {}
        self._bucket_of: dict[int, Bucket] = {}
        self._nodes: dict[Bucket, dict[NodeName, int]] = {}
        self._groups: dict[Bucket, list[int]] = {}
        self._dirty: set[Bucket] = set()

    def set_node(self, slot: int, name: NodeName, bucket: Bucket) -> None:
        """Say with what kind of nodes a node lies."""
        if self._bucket_of.get(slot) == bucket:
            return
        self.remove_node(slot, name)
        self._bucket_of[slot] = bucket
        self._nodes.setdefault(bucket, {})[name] = slot
        self._dirty.add(bucket)

    def remove_node(self, slot: int, name: NodeName) -> None:
        """Take a node out; nothing happens when it is not there."""
        bucket = self._bucket_of.pop(slot, None)
        if bucket is not None:
            del self._nodes[bucket][name]
            self.group_of.pop(slot, None)
            self._dirty.add(bucket)

    def regroup(self) -> tuple[set[int], set[int]]:
        """Cut the kinds that changed into groups; return the groups with other members, and the slots given up."""
        changed: set[int] = set()
        gone: set[int] = set()
        for bucket in sorted(self._dirty, key=repr):
            nodes = self._nodes[bucket]
            left = set(self._groups.pop(bucket, ()))
            kept: list[int] = []
            for names in groups_of(nodes):
                members = tuple(nodes[NodeName(name)] for name in names)
                before = (self.group_of.get(member) for member in members)
                group = next((group for group in before if group in left), None)
                if group is None:
                    group = self._take(bucket)
                left.discard(group)
                kept.append(group)
                if self.members.get(group) != members:
                    changed.add(group)
                self.members[group] = members
            for group in left:
                self._give_up(group)
                gone.add(group)
            # Only now: a member may have been looked up by the group that it was in.
            self.group_of.update((member, group) for group in kept for member in self.members[group])
            if kept:
                self._groups[bucket] = kept
            else:
                del self._nodes[bucket]
        self._dirty.clear()
        return changed, {group for group in gone if not self.store.is_live(group)}

    def nodes_of(self, groups: Indices) -> Indices:
        """Return the node slots of whole groups, one group behind the other."""
        return np.array([node for group in groups.tolist() for node in self.members[group]], dtype=np.int64)

    def write(
        self, groups: Iterable[int], state: Callable[[int], NodeState], switch: Callable[[str], SwitchState | None]
    ) -> None:
        """Work out the SWITCH columns of some groups."""
        rows = []
        slots = list(groups)
        for group in slots:
            members = self.members[group]
            name = switch_of(self.bucket_of_group[group])
            rows.append(
                switch_row(
                    None if name is None else switch(name) or SwitchState(name=name),
                    nodes=len(members),
                    available=sum(state(member).available for member in members),
                    is_leaf=True,
                )
            )
        if slots:
            self.store["x"][slots] = SWITCH_SCALER.scaled(rows)

    def _take(self, bucket: Bucket) -> int:
        group = self.store.take()
        self.bucket_of_group[group] = bucket
        self.store["cluster"][group] = bucket[0]
        return group

    def _give_up(self, group: int) -> None:
        self.store.free(group)
        del self.members[group], self.bucket_of_group[group]


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
