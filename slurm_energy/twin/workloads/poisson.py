"""Poisson arrivals at several ingresses with log-normal sizes: the load of the published geo-distributed world.

Defaults are those of the code of CHSAC-AF: 8 ingresses with 0.02 jobs/s each over 7 days, sizes
LogNormal(ln 50,000, 0.4) with 0.1 as the least, 1 to 8 GPUs.
"""

from dataclasses import dataclass
from itertools import starmap
from math import log

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload, plain_job
from slurm_energy.twin.workloads.habits import give_habits
from slurm_energy.twin.workloads.settings import check_expected_jobs, check_range, comma_list
from slurm_energy.twin.workloads.streams import FloatArray, poisson_times, workload_streams

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
        _ = self.kind_list, self.gpu_weights
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
        for item in comma_list("gpu_mix", self.gpu_mix) if self.gpu_mix else ():
            count, _, weight = item.partition(":")
            try:
                found[int(count)] = float(weight)
            except ValueError:
                raise ConfigError(f"workload setting gpu_mix has {item[:64]!r}, not COUNT:WEIGHT") from None
            check_range("gpu_mix", int(count), 1, 100_000)
            check_range("gpu_mix", float(weight), 0.0, above=True)
        return found

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
        give_habits(jobs, settings.users, mix[-1].spawn(1)[0])
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
    weights = settings.gpu_weights
    if not weights:
        return [settings.gpu_counts] * count
    choices = [(gpus,) for gpus in weights]
    edges = np.cumsum(list(weights.values())) / sum(weights.values())
    indices = np.searchsorted(edges[:-1], np.random.default_rng(stream).random(count), side="right")
    return [choices[index] for index in indices.tolist()]
