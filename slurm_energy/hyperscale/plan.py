"""Plan a training: which GPUs, which part on which, and what time and energy that takes.

The speed of a GPU is that of an earlier run where there is one, else it follows from the GPU catalogue: sums over
neighbours read memory, so a reference GPU's speed is its bandwidth over the bytes of an edge, and other types are as
much faster or slower as `energy_model.relative_speed` says. A prediction says how far off it may be.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import gpu_type, gpu_type_from_slurm_type
from slurm_energy.energy_model.data_sheets import DATA_SHEETS
from slurm_energy.energy_model.operating_point import mean_measured_watts
from slurm_energy.energy_model.relative_speed import relative_speed
from slurm_energy.errors import ConfigError, DataFileError
from slurm_energy.files import write_atomically
from slurm_energy.hyperscale.allocation import Agent, PartAllocation, greedy
from slurm_energy.hyperscale.part_files import PartSizes
from slurm_energy.hyperscale.training import TrainSettings

PLAN_FILE, PARTS_FILE, RESULT_FILE, LOG_FILE, SCRIPT_FILE = (
    "plan.json",
    "parts.safetensors",
    "result.json",
    "log.csv",
    "job.sh",
)
CHANNELS = 64
"""Of the edges that speeds count: an edge of so many channels, there and back."""
START_SECONDS = 30.0
"""Of loading torch, reading parts and agreeing about rows, where no run has measured it."""
LINK_BYTES_PER_SECOND = 1e9
"""At which a rank receives, where no run has measured it: ten gigabits, less what a protocol takes."""
MEASURED_DOUBT, CATALOGUE_DOUBT = 1.15, 2.5
_REFERENCE = GpuTypeName("a100-sxm4-40gb")
_BANDWIDTH_USED = 0.3
"""Share of a data sheet's bandwidth that sums over scattered rows reach: an estimate, part of the catalogue's doubt."""
_ATTENTION_WORK = 3.0
_LOAD_OF_LIMIT = 0.6
"""Power of a training over the board's limit, where no curve is measured: an estimate."""
_MAX_PLAN_BYTES = 4 << 20
HETEROGENEOUS_GAIN = 0.1
"""Share of an epoch's time that a job across partitions must save: it waits for all of them at once."""
SpeedSource = Literal["measured", "catalogue", "given"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGpu:
    """One free GPU that a rank can have."""

    partition: str
    slurm_type: str
    speed_edges_per_second: float
    memory_bytes: int
    watts: float
    """While it trains."""
    source: SpeedSource

    @property
    def place(self) -> tuple[str, str]:
        """Partition and type: a component of a heterogeneous job."""
        return self.partition, self.slurm_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a training takes, and how far off that may be: a half to twice as much where doubt is 2."""

    start_seconds: float
    epoch_seconds: float
    seconds: float
    joules: float
    doubt: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A planned training; rank r has devices[r], which stand by partition and type."""

    settings: TrainSettings
    devices: tuple[FreeGpu, ...]
    rank_of_part: tuple[int, ...]
    work: tuple[float, ...]
    """Of each part, in edges of 64 channels."""
    link_bytes_per_second: float
    prediction: Prediction

    def components(self) -> tuple[tuple[FreeGpu, int], ...]:
        """Return the job's components: a GPU of each, and how many tasks."""
        places = list(dict.fromkeys(one.place for one in self.devices))
        return tuple(
            (next(one for one in self.devices if one.place == place), sum(one.place == place for one in self.devices))
            for place in places
        )


def channel_work(settings: TrainSettings, num_features: int, num_classes: int) -> float:
    """Return the work of an edge in an epoch, in edges of 64 channels."""
    heads = settings.heads if settings.model == "gat" else 1
    widths = [num_features, *[settings.hidden_channels] * (settings.num_layers - 1), num_classes * heads]
    sums = [min(low, high) for low, high in pairwise(widths)]
    if settings.model != "gat" and settings.input_dropout == 0.0:
        sums = sums[1:]  # the first layer's are made once
    return max(1.0, sum(sums)) / CHANNELS * (_ATTENTION_WORK if settings.model == "gat" else 1.0)


def part_work(sizes: PartSizes, settings: TrainSettings) -> tuple[float, ...]:
    """Return the work of each part in an epoch: its edges and vertices, in edges of 64 channels."""
    each = channel_work(settings, sizes.num_features, sizes.num_classes)
    vertices = np.diff(sizes.vertex_offsets)
    return tuple((each * (np.diff(sizes.edge_offsets) + vertices)).tolist())


def memory_of_parts(sizes: PartSizes, settings: TrainSettings) -> tuple[int, ...]:
    """Return the bytes that each part needs: features, two values of each layer, and edges twice in both orders."""
    heads = settings.heads if settings.model == "gat" else 1
    width = sizes.num_features + 4 * settings.hidden_channels * settings.num_layers + 2 * sizes.num_classes * heads
    halo = sizes.halo_rows.sum(dim=1).numpy()
    rows = np.diff(sizes.vertex_offsets) + halo
    edge_bytes = 16 + (12 * settings.heads if settings.model == "gat" else 8)
    return tuple((rows * width * 4 + np.diff(sizes.edge_offsets) * edge_bytes * 2).astype(int).tolist())


def allocation_of(
    sizes: PartSizes, settings: TrainSettings, devices: Sequence[FreeGpu], link_bytes_per_second: float
) -> PartAllocation:
    """Return what is to be allocated: work, memory, and the bytes of halo rows and their gradients."""
    heads = settings.heads if settings.model == "gat" else 1
    widths = [settings.hidden_channels] * (settings.num_layers - 1) + [sizes.num_classes * heads]
    hidden = settings.hidden_channels
    sent = sum(min(hidden, width) for width in widths[1:] or widths) + (hidden if settings.input_dropout else 0)
    return PartAllocation(
        work=part_work(sizes, settings),
        part_bytes=memory_of_parts(sizes, settings),
        exchanged_bytes=sizes.halo_rows.numpy().astype(np.float64) * sent * 4 * 2,
        speeds=tuple(one.speed_edges_per_second for one in devices),
        memory_bytes=tuple(one.memory_bytes for one in devices),
        link_bytes_per_second=link_bytes_per_second,
    )


def free_gpus(
    snapshot: ClusterSnapshot, partitions: Sequence[str] = (), given: Mapping[str, float] | None = None
) -> tuple[FreeGpu, ...]:
    """Return the free GPUs that a job can ask for by type, the fastest first; each counts in one partition.

    Args:
        snapshot: Of the cluster.
        partitions: Of these alone; empty for all that are up and open.
        given: Edges per second by Slurm's type, measured or stated; others by the catalogue.

    Raises:
        ConfigError: a partition does not exist, or there is no free GPU whose speed is known.
    """
    by_name = {str(name): one for name, one in snapshot.partition_by_name.items()}
    for name in partitions:
        if name not in by_name:
            raise ConfigError(f"partition {name[:80]!r} does not exist: there are {', '.join(sorted(by_name))}")
    usable = set(partitions) or {
        name for name, one in by_name.items() if one.up and not one.root_only and not one.needs_reservation
    }
    found: list[FreeGpu] = []
    unknown: set[str] = set()
    for node in snapshot.nodes:
        partition = next((name for name in node.partitions if name in usable), None)
        if partition is None or not node.available or node.is_suspended:
            continue
        for gpus in node.gpus:
            one = _free_gpu(partition, gpus.slurm_type or "", given or {})
            if one is not None:
                found += [one] * gpus.idle
            elif gpus.idle:
                unknown.add(gpus.slurm_type or "GPUs without a type")
    if not found:
        also = f"; the speed of {', '.join(sorted(unknown))} is not known: give it with --speed" if unknown else ""
        raise ConfigError(f"there is no free GPU in {', '.join(sorted(usable)) or 'any partition'}{also}")
    return tuple(sorted(found, key=lambda one: (-one.speed_edges_per_second, one.place)))


def _free_gpu(partition: str, slurm_type: str, given: Mapping[str, float]) -> FreeGpu | None:
    name = gpu_type_from_slurm_type(slurm_type)
    row = gpu_type(name) if name else None
    relative = relative_speed(name, _REFERENCE) if name else None
    speed, source = given.get(slurm_type), "given"
    if speed is None and relative is not None:
        per_edge = 2 * 2 * 4 * CHANNELS  # a row read and one written, there and back
        reference = DATA_SHEETS[_REFERENCE].memory_gb_per_second * 1e9 * _BANDWIDTH_USED / per_edge
        speed, source = relative * reference, "catalogue"
    if speed is None:
        return None
    limit = (row.power_limit_watts if row else None) or 300.0
    watts = (mean_measured_watts(name) if name else None) or _LOAD_OF_LIMIT * limit
    return FreeGpu(
        partition=partition,
        slurm_type=slurm_type,
        speed_edges_per_second=speed,
        memory_bytes=int(((row.memory_gib if row else None) or 16.0) * 0.9 * (1 << 30)),
        watts=watts,
        source="given" if source == "given" else "catalogue",
    )


def choose_devices(gpus: Sequence[FreeGpu], most: int) -> tuple[tuple[FreeGpu, ...], ...]:
    """Return candidates for a job's devices: the fastest of all places, and the fastest of each place alone."""
    candidates = [tuple(gpus[:most])]
    for place in dict.fromkeys(one.place for one in gpus):
        candidates.append(tuple([one for one in gpus if one.place == place][:most]))
    ordered = (tuple(sorted(one, key=lambda gpu: (-gpu.speed_edges_per_second, gpu.place))) for one in candidates)
    return tuple(dict.fromkeys(ordered))


def make_plan(
    sizes: PartSizes,
    settings: TrainSettings,
    candidates: Sequence[Sequence[FreeGpu]],
    *,
    link_bytes_per_second: float = LINK_BYTES_PER_SECOND,
    start_seconds: float = START_SECONDS,
    is_measured: bool = False,
) -> TrainPlan:
    """Return the plan whose epochs are shortest; one across partitions only where it saves a tenth.

    Args:
        sizes: Of the parts.
        settings: Of the training.
        candidates: Devices to choose between.
        link_bytes_per_second: At which a rank receives.
        start_seconds: Before the first epoch.
        is_measured: Whether speeds, link and start are those of an earlier run.

    Raises:
        ConfigError: the parts fit into no candidate's memory.
    """
    plans: list[TrainPlan] = []
    problem = ""
    for devices in candidates:
        try:
            allocation = allocation_of(sizes, settings, devices, link_bytes_per_second)
            tried = [greedy(allocation), Agent(settings.seed).learn(allocation, updates=40)]
        except ConfigError as error:
            problem = str(error)
            continue
        places = min(tried, key=allocation.cost)
        epoch = epoch_seconds(allocation, places, settings)
        seconds = start_seconds + settings.epochs * epoch
        prediction = Prediction(
            start_seconds=start_seconds,
            epoch_seconds=epoch,
            seconds=seconds,
            joules=sum(one.watts for one in devices) * seconds,
            doubt=MEASURED_DOUBT if is_measured else CATALOGUE_DOUBT,
        )
        plans.append(
            TrainPlan(
                settings=settings,
                devices=tuple(devices),
                rank_of_part=places,
                work=allocation.work,
                link_bytes_per_second=link_bytes_per_second,
                prediction=prediction,
            )
        )
    if not plans:
        raise ConfigError(problem or "there are no devices to plan with")
    alone = [one for one in plans if len(one.components()) == 1]
    best = min(plans, key=lambda one: one.prediction.epoch_seconds)
    best_alone = min(alone, key=lambda one: one.prediction.epoch_seconds, default=best)
    pays = best.prediction.epoch_seconds <= (1.0 - HETEROGENEOUS_GAIN) * best_alone.prediction.epoch_seconds
    return best if pays else best_alone


def epoch_seconds(allocation: PartAllocation, places: Sequence[int], settings: TrainSettings) -> float:
    """Return the time of an epoch; with stale halos what a device receives is hidden behind what it computes."""
    if not settings.stale_halos:
        return allocation.epoch_seconds(places)
    compute = replace(allocation, exchanged_bytes=np.zeros_like(allocation.exchanged_bytes)).epoch_seconds(places)
    return max(compute, float(allocation.received_bytes(places).max()) / allocation.link_bytes_per_second)


def limit_minutes(prediction: Prediction) -> int:
    """Return a time limit that the prediction's doubt does not break."""
    return max(10, ceil(1.5 * prediction.seconds * prediction.doubt / 60.0))


def write_plan(folder: Path, plan: TrainPlan) -> None:
    """Write a plan into its folder.

    Raises:
        SpoolError: it cannot be written.
    """
    write_atomically(folder / PLAN_FILE, json.dumps(asdict(plan), indent=1).encode(), mode=0o644)


def read_plan(folder: Path) -> TrainPlan:
    """Return the plan of a folder.

    Raises:
        DataFileError: it is missing or damaged.
        ConfigError: a setting in it is out of its bounds.
    """
    found = read_json(folder / PLAN_FILE)
    try:
        plan = TrainPlan(
            settings=TrainSettings(**found["settings"]),
            devices=tuple(FreeGpu(**one) for one in found["devices"]),
            rank_of_part=tuple(int(one) for one in found["rank_of_part"]),
            work=tuple(float(one) for one in found["work"]),
            link_bytes_per_second=float(found["link_bytes_per_second"]),
            prediction=Prediction(**found["prediction"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataFileError(f"{folder / PLAN_FILE} is damaged ({error}): plan again") from error
    if not plan.devices or len(plan.rank_of_part) != len(plan.work):
        raise DataFileError(f"{folder / PLAN_FILE} is damaged (parts and devices do not fit): plan again")
    return plan


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file of bounded size.

    Raises:
        DataFileError: there is none.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_PLAN_BYTES + 1)
        found = json.loads(text) if len(text) <= _MAX_PLAN_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise DataFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataFileError(f"{path} is no JSON object of at most {_MAX_PLAN_BYTES} bytes")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an earlier run measured: edges per second by Slurm's type, and the time before its first epoch."""

    speeds: Mapping[str, float]
    start_seconds: float


def read_measured(folder: Path) -> Measured:
    """Return what the run of a folder measured.

    Raises:
        DataFileError: it has no result, or one that cannot be.
    """
    found = read_json(folder / RESULT_FILE)
    speeds, start = found.get("speeds"), found.get("start_seconds")
    if not isinstance(speeds, dict) or not isinstance(start, int | float) or not isfinite(start) or start < 0:
        raise DataFileError(f"{folder / RESULT_FILE} is damaged: run the training again")
    if not all(isinstance(one, int | float) and isfinite(one) and one > 0 for one in speeds.values()):
        raise DataFileError(f"{folder / RESULT_FILE} has a speed that is no number above 0: run the training again")
    return Measured(speeds={str(name): float(one) for name, one in speeds.items()}, start_seconds=float(start))
