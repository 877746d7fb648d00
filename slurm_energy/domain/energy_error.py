"""How wrong a measured energy can be, as a share of it."""

from slurm_energy.domain.energy import EnergyScope, EnergySource

COUNTER_INTERVAL_SECONDS = 0.1
"""NVML's energy counter moved every 52 to 103 ms on a measured H100, so that each of the two readings may be
that much too old."""
POLLED_ERROR_SHARE = 0.05
"""Sampled power, integrated, was 3 % (mean) from the counter over windows of 3 s; 5 % covers longer windows."""


def relative_error(source: EnergySource, scope: EnergyScope, coverage_seconds: float) -> float | None:
    """Return a bound on |measured - true| / measured, from the reading alone; None when it has none.

    Each end of the window misses at most one update interval at the mean power, and the mean power is
    joules / coverage, so the bound is 2 x 0.1 s / coverage, plus 5 % when power was polled. It is at most 1.
    Not in it: the calibration of the board's power sensor (NVIDIA states +-5 %), which all sources share and
    which cancels when two runs on one GPU are compared.

    An energy from a model, or a share of a GPU that others used too, has no bound.
    """
    if source in {EnergySource.MODEL, EnergySource.NONE}:
        return None
    if scope in {EnergyScope.MIG_ESTIMATE, EnergyScope.SHARED_ESTIMATE}:
        return None
    if coverage_seconds <= 0.0:
        return 1.0
    share = 2.0 * COUNTER_INTERVAL_SECONDS / coverage_seconds
    if source is EnergySource.POLLED:
        share += POLLED_ERROR_SHARE
    return min(1.0, share)


def predicted_saving_joules(joules: float, predicted_energy_change: float) -> float:
    """Return joules saved against the default clock, by the prediction: E x (-c / (1 + c)) for a change c.

    E was measured at the chosen clock and is (1 + c) times the energy at the default clock. Not measured: the
    default clock's energy of the same run cannot be.
    """
    return joules * -predicted_energy_change / (1.0 + predicted_energy_change)
