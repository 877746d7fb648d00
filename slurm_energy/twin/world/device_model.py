"""How one type of GPU (or CPU socket) behaves in a world: power and time at each clock, scaling, heat, sharing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log, log2

from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Time of one unit of work on n devices: T(n) = (T(1) / e(n) + seconds_per_device n) / n for n >= 2.

    `seconds_per_device` is the loss of the published geo-distributed world (0 elsewhere); e(n) is a measured
    strong-scaling efficiency, interpolated linearly in log2 n and held constant beyond the last measurement.
    """

    seconds_per_device: float = 0.0
    efficiency_by_count: Mapping[int, float] = field(default_factory=dict)
    """Efficiency (0..1] at some counts; 1 device is always 1."""
    traffic_gigabytes_per_unit: float = 0.0
    """Data that each device sends to other nodes for one unit of work when the job spans nodes."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.seconds_per_device < inf:
            raise ValueRangeError(
                f"scaling loss {self.seconds_per_device} s per device is not a finite number from 0 up"
            )
        if not 0.0 <= self.traffic_gigabytes_per_unit < inf:
            raise ValueRangeError(
                f"traffic {self.traffic_gigabytes_per_unit} GB per unit is not a finite number from 0 up"
            )
        for count, efficiency in self.efficiency_by_count.items():
            if count < 1 or not 0.0 < efficiency <= 1.5:
                raise ValueRangeError(f"scaling efficiency {efficiency} at {count} devices is not in (0, 1.5]")

    def seconds(self, single_seconds: float, count: int) -> float:
        """Return the time in s of one unit on `count` devices of one node, given that on one device."""
        if count == 1:
            return single_seconds
        return (single_seconds / self.efficiency(count) + self.seconds_per_device * count) / count

    def efficiency(self, count: int) -> float:
        """Return speed on `count` devices over `count` times that on one."""
        points = sorted({1: 1.0, **self.efficiency_by_count}.items())
        if count >= points[-1][0]:
            return points[-1][1]
        high = next(index for index, (number, _) in enumerate(points) if number >= count)
        (low_count, low), (high_count, top) = points[max(0, high - 1)], points[high]
        if high_count == count:
            return top
        return low + (top - low) * (log2(count) - log2(low_count)) / (log2(high_count) - log2(low_count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Power and time of one kind of work on one device type, at each of the type's clocks (ascending).

    The board's power limit is already in them: where a clock would draw more than the limit, the board runs slower, so
    the set clock is not the real one and neither time nor power moves any further.
    """

    watts: tuple[float, ...]
    """One device while it computes."""
    seconds_per_unit: tuple[float, ...]
    """One device."""
    scaling: Scaling = field(default_factory=Scaling)
    memory_gib: float = 0.0
    """Device memory that the work needs, on one device."""

    def __post_init__(self) -> None:
        if not self.watts or len(self.watts) != len(self.seconds_per_unit):
            raise ValueRangeError(
                f"a load has {len(self.watts)} powers and {len(self.seconds_per_unit)} times: one of each per clock"
            )
        if any(not 0.0 <= value < inf for value in self.watts):
            raise ValueRangeError(f"powers {self.watts} of a load are not all finite numbers from 0 up")
        if any(not 0.0 < value < inf for value in self.seconds_per_unit):
            raise ValueRangeError(f"times {self.seconds_per_unit} of a load are not all finite numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """First-order heat of one device: C dT/dt = P - (T - ambient) / resistance; above the limit the clock falls.

    The steady temperature at power P is ambient + resistance x P, reached with `time_constant_seconds`.
    """

    resistance_kelvin_per_watt: float
    time_constant_seconds: float
    ambient_celsius: float = 25.0
    limit_celsius: float = 85.0

    def __post_init__(self) -> None:
        for name in ("resistance_kelvin_per_watt", "time_constant_seconds"):
            if not 0.0 < getattr(self, name) < inf:
                raise ValueRangeError(f"{name}={getattr(self, name)} is not a finite number above 0")
        if not (isfinite(self.ambient_celsius) and isfinite(self.limit_celsius)):
            raise ValueRangeError("temperatures are not finite numbers")
        if self.ambient_celsius >= self.limit_celsius:
            raise ValueRangeError(
                f"ambient {self.ambient_celsius} degrees is not below the limit {self.limit_celsius} degrees"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSpeed:
    """What two kinds of work reach when they share one device by time slicing, relative to running alone."""

    speed: float
    """Relative speed of the first kind, (0, 1.2]."""
    partner_speed: float
    watts: float
    """The device's power with both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """One type of GPU or CPU socket in a world."""

    name: str
    relative_clocks: tuple[float, ...]
    """Ascending; the default clock is the last; 1.0 is the reference of the curves."""
    loads: Mapping[str, Load]
    """By kind of work; a kind that is missing cannot run here."""
    free_watts: float
    """Not allocated."""
    context_watts: float
    """With a process that does not compute, as while a job stages its data in."""
    clocks_mhz: tuple[int, ...] = ()
    """The same clocks in MHz, empty where the world has none."""
    power_limit_watts: float = inf
    memory_gib: float = inf
    is_cpu: bool = False
    thermal: Thermal | None = None
    pairs: Mapping[tuple[str, str], PairSpeed] = field(default_factory=dict)
    """By the two kinds; kinds that are missing in either order cannot share."""

    def __post_init__(self) -> None:
        clocks = self.relative_clocks
        if not clocks or list(clocks) != sorted(set(clocks)) or not clocks[0] > 0.0 or not clocks[-1] < inf:
            raise ValueRangeError(f"device {self.name}: clocks {clocks[:4]}… are not ascending numbers above 0")
        if self.clocks_mhz and len(self.clocks_mhz) != len(clocks):
            raise ValueRangeError(f"device {self.name}: {len(self.clocks_mhz)} clocks in MHz for {len(clocks)} clocks")
        for kind, load in self.loads.items():
            if len(load.watts) != len(clocks):
                raise ValueRangeError(
                    f"device {self.name}: load {kind} has {len(load.watts)} points for {len(clocks)} clocks"
                )
        for name in ("free_watts", "context_watts"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueRangeError(
                    f"device {self.name}: {name}={getattr(self, name)} is not a finite number from 0 up"
                )

    def pair(self, kind: str, partner: str) -> PairSpeed | None:
        """Return what `kind` and `partner` reach on one device, None when they cannot share it."""
        found = self.pairs.get((kind, partner))
        if found is not None:
            if kind != partner:
                return found
            both = 0.5 * (found.speed + found.partner_speed)  # two of a kind have no first and second
            return PairSpeed(speed=both, partner_speed=both, watts=found.watts)
        other = self.pairs.get((partner, kind))
        if other is None:
            return None
        return PairSpeed(speed=other.partner_speed, partner_speed=other.speed, watts=other.watts)


def load_from_curves(
    power: PowerCurve,
    runtime: RuntimeCurve,
    relative_clocks: Sequence[float],
    *,
    power_limit_watts: float = inf,
    scaling: Scaling | None = None,
) -> Load:
    """Return the load of fitted curves at a grid of clocks, with the board's power limit applied."""
    real = [power.relative_clock_at(power_limit_watts, clock) for clock in relative_clocks]
    if real[0] <= 0.0:
        raise ValueRangeError(f"power limit {power_limit_watts} W is below what the load draws at any clock")
    return Load(
        watts=tuple(power.watts(clock) for clock in real),
        seconds_per_unit=tuple(runtime.seconds(clock) for clock in real),
        scaling=scaling or Scaling(),
    )


def steady_celsius(thermal: Thermal, ambient_celsius: float, watts: float) -> float:
    """Return the temperature that one device at constant power tends to: ambient + resistance x power."""
    return ambient_celsius + thermal.resistance_kelvin_per_watt * watts


def temperature_after(thermal: Thermal, start_celsius: float, steady: float, seconds: float) -> float:
    """Return the temperature after a time at constant power: exponential approach with the time constant."""
    return steady + (start_celsius - steady) * exp(-seconds / thermal.time_constant_seconds)


def seconds_to_limit(thermal: Thermal, start_celsius: float, steady: float) -> float:
    """Return when the limit is reached, 0 when it is already, infinite when it never is."""
    if steady <= thermal.limit_celsius:
        return inf
    if start_celsius >= thermal.limit_celsius:
        return 0.0
    return thermal.time_constant_seconds * log((steady - start_celsius) / (steady - thermal.limit_celsius))


def sustainable_watts(thermal: Thermal, ambient_celsius: float) -> float:
    """Return the power of one device at which the limit is just held; 0 when even the air is too hot."""
    return max(0.0, (thermal.limit_celsius - ambient_celsius) / thermal.resistance_kelvin_per_watt)
