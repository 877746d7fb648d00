"""The product's own parts in a lab: plugin, hooks, simulated GPUs, configuration, variables of the lab's scripts."""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_energy.errors import LabError
from slurm_energy.lab.host import SYSTEM_PATH, Host
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.simgpu.build import build
from slurm_energy.lab.simgpu.specs import LAB_GPU_TYPES, LAB_POWER_LIMITS_WATTS
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state
from slurm_energy.lab.slurm_files import Ports, node_gpus
from slurm_energy.lab.spec import LabSpec
from slurm_energy.resources import shared_directory
from slurm_energy.settings import toml_value

_BUILD_TIMEOUT_SECONDS = 300
_SPANK_PLUGIN = "spank_energy.so"
_JOB_SUBMIT_PLUGIN = "job_submit_energy.so"


def cache_directory() -> Path:
    """Return the folder of what is built once for all labs: $XDG_CACHE_HOME or ~/.cache, slurm-energy."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slurm-energy"


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time build in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_plugin(layout: Layout, host: Host) -> None:
    """Build Slurm's plugins for this machine's Slurm, copy them into the lab and write its plugstack.conf."""
    source = shared_directory("plugin")
    if not (source / "Makefile").is_file():
        raise LabError(f"{source} has no Makefile: this installation cannot build the plugin; try a lab without it")
    # Each checkout has its own: make compares times of files, and would take another's objects for its own.
    checkout = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
    folder = cache_directory() / f"plugin-{host.slurm_version[0]}.{host.slurm_version[1]:02d}-{checkout}"
    with build_lock(folder):
        make(source, folder)
        libraries = sorted(folder.rglob("*.so"))
        for library in libraries:
            shutil.copy2(library, layout.plugins / library.name)
    if not (layout.plugins / _JOB_SUBMIT_PLUGIN).exists():
        raise LabError(f"{source}/Makefile made no {_JOB_SUBMIT_PLUGIN} in {folder}, but {[p.name for p in libraries]}")
    spank = layout.plugins / _SPANK_PLUGIN
    lines = [f"optional {spank}\n"] if spank.exists() else []
    (layout.etc / "plugstack.conf").write_text("".join(lines))


def install_hooks(layout: Layout, python: Path, limit_seconds: float | None = None) -> None:
    """Write the hook into prolog.d and epilog.d of the lab, set to this interpreter as `slurm-energy install` does.

    A lab's own time limit holds from the first moment: until a hook has read its configuration it has 5 s, which is
    little where all nodes of a cluster start their hooks on the same two processors.
    """
    source = shared_directory("plugin") / "hook" / "slurm-energy.sh"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise LabError(f"{source} cannot be read: this installation has no hooks; try a lab without them") from error
    export = "" if limit_seconds is None else f"export SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS={limit_seconds:g}\n"
    for name in ("prolog.d", "epilog.d"):
        script = layout.hooks / name / "50-slurm-energy.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text.replace("@PYTHON@", str(python)).replace("\n", f"\n{export}", 1), encoding="utf-8")
        script.chmod(0o755)


def make(source: Path, build: Path) -> None:
    """Run make in a source folder with BUILD set.

    Raises:
        LabError: it failed; the message ends with what the compiler said.
    """
    argv = ["make", "--no-print-directory", "-C", str(source), f"BUILD={build}"]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
            check=False,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"{' '.join(argv)} failed: {error}") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def install_gpus(spec: LabSpec, layout: Layout) -> None:
    """Build library and tool once for all labs, copy them into the lab, and make every node's GPUs.

    Raises:
        LabError: no compiler, or a GPU type that cannot be simulated.
    """
    built = build(cache_directory())
    shutil.copy2(built.library, layout.library)
    shutil.copy2(built.workload, layout.programs / built.workload.name)
    for partition in spec.partitions:
        for node in partition.node_names:
            create_state(
                layout.gpu_state(node),
                node_gpus(partition, node),
                time_scale=spec.time_scale,
                library=built.library,
            )


def open_gpus(layout: Layout, node: str, *, built_elsewhere: bool = False) -> NodeGpuState:
    """Return the open state of a node's GPUs; the caller closes it.

    Args:
        layout: The lab's.
        node: Its name.
        built_elsewhere: Whether the lab's own library is of another root, for whose C library it was linked.
    """
    library = build(cache_directory()).library if built_elsewhere else None
    return NodeGpuState(layout.gpu_state(node), library)


def energy_settings(spec: LabSpec, layout: Layout, ports: Ports) -> dict[str, dict[str, Any]]:
    """Return slurm-energy.toml by section and key: the lab's own values, then the specification's."""
    sections: dict[str, dict[str, Any]] = {
        "cluster": {
            "name": spec.cluster_name,
            "slurm_conf": str(layout.slurm_conf),
            "slurm_user": "slurm",
            "accounting": spec.has_accounting,
        },
        "daemon": {
            "socket_path": str(layout.energyd_socket),
            "report_host": "127.0.0.1",
            "report_port": ports.report,
            "state_directory": f"{layout.state}/energyd",
            "snapshot_interval_seconds": 1.0,
        },
        "store": {"url": f"sqlite:///{layout.database}"},
        "node": {
            "spool_directory": f"{layout.hooks_spool}/%n",
            "run_directory": f"{layout.directory}/hooks-run/%n",
            "log_path": f"{layout.log}/hooks.log",
            "daemon_address": f"127.0.0.1:{ports.report}",
            "nvml_library": str(layout.library),
            "time_scale": float(spec.time_scale),
        },
        # What the simulated boards are where the catalogue would take others for them.
        "gpu_types": dict(LAB_GPU_TYPES),
        "gpu_power_limits_watts": dict(LAB_POWER_LIMITS_WATTS),
    }
    for section, values in spec.settings.items():
        sections.setdefault(section, {}).update(values)
    return sections


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a TOML document of sections with plain values, lists of texts and tables of numbers or texts."""
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{json.dumps(key)} = {toml_value(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def plugin_conf(spec: LabSpec, layout: Layout) -> str:
    """Return energy-plugin.conf."""
    settings = {"socket": str(layout.plugin_socket), "deadline_milliseconds": "50"} | dict(spec.plugin_settings)
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def command_path(layout: Layout, python: Path) -> str:
    """Return PATH inside the lab: the lab's programs, this package's commands, the system's."""
    return f"{layout.programs}:{python.parent}:{SYSTEM_PATH}"


def environment_file(spec: LabSpec, layout: Layout, host: Host, python: Path, network_of: int | None = None) -> str:
    """Return the shell variables that the lab's scripts read; `network_of` is a process whose network it shares."""
    variables = {
        "PATH": command_path(layout, python),
        "SLURM_CONF": str(layout.slurm_conf),
        "SLURM_ENERGY_CONFIG": str(layout.energy_config),
        "LAB_DIRECTORY": str(layout.directory),
        "LAB_CLUSTER": spec.cluster_name,
        "LAB_NODES": " ".join(spec.node_names),
        "LAB_SLURMD_SPOOL": str(layout.slurmd_spool),
        "LAB_USERS": " ".join(spec.users),
        "LAB_ACCOUNTING": "yes" if spec.accounting else "shared" if spec.beside else "no",
        "LAB_ENERGY": "yes" if spec.energy else "no",
        "LAB_DAEMON": "yes" if spec.energy and spec.daemon else "no",
        "LAB_PRIVATE": host.private,
        "LAB_REPAIR_SECONDS": str(spec.repair_seconds),
        "LAB_NETWORK": host.network if network_of is None else "shared",
        "LAB_NETWORK_OF": "" if network_of is None else str(network_of),
        "LAB_DEVICES": host.devices,
        "LAB_MINORS": " ".join(map(str, range(max(item.gpus_per_node for item in spec.partitions)))),
        "LAB_PYTHON": str(python),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
