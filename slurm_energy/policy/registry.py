"""Policies by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import PolicyError
from slurm_energy.policy.automatic import LEARNED_POLICY, chosen_policy
from slurm_energy.policy.base import Policy
from slurm_energy.policy.baselines import FixedClockPolicy, SlurmDefaultPolicy
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.site_clocks import fixed_clocks
from slurm_energy.policy.site_limits import site_board_limits
from slurm_energy.resources import install_command

_POLICIES: Mapping[str, Callable[[Config], Policy]] = {
    "slurm-default": lambda config: SlurmDefaultPolicy(),  # noqa: ARG005  # every entry has the same form
    "fixed-clock": lambda config: FixedClockPolicy(fixed_clocks(config), config.policy.max_slowdown),
    "oracle": lambda config: OraclePolicy(),  # noqa: ARG005  # every entry has the same form
}
LEARNED = frozenset({LEARNED_POLICY})
"""Policies that need a checkpoint, and a process of their own: torch is slow to import and may fail in its own ways."""


def policy_names() -> tuple[str, ...]:
    """Return the name of every policy that can be made from settings alone."""
    return tuple(_POLICIES)


def known_policy_names() -> tuple[str, ...]:
    """Return the name of every policy, those that need a checkpoint last."""
    return (*_POLICIES, *sorted(LEARNED))


def create_policy(config: Config) -> Policy:
    """Return the policy that the configuration names, with every clock table worked out: the first job waits for none.

    Raises:
        PolicyError: there is no policy of that name, or its checkpoint cannot be used.
        ConfigError: the site gives a power limit or a clock to GPUs that nobody knows.
    """
    config = chosen_policy(config).config
    name = config.policy.name
    if name not in known_policy_names():
        raise PolicyError(f"policy {name!r} does not exist; known: {', '.join(known_policy_names())}")
    limits = site_board_limits(config)
    for gpu_type in CATALOG:
        clock_table_of(gpu_type, power_limit_watts=limits.watts(gpu_type))
    return _learned(config) if name in LEARNED else _POLICIES[name](config)


def baseline_of(config: Config) -> Policy:
    """Return the policy that answers where the learned one cannot.

    Raises:
        ConfigError: as in `create_policy`.
    """
    return create_policy(replace(config, policy=replace(config.policy, name=config.policy.baseline)))


def _learned(config: Config) -> Policy:
    try:
        from slurm_energy.policy.gnn.policy import load_policy  # noqa: PLC0415  # torch, for whoever serves it only
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"policy {config.policy.name} cannot be loaded, {error}: {install_command('daemon')}"
        ) from error
    return load_policy(config)
