"""A compute node's side: GPUs, spool, timers."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_energy.cli.doctor.daemon_checks import service
from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, skip, warn
from slurm_energy.cli.doctor.gpu_checks import IDENTITY, Board, board_checks, mapping_checks
from slurm_energy.cli.installing.roles import NODE_UNITS
from slurm_energy.cli.site import slurm_command, under
from slurm_energy.device.gpu import GpuIdentity, reading
from slurm_energy.device.nvml import NvmlDriver
from slurm_energy.domain.ids import ClusterName, NodeName
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.allocation import gpu_mapping
from slurm_energy.node.gpu_order import order_finder
from slurm_energy.node.processes import read_boot_id
from slurm_energy.node.settings import HookSettings, this_nodes_name
from slurm_energy.node.spool import Spool

CRON_FILE = Path("/etc/cron.d/slurm-energy")
MAX_WAITING_HOURS = 1.0


def node_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield what concerns a compute node; nothing on other hosts."""
    if not situation.is_node:
        return
    yield from _gpus(situation)
    yield from _spool(situation)
    yield from _timers(situation)


def _gpus(situation: HostFacts) -> Iterator[Finding]:
    try:
        with NvmlDriver(situation.config.node.nvml_library) as driver:
            gpus = driver.gpus()
            identities = [gpu.identity for gpu in gpus]
            lacking = _without_clocks(gpus)
            boards = [Board(gpu_type=gpu.identity.gpu_type, limit_watts=reading(gpu.power_limit_watts)) for gpu in gpus]
    except DeviceError as error:
        # A controller often has slurmd installed and no GPU: that alone is no fault.
        verdict = warn if "controller" in situation.roles else fail
        fix = "install NVIDIA's driver, or set node.nvml_library; a node without GPUs needs no hooks"
        yield verdict("GPUs", str(error), fix)
        return
    if not identities:
        yield warn("GPUs", "the driver knows none", "check nvidia-smi")
        return
    names = sorted({identity.name for identity in identities})
    yield ok("GPUs", f"{len(identities)}: {', '.join(names)}")
    yield _catalogue(identities)
    yield from _identity(situation, identities)
    yield from board_checks(situation.config, {"": boards})
    if not situation.config.node.set_clocks:
        yield warn("GPU clocks", "node.set_clocks is false: clocks stay as they are", "set it to true to save energy")
    elif lacking:
        yield warn("GPU clocks", f"{lacking[0]}", "energy is measured there, the clock stays at its default")
    elif os.geteuid() != 0:
        yield skip("GPU clocks", "only root may set them, as the hooks do", "run doctor as root")
    else:
        yield ok("GPU clocks", "supported clocks are known, and this is root")


def _identity(situation: HostFacts, identities: list[GpuIdentity]) -> Iterator[Finding]:
    if os.geteuid() != 0:
        yield skip(IDENTITY, "only root may read what the hooks learned of slurmd's order", "run doctor as root")
        return
    node, config = _node_name(situation), situation.config
    settings = HookSettings(
        node=config.node,
        cluster=ClusterName(config.cluster.name),
        node_name=NodeName(node),
        spool_directory=under(situation.root, Path(config.node.spool_directory.replace("%n", node))),
        log_path="",
        slurm_conf=str(situation.slurm_conf) if situation.slurm_conf.is_file() else "",
        slurm_bin_directory=config.cluster.slurm_bin_directory,
    )
    try:
        order = order_finder(settings, read_boot_id()).refresh()
    except SpoolError as error:
        yield skip(IDENTITY, str(error))
        return
    yield from mapping_checks(gpu_mapping(identities, order, config.node.gpu_numbering))


def _node_name(situation: HostFacts) -> str:
    named = situation.environment.get("SLURMD_NODENAME")
    return named or this_nodes_name(situation.config.cluster.slurm_conf, situation.environment)


