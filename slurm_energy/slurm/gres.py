"""GPU requests and GPU inventories in every form that Slurm writes: pure functions from text to counts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.domain.job import GpuDemand
from slurm_energy.errors import ValueRangeError

_PLACES = re.compile(r"\([^()]*\)")
"""Sockets and indices behind a count: `gpu:a100:4(S:0-1)`, `gpu:a100:2(IDX:0,3)`; they may hold commas."""
_INDICES = re.compile(r"\A\s*(?:gres[:/])?gpu\b[^()]*\(IDX:([0-9,-]{1,4096})\)")
_ITEM = re.compile(r"[^,()]+(?:\([^()]*\))?")
MAX_GPU_INDEX = 1023
_PREFIX = re.compile(r"gres[:/]")
_COUNT = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?([kKmM]?)\Z")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}\Z")
_MULTIPLIER = {"": 1, "k": 1024, "m": 1024 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class TresRequest:
    """The TRES texts of one job and the counts that turn them into totals; empty text: not asked."""

    per_job: str = ""
    per_node: str = ""
    per_socket: str = ""
    per_task: str = ""
    nodes_min: int = 1
    nodes_max: int | None = None
    tasks: int | None = None
    sockets_per_node: int | None = None


def gpu_demands(request: TresRequest) -> tuple[GpuDemand, ...]:
    """Return the GPUs of the whole job, one demand per type.

    With several texts the widest wins: the job's total, then nodes, then tasks, then sockets; Slurm takes the
    others as constraints on where these GPUs lie.

    Raises:
        ValueRangeError: a text is not a list of TRES, or a count is out of bounds.
    """
    nodes = max(1, request.nodes_min)
    nodes_upper = max(nodes, request.nodes_max or nodes)
    tasks = max(1, request.tasks or nodes)
    sockets = max(1, request.sockets_per_node or 1)
    per_job = parse_gpus(request.per_job)
    if per_job:
        return per_job
    per_node = parse_gpus(request.per_node)
    if per_node:
        return tuple(_times(demand, nodes, nodes_upper) for demand in per_node)
    per_task = parse_gpus(request.per_task)
    if per_task:
        return tuple(_times(demand, tasks, tasks) for demand in per_task)
    # Slurm gives GPUs of the sockets that the job's cores lie on: one at least, all that were asked for at most.
    return tuple(_times(demand, nodes, nodes_upper * sockets) for demand in parse_gpus(request.per_socket))


def parse_gpus(text: str) -> tuple[GpuDemand, ...]:
    """Return the GPUs in a list of TRES or GRES, as written: `gres:gpu:2`, `gres/gpu:a100=2,gres/gpu=2`, `gpu`.

    Other resources are passed over. A typed and an untyped count in accounting's form (`=`) name the same GPUs.

    Raises:
        ValueRangeError: a GPU's type or count cannot be read.
    """
    typed: dict[str | None, GpuDemand] = {}
    accounting = False
    for item in _items(text):
        name = _PREFIX.sub("", item, count=1)
        if name != "gpu" and not name.startswith(("gpu:", "gpu=")):
            continue
        accounting = accounting or "=" in name
        demand = _demand(name[4:].replace("=", ":"), item)
        typed[demand.slurm_type] = _plus(typed.get(demand.slurm_type), demand)
    if accounting and None in typed and len(typed) > 1:
        untyped = typed.pop(None)
        rest = untyped.count - sum(demand.count for demand in typed.values())
        if rest > 0:
            typed[None] = GpuDemand(count=rest)
    return tuple(typed.values())


def held_gpus(texts: Iterable[str]) -> tuple[GpuDemand, ...]:
    """Return the GPUs that a job's `gres_detail` (a text per node) or TRES texts name together, by type.

    Raises:
        ValueRangeError: a GPU's type or count cannot be read.
    """
    typed: dict[str | None, GpuDemand] = {}
    for text in texts:
        for demand in parse_gpus(text):
            typed[demand.slurm_type] = _plus(typed.get(demand.slurm_type), demand)
    return tuple(typed.values())


def gpu_indices(text: str) -> tuple[int, ...]:
    """Return which devices of a node are meant, ascending, from `gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:4)`.

    Empty where Slurm does not tell, or tells what no node can have: total.
    """
    found: set[int] = set()
    for item in _ITEM.findall(text):
        match = _INDICES.match(item)
        for part in () if match is None else match.group(1).split(","):
            low, _, high = part.partition("-")
            first, last = (int(bound) if bound.isdigit() else -1 for bound in (low, high or low))
            if not 0 <= first <= last <= MAX_GPU_INDEX:
                return ()
            found.update(range(first, last + 1))
    return tuple(sorted(found))


def _items(text: str) -> list[str]:
    plain = _PLACES.sub("", text)
    return [item.strip() for item in plain.split(",") if item.strip() and item.strip().lower() not in _NOTHING]


_NOTHING = frozenset({"(null)", "n/a", "none", "gres:none", "gres/none"})


def _demand(body: str, item: str) -> GpuDemand:
    """Return one demand from what follows `gpu:`; a missing count is one GPU."""
    name, separator, count_text = body.rpartition(":")
    match = _COUNT.match(count_text)
    if match is None and not separator:
        name, match = body, _COUNT.match("1")
        if not name:
            return GpuDemand(count=1)
    if match is None or (name and (name.isdigit() or not _TYPE.match(name))):
        raise ValueRangeError(f"GPU request {item[:80]!r} is not [TYPE:]COUNT")
    factor = _MULTIPLIER[match.group(3).lower()]
    low = int(match.group(1)) * factor
    high = None if match.group(2) is None else int(match.group(2)) * factor
    return GpuDemand(count=low, slurm_type=name or None, max_count=high)


def _times(demand: GpuDemand, low: int, high: int) -> GpuDemand:
    upper = (demand.max_count or demand.count) * high
    count = demand.count * low
    return GpuDemand(count=count, slurm_type=demand.slurm_type, max_count=None if upper == count else upper)


def _plus(first: GpuDemand | None, second: GpuDemand) -> GpuDemand:
    if first is None:
        return second
    count = first.count + second.count
    upper = (first.max_count or first.count) + (second.max_count or second.count)
    return GpuDemand(count=count, slurm_type=first.slurm_type, max_count=None if upper == count else upper)
