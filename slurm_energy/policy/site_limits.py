"""The site's word on its boards' power limits, from configuration names to catalogue names."""

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.errors import ConfigError
from slurm_energy.policy.site_types import site_gpu_type

_SECTION = "gpu_power_limits_watts"


def site_board_limits(config: Config) -> BoardLimits:
    """Return the limits of the site's boards; a type that it does not name has the catalogue's.

    Raises:
        ConfigError: a key names no GPU type, or two keys give one type different limits.
    """
    keys: dict[GpuTypeName, str] = {}
    watts: dict[GpuTypeName, float] = {}
    for key, limit_watts in config.gpu_power_limits_watts.items():
        name = site_gpu_type(_SECTION, key, config.gpu_types)
        if watts.setdefault(name, limit_watts) != limit_watts:
            raise ConfigError(
                f"{_SECTION}: {keys[name]} and {key} are both {name} and cannot have {watts[name]:g} and "
                f"{limit_watts:g} W: give the highest, so that none is slowed too much"
            )
        keys[name] = key
    return BoardLimits(site_watts=watts)
