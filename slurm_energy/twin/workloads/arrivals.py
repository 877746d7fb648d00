"""Arrivals at several ingresses: Poisson, rising and falling over the day, inference requests, and a mix of both.

Poisson arrivals with log-normal sizes are the load of the published geo-distributed world. Defaults are those of the
code of CHSAC-AF: 8 ingresses with 0.02 jobs/s each over 7 days, sizes LogNormal(ln 50,000, 0.4) with 0.1 as the least,
1 to 8 GPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from math import log, pi

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload, plain_job
from slurm_energy.twin.workloads.generating import (
    FloatArray,
    check_expected_jobs,
    check_range,
    comma_list,
    poisson_times,
    thinned_times,
    weights,
    workload_streams,
)
from slurm_energy.twin.workloads.habits import GENERIC_SHARE, LIMITS, HabitShares, give_habits

STREAMS = 6
"""Of a workload: arrivals, sizes, kinds, device counts, one that is free for what others add, names."""
_SMALLEST = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSettings:
    """What makes a Poisson workload."""

    rate_per_second: float = 0.02
    """Arrivals at each ingress."""
    rates_per_second: str = ""
    """Rates by ingress, separated by commas, in the place of one rate for all."""
    ingresses: int = 8
    hours: float = 168.0
    median_units: float = 50_000.0
    size_sigma: float = 0.4
    """Standard deviation of the logarithm of the size."""
    smallest_units: float = 0.1
    kind: str = "training"
    kinds: str = ""
    """Kinds by comma in the place of one for all, equally likely; one named twice is twice as likely."""
    min_gpus: int = 1
    max_gpus: int = 8
    """Every count from the least to the most is allowed."""
    gpu_mix: str = ""
    """Fixed counts with their weights in the place of a range for all, such as `1:0.9,2:0.06,8:0.04`."""
    names_per_kind: int = 0
    """Job names of each kind, such as `lammps-3`; jobs of one name are of about one size. 0 leaves jobs without."""
    name_spread: float = 0.4
    """Standard deviation of what blurs the logarithm of a size before it is put to a name."""
    users: int = 0
    """Users with habits in naming jobs and in writing scripts, see `habits`; 0 leaves jobs without users."""
    generic_names: float = GENERIC_SHARE
    """Share of the users whose job names say nothing."""
    limits: str = ""
    """How users set time limits: `mixed`, `margins` (1.1 to 5 times the run) or `longest` (60 % of them 7 days);
    empty for no limits."""
    limit_seconds_per_unit: float = 1.0
    """Of one device, of what users take as their jobs' runs."""
    named_partitions: float = 0.0
    """Share of the users who name one partition in all their jobs."""
    partition_mix: str = ""
    """Which they name, with weights: `a100:0.4,a40:0.6`."""
    open_partitions: float = 0.0
    """Share of those users who accept the invitation: they leave their partition open (--energy-open)."""
    gpu_ranges: float = 0.0
    """Share of the users whose jobs may run with 1, 2, 4 or 8 GPUs beside their own number (--energy-gpus)."""

    def __post_init__(self) -> None:
        check_range("ingresses", self.ingresses, 1, 10_000)
        check_range("hours", self.hours, 0.0)
        check_range("median_units", self.median_units, 0.0, above=True)
        check_range("size_sigma", self.size_sigma, 0.0, 20.0)
        check_range("smallest_units", self.smallest_units, 0.0)
        check_range("min_gpus", self.min_gpus, 1)
        check_range("max_gpus", self.max_gpus, self.min_gpus, 100_000)
        check_range("names_per_kind", self.names_per_kind, 0, 10_000)
        check_range("users", self.users, 0, 10_000)
        check_range("name_spread", self.name_spread, 0.0, 100.0)
        check_range("generic_names", self.generic_names, 0.0, 1.0)
        check_range("named_partitions", self.named_partitions, 0.0, 1.0)
        check_range("open_partitions", self.open_partitions, 0.0, 1.0)
        check_range("gpu_ranges", self.gpu_ranges, 0.0, 1.0)
        check_range("limit_seconds_per_unit", self.limit_seconds_per_unit, 0.0)
        if self.limits and self.limits not in LIMITS:
            raise ConfigError(f"workload setting limits={self.limits[:64]!r} is none of {', '.join(LIMITS)}, or empty")
        if self.named_partitions > 0.0 and not self.partition_mix:
            raise ConfigError("workload setting named_partitions is above 0: say which with partition_mix")
        if (self.limits or self.named_partitions > 0.0) and not self.users:
            raise ConfigError("workload settings limits and named_partitions are habits of users: set users above 0")
        _ = self.kind_list, self.gpu_weights, self.habit_shares
        for rate in self.ingress_rates:
            check_range("rate_per_second", rate, 0.0)
        check_expected_jobs(sum(self.ingress_rates) * self.horizon_seconds)

    @property
    def horizon_seconds(self) -> float:
        """Length of the workload."""
        return self.hours * 3600.0

    @property
    def log_median(self) -> float:
        """Mean of the logarithm of the size."""
        return log(self.median_units)

    @property
    def gpu_counts(self) -> tuple[int, ...]:
        """Device counts that every job may run with."""
        return tuple(range(self.min_gpus, self.max_gpus + 1))

    @property
    def kind_list(self) -> tuple[str, ...]:
        """Kinds that are equally likely."""
        return comma_list("kinds", self.kinds) if self.kinds else (self.kind,)

    @property
    def gpu_weights(self) -> dict[int, float]:
        """Weights of fixed device counts; none where every job has the same range."""
        found: dict[int, float] = {}
        for count, weight in weights("gpu_mix", self.gpu_mix, "COUNT:WEIGHT").items():
            try:
                found[int(count)] = weight
            except ValueError:
                raise ConfigError(f"workload setting gpu_mix has {count[:64]!r}, not COUNT:WEIGHT") from None
            check_range("gpu_mix", int(count), 1, 100_000)
        return found

    @property
    def habit_shares(self) -> HabitShares:
        """How many users do what."""
        return HabitShares(
            generic_names=self.generic_names,
            limits=self.limits or "mixed",
            named_partitions=self.named_partitions,
            partitions=weights("partition_mix", self.partition_mix),
            open_partitions=self.open_partitions,
            gpu_ranges=self.gpu_ranges,
        )

    @property
    def seconds_of(self) -> Callable[[Job], float] | None:
        """What users take as a job's run when they set its limit; None where they set none."""
        if not self.limits:
            return None
        return lambda job: job.true_units * self.limit_seconds_per_unit / job.gpu_counts[0]

    @property
    def ingress_rates(self) -> tuple[float, ...]:
        """Arrivals per second at each ingress."""
        if not self.rates_per_second:
            return (self.rate_per_second,) * self.ingresses
        items = comma_list("rates_per_second", self.rates_per_second)
        try:
            rates = tuple(float(item) for item in items)
        except ValueError:
            raise ConfigError(
                f"workload setting rates_per_second={self.rates_per_second[:64]!r} is not numbers with commas"
            ) from None
        if len(rates) != self.ingresses:
            raise ConfigError(
                f"workload setting rates_per_second has {len(rates)} rates for {self.ingresses} ingresses"
            )
        return rates


