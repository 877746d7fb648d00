"""The site's word on its boards' power limits, from configuration names to catalogue names."""

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.board_limits import BoardLimits
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import ConfigError
from slurm_energy.policy.candidates import catalogue_name

_SECTION = "gpu_power_limits_watts"


def site_board_limits(config: Config) -> BoardLimits:
    """Return the limits of the site's boards; a type that it does not name has the catalogue's.

    Raises:
        ConfigError: a key names no GPU type, or two keys give one type different limits.
    """
    keys: dict[GpuTypeName, str] = {}
    watts: dict[GpuTypeName, float] = {}
    for key, limit_watts in config.gpu_power_limits_watts.items():
        name = _named(key, config)
        if watts.setdefault(name, limit_watts) != limit_watts:
            raise ConfigError(
                f"{_SECTION}: {keys[name]} and {key} are both {name} and cannot have {watts[name]:g} and "
                f"{limit_watts:g} W: give the highest, so that none is slowed too much"
            )
        keys[name] = key
    return BoardLimits(site_watts=watts)


def _named(key: str, config: Config) -> GpuTypeName:
    """Return the type that a key means: the site's own GRES types first, then the catalogue's names."""
    if key not in config.gpu_types and key in CATALOG:
        return GpuTypeName(key)
    name = catalogue_name(key, config.gpu_types)
    if name is None:
        raise ConfigError(
            f"{_SECTION}.{key} names no GPU type: neither a key of [gpu_types] with a catalogue name, nor a GRES type "
            f"that the catalogue knows, nor one of {', '.join(sorted(CATALOG))}"
        )
    return name
