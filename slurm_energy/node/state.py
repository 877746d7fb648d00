"""What is remembered of a job between its prolog and its epilog, written before anything is changed."""

import json
from dataclasses import dataclass, field, fields

from slurm_energy.device.gpu import SavedSettings
from slurm_energy.domain.decision import MAX_TRIAL_BOUND
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import (
    MAX_JOB_ID,
    ClusterName,
    DecisionId,
    GpuTypeName,
    GpuUuid,
    JobId,
    NodeName,
    PartitionName,
    Sluid,
)
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.wire.fields import Fields, loads

STATE_FORMAT = 1
_MAX_BYTES = 1_048_576
_MAX_CLOCK = 10_000
_MAX_SECONDS = 1e11
_MAX_JOULES = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGpu:
    """One of the job's GPUs: what it was set to, what was asked of it, and the reading at the start."""

    uuid: GpuUuid
    name: str
    gpu_type: GpuTypeName | None
    mig: bool = False
    mig_share: float | None = None
    """Share of the board's slices that the job holds; None where it is not known, or the GPU is not divided."""
    shared: bool = False
    """Another active job held it at the start."""
    saved: SavedSettings
    asked_clock_mhz: int | None = None
    target_clock_mhz: int | None = None
    """The clock about to be locked; from then on the lock may be in force, also after a crash."""
    applied_clock_mhz: int | None = None
    trial_bound: float | None = None
    """Slowdown that trials of clocks may come up to while the job runs; None: no trials on this GPU."""
    tried: bool = field(default=False, compare=False)
    """A trial's clock is about to be locked, or was. Set while the job runs: it makes no other job of it."""
    flags: tuple[QualityFlag, ...] = ()
    counter_joules: float | None = None
    counter_at_seconds: float | None = None
    """Monotonic time of the reading."""
    counter_problem: str | None = None
    """Why there is no reading."""

    @property
    def identified(self) -> bool:
        """Whether `uuid` is a GPU's; else it is only a name, and no GPU is touched for it."""
        return QualityFlag.GPU_IDENTITY_UNKNOWN not in self.flags

    @property
    def clock_changed(self) -> bool:
        """Whether a lock may be in force: of the decided clock, or of one that is tried."""
        return self.target_clock_mhz is not None or self.tried


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """The count of the node's host energy at one moment.

    Only readings of the same `meter_id` may be subtracted: a boot of the node has one.
    """

    meter_id: str
    joules: float
    at_seconds: float
    """Monotonic time."""
    doubtful_steps: int = 0
    """Steps so far in which a counter may have wrapped unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveJob:
    """One attempt of a job on this node. Monotonic times count from this boot."""

    job_id: JobId
    restart_count: int
    cluster: ClusterName
    node: NodeName
    boot_id: str
    started_at_seconds: float
    """Unix time."""
    started_monotonic_seconds: float
    time_scale: float
    gpus: tuple[SavedGpu, ...]
    user_id: int | None = None
    partition: PartitionName | None = None
    decision_id: DecisionId | None = None
    time_limit_minutes: int | None = None
    ready: bool = False
    """Whether the prolog came to its end; until then clocks may be half set and readings missing."""
    events: tuple[str, ...] = ()
    sluid: Sluid | None = None
    follows_budget: bool = False
    """Whether its clock may be lowered under the cluster's power budget: clocks of the job may be changed at all."""
    host_start: MeterReading | None = field(default=None, compare=False)
    """The node's host count at the start; None where it could not be read, or an older release's prolog did not."""

    def is_among(self, names: frozenset[JobId | Sluid]) -> bool:
        """Return whether the job is one of these, by its number or its SLUID."""
        return self.job_id in names or (self.sluid is not None and self.sluid in names)

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        """The job's GPUs."""
        return frozenset(gpu.uuid for gpu in self.gpus)

    @property
    def alone_uuids(self) -> frozenset[GpuUuid]:
        """Those that no other job held at its start: their settings are the job's."""
        return frozenset(gpu.uuid for gpu in self.gpus if not gpu.shared)


def encode_state(job: ActiveJob) -> bytes:
    """Return the state as JSON."""
    document: dict[str, object] = {"format": STATE_FORMAT}
    document.update((item.name, getattr(job, item.name)) for item in fields(job))
    document["gpus"] = [_encode_gpu(gpu) for gpu in job.gpus]
    document["host_start"] = None if job.host_start is None else encode_reading(job.host_start)
    return json.dumps(document, separators=(",", ":")).encode()


def decode_state(content: bytes) -> ActiveJob:
    """Return the state.

    Raises:
        SpoolError: the file is not one of ours, or of another version.
    """
    try:
        return _decode(Fields(loads(content, "state", _MAX_BYTES), "state"))
    except (WireError, ValueError) as error:
        raise SpoolError(f"state file cannot be used: {error}") from error


