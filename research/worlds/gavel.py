"""Kinds and pairs of world `gavel-shared` from measured rates (Gavel) and measured power (Zeus).

A setting of a device is a power limit: Zeus swept those. Its relative clock is the mean relative speed at that limit.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median
from typing import Any

LINK_GIGABYTES_PER_SECOND = 1.25
"""10 Gbit/s between nodes: assumed."""
GPUS_PER_NODE = 4
_NETWORKS = {
    # Gavel's model: the network of the Zeus sweep whose power it is given, and that sweep's batch size if not its own.
    "ResNet-18": ("shufflenetv2", None),
    "ResNet-50": ("resnet50", None),
    "Transformer": ("bert_base_uncased", None),
    "LM": ("deepspeech2", None),
    "Recommendation": ("ncf", None),
    "A3C": ("ncf", 1.0),
    "CycleGAN": ("resnet50", 1e6),
}
_HIGHEST_SPEED = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelDevice:
    """Where the power of one of Gavel's GPU types comes from."""

    swept: str
    """GPU of the Zeus sweep."""
    settings: bool
    """Whether its power limits are settings of the device; else it runs at the highest alone."""
    watts_factor: float
    context_watts: float
    limit_watts: float


GAVEL_DEVICES = {
    # One of the two GPUs of a K80 board of 300 W; it was not swept: a P100 of 250 W, by the ratio of limits.
    "k80": GavelDevice(swept="P100", settings=False, watts_factor=0.6, context_watts=57.0, limit_watts=150.0),
    "p100": GavelDevice(swept="P100", settings=True, watts_factor=1.0, context_watts=31.0, limit_watts=250.0),
    "v100": GavelDevice(swept="V100", settings=True, watts_factor=1.0, context_watts=33.0, limit_watts=250.0),
}
Sweep = dict[tuple[str, float], dict[float, tuple[float, float]]]
"""By network and batch size: power limit [W] to (relative speed, power [W])."""


def gavel_document(data: Path) -> dict[str, Any]:
    """Return the JSON document of the world's kinds and pairs.

    Args:
        data: Folder that holds gavel_throughputs and zeus_power_limit.
    """
    rates = list(_rows(data / "gavel_throughputs" / "isolated.csv"))
    pairs = list(_rows(data / "gavel_throughputs" / "colocated_pairs.csv"))
    sweep_rows = list(_rows(data / "zeus_power_limit" / "power_limit_sweep.csv"))
    devices = {}
    for name, device in GAVEL_DEVICES.items():
        sweep = zeus_sweep(row for row in sweep_rows if row["gpu"] == device.swept)
        kinds = _kinds([row for row in rates if row["gpu"] == name], device, sweep)
        default_watts = {kind: entry["watts"][-1] for kind, entry in kinds.items()}
        devices[name] = {
            "kinds": kinds,
            "pairs": _pairs([row for row in pairs if row["gpu"] == name], device, default_watts),
        }
    return {
        "source": "Gavel, OSDI 2020 (MIT): rates and pairs; Zeus, NSDI 2023 (Apache-2.0): power and speed by limit",
        "devices": devices,
    }


def zeus_sweep(rows: Iterable[Mapping[str, str]]) -> Sweep:
    """Return one GPU's sweep, medians over optimisers and data sets; less power never goes with more speed."""
    raw: dict[tuple[str, float], dict[float, list[tuple[float, float]]]] = {}
    for row in rows:
        key = (row["network"], float(row["batch_size"]))
        point = (float(row["time_per_epoch_s"]), float(row["average_power_w"]))
        raw.setdefault(key, {}).setdefault(float(row["power_limit_w"]), []).append(point)
    limits = sorted({limit for points in raw.values() for limit in points})
    sweep: Sweep = {}
    for key, points in raw.items():
        if sorted(points) != limits:
            continue
        seconds = [median(time for time, _ in points[limit]) for limit in limits]
        watts = [median(power for _, power in points[limit]) for limit in limits]
        for index in range(len(limits) - 2, -1, -1):
            seconds[index] = max(seconds[index], seconds[index + 1])
            watts[index] = min(watts[index], watts[index + 1])
        sweep[key] = {
            limit: (seconds[-1] / time, power) for limit, time, power in zip(limits, seconds, watts, strict=True)
        }
    return sweep


