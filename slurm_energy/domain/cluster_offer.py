"""What a job would cost on each of several clusters, and which of them costs the least.

Every cluster knows the job by its own history: one has run its name before, another takes a share of the time limit and
the mean of measured programs. What the best informed one knows therefore stands in for the others, converted between
GPU types, before they are compared: else the cluster that knows the job would seem cheaper for knowing it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from slurm_energy.config import ClustersConfig
from slurm_energy.domain.ids import GpuTypeName, is_gpu_type_name
from slurm_energy.domain.units import JOULES_PER_KWH
from slurm_energy.errors import ValueRangeError
from slurm_energy.forms import is_partition_name, is_plain

MAX_CLUSTERS = 32
MAX_GPUS = 1_000_000
MAX_SECONDS = 10.0 * 366 * 86_400
MAX_WATTS = 10_000.0
"""Of one GPU, its share of the host included."""
MAX_GIGABYTES = 1e9
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(MB|GB|TB|PB)@(.+)\Z", re.IGNORECASE)
_GIGABYTES = {"mb": 0.001, "gb": 1.0, "tb": 1000.0, "pb": 1e6}
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "now_seconds": (0.0, 1e11),
    "gpus": (1, MAX_GPUS),
    "default_clock_mhz": (1, 10_000),
    "clock_mhz": (1, 10_000),
    "wait_seconds": (0.0, MAX_SECONDS),
    "default_seconds": (0.0, MAX_SECONDS),
    "upper_seconds": (0.0, MAX_SECONDS),
    "runs": (0, 1_000_000_000),
    "gpu_watts": (1.0, MAX_WATTS),
    "slowdown": (0.0, 10.0),
    "energy_change": (-0.99, 10.0),
    "host_per_gpu_watt": (1.0, 10.0),
    "host_constant_watts": (0.0, MAX_WATTS),
    "pue": (1.0, 10.0),
    "price_per_kwh": (-1e5, 1e5),
    "grams_per_kwh": (0.0, 2500.0),
}
"""What a cluster's own settings and tables can come to: anything else is no offer."""


def is_cluster_name(text: str) -> bool:
    """Return whether Slurm can have a cluster of this name."""
    return is_plain(text, "_.-", 40) and not text.startswith("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOffer:
    """What a cluster's daemon would decide for a job now, and what that is expected to take."""

    cluster: str
    version: str
    """Of slurm-energy there."""
    now_seconds: float
    """Unix time by the cluster's clock."""
    partition: str
    """Where it is expected to start."""
    gpus: int
    gpu_type: GpuTypeName | None
    """Catalogue name; None for a type that is not known, whose power is a nominal one."""
    default_seconds: float
    """Run time at the default clock."""
    upper_seconds: float
    """It has ended by then in about nineteen of twenty cases."""
    seconds_source: str
    """`history`: runs of the job's name; else habits of other jobs, a share of the time limit, or a nominal hour."""
    runs: int = 0
    """Ended runs behind it."""
    gpu_watts: float
    """Of one GPU at its default clock."""
    is_measured: bool
    """Whether runs of the job's name measured that power, and not other programs."""
    clock_mhz: int | None = None
    """None: the default one."""
    default_clock_mhz: int | None = None
    slowdown: float = 0.0
    """By that clock, as a ratio."""
    energy_change: float = 0.0
    """Of the GPUs by that clock, as a ratio."""
    host_per_gpu_watt: float = 1.0
    """Watts of GPU and host for each of the GPU."""
    host_constant_watts: float = 0.0
    """Of the host for each GPU, whatever the GPU draws."""
    pue: float = 1.0
    wait_seconds: float | None = None
    """Until the job is expected to start; None where that is not known."""
    wait_source: str = ""
    price_per_kwh: float | None = None
    """Mean over the expected run; None where the site has no tariff for it."""
    currency: str | None = None
    grams_per_kwh: float | None = None
    """CO2-equivalent, likewise."""
    abilities: tuple[str, ...] = ()
    """What is carried out there: `clock`, `partition`, `gpu-count`, `redecide`."""
    message: str = ""
    """What would be decided, in words."""

    def __post_init__(self) -> None:
        if not is_cluster_name(self.cluster):
            raise ValueRangeError(f"cluster {self.cluster[:64]!r} of an offer is no name of a cluster")
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and low <= value <= high):
                raise ValueRangeError(f"{name} {value} of an offer is not between {low:g} and {high:g}")
        if self.gpu_type is not None and not is_gpu_type_name(self.gpu_type):
            raise ValueRangeError(f"GPU type {self.gpu_type[:64]!r} of an offer is no name of a type")
        if not is_partition_name(self.partition):
            raise ValueRangeError(f"partition {self.partition[:64]!r} of an offer is no name of a partition")
        if self.currency is not None and not (self.currency.isascii() and self.currency.isalpha()):
            raise ValueRangeError(f"currency {self.currency[:16]!r} of an offer is not such as EUR")
        if self.upper_seconds < self.default_seconds:
            raise ValueRangeError(f"upper_seconds {self.upper_seconds} of an offer is below {self.default_seconds}")

    @property
    def run_seconds(self) -> float:
        """Expected run time at the offered clock."""
        return self.default_seconds * (1.0 + self.slowdown)

    @property
    def joules(self) -> float:
        """Expected energy of the job at the meter: GPUs, their share of the host, and the building's."""
        gpu_joules = self.gpu_watts * self.default_seconds * (1.0 + self.energy_change)
        one = gpu_joules * self.host_per_gpu_watt + self.host_constant_watts * self.run_seconds
        return self.gpus * one * self.pue


