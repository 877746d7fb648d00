"""gres.conf, as far as it says which device file each position of this node's GPUs is."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

MAX_FILES = 4096

_DEVICE_NUMBER = re.compile(r"([0-9]{1,4})\Z")
_SHARING = frozenset({"shard", "mps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGres:
    """What gres.conf says of one node."""

    gpu_files: tuple[str, ...] = ()
    """Device files in the order of Slurm's positions; empty when they are not listed."""
    shares_gpus: bool = False
    """Whether several jobs may hold one GPU (shard or MPS)."""

    def minor_of_position(self, position: int) -> int | None:
        """Return N of the position's /dev/nvidiaN, None when the file does not tell."""
        if position >= len(self.gpu_files):
            return None
        match = _DEVICE_NUMBER.search(self.gpu_files[position])
        return int(match.group(1)) if match else None


def parse_gres_conf(text: str, node: str) -> NodeGres:
    """Return what the file says of the node; lines that cannot be understood are passed over, as hooks must."""
    files: list[str] = []
    shares = False
    for line in _logical_lines(text):
        fields = _fields(line)
        if "nodename" in fields and node not in set(islice(expand_hostlist(fields["nodename"]), MAX_FILES * 16)):
            continue
        kind = fields.get("name", "").lower()
        shares = shares or kind in _SHARING
        if kind != "gpu":
            continue
        if "multiplefiles" in fields:  # one device (a MIG slice) made of several files; the first is the GPU's
            files.extend(islice(expand_hostlist(fields["multiplefiles"]), 1))
        elif "file" in fields:
            files.extend(islice(expand_hostlist(fields["file"]), MAX_FILES))
    return NodeGres(gpu_files=tuple(files[:MAX_FILES]), shares_gpus=shares)


def expand_hostlist(text: str) -> Iterator[str]:
    """Yield the names of a Slurm list such as `n[1-3,07],/dev/nvidia[0-3]`; zero padding is kept."""
    for item in _split_outside_brackets(text):
        head, bracket, rest = item.partition("[")
        if not bracket:
            if item:
                yield item
            continue
        inside, _, tail = rest.partition("]")
        for number in _expand_numbers(inside):
            for ending in expand_hostlist(tail) if tail else ("",):
                yield f"{head}{number}{ending}"


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for raw in text.splitlines():
        line = raw.partition("#")[0].rstrip()
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def _fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in line.split():
        key, separator, value = word.partition("=")
        if separator:
            fields.setdefault(key.lower(), value.strip("\"'"))
    return fields


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = 0
    item = ""
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth <= 0:
            yield item
            item = ""
        else:
            item += character
    yield item


def _expand_numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            yield part
        elif first.isdecimal() and last.isdecimal() and len(last) < 10:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
