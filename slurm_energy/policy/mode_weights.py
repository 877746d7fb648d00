"""What a second and a joule are worth to a job, by its mode: the same for whoever trains and whoever serves."""

from collections.abc import Mapping

from slurm_energy.domain.job import EnergyMode

BALANCED_WEIGHTS = (0.5, 0.5)
MODE_WEIGHTS: Mapping[EnergyMode, tuple[float, float]] = {
    EnergyMode.BALANCED: BALANCED_WEIGHTS,
    EnergyMode.SAVER: (0.2, 0.8),
}
"""w_time and w_energy of each mode (abstract and section 3.4 of the hierarchical GNN paper); one network serves all."""
