"""Measured energy: what a node reports of one job, with source, scope, coverage and quality."""

import math
from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName
from slurm_energy.errors import ValueRangeError

MAX_WATTS_PER_GPU = 3000.0
"""No board sold draws more; a report above it is refused as absurd."""


class EnergySource(StrEnum):
    """Where a figure comes from."""

    COUNTER = "counter"
    POLLED = "polled"
    MODEL = "model"
    NONE = "none"


class EnergyScope(StrEnum):
    """What a figure covers."""

    GPU = "gpu"
    MODULE = "module"
    """GPU and CPU on one module (GH200): never add the CPU again."""
    MIG_ESTIMATE = "mig_estimate"
    SHARED_ESTIMATE = "shared_estimate"
    NODE = "node"


class QualityFlag(StrEnum):
    """What a reader must know of a figure."""

    INCOMPLETE = "incomplete"
    """One of the two readings is missing: energy is unknown."""
    TRUNCATED = "truncated"
    """The end reading is the last heartbeat: the tail is missing."""
    COUNTER_RESET = "counter_reset"
    COUNTER_STUCK = "counter_stuck"
    COUNTER_UNSUPPORTED = "counter_unsupported"
    BELOW_RESOLUTION = "below_resolution"
    """The window is too short for the counter's update interval."""
    SOURCES_DISAGREE = "sources_disagree"
    """Counter and polled integral differ by more than 20 %."""
    GPU_IDENTITY_UNKNOWN = "gpu_identity_unknown"
    """It is not proven which GPU the job held: nothing was set and nothing is billed."""
    SHARED_GPU = "shared_gpu"
    MIG = "mig"
    CLOCK_REFUSED = "clock_refused"
    CLOCK_UNVERIFIED = "clock_unverified"
    RESTORE_FAILED = "restore_failed"
    NO_PERMISSION = "no_permission"
    RESCUED = "rescued"
    """The clock was raised to the default because the job came near its time limit."""
    RAPL_WRAP_UNOBSERVED = "rapl_wrap_unobserved"
    NODE_SHARED = "node_shared"
    SUBMIT_TIME_UNKNOWN = "submit_time_unknown"
    IMPLAUSIBLE = "implausible"
    """Mean power would be above what the board can draw: energy is kept out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """One attempt of one job. Job ids come again after a reset, so the submit time is part of the key."""

    cluster: ClusterName
    job_id: JobId
    submitted_at_seconds: float
    restart_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnergy:
    """Energy of one GPU during one job on one node; `joules` is None when unknown, with a reason."""

    gpu_uuid: GpuUuid
    gpu_name: str
    gpu_type: GpuTypeName | None
    joules: float | None
    reason: str | None
    """Why `joules` is None, else None."""
    source: EnergySource
    scope: EnergyScope
    coverage_seconds: float
    """Seconds of device time between the two readings, or that were sampled."""
    flags: tuple[QualityFlag, ...] = ()
    counter_joules: float | None = None
    polled_joules: float | None = None
    asked_clock_mhz: int | None = None
    applied_clock_mhz: int | None = None
    observed_clock_mhz: float | None = None
    """Mean SM clock over the samples in which the GPU was busy."""
    default_clock_mhz: int | None = None
    utilisation: float | None = None
    """Mean GPU utilisation over the samples, 0 to 1."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.coverage_seconds < 1e10:
            raise ValueRangeError(
                f"coverage {self.coverage_seconds} s of GPU {self.gpu_uuid} is not between 0 and 1e10"
            )
        for name, value in (("joules", self.joules), ("counter", self.counter_joules), ("polled", self.polled_joules)):
            if value is not None and not (math.isfinite(value) and value >= 0.0):
                raise ValueRangeError(
                    f"{name} energy {value} J of GPU {self.gpu_uuid} is not a finite number from 0 up"
                )
        if (self.joules is None) != (self.reason is not None):
            raise ValueRangeError(f"GPU {self.gpu_uuid} needs either joules or a reason why they are unknown")
        if self.joules is not None and self.joules > MAX_WATTS_PER_GPU * max(self.coverage_seconds, 1.0) * 1.05:
            raise ValueRangeError(
                f"{self.joules:.0f} J in {self.coverage_seconds:.1f} s of GPU {self.gpu_uuid} "
                f"is over {MAX_WATTS_PER_GPU} W"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnergy:
    """Energy of a node's processors (RAPL packages and DRAM) during one job."""

    joules: float | None
    reason: str | None
    coverage_seconds: float
    flags: tuple[QualityFlag, ...] = ()

    def __post_init__(self) -> None:
        if (self.joules is None) != (self.reason is not None):
            raise ValueRangeError("host energy needs either joules or a reason why they are unknown")
        if self.joules is not None and not (math.isfinite(self.joules) and self.joules >= 0.0):
            raise ValueRangeError(f"host energy {self.joules} J is not a finite number from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one node says of one attempt of one job. The node does not know the submit time; the daemon adds it."""

    cluster: ClusterName
    job_id: JobId
    restart_count: int
    node: NodeName
    user_id: int | None
    partition: str | None
    decision_id: DecisionId | None
    started_at_seconds: float
    ended_at_seconds: float
    """Unix times of the node's own clock at prolog and epilog."""
    time_scale: float
    """Device seconds per wall second: 1 on real hardware, above it in the laboratory."""
    gpus: tuple[GpuEnergy, ...]
    host: HostEnergy | None = None
    exit_code: int | None = None
    events: tuple[str, ...] = ()
    """What went wrong or was mended, in order."""
