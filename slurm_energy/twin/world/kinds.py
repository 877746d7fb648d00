"""One kind of work on one device of a world file: coefficients, explicit tables, or a calibrated curve."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve, WorkloadCurve, curves_of, shipped_curves
from slurm_energy.forms import did_you_mean, shown
from slurm_energy.twin.world.device_model import Load, Scaling, load_from_curves
from slurm_energy.twin.world.table import WorldTable

MAX_WATTS = 1e5
"""Of one device."""
POINTS = ("fit", "readings")
_MAX_COUNT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFrame:
    """What every kind of work on a device shares."""

    relative_clocks: tuple[float, ...]
    curves: Mapping[str, WorkloadCurve]
    """Calibrated curves of the device's type; empty for a device without."""
    limit_watts: float
    on_grid: bool
    """Whether the board holds its limit at a clock of its grid, not in between."""
    floor_watts: float
    relative_speed: float | None
    scaling: Scaling
    points: str
    """`fit` or `readings`: what a calibrated curve is taken at."""
    unit_seconds: Mapping[str, float]
    """Time of a unit as given, by kind, on the world's unit device; empty in worlds without."""


class KindReader:
    """One kind of work on one device: its table, and what it shares with the device's others."""

    def __init__(self, name: str, table: WorldTable, frame: DeviceFrame) -> None:
        self._name = name
        self._table = table
        self._frame = frame

    def load(self) -> Load:
        """Return power and time at each clock of the device."""
        table = self._table
        forms = [key for key in ("power", "watts", "curve") if table.has(key)]
        if len(forms) != 1:
            raise table.error(
                "exactly one of power with runtime, watts with seconds_per_unit, curve is needed; "
                f"{', '.join(forms) or 'none'} given"
            )
        points = table.choice("points", self._frame.points, POINTS) if forms == ["curve"] else "fit"
        if forms == ["watts"]:
            load = self._tabulated()
        elif points == "readings":
            load = self._measured(self._curve())
        else:
            load = self._modelled(*self._coefficients(forms[0]))
        load = self._at_speed(self._above_floor(load))
        scaling = read_scaling(table.table("scaling")) if table.has("scaling") else self._frame.scaling
        memory = table.number("memory_gib", 0.0)
        table.finish()
        return replace(load, scaling=scaling, memory_gib=memory)

    def _tabulated(self) -> Load:
        count = len(self._frame.relative_clocks)
        watts = self._table.numbers("watts", high=MAX_WATTS, count=count)
        seconds = self._table.numbers("seconds_per_unit", above=True, count=count)
        return Load(watts=watts, seconds_per_unit=seconds)

    def _coefficients(self, form: str) -> tuple[PowerCurve, RuntimeCurve]:
        table = self._table
        if form == "curve":
            curve = self._curve()
            power, runtime = curve.power, curve.runtime
        else:
            power = PowerCurve(**_named(table, "power", ("cubic_watts", "linear_watts", "constant_watts")))
            runtime = table.built(
                lambda: RuntimeCurve(**_named(table, "runtime", ("memory_seconds", "compute_seconds", "fixed_seconds")))
            )
        factor = self._watts_factor()
        scaled = PowerCurve(
            cubic_watts=power.cubic_watts * factor,
            linear_watts=power.linear_watts * factor,
            constant_watts=power.constant_watts * factor,
        )
        return scaled, runtime

    def _watts_factor(self) -> float:
        return self._table.number("watts_factor", 1.0, high=1000.0, above=True)

    def _curve(self) -> WorkloadCurve:
        table = self._table
        curves = type_curves(table, "curve_of") if table.has("curve_of") else self._frame.curves
        name = table.text("curve")
        if not curves:
            raise table.error(f"curve={shown(name)} is of no GPU type: give curve_of here or curves for the device")
        if name not in curves:
            raise table.error(f"curve={shown(name)} is not among the type's: {did_you_mean(name, curves, cutoff=0.0)}")
        return curves[name]

    def _modelled(self, power: PowerCurve, runtime: RuntimeCurve) -> Load:
        if not self._frame.on_grid:
            return self._table.built(
                lambda: load_from_curves(
                    power, runtime, self._frame.relative_clocks, power_limit_watts=self._frame.limit_watts
                )
            )
        inside = [clock for clock in self._frame.relative_clocks if power.watts(clock) <= self._frame.limit_watts]
        if not inside:
            raise self._table.error(f"the lowest clock draws more than power_limit_watts={self._frame.limit_watts:g}")
        real = [min(clock, inside[-1]) for clock in self._frame.relative_clocks]
        return Load(
            watts=tuple(power.watts(clock) for clock in real),
            seconds_per_unit=tuple(runtime.seconds(clock) for clock in real),
        )

    def _measured(self, curve: WorkloadCurve) -> Load:
        """Return the readings of a curve, in between by straight lines, as its board's limit lets them be reached."""
        factor = self._watts_factor()
        board = curve.on_board(self._frame.limit_watts / factor)
        # Rounded: a relative clock times its reference may miss the end of the measured range by the last bit.
        clocks = [round(clock * curve.reference_clock_mhz, 6) for clock in self._frame.relative_clocks]
        readings = self._table.built(lambda: [board.reading(clock) for clock in clocks])
        found = [reading for reading in readings if reading is not None]
        if len(found) < len(clocks):
            raise self._table.error(f"curve {shown(curve.workload)} of {curve.gpu_type} has no readings: points is fit")
        # Noise apart, a lower clock never draws more.
        watts = accumulate((factor * reading.watts for reading in found), max)
        return Load(
            watts=tuple(watts),
            seconds_per_unit=tuple(reading.seconds for reading in found),
        )

    def _above_floor(self, load: Load) -> Load:
        return replace(load, watts=tuple(max(self._frame.floor_watts, watts) for watts in load.watts))

    def _at_speed(self, load: Load) -> Load:
        own = self._table.optional_number("relative_speed", high=1e9, above=True)
        speed = self._frame.relative_speed if own is None else own
        if speed is not None:
            factor = 1.0 / (speed * load.seconds_per_unit[-1])
        elif self._name in self._frame.unit_seconds:
            factor = 1.0 / self._frame.unit_seconds[self._name]
        else:
            return load
        return replace(load, seconds_per_unit=tuple(value * factor for value in load.seconds_per_unit))


