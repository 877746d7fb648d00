"""Nodes in groups of at most 32: those under one leaf switch or, where no topology is known, like nodes.

A group depends only on which nodes there are: one node more or less changes the group that it is in, seldom others.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator

from slurm_energy.domain.cluster import NodeState
from slurm_energy.graph.node_names import sort_key

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