def encode_reading(reading: MeterReading) -> dict[str, object]:
    """Return a reading as a JSON object."""
    return {item.name: getattr(reading, item.name) for item in fields(reading)}


def decode_reading(reading: Fields) -> MeterReading:
    """Return a reading.

    Raises:
        WireError: a member is missing or outside its bound.
    """
    return MeterReading(
        meter_id=reading.text("meter_id", 64),
        joules=reading.number("joules", 0, _MAX_JOULES),
        at_seconds=reading.number("at_seconds", 0, _MAX_SECONDS),
        doubtful_steps=reading.integer("doubtful_steps", 0, 1 << 53),
    )


def _encode_gpu(gpu: SavedGpu) -> dict[str, object]:
    encoded: dict[str, object] = {item.name: getattr(gpu, item.name) for item in fields(gpu)}
    encoded["flags"] = [flag.value for flag in gpu.flags]
    encoded["saved"] = {item.name: getattr(gpu.saved, item.name) for item in fields(gpu.saved)}
    return encoded


def _decode(state: Fields) -> ActiveJob:
    if state.get("format") != STATE_FORMAT:
        raise WireError(f"state has format {state.get('format')!r:.40}, this code reads {STATE_FORMAT}")
    partition = state.optional_text("partition", 255)
    decision_id = state.optional_text("decision_id", 32)
    sluid = state.optional_text("sluid", 32)
    host_start = state.get("host_start")
    return ActiveJob(
        job_id=JobId(state.integer("job_id", 1, MAX_JOB_ID)),
        restart_count=state.integer("restart_count", 0, MAX_JOB_ID),
        cluster=ClusterName(state.text("cluster", 255)),
        node=NodeName(state.text("node", 255)),
        boot_id=state.text("boot_id", 64),
        started_at_seconds=state.number("started_at_seconds", 0, _MAX_SECONDS),
        started_monotonic_seconds=state.number("started_monotonic_seconds", 0, _MAX_SECONDS),
        time_scale=state.number("time_scale", 0.001, 100_000.0),
        gpus=tuple(_decode_gpu(Fields(value, "gpu")) for value in state.sequence("gpus", 4096)),
        user_id=state.optional_integer("user_id", 0, 0xFFFFFFFE),
        partition=None if partition is None else PartitionName(partition),
        decision_id=None if decision_id is None else DecisionId(decision_id),
        time_limit_minutes=state.optional_integer("time_limit_minutes", 1, 0xFFFFFFFF),
        ready=state.flag("ready"),
        events=state.texts("events", 1000),
        sluid=None if sluid is None else Sluid(sluid),
        follows_budget=state.flag("follows_budget"),
        host_start=None if host_start is None else decode_reading(Fields(host_start, "host count")),
    )


def _decode_gpu(gpu: Fields) -> SavedGpu:
    gpu_type = gpu.optional_text("gpu_type", 63)
    saved = Fields(gpu.get("saved"), "saved settings")
    return SavedGpu(
        uuid=GpuUuid(gpu.text("uuid", 128)),
        name=gpu.optional_text("name", 255) or "",
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
        mig=gpu.flag("mig"),
        mig_share=gpu.optional_number("mig_share", 0, 1),
        shared=gpu.flag("shared"),
        saved=SavedSettings(
            power_limit_watts=saved.optional_number("power_limit_watts", 0, 100_000),
            application_clock_mhz=saved.optional_integer("application_clock_mhz", 0, _MAX_CLOCK),
            lowest_clock_mhz=saved.optional_integer("lowest_clock_mhz", 1, _MAX_CLOCK),
            highest_clock_mhz=saved.optional_integer("highest_clock_mhz", 1, _MAX_CLOCK),
            site_clock_mhz=saved.optional_integer("site_clock_mhz", 1, _MAX_CLOCK),
        ),
        asked_clock_mhz=gpu.optional_integer("asked_clock_mhz", 1, _MAX_CLOCK),
        target_clock_mhz=gpu.optional_integer("target_clock_mhz", 1, _MAX_CLOCK),
        applied_clock_mhz=gpu.optional_integer("applied_clock_mhz", 1, _MAX_CLOCK),
        trial_bound=gpu.optional_number("trial_bound", 0, MAX_TRIAL_BOUND),
        # An older release did not tell: then a trial may have been made.
        tried=gpu.get("trial_bound") is not None if gpu.get("tried") is None else gpu.flag("tried"),
        flags=tuple(QualityFlag(text) for text in gpu.texts("flags", 32)),
        counter_joules=gpu.optional_number("counter_joules", 0, _MAX_JOULES),
        counter_at_seconds=gpu.optional_number("counter_at_seconds", 0, _MAX_SECONDS),
        counter_problem=gpu.optional_text("counter_problem"),
    )
