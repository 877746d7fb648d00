"""What this node tells of itself: gathered by `repair`, which may open the GPUs, and sent by `flush`, which may not."""

import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.device.gpu import Gpu
from slurm_energy.domain.node_status import (
    NO_OTHER_RELEASE,
    STATUS_INTERVAL_SECONDS,
    GpuStatus,
    NodeStatus,
    PluginStatus,
    SpoolStatus,
)
from slurm_energy.errors import DeviceError, SlurmEnergyError, SlurmError, SpoolError, WireError
from slurm_energy.files import read_whole, write_atomically
from slurm_energy.node.allocation import MappedGpu, gpu_mapping
from slurm_energy.node.context import HookContext, reach_gpus
from slurm_energy.node.gpu_order import order_finder
from slurm_energy.slurm.conf_file import ConfFiles
from slurm_energy.slurm.plugin_file import read_plugin_file
from slurm_energy.wire.fields import Fields, loads
from slurm_energy.wire.node_status import MAX_PROOF, MAX_STATUS_BYTES, decode_status, encode_status

GPU_INTERVAL_SECONDS = 3600.0
"""How often the driver is asked which GPUs there are: opening it wakes them."""
TOOL_SECONDS = 5.0
MIN_FREE_BYTES = 16 * 1024 * 1024
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/sbin:/opt/slurm/bin"
HOOK_FOLDER = Path("/etc/slurm-energy")
PLUGIN_PLACES = (
    "usr/lib/*/slurm-wlm",
    "usr/lib64/slurm",
    "usr/lib/slurm",
    "usr/local/lib/slurm",
    "opt/slurm/lib/slurm",
)
PLUGIN_NAMES = ("job_submit_energy.so", "spank_energy.so")
_HOOK_LINE = re.compile(r"\s*(?:prolog|epilog)\s*=\s*(.+)", re.IGNORECASE)
_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?")
_CHANGES_BY_ITSELF = ("sent_at_seconds", "repaired_at_seconds")


def note_repair(context: HookContext, *, clean: bool, said: Sequence[str]) -> None:
    """Keep what a repair found, and which GPUs there are, for the next `flush`; nothing that fails here matters."""
    with suppress(SlurmEnergyError):
        before = _seen(context)
        gpus, problem, looked_at = before.gpus, before.driver_problem, before.sent_at_seconds
        if _gpus_are_due(context, before):
            gpus, problem = _gpus(context)
            looked_at = context.now()
        after = replace(
            before,
            sent_at_seconds=looked_at,
            boot_id=context.boot_id,
            gpus=gpus,
            driver_problem=problem,
            repaired_at_seconds=context.now(),
            repair_clean=clean,
            repair_said=tuple(said[-8:]),
        )
        _write(context.spool.seen_status, after)


def due_status(context: HookContext, problems: Sequence[str] = ()) -> NodeStatus | None:
    """Return what is to be sent now, None when the daemon has heard the same lately."""
    status = node_status(context, problems)
    sent = _sent(context.spool.sent_status)
    if sent is None or sent[1] != _digest(status):
        return status
    if not 0 <= context.now() - sent[0] < STATUS_INTERVAL_SECONDS:
        return status
    _note_look(context)
    return None


def note_sent(context: HookContext, status: NodeStatus) -> None:
    """Remember what the daemon has taken."""
    with suppress(SpoolError):
        text = f"{status.sent_at_seconds} {_digest(status)}\n"
        write_atomically(context.spool.sent_status, text.encode(), durable=False)
    _note_look(context)


def _note_look(context: HookContext) -> None:
    """Remember when the node looked at itself: in the time of the file that says what was sent."""
    with suppress(OSError):
        os.utime(context.spool.sent_status, (context.now(), context.now()))


def node_status(context: HookContext, problems: Sequence[str] = ()) -> NodeStatus:
    """Return how this node is; the driver is not opened."""
    spool = spool_status(context)
    conf = order_finder(context.settings, context.boot_id, os.environ.get("SLURM_CONF")).conf_path()
    scripts = () if conf is None else hook_problems(hook_patterns(conf))
    found = [*problems, *_settings_problems(context), *scripts]
    return replace(
        _seen(context),
        sent_at_seconds=context.now(),
        hook_version=__version__,
        interpreter=sys.executable,
        slurm_version=slurmd_version(),
        plugins=tuple(_plugins(Path("/"))),
        spool=spool,
        problems=tuple(dict.fromkeys(found)),
    )


