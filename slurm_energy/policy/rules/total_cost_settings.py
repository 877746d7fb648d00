"""What `total-cost` pays for what: its settings and their names in a rule's text; without numpy."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.policy.rules.settings import Setting

HEADROOM = 0.02
"""Share of the devices that the price of scarcity keeps free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCostSettings:
    """What is paid for what; `Prices` says what each is a price of."""

    time_watts: float = 20.0
    slowdown: float = 0.0
    """In terms of the mean energy of the jobs seen so far."""
    share: float = 1.0
    opening: float = 0.1
    waking: float = 1.0
    scarcity: float = 1.0
    """Multiplies the price of devices that rises while they are scarce."""
    headroom: float = HEADROOM
    """Share of the devices that the price of scarcity keeps free."""
    corrects: bool = True
    """Whether ended jobs correct what tables say of their kind and place."""
    by_place: bool = False
    """Whether every place has a price of devices of its own, beside that of all."""
    spare: float = 0.0
    """Share of each GPU type that a price of its own keeps free; 0 sets no such price."""
    span_watts: float = 0.0
    """Of a second that a job would still run after every other that runs now."""
    pack: float = 0.0
    """Of a joule of a node that a job keeps awake longer, where nodes are chosen; 0 leaves them to the scheduler."""
    wait: float = 0.0
    """Most that a job waits for room on a node that is awake anyway, in terms of its run at the default clock."""


def _price(name: str, default: float, meaning: str) -> Setting:
    return Setting(name=name, default=default, low=0.0, high=1e6, meaning=meaning)


TOTAL_COST = (
    _price("V", 20.0, "price of time, W"),
    _price("slowdown", 0.0, "price of a slowdown of 1, in mean job energies"),
    _price("share", 1.0, "price of a job's share of awake nodes, J per J"),
    _price("opening", 0.1, "price of a node that a job opens alone, J per J"),
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
    Setting(name="spare", default=0.0, low=0.0, high=0.9, meaning="share of each GPU type that its price keeps free"),
    _price("span", 0.0, "price of a second by which the last of all jobs ends later, W"),
    _price("pack", 0.0, "price of keeping a node awake longer, J per J; 0 leaves nodes to the scheduler"),
    Setting(
        name="wait", default=0.0, low=0.0, high=1.0, meaning="most that a job waits for a better node, in run times"
    ),
)


def total_cost_settings(values: Mapping[str, float]) -> TotalCostSettings:
    """Return the settings that a rule's text names."""
    return TotalCostSettings(
        time_watts=values["V"],
        slowdown=values["slowdown"],
        share=values["share"],
        opening=values["opening"],
        waking=values["waking"],
        scarcity=values["scarcity"],
        headroom=values["headroom"],
        corrects=bool(values["correct"]),
        by_place=bool(values["by_place"]),
        spare=values["spare"],
        span_watts=values["span"],
        pack=values["pack"],
        wait=values["wait"],
    )
