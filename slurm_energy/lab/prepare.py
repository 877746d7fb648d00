"""Fill a lab's folder: configuration, accounts, keys and state, everything that the daemons need to start."""

import argparse
import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_energy.errors import LabError
from slurm_energy.lab import products, slurm_files
from slurm_energy.lab.host import SYSTEM_PATH, Host, exposed_paths, free_ports, inspect_host
from slurm_energy.lab.layout import Layout, closed_ancestor, find_layout
from slurm_energy.lab.products import install_gpus, install_hooks, install_plugin
from slurm_energy.lab.spec import DEFAULT_PARTITIONS, LabSpec, PartitionSpec, parse_partition

_FOLDERS = {
    "etc": "root",
    "dev": "root",
    "gpus": "root",
    "lib": "root",
    "bin": "root",
    "plugins": "root",
    "hooks": "root",
    "hooks-spool": "root",
    "home": "root",
    "state": "root",
    "state/slurmctld": "slurm",
    "state/energyd": "slurm",
    "run": "slurm",
    "pid": "slurm",
    "log": "slurm",
    # munged wants a folder whose every parent belongs to root or to itself.
    "munge": "munge",
}


def python_path() -> Path:
    """Return the interpreter that daemon and hooks run with: this one."""
    return Path(sys.executable)


def prepare(spec: LabSpec, layout: Layout, host: Host) -> None:
    """Write everything below an empty lab folder.

    Raises:
        LabError: a part cannot be built or written, or the lab's users could not read it.
    """
    os.umask(0o022)
    for name, owner in _FOLDERS.items():
        _make_folder(layout.directory / name, owner)
    for node in spec.node_names:
        _make_folder(layout.hooks_spool / node, "root")
    controller = socket.gethostname().split(".")[0] if host.private == "container" else "localhost"
    _write_accounts(spec, layout)
    _write_configuration(spec, layout, host, controller)
    _write_key(spec, layout)
    if spec.accounting:
        _install_database(layout)
    install_gpus(spec, layout)
    if spec.energy:
        install_plugin(layout, host)
        install_hooks(layout, python_path(), spec.settings.get("node", {}).get("time_limit_seconds"))
    layout.description.write_text(describe(spec))


def describe(spec: LabSpec) -> str:
    """Return a specification as JSON, for `recall`."""
    return json.dumps(asdict(spec), indent=1, default=str)