@dataclass(frozen=True, slots=True, kw_only=True)
class InputData:
    """Data that a job reads, and the cluster at which it lies."""

    gigabytes: float
    cluster: str


def parse_input_data(text: str) -> tuple[InputData, ...]:
    """Return what `200GB@a,1.5TB@b` says.

    Raises:
        ValueRangeError: it is not of that form.
    """
    found = []
    for part in text.split(",")[: MAX_CLUSTERS + 1]:
        match = _SIZE.match(part.strip())
        gigabytes = 0.0 if match is None else float(match.group(1)) * _GIGABYTES[match.group(2).lower()]
        if match is None or not is_cluster_name(match.group(3)) or gigabytes > MAX_GIGABYTES:
            raise ValueRangeError(f"--energy-data={text[:80]!r} is not SIZE@CLUSTER such as 200GB@a, or 200GB@a,1TB@b")
        found.append(InputData(gigabytes=gigabytes, cluster=match.group(3)))
    return tuple(found)


def parse_clusters(text: str) -> tuple[str, ...]:
    """Return the names of a comma list, each once.

    Raises:
        ValueRangeError: one is no name of a cluster, there is none, or there are over 32.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not is_cluster_name(name):
            raise ValueRangeError(f"--energy-clusters={text[:80]!r} is not a list of clusters such as a,b")
    if len(names) > MAX_CLUSTERS:
        raise ValueRangeError(f"--energy-clusters names {len(names)} clusters, {MAX_CLUSTERS} are the most")
    return names


RelativeTypes = Callable[[GpuTypeName, GpuTypeName], "tuple[float, float] | None"]
"""Time and energy of the same work on the first type relative to the second; None where nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOffer:
    """An offer with its cost by part; all parts in one unit."""

    offer: ClusterOffer
    parts: Mapping[str, float]
    """`energy`, `time` until the end, `data` that must be carried there; in J, or in money or grams of CO2."""
    transfer_seconds: float = 0.0
    """Until the input data is there."""

    @property
    def cost(self) -> float:
        """What is compared."""
        return sum(self.parts.values())

    @property
    def end_seconds(self) -> float | None:
        """From now until the job is expected to have ended; None where its start is not known."""
        wait = self.offer.wait_seconds
        return None if wait is None else wait + self.transfer_seconds + self.offer.run_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """Offers by cost, the chosen one first."""

    ranked: tuple[PricedOffer, ...]
    unit: str
    """Of the costs: `J`, `g`, or a currency."""
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a cluster makes no offer, by its name."""

    @property
    def best(self) -> PricedOffer:
        """The chosen one."""
        return self.ranked[0]


def choose_cluster(
    offers: Sequence[ClusterOffer],
    config: ClustersConfig,
    data: Sequence[InputData] = (),
    relative: RelativeTypes = lambda _type, _reference: None,
    left_out: Mapping[str, str] | None = None,
) -> ClusterChoice:
    """Return the offers by their cost; of equal ones the first of the user's list goes first.

    Cost = energy + V x GPUs x (waiting + transfer + run) + data, as the rule total-cost prices a start, with waiting at
    the price of running. A start that is not known goes behind all that are.

    Args:
        offers: At least one, in the order of the user's list.
        config: What waiting and carrying data are worth.
        data: The job's input, by where it lies.
        relative: How GPU types compare.
        left_out: Clusters without an offer, with the reason.
    """
    aligned, notes = _aligned(offers, relative)
    unit, rates, why = _rates(aligned, config)
    mean_rate = sum(rates) / len(rates)
    priced = []
    for offer, rate in zip(aligned, rates, strict=True):
        gigabytes = sum(one.gigabytes for one in data if one.cluster != offer.cluster)
        transfer = 8.0 * gigabytes / config.wan_gbit_per_second
        seconds = (offer.wait_seconds or 0.0) + transfer + offer.run_seconds
        carried = gigabytes * config.wan_joules_per_gb * mean_rate
        if unit not in {"J", "g"}:
            carried += gigabytes * config.wan_price_per_gb
        parts = {
            "energy": offer.joules * rate,
            "time": config.waiting_watts * offer.gpus * seconds * mean_rate,
            "data": carried,
        }
        priced.append(PricedOffer(offer=offer, parts=parts, transfer_seconds=transfer))
    ranked = sorted(priced, key=lambda one: (one.offer.wait_seconds is None, one.cost))
    return ClusterChoice(ranked=tuple(ranked), unit=unit, notes=(*notes, *why), left_out=dict(left_out or {}))


def _rates(offers: Sequence[ClusterOffer], config: ClustersConfig) -> tuple[str, list[float], tuple[str, ...]]:
    """Return the unit of the costs, what a joule costs at each cluster, and why it is not what the site asked for."""
    joules = [1.0] * len(offers)
    if config.cost == "price":
        currencies = {offer.currency for offer in offers}
        prices = [offer.price_per_kwh for offer in offers if offer.price_per_kwh is not None]
        (currency,) = currencies if len(currencies) == 1 else (None,)
        if currency is None or len(prices) < len(offers):
            return "J", joules, ("not every cluster has a tariff in the same currency: energy is compared",)
        return currency, [price / JOULES_PER_KWH for price in prices], ()
    if config.cost == "carbon":
        grams = [offer.grams_per_kwh for offer in offers if offer.grams_per_kwh is not None]
        if len(grams) < len(offers):
            return "J", joules, ("not every cluster knows its carbon intensity: energy is compared",)
        return "g", [one / JOULES_PER_KWH for one in grams], ()
    return "J", joules, ()


def _aligned(
    offers: Sequence[ClusterOffer], relative: RelativeTypes
) -> tuple[tuple[ClusterOffer, ...], tuple[str, ...]]:
    """Return the offers with the job's length and power as the best informed cluster knows them."""
    known = max(offers, key=lambda one: (one.seconds_source == "history", one.is_measured, one.runs))
    found, notes = [], []
    for offer in offers:
        ratios = None
        if offer is not known and offer.gpus == known.gpus and known.gpu_type is not None:
            same = offer.gpu_type == known.gpu_type
            ratios = (1.0, 1.0) if same else relative(offer.gpu_type, known.gpu_type) if offer.gpu_type else None
        if ratios is None or (offer.seconds_source == "history" and offer.is_measured):
            found.append(offer)
            if len(offers) > 1 and offer is not known and offer.seconds_source != "history":
                notes.append(f"how long the job runs on {offer.cluster} is not comparable with {known.cluster}")
            continue
        time, energy = ratios
        seconds = min(MAX_SECONDS, known.default_seconds * time)
        doubt = known.upper_seconds / known.default_seconds if known.default_seconds > 0.0 else 1.0
        watts = known.gpu_watts * energy / time if known.is_measured and not offer.is_measured else offer.gpu_watts
        found.append(
            replace(
                offer,
                default_seconds=seconds,
                upper_seconds=max(seconds, min(MAX_SECONDS, seconds * doubt)),
                gpu_watts=min(MAX_WATTS, max(1.0, watts)),
            )
        )
    if len(offers) > 1 and known.seconds_source == "history":
        notes.insert(0, f"run time by {known.runs} runs of this name on {known.cluster}")
    return tuple(found), tuple(notes)
