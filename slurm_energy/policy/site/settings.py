"""A site's settings of its GPUs: types, power limits, the clocks of `fixed-clock` and those locked by the site."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits, gpu_type_from_slurm_type
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.energy_model.site_curves import use_site_curves
from slurm_energy.errors import ConfigError, DataFileError
from slurm_energy.policy.site.candidates import catalogue_name

_SECTION = "gpu_power_limits_watts"
_FIXED = "policy.fixed_clocks_mhz"
_LOCKED = "node.site_locked_clocks_mhz"


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


def site_board_limits(config: Config) -> BoardLimits:
    """Return the limits of the site's boards; a type that it does not name has the catalogue's.

    Clock tables are asked for next: from here on these rest on the curves of the site's own boards, where
    `policy.curves_file` names some.

    Raises:
        ConfigError: a key names no GPU type, two keys give one type different limits, or the file of curves is none.
    """
    try:
        file = Path(config.policy.curves_file) if config.policy.curves_file else None
        use_site_curves(file, assumed=config.policy.assumed_curves)
    except DataFileError as error:
        raise ConfigError(f"policy.curves_file: {error}") from error
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


def fixed_clocks(config: Config) -> dict[GpuTypeName, int]:
    """Return the clock of each GPU type under `fixed-clock`.

    Raises:
        ConfigError: a key names no GPU type.
    """
    given = config.policy.fixed_clocks_mhz
    return {site_gpu_type(_FIXED, key, config.gpu_types): clock for key, clock in given.items()}


def fixed_clock_faults(config: Config) -> Iterator[str]:
    """Yield what is wrong with the clocks of `fixed-clock`."""

    def named(key: str) -> GpuTypeName:
        return site_gpu_type(_FIXED, key, config.gpu_types)

    yield from _faults(_FIXED, config.policy.fixed_clocks_mhz, named, _fixed_fault)


def locked_clock_faults(config: Config) -> Iterator[str]:
    """Yield what is wrong with the clocks that the site has locked; hooks put them back without seeing [gpu_types]."""

    def named(key: str) -> GpuTypeName:
        name = gpu_type_from_slurm_type(key)
        if name is None:
            raise ConfigError(
                f"{_LOCKED}.{key[:64]} names no GPU type that hooks know; they do not read [gpu_types]: give a GRES "
                f"type that the catalogue knows, or one of {catalogue_names()}"
            )
        if config.gpu_types.get(key, name) != name:
            raise ConfigError(
                f"{_LOCKED}.{key} means {name} to hooks and {config.gpu_types[key]} by [gpu_types], which they do not "
                "read: give the catalogue name"
            )
        return name

    yield from _faults(_LOCKED, config.node.site_locked_clocks_mhz, named, _locked_fault)


def site_clock_notes(config: Config) -> Iterator[str]:
    """Yield what could not be checked."""
    for key in config.node.site_locked_clocks_mhz:
        name = gpu_type_from_slurm_type(key)
        if name is not None and not CATALOG[name].sm_clocks_mhz:
            yield f"{_LOCKED}.{key}: the catalogue has no clock table of {name}, so only its highest clock was compared"


def _faults(
    setting: str,
    clocks_mhz: Mapping[str, int],
    named: Callable[[str], GpuTypeName],
    fault_of: Callable[[GpuTypeName, int], str | None],
) -> Iterator[str]:
    seen: dict[GpuTypeName, str] = {}
    for key, clock in clocks_mhz.items():
        try:
            name = named(key)
        except ConfigError as error:
            yield str(error)
            continue
        fault = fault_of(name, clock)
        if fault is not None:
            yield f"{setting}.{key} {fault}"
        first = seen.setdefault(name, key)
        if clocks_mhz[first] != clock:
            yield f"{setting}: {first} and {key} are both {name} and cannot have {clocks_mhz[first]} and {clock} MHz"


def _fixed_fault(name: GpuTypeName, clock_mhz: int) -> str | None:
    table = clock_table_of(name)
    if table is None:
        measured = ", ".join(sorted(other for other in CATALOG if clock_table_of(other) is not None))
        return f"is {clock_mhz}, but {name} has no clock table: no clock is ever chosen for it; measured: {measured}"
    return _table_fault(name, clock_mhz, [point.sm_clock_mhz for point in table.points])


def _locked_fault(name: GpuTypeName, clock_mhz: int) -> str | None:
    row = CATALOG[name]
    if row.sm_clocks_mhz:
        return _table_fault(name, clock_mhz, row.sm_clocks_mhz)
    if row.max_sm_clock_mhz is not None and clock_mhz > row.max_sm_clock_mhz:
        return f"is {clock_mhz}, but {name} runs at {row.max_sm_clock_mhz} MHz at most"
    return None


def _table_fault(name: GpuTypeName, clock_mhz: int, table_mhz: Sequence[int]) -> str | None:
    if clock_mhz in table_mhz:
        return None
    nearest = min(table_mhz, key=lambda clock: (abs(clock - clock_mhz), -clock))
    return (
        f"is {clock_mhz}, which is not in the clock table of {name}: {table_mhz[0]} to {table_mhz[-1]} MHz; "
        f"the nearest is {nearest} MHz"
    )
