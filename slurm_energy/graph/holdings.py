"""Where jobs run: names of nodes as Slurm writes them (`a[1-3,7],b2`), and the devices of a node that a job holds."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_energy.domain.cluster import NodeState

MAX_NAMES = 65_536
"""A list that names more is not looked at further."""
_PIECE = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]|([^\[\],]+)|(,)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")
_NUMBER = re.compile(r"(\d+)")
_LARGEST_NUMBER = 2**63 - 1


def node_names(text: str) -> tuple[str, ...]:
    """Return the names of a node list, in order, each once; none when it is malformed or names more than 65536."""
    names: list[str] = []
    item = [""]
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return ()
        position = piece.end()
        head, ranges, plain, comma = piece.groups()
        if comma:
            names += item
            item = [""]
        else:
            tails = [plain] if ranges is None else _tails(head, ranges)
            if not tails or len(item) * len(tails) + len(names) > MAX_NAMES:
                return ()
            item = [before + after for before in item for after in tails]
    names += item
    return tuple(dict.fromkeys(name for name in map(str.strip, names) if name))


def _tails(head: str, ranges: str) -> list[str]:
    """Return head followed by every number of `1-3,7`; nothing when that is malformed or too much."""
    found: list[str] = []
    for part in ranges.split(","):
        bounds = _RANGE.match(part)
        if bounds is None:
            return []
        low, high = int(bounds.group(1)), int(bounds.group(2) or bounds.group(1))
        if high < low or len(found) + high - low + 1 > MAX_NAMES:
            return []
        digits = len(bounds.group(1))
        found += [f"{head}{number:0{digits}d}" for number in range(low, high + 1)]
    return found


def sort_key(name: str) -> bytes:
    """Return bytes by which names sort in people's order: `n2` before `n10`; different for different names."""
    parts: list[bytes] = []
    for part in _NUMBER.split(name):
        if part.isascii() and part.isdecimal():
            parts.append(min(int(part[:40]), _LARGEST_NUMBER).to_bytes(8, "big"))
        elif part:
            parts.append(part.encode("utf-8", "surrogatepass") + b"\0")
    return b"".join((*parts, b"\0", name.encode("utf-8", "surrogatepass")))


class Holding(NamedTuple):
    """What one running job holds of one node."""

    task: int
    """Slot of the job's vertex."""
    devices: int
    """How many it has there."""
    positions: tuple[int, ...] | None
    """Which ones, where Slurm tells."""
    slurm_types: tuple[str, ...]
    """Types that it may have, any when empty."""


class Held(NamedTuple):
    """Runs on the devices of a node, and which devices are in use."""

    tasks: list[int]
    devices: list[int]
    """Device of each run, counted within the node."""
    in_use: list[bool]


def spread(count: int, nodes: int, index: int) -> int:
    """Return how many of a job's devices lie on the node of this index: evenly, the first nodes have what is over."""
    return count // nodes + (index < count % nodes)


def held_devices(types: Sequence[str | None], node: NodeState, holdings: Sequence[Holding]) -> Held:
    """Return who holds what on a node.

    Jobs whose devices are known come first and may share them; the others take the first free ones of their types, in
    the order given. Slurm may count more devices as allocated than the jobs account for: then the first free ones of
    each type are in use by no known job. A node without GPUs has one device, its CPUs, which all its jobs share.

    Args:
        types: GRES type of each GPU of the node; none for a node without GPUs.
        node: The node.
        holdings: Its running jobs in the order of their numbers.
    """
    if not types:
        full = node.cpus > 0 and node.cpus_allocated >= node.cpus
        return Held([holding.task for holding in holdings], [0] * len(holdings), [full or bool(holdings)])
    in_use = [False] * len(types)
    tasks: list[int] = []
    devices: list[int] = []
    for holding in holdings:
        for position in () if holding.positions is None else dict.fromkeys(holding.positions):
            if 0 <= position < len(types):
                tasks.append(holding.task)
                devices.append(position)
                in_use[position] = True
    for holding in holdings:
        if holding.positions is None and holding.devices > 0:
            for position in _first_free(types, in_use, holding):
                tasks.append(holding.task)
                devices.append(position)
                in_use[position] = True
    _count_rest(types, node, in_use)
    return Held(tasks, devices, in_use)


def _first_free(types: Sequence[str | None], in_use: Sequence[bool], holding: Holding) -> list[int]:
    wanted = holding.slurm_types
    free = [
        position for position, taken in enumerate(in_use) if not taken and (not wanted or types[position] in wanted)
    ]
    return free[: holding.devices]


def _count_rest(types: Sequence[str | None], node: NodeState, in_use: list[bool]) -> None:
    """Mark devices that Slurm counts as allocated and that no known job holds."""
    begin = 0
    for gpus in node.gpus:
        end = min(len(types), begin + max(0, gpus.count))
        missing = gpus.allocated - sum(in_use[begin:end])
        for position in range(begin, end):
            if missing <= 0:
                break
            if not in_use[position]:
                in_use[position] = True
                missing -= 1
        begin = end
