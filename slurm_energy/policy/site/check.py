"""The one check of a whole configuration, beyond types and bounds of single values: for people and for the daemon."""

import os
from collections.abc import Iterator
from typing import Final

from slurm_energy.config import Config
from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_slurm_type
from slurm_energy.errors import ConfigError
from slurm_energy.forms import check_database_url, is_partition_name, parse_addresses
from slurm_energy.policy.automatic import AUTOMATIC, chosen_policy, learned_faults
from slurm_energy.policy.registry import LEARNED, masked_parts, policy_fault
from slurm_energy.policy.site.clock_terms import price_faults, site_terms
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import (
    catalogue_names,
    fixed_clock_faults,
    locked_clock_faults,
    site_board_limits,
    site_clock_notes,
)

MAX_SOCKET_PATH_BYTES: Final = 107


def check_site(config: Config) -> None:
    """Refuse settings that name something unknown or impossible.

    Raises:
        ConfigError: there is at least one fault; each is a line of the message.
    """
    faults = list(site_faults(config))
    if faults:
        raise ConfigError("\n".join(faults))


def site_faults(config: Config) -> Iterator[str]:
    """Yield every fault, each with the setting, its value and what is allowed."""
    fault = None if config.policy.name == AUTOMATIC else policy_fault(config.policy.name)
    if fault is not None:
        yield f"policy.name: {fault.replace('known: ', f'known: {AUTOMATIC}, ')}"
    if config.policy.name in LEARNED:
        yield from learned_faults(config)
    for key, name in config.gpu_types.items():
        if name not in CATALOG:
            yield f"gpu_types.{key[:64]} is {name[:64]!r}, which is not in the catalogue; known: {catalogue_names()}"
    yield from fixed_clock_faults(config)
    yield from locked_clock_faults(config)
    yield from price_faults(config)
    try:
        site_board_limits(config)
    except ConfigError as error:
        yield str(error)
    yield from _form_faults(config)


def site_notes(config: Config) -> Iterator[str]:
    """Yield what could not be checked, though it may well be right, and why `auto` is not the learned policy here."""
    note = chosen_policy(config).note
    if note:
        yield note
    masked = masked_parts(config.policy.name)
    if masked:
        yield f"policy {config.policy.name} goes without what a submission to Slurm cannot carry out: {masked}"
    yield from site_clock_notes(config)
    if config.policy.name == "fixed-clock":
        yield from _unworthy_clocks(config)


def _unworthy_clocks(config: Config) -> Iterator[str]:
    """Yield the fixed clocks that no job gets, as they save too little for the time that they take."""
    comparison = TypeComparison(limits=site_board_limits(config), terms=site_terms(config))
    for key, clock_mhz in config.policy.fixed_clocks_mhz.items():
        name = gpu_type_from_slurm_type(config.gpu_types.get(key, key))
        every = None if name is None else comparison.all_clocks(name)
        point = None if every is None else every.at(clock_mhz)
        if name is None or point is None or point.mean_slowdown is None:
            continue
        watts = comparison.mean_watts(name)
        if not comparison.terms.is_worth_its_time(point.mean_slowdown, point.energy_change, watts):
            yield (
                f"policy.fixed_clocks_mhz.{key}: jobs get a faster clock than {clock_mhz} MHz, which takes "
                f"{point.mean_slowdown:.1%} more time for {-point.energy_change:.1%} less energy in the mean of "
                f"measured programs; {comparison.terms.sentence(watts)}. Jobs get it with "
                "min_saving_per_slowdown = 0"
            )


def _form_faults(config: Config) -> Iterator[str]:
    try:
        check_database_url(config.store.url)
    except ConfigError as error:
        yield str(error)
    try:
        if config.node.daemon_address:
            parse_addresses(config.node.daemon_address)
    except ConfigError as error:
        yield str(error)
    yield from _path_faults(config)
    for name in config.routing.partitions:
        if not is_partition_name(name):
            yield (
                f"routing.partitions has {name[:64]!r}, which no partition can be called: 1 to 64 letters, digits, "
                "'_', '.' and '-'"
            )


def _path_faults(config: Config) -> Iterator[str]:
    paths = {
        "daemon.socket_path": config.daemon.socket_path,
        "daemon.state_directory": config.daemon.state_directory,
        "node.spool_directory": config.node.spool_directory,
    }
    for name, path in paths.items():
        if not path.startswith("/"):
            yield f"{name} is {path[:200]!r}: write an absolute path"
    length = len(os.fsencode(config.daemon.socket_path))
    bound = MAX_SOCKET_PATH_BYTES - len(".ctl")
    if length > bound:
        yield f"daemon.socket_path has {length} bytes: a unix socket's path has at most {bound}, and .ctl behind it"