def _named(table: WorldTable, key: str, names: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(names, table.numbers(key, count=len(names), high=1e12), strict=True))


def type_curves(table: WorldTable, key: str) -> dict[str, WorkloadCurve]:
    """Return the calibrated curves of the GPU type that a key names, by workload."""
    name = table.text(key)
    curves = {curve.workload: curve for curve in curves_of(GpuTypeName(name))}
    if not curves:
        hint = did_you_mean(name, sorted(shipped_curves()), cutoff=0.4)
        raise table.error(f"{key}={shown(name)} is no GPU type with calibrated curves; {hint}")
    return curves


def read_scaling(table: WorldTable) -> Scaling:
    """Return how the work spreads over devices, by default without any loss."""
    loss = table.number("seconds_per_device", 0.0, high=1e9)
    traffic = table.number("traffic_gigabytes_per_unit", 0.0, high=1e9)
    row = table.table("efficiency")
    efficiency = {}
    for text, value in row.entries().items():
        if not (text.isascii() and text.isdigit() and len(text) <= 7 and 1 <= int(text) <= _MAX_COUNT):
            raise row.error(f"device count {shown(text)} is not a whole number from 1 to {_MAX_COUNT}")
        efficiency[int(text)] = row.check_number(text, value, high=1.5, above=True)
    table.finish()
    return table.built(
        lambda: Scaling(seconds_per_device=loss, efficiency_by_count=efficiency, traffic_gigabytes_per_unit=traffic)
    )
