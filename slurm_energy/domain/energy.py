"""Measured energy: what a node reports of one job, with source, scope, coverage and quality, and its error bounds."""

import math
from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.errors import ValueRangeError

MAX_WATTS_PER_GPU = 3000.0
"""No board sold draws more; a report above it is refused as absurd."""
COUNTER_INTERVAL_SECONDS = 0.1
"""NVML's energy counter moved every 52 to 103 ms on a measured H100, so that each of the two readings may be
that much too old."""
POLLED_ERROR_SHARE = 0.05
"""Sampled power, integrated, was 3 % (mean) from the counter over windows of 3 s; 5 % covers longer windows."""
CALIBRATION_ERROR_SHARE = 0.05
"""Of the board's power sensor, which counter and samples share. NVML's documentation of nvmlDeviceGetPowerUsage states
+-5 % of the power drawn for Fermi and Kepler and nothing for newer boards; docs/explanation/measurement.md has more."""


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
    """A clock was locked, and the GPU was never seen at work at or under it."""
    CLOCK_IGNORED = "clock_ignored"
    """The driver took the lock, and the GPU at work ran above it: no clock was applied."""
    RESTORE_FAILED = "restore_failed"
    NO_PERMISSION = "no_permission"
    RESCUED = "rescued"
    """The clock was raised to the default because the job came near its time limit."""
    POWER_BUDGET = "power_budget"
    """The clock was below the job's own for a part of the run, since the cluster's power budget was exceeded."""
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
    """An equal part for each job that the node's hooks know; the daemon divides `node_joules` by cores."""
    reason: str | None
    coverage_seconds: float
    flags: tuple[QualityFlag, ...] = ()
    node_joules: float | None = None
    """Of all processors over the same time, undivided; None from older releases."""
    meter_id: str | None = None
    """Which of the node's counts the next two are readings of; None from older releases."""
    meter_start_joules: float | None = None
    meter_end_joules: float | None = None
    """The node's own count at both ends of the time: jobs that ran together have this stretch of it in common."""

    def __post_init__(self) -> None:
        if self.node_joules is not None and not (math.isfinite(self.node_joules) and self.node_joules >= 0.0):
            raise ValueRangeError(
                f"energy {self.node_joules} J of a node's processors is not a finite number from 0 up"
            )
        if (self.joules is None) != (self.reason is not None):
            raise ValueRangeError("host energy needs either joules or a reason why they are unknown")
        start, end = self.meter_start_joules, self.meter_end_joules
        if (self.meter_id is None, start is None, end is None) not in {(True,) * 3, (False,) * 3}:
            raise ValueRangeError("a stretch of a host's count needs its name and both ends")
        if start is not None and end is not None and not (0.0 <= start <= end and math.isfinite(end)):
            raise ValueRangeError(f"a host's count from {start} to {end} J is not finite and ascending")
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
    """What went wrong or was fixed, in order."""
    trials: tuple[ClockTrial, ...] = ()
    """Clocks that were tried while the job ran, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyError:
    """Bounds on |measured - true| / measured, each at most 1."""

    timing: float
    """Of the two readings' moments, and of sampling where power was polled: differs from reading to reading."""
    calibration: float = CALIBRATION_ERROR_SHARE
    """Of the sensor: the same for all readings of a board, so that it cancels when two runs on one GPU are compared."""

    @property
    def total(self) -> float:
        """Both together."""
        return min(1.0, self.timing + self.calibration)


def energy_error(source: EnergySource, scope: EnergyScope, coverage_seconds: float) -> EnergyError | None:
    """Return the bounds of one reading, from the reading alone; None when it has none.

    Each end of the window misses at most one update interval at the mean power, and the mean power is
    joules / coverage, so the timing's bound is 2 x 0.1 s / coverage, plus 5 % when power was polled.

    An energy from a model, or a share of a GPU that others used too, has no bound.
    """
    if source in {EnergySource.MODEL, EnergySource.NONE}:
        return None
    if scope in {EnergyScope.MIG_ESTIMATE, EnergyScope.SHARED_ESTIMATE}:
        return None
    if coverage_seconds <= 0.0:
        return EnergyError(timing=1.0)
    share = 2.0 * COUNTER_INTERVAL_SECONDS / coverage_seconds
    if source is EnergySource.POLLED:
        share += POLLED_ERROR_SHARE
    return EnergyError(timing=min(1.0, share))


def relative_error(source: EnergySource, scope: EnergyScope, coverage_seconds: float) -> float | None:
    """Return the bound of one reading, timing and calibration together; None when it has none."""
    error = energy_error(source, scope, coverage_seconds)
    return None if error is None else error.total
