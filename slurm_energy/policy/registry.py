"""Policies by name: one list for submissions to Slurm, the simulated cluster and training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from slurm_energy.config import Config
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import PolicyError, SlurmEnergyError
from slurm_energy.policy.automatic import LEARNED_POLICY, chosen_policy, missing_modules
from slurm_energy.policy.base import Policy
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.placement import AT_SUBMISSION, Capabilities, Capability, PlacementRule
from slurm_energy.policy.rules.settings import (
    ADAPTIVE_PRICE,
    CAP,
    GOGH,
    HIGHEST,
    LOWEST_CLOCK,
    SHARE,
    TIME_PRICE,
    TOTAL_COST,
    WAKE,
    Setting,
    adaptive_values,
    checked_number,
    clock_setting,
    clocks_by_job,
    policy_name,
    read_settings,
    split_text,
    total_cost_settings,
)
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.resources import install_command

EXACT = OraclePolicy.name
"""A policy that is asked at submissions alone: the arena runs it as the daemon serves it."""
BASELINES = {
    "slurm-default": "Changes nothing.",
    "fixed-clock": "One clock per GPU type for every job: the site's table, else the best inside the site's bound.",
    EXACT: "Exact on what was measured: nothing better exists among the supported clocks under the same bound.",
}
"""What they do at a site. They need nothing but the base installation, and their settings are those of [policy]."""
LEARNED = frozenset({LEARNED_POLICY})
"""Policies that need a checkpoint, and a process of their own: torch is slow to import and may fail in its own ways."""


def policy_names() -> tuple[str, ...]:
    """Return the name of every policy that can decide jobs and be made from settings alone."""
    served = (name for name in rule_names() if rule_entry(name).needs <= AT_SUBMISSION)
    return tuple(dict.fromkeys((*BASELINES, *served)))


def known_policy_names() -> tuple[str, ...]:
    """Return the name of every policy that can decide jobs, those that need a checkpoint last."""
    return (*policy_names(), *sorted(LEARNED))


def policy_summary(name: str) -> str:
    """Return what a policy that is made from settings alone does, in one line."""
    return BASELINES.get(name) or rule_entry(name).summary


def policy_fault(text: str) -> str | None:
    """Return why `policy.name` cannot be served as it is written, None if it can; a checkpoint is not looked at.

    Args:
        text: A name, and a rule's settings after a colon: `total-cost:V=20`.
    """
    name = policy_name(text)
    if text in LEARNED or text in BASELINES:
        return None
    if name in BASELINES or name in LEARNED:
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
    """Return what says whether a key is a setting of the policy's own text, or was one in earlier releases."""
    if name in BASELINES or name not in rule_names():
        return lambda key: False  # noqa: ARG005  # none is
    entry = rule_entry(name)
    known = {name for setting in entry.settings for name in (setting.name, setting.former_name)}
    return lambda key: key in known or bool(entry.clock_keys)


def masked_parts(text: str) -> str:
    """Return what a rule makes use of and a submission to Slurm cannot carry out; empty for every other policy."""
    if policy_name(text) not in rule_names() or policy_fault(text) is not None:
        return ""
    return "; ".join(sorted(create_rule(text).uses - AT_SUBMISSION))