def pair_watts(context: float, alone: tuple[float, float], speeds: tuple[float, float], limit: float) -> float:
    """Return the power [W] of a device that two kinds share: each adds its own share above the idle context.

    On the 28 pairs measured on an H100 (idle context 117 W) the mean error of this is 4 %, the largest 11 %.

    Args:
        context: Idle with a context open [W].
        alone: Power of each kind alone [W].
        speeds: Relative speed of each in the pair.
        limit: Of the board [W].
    """
    added = sum(speed * max(0.0, watts - context) for watts, speed in zip(alone, speeds, strict=True))
    return min(limit, context + added)


def _kinds(rows: Sequence[Mapping[str, str]], device: GavelDevice, sweep: Sweep) -> dict[str, Any]:
    rates: dict[str, dict[tuple[int, int], Mapping[str, str]]] = {}
    for row in rows:
        rates.setdefault(row["job_type"], {})[int(row["consolidated"]), int(row["scale_factor"])] = row
    kinds = {}
    for kind, table in sorted(rates.items()):
        single = table.get((1, 1)) or table.get((0, 1))
        if single is None or not float(single["steps_per_s"]) > 0.0:
            continue
        rate = float(single["steps_per_s"])
        points = _nearest(sweep, single["model"], single["batch_size"])
        settings = sorted(points) if device.settings else [max(points)]
        entry: dict[str, Any] = {
            "watts": [round(points[limit][1] * device.watts_factor, 2) for limit in settings],
            "seconds_per_unit": [float(f"{1.0 / (rate * points[limit][0]):.6g}") for limit in settings],
        }
        scaling = _scaling(table, rate)
        if scaling:
            entry["scaling"] = scaling
        kinds[kind] = entry
    return kinds


def _nearest(sweep: Sweep, model: str, batch_size: str) -> dict[float, tuple[float, float]]:
    network, fixed = _NETWORKS[model]
    wanted = fixed or float(batch_size or 1.0)
    key = min((key for key in sweep if key[0] == network), key=lambda key: abs(log(key[1] / wanted)))
    return sweep[key]


def _scaling(table: Mapping[tuple[int, int], Mapping[str, str]], rate: float) -> dict[str, Any]:
    """Return the efficiency of one step on n GPUs, and the traffic that explains why 8 spread GPUs are slower.

    A job on n GPUs does n batches in a step, so the efficiency per step is low: work is counted in steps.
    """
    by_count = {
        count: float(row["steps_per_s"])
        for (consolidated, count), row in table.items()
        if consolidated and count > 1 and float(row["steps_per_s"]) > 0.0
    }
    if not by_count:
        return {}
    efficiency = {
        str(count): float(f"{min(1.5, value / (count * rate)):.6g}") for count, value in sorted(by_count.items())
    }
    scaling: dict[str, Any] = {"efficiency": efficiency}
    spread = table.get((0, 8))
    if spread and 8 in by_count and float(spread["steps_per_s"]) > 0.0:
        extra_seconds = 1.0 / float(spread["steps_per_s"]) - 1.0 / by_count[8]
        if extra_seconds > 0.0:
            traffic = extra_seconds * LINK_GIGABYTES_PER_SECOND / GPUS_PER_NODE
            scaling["traffic_gigabytes_per_unit"] = float(f"{traffic:.6g}")
    return scaling


def _pairs(
    rows: Sequence[Mapping[str, str]], device: GavelDevice, default_watts: Mapping[str, float]
) -> list[dict[str, Any]]:
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        kinds = (row["job_a"], row["job_b"])
        if row["feasible"] != "1" or any(kind not in default_watts for kind in kinds) or kinds[::-1] in pairs:
            continue
        speeds = (_speed(row["a_relative_speed"]), _speed(row["b_relative_speed"]))
        if not min(speeds) > 0.0:
            continue
        alone = (default_watts[kinds[0]], default_watts[kinds[1]])
        watts = pair_watts(device.context_watts, alone, speeds, device.limit_watts)
        pairs[kinds] = {"kinds": list(kinds), "speeds": list(speeds), "watts": round(watts, 2)}
    return list(pairs.values())


def _speed(text: str) -> float:
    return min(_HIGHEST_SPEED, float(text or 0.0))


def _rows(path: Path) -> Iterable[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
