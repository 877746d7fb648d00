"""Settings of a rule as people write them after its name: `price:V=20,wake=0`; without numpy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypedDict

from slurm_energy.errors import ConfigError, ValueRangeError

HIGHEST = 2.0
"""A relative clock above every grid: the default clock."""
LOWEST_CLOCK = 0.01
CAP_INTERVAL_SECONDS = 20.0
"""Between two looks of the rules under a power budget."""
CAP_MARGIN = 0.02
"""Share of the budget that must be left before they raise clocks."""
HEADROOM = 0.02
"""Share of the devices that the price of scarcity keeps free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One number that a rule takes."""

    name: str
    default: float
    low: float
    """Least value allowed."""
    high: float
    """Greatest value allowed."""
    meaning: str
    """A phrase with its unit, for people."""
    whole: bool = False
    """Only whole numbers."""
    former_name: str = ""
    """Of earlier releases; a text with it gets an error that says the present one."""

    def checked(self, rule: str, text: str) -> float:
        """Return the number that the text says.

        Raises:
            ConfigError: it is no number.
            ValueRangeError: it is outside the bounds.
        """
        return checked_number(f"{rule}:{self.name}", text, low=self.low, high=self.high, whole=self.whole)


def checked_number(thing: str, text: str, *, low: float, high: float, whole: bool = False) -> float:
    """Return the number that a setting's text says.

    Raises:
        ConfigError: it is no number.
        ValueRangeError: it is outside the bounds.
    """
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{thing}={text[:40]} is not a number") from None
    if not isfinite(value) or not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise ValueRangeError(f"{thing}={text[:40]} is not a {kind} from {low:g} to {high:g}")
    return value


def policy_name(text: str) -> str:
    """Return the name in `name[:key=value,...]`."""
    return text.partition(":")[0].strip()


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """Return a rule's name and its settings from `name[:key=value,...]`.

    Raises:
        ConfigError: a setting has no name or no value, or is given twice.
    """
    name, colon, rest = text.strip().partition(":")
    pairs: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise ConfigError(f"rule {text[:80]!r}: {part[:40]!r} is not of the form key=value")
        if key in pairs:
            raise ConfigError(f"rule {text[:80]!r}: setting {key!r} is given twice")
        pairs[key] = value
    return name.strip(), pairs


def read_settings(rule: str, settings: Sequence[Setting], given: Mapping[str, str]) -> dict[str, float]:
    """Return every setting of a rule: what was given, else its default.

    Raises:
        ConfigError: a name is unknown or a value is no number.
        ValueRangeError: a value is outside its bounds.
    """
    known = {setting.name for setting in settings}
    former = {setting.former_name: setting.name for setting in settings if setting.former_name}
    for name in given:
        if name in former:
            raise ConfigError(f"rule {rule}: setting {name!r} is called {former[name]!r} now")
        if name not in known:
            options = ", ".join(setting.name for setting in settings) or "none"
            raise ConfigError(f"rule {rule} has no setting {name[:40]!r}; it has: {options}")
    return {
        setting.name: setting.checked(rule, given[setting.name]) if setting.name in given else setting.default
        for setting in settings
    }


def clock_setting(name: str, default: float, meaning: str) -> Setting:
    """Return the setting of a relative clock."""
    return Setting(name=name, default=default, low=LOWEST_CLOCK, high=HIGHEST, meaning=meaning)


WAKE = Setting(
    name="wake", default=1, low=0, high=1, whole=True, meaning="1 counts the energy of waking nodes, 0 does not"
)
SHARE = Setting(
    name="share", default=0, low=0, high=1, whole=True, meaning="1 lets a job share a GPU with a running one"
)
TIME_PRICE = Setting(name="V", default=20.0, low=0.0, high=1e6, meaning="price of time, W")
GOGH = (
    Setting(name="jobs", default=24.0, low=1.0, high=200.0, meaning="most waiting jobs that are planned together"),
    Setting(
        name="min_speed",
        default=0.85,
        low=0.0,
        high=2.0,
        meaning="what two jobs on a GPU each keep of their speed at least; above 1: none share",
    ),
    Setting(name="seconds", default=0.2, low=0.01, high=60.0, meaning="time of one search, s"),
)
CAP = (
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
ADAPTIVE_PRICE = (
    TIME_PRICE,
    Setting(name="k", default=2.0, low=0.0, high=1e6, meaning="step of the price at an arrival, W"),
    Setting(name="threshold", default=0.95, low=0.0, high=1.0, meaning="occupancy above which the price rises"),
    Setting(name="ceiling", default=1000.0, low=0.0, high=1e6, meaning="most that the price may reach, W"),
    Setting(
        name="by_place", default=0, low=0, high=1, whole=True, meaning="1 gives every place a price of its own, 0 one"
    ),
    WAKE,
    SHARE,
    Setting(name="run", default=0.0, low=0.0, high=1e9, meaning="mean run time to which V is moved, s; 0 keeps V"),
    Setting(name="kv", default=0.005, low=0.0, high=1.0, meaning="step of ln V for a run of twice that time"),
)


class AdaptiveValues(TypedDict):
    """Arguments of `AdaptivePriceRule`."""

    v: float
    k: float
    threshold: float
    ceiling: float
    by_place: bool
    wake: bool
    share: bool
    run: float
    kv: float


def adaptive_values(values: Mapping[str, float]) -> AdaptiveValues:
    """Return the arguments that the settings of `adaptive-price` stand for."""
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


def clocks_by_job(clocks: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return relative clocks by account and job name.

    Raises:
        ConfigError: a key is not of the form ACCOUNT/NAME.
    """
    by_job = {}
    for key, clock in clocks.items():
        account, slash, name = key.partition("/")
        if not slash:
            raise ConfigError(f"rule job-table: {key[:40]!r} is neither a setting nor of the form ACCOUNT/NAME")
        by_job[account, name] = clock
    return by_job


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCostSettings:
    """What is paid for what; `Prices` says what each is a price of."""

    time_watts: float = 20.0
    slowdown: float = 0.0
    """In terms of the mean energy of the jobs seen so far."""
    share: float = 1.0
    opened_nodes: float = 0.1
    """Of a joule of a node that has no other job."""
    waking: float = 1.0
    scarcity: float = 1.0
    """Multiplies the price of devices that rises while they are scarce."""
    headroom: float = HEADROOM
    """Share of the devices that the price of scarcity keeps free."""
    corrects: bool = True
    """Whether ended jobs correct what tables say of their kind and place."""
    by_place: bool = False
    """Whether every place has a price of devices of its own, beside that of all."""
    type_headroom: float = 0.0
    """Share of each GPU type that a price of its own keeps free; 0 sets no such price."""
    makespan_watts: float = 0.0
    """Of a second that a job would still run after every other that runs now."""
    awake_time: float = 0.0
    """Of a joule of a node that a job keeps awake longer, where nodes are chosen; 0 leaves them to the scheduler."""
    max_node_wait: float = 0.0
    """Most that a job waits for room on a node that is awake anyway, in terms of its run at the default clock."""