def create_policy(config: Config) -> Policy:
    """Return the policy that the configuration names, with every clock table worked out: the first job waits for none.

    Raises:
        PolicyError: there is no policy of that name, its settings or its checkpoint cannot be used.
        ConfigError: the site gives a power limit or a clock to GPUs that are not known.
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
    if text == EXACT:
        return OraclePolicy()
    rule = create_rule(text)
    rule.take_site(config, ",".join(f"{key}={value}" for key, value in split_text(text)[1].items()))
    return rule


def baseline_of(config: Config) -> Policy:
    """Return the policy that answers where the learned one cannot.

    Raises:
        ConfigError: as in `create_policy`.
    """
    return create_policy(replace(config, policy=replace(config.policy, name=config.policy.baseline)))


def _learned(config: Config) -> Policy:
    try:
        from slurm_energy.policy.gnn.policy import load_policy  # noqa: PLC0415  # torch, only where it is served
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"policy {config.policy.name} cannot be loaded, {error}: {install_command('daemon')}"
        ) from error
    return load_policy(config)


def _made(module: str, rule: str, *arguments: object, **settings: object) -> PlacementRule:
    """Return a rule, importing its module only now: most need numpy, which the daemon's base installation lacks."""
    made: PlacementRule = getattr(import_module(f"slurm_energy.policy.rules.{module}"), rule)(*arguments, **settings)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """A rule that can be made by name."""

    name: str
    summary: str
    """One line."""
    build: Callable[[Mapping[str, float], Mapping[str, float]], PlacementRule]
    """Takes the settings, and the relative clocks under other keys."""
    settings: tuple[Setting, ...] = ()
    clock_keys: str = ""
    """What other keys stand for, each with a relative clock; empty where no other key is allowed."""
    needs: Capabilities = frozenset()
    """Without which the rule makes no sense."""


