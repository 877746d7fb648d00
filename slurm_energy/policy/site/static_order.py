"""Which GPU types do the same work for the least energy, by tables: the order for a site's partitions and nodes."""

from collections.abc import Iterable
from typing import NamedTuple

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.site.clock_terms import site_terms
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits


class TypeEnergy(NamedTuple):
    """A GPU type beside the cheapest."""

    gpu_type: GpuTypeName
    energy_ratio: float
    """Joules of the same work over those on the cheapest type, at the best static clocks."""
    time_ratio: float
    """Time over that on the same, at default clocks."""
    by_sheets: bool
    """Whether data sheets alone say so."""


def static_order(types: Iterable[GpuTypeName], config: Config) -> tuple[TypeEnergy, ...]:
    """Return GPU types by the energy of the same work, the least first; none where one cannot be compared.

    Raises:
        ConfigError: the site gives a power limit to GPUs that are not known.
    """
    comparison = TypeComparison(limits=site_board_limits(config), terms=site_terms(config))
    names = sorted(set(types))
    energies: dict[GpuTypeName, float] = {}
    for name in names:
        cost = comparison.cost(name, names[0])
        if cost is None:
            return ()
        table = comparison.clock_table(name)
        point = None if table is None else table.best(config.policy.max_slowdown)
        energies[name] = cost.energy_ratio * (1.0 if point is None else 1.0 + point.energy_change)
    ordered = sorted(names, key=lambda name: (energies[name], name))
    found = []
    for name in ordered:
        cost = comparison.cost(name, ordered[0])
        if cost is None:
            return ()
        ratio = energies[name] / energies[ordered[0]]
        found.append(TypeEnergy(name, ratio, cost.time_ratio, cost.source == "specification"))
    return tuple(found)
