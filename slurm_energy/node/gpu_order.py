"""The order in which slurmd counts this node's GPUs: learned once per boot, kept in the spool, and checked.

SLURM_JOB_GPUS holds positions in slurmd's own list, and that list follows neither the device files' numbers nor the
lines of gres.conf. A job's hook reads what is kept; it is learned again when the node was booted, slurmd was
started again or the files changed, by `repair` or by the first hook that needs it.
"""

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import SpoolError, WireError
from slurm_energy.files import read_whole, write_atomically
from slurm_energy.node.processes import PROC, read_slurmd, start_ticks, started_at_seconds
from slurm_energy.node.settings import HookSettings, conf_path
from slurm_energy.wire.fields import Fields, loads

FORMAT = 1
ORDER_NAME = "gpu-order.json"
ON_PATH_SECONDS = 2.0
OFF_PATH_SECONDS = 30.0
RETRY_SECONDS = 60.0
"""slurmd that did not tell is not asked again by hooks for so long: no job has to wait for it each time."""
SLURMD_PATHS = ("/usr/sbin/slurmd", "/usr/local/sbin/slurmd", "/opt/slurm/sbin/slurmd", "/usr/local/slurm/sbin/slurmd")
_MAX_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmGpu:
    """One position of slurmd's list of GPUs."""

    gpu_type: str | None
    """Type= as Slurm knows it."""
    device_file: str
    """The GPU's device file; of a MIG slice the first of its files, which is its board's."""
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOrder:
    """The GPUs in the order of Slurm's positions, or why it is not known."""

    gpus: tuple[SlurmGpu, ...] = ()
    ways: tuple[str, ...] = ()
    """What it is known from; several ways agree."""
    problem: str = ""
    """Why the order must not be used; then `gpus` is only what was last known."""
    shares_gpus: bool = False
    """Whether several jobs may hold one GPU (shard or MPS)."""
    stated: tuple[SlurmGpu, ...] | None = None
    """What slurm.conf and gres.conf alone state; None when they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What an order was learned from; another order is not in force while these stay."""

    boot_id: str
    slurm_conf: str
    slurmd: tuple[int, int] | None
    """Number and start of slurmd's process."""
    digest: str
    stamps: tuple[tuple[str, int, int, int], ...]
    """Each file with the times of its content and of its inode and its size, -1 for one that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFinder:
    """Where the order of one node is looked for."""

    path: Path
    """The file that keeps it."""
    node: str
    boot_id: str
    slurm_conf: str = ""
    """As slurmd or the configuration names it; empty: the usual places."""
    slurmd_paths: tuple[str, ...] = SLURMD_PATHS
    """Where the program is looked for when none runs."""
    proc: Path = PROC

    def order(self, limit_seconds: float = ON_PATH_SECONDS) -> GpuOrder:
        """Return the order; learn it when nothing usable is kept. What failed is tried again after a minute."""
        kept = self._kept()
        if kept is not None and self._holds(kept[0]) and (kept[1].ways or self._age_seconds() < RETRY_SECONDS):
            return kept[1]
        return self._learn(kept, limit_seconds)

    def refresh(self) -> GpuOrder:
        """Return the order and learn it where it is not known: for timers, off the jobs' path.

        Only while slurmd runs: before, `slurmd -G` of 22.05 would make the cgroup of the steps in its place.
        """
        kept = self._kept()
        if kept is not None and not kept[1].problem and self._holds(kept[0]):
            return kept[1]
        if read_slurmd(self.node, self.proc) is None:
            return GpuOrder(problem="slurmd does not run here, or several do and none for this node")
        # A service may be kept from what slurmd needs: its failure is not a hook's.
        return self._learn(kept, OFF_PATH_SECONDS, keep_failure=False)

    def conf_path(self) -> Path | None:
        """Return the slurm.conf that slurmd of this node reads, None when it is not found."""
        return conf_path(self.slurm_conf)

    def _holds(self, source: _Source) -> bool:
        """Return whether what an order was learned from is still as it was: a few stats and one small read."""
        conf = self.conf_path()
        if conf is None or source.boot_id != self.boot_id or source.slurm_conf != str(conf):
            return False
        if source.slurmd is None:
            same = read_slurmd(self.node, self.proc) is None
        else:
            same = start_ticks(source.slurmd[0], self.proc) == source.slurmd[1]
        return same and all(_stamp(Path(file[0])) == file for file in source.stamps)

    def _age_seconds(self) -> float:
        try:
            return time.time() - self.path.stat().st_mtime
        except OSError:
            return RETRY_SECONDS

    def _learn(
        self, kept: tuple[_Source, GpuOrder] | None, limit_seconds: float, *, keep_failure: bool = True
    ) -> GpuOrder:
        conf = self.conf_path()
        if conf is None:
            return GpuOrder(problem=f"{self.slurm_conf or 'slurm.conf'} does not exist")
        # Rarely needed, and 10 ms to import.
        from slurm_energy.node.slurm_gpus import (  # noqa: PLC0415
            agreed_order,
            ask_slurmd,
            configured_gpus,
        )

        slurmd = read_slurmd(self.node, self.proc)
        stated = configured_gpus(conf, self.node)
        source = _Source(
            boot_id=self.boot_id,
            slurm_conf=str(conf),
            slurmd=None if slurmd is None else (slurmd.pid, slurmd.start_ticks),
            digest=stated.digest,
            stamps=tuple(_stamp(file) for file in stated.files),
        )
        if kept is not None and not kept[1].problem and kept[0] == replace(source, stamps=kept[0].stamps):
            order = kept[1]  # the files were written again with what they held before
        else:
            places = (*(() if slurmd is None else (slurmd.executable,)), *self.slurmd_paths)
            counted = ask_slurmd(places, conf, self.node, limit_seconds)
            order = self._in_force(kept, source, agreed_order(counted, stated))
        if order.ways or keep_failure:
            with suppress(SpoolError):  # then it is learned again
                self._keep(source, order)
        return order

    def _in_force(self, kept: tuple[_Source, GpuOrder] | None, source: _Source, order: GpuOrder) -> GpuOrder:
        """Return the order, or the problem that the running slurmd may count by an older configuration."""
        if order.problem or source.slurmd is None:
            return order
        known = (
            () if kept is None or (kept[0].boot_id, kept[0].slurmd) != (source.boot_id, source.slurmd) else kept[1].gpus
        )
        if known:
            if order_files(known) == order_files(order.gpus):
                return order
            problem = f"restart slurmd: it started with {shown(known)}, Slurm's files now order {shown(order.gpus)}"
            return replace(order, gpus=known, problem=problem)
        newer = self._newer_than(source)
        if newer is None:
            return order
        return replace(order, gpus=(), problem=f"restart slurmd: {newer} was changed after it started")

    def _newer_than(self, source: _Source) -> str | None:
        """Return a file of GPUs that is younger than slurmd's process; slurmd writes its own cache itself."""
        own = Path(source.slurm_conf).resolve().parent.name == "conf-cache"
        began = None if own or source.slurmd is None else started_at_seconds(source.slurmd[1], self.proc)
        if began is None:
            return None
        # slurm.conf changes for many reasons, ours among them.
        files = (stamp for stamp in source.stamps if stamp[0] != source.slurm_conf)
        return next((name for name, changed_ns, _, _ in files if changed_ns > began * 1e9), None)

    def _kept(self) -> tuple[_Source, GpuOrder] | None:
        try:
            content = read_whole(self.path)
            return None if content is None else _decode(content)
        except (SpoolError, WireError, ValueError, TypeError):
            return None

    def _keep(self, source: _Source, order: GpuOrder) -> None:
        document = {
            "format": FORMAT,
            "boot_id": source.boot_id,
            "slurm_conf": source.slurm_conf,
            "slurmd": None if source.slurmd is None else list(source.slurmd),
            "digest": source.digest,
            "stamps": [list(stamp) for stamp in source.stamps],
            "gpus": _encode(order.gpus),
            "ways": list(order.ways),
            "problem": order.problem[:1000],
            "shares_gpus": order.shares_gpus,
            "stated": None if order.stated is None else _encode(order.stated),
        }
        write_atomically(self.path, json.dumps(document, separators=(",", ":")).encode(), durable=False)


