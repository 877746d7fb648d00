"""What a second and a joule are worth to a job, by its mode, and how a network moves these prices; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from slurm_energy.config import PolicyConfig
from slurm_energy.domain.job import EnergyMode

JobWeights = tuple[float, float]
"""w_time and w_energy of a job."""
BALANCED_WEIGHTS: JobWeights = (0.5, 0.5)
MODE_WEIGHTS: Mapping[EnergyMode, JobWeights] = {
    EnergyMode.BALANCED: BALANCED_WEIGHTS,
    EnergyMode.SAVER: (0.2, 0.8),
}
"""w_time and w_energy of each mode (abstract and section 3.4 of the hierarchical GNN paper); one network serves all.
Defaults: see `site_weights`."""
JOB_PRICES = ("time_watts", "slowdown_joules", "share", "opened_nodes", "waking")
"""In the order of the network's outputs for a job; fields of `policy.rules.cost_table.Prices`."""
LARGEST = 3.0
"""A price is moved by a factor from exp(-3) to exp(3)."""
_RELATIVE_SCALE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePrices:
    """What a network of prices starts from: it multiplies each of them by a factor of its own."""

    slowdown: float
    """Of one more run time, in terms of the job's own least energy."""
    time_watts: float = 0.0
    """Of a second of the job. 0: when a job starts is Slurm's, and how much longer it may run is its slowdown bound."""
    share: float = 1.0
    """Of a joule of the job's share of nodes that would else be asleep."""
    opened_nodes: float = 0.1
    """Of a joule of such a node that has no other job."""
    waking: float = 1.0
    """Of a joule that wakes a node."""
    scarcity: float = 1.0
    """Of a GPU of a full partition for as long as it is held, in terms of what it draws there at its highest clock."""


BALANCED_PRICES = ModePrices(slowdown=0.3)
"""A clock that makes the job 1 % longer must save 0.3 % of its energy."""
MODE_PRICES: Mapping[EnergyMode, ModePrices] = {
    EnergyMode.BALANCED: BALANCED_PRICES,
    EnergyMode.SAVER: ModePrices(slowdown=0.1),
}
"""By mode. Far below 1, since the bound already limits what a user gives up; above 0, since the last clocks inside it
save next to nothing."""


def site_weights(policy: PolicyConfig) -> Mapping[EnergyMode, JobWeights]:
    """Return what time and energy are worth to jobs of each mode at a site; `MODE_WEIGHTS` where it says nothing."""
    seconds = {EnergyMode.BALANCED: policy.balanced_time_weight, EnergyMode.SAVER: policy.saver_time_weight}
    return {mode: (weight, 1.0 - weight) for mode, weight in seconds.items()}


def price_factors(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by what prices are multiplied, exp(3 tanh(raw / 3))."""
    found: NDArray[np.float32] = np.exp(LARGEST * np.tanh(raw / LARGEST))
    return found


def relative_joules(own: float, mean: float) -> float:
    """Return the column that says how large a job is, ln(own / mean) / 4; 0 where one of them is not known."""
    return log(own / mean) / _RELATIVE_SCALE if 0.0 < own < float("inf") and mean > 0.0 else 0.0
