"""GPU types as a site names them in its settings."""

from collections.abc import Mapping

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import ConfigError
from slurm_energy.policy.candidates import catalogue_name


def site_gpu_type(setting: str, key: str, configured: Mapping[str, str]) -> GpuTypeName:
    """Return the type that a key means: the site's own GRES types first, then the catalogue's names.

    Args:
        setting: Name of the table that the key is in, for the message.
        key: A GRES type or a catalogue name.
        configured: [gpu_types].

    Raises:
        ConfigError: it means none.
    """
    if key not in configured and key in CATALOG:
        return GpuTypeName(key)
    name = catalogue_name(key, configured)
    if name is None:
        raise ConfigError(
            f"{setting}.{key[:64]} names no GPU type: neither a key of [gpu_types] with a catalogue name, nor a GRES "
            f"type that the catalogue knows, nor one of {catalogue_names()}"
        )
    return name


def catalogue_names() -> str:
    """Return every catalogue name, for messages."""
    return ", ".join(sorted(CATALOG))
