"""The order of a node's GPUs as slurm.conf and gres.conf state it: the second way, beside slurmd's own list.

What slurmd does with the two files (gres.c, `gres_g_node_config_load`), as far as File= states the devices: lines that
begin with Name come before lines that begin with NodeName, then each type of the node's Gres= in slurm.conf takes its
records in turn. Whatever is not understood here makes the order unknown, never another order.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from slurm_energy.node.gpu_order import SlurmGpu

MAX_FILES = 4096
MAX_CONF_BYTES = 16_777_216
MAX_INCLUDES = 64

_PAIR = re.compile(r"([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(\"[^\"]*\"|\S+)")
_SHARING = frozenset({"shard", "mps"})
_COUNT = re.compile(r"([0-9]+)([kmgtpKMGTP]?)\Z")
_MULTIPLIERS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGpus:
    """What Slurm's files say of one node."""

    gpus: tuple[SlurmGpu, ...] | None = None
    """In the order of Slurm's positions; None when the files do not state it."""
    problem: str = ""
    """Why they do not."""
    shares_gpus: bool = False
    """Whether several jobs may hold one GPU (shard or MPS)."""
    files: tuple[Path, ...] = ()
    """Every file that was read or looked for."""
    count: int | None = None
    """How many GPUs Gres= of the node in slurm.conf has; None when it is not found."""
    digest: str = ""
    """Of what the order depends on in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One line of gres.conf for GPUs of the node."""

    gpu_type: str | None
    files: tuple[str, ...]
    count: int
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRecords:
    """What gres.conf alone says of one node; `problem` says why that is no order."""

    records: tuple[_Record, ...] = ()
    problem: str = ""
    shares_gpus: bool = False


@dataclass(slots=True)
class _Reading:
    """The files as they are read."""

    folder: Path
    files: list[Path] = field(default_factory=list)

    def lines(self, path: Path) -> list[str]:
        """Return the logical lines, with those of included files in place of their Include line.

        Raises:
            OSError: a file cannot be read.
        """
        self.files.append(path)
        if len(self.files) > MAX_INCLUDES:
            raise OSError(f"more than {MAX_INCLUDES} files are included")
        with path.open("rb") as file:
            content = file.read(MAX_CONF_BYTES)
        lines: list[str] = []
        for line in _logical_lines(content.decode("utf-8", "replace")):
            words = line.split(None, 1)
            if len(words) == 2 and words[0].lower() == "include":
                named = Path(words[1].strip().strip('"'))
                lines += self.lines(named if named.is_absolute() else self.folder / named)
            elif words:
                lines.append(line)
        return lines


def configured_gpus(slurm_conf: Path, node: str) -> ConfiguredGpus:
    """Return the order of the node's GPUs as the files state it."""
    reading = _Reading(folder=slurm_conf.parent)
    gres_conf, detected = slurm_conf.parent / "gres.conf", slurm_conf.parent / "fake_gpus.conf"
    try:
        asked = node_gres(reading.lines(slurm_conf), node)
        lines = reading.lines(gres_conf) if gres_conf.exists() else None
        listed = reading.lines(detected) if detected.exists() else None
    except OSError as error:
        return ConfiguredGpus(problem=f"Slurm's configuration cannot be read: {error}", files=tuple(reading.files))
    reading.files += [path for path, found in ((gres_conf, lines), (detected, listed)) if found is None]
    stated = (
        ConfiguredRecords(problem=f"{gres_conf} does not exist") if lines is None else _parse_gres_conf(lines, node)
    )
    found = ConfiguredGpus(
        shares_gpus=stated.shares_gpus,
        files=tuple(reading.files),
        count=None if asked is None else sum(count for _, count in asked),
        digest=hashlib.sha256(repr((asked, lines, listed)).encode("utf-8", "replace")).hexdigest(),
    )
    if listed is not None:
        return replace(found, problem=f"slurmd reads its GPUs from {detected}")
    if stated.problem:
        return replace(found, problem=stated.problem)
    if asked is None:
        return replace(found, problem=f"{slurm_conf} does not state Gres= of node {node} in one place")
    return replace(found, gpus=_merge(stated.records, asked))


def parse_gres_conf(text: str, node: str) -> ConfiguredRecords:
    """Return what a gres.conf without Include lines says of the node."""
    return _parse_gres_conf(list(_logical_lines(text)), node)