def recall(text: str) -> LabSpec:
    """Return the specification that `describe` wrote.

    Raises:
        LabError: the text is not such a description.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        values["partitions"] = tuple(_partition(item) for item in values["partitions"])
        for key in ("directory", "root"):
            values[key] = Path(values[key]) if values.get(key) else None
        for key in ("slurm_conf_lines", "users"):
            values[key] = tuple(values[key])
        return LabSpec(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise LabError(f"the lab's description cannot be read: {error}") from error


def _partition(values: dict[str, Any]) -> PartitionSpec:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return PartitionSpec(**fields)


def _make_folder(path: Path, owner: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
    shutil.chown(path, owner, pwd.getpwnam(owner).pw_gid)


def _write_accounts(spec: LabSpec, layout: Layout) -> None:
    passwd, group = slurm_files.accounts(
        Path("/etc/passwd").read_text(), Path("/etc/group").read_text(), layout, spec.users
    )
    (layout.etc / "passwd").write_text(passwd)
    (layout.etc / "group").write_text(group)
    (layout.etc / "shadow").touch(mode=0o600)
    (layout.etc / "shadow").write_text(slurm_files.shadow(passwd))
    layout.home("root").mkdir(mode=0o700)
    numbers = {line.split(":")[0]: line.split(":")[2:4] for line in passwd.splitlines()}
    for user in spec.users:
        layout.home(user).mkdir(mode=0o755)
        os.chown(layout.home(user), int(numbers[user][0]), int(numbers[user][1]))


def _write_configuration(spec: LabSpec, layout: Layout, host: Host, controller: str) -> None:
    nodes = spec.node_names
    network_of = int(find_layout(spec.beside).init_pid.read_text()) if spec.beside else None
    if host.network == "host" and host.private == "namespace":
        if spec.beside:
            raise LabError(f"lab {spec.name} cannot be beside {spec.beside}: this machine has no private networks")
        ports = slurm_files.chosen_ports(nodes, free_ports(len(nodes) + 3))
    else:
        ports = slurm_files.private_ports(nodes, number=1 if spec.beside else 0)
    texts = {
        layout.slurm_conf: slurm_files.slurm_conf(spec, layout, host, ports, controller),
        layout.etc / "gres.conf": slurm_files.gres_conf(spec, layout, host),
        layout.energy_config: products.toml(products.energy_settings(spec, layout, ports)),
        layout.plugin_config: products.plugin_conf(spec, layout),
        layout.environment: products.environment_file(spec, layout, host, python_path(), network_of),
        layout.etc / "exposed": _exposed(layout),
    }
    if any(partition.detected for partition in spec.partitions):
        texts[layout.etc / "fake_gpus.conf"] = slurm_files.fake_gpus_conf(spec, layout, host)
    cgroup = slurm_files.cgroup_conf(host.slurm_version)
    if cgroup is not None:
        texts[layout.etc / "cgroup.conf"] = cgroup
    for path, text in texts.items():
        path.write_text(text)
    if spec.accounting:
        (layout.etc / "mariadb.cnf").write_text(slurm_files.mariadb_conf(layout))
        secret = layout.etc / "slurmdbd.conf"
        secret.touch(mode=0o600)
        secret.write_text(slurm_files.slurmdbd_conf(layout, ports))
        shutil.chown(secret, "slurm")


def _exposed(layout: Layout) -> str:
    lines = []
    for path in exposed_paths(layout.directory):
        closed = closed_ancestor(path)
        if closed is not None:
            lines.append(f"{closed} {path}\n")
    return "".join(lines)


def _write_key(spec: LabSpec, layout: Layout) -> None:
    key = layout.etc / "munge.key"
    key.touch(mode=0o400)
    other = find_layout(spec.beside).etc / "munge.key" if spec.beside else None
    key.write_bytes(secrets.token_bytes(1024) if other is None else other.read_bytes())
    shutil.chown(key, "munge")


def _install_database(layout: Layout) -> None:
    folder = layout.state / "mariadb"
    # Not the account `mysql`: the package of the programs alone does not make it.
    _make_folder(folder, "slurm")
    argv = [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={folder}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--user=slurm",
        "--innodb-log-file-size=16M",
    ]
    try:
        subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env={"PATH": SYSTEM_PATH})
    except subprocess.CalledProcessError as error:
        raise LabError(f"mariadb-install-db failed: {error.stderr[-1000:]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"mariadb-install-db failed: {error}") from error


def main(arguments: list[str] | None = None) -> int:
    """Prepare a lab's folder from the command line: a container's entry, and a lab in another root, call this."""
    parser = argparse.ArgumentParser(
        description="Fill the folder of a lab that runs in a container, or in another root."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--partition", action="append", help="NAME:NODESxGPUS[:TYPE]; repeat for more")
    parser.add_argument("--accounting", action="store_true")
    parser.add_argument("--no-energy", action="store_true")
    parser.add_argument("--time-scale", type=float, default=60.0)
    parser.add_argument("--description", action="store_true", help="standard input has the lab's description")
    given = parser.parse_args(arguments)
    try:
        if given.description:
            spec = recall(sys.stdin.read())
            prepare(spec, Layout(given.directory), inspect_host(accounting=spec.accounting, energy=spec.energy))
            return 0
        partitions = tuple(parse_partition(text) for text in given.partition or ()) or DEFAULT_PARTITIONS
        spec = LabSpec(
            directory=given.directory,
            accounting=given.accounting,
            energy=not given.no_energy,
            time_scale=given.time_scale,
            keep=True,
            partitions=partitions,
        )
        host = inspect_host(accounting=spec.accounting, energy=spec.energy, container=True)
        prepare(spec, Layout(given.directory), host)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
