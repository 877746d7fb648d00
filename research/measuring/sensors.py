"""What a node's sensors make of a made program: averages, noise, steps, missing and late samples, counters of work."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from research.measuring.programs import STEP_SECONDS, Floats, Program, render
from slurm_energy.estimation.iterations.traces import Trace, moving_mean

PCIE_AVERAGING_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """One board's way to report."""

    averaging_seconds: float
    noise_watts: float
    step_watts: float
    interval_seconds: float
    late: float
    """Standard deviation of a sample's delay over the interval."""
    missing: float
    """Share of samples that are not there."""
    counter_seconds: float
    """Above 0: power comes from an energy counter that moves this often."""
    rate_noise: float
    """Of one reading of a counter of work, over its mean."""
    rate_averaging_seconds: float
    rate_offset: float
    """Share of the counter that is not the work's: other traffic."""


def draw_sensor(rng: Generator) -> Sensor:
    """Return a sensor at random."""
    return Sensor(
        averaging_seconds=float(rng.choice([0.025, 0.05, 0.1, 0.2, 0.5, 1.0], p=[0.25, 0.2, 0.25, 0.15, 0.1, 0.05])),
        noise_watts=float(rng.uniform(1.0, 5.0)),
        step_watts=float(rng.choice([0.001, 0.1, 1.0])),
        interval_seconds=0.1,
        late=float(rng.choice([0.0, 0.05, 0.15])),
        missing=float(rng.choice([0.0, 0.01, 0.05])),
        counter_seconds=float(rng.choice([0.0, 0.0, rng.uniform(0.052, 0.103)])),
        rate_noise=float(rng.uniform(0.02, 0.15)),
        rate_averaging_seconds=float(rng.choice([0.17, 0.5, 1.0])),
        rate_offset=float(rng.choice([0.0, 0.0, 0.05])),
    )


def observe(
    program: Program, sensor: Sensor, clock: float, seconds: float, rng: Generator, *, with_rates: bool = True
) -> Trace:
    """Return what a sampler records in one window."""
    lead = 2.0
    watts, work = render(program, clock, seconds + lead, rng)
    times = lead + np.arange(0.0, seconds - 0.2, sensor.interval_seconds)
    # Readings of a counter are spread on purpose: at regular times its steps make a rhythm of their own.
    late = max(sensor.late, 0.25) if sensor.counter_seconds else sensor.late
    times = times + np.abs(rng.normal(0.0, late * sensor.interval_seconds, times.size))
    if sensor.missing:
        times = times[rng.uniform(size=times.size) >= sensor.missing]
        hole = float(rng.uniform(lead, seconds))
        times = times[(times < hole) | (times > hole + rng.exponential(0.5))]
    times = np.sort(times[times < seconds + lead - 0.1])
    place = (times / STEP_SECONDS).astype(int)
    rates: dict[str, Floats] = {}
    if with_rates:
        rates["pcie"] = _rate(work, sensor, PCIE_AVERAGING_SECONDS, place, rng) * 2.0e9
        rates["memory_utilisation"] = np.round(_rate(work, sensor, sensor.rate_averaging_seconds, place, rng) * 55.0)
    mhz = 1410.0 * clock
    if sensor.counter_seconds > 0.0:
        joules = np.concatenate(([0.0], np.cumsum(watts) * STEP_SECONDS))
        moved = np.floor(times / sensor.counter_seconds) * sensor.counter_seconds
        counter = np.round(joules[(moved / STEP_SECONDS).astype(int)], 3)
        return Trace.from_energy_counter(times, counter, sm_clock_mhz=mhz, work_rates=rates)
    width = max(1, round(sensor.averaging_seconds / STEP_SECONDS))
    sums = np.concatenate(([0.0], np.cumsum(watts)))
    read = (sums[place + 1] - sums[np.maximum(place + 1 - width, 0)]) / np.minimum(place + 1, width)
    read = read + rng.normal(0.0, sensor.noise_watts, read.size)
    return Trace(
        seconds=times, watts=np.round(read / sensor.step_watts) * sensor.step_watts, sm_clock_mhz=mhz, work_rates=rates
    )


def _rate(work: Floats, sensor: Sensor, averaging_seconds: float, place: NDArray[np.intp], rng: Generator) -> Floats:
    values = moving_mean(work, round(averaging_seconds / STEP_SECONDS))[place]
    values = values * np.exp(rng.normal(0.0, sensor.rate_noise, values.size))
    return np.asarray(values + sensor.rate_offset * float(work.mean()))