def spool_status(context: HookContext) -> SpoolStatus:
    """Return how the spool is."""
    spool = context.spool
    try:
        status = spool.root.lstat()
    except OSError:
        return SpoolStatus(path=str(spool.root), exists=False)
    waiting = list(_times(spool.reports))
    return SpoolStatus(
        path=str(spool.root),
        owner_user_id=status.st_uid,
        mode=status.st_mode & 0o7777,
        free_bytes=_free_bytes(spool.root),
        waiting_reports=len(waiting),
        oldest_waiting_seconds=context.now() - min(waiting) if waiting else None,
        rejected_files=len(list(_times(spool.rejected))),
        pending_jobs=len(list(_times(spool.pending))),
    )


def hook_problems(patterns: Sequence[str]) -> Iterator[str]:
    """Yield what keeps the hook scripts that slurmd runs from working: each names a script and what it lacks."""
    scripts = [script for pattern in patterns for script in matching_scripts(pattern)]
    ask = cache(_import_fault)  # prolog and epilog run the same interpreter
    for script in dict.fromkeys(scripts):
        problem = script_problem(script, ask)
        if problem is not None:
            yield problem


def matching_scripts(pattern: str) -> list[Path]:
    """Return what Slurm runs for a value of Prolog or Epilog: like glob(3), without names that begin with a dot."""
    with suppress(ValueError):  # a character that no path has
        return [Path(found) for found in sorted(glob.glob(pattern))]  # noqa: PTH207  # Path.glob matches other files
    return []


def hook_patterns(slurm_conf: Path) -> tuple[str, ...]:
    """Return where slurm.conf says that Prolog and Epilog are, and where `install` puts them."""
    found = [f"{HOOK_FOLDER}/{name}.d/*" for name in ("prolog", "epilog")]
    for line in ConfFiles(folder=slurm_conf.parent).lines(slurm_conf, missing_ok=True):
        match = _HOOK_LINE.match(line)
        if match is not None:
            parts = (part.strip() for part in match[1].strip().strip('"').split(","))
            found += [part for part in parts if part.startswith("/")]
    return tuple(found)


def script_problem(script: Path, ask: Callable[[str], str] | None = None) -> str | None:
    """Return what keeps one hook script from running, None when nothing does or it is none of ours.

    Args:
        script: The file.
        ask: Returns what an interpreter says when it is to import the hooks, nothing when it can; None: runs it.
    """
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{script}: {error.strerror}"
    if "slurm_energy" not in text:
        return None
    if not os.access(script, os.X_OK):
        return f"{script} is not executable: Slurm drains the node at the next job"
    programs = hook_programs(text)
    if not programs:
        return None
    running = next((program for program in programs if os.access(program, os.X_OK)), None)
    if running is None:
        return f"{script} runs {programs[0]}, which is not there: nothing is measured on this node"
    # Of this interpreter, under whatever name of its folder, it is known that it can.
    if Path(running).parent != Path(sys.executable).parent and "python" in Path(running).name:
        said = (ask or _import_fault)(running)
        if said:
            return f"{script} runs {running}, which cannot import slurm_energy: {said}"
    return None


def hook_programs(text: str) -> tuple[str, ...]:
    """Return the programs that a hook script of ours tries, in order; nothing for one that was not installed."""
    python = re.search(r"'(/[^'\n]+)' -I (?:-m slurm_energy\.node\.main|-S -c)", text)
    other = re.search(r"\bHOOK=(/\S+)", text)
    return tuple(match.group(1) for match in (python, other) if match is not None) if python else ()


def _import_fault(python: str) -> str:
    """Return what an interpreter says when it is to import the hooks, nothing when it can."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", "import slurm_energy.node.main"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""  # a slow disk is no missing package
    except OSError as error:
        return error.strerror or str(error)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"it ends with {done.returncode}")


def slurmd_version() -> str | None:
    """Return the release of this node's slurmd, None where it does not tell."""
    path = shutil.which("slurmd", path=SYSTEM_PATH)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _RELEASE.search(done.stdout.decode("utf-8", "replace"))
    return None if match is None else match.group()


def _settings_problems(context: HookContext) -> Iterator[str]:
    settings = context.settings
    if settings.problem is not None:
        yield settings.problem
    free = _free_bytes(context.spool.root)
    if free is not None and free < MIN_FREE_BYTES:
        yield f"{context.spool.root} has {free // 1024} KiB left on its disk: reports cannot be kept"


def _plugins(root: Path) -> Iterator[PluginStatus]:
    for pattern in PLUGIN_PLACES:
        for place in sorted(root.glob(pattern)):
            for name in PLUGIN_NAMES:
                path = place / name
                if path.is_file():
                    yield PluginStatus(path=str(path), version=_built_for(path))


