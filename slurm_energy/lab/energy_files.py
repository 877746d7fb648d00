"""Text of the product's own files in a lab, and of the variables that the lab's scripts read."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.lab.host import SYSTEM_PATH, Host
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.simgpu.specs import LAB_GPU_TYPES, LAB_POWER_LIMITS_WATTS
from slurm_energy.lab.slurm_files import Ports
from slurm_energy.lab.spec import LabSpec


def energy_settings(spec: LabSpec, layout: Layout, ports: Ports) -> dict[str, dict[str, Any]]:
    """Return slurm-energy.toml by section and key: the lab's own values, then the specification's."""
    sections: dict[str, dict[str, Any]] = {
        "cluster": {
            "name": spec.cluster_name,
            "slurm_conf": str(layout.slurm_conf),
            "slurm_user": "slurm",
            "accounting": spec.accounting,
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
        lines += [f"{json.dumps(key)} = {_value(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value))  # JSON's text is a TOML basic string


def plugin_conf(spec: LabSpec, layout: Layout) -> str:
    """Return energy-plugin.conf."""
    settings = {"socket": str(layout.plugin_socket), "deadline_milliseconds": "50"} | dict(spec.plugin_settings)
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def command_path(layout: Layout, python: Path) -> str:
    """Return PATH inside the lab: the lab's programs, this package's commands, the system's."""
    return f"{layout.programs}:{python.parent}:{SYSTEM_PATH}"


def environment_file(spec: LabSpec, layout: Layout, host: Host, python: Path) -> str:
    """Return the shell variables that the lab's scripts read."""
    variables = {
        "PATH": command_path(layout, python),
        "SLURM_CONF": str(layout.slurm_conf),
        "SLURM_ENERGY_CONFIG": str(layout.energy_config),
        "LAB_DIRECTORY": str(layout.directory),
        "LAB_CLUSTER": spec.cluster_name,
        "LAB_NODES": " ".join(spec.node_names),
        "LAB_SLURMD_SPOOL": str(layout.slurmd_spool),
        "LAB_USERS": " ".join(spec.users),
        "LAB_ACCOUNTING": "yes" if spec.accounting else "no",
        "LAB_ENERGY": "yes" if spec.energy else "no",
        "LAB_DAEMON": "yes" if spec.energy and spec.daemon else "no",
        "LAB_PRIVATE": host.private,
        "LAB_REPAIR_SECONDS": str(spec.repair_seconds),
        "LAB_NETWORK": host.network,
        "LAB_DEVICES": host.devices,
        "LAB_MINORS": " ".join(map(str, range(max(item.gpus_per_node for item in spec.partitions)))),
        "LAB_PYTHON": str(python),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
