"""Arguments of sbatch's options as numbers and TRES texts, in domain units."""

import re
from collections.abc import Mapping
from typing import Final

from slurm_energy.domain.job import MAX_SLOWDOWN_BOUND
from slurm_energy.domain.units import minutes_from_slurm_time
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.gres import TresRequest

Options = Mapping[str, str | None]
"""Full option name to argument; None where there is none."""

_MIB: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_COUNT_UNIT: Final = {"": 1, "k": 1024, "m": 1024 * 1024}
_MEMORY = re.compile(r"(\d{1,15})([KMGTkmgt]?)[bB]?\Z", re.ASCII)
_NODES = re.compile(r"(\d{1,9})([kKmM]?)(?:-(\d{1,9})([kKmM]?))?(?::\d+)?\Z", re.ASCII)
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,6})?)%?\Z", re.ASCII)


def time_limit_minutes(options: Options) -> float | None:
    """Return --time in minutes; None for none and for UNLIMITED.

    Raises:
        ValueRangeError: it is none of Slurm's forms.
    """
    text = options.get("time")
    return None if text is None else minutes_from_slurm_time(text)


def tres_request(options: Options, nodes_min: int | None, nodes_max: int | None, tasks: int | None) -> TresRequest:
    """Return the TRES texts that sbatch would send for these options."""
    per_node = [_tres("gres/", options.get("gres")), _tres("gres/gpu:", options.get("gpus-per-node"))]
    per_task = [options.get("tres-per-task") or "", _tres("gres/gpu:", options.get("gpus-per-task"))]
    return TresRequest(
        per_job=_tres("gres/gpu:", options.get("gpus")),
        per_node=",".join(filter(None, per_node)),
        per_socket=_tres("gres/gpu:", options.get("gpus-per-socket")),
        per_task=",".join(filter(None, per_task)),
        nodes_min=nodes_min or 1,
        nodes_max=nodes_max,
        tasks=tasks,
        sockets_per_node=whole_number("--sockets-per-node", options.get("sockets-per-node")),
    )


def _tres(prefix: str, text: str | None) -> str:
    """Return each item with its prefix; commas inside brackets belong to an item."""
    items = re.split(r",(?![^()]*\))", text or "")
    return ",".join(item if item.startswith(("gres:", "gres/")) else prefix + item for item in items if item)


def task_count(options: Options, nodes_min: int | None) -> int | None:
    """Return --ntasks, else what --ntasks-per-node makes of the nodes."""
    tasks = whole_number("--ntasks", options.get("ntasks"))
    per_node = whole_number("--ntasks-per-node", options.get("ntasks-per-node"))
    return tasks if tasks is not None or per_node is None else per_node * (nodes_min or 1)


def node_range(text: str | None) -> tuple[int | None, int | None]:
    """Return the lower and upper count of --nodes; the upper is None when it is not given apart.

    Raises:
        ValueRangeError: not COUNT, MIN-MAX or a list of counts.
    """
    if text is None:
        return None, None
    bounds: list[int] = []
    for item in text.split(","):
        match = _NODES.match(item)
        if match is None:
            raise ValueRangeError(f"--nodes={text[:40]} is not COUNT or MIN-MAX")
        bounds.append(int(match.group(1)) * _COUNT_UNIT[match.group(2).lower()])
        if match.group(3) is not None:
            bounds.append(int(match.group(3)) * _COUNT_UNIT[match.group(4).lower()])
    if min(bounds) < 1 or bounds != sorted(bounds):
        raise ValueRangeError(f"--nodes={text[:40]} has a count below 1 or a reversed range")
    return bounds[0], bounds[-1] if bounds[-1] != bounds[0] else None


def whole_number(option: str, text: str | None) -> int | None:
    """Return a count of at least 1, or None when the option is not given.

    Raises:
        ValueRangeError: anything else.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= 0xFFFFFFFD):
        raise ValueRangeError(f"{option}={text[:40]} is not a whole number from 1 up")
    return int(text)


def memory_mib(option: str, text: str | None) -> float | None:
    """Return a memory size in MiB; sbatch's unit is M when none is given, and 0 asks for all of a node.

    Raises:
        ValueRangeError: not a number with K, M, G or T.
    """
    if text is None:
        return None
    match = _MEMORY.match(text)
    if match is None:
        raise ValueRangeError(f"{option}={text[:40]} is not a size such as 4000M or 64G")
    return int(match.group(1)) * _MIB[match.group(2).upper() or "M"] or None


def trials_from_word(text: str | None) -> bool | None:
    """Return whether clocks may be tried in the job, None where its user said nothing.

    Raises:
        ValueRangeError: neither `on` nor `off`.
    """
    if text not in {None, "on", "off"}:
        raise ValueRangeError(f"--energy-trials={text!s:.40} is not on or off")
    return None if text is None else text == "on"


def slowdown_from_percent(text: str | None) -> float | None:
    """Return the ratio from a percentage such as `5`, `7.5` or `5%`.

    Raises:
        ValueRangeError: not a number, or over the bound.
    """
    if text is None:
        return None
    match = _PERCENT.match(text)
    if match is None or not 0.0 <= float(match.group(1)) / 100.0 <= MAX_SLOWDOWN_BOUND:
        raise ValueRangeError(
            f"--energy-max-slowdown={text[:40]} is not a percentage between 0 and {MAX_SLOWDOWN_BOUND * 100:g}"
        )
    return float(match.group(1)) / 100.0