def poisson_workload(settings: PoissonSettings, seed: int) -> Workload:
    """Return jobs that arrive independently at each ingress; the n-th job of a seed has one size at every rate.

    Raises:
        ConfigError: the seed is negative.
    """
    arrivals, sizes, *mix = workload_streams(seed, STREAMS)
    times = [
        poisson_times(rate, settings.horizon_seconds, np.random.default_rng(stream))
        for rate, stream in zip(settings.ingress_rates, arrivals.spawn(settings.ingresses), strict=True)
    ]
    drawn = np.random.default_rng(sizes).lognormal(settings.log_median, settings.size_sigma, sum(map(len, times)))
    units = np.maximum(settings.smallest_units, drawn)
    return Workload(
        name="poisson", jobs=ingress_jobs(settings, times, units, mix), source=f"generator poisson, seed {seed}"
    )


def ingress_jobs(
    settings: PoissonSettings, times_by_ingress: list[FloatArray], units: FloatArray, mix: list[np.random.SeedSequence]
) -> tuple[Job, ...]:
    """Return jobs in the order of time, numbered from 1.

    Args:
        settings: Their kinds and device counts.
        times_by_ingress: Ascending arrivals [s], one array for each ingress.
        units: Sizes in the order of time over all ingresses, [num_jobs].
        mix: Streams of kinds and of device counts first, that of names last.
    """
    times = np.concatenate(times_by_ingress)
    ingresses = np.repeat(np.arange(len(times_by_ingress)), [len(part) for part in times_by_ingress])
    order = np.argsort(times, kind="stable")
    kinds, widths = _kinds(settings, len(times), mix[0]), _gpu_counts(settings, len(times), mix[1])
    columns = (times[order].tolist(), units.tolist(), kinds, widths, ingresses[order].tolist())
    jobs = tuple(starmap(plain_job, zip(range(1, len(times) + 1), *columns, strict=True)))
    if settings.names_per_kind:
        _name(jobs, settings, np.random.default_rng(mix[-1]))
    if settings.users:
        give_habits(
            jobs, settings.users, mix[-1].spawn(1)[0], shares=settings.habit_shares, seconds_of=settings.seconds_of
        )
    return jobs


