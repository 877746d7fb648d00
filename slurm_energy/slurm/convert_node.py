"""Rows of `sinfo --json` (22.05) and `scontrol show nodes --json` (23.02 and newer) to node states: pure and total."""

from collections.abc import Mapping

from slurm_energy.domain.cluster import NodeGpus, NodeState
from slurm_energy.domain.ids import NodeName, PartitionName
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.conversion import BadRow
from slurm_energy.slurm.gres import parse_gpus
from slurm_energy.slurm.values import mebibytes, names, number, positive, text, whole, words

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
        BadRow: the texts cannot be read: guessing a node's GPUs would send jobs astray.
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
