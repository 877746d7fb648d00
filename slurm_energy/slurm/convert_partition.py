"""`scontrol show partition -o` to partition states: a text form that all releases share."""

import re
from collections.abc import Mapping

from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.slurm.conversion import BadRow, Converted, convert_rows
from slurm_energy.slurm.values import minutes, names, positive

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=(\S*)")
_EVERYBODY = frozenset({"all", "(null)", "n/a", ""})


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
    )


def _listed(value: object) -> tuple[str, ...]:
    return () if not isinstance(value, str) or value.strip().lower() in _EVERYBODY else names(value)