def _without_clocks(gpus: object) -> list[str]:
    lacking = []
    for gpu in gpus if isinstance(gpus, tuple) else ():
        try:
            gpu.supported_sm_clocks_mhz()
        except DeviceError as error:
            lacking.append(str(error))
    return lacking


def _catalogue(identities: list[GpuIdentity]) -> Finding:
    unknown = sorted({identity.name for identity in identities if identity.gpu_type is None})
    if unknown:
        return warn(
            "GPU catalogue",
            f"{', '.join(unknown)} is not in it: energy is measured, the clock stays at its default",
            "map the GRES type under [gpu_types] in slurm-energy.toml, or add a row to energy_model/catalog",
        )
    return ok("GPU catalogue", "every GPU is in it")


def _spool(situation: HostFacts) -> Iterator[Finding]:
    name = _node_name(situation)
    root = under(situation.root, Path(situation.config.node.spool_directory.replace("%n", name)))
    if not root.is_dir():
        yield _missing_spool(root)
        return
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        yield skip("spool", f"{root} is not open to this user", "run doctor as root")
        return
    yield ok("spool", str(root))
    spool = Spool(root)
    yield _waiting(spool)
    yield _left_over("rejected reports", spool.rejected, "read them, report the fault, then delete them")
    yield _left_over("GPU settings not restored", spool.pending, "slurm-energy-hook repair (as root)")
    yield _stale_jobs(situation, spool, name)


def _missing_spool(root: Path) -> Finding:
    parent = next((folder for folder in root.parents if folder.is_dir()), Path("/"))
    if os.geteuid() == 0 and os.access(parent, os.W_OK):
        return ok("spool", f"{root} will be made by the first job")
    return skip("spool", f"{root} does not exist yet", "run doctor as root")


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _waiting(spool: Spool) -> Finding:
    files = _files(spool.reports)
    if not files:
        return ok("waiting reports", "none")
    oldest_hours = (time.time() - min(path.stat().st_mtime for path in files)) / 3600
    text = f"{len(files)}, the oldest {oldest_hours:.1f} h"
    if oldest_hours > MAX_WAITING_HOURS:
        return fail("waiting reports", text, "slurm-energy-hook flush (as root), and check the daemon's address")
    return ok("waiting reports", text)


def _left_over(subject: str, folder: Path, fix: str) -> Finding:
    files = _files(folder)
    return warn(subject, f"{len(files)} in {folder}", fix) if files else ok(subject, "none")


def _stale_jobs(situation: HostFacts, spool: Spool, node: str) -> Finding:
    """Return whether every job that the spool holds as active is one that Slurm runs here."""
    held = {path.name.removesuffix(".json") for path in _files(spool.active) if path.name.endswith(".json")}
    if not held:
        return ok("active jobs", "none")
    result = slurm_command(situation.config, "squeue", "--noheader", "--format=%A", "--nodelist", node)
    if not result.ok:
        return skip("active jobs", f"{len(held)} in the spool; {result.complaint}")
    stale = sorted(held - set(result.stdout.split()))
    if stale:
        return warn(
            "active jobs", f"{', '.join(stale[:5])} ended without an epilog", "slurm-energy-hook repair (as root)"
        )
    return ok("active jobs", f"{len(held)}, all of them running")


def _timers(situation: HostFacts) -> Iterator[Finding]:
    cron = under(situation.root, CRON_FILE)
    try:
        text = cron.read_text(encoding="utf-8", errors="replace")
    except OSError:
        for unit in NODE_UNITS:
            if unit.endswith(".timer"):
                yield service(unit, f"systemctl enable --now {' '.join(NODE_UNITS)}")
        return
    missing = [verb for verb in ("flush", "repair") if not re.search(rf"^\s*[*0-9].*\b{verb}\b", text, re.MULTILINE)]
    if missing:
        fix = "slurm-energy install --role node --scheduler cron"
        yield fail("timers", f"{cron} does not run {' and '.join(missing)}", fix)
    else:
        yield ok("timers", str(cron))
