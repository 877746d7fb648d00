"""The daemon's side: socket, answers, snapshot, report port, database, service."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.cli.daemon_line import asked
from slurm_energy.cli.doctor.finding import Finding, Situation, fail, ok, skip, warn
from slurm_energy.cli.record_filter import sqlite_path
from slurm_energy.cli.site import run_command
from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, SchemaVersionError, SlurmEnergyError
from slurm_energy.forms import parse_addresses
from slurm_energy.policy.automatic import AUTOMATIC, INSTALL, chosen_policy, learned_faults, missing_modules
from slurm_energy.policy.registry import LEARNED
from slurm_energy.wire.codec import Message

PING_SECONDS = 2.0
START = "systemctl start slurm-energyd, then journalctl -u slurm-energyd"


def daemon_checks(situation: Situation) -> Iterator[Finding]:
    """Yield what concerns the daemon, as far as this host can tell."""
    if situation.is_controller:
        yield service("slurm-energyd.service", "systemctl enable --now slurm-energyd")
        yield from _socket(situation.config)
        yield _port(
            "report port", ("127.0.0.1", situation.config.daemon.report_port), situation.config.daemon.report_host
        )
        yield _state_directory(situation.config)
        yield _database(situation.config)
        yield _learned_policy(situation.config)
    if situation.is_node:
        yield from _daemon_addresses(situation.config)
    yield _authentication(situation)


def _socket(config: Config) -> Iterator[Finding]:
    path = Path(config.daemon.socket_path)
    try:
        status = path.stat()
    except OSError as error:
        yield fail("socket", f"{path}: {error.strerror}", START)
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield fail("socket", f"{path} is no socket", f"move it away, then {START}")
        return
    if status.st_mode & 0o666 != 0o666:
        text = f"{path} has mode {stat.S_IMODE(status.st_mode):04o}"
        yield warn("socket", text, "users get no explanations unless daemon.socket_mode is 0o666")
    else:
        yield ok("socket", f"{path}, mode {stat.S_IMODE(status.st_mode):04o}")
    yield from _ping(config)


def _ping(config: Config) -> Iterator[Finding]:
    try:
        reply = asked(config.daemon.socket_path, Message("ping"), PING_SECONDS)
    except SlurmEnergyError as error:
        yield fail("daemon", str(error), START)
        return
    version = reply.fields.get("version", "unknown")
    if version != __version__:
        yield warn("daemon", f"version {version} runs, {__version__} is installed", "systemctl restart slurm-energyd")
    else:
        yield ok("daemon", f"version {version}, policy {reply.fields.get('policy', 'unknown')}")
    condition = reply.fields.get("policy_process")
    if condition is not None:
        yield _policy_process(condition)
    yield _snapshot(config, reply.fields.get("snapshot_age_seconds"))


def _policy_process(condition: str) -> Finding:
    if condition == "ready":
        return ok("policy process", condition)
    return warn("policy process", condition, "see journalctl -u slurm-energyd; one that loads is ready in some seconds")


def _snapshot(config: Config, age_text: str | None) -> Finding:
    mend = "see journalctl -u slurm-energyd: squeue or sinfo fail or are too slow for it"
    try:
        age = float(age_text or "")
    except ValueError:
        return fail("cluster snapshot", "there is none yet: jobs go through unchanged", mend)
    limit = config.daemon.snapshot_max_age_seconds
    if age > limit:
        return fail("cluster snapshot", f"{age:.0f} s old, over {limit:g} s it is not used", mend)
    return ok("cluster snapshot", f"{age:.1f} s old")


def _port(subject: str, address: tuple[str, int], host: str) -> Finding:
    if not host:
        return skip(subject, "daemon.report_host is empty: the daemon takes no reports from nodes")
    target = host if host not in {"0.0.0.0", "::", "*"} else address[0]  # noqa: S104  # a comparison, nothing is bound
    return _connects(subject, (target, address[1]), START)


def _connects(subject: str, address: tuple[str, int], mend: str) -> Finding:
    where = f"{address[0]} port {address[1]}"
    try:
        with socket.create_connection(address, timeout=PING_SECONDS):
            return ok(subject, f"{where} answers")
    except OSError as error:
        return fail(subject, f"{where}: {error.strerror or error}", mend)


def _daemon_addresses(config: Config) -> Iterator[Finding]:
    text = config.node.daemon_address
    if not text:
        yield fail(
            "daemon's address",
            "node.daemon_address is empty: reports stay in the spool",
            'set daemon_address = "CONTROLLER:8470" under [node] in slurm-energy.toml',
        )
        return
    try:
        addresses = parse_addresses(text)
    except ConfigError as error:
        yield fail("daemon's address", str(error), "write HOST:PORT, several with commas between")
        return
    for address in addresses:
        mend = "start slurm-energyd there, and let the port through the firewall"
        yield _connects("daemon's address", address, mend)


def _state_directory(config: Config) -> Finding:
    path = Path(config.daemon.state_directory)
    if not path.is_dir():
        return fail("state directory", f"{path} does not exist", START)
    if os.geteuid() == 0 or os.access(path, os.W_OK):
        return ok("state directory", f"{path}, owner uid {path.stat().st_uid}")
    return skip("state directory", f"{path} is not open to this user", "run doctor as root")


def _database(config: Config) -> Finding:
    subject, upgrade = "database", "slurm-energy database upgrade"
    path = sqlite_path(config.store.url)
    if path is not None and not path.exists():
        return fail(
            subject, f"{path} does not exist", f"start slurm-energyd, or {upgrade} as {config.cluster.slurm_user}"
        )
    if path is not None and not os.access(path, os.R_OK):
        return skip(subject, f"{path} is not open to this user", "run doctor as root")
    from slurm_energy.cli.database_records import read  # noqa: PLC0415  # SQL only when it is needed

    try:
        read(config.store, lambda _session: None)
        return ok(subject, "reached, its schema is this version's")
    except SchemaVersionError as error:
        return fail(subject, str(error), upgrade)
    except SlurmEnergyError as error:
        return fail(subject, str(error), "check store.url, and that the database server runs")


def _learned_policy(config: Config) -> Finding:
    """Return whether what a learned policy needs is there; a site that has chosen another one may lack it."""
    subject, missing = "learned policy", missing_modules()
    choice = chosen_policy(config)
    if config.policy.name == AUTOMATIC and not missing and choice.note:
        return warn(subject, choice.note, "mend that, or set policy.name")
    fault = next(learned_faults(config), None) if config.policy.name in LEARNED and not missing else None
    if fault is not None:
        return fail(subject, fault, "mend that, or choose another policy.name")
    if not missing:
        return ok(subject, f"torch is installed, policy.name {config.policy.name}")
    text = f"{', '.join(missing)} not installed"
    mend = f"{INSTALL} into the daemon's environment, then systemctl reload slurm-energyd"
    if config.policy.name == AUTOMATIC:
        return warn(subject, f"{text}: policy {config.policy.baseline} decides", mend)
    if config.policy.name in LEARNED:
        return fail(subject, f"{text}: policy {config.policy.name} cannot be loaded", mend)
    return skip(subject, f"{text}, and policy {config.policy.name} needs none of it")


def _authentication(situation: Situation) -> Finding:
    if situation.config.node.authentication == "hmac":
        return _key(Path(situation.config.node.hmac_key_path), situation)
    result = run_command(["munge", "--no-input"])
    if result.ok:
        return ok("munge", "makes credentials")
    return fail("munge", result.complaint or "no credential", "systemctl start munge; the same munge.key on every host")


def _key(path: Path, situation: Situation) -> Finding:
    if not (situation.is_controller or situation.is_node):
        return skip("report key", "not needed on a login host")
    try:
        status = path.stat()
    except OSError as error:
        mend = f"head -c 64 /dev/urandom > {path}; chmod 600 {path}; the same file on every host"
        return fail("report key", f"{path}: {error.strerror}", mend)
    if status.st_mode & 0o007:
        return fail("report key", f"{path} is open to everybody", f"chmod 640 {path}, and make a new key")
    if status.st_size < 32:
        return fail("report key", f"{path} has {status.st_size} bytes, 32 are needed", "make a longer one")
    return ok("report key", f"{path}, {status.st_size} bytes")


def service(unit: str, mend: str) -> Finding:
    """Return whether a systemd unit is active."""
    result = run_command(["systemctl", "is-active", unit])
    state = result.stdout.strip()
    if not state or "not been booted" in result.complaint:
        return skip(unit, result.complaint or "systemd does not run here")
    if state in {"active", "activating"}:
        return ok(unit, state)
    return fail(unit, state, mend)
