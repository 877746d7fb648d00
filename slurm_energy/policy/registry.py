"""Policies by name."""

from collections.abc import Callable, Mapping

from slurm_energy.config import Config
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import PolicyError
from slurm_energy.policy.base import Policy
from slurm_energy.policy.baselines import FixedClockPolicy, SlurmDefaultPolicy
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.site_clocks import fixed_clocks
from slurm_energy.policy.site_limits import site_board_limits

_POLICIES: Mapping[str, Callable[[Config], Policy]] = {
    "slurm-default": lambda config: SlurmDefaultPolicy(),  # noqa: ARG005  # every entry has the same form
    "fixed-clock": lambda config: FixedClockPolicy(fixed_clocks(config), config.policy.max_slowdown),
    "oracle": lambda config: OraclePolicy(),  # noqa: ARG005  # every entry has the same form
}


def policy_names() -> tuple[str, ...]:
    """Return the name of every policy."""
    return tuple(_POLICIES)


def create_policy(config: Config) -> Policy:
    """Return the policy that the configuration names, with every clock table worked out: the first job waits for none.

    Raises:
        PolicyError: there is no policy of that name.
        ConfigError: the site gives a power limit or a clock to GPUs that nobody knows.
    """
    try:
        build = _POLICIES[config.policy.name]
    except KeyError:
        raise PolicyError(f"policy {config.policy.name!r} does not exist; known: {', '.join(_POLICIES)}") from None
    limits = site_board_limits(config)
    for name in CATALOG:
        clock_table_of(name, power_limit_watts=limits.watts(name))
    return build(config)
