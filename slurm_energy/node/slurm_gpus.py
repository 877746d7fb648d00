"""The GPUs of this node in Slurm's order, learned in two ways: `slurmd -G`, and what slurm.conf and gres.conf state.

slurmd is the program that counts, reading the files that it reads; with -f it asks no controller, and it takes some
milliseconds, or what detecting the GPUs takes.

What it does with the two files (gres.c, `gres_g_node_config_load`), as far as File= states the devices: lines that
begin with Name come before lines that begin with NodeName, then each type of the node's Gres= in slurm.conf takes its
records in turn. Whatever is not understood here makes the order unknown, never another order.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu, order_files, shown
from slurm_energy.slurm.conf_file import ConfFiles, line_pairs

MAX_FILES = 4096
_SHARING = frozenset({"shard", "mps"})
_COUNT = re.compile(r"([0-9]+)([kmgtpKMGTP]?)\Z")
_MULTIPLIERS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
BY_SLURMD = "slurmd -G"
BY_FILES = "gres.conf"
_BOARD = re.compile(r"/nvidia\d+\Z")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_GRES = re.compile(r"Gres Name=(\S+) Type=(.*?) Count=([0-9]+) (?:.*?\bFile=(\S+))?")
_MAX_BYTES = 1_048_576


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


def configured_gpus(slurm_conf: Path, node: str) -> ConfiguredGpus:
    """Return the order of the node's GPUs as the files state it."""
    reading = ConfFiles(folder=slurm_conf.parent)
    gres_conf, detected = slurm_conf.parent / "gres.conf", slurm_conf.parent / "fake_gpus.conf"
    try:
        nodes = reading.lines(slurm_conf)
        lines = reading.lines(gres_conf) if gres_conf.exists() else None
        listed = reading.lines(detected) if detected.exists() else None
    except OSError as error:
        return ConfiguredGpus(problem=f"Slurm's configuration cannot be read: {error}", files=tuple(reading.files))
    reading.files += [path for path, found in ((gres_conf, lines), (detected, listed)) if found is None]
    try:
        asked = node_gres(nodes, node)
        stated = (
            ConfiguredRecords(problem=f"{gres_conf} does not exist") if lines is None else parse_gres_conf(lines, node)
        )
    except ValueRangeError as error:
        asked, stated = None, ConfiguredRecords(problem=f"Slurm's configuration is not understood: {error}")
    found = ConfiguredGpus(
        shares_gpus=stated.shares_gpus,
        files=tuple(reading.files),
        count=None if asked is None else sum(count for _, count in asked),
        digest=hashlib.sha256(repr((asked, stated.problem, lines, listed)).encode("utf-8", "replace")).hexdigest(),
    )
    if listed is not None:
        return replace(found, problem=f"slurmd reads its GPUs from {detected}")
    if stated.problem:
        return replace(found, problem=stated.problem)
    if asked is None:
        return replace(found, problem=f"{slurm_conf} does not state Gres= of node {node} in one place")
    return replace(found, gpus=_merge(stated.records, asked))


