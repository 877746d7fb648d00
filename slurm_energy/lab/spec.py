"""What a lab should be: its name, partitions, and which parts run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slurm_energy.errors import LabError

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,30}\Z")
_GPU_TYPE = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}\Z")
_PARTITION = re.compile(r"(?P<name>[^:]+):(?P<nodes>\d{1,3})x(?P<gpus>\d{1,2})(?::(?P<type>.+))?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """One partition of equal nodes.

    Attributes:
        name: Slurm's name of the partition; its nodes are NAME-1, NAME-2 and so on.
        nodes: Number of nodes, 1 to 64.
        gpus_per_node: 1 to 16.
        gpu_type: GRES type; empty: the partition's name.
        gpu_types: GRES type of each GPU in the driver's order, for nodes of several types; empty: all of `gpu_type`.
        minor_numbers: N of /dev/nvidiaN of each GPU in the driver's order; empty: as boards of the type have them.
        gres: Gres= in slurm.conf, which gives the order of types; empty: all GPUs of `gpu_type`.
        detected: Whether slurmd finds the GPUs as AutoDetect does, in the driver's order: `links` without their UUIDs,
            `uuids` with them; empty: gres.conf lists their files. For labs of one partition.
    """

    name: str
    nodes: int
    gpus_per_node: int
    gpu_type: str = ""
    max_time_minutes: int = 1440
    gpu_types: tuple[str, ...] = ()
    minor_numbers: tuple[int, ...] = ()
    gres: str = ""
    detected: Literal["", "links", "uuids"] = ""

    def __post_init__(self) -> None:
        for thing, values in (("types", self.gpu_types), ("minor numbers", self.minor_numbers)):
            if values and len(values) != self.gpus_per_node:
                raise LabError(
                    f"partition {self.name} names {len(values)} {thing} for {self.gpus_per_node} GPUs per node"
                )
        if not _WORD.match(self.name):
            raise LabError(f"partition {self.name!r} of a lab: lower-case letters, digits, '-' and '_' only")
        if self.gpu_type and not _GPU_TYPE.match(self.gpu_type):
            raise LabError(f"GPU type {self.gpu_type!r} of partition {self.name}: lower-case letters, digits, '-', '_'")
        if not 1 <= self.nodes <= 64:
            raise LabError(f"partition {self.name} has {self.nodes} nodes, a lab has 1 to 64 in each")
        if not 1 <= self.gpus_per_node <= 16:
            raise LabError(f"partition {self.name} has {self.gpus_per_node} GPUs per node, a lab has 1 to 16")

    @property
    def gres_type(self) -> str:
        """The GRES type of its GPUs."""
        return self.gpu_type or self.name

    @property
    def types(self) -> tuple[str, ...]:
        """GRES type of each GPU of a node, in the driver's order."""
        return self.gpu_types or (self.gres_type,) * self.gpus_per_node

    @property
    def slurm_gres(self) -> str:
        """Gres= of its nodes."""
        return self.gres or f"gpu:{self.gres_type}:{self.gpus_per_node}"

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.nodes + 1))


def parse_partition(text: str) -> PartitionSpec:
    """Return the partition that `NAME:NODESxGPUS` or `NAME:NODESxGPUS:TYPE` names, such as `a100:4x4`."""
    match = _PARTITION.match(text)
    if match is None:
        raise LabError(f"partition {text!r} is not NAME:NODESxGPUS[:TYPE], such as a100:4x4")
    return PartitionSpec(
        name=match["name"],
        nodes=int(match["nodes"]),
        gpus_per_node=int(match["gpus"]),
        gpu_type=match["type"] or "",
    )


DEFAULT_PARTITIONS = (
    PartitionSpec(name="a100", nodes=4, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=4, gpus_per_node=8),
    PartitionSpec(name="v100", nodes=2, gpus_per_node=4),
)
DEFAULT_USERS = ("alice", "bob")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """A whole lab.

    Attributes:
        directory: Its folder; None: below the labs' folder of this user, see `layout.labs_root`.
        partitions: The first one is Slurm's default partition.
        accounting: Whether MariaDB and slurmdbd run.
        energy: Whether plugin, SPANK options, daemon and hooks are installed and running; False: Slurm alone.
        daemon: False: with `energy`, everything but the daemon, which `Lab.start_daemon` may start later.
        time_scale: Device seconds per wall second of the simulated GPUs.
        repair_seconds: How often a node that holds a job is looked at for what a cut-off hook left.
        settings: Values of slurm-energy.toml by section and key, over the lab's own.
        plugin_settings: Values of energy-plugin.conf, over the lab's own.
        slurm_conf_lines: Lines at the end of slurm.conf; a key that the lab sets itself is replaced.
        users: Ordinary users that the lab adds.
        keep: Whether the folder stays when the lab stops.
        root: Another root file system, whose Slurm the lab runs; None: this machine's.
        beside: Name of a running lab with accounting, whose network, munge key and slurmdbd this one uses: two clusters
            of one site. It must end before that one.
    """

    name: str = "lab"
    directory: Path | None = None
    partitions: tuple[PartitionSpec, ...] = DEFAULT_PARTITIONS
    accounting: bool = False
    energy: bool = True
    daemon: bool = True
    time_scale: float = 60.0
    repair_seconds: int = 20
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plugin_settings: Mapping[str, str] = field(default_factory=dict)
    slurm_conf_lines: tuple[str, ...] = ()
    users: tuple[str, ...] = DEFAULT_USERS
    keep: bool = False
    root: Path | None = None
    beside: str = ""

    def __post_init__(self) -> None:
        if self.beside and (self.accounting or self.root is not None):
            raise LabError(f"lab {self.name} is beside {self.beside}: it has that one's accounting and root")
        if not _NAME.match(self.name):
            raise LabError(f"lab name {self.name!r}: a letter, then up to 30 lower-case letters, digits or '-'")
        names = [partition.name for partition in self.partitions]
        if not names or len(set(names)) != len(names):
            raise LabError(f"lab {self.name} has partitions {names}: at least one, each name once")
        if any(partition.detected for partition in self.partitions) and len(self.partitions) > 1:
            raise LabError(f"lab {self.name}: detected GPUs are possible in a lab of one partition")
        if self.partitions[0].detected == "uuids" and self.partitions[0].nodes > 1:
            raise LabError(f"lab {self.name}: GPUs detected with their UUIDs are possible on one node")
        if not 0.001 <= self.time_scale <= 100_000:
            raise LabError(f"time scale {self.time_scale:g} of lab {self.name} must be between 0.001 and 100000")
        if self.repair_seconds < 1:
            raise LabError(f"repairs every {self.repair_seconds} s in lab {self.name}: one second is the least")
        for line in self.slurm_conf_lines:
            if "\n" in line or "=" not in line:
                raise LabError(f"slurm.conf line {line!r} is not one Key=value")

    @property
    def has_accounting(self) -> bool:
        """Whether slurmdbd answers, its own or another lab's."""
        return self.accounting or bool(self.beside)

    @property
    def cluster_name(self) -> str:
        """Slurm's ClusterName, which also names database tables."""
        return self.name.replace("-", "_")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes, partition by partition."""
        return tuple(node for partition in self.partitions for node in partition.node_names)

    def partition_of(self, node: str) -> PartitionSpec:
        """Return the partition of a node.

        Raises:
            LabError: the lab has no such node.
        """
        for partition in self.partitions:
            if node in partition.node_names:
                return partition
        raise LabError(f"lab {self.name} has no node {node!r}; it has {', '.join(self.node_names)}")
