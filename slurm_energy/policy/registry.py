"""Policies by name: one list for whoever decides jobs at submission and for the simulated cluster."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import PolicyError, SlurmEnergyError
from slurm_energy.policy.automatic import LEARNED_POLICY, chosen_policy, missing_modules
from slurm_energy.policy.base import Policy
from slurm_energy.policy.baselines import FixedClockPolicy, SlurmDefaultPolicy
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.placement import AT_SUBMISSION
from slurm_energy.policy.rules.registry import create_rule, rule_entry, rule_names
from slurm_energy.policy.rules.settings import split_text
from slurm_energy.policy.site.settings import fixed_clocks, site_board_limits
from slurm_energy.policy.submission.rule_policy import RulePolicy
from slurm_energy.resources import install_command

_BUILT_IN: Mapping[str, Callable[[Config], Policy]] = {
    "slurm-default": lambda config: SlurmDefaultPolicy(),  # noqa: ARG005  # every entry has the same form
    "fixed-clock": lambda config: FixedClockPolicy(fixed_clocks(config), config.policy.max_slowdown),
    "oracle": lambda config: OraclePolicy(),  # noqa: ARG005  # every entry has the same form
}
"""Need nothing but the base installation."""
LEARNED = frozenset({LEARNED_POLICY})
"""Policies that need a checkpoint, and a process of their own: torch is slow to import and may fail in its own ways."""


def policy_names() -> tuple[str, ...]:
    """Return the name of every policy that can decide jobs and be made from settings alone."""
    served = (name for name in rule_names() if rule_entry(name).needs <= AT_SUBMISSION)
    return tuple(dict.fromkeys((*_BUILT_IN, *served)))


def known_policy_names() -> tuple[str, ...]:
    """Return the name of every policy that can decide jobs, those that need a checkpoint last."""
    return (*policy_names(), *sorted(LEARNED))


def policy_summary(name: str) -> str:
    """Return what a policy that is made from settings alone does, in one line."""
    if name in _BUILT_IN:
        return (type(_BUILT_IN[name](Config())).__doc__ or "").strip().splitlines()[0]
    return rule_entry(name).summary


def policy_fault(text: str) -> str | None:
    """Return why `policy.name` cannot be served as it is written, None if it can; a checkpoint is not looked at.

    Args:
        text: A name, and a rule's settings after a colon: `total-cost:V=20`.
    """
    name = text.partition(":")[0]
    if text in LEARNED or text in _BUILT_IN:
        return None
    if name in _BUILT_IN or name in LEARNED:
        return f"policy {name} takes no settings after its name: {text[:64]!r}; its settings are those of [policy]"
    if name not in rule_names():
        return f"policy {text[:40]!r} does not exist; known: {', '.join(known_policy_names())}"
    missing = rule_entry(name).needs - AT_SUBMISSION
    if missing:
        return (
            f"policy {name} cannot decide jobs: it reads {' and '.join(sorted(missing))}, which is not known at "
            f"submission; known: {', '.join(known_policy_names())}"
        )
    if "numpy" in missing_modules():
        return f"policy {text[:64]} needs numpy, which is not installed: {install_command('daemon')}"
    try:
        create_rule(text)
    except SlurmEnergyError as error:
        return str(error)
    return None


def rule_settings(name: str) -> Callable[[str], bool]:
    """Return what says whether a key is a setting of the policy's own text."""
    if name in _BUILT_IN or name not in rule_names():
        return lambda key: False  # noqa: ARG005  # none is
    entry = rule_entry(name)
    known = {setting.name for setting in entry.settings}
    return lambda key: key in known or bool(entry.clock_keys)


def masked_parts(text: str) -> str:
    """Return what a rule makes use of and a submission to Slurm cannot carry out; empty for every other policy."""
    if text.partition(":")[0] not in rule_names() or text in _BUILT_IN or policy_fault(text) is not None:
        return ""
    return "; ".join(sorted(create_rule(text).uses - AT_SUBMISSION))


def create_policy(config: Config) -> Policy:
    """Return the policy that the configuration names, with every clock table worked out: the first job waits for none.

    Raises:
        PolicyError: there is no policy of that name, its settings or its checkpoint cannot be used.
        ConfigError: the site gives a power limit or a clock to GPUs that nobody knows.
    """
    config = chosen_policy(config).config
    text = config.policy.name
    fault = policy_fault(text)
    if fault is not None:
        raise PolicyError(fault)
    limits = site_board_limits(config)
    for gpu_type in CATALOG:
        clock_table_of(gpu_type, power_limit_watts=limits.watts(gpu_type))
    if text in LEARNED:
        return _learned(config)
    if text in _BUILT_IN:
        return _BUILT_IN[text](config)
    return RulePolicy(
        create_rule(text), config.gpu_types, settings=",".join(f"{k}={v}" for k, v in split_text(text)[1].items())
    )


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