def order_files(gpus: tuple[SlurmGpu, ...]) -> tuple[str, ...]:
    """Return the device files, in their order."""
    return tuple(gpu.device_file for gpu in gpus)


def shown(gpus: tuple[SlurmGpu, ...]) -> str:
    """Return the first device files for a message."""
    names = [Path(file).name for file in order_files(gpus[:4])]
    return ",".join([*names, *(["..."] if len(gpus) > 4 else [])]) or "none"


def _stamp(path: Path) -> tuple[str, int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (str(path), -1, -1, -1)
    return (str(path), status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _encode(gpus: tuple[SlurmGpu, ...]) -> list[list[object]]:
    return [[gpu.gpu_type, gpu.device_file, gpu.is_slice] for gpu in gpus]


def _decode(content: bytes) -> tuple[_Source, GpuOrder]:
    fields = Fields(loads(content, "order of GPUs", _MAX_BYTES), "order of GPUs")
    if fields.get("format") != FORMAT:
        raise WireError("order of GPUs is of another format")
    slurmd, stated = fields.get("slurmd"), fields.get("stated")
    source = _Source(
        boot_id=fields.text("boot_id", 64),
        slurm_conf=fields.text("slurm_conf", 4096),
        slurmd=None if not isinstance(slurmd, list) else (int(slurmd[0]), int(slurmd[1])),
        digest=str(fields.get("digest")),
        stamps=tuple((str(name), int(a), int(b), int(c)) for name, a, b, c in _lists(fields.get("stamps"))),
    )
    order = GpuOrder(
        gpus=_decode_gpus(fields.get("gpus")),
        ways=fields.texts("ways", 8),
        problem=str(fields.get("problem")),
        shares_gpus=fields.flag("shares_gpus"),
        stated=None if stated is None else _decode_gpus(stated),
    )
    return source, order


def _decode_gpus(value: object) -> tuple[SlurmGpu, ...]:
    return tuple(
        SlurmGpu(gpu_type=None if name is None else str(name), device_file=str(file), is_slice=bool(is_slice))
        for name, file, is_slice in _lists(value)
    )


def _lists(value: object) -> Iterable[tuple[Any, ...]]:
    if not isinstance(value, list):
        raise WireError("order of GPUs has no list where one is needed")
    return (tuple(item) for item in value)


def order_finder(settings: HookSettings, boot_id: str, slurm_conf: str | None = None) -> OrderFinder:
    """Return where the order of the settings' node is kept and learned; `slurm_conf` is what slurmd names to a hook."""
    folder = settings.slurm_bin_directory
    beside = (f"{folder}/../sbin/slurmd", f"{folder}/slurmd") if folder else ()
    return OrderFinder(
        path=settings.spool_directory / ORDER_NAME,
        node=settings.node_name,
        boot_id=boot_id,
        slurm_conf=slurm_conf or settings.slurm_conf,
        slurmd_paths=(*beside, *SLURMD_PATHS),
    )