_ENTRIES = (
    RuleEntry(
        name="slurm-default",
        summary="FIFO with EASY backfill, first place with room, most devices that fit, highest clock",
        build=lambda *_: _made("slurm_order", "SlurmDefaultRule"),
    ),
    RuleEntry(
        name="fcfs",
        summary="the same without backfill",
        build=lambda *_: _made("slurm_order", "FcfsRule"),
    ),
    RuleEntry(
        name="sjf-backfill",
        summary="the same with the shortest expected work first and EASY backfill",
        build=lambda *_: _made("slurm_order", "SjfBackfillRule"),
    ),
    RuleEntry(
        name="easy-estimates",
        summary="slurm-default whose backfill plans by expected run times in the place of time limits",
        build=lambda *_: _made("slurm_order", "EasyEstimatesRule"),
        needs=frozenset({Capability.QUEUE_ORDER}),
    ),
    RuleEntry(
        name="fixed-clock",
        summary="slurm-default with one clock for each device type, such as a sweep's result",
        build=lambda values, clocks: _made("slurm_order", "FixedClockRule", clocks, other=values["other"]),
        settings=(clock_setting("other", HIGHEST, "relative clock of the device types that are not named"),),
        clock_keys="a device type",
    ),
    RuleEntry(
        name="fixed-dvfs",
        summary="slurm-default with one relative clock everywhere",
        build=lambda values, _: _made("slurm_order", "FixedDvfsRule", f=values["f"]),
        settings=(clock_setting("f", 0.8, "relative clock"),),
    ),
    RuleEntry(
        name="job-table",
        summary="slurm-default with the best clock of each account and job name, given or learned from ended jobs",
        build=lambda values, clocks: _made("slurm_order", "JobTableRule", clocks_by_job(clocks), f=values["f"]),
        settings=(clock_setting("f", HIGHEST, "relative clock to fall back on and to start from"),),
        clock_keys="ACCOUNT/NAME",
    ),
    RuleEntry(
        name="dp",
        summary="published default: blind uniform routing, most devices that fit, clock 0.6",
        build=lambda values, _: _made("published", "DpRule", clock=values["clock"]),
        settings=(clock_setting("clock", 0.6, "relative clock"),),
    ),
    RuleEntry(
        name="dp-full",
        summary="the same at the highest clock",
        build=lambda *_: _made("published", "DpFullRule"),
    ),
    RuleEntry(
        name="ucb1",
        summary="published bandit: blind uniform routing, most devices that fit, clock by UCB1",
        build=lambda *_: _made("published", "Ucb1Rule"),
    ),
    RuleEntry(
        name="jointnf",
        summary="published joint choice: blind uniform routing, count and clock of the least energy",
        build=lambda *_: _made("published", "JointNfRule"),
    ),
    RuleEntry(
        name="greedy",
        summary="cheapest place with room, fewest devices, energy-optimal clock",
        build=lambda values, _: _made("scored", "GreedyRule", wake=bool(values["wake"])),
        settings=(WAKE,),
    ),
    RuleEntry(
        name="price",
        summary="least n T (P - free) + V T: a price on time",
        build=lambda values, _: _made(
            "scored", "PriceRule", v=values["V"], wake=bool(values["wake"]), share=bool(values["share"])
        ),
        settings=(TIME_PRICE, WAKE, SHARE),
    ),
    RuleEntry(
        name="adaptive-price",
        summary="price with a second price on devices, by dual ascent on their occupancy",
        build=lambda values, _: _made("adaptive_price", "AdaptivePriceRule", **adaptive_values(values)),
        settings=ADAPTIVE_PRICE,
    ),
    RuleEntry(
        name="total-cost",
        summary="least cost of devices, hosts, waking, time, slowdown and scarcity, each at a price",
        build=lambda values, _: _made("total_cost", "TotalCostRule", total_cost_settings(values)),
        settings=TOTAL_COST,
    ),
    RuleEntry(
        name="gogh",
        summary="waiting jobs together, by an integer programme: least energy, at most two on a GPU",
        build=lambda values, _: _made(
            "gogh", "GoghRule", jobs=int(values["jobs"]), min_speed=values["min_speed"], seconds=values["seconds"]
        ),
        settings=GOGH,
    ),
    RuleEntry(
        name="masked-random",
        summary="random place with room, random count, energy-optimal clock",
        build=lambda *_: _made("published", "MaskedRandomRule"),
    ),
    RuleEntry(
        name="jointnf-mask",
        summary="random place with room, fewest devices, energy-optimal clock",
        build=lambda *_: _made("published", "JointNfMaskRule"),
    ),
    RuleEntry(
        name="cap-uniform",
        summary="slurm-default under a power budget, kept by one bound on every job's clock",
        build=lambda values, _: _made(
            "cap", "CapUniformRule", interval_seconds=values["interval"], margin=values["margin"]
        ),
        settings=CAP,
    ),
    RuleEntry(
        name="cap-greedy",
        summary="the same, lowering first what saves the most watts per unit of speed lost",
        build=lambda values, _: _made(
            "cap", "CapGreedyRule", interval_seconds=values["interval"], margin=values["margin"]
        ),
        settings=CAP,
    ),
    RuleEntry(
        name="edp",
        summary="least energy x delay",
        build=lambda values, _: _made("scored", "EdpRule", exponent=values["exponent"], wake=bool(values["wake"])),
        settings=(
            Setting(name="exponent", default=1.0, low=0.0, high=10.0, meaning="power of the delay; 2 is ED2P"),
            WAKE,
        ),
    ),
    RuleEntry(
        name="clairvoyant",
        summary="adaptive-price that knows the true work of every job",
        build=lambda values, _: _made("adaptive_price", "ClairvoyantRule", **adaptive_values(values)),
        settings=ADAPTIVE_PRICE,
        needs=frozenset({Capability.TRUE_WORK}),
    ),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}


def rule_names() -> tuple[str, ...]:
    """Return the name of every rule."""
    return tuple(_BY_NAME)


def rule_entry(name: str) -> RuleEntry:
    """Return what is known of a rule.

    Raises:
        PolicyError: there is none of that name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise PolicyError(f"rule {name[:40]!r} does not exist; known: {', '.join(_BY_NAME)}") from None


def create_rule(text: str) -> PlacementRule:
    """Return the rule that `name[:key=value,...]` describes; the same text makes an equal rule in any process.

    Raises:
        PolicyError: there is no rule of that name.
        ConfigError: a setting is unknown, given twice or no number.
        ValueRangeError: a setting is outside its bounds.
    """
    name, given = split_text(text)
    entry = rule_entry(name)
    known = {setting.name for setting in entry.settings}
    clocks: dict[str, float] = {}
    if entry.clock_keys:
        clocks = {
            key: checked_number(f"{name}:{key}", value, low=LOWEST_CLOCK, high=HIGHEST)
            for key, value in given.items()
            if key not in known
        }
    return entry.build(
        read_settings(name, entry.settings, {key: value for key, value in given.items() if key not in clocks}), clocks
    )