def _price(name: str, default: float, meaning: str, former_name: str = "") -> Setting:
    return Setting(name=name, default=default, low=0.0, high=1e6, meaning=meaning, former_name=former_name)


TOTAL_COST = (
    _price("V", 20.0, "price of time, W"),
    _price("slowdown", 0.0, "price of a slowdown of 1, in mean job energies"),
    _price("share", 1.0, "price of a job's share of awake nodes, J per J"),
    _price("opened_nodes", 0.1, "price of a node that a job opens alone, J per J", "opening"),
    _price("waking", 1.0, "price of the energy that wakes a node, J per J"),
    _price("scarcity", 1.0, "multiplies the price of devices while they are scarce"),
    Setting(
        name="headroom", default=HEADROOM, low=0.0, high=0.9, meaning="share of the devices that scarcity keeps free"
    ),
    Setting(
        name="correct", default=1, low=0, high=1, whole=True, meaning="1 lets ended jobs correct the tables, 0 does not"
    ),
    Setting(
        name="by_place", default=0, low=0, high=1, whole=True, meaning="1 adds a price of devices of each place's own"
    ),
    Setting(
        name="type_headroom",
        default=0.0,
        low=0.0,
        high=0.9,
        meaning="share of each GPU type that its price keeps free",
        former_name="spare",
    ),
    _price("makespan", 0.0, "price of a second by which the last of all jobs ends later, W", "span"),
    _price("awake_time", 0.0, "price of keeping a node awake longer, J per J; 0 leaves nodes to the scheduler", "pack"),
    Setting(
        name="max_node_wait",
        default=0.0,
        low=0.0,
        high=1.0,
        meaning="most that a job waits for a better node, in run times",
        former_name="wait",
    ),
)


def total_cost_settings(values: Mapping[str, float]) -> TotalCostSettings:
    """Return the settings that a rule's text names."""
    return TotalCostSettings(
        time_watts=values["V"],
        slowdown=values["slowdown"],
        share=values["share"],
        opened_nodes=values["opened_nodes"],
        waking=values["waking"],
        scarcity=values["scarcity"],
        headroom=values["headroom"],
        corrects=bool(values["correct"]),
        by_place=bool(values["by_place"]),
        type_headroom=values["type_headroom"],
        makespan_watts=values["makespan"],
        awake_time=values["awake_time"],
        max_node_wait=values["max_node_wait"],
    )
