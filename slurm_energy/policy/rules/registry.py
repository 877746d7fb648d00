"""Placement rules by name, made from a line of text such as `price:V=20`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypedDict

from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.policy.placement import Capabilities, Capability, PlacementRule
from slurm_energy.policy.rules.settings import (
    CAP_INTERVAL_SECONDS,
    CAP_MARGIN,
    HIGHEST,
    TOTAL_COST,
    Setting,
    checked_number,
    read_settings,
    split_text,
    total_cost_settings,
)

_LOWEST_CLOCK, _HIGHEST_CLOCK = 0.01, HIGHEST


def _made(module: str, rule: str, *arguments: object, **settings: object) -> PlacementRule:
    """Return a rule, importing its module only now: most need numpy, which the daemon's base installation lacks."""
    made: PlacementRule = getattr(import_module(f"slurm_energy.policy.rules.{module}"), rule)(*arguments, **settings)
    return made


def _clock(name: str, default: float, meaning: str) -> Setting:
    return Setting(name=name, default=default, low=_LOWEST_CLOCK, high=_HIGHEST_CLOCK, meaning=meaning)


_WAKE = Setting(
    name="wake", default=1, low=0, high=1, whole=True, meaning="1 counts the energy of waking nodes, 0 does not"
)
_SHARE = Setting(
    name="share", default=0, low=0, high=1, whole=True, meaning="1 lets a job share a GPU with a running one"
)
_V = Setting(name="V", default=20.0, low=0.0, high=1e6, meaning="price of time, W")


_CAP = (
    Setting(
        name="interval",
        default=CAP_INTERVAL_SECONDS,
        low=0.1,
        high=86400.0,
        meaning="between two looks at the power, s",
    ),
    Setting(
        name="margin",
        default=CAP_MARGIN,
        low=0.0,
        high=0.5,
        meaning="share of the budget left before clocks are raised",
    ),
)
_ADAPTIVE = (
    _V,
    Setting(name="k", default=2.0, low=0.0, high=1e6, meaning="step of the price at an arrival, W"),
    Setting(name="threshold", default=0.95, low=0.0, high=1.0, meaning="occupancy above which the price rises"),
    Setting(name="ceiling", default=1000.0, low=0.0, high=1e6, meaning="most that the price may reach, W"),
    Setting(
        name="by_place", default=0, low=0, high=1, whole=True, meaning="1 gives every place a price of its own, 0 one"
    ),
    _WAKE,
    _SHARE,
    Setting(name="run", default=0.0, low=0.0, high=1e9, meaning="mean run time that V shall be moved to, s; 0 keeps V"),
    Setting(name="kv", default=0.005, low=0.0, high=1.0, meaning="step of ln V for a run of twice that time"),
)


class _AdaptiveValues(TypedDict):
    v: float
    k: float
    threshold: float
    ceiling: float
    by_place: bool
    wake: bool
    share: bool
    run: float
    kv: float


def _adaptive_values(values: Mapping[str, float]) -> _AdaptiveValues:
    return {
        "v": values["V"],
        "k": values["k"],
        "threshold": values["threshold"],
        "ceiling": values["ceiling"],
        "by_place": bool(values["by_place"]),
        "wake": bool(values["wake"]),
        "share": bool(values["share"]),
        "run": values["run"],
        "kv": values["kv"],
    }


def _by_job(clocks: Mapping[str, float]) -> dict[tuple[str, str], float]:
    by_job = {}
    for key, clock in clocks.items():
        account, slash, name = key.partition("/")
        if not slash:
            raise ConfigError(f"rule job-table: {key[:40]!r} is neither a setting nor of the form ACCOUNT/NAME")
        by_job[account, name] = clock
    return by_job


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
        name="fixed-clock",
        summary="slurm-default with one clock for each device type, such as a sweep's result",
        build=lambda values, clocks: _made("slurm_order", "FixedClockRule", clocks, other=values["other"]),
        settings=(_clock("other", HIGHEST, "relative clock of the device types that are not named"),),
        clock_keys="a device type",
    ),
    RuleEntry(
        name="fixed-dvfs",
        summary="slurm-default with one relative clock everywhere",
        build=lambda values, _: _made("slurm_order", "FixedDvfsRule", f=values["f"]),
        settings=(_clock("f", 0.8, "relative clock"),),
    ),
    RuleEntry(
        name="job-table",
        summary="slurm-default with the best clock of each account and job name, given or learned from ended jobs",
        build=lambda values, clocks: _made("slurm_order", "JobTableRule", _by_job(clocks), f=values["f"]),
        settings=(_clock("f", HIGHEST, "relative clock to fall back on and to start from"),),
        clock_keys="ACCOUNT/NAME",
    ),
    RuleEntry(
        name="dp",
        summary="published default: blind uniform routing, most devices that fit, clock 0.6",
        build=lambda values, _: _made("published", "DpRule", clock=values["clock"]),
        settings=(_clock("clock", 0.6, "relative clock"),),
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
        settings=(_WAKE,),
    ),
    RuleEntry(
        name="price",
        summary="least n T (P - free) + V T: a price on time",
        build=lambda values, _: _made(
            "scored", "PriceRule", v=values["V"], wake=bool(values["wake"]), share=bool(values["share"])
        ),
        settings=(_V, _WAKE, _SHARE),
    ),
    RuleEntry(
        name="adaptive-price",
        summary="price with a second price on devices, by dual ascent on their occupancy",
        build=lambda values, _: _made("adaptive_price", "AdaptivePriceRule", **_adaptive_values(values)),
        settings=_ADAPTIVE,
    ),
    RuleEntry(
        name="total-cost",
        summary="least cost of devices, hosts, waking, time, slowdown and scarcity, each at a price",
        build=lambda values, _: _made("total_cost", "TotalCostRule", total_cost_settings(values)),
        settings=TOTAL_COST,
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
        settings=_CAP,
    ),
    RuleEntry(
        name="cap-greedy",
        summary="the same, lowering first what saves the most watts per unit of speed lost",
        build=lambda values, _: _made(
            "cap", "CapGreedyRule", interval_seconds=values["interval"], margin=values["margin"]
        ),
        settings=_CAP,
    ),
    RuleEntry(
        name="edp",
        summary="least energy x delay",
        build=lambda values, _: _made("scored", "EdpRule", exponent=values["exponent"], wake=bool(values["wake"])),
        settings=(
            Setting(name="exponent", default=1.0, low=0.0, high=10.0, meaning="power of the delay; 2 is ED2P"),
            _WAKE,
        ),
    ),
    RuleEntry(
        name="clairvoyant",
        summary="adaptive-price that knows the true work of every job",
        build=lambda values, _: _made("adaptive_price", "ClairvoyantRule", **_adaptive_values(values)),
        settings=_ADAPTIVE,
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
            key: checked_number(f"{name}:{key}", value, low=_LOWEST_CLOCK, high=_HIGHEST_CLOCK)
            for key, value in given.items()
            if key not in known
        }
    return entry.build(
        read_settings(name, entry.settings, {key: value for key, value in given.items() if key not in clocks}), clocks
    )
