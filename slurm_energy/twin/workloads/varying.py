"""Arrivals whose rate rises and falls as a sine: training jobs over the day, inference requests over minutes."""

from dataclasses import dataclass
from math import pi

import numpy as np

from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.poisson import STREAMS, PoissonSettings, ingress_jobs
from slurm_energy.twin.workloads.settings import check_expected_jobs, check_range
from slurm_energy.twin.workloads.streams import FloatArray, thinned_times, workload_streams


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