def _name(jobs: tuple[Job, ...], settings: PoissonSettings, random: np.random.Generator) -> None:
    """Name jobs after their kind and the share of smaller jobs, in equal parts; who comes is not changed by it."""
    sizes = np.log([max(job.true_units, _SMALLEST) for job in jobs])
    blurred = sizes + random.normal(0.0, settings.name_spread, len(jobs))
    rank = np.empty(len(jobs), dtype=np.int64)
    rank[np.argsort(blurred, kind="stable")] = np.arange(len(jobs))
    for job, place in zip(jobs, (rank * settings.names_per_kind // max(1, len(jobs))).tolist(), strict=True):
        job.name = f"{job.kind}-{place}"


def _kinds(settings: PoissonSettings, count: int, stream: np.random.SeedSequence) -> list[str]:
    names = settings.kind_list
    if len(names) == 1:
        return [names[0]] * count
    return [names[index] for index in np.random.default_rng(stream).integers(0, len(names), count).tolist()]


def _gpu_counts(settings: PoissonSettings, count: int, stream: np.random.SeedSequence) -> list[tuple[int, ...]]:
    mix = settings.gpu_weights
    if not mix:
        return [settings.gpu_counts] * count
    choices = [(gpus,) for gpus in mix]
    edges = np.cumsum(list(mix.values())) / sum(mix.values())
    indices = np.searchsorted(edges[:-1], np.random.default_rng(stream).random(count), side="right")
    return [choices[index] for index in indices.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class DailySettings(PoissonSettings):
    """Rates are means over a period; sizes are log-normal."""

    amplitude: float = 0.5
    """Of the sine, as a share of the mean; above 1 the rate stays at 0 for a part of the period, and the mean rises."""
    period_seconds: float = 86_400.0
    shift_hours: float = 0.0
    """Time by which each ingress is behind the one before it, as time zones are."""

    def __post_init__(self) -> None:
        PoissonSettings.__post_init__(self)
        check_range("amplitude", self.amplitude, 0.0, 100.0)
        check_range("period_seconds", self.period_seconds, 0.0, above=True)
        check_range("shift_hours", self.shift_hours, -1e6, 1e6)
        check_expected_jobs(sum(self.ingress_rates) * (1.0 + self.amplitude) * self.horizon_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSettings(DailySettings):
    """Requests with Pareto sizes; defaults of the code of CHSAC-AF, over one hour."""

    rate_per_second: float = 6.0
    hours: float = 1.0
    kind: str = "inference"
    amplitude: float = 0.6
    period_seconds: float = 300.0
    smallest_units: float = 1.0
    """The scale of the Pareto law: its least value."""
    shape: float = 1.8
    """Exponent of the Pareto law's tail; at 1 or less it has no mean, at 2 or less no variance."""

    def __post_init__(self) -> None:
        DailySettings.__post_init__(self)
        check_range("smallest_units", self.smallest_units, 0.0, above=True)
        check_range("shape", self.shape, 0.01, 1000.0)


def daily_workload(settings: DailySettings, seed: int) -> Workload:
    """Return jobs that arrive at rate(t) = max(0, mean (1 + amplitude sin(2 pi t / period))) at each ingress.

    Raises:
        ConfigError: the seed is negative.
    """
    times, random, mix = _times_and_streams(settings, seed)
    drawn = random.lognormal(settings.log_median, settings.size_sigma, sum(map(len, times)))
    units = np.maximum(settings.smallest_units, drawn)
    return Workload(
        name="daily", jobs=ingress_jobs(settings, times, units, mix), source=f"generator daily, seed {seed}"
    )


def inference_workload(settings: InferenceSettings, seed: int) -> Workload:
    """Return requests that arrive as `daily_workload` says, of size x with P(size > x) = (least / x) ^ shape.

    Raises:
        ConfigError: the seed is negative.
    """
    times, random, mix = _times_and_streams(settings, seed)
    units = settings.smallest_units * (1.0 + random.pareto(settings.shape, sum(map(len, times))))
    return Workload(
        name="inference", jobs=ingress_jobs(settings, times, units, mix), source=f"generator inference, seed {seed}"
    )


def _times_and_streams(
    settings: DailySettings, seed: int
) -> tuple[list[FloatArray], np.random.Generator, list[np.random.SeedSequence]]:
    """Return arrivals by ingress, the stream of the sizes, and those of kinds and device counts."""
    arrivals, sizes, *mix = workload_streams(seed, STREAMS)
    times = [
        _ingress_times(settings, ingress, rate, np.random.default_rng(stream))
        for ingress, (rate, stream) in enumerate(
            zip(settings.ingress_rates, arrivals.spawn(settings.ingresses), strict=True)
        )
    ]
    return times, np.random.default_rng(sizes), mix


def _ingress_times(settings: DailySettings, ingress: int, mean: float, random: np.random.Generator) -> FloatArray:
    shift_seconds = ingress * settings.shift_hours * 3600.0

    def rate(times: FloatArray) -> FloatArray:
        phase = 2.0 * pi * (times - shift_seconds) / settings.period_seconds
        return np.maximum(0.0, mean * (1.0 + settings.amplitude * np.sin(phase)))

    return thinned_times(mean * (1.0 + settings.amplitude), rate, settings.horizon_seconds, random)


_REQUEST_SEED_STEP = 500_000_000
"""Far beyond any seed that is used: the batches' streams are those of another seed, and not the training jobs'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSettings(DailySettings):
    """Training jobs as `daily` has them, and inference batches with a rhythm of their own."""

    request_kind: str = "inference"
    request_rate_per_second: float = 0.04
    """Mean arrivals of batches at each ingress."""
    request_amplitude: float = 0.6
    request_period_seconds: float = 86_400.0
    request_median_units: float = 20_000.0
    request_size_sigma: float = 0.3
    request_max_gpus: int = 8
    request_deadline_seconds: float = 300.0
    """After submission."""
    request_priority: float = 1.0
    """Training jobs have 0."""

    def __post_init__(self) -> None:
        DailySettings.__post_init__(self)
        check_range("request_deadline_seconds", self.request_deadline_seconds, 0.0, above=True)
        check_range("request_priority", self.request_priority, -1e9, 1e9)
        _ = self.requests

    @property
    def requests(self) -> DailySettings:
        """The batches as a workload of their own."""
        return DailySettings(
            rate_per_second=self.request_rate_per_second,
            ingresses=self.ingresses,
            hours=self.hours,
            median_units=self.request_median_units,
            size_sigma=self.request_size_sigma,
            kind=self.request_kind,
            max_gpus=self.request_max_gpus,
            amplitude=self.request_amplitude,
            period_seconds=self.request_period_seconds,
            shift_hours=self.shift_hours,
        )


def mixed_workload(settings: MixedSettings, seed: int) -> Workload:
    """Return both kinds of jobs in the order of time, numbered from 1.

    Raises:
        ConfigError: the seed is negative.
    """
    training = daily_workload(settings, seed).jobs
    requests = daily_workload(settings.requests, seed + _REQUEST_SEED_STEP).jobs
    for job in requests:
        job.deadline_seconds = job.submitted_seconds + settings.request_deadline_seconds
        job.priority = settings.request_priority
        job.is_plain = False
    ordered = sorted((*training, *requests), key=_time)
    for number, job in enumerate(ordered, start=1):
        job.job_id = number
    return Workload(name="mixed", jobs=tuple(ordered), source=f"generator mixed, seed {seed}")


def _time(job: Job) -> float:
    return job.submitted_seconds