def _parse_gres_conf(lines: Sequence[str], node: str) -> ConfiguredRecords:
    by_name: list[_Record] = []
    by_node: list[_Record] = []
    shares, problem, detect_all, detect_here = False, "", "", ""
    for line in lines:
        if not line.strip():
            continue
        pairs = _pairs(line)
        if not pairs:
            problem = problem or f"a line of gres.conf is not understood: {line.strip()[:80]!r}"
            continue
        first, fields = pairs[0][0], dict(reversed(pairs))
        if first == "nodename" and node not in set(islice(expand_hostlist(fields["nodename"]), MAX_FILES * 16)):
            continue
        if first == "autodetect":
            detect_all = fields["autodetect"].lower()
            continue
        if first not in {"name", "nodename"}:
            problem = problem or f"a line of gres.conf is not understood: {line.strip()[:80]!r}"
            continue
        if first == "nodename":
            detect_here = fields.get("autodetect", detect_here).lower()
        kind = fields.get("name", "").lower()
        shares = shares or kind in _SHARING
        if kind == "gpu":
            (by_name if first == "name" else by_node).append(_record(fields))
    records = (*by_name, *by_node)  # whatever their order in the file
    if (detect_here or detect_all) not in {"", "off"}:
        problem = problem or f"AutoDetect={detect_here or detect_all}: slurmd finds the GPUs itself"
    elif not records:
        problem = problem or f"gres.conf has no GPU of node {node}"
    elif not all(record.files for record in records):
        problem = problem or "gres.conf has GPUs without File="
    return ConfiguredRecords(records=records, problem=problem, shares_gpus=shares)


def node_gres(lines: Sequence[str], node: str) -> tuple[tuple[str | None, int], ...] | None:
    """Return types and counts of Gres=gpu... of the node in slurm.conf, in their order.

    None when no line, or more than one, names the node.
    """
    default, found = "", []
    for line in lines:
        pairs = _pairs(line)
        if not pairs or pairs[0][0] != "nodename":
            continue
        fields = dict(reversed(pairs))
        if fields["nodename"].lower() == "default":
            default = fields.get("gres", default)
        elif node in set(islice(expand_hostlist(fields["nodename"]), MAX_FILES * 16)):
            found.append(fields.get("gres", default))
    return _gpu_counts(found[0]) if len(found) == 1 else None


def _gpu_counts(gres: str) -> tuple[tuple[str | None, int], ...] | None:
    counts: dict[str | None, int] = {}
    for item in _split_outside(gres, "([", ")]"):
        parts = [part for part in item.partition("(")[0].split(":") if part.lower() != "no_consume"]
        if parts[0].lower() != "gpu":
            continue
        match = _COUNT.match(parts[-1]) if len(parts) > 1 else None
        count = int(match[1]) * _MULTIPLIERS[match[2].lower()] if match else 1
        names = parts[1:-1] if match else parts[1:]
        if len(names) > 1:
            return None
        name = names[0] if names else None
        counts[name] = counts.get(name, 0) + count
    return tuple(counts.items())


def _merge(records: Sequence[_Record], asked: Sequence[tuple[str | None, int]]) -> tuple[SlurmGpu, ...]:
    """Return the positions: each type that slurm.conf asks for takes the records of its type in turn."""
    left = list(records)
    gpus: list[SlurmGpu] = []
    for name, wanted in asked:
        missing = wanted
        for record in list(left):
            if missing <= 0:
                break
            if name is not None and (record.gpu_type or "").lower() != name.lower():
                continue
            left.remove(record)
            files = record.files[: min(missing, record.count)]
            missing -= record.count
            gpu_type = None if name is None else record.gpu_type
            gpus += (SlurmGpu(gpu_type=gpu_type, device_file=file, is_slice=record.is_slice) for file in files)
    return tuple(gpus[:MAX_FILES])


def _record(fields: dict[str, str]) -> _Record:
    gpu_type = fields.get("type")
    if "multiplefiles" in fields:  # one device (a MIG slice) made of several files; the first is the GPU's
        first = tuple(islice(expand_hostlist(fields["multiplefiles"]), 1))
        return _Record(gpu_type=gpu_type, files=first, count=1, is_slice=True)
    files = tuple(islice(expand_hostlist(fields.get("file") or fields.get("files") or ""), MAX_FILES))
    return _Record(gpu_type=gpu_type, files=files, count=len(files) or 1)


def expand_hostlist(text: str) -> Iterator[str]:
    """Yield the names of a Slurm list such as `n[1-3,07],/dev/nvidia[0-3]`; zero padding is kept."""
    for item in _split_outside(text, "[", "]"):
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
        line = re.split(r"(?<!\\)#", raw, maxsplit=1)[0].rstrip()
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def _pairs(line: str) -> list[tuple[str, str]]:
    """Return the line's keys, in lower case, and values, in their order; nothing when it has other words."""
    pairs = [(match[1].lower(), match[2].strip('"')) for match in _PAIR.finditer(line)]
    return pairs if not _PAIR.sub("", line).strip() else []


def _split_outside(text: str, opening: str, closing: str) -> Iterator[str]:
    """Split at commas that are in no brackets."""
    depth = 0
    item = ""
    for character in text:
        depth += (character in opening) - (character in closing)
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
