"""What a node tells of itself, so that one look at the controller covers every node."""

from dataclasses import dataclass

from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName

STATUS_INTERVAL_SECONDS = 300.0
"""How often a node tells it when nothing has changed."""
SILENT_SECONDS = 1200.0
"""A node that has sent nothing for so long no longer reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """One GPU as the driver shows it, and which of Slurm's GPUs it is as far as the node knows."""

    uuid: str
    index: int
    """Position in the driver's own order."""
    minor_number: int | None = None
    """N of /dev/nvidiaN."""
    name: str = ""
    gpu_type: GpuTypeName | None = None
    """Catalogue name, None when the catalogue does not know the device."""
    pci_id: str | None = None
    power_limit_watts: float | None = None
    position: int | None = None
    """Number that Slurm counts it by in SLURM_JOB_GPUS; None when it is not known."""
    slurm_type: str | None = None
    """GRES type that Slurm gives it; None when it has none or it is not known."""
    proof: str = ""
    """How position and device were matched; empty when they were not."""
    unproven: str = ""
    """Why no job's clock is set on it; empty when its identity is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """The hooks' folder."""

    path: str
    exists: bool = True
    owner_user_id: int | None = None
    mode: int | None = None
    free_bytes: int | None = None
    waiting_reports: int = 0
    oldest_waiting_seconds: float | None = None
    rejected_files: int = 0
    pending_jobs: int = 0
    """Ended jobs whose GPU settings are still to be put back."""


NO_OTHER_RELEASE = " only"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """One of our plugins for Slurm as it lies on the node."""

    path: str
    version: str
    """Slurm release that it was built for; with NO_OTHER_RELEASE behind it where it does not follow Slurm's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node at one moment of its own clock."""

    cluster: ClusterName
    node: NodeName
    sent_at_seconds: float
    """Unix time by the node's clock."""
    boot_id: str
    hook_version: str
    interpreter: str
    """Python that runs the hooks."""
    slurm_version: str | None = None
    """Release of slurmd, None where it does not tell."""
    plugins: tuple[PluginStatus, ...] = ()
    spool: SpoolStatus
    problems: tuple[str, ...] = ()
    """What is wrong with settings, scripts or spool, in words."""
    gpus: tuple[GpuStatus, ...] | None = None
    """None when it was not read since the node started."""
    driver_problem: str | None = None
    repaired_at_seconds: float | None = None
    repair_clean: bool | None = None
    """Whether the last repair left nothing to do; None before the first."""
    repair_said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedStatus:
    """A node's status and when it came, by the daemon's clock."""

    received_at_seconds: float
    status: NodeStatus

    @property
    def clock_skew_seconds(self) -> float:
        """How far the node's clock is ahead of the daemon's; the message's way is in it."""
        return self.status.sent_at_seconds - self.received_at_seconds
