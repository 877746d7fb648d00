"""GPU requests and GPU inventories in every form that Slurm writes: pure functions from text to counts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from slurm_energy.domain.job import GpuDemand
from slurm_energy.errors import ValueRangeError

_PLACES = re.compile(r"\([^()]*\)")
"""Sockets and indices behind a count: `gpu:a100:4(S:0-1)`, `gpu:a100:2(IDX:0,3)`; they may hold commas. Slurm prints
`gpu:(null):4` for a type that is not there."""
_INDICES = re.compile(r"\A\s*(?:gres[:/])?gpu\b[^()]*\(IDX:([0-9,-]{1,4096})\)")
_ITEM = re.compile(r"[^,()]+(?:\([^()]*\))?")
MAX_GPU_INDEX = 1023
_PREFIX = re.compile(r"gres[:/]")
_COUNT = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?((?:[kmgtp](?:i?b)?)?)\Z", re.ASCII | re.IGNORECASE)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}\Z")
_MULTIPLIER = {"": 1} | {
    letter + ending: base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
"""What Slurm's own suffixes mean: `2k` is 2048, `2kb` is 2000."""
_FLAGS = frozenset({"no_consume"})
"""Words between type and count that are no type."""
GPU_PLUGIN_ID = "7696487"
"""The number by which sacct's AllocGRES names GPUs where slurmctld did not know the word any more."""


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


@lru_cache(maxsize=512)
def parse_gpus(text: str) -> tuple[GpuDemand, ...]:
    """Return the GPUs in a list of TRES or GRES, as written: `gres:gpu:2`, `gres/gpu:a100=2,gres/gpu=2`, `gpu`.

    Every text of Slurm goes through here: what sbatch sends, gres_detail, node inventories, accounting's AllocTRES and
    AllocGRES. Other resources, `gres/shard` and `gres/mps` among them, are passed over. A typed and an untyped count in
    accounting's form (`=`) name the same GPUs.

    Raises:
        ValueRangeError: a GPU's type or count cannot be read.
    """
    typed: dict[str | None, GpuDemand] = {}
    accounting = False
    for item in _items(text):
        name = _PREFIX.sub("", item, count=1)
        kind, separator, body = re.sub("=", ":", name, count=1).partition(":")
        if kind not in {"gpu", GPU_PLUGIN_ID}:
            continue
        accounting = accounting or "=" in name
        demand = _demand(body, item) if separator else GpuDemand(count=1)
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


def known_types(demands: Iterable[GpuDemand]) -> tuple[str, ...]:
    """Return the types that some demands name, without those of which there are none."""
    return tuple(demand.slurm_type for demand in demands if demand.slurm_type and demand.count)


def gpu_indices(text: str) -> tuple[int, ...]:
    """Return which devices of a node are meant, ascending, from `gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:4)`.

    Empty where Slurm does not tell, or tells what no node can have: total.
    """
    found: set[int] = set()
    for item in _ITEM.findall(_without_null(text)):
        match = _INDICES.match(item)
        for part in () if match is None else match.group(1).split(","):
            low, _, high = part.partition("-")
            first, last = (int(bound) if bound.isdigit() else -1 for bound in (low, high or low))
            if not 0 <= first <= last <= MAX_GPU_INDEX:
                return ()
            found.update(range(first, last + 1))
    return tuple(sorted(found))


def _items(text: str) -> list[str]:
    plain = _PLACES.sub("", _without_null(text))
    return [item.strip() for item in plain.split(",") if item.strip() and item.strip().lower() not in _NOTHING]


def _without_null(text: str) -> str:
    return text.replace("(null)", "")


_NOTHING = frozenset({"n/a", "none", "gres:none", "gres/none"})


def _demand(body: str, item: str) -> GpuDemand:
    """Return one demand from what follows `gpu:`, as Slurm tells type and count apart.

    The last word is the count if it can be one, and a type of which one is meant if it cannot: `3090:1` is one GPU of
    type 3090, `3090` alone is 3090 GPUs, `1g.10gb` is one of that type.
    """
    words = body.split(":")
    if words[-1].lower() in _FLAGS:  # `gpu:3090:no_consume` in slurm.conf is one GPU of that type
        words.append("1")
    *names, last = (word for word in words if word.lower() not in _FLAGS)
    match = _COUNT.match(last)
    if match is None and last:
        names, match = [*names, last], _COUNT.match("1")
    types = [name for name in names if name]
    if match is None or len(types) > 1 or not all(map(_TYPE.match, types)):
        raise ValueRangeError(f"GPU request {item[:80]!r} is not [TYPE:]COUNT")
    factor = _MULTIPLIER[match.group(3).lower()]
    low = int(match.group(1)) * factor
    high = None if match.group(2) is None else int(match.group(2)) * factor
    return GpuDemand(count=low, slurm_type=types[0] if types else None, max_count=high)


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
