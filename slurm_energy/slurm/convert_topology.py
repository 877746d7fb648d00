"""`scontrol show topology` to switches and the leaf of each node: pure and total."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import NodeName, expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.values import text as plain_text

MAX_SWITCHES = 10_000
MAX_LEVELS = 32
MAX_NAMES = 500_000
"""Of nodes and switches in all lists together; lists behind that are taken as empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The network between nodes; both empty where Slurm knows none."""

    switches: tuple[SwitchState, ...] = ()
    leaf_by_node: Mapping[NodeName, str] = field(default_factory=dict)


def convert_topology(text: str) -> Topology:
    """Return the switches of topology/tree, or the blocks of topology/block as leaves.

    A line is `SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[0-3]` or `SwitchName=s2 Level=1 Nodes=n[0-7] Switches=s[0-1]`;
    a switch without children is a leaf, whatever its level says. `LinkSpeed` has no unit in Slurm ("the units used are
    arbitrary", topology.conf(5)), so that no capacity comes of it. Lines of another form are left out.
    """
    children: dict[str, tuple[str, ...]] = {}
    leaf_by_node: dict[NodeName, str] = {}
    left = MAX_NAMES
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = plain_text(words.get("SwitchName", words.get("BlockName", "")))
        if not name or name in children or len(children) == MAX_SWITCHES:
            continue
        children[name] = _names(words.get("Switches", "")) if left > 0 else ()
        left -= len(children[name])
        if not children[name] and left > 0:
            nodes = _names(words.get("Nodes", ""))
            left -= len(nodes)
            for node in nodes:
                leaf_by_node.setdefault(NodeName(node), name)
    parents = _parents(children)
    switches = tuple(SwitchState(name=name, parent=parents.get(name)) for name in children)
    return Topology(switches=switches, leaf_by_node=leaf_by_node)


def _parents(children: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the parent of each known switch: the first that names it, unless that closes a circle or is too high."""
    parents: dict[str, str] = {}
    for parent, names in children.items():
        above = _upwards(parents, parent)
        for name in names:
            if name in children and name not in parents and name not in above and len(above) < MAX_LEVELS:
                parents[name] = parent
    return parents


def _upwards(parents: Mapping[str, str], name: str) -> set[str]:
    """Return a switch and those above it, up to `MAX_LEVELS` together."""
    found = {name}
    while name in parents and len(found) < MAX_LEVELS:
        name = parents[name]
        found.add(name)
    return found


def _names(expression: str) -> tuple[str, ...]:
    if not plain_text(expression):
        return ()
    try:
        return expand_hostlist(expression)
    except ValueRangeError:
        return ()
