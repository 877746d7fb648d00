"""The columns of devices and of what jobs run in: nodes, switches, partitions, clusters and their constraints."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, nan, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from slurm_energy.domain.cluster import ClusterState, GpuReading, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, CATALOGUE_LIMITS, BoardLimits, gpu_type_from_slurm_type
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.energy_model.data_sheets import DATA_SHEETS, DataSheet
from slurm_energy.energy_model.saturation import Processor, processors, saturation
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.columns import Scaler, raw
from slurm_energy.graph.schema import (
    CLUSTER,
    CONSTRAINT,
    CURVE_SHARES,
    GPU,
    LARGEST,
    NODE,
    PARTITION,
    SATURATION_SIZES,
    SWITCH,
    UPLINK,
    column,
)

NODE_SCALER = Scaler(NODE)
UPLINK_SCALER = Scaler(UPLINK)
SWITCH_SCALER = Scaler(SWITCH)
PARTITION_SCALER = Scaler(PARTITION)
CLUSTER_SCALER = Scaler(CLUSTER)
CONSTRAINT_SCALER = Scaler(CONSTRAINT)
Row = tuple[float, ...]
_MEBIBYTES_PER_GIBIBYTE = 1024.0
_LARGEST_COUNT = 1e6
"""Stands for an infinite number of GPUs, such as an array without an end asks for."""
CONSTRAINTS_PER_CLUSTER = 4
_UNLIMITED = ClusterState(name=ClusterName(""))
"""Stands for a cluster without a description."""
_STATE = column(GPU, "is_allocated")
_STATIC_SCALER = Scaler(GPU[:_STATE])
_STATE_SCALER = Scaler(GPU[_STATE:])
_UNTYPED_GRES = "gpu"
"""Key in the site's mapping for GPUs whose GRES has no type."""
_MEASURED_SHAPE = "fp32"
"""The sizes of the schema lie on the slope of single precision; half precision fills a device at twice the size."""
_NAME = re.compile(r"[ _]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCounts:
    """Sums over the nodes and jobs of a partition or cluster."""

    nodes: int = 0
    suspended: int = 0
    gpus: int = 0
    gpus_free: int = 0
    waiting_gpus: float = 0.0
    waiting_jobs: int = 0
    running_jobs: int = 0


def node_row(node: NodeState) -> Row:
    """Return the unscaled NODE columns."""
    loads = [load for reading in node.gpu_readings if (load := finite(reading.utilisation)) is not None]
    heats = [heat for reading in node.gpu_readings if (heat := finite(reading.temperature_celsius)) is not None]
    gpus = node.gpu_count
    memory, used = node.memory_mib, node.memory_allocated_mib
    return (
        float(node.available),
        float(node.is_suspended),
        float(node.is_waking),
        float(node.cpus),
        ratio(max(0.0, node.cpus - node.cpus_allocated), node.cpus),
        nan if memory is None else memory / _MEBIBYTES_PER_GIBIBYTE,
        nan if memory is None else ratio(max(0.0, memory - (used or 0.0)), memory),
        float(gpus),
        ratio(node.gpus_idle, gpus),
        float(finite(node.power_watts) is not None),
        raw(node.power_watts),
        max(loads) - min(loads) if loads else nan,
        max(heats, default=nan),
        raw(node.wake_seconds),
    )


def uplink_row(node: NodeState) -> Row:
    """Return the unscaled UPLINK columns of a node's link to its switch."""
    return link_row(node.uplink_gb_per_second, node.uplink_congestion, node.uplink_latency_microseconds)


def link_row(capacity: float | None, congestion: float | None, latency: float | None = None) -> Row:
    """Return the unscaled UPLINK columns; a link is known when its capacity is."""
    return raw(capacity), raw(congestion), raw(latency), float(finite(capacity) is not None)


def switch_row(switch: SwitchState | None, *, nodes: int, available: int, is_leaf: bool) -> Row:
    """Return the unscaled SWITCH columns; without a switch they are those of a group of like nodes."""
    return (
        float(nodes),
        nan if switch is None else raw(switch.capacity_gb_per_second),
        nan if switch is None else raw(switch.congestion),
        ratio(available, nodes),
        float(is_leaf),
        float(switch is not None),
    )


def partition_row(partition: PartitionState, counts: PlaceCounts, site: ClusterState | None = None) -> Row:
    """Return the unscaled PARTITION columns; carbon and price are the partition's own, else its cluster's."""
    carbon, price = partition.carbon_grams_per_kwh, partition.price_per_kwh
    if site is not None:
        carbon = site.carbon_grams_per_kwh if carbon is None else carbon
        price = site.price_per_kwh if price is None else price
    limit = partition.max_time_minutes
    return (
        float(partition.up),
        float(partition.is_default),
        float(counts.nodes > 0 and counts.gpus == 0),
        nan if limit is None else limit * 60.0,
        float(limit is not None and isfinite(limit)),
        float(partition.priority_tier),
        float(counts.nodes),
        float(counts.gpus),
        ratio(counts.gpus_free, counts.gpus),
        min(_LARGEST_COUNT, counts.waiting_gpus),
        0.0,  # claimed_gpus: see the schema
        float(counts.waiting_jobs),
        ratio(counts.suspended, counts.nodes),
        raw(carbon),
        raw(price),
    )


def cluster_row(state: ClusterState | None, counts: PlaceCounts) -> Row:
    """Return the unscaled CLUSTER columns."""
    power = None if state is None else state.power_watts
    return (
        float(counts.nodes),
        float(counts.gpus),
        ratio(counts.gpus_free, counts.gpus),
        float(counts.waiting_jobs),
        float(counts.running_jobs),
        float(finite(power) is not None),
        raw(power),
    )


def constraint_rows(state: ClusterState | None) -> tuple[Row, Row, Row, Row]:
    """Return the unscaled CONSTRAINT columns of power, cooling, carbon and quality.

    Carbon has a value but no limit. The value of quality is in jobs of a hundred that missed their goal.
    """
    if state is None:
        state = _UNLIMITED
    violations, goal = state.quality_violations, state.quality_goal
    carbon = state.carbon_grams_per_kwh
    return (
        (1.0, 0.0, 0.0, 0.0, *_against(state.power_watts, state.power_budget_watts), raw(state.power_watts)),
        (0.0, 1.0, 0.0, 0.0, *_against(state.heat_watts, state.cooling_watts), raw(state.heat_watts)),
        (0.0, 0.0, 1.0, 0.0, float(finite(carbon) is not None), nan, nan, raw(carbon)),
        (0.0, 0.0, 0.0, 1.0, *_against(violations, goal), nan if violations is None else 100.0 * violations),
    )


def _against(value: float | None, limit: float | None) -> tuple[float, float, float]:
    """Return is_set, usage and slack; a limit of 0 that is passed counts as the largest usage."""
    value, limit = finite(value), finite(limit)
    if limit is None or limit < 0.0:
        return 0.0, nan, nan
    if value is None:
        return 1.0, nan, nan
    if limit == 0.0:
        return 1.0, 0.0 if value <= 0.0 else LARGEST, 0.0 if value <= 0.0 else -1.0
    return 1.0, value / limit, (limit - value) / (limit + value) if limit + value > 0.0 else -inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceType:
    """One type of device on one site; every figure is None, and every column 0, where the type is not known."""

    name: GpuTypeName | None
    is_cpu: bool
    max_clock_mhz: float | None
    memory_gib: float | None
    power_limit_watts: float | None
    nvlink_gb_per_second: float | None
    pcie_gb_per_second: float | None
    columns: tuple[float, ...]
    """The scaled columns before `is_allocated`."""


class DeviceState(NamedTuple):
    """The unscaled columns from `is_allocated` on."""

    is_allocated: float
    has_reading: float = 0.0
    utilisation: float = nan
    memory_left: float = nan
    relative_clock: float = nan
    relative_power: float = nan
    temperature: float = nan
    efficiency: float = nan
    is_slowed: float = 0.0


FREE, ALLOCATED = DeviceState(0.0), DeviceState(1.0)
"""Devices without a reading."""


def catalogue_type(slurm_type: str | None, gpu_types: Mapping[str, str]) -> GpuTypeName | None:
    """Return the name under which a GRES type is known: the site's mapping first, then catalogue and data sheets."""
    configured = gpu_types.get(_UNTYPED_GRES if slurm_type is None else slurm_type)
    if configured is not None:
        return GpuTypeName(configured) if configured in CATALOG or configured in processors() else None
    if slurm_type is None:
        return None
    return gpu_type_from_slurm_type(slurm_type) or processor_type((slurm_type,))


def processor_type(names: Sequence[str]) -> GpuTypeName | None:
    """Return the first of some names, such as a node's features, that is a device of the saturation table."""
    folded = (_NAME.sub("-", name.lower()) for name in names)
    return next((GpuTypeName(name) for name in folded if name in processors()), None)


def device_type(
    name: GpuTypeName | None, *, is_cpu: bool = False, limits: BoardLimits = CATALOGUE_LIMITS
) -> DeviceType:
    """Return what is fixed for devices of a type on boards with the site's limits."""
    return _device_type(name, is_cpu, None if name is None else limits.known_watts(name))


@lru_cache(maxsize=1024)
def _device_type(name: GpuTypeName | None, is_cpu: bool, limit_watts: float | None) -> DeviceType:
    row = None if name is None else CATALOG.get(name)
    sheet = None if name is None else DATA_SHEETS.get(name)
    processor = None if name is None else processors().get(name)
    clock = None if row is None else row.max_sm_clock_mhz
    limit = limit_watts
    if processor is not None and row is None:
        clock, limit = processor.clocks_mhz[-1], limit_watts or processor.limit_watts
    memory = None if row is None else row.memory_gib
    values = (
        float(row is not None or processor is not None),
        float(is_cpu),
        _peak_tflops(sheet, processor),
        raw(memory),
        raw(limit),
        raw(None if row is None else row.idle_watts),
        raw(clock),
        *_saturation(sheet, processor),
        *_curves(name, limit),
    )
    return DeviceType(
        name=name,
        is_cpu=is_cpu,
        max_clock_mhz=clock,
        memory_gib=memory,
        power_limit_watts=limit,
        nvlink_gb_per_second=None if sheet is None else sheet.nvlink_gb_per_second,
        pcie_gb_per_second=None if sheet is None else sheet.pcie_gb_per_second,
        columns=tuple(float(value) for value in _STATIC_SCALER.scaled([values])[0]),
    )


def device_state(device: DeviceType, reading: GpuReading | None, *, is_allocated: bool) -> DeviceState:
    """Return the state columns of one device; a figure that is missing or not finite stays unknown."""
    if reading is None:
        return ALLOCATED if is_allocated else FREE
    memory = reading.memory_gib if reading.memory_gib is not None else device.memory_gib
    return DeviceState(
        is_allocated=float(is_allocated),
        has_reading=1.0,
        utilisation=raw(reading.utilisation),
        memory_left=1.0 - ratio(reading.memory_used_gib, memory),
        relative_clock=ratio(reading.sm_clock_mhz, device.max_clock_mhz),
        relative_power=ratio(reading.power_watts, device.power_limit_watts),
        temperature=raw(reading.temperature_celsius),
        efficiency=raw(reading.efficiency_change),
        is_slowed=float(reading.is_slowed),
    )


def ratio(value: float | None, whole: float | None) -> float:
    """Return value / whole; NaN when either is missing or the whole is not above 0."""
    return nan if value is None or whole is None or not whole > 0.0 else value / whole


def device_rows(devices: Sequence[DeviceType], states: Sequence[DeviceState]) -> Floats:
    """Return the columns of equally many devices and states, [devices, GPU]."""
    rows = np.zeros((len(devices), len(GPU)), dtype=np.float32)
    if devices:
        numbers = {device: number for number, device in enumerate(dict.fromkeys(devices))}
        table = np.array([device.columns for device in numbers], dtype=np.float32)
        rows[:, :_STATE] = table[[numbers[device] for device in devices]]
        rows[:, _STATE:] = _STATE_SCALER.scaled(states)
    return rows


def _peak_tflops(sheet: DataSheet | None, processor: Processor | None) -> float:
    if sheet is not None:
        return sheet.peak_tflops
    return nan if processor is None else processor.peak_gflops / 1e3


def _saturation(sheet: DataSheet | None, processor: Processor | None) -> tuple[float, ...]:
    """Return the reached share of the peak rate at each size of the schema.

    As in `Processor.efficiency`, the size that fills a device goes with the root of the number of its lanes.
    """
    lanes = sheet.lanes if sheet is not None else None if processor is None else processor.num_lanes
    if lanes is None:
        return (nan,) * len(SATURATION_SIZES)
    shape = saturation(_MEASURED_SHAPE)
    return tuple(shape.efficiency.at(size, sqrt(lanes / shape.num_lanes)) for size in SATURATION_SIZES)


def _curves(name: GpuTypeName | None, limit_watts: float | None) -> tuple[float, ...]:
    """Return power over that at the highest clock, then slowdown, at each share of the schema.

    Below the lowest clock that was measured, the lowest clock's figures are given: nothing is known there.
    """
    curves = () if name is None else curves_of(name)
    if not curves:
        return (nan,) * (2 * len(CURVE_SHARES))
    boards = [curve.on_board(inf if limit_watts is None else limit_watts) for curve in curves]
    powers = [fmean(_power(curve, share) for curve in boards) for share in CURVE_SHARES]
    slowdowns = [fmean(curve.slowdown(_clock(curve, share)) for curve in boards) for share in CURVE_SHARES]
    return (*powers, *slowdowns)


def _clock(curve: WorkloadCurve, share: float) -> float:
    return max(curve.low_clock_mhz, share * curve.high_clock_mhz)


def _power(curve: WorkloadCurve, share: float) -> float:
    return curve.watts(_clock(curve, share)) / curve.watts(curve.high_clock_mhz)


def finite(value: float | None) -> float | None:
    """Return a reading, None for one that is not finite."""
    return value if value is not None and isfinite(value) else None
