"""From readings at both ends and samples between them to the energy of one GPU or host.

The sampler keeps its sums in a side file, whose last version is the job's heartbeat.

Shared GPUs: each moment's power is divided equally among the jobs that hold the GPU at that moment, so the
shares of all jobs add up to the GPU's energy. A slice of a GPU (MIG) gets its share of the board's energy by slices, as
an estimate, and no figure where its size is not known.
Unknown is None with a reason, never 0.
"""

import json
from dataclasses import dataclass, field, fields, replace

from slurm_energy.domain.energy import (
    MAX_WATTS_PER_GPU,
    EnergyScope,
    EnergySource,
    GpuEnergy,
    HostEnergy,
    QualityFlag,
)
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.energy_model.catalog import gpu_type
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.node.state import SavedGpu
from slurm_energy.wire.fields import Fields, loads

SAMPLES_FORMAT = 1
_MAX_SECONDS = 1e11
_MAX_JOULES = 1e15
RESOLUTION_SECONDS = 0.2
"""The counter moves every 0.05 to 0.1 s (H100); a window under this means nothing."""
STUCK_SECONDS = 1.0
"""A counter that stands still for this long is stuck: a board always draws something."""
COMPARABLE_SECONDS = 2.0
DISAGREEMENT = 0.20
GOOD_COVERAGE = 0.80
"""Share of the window that samples must cover to stand in for the counter, or to be compared with it."""
PLAUSIBLE_FACTOR = 1.2
MODULE_FACTOR = 2.0
"""A module's counter holds its CPU and memory too, above the GPU's own limit."""


@dataclass(slots=True, kw_only=True)
class GpuSamples:
    """Sums over one GPU's samples. Seconds are device time, monotonic times are wall time since boot."""

    polled_joules: float = 0.0
    sampled_seconds: float = 0.0
    """Device time that the integral covers; gaps are left out."""
    share_joules: float = 0.0
    """The integral, each moment divided by the number of jobs that held the GPU then."""
    shared_seconds: float = 0.0
    """Device time during which other jobs held it too."""
    samples: int = 0
    utilisation_sum: float = 0.0
    utilisation_samples: int = 0
    busy_clock_sum_mhz: float = 0.0
    busy_samples: int = 0
    locked_samples: int = 0
    """Busy samples while a lock of ours should have been in force."""
    above_lock_samples: int = 0
    """Those of them in which the clock was above the lock."""
    counter_joules: float | None = None
    """Last reading of the driver's counter."""
    counter_at_seconds: float | None = None
    counter_fell: bool = False
    """The counter was once lower than before: it was reset during the job."""
    counter_stood: bool = False
    """The counter once stood still for longer than it ever does: part of the energy is not in it."""

    @property
    def mean_watts(self) -> float | None:
        """Mean power over the sampled time."""
        return self.polled_joules / self.sampled_seconds if self.sampled_seconds > 0 else None

    @property
    def mean_busy_clock_mhz(self) -> float | None:
        """Mean SM clock while the GPU was busy."""
        return self.busy_clock_sum_mhz / self.busy_samples if self.busy_samples else None

    @property
    def mean_utilisation(self) -> float | None:
        """Mean utilisation, 0 to 1."""
        return min(self.utilisation_sum / self.utilisation_samples, 1.0) if self.utilisation_samples else None


