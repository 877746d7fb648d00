"""The power limit of the boards in question: what a site says, else what the catalogue says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import gpu_type as catalog_row


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """Power limits by GPU type; never those of the boards that happened to be measured."""

    site_watts: Mapping[GpuTypeName, float] = field(default_factory=dict)
    """Types whose boards have another limit than the catalogue's."""

    def watts(self, gpu_type: GpuTypeName) -> float:
        """Return the limit in W of the boards of a type; infinite where it is unknown."""
        return self.site_watts.get(gpu_type) or catalogue_limit_watts(gpu_type)

    def known_watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the limit in W of the boards of a type, None when it is unknown."""
        limit_watts = self.watts(gpu_type)
        return limit_watts if isfinite(limit_watts) else None


LIMIT_TOLERANCE = 0.02
"""Ratio by which a real limit may differ from the one that was assumed, for rounding and boards set a little apart."""

CATALOGUE_LIMITS = BoardLimits()
"""Boards as their makers ship them."""


def catalogue_limit_watts(gpu_type: GpuTypeName) -> float:
    """Return the limit in W with which boards of a type are shipped; infinite when the catalogue has none."""
    row = catalog_row(gpu_type)
    return inf if row is None or row.power_limit_watts is None else row.power_limit_watts
