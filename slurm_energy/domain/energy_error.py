"""How wrong a measured energy can be, as a share of it: the counter's timing, and the sensor's calibration.

Beside both stands the scope: what a figure covers at all (`EnergyScope`), which is no error and is said with it.
"""

from dataclasses import dataclass

from slurm_energy.domain.energy import EnergyScope, EnergySource

COUNTER_INTERVAL_SECONDS = 0.1
"""NVML's energy counter moved every 52 to 103 ms on a measured H100, so that each of the two readings may be
that much too old."""
POLLED_ERROR_SHARE = 0.05
"""Sampled power, integrated, was 3 % (mean) from the counter over windows of 3 s; 5 % covers longer windows."""
CALIBRATION_ERROR_SHARE = 0.05
"""Of the board's power sensor, which counter and samples share. NVML's documentation of nvmlDeviceGetPowerUsage states
+-5 % of the power drawn for Fermi and Kepler and nothing for newer boards; docs/explanation/measurement.md has more."""


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