def _built_for(path: Path) -> str:
    """Return the release that a plugin was built for, or why its file does not tell."""
    try:
        file = read_plugin_file(path)
    except SlurmError as error:
        return f"unknown: {error}"[:200]
    return str(file.release) if file.follows else f"{file.release}{NO_OTHER_RELEASE}"


def _gpus_are_due(context: HookContext, before: NodeStatus) -> bool:
    if before.gpus is None or before.driver_problem is not None or before.boot_id != context.boot_id:
        return True
    return not 0 <= context.now() - before.sent_at_seconds < GPU_INTERVAL_SECONDS


def _gpus(context: HookContext) -> tuple[tuple[GpuStatus, ...] | None, str | None]:
    """Return the GPUs with the numbers that Slurm has for them, or why the driver does not tell."""
    with reach_gpus(context) as machine:
        if machine.problem is not None:
            return None, machine.problem
        gpus = sorted(machine.gpus.values(), key=lambda gpu: gpu.identity.index)
        order = context.gpu_order(os.environ.get("SLURM_CONF"))
        numbering = context.settings.node.gpu_numbering
        mapping = gpu_mapping([gpu.identity for gpu in gpus], order, numbering, context.device_minor)
        mapped = {gpu.uuid: gpu for gpu in mapping.gpus}
        return tuple(_gpu(gpu, mapped.get(gpu.identity.uuid), mapping.problem) for gpu in gpus), None


def _gpu(gpu: Gpu, mapped: MappedGpu | None, problem: str) -> GpuStatus:
    identity = gpu.identity
    limit: float | None = None
    with suppress(DeviceError):
        limit = gpu.power_limit_watts()
    return GpuStatus(
        uuid=identity.uuid,
        index=identity.index,
        minor_number=identity.minor_number,
        name=identity.name,
        gpu_type=identity.gpu_type,
        pci_id=identity.pci_bus_id,
        power_limit_watts=limit,
        position=None if mapped is None else mapped.position,
        slurm_type=None if mapped is None else mapped.slurm_type,
        proof=" and ".join(mapped.ways)[:MAX_PROOF] if mapped is not None and mapped.proven else "",
        unproven=(problem if mapped is None else mapped.problem or problem)[:MAX_PROOF],
    )


def _blank(context: HookContext) -> NodeStatus:
    return NodeStatus(
        cluster=context.settings.cluster,
        node=context.settings.node_name,
        sent_at_seconds=0.0,
        boot_id=context.boot_id,
        hook_version=__version__,
        interpreter=sys.executable,
        spool=SpoolStatus(path=str(context.spool.root)),
    )


def _seen(context: HookContext) -> NodeStatus:
    """Return what the last repair kept; a blank status where there is nothing that can be used.

    `sent_at_seconds` of it is when the GPUs were looked at. GPUs of an earlier boot are no longer known.
    """
    try:
        content = read_whole(context.spool.seen_status)
        found = None if content is None else decode_status(loads(content, "status.json", MAX_STATUS_BYTES))
    except (SpoolError, WireError):
        found = None
    if found is None or found.node != context.settings.node_name:
        return _blank(context)
    found = replace(found, cluster=context.settings.cluster)
    return found if found.boot_id == context.boot_id else replace(found, boot_id=context.boot_id, gpus=None)


def _write(path: Path, status: NodeStatus) -> None:
    content = json.dumps(encode_status(status), separators=(",", ":"), allow_nan=False).encode()
    write_atomically(path, content, durable=False)


def _sent(path: Path) -> tuple[float, str] | None:
    try:
        content = read_whole(path)
        when, digest = (content or b"").decode("ascii", "replace").split()
        return float(when), digest
    except (SpoolError, ValueError):
        return None


def _digest(status: NodeStatus) -> str:
    """Return a mark of all that does not change by itself from minute to minute."""
    document = encode_status(status)
    for key in _CHANGES_BY_ITSELF:
        document.pop(key)
    spool = Fields(document.pop("spool"), "spool")
    document["spool"] = [spool.get(key) for key in ("path", "exists", "owner_user_id", "mode", "rejected_files")]
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def _times(folder: Path) -> Iterator[float]:
    with suppress(OSError):
        for path in folder.iterdir():
            if not path.name.startswith("."):
                with suppress(OSError):
                    yield path.lstat().st_mtime


def _free_bytes(folder: Path) -> int | None:
    for place in (folder, *folder.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return found.f_bavail * found.f_frsize
    return None
