"""`scontrol show partition -o` to partition states: a text form that all releases share."""

import re
from collections.abc import Iterable, Mapping

from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.slurm.conversion import BadRow, Converted, convert_rows
from slurm_energy.slurm.values import mebibytes, minutes, names, positive

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=(\S*)")
_EVERYBODY = frozenset({"all", "(null)", "n/a", ""})
_NOTHING = _EVERYBODY | {"no", "none", "unlimited", "0", "off"}
_LIST_KEYS = ("AllowGroups", "AllocNodes", "QoS", "MaxMemPerCPU")
_DEFAULT_KEYS = ("JobDefaults", "DefMemPerNode", "DefMemPerCPU", "TRESBillingWeights")
_PLACING_KEYS = ("MinNodes", "MaxNodes", "OverSubscribe", "PreemptMode", "ExclusiveUser", "LLN")


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
    return () if not isinstance(value, str) or value.strip().lower() in _EVERYBODY else names(value)
