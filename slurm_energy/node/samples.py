"""What the sampler has seen of a job so far: kept in a side file, its last version is the job's heartbeat."""

import json
from dataclasses import dataclass, field, fields

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.wire.fields import Fields, loads

SAMPLES_FORMAT = 1
_MAX_SECONDS = 1e11
_MAX_JOULES = 1e15


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
    sampled_seconds: float = 0.0
    shared: bool = False
    wrap_unobserved: bool = False
    problem: str | None = None


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
    contradicted: str = ""
    """What the job's own cgroup says against the GPUs that were found for it."""
    gpus: dict[GpuUuid, GpuSamples] = field(default_factory=dict)
    host: HostSamples | None = None
    events: list[str] = field(default_factory=list)


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the heartbeat as JSON."""
    document: dict[str, object] = {item.name: getattr(heartbeat, item.name) for item in fields(heartbeat)}
    document["format"] = SAMPLES_FORMAT
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
            contradicted=document.optional_text("contradicted", 1000) or "",
            gpus={GpuUuid(str(uuid)): _decode_gpu(Fields(sums, "samples")) for uuid, sums in gpus.items()},
            host=None if host is None else _decode_host(Fields(host, "host samples")),
            events=list(document.texts("events", 1000)),
        )
    except WireError as error:
        raise SpoolError(f"heartbeat file cannot be used: {error}") from error


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
        counter_joules=sums.optional_number("counter_joules", 0, _MAX_JOULES),
        counter_at_seconds=sums.optional_number("counter_at_seconds", 0, _MAX_SECONDS),
        counter_fell=sums.flag("counter_fell"),
        counter_stood=sums.get("counter_stood") is True,  # a sampler of an older release did not tell
    )


def _decode_host(host: Fields) -> HostSamples:
    return HostSamples(
        joules=host.number("joules", 0, _MAX_JOULES),
        sampled_seconds=host.number("sampled_seconds", 0, _MAX_SECONDS),
        shared=host.flag("shared"),
        wrap_unobserved=host.flag("wrap_unobserved"),
        problem=host.optional_text("problem"),
    )