@dataclass(slots=True, kw_only=True)
class HostSamples:
    """Sums over the processors' samples; wall time."""

    joules: float = 0.0
    """Each moment divided equally among the jobs that the node's hooks knew then."""
    node_joules: float | None = 0.0
    """Undivided; None where an older release's sampler began the sums."""
    sampled_seconds: float = 0.0
    shared: bool = False
    wrap_unobserved: bool = False
    problem: str | None = None
    meter_id: str | None = None
    """The node's count that the next two are readings of; None: it was begun again meanwhile, or an older release's."""
    meter_start_joules: float | None = None
    meter_end_joules: float | None = None


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """The side file: which attempt it belongs to, when it was written, and the sums."""

    job_id: int
    started_at_seconds: float
    at_seconds: float = 0.0
    """Unix time of the last sample."""
    at_monotonic_seconds: float = 0.0
    rescued: bool = False
    final: bool = False
    """The job was over at the last sample: nothing after it is the job's, however late it is closed."""
    over: bool = False
    """The batch step was seen to end: the job is over, and only its epilog is to come."""
    contradicted: str = ""
    """What the job's own cgroup says against the GPUs that were found for it."""
    gpus: dict[GpuUuid, GpuSamples] = field(default_factory=dict)
    host: HostSamples | None = None
    events: list[str] = field(default_factory=list)
    trials: list[ClockTrial] = field(default_factory=list)
    """Clocks that were tried so far."""
    kept_clock_mhz: int | None = None
    """The clock that trials led to; None: where the job began, or the default."""
    decided_clock_left: bool = False
    """Trials found that the decided clock breaks the bound: without a kept clock the default one holds."""
    budget_seconds: float = 0.0
    """Device time at a clock that the cluster's power budget lowered."""
    budget_clock_mhz: int | None = None
    """The lowest such clock."""
    progress: str = ""
    """What a step of the job's program took, as far as it counts them."""


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the heartbeat as JSON."""
    document: dict[str, object] = {item.name: getattr(heartbeat, item.name) for item in fields(heartbeat)}
    document["format"] = SAMPLES_FORMAT
    if heartbeat.trials:
        from slurm_energy.wire.report import encode_trial  # noqa: PLC0415  # few jobs have any

        document["trials"] = [encode_trial(trial) for trial in heartbeat.trials]
    document["gpus"] = {
        uuid: {item.name: getattr(sums, item.name) for item in fields(sums)} for uuid, sums in heartbeat.gpus.items()
    }
    host = heartbeat.host
    document["host"] = None if host is None else {item.name: getattr(host, item.name) for item in fields(host)}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_heartbeat(content: bytes) -> Heartbeat:
    """Return the heartbeat.

    Raises:
        SpoolError: the file is not one of ours.
    """
    try:
        document = Fields(loads(content, "heartbeat", 1_048_576), "heartbeat")
        gpus = document.get("gpus")
        if document.get("format") != SAMPLES_FORMAT or not isinstance(gpus, dict):
            raise WireError("heartbeat has another format")
        host = document.get("host")
        return Heartbeat(
            job_id=document.integer("job_id", 1, 0xFFFFFFFF),
            started_at_seconds=document.number("started_at_seconds", 0, _MAX_SECONDS),
            at_seconds=document.number("at_seconds", 0, _MAX_SECONDS),
            at_monotonic_seconds=document.number("at_monotonic_seconds", 0, _MAX_SECONDS),
            rescued=document.flag("rescued"),
            final=document.get("final") is True,  # a sampler of an older release did not tell
            over=document.get("over") is True,
            contradicted=document.optional_text("contradicted", 1000) or "",
            gpus={GpuUuid(str(uuid)): _decode_gpu(Fields(sums, "samples")) for uuid, sums in gpus.items()},
            host=None if host is None else _decode_host(Fields(host, "host samples")),
            events=list(document.texts("events", 1000)),
            trials=_decode_trials(document),
            kept_clock_mhz=document.optional_integer("kept_clock_mhz", 1, 10_000),
            decided_clock_left=document.get("decided_clock_left") is True,  # an older release's sampler did not tell
            budget_seconds=document.optional_number("budget_seconds", 0, _MAX_SECONDS) or 0.0,
            budget_clock_mhz=document.optional_integer("budget_clock_mhz", 1, 10_000),
            progress=document.optional_text("progress", 500) or "",
        )
    except WireError as error:
        raise SpoolError(f"heartbeat file cannot be used: {error}") from error


def _decode_trials(document: Fields) -> list[ClockTrial]:
    trials = document.sequence("trials", 64)
    if not trials:
        return []
    from slurm_energy.wire.report import decode_trial  # noqa: PLC0415  # few jobs have any

    return [decode_trial(trial) for trial in trials]


def _decode_gpu(sums: Fields) -> GpuSamples:
    return GpuSamples(
        polled_joules=sums.number("polled_joules", 0, _MAX_JOULES),
        sampled_seconds=sums.number("sampled_seconds", 0, _MAX_SECONDS),
        share_joules=sums.number("share_joules", 0, _MAX_JOULES),
        shared_seconds=sums.number("shared_seconds", 0, _MAX_SECONDS),
        samples=sums.integer("samples", 0, 1 << 53),
        utilisation_sum=sums.number("utilisation_sum", 0, _MAX_JOULES),
        utilisation_samples=sums.integer("utilisation_samples", 0, 1 << 53),
        busy_clock_sum_mhz=sums.number("busy_clock_sum_mhz", 0, _MAX_JOULES),
        busy_samples=sums.integer("busy_samples", 0, 1 << 53),
        locked_samples=sums.optional_integer("locked_samples", 0, 1 << 53) or 0,
        above_lock_samples=sums.optional_integer("above_lock_samples", 0, 1 << 53) or 0,
        counter_joules=sums.optional_number("counter_joules", 0, _MAX_JOULES),
        counter_at_seconds=sums.optional_number("counter_at_seconds", 0, _MAX_SECONDS),
        counter_fell=sums.flag("counter_fell"),
        counter_stood=sums.get("counter_stood") is True,  # a sampler of an older release did not tell
    )


def _decode_host(host: Fields) -> HostSamples:
    return HostSamples(
        joules=host.number("joules", 0, _MAX_JOULES),
        node_joules=host.optional_number("node_joules", 0, _MAX_JOULES),
        sampled_seconds=host.number("sampled_seconds", 0, _MAX_SECONDS),
        shared=host.flag("shared"),
        wrap_unobserved=host.flag("wrap_unobserved"),
        problem=host.optional_text("problem"),
        meter_id=host.optional_text("meter_id", 64),
        meter_start_joules=host.optional_number("meter_start_joules", 0, _MAX_JOULES),
        meter_end_joules=host.optional_number("meter_end_joules", 0, _MAX_JOULES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a GPU's measurement ended."""

    window_seconds: float
    """Device time between start and end."""
    counter_joules: float | None = None
    """The counter at the end; the last heartbeat's when the end itself was not seen."""
    counter_seconds: float | None = None
    """Device time between the counter's two readings."""
    counter_problem: str | None = None
    flags: tuple[QualityFlag, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    joules: float | None
    reason: str | None
    source: EnergySource
    coverage_seconds: float
    flags: tuple[QualityFlag, ...] = ()


def gpu_energy(gpu: SavedGpu, ending: Ending, samples: GpuSamples | None, board_watts: float | None) -> GpuEnergy:
    """Return the energy of one GPU.

    Args:
        gpu: What the prolog saved.
        ending: The readings at the end.
        samples: The sampler's sums, None when it never ran.
        board_watts: The most the board can draw, None when unknown.
    """
    samples = samples or GpuSamples()
    scope = _scope(gpu, samples)
    counter = _counter_figure(gpu, ending, samples, board_watts)
    if not gpu.identified:
        figure = _unknown(gpu.counter_problem or "gpu identity unknown", ending, QualityFlag.INCOMPLETE)
    elif scope is EnergyScope.MIG_ESTIMATE:
        figure = _slice_figure(gpu, counter, ending)
    elif scope is EnergyScope.SHARED_ESTIMATE:
        figure = _share_figure(ending, samples)
    else:
        figure = _choose(counter, ending, samples)
    flags = dict.fromkeys((*gpu.flags, *ending.flags, *figure.flags))
    if ending.truncated:
        flags[QualityFlag.TRUNCATED] = None
    polled_known = samples.sampled_seconds > 0 and scope is not EnergyScope.MIG_ESTIMATE
    return GpuEnergy(
        gpu_uuid=gpu.uuid,
        gpu_name=gpu.name,
        gpu_type=gpu.gpu_type,
        joules=figure.joules,
        reason=figure.reason,
        source=figure.source,
        scope=scope,
        coverage_seconds=figure.coverage_seconds,
        flags=tuple(flags),
        counter_joules=None if scope is EnergyScope.MIG_ESTIMATE else counter.joules,
        polled_joules=samples.polled_joules if polled_known else None,
        asked_clock_mhz=gpu.asked_clock_mhz,
        applied_clock_mhz=gpu.applied_clock_mhz,
        observed_clock_mhz=samples.mean_busy_clock_mhz,
        default_clock_mhz=gpu.saved.default_clock_mhz,
        utilisation=samples.mean_utilisation,
    )


def host_energy(
    samples: HostSamples | None, window_seconds: float, gpus: tuple[GpuEnergy, ...], *, truncated: bool
) -> HostEnergy:
    """Return the processors' energy, undivided and as an equal part; the daemon divides it by cores."""
    if any(gpu.scope is EnergyScope.MODULE for gpu in gpus):
        reason = "the GPU module's counter holds the processor already"
        return HostEnergy(joules=None, reason=reason, coverage_seconds=0.0)
    if samples is None or samples.problem is not None or samples.sampled_seconds <= 0:
        reason = "the processors were not sampled" if samples is None else samples.problem or "no two samples"
        return HostEnergy(joules=None, reason=reason, coverage_seconds=0.0)
    flags = [QualityFlag.NODE_SHARED] if samples.shared else []
    if samples.wrap_unobserved:
        flags.append(QualityFlag.RAPL_WRAP_UNOBSERVED)
    if truncated or samples.sampled_seconds < GOOD_COVERAGE * window_seconds:
        flags.append(QualityFlag.TRUNCATED)
    return HostEnergy(
        joules=samples.joules,
        reason=None,
        coverage_seconds=samples.sampled_seconds,
        flags=tuple(flags),
        node_joules=samples.node_joules,
        meter_id=samples.meter_id,
        meter_start_joules=samples.meter_start_joules if samples.meter_id else None,
        meter_end_joules=samples.meter_end_joules if samples.meter_id else None,
    )


def is_module(name: str) -> bool:
    """Return whether GPU and CPU sit on one module whose counter holds both (GH200, GB200)."""
    return any(part in name.upper() for part in ("GH200", "GB200", "GB300"))


def _scope(gpu: SavedGpu, samples: GpuSamples) -> EnergyScope:
    if gpu.mig:
        return EnergyScope.MIG_ESTIMATE
    if gpu.shared or samples.shared_seconds > 0:
        return EnergyScope.SHARED_ESTIMATE
    return EnergyScope.MODULE if is_module(gpu.name) else EnergyScope.GPU


def _unknown(reason: str, ending: Ending, *flags: QualityFlag) -> _Figure:
    return _Figure(
        joules=None, reason=reason, source=EnergySource.NONE, coverage_seconds=ending.window_seconds, flags=flags
    )


def _counter_figure(gpu: SavedGpu, ending: Ending, samples: GpuSamples, board_watts: float | None) -> _Figure:
    """Return what the counter says; joules is None with a reason when it says nothing that can be used."""
    if gpu.counter_joules is None or ending.counter_joules is None or ending.counter_seconds is None:
        reason = gpu.counter_problem or ending.counter_problem or "a counter reading is missing"
        return _unknown(reason, ending)
    difference, seconds = ending.counter_joules - gpu.counter_joules, ending.counter_seconds
    if difference < 0 or samples.counter_fell:
        return _unknown("the counter was reset during the job", ending, QualityFlag.COUNTER_RESET)
    if difference == 0 and seconds > STUCK_SECONDS and samples.mean_watts != 0.0:
        return _unknown(f"the counter stood still for {seconds:.0f} s", ending, QualityFlag.COUNTER_STUCK)
    if samples.counter_stood and samples.mean_watts != 0.0:
        return _unknown("the counter stood still during the job", ending, QualityFlag.COUNTER_STUCK)
    below = (QualityFlag.BELOW_RESOLUTION,) if seconds < RESOLUTION_SECONDS else ()
    if difference == 0 and below:
        return _unknown(f"the counter did not move within {seconds:.3f} s", ending, *below)
    if difference > _max_joules(gpu, seconds, board_watts):
        reason = f"{difference:.0f} J in {seconds:.1f} s is more than the board can draw"
        return _unknown(reason, ending, *below, QualityFlag.IMPLAUSIBLE)
    return _Figure(joules=difference, reason=None, source=EnergySource.COUNTER, coverage_seconds=seconds, flags=below)


def _max_joules(gpu: SavedGpu, seconds: float, board_watts: float | None) -> float:
    watts = MAX_WATTS_PER_GPU
    if board_watts is not None:
        watts = board_watts * (MODULE_FACTOR if is_module(gpu.name) else PLAUSIBLE_FACTOR)
    # One late update of the counter may belong to the time before the window.
    return min(watts * (seconds + RESOLUTION_SECONDS), MAX_WATTS_PER_GPU * max(seconds, 1.0))


def _slice_figure(gpu: SavedGpu, counter: _Figure, ending: Ending) -> _Figure:
    """Return the board's energy by the job's share of its slices: all jobs together never have more than the board."""
    if gpu.mig_share is None or counter.joules is None:
        why = "its share of the slices is not known" if gpu.mig_share is None else counter.reason
        return _unknown(
            f"the driver's counter is the whole board's, the job held a slice: {why}", ending, QualityFlag.MIG
        )
    return _Figure(
        joules=counter.joules * gpu.mig_share,
        reason=None,
        source=EnergySource.MODEL,
        coverage_seconds=counter.coverage_seconds,
        flags=(*counter.flags, QualityFlag.MIG),
    )


def _choose(counter: _Figure, ending: Ending, samples: GpuSamples) -> _Figure:
    sampled = samples.sampled_seconds > 0 and samples.sampled_seconds >= GOOD_COVERAGE * ending.window_seconds
    # Where the end was not seen, the counter's last reading may be from long before it.
    late = sampled and ending.truncated and counter.coverage_seconds < GOOD_COVERAGE * samples.sampled_seconds
    if counter.joules is not None and not late:
        return replace(counter, flags=(*counter.flags, *_disagreement(counter, samples)))
    if QualityFlag.IMPLAUSIBLE in counter.flags:
        return counter
    if sampled:
        return _Figure(
            joules=samples.polled_joules,
            reason=None,
            source=EnergySource.POLLED,
            coverage_seconds=samples.sampled_seconds,
            flags=counter.flags,
        )
    covered = f"samples cover {samples.sampled_seconds:.0f} of {ending.window_seconds:.0f} s"
    missing = () if counter.flags else (QualityFlag.INCOMPLETE,)
    return replace(counter, reason=f"{counter.reason}; {covered}", flags=(*counter.flags, *missing))


def _share_figure(ending: Ending, samples: GpuSamples) -> _Figure:
    if samples.sampled_seconds <= 0 or samples.sampled_seconds < GOOD_COVERAGE * ending.window_seconds:
        reason = (
            "the GPU was shared, and only samples can divide it: "
            f"they cover {samples.sampled_seconds:.0f} of {ending.window_seconds:.0f} s"
        )
        return _unknown(reason, ending, QualityFlag.SHARED_GPU)
    return _Figure(
        joules=samples.share_joules,
        reason=None,
        source=EnergySource.POLLED,
        coverage_seconds=samples.sampled_seconds,
        flags=(QualityFlag.SHARED_GPU,),
    )


def _disagreement(counter: _Figure, samples: GpuSamples) -> tuple[QualityFlag, ...]:
    """Compare mean powers: the two windows are never exactly the same."""
    polled_watts = samples.mean_watts
    covered = samples.sampled_seconds
    if (
        counter.joules is None
        or polled_watts is None
        or covered < max(COMPARABLE_SECONDS, GOOD_COVERAGE * counter.coverage_seconds)
    ):
        return ()
    counter_watts = counter.joules / counter.coverage_seconds
    larger = max(counter_watts, polled_watts)
    return (QualityFlag.SOURCES_DISAGREE,) if abs(counter_watts - polled_watts) > DISAGREEMENT * larger else ()


def board_watts(gpu: SavedGpu) -> float | None:
    """Return the most that the board can draw, by the catalogue or its own limit; None when neither tells."""
    known = None if gpu.gpu_type is None else gpu_type(gpu.gpu_type)
    figures = (gpu.saved.power_limit_watts, None if known is None else known.power_limit_watts)
    return max((watts for watts in figures if watts), default=None)
