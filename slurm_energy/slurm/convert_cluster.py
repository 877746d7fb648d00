"""Nodes, partitions and switches as Slurm prints them, to domain values: pure and total.

Nodes are rows of `sinfo --json` (22.05) and `scontrol show nodes --json` (23.02 and newer); partitions are lines of
`scontrol show partition -o`, a text form that all releases share; switches are lines of `scontrol show topology`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_energy.domain.cluster import NodeGpus, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import NodeName, PartitionName, expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.conversion import (
    BadRow,
    Converted,
    convert_rows,
    mebibytes,
    minutes,
    names,
    number,
    positive,
    text,
    whole,
    words,
)
from slurm_energy.slurm.conversion import text as plain_text
from slurm_energy.slurm.gres import parse_gpus

MAX_NODE_WATTS = 1_000_000
"""No node draws more; what is above it is a mark of no value or a broken sensor."""
UNAVAILABLE_STATES = frozenset(
    {
        "BLOCKED",
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "ERROR",
        "FAIL",
        "FAILING",
        "FUTURE",
        "INVAL",
        "INVALID",
        "INVALID_REG",
        "MAINT",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "NO_RESPOND",
        "POWER_DRAIN",
        "POWERING_DOWN",
        "REBOOT",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "UNKNOWN",
    }
)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=(\S*)")
_EVERY_USER = frozenset({"all", "(null)", "n/a", ""})
_NOTHING = _EVERY_USER | {"no", "none", "unlimited", "0", "off"}
_LIST_KEYS = ("AllowGroups", "AllocNodes", "QoS", "MaxMemPerCPU")
_DEFAULT_KEYS = ("JobDefaults", "DefMemPerNode", "DefMemPerCPU", "TRESBillingWeights")
_PLACING_KEYS = ("MinNodes", "MaxNodes", "OverSubscribe", "PreemptMode", "ExclusiveUser", "LLN")
MAX_SWITCHES = 10_000
MAX_LEVELS = 32
MAX_NAMES = 500_000
"""Of nodes and switches in all lists together; lists behind that are taken as empty."""


def convert_node(row: Mapping[str, object]) -> NodeState:
    """Return one node."""
    name = text(row.get("name"))
    if not name:
        raise BadRow("no node name")
    states = tuple(dict.fromkeys((*words(row.get("state")), *words(row.get("state_flags")))))
    if not states:
        raise BadRow("no node state")
    return NodeState(
        name=NodeName(name),
        partitions=tuple(PartitionName(partition) for partition in names(row.get("partitions"))),
        states=states,
        available=UNAVAILABLE_STATES.isdisjoint(states),
        cpus=positive(row.get("cpus")) or 0,
        cpus_allocated=positive(row.get("alloc_cpus")) or 0,
        memory_mib=mebibytes(row.get("real_memory")),
        memory_allocated_mib=_allocated_mebibytes(row.get("alloc_memory")),
        gpus=node_gpus(row.get("gres"), row.get("gres_used")),
        features=names(row.get("active_features") or row.get("features")),
        power_watts=_power_watts(row.get("energy")),
    )


def node_gpus(configured: object, used: object) -> tuple[NodeGpus, ...]:
    """Return the GPUs of a node by type, from texts such as `gpu:a100:4(S:0-1)` and `gpu:a100:3(IDX:0-2)`.

    Raises:
        BadRow: the texts cannot be read: guessing a node's GPUs would send jobs to wrong nodes.
    """
    try:
        have = parse_gpus(_gres_text(configured))
        held = {demand.slurm_type: demand.count for demand in parse_gpus(_gres_text(used))}
    except ValueRangeError:
        raise BadRow("unreadable GRES") from None
    if len(have) == 1 and len(held) == 1 and have[0].slurm_type not in held:
        held = {have[0].slurm_type: next(iter(held.values()))}
    return tuple(
        NodeGpus(
            slurm_type=demand.slurm_type,
            count=demand.count,
            allocated=min(demand.count, held.get(demand.slurm_type, 0)),
        )
        for demand in have
        if demand.count
    )


def _power_watts(energy: object) -> float | None:
    """Return the node's power, None without a plugin that measures it: Slurm writes 0 or NO_VAL then."""
    found = positive(energy.get("current_watts")) if isinstance(energy, dict) else None
    return float(found) if found is not None and found <= MAX_NODE_WATTS else None


def _gres_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def _allocated_mebibytes(value: object) -> float | None:
    found = number(value)
    return None if found is None or whole(value) is None or found < 0 else float(found)


def convert_partitions(output: str) -> Converted[PartitionState]:
    """Return the partitions, one a line; lines that cannot be read are counted by reason."""
    lines = [line for line in output.splitlines() if line.strip()]
    return convert_rows([dict(_PAIR.findall(line)) for line in lines], convert_partition)


def convert_partition(row: Mapping[str, object]) -> PartitionState:
    """Return one partition of its key and value texts."""
    name = str(row.get("PartitionName", ""))
    if not name:
        raise BadRow("no partition name")
    return PartitionState(
        name=PartitionName(name),
        is_default=row.get("Default") == "YES",
        up=row.get("State") == "UP",
        max_time_minutes=minutes(row.get("MaxTime")),
        default_time_minutes=minutes(row.get("DefaultTime")),
        max_nodes=positive(row.get("MaxNodes")),
        allow_groups=_listed(row.get("AllowGroups")),
        allow_accounts=_listed(row.get("AllowAccounts")),
        deny_accounts=_listed(row.get("DenyAccounts")),
        allow_qos=_listed(row.get("AllowQos")),
        deny_qos=_listed(row.get("DenyQos")),
        root_only=row.get("RootOnly") == "YES",
        needs_reservation=row.get("ReqResv") == "YES",
        priority_tier=positive(row.get("PriorityTier")) or 1,
        priority_job_factor=positive(row.get("PriorityJobFactor")) or 1,
        min_nodes=positive(row.get("MinNodes")) or 0,
        max_cpus_per_node=positive(row.get("MaxCPUsPerNode")),
        max_memory_per_node_mib=mebibytes(row.get("MaxMemPerNode")) or None,
        list_terms=_terms(row, _LIST_KEYS),
        default_terms=_terms(row, _DEFAULT_KEYS),
        placing_terms=_terms(row, _PLACING_KEYS),
    )


def _terms(row: Mapping[str, object], keys: Iterable[str]) -> tuple[str, ...]:
    """Return what is set of some settings, as `Key=value`; what stands for nothing is left out."""
    return tuple(f"{key}={row[key]}" for key in keys if key in row and str(row[key]).lower() not in _NOTHING)


def _listed(value: object) -> tuple[str, ...]:
    return () if not isinstance(value, str) or value.strip().lower() in _EVERY_USER else names(value)


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
    for parent, below in children.items():
        above = _upwards(parents, parent)
        for name in below:
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