def parse_gres_conf(lines: Sequence[str], node: str) -> ConfiguredRecords:
    """Return what gres.conf, included files in place, says of the node.

    Raises:
        ValueRangeError: a list of nodes or files is malformed.
    """
    by_name: list[_Record] = []
    by_node: list[_Record] = []
    shares, problem, detect_all, detect_here = False, "", "", ""
    for line in lines:
        if not line.strip():
            continue
        pairs = line_pairs(line)
        if not pairs:
            problem = problem or f"a line of gres.conf is not understood: {line.strip()[:80]!r}"
            continue
        first, fields = pairs[0][0], dict(reversed(pairs))
        if first == "nodename" and node not in expand_hostlist(fields["nodename"]):
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

    Raises:
        ValueRangeError: a list of nodes is malformed.
    """
    default, found = "", []
    for line in lines:
        pairs = line_pairs(line)
        if not pairs or pairs[0][0] != "nodename":
            continue
        fields = dict(reversed(pairs))
        if fields["nodename"].lower() == "default":
            default = fields.get("gres", default)
        elif node in expand_hostlist(fields["nodename"]):
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
    if "multiplefiles" in fields:  # one device (a MIG slice) made of several files
        board = _board(expand_hostlist(fields["multiplefiles"])[:MAX_FILES])
        return _Record(gpu_type=gpu_type, files=board, count=1, is_slice=True)
    files = expand_hostlist(fields.get("file") or fields.get("files") or "")[:MAX_FILES]
    return _Record(gpu_type=gpu_type, files=files, count=len(files) or 1)


def _board(files: Sequence[str]) -> tuple[str, ...]:
    """Return the file, among those of one device of Slurm, that is its GPU's: wherever it stands in their list.

    Raises:
        ValueRangeError: they are of several GPUs, of which a job that is given the device would hold all.
    """
    boards = dict.fromkeys(file for file in files if _BOARD.search(file))
    if len(boards) > 1:
        raise ValueRangeError(
            f"one device of gres.conf has several GPUs, {', '.join(boards)}: give each a place of its own by File="
        )
    return tuple(boards or files[:1])


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


def ask_slurmd(places: Sequence[str], conf: Path, node: str, limit_seconds: float) -> GpuOrder:
    """Return the order that slurmd prints, or why it prints none.

    Args:
        places: Where the program may be.
        conf: Its slurm.conf.
        node: The node's name.
        limit_seconds: How long it may take.
    """
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    if program is None:
        return GpuOrder(problem=f"slurmd is in none of {', '.join(places)}")
    try:
        return parse_slurmd(_run(program, conf, node, limit_seconds))
    except ValueRangeError as error:
        return GpuOrder(problem=f"{program} -G: {error}")
    except subprocess.TimeoutExpired:
        return GpuOrder(problem=f"{program} -G did not answer within {limit_seconds:g} s")
    except (OSError, subprocess.SubprocessError) as error:
        return GpuOrder(problem=f"{program} -G failed: {error}")


def parse_slurmd(text: str) -> GpuOrder:
    """Return the order that `slurmd -G` printed.

    Raises:
        ValueRangeError: a list of files is malformed, or has several GPUs in one position.
    """
    gpus: list[SlurmGpu] = []
    shares = False
    for line in text.splitlines():
        match = _GRES.search(line)
        if match is None:
            continue
        name, gpu_type, count = match[1].lower(), match[2], int(match[3])
        shares = shares or (name in {"shard", "mps"} and count > 0)
        if name != "gpu" or count == 0:
            continue
        files = expand_hostlist(match[4] or "")[:MAX_FILES]
        if not files or (count != len(files) and count != 1):
            return GpuOrder(problem=f"slurmd -G names {len(files)} files for {count} GPUs", shares_gpus=shares)
        is_slice = len(files) > count  # MultipleFiles=: one device of several files
        known = None if gpu_type in {"", "(null)"} else gpu_type
        used = _board(files) if is_slice else files
        gpus += (SlurmGpu(gpu_type=known, device_file=file, is_slice=is_slice) for file in used)
    if not gpus:
        return GpuOrder(problem="slurmd -G names no GPU of this node", shares_gpus=shares)
    return GpuOrder(gpus=tuple(gpus), ways=(BY_SLURMD,), shares_gpus=shares)


def agreed_order(counted: GpuOrder, stated: ConfiguredGpus) -> GpuOrder:
    """Return slurmd's order, unless the files state another one; their order alone proves nothing."""
    found = replace(counted, stated=stated.gpus, shares_gpus=counted.shares_gpus or stated.shares_gpus)
    if counted.problem:
        return found
    if stated.count is not None and len(counted.gpus) != stated.count:
        # What was asked from within a job's cgroup detects the job's GPUs only.
        return replace(found, problem=f"slurmd -G counts {len(counted.gpus)} GPUs, Gres= in slurm.conf {stated.count}")
    if stated.gpus is None:
        return found
    if order_files(counted.gpus) == order_files(stated.gpus):
        return replace(found, ways=(*found.ways, BY_FILES))
    problem = f"slurmd -G counts {shown(counted.gpus)}, slurm.conf and gres.conf state {shown(stated.gpus)}"
    return replace(found, problem=problem)


def _run(program: str, conf: Path, node: str, limit_seconds: float) -> str:
    # It must be called slurmd to know itself, and Debian's file is slurmd-wlm. -v: SlurmdDebug must hide nothing.
    command = ["slurmd", "-G", "-v", "-N", node, "-f", str(conf)]
    environment = {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C",
        "SLURM_CONF": str(conf),
        # 22.05 moves a slurmd that systemd did not start into the cgroup of the steps; this one only prints.
        "INVOCATION_ID": "0" * 32,
    }
    done = subprocess.run(
        command,
        executable=program,
        capture_output=True,
        timeout=limit_seconds,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    text = (done.stdout + b"\n" + done.stderr)[:_MAX_BYTES].decode("utf-8", "replace")
    if done.returncode != 0:
        said = (text.strip().splitlines() or ["nothing was said"])[-1]
        raise OSError(f"exit code {done.returncode}: {said[:200]}")
    return text
