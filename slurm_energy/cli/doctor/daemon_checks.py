"""The daemon's side: socket, answers, snapshot, report port, service, and what it tells of itself."""

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli.daemon_line import asked, json_document
from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, skip, warn
from slurm_energy.cli.doctor.storage_checks import AS_ROOT, journal_finding, service_user, storage_checks
from slurm_energy.cli.site import run_command
from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, SlurmEnergyError
from slurm_energy.forms import parse_addresses
from slurm_energy.policy.automatic import AUTOMATIC, INSTALL, chosen_policy, learned_faults, missing_modules
from slurm_energy.policy.registry import LEARNED
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

PING_SECONDS = 2.0
STATUS_SECONDS = 15.0
STARTING_SECONDS = 20.0
"""A younger daemon may still create its database and look at Slurm for the first time."""
_START_POLL_SECONDS = 0.5
START = "systemctl start slurm-energyd, then journalctl -u slurm-energyd"
_DELIVERY_FIXES = {
    "Invalid credential": "the munge keys differ: the controller's munge.key on the node, then systemctl restart munge",
    "Expired credential": "the clocks differ: set up chrony or another NTP client on the node and on the controller",
    "Rewound credential": "the clocks differ: set up chrony or another NTP client on the node and on the controller",
    "do the clocks agree": "the clocks differ: set up chrony or another NTP client on the node and on the controller",
    "Replayed credential": "the network sent it twice: nothing to do, unless it repeats",
    "signature is wrong": "the report keys differ: the same node.hmac_key_path file on node and controller",
    "this site uses": "the same node.authentication in slurm-energy.toml on node and controller",
    "comes from uid": "slurm-energy-hook flush must run as root: slurm-energy install --role node",
    "no daemon answers": "start slurm-energyd there, and let the port through the firewall",
    "no whole answer": "start slurm-energyd there, and let the port through the firewall",
}


def daemon_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield what concerns the daemon, as far as this host can tell."""
    if situation.is_controller:
        await_start(situation.config)
        yield service("slurm-energyd.service", "systemctl enable --now slurm-energyd")
        yield from storage_checks(situation)
        yield from _socket(situation)
        yield _port(
            "report port", ("127.0.0.1", situation.config.daemon.report_port), situation.config.daemon.report_host
        )
        yield _learned_policy(situation.config)
    if situation.is_node:
        yield from _daemon_addresses(situation.config)
        yield _delivery(situation)
    yield _authentication(situation)


def await_start(config: Config, pause: Callable[[float], None] = time.sleep) -> None:
    """Wait for a daemon that has just started: what it has not done yet is no fault."""
    for _ in range(round(STARTING_SECONDS / _START_POLL_SECONDS)):
        try:
            reply = asked(config.daemon.socket_path, Message("ping"), PING_SECONDS)
            is_young = float(reply.fields.get("uptime_seconds", "inf")) < STARTING_SECONDS
        except (SlurmEnergyError, ValueError):
            return
        if not is_young or ("snapshot_age_seconds" in reply.fields and not _is_opening(config)):
            return
        pause(_START_POLL_SECONDS)


def _is_opening(config: Config) -> bool:
    """Return whether the daemon has no database yet; it tells root and SlurmUser alone."""
    try:
        store = _status(config).get("store", {"revision": "hidden"})
    except SlurmEnergyError:
        return True
    return not isinstance(store, dict) or not store.get("revision") or bool(store.get("problem"))


def _socket(situation: HostFacts) -> Iterator[Finding]:
    config = situation.config
    path = Path(config.daemon.socket_path)
    try:
        status = path.stat()
    except OSError as error:
        yield fail("socket", f"{path}: {error.strerror}", START)
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield fail("socket", f"{path} is not a socket", f"move it away, then {START}")
        return
    if status.st_mode & 0o666 != 0o666:
        text = f"{path} has mode {stat.S_IMODE(status.st_mode):04o}"
        yield warn("socket", text, "users get no explanations unless daemon.socket_mode is 0o666")
    else:
        yield ok("socket", f"{path}, mode {stat.S_IMODE(status.st_mode):04o}")
    yield from _ping(config)
    yield _slurmctld_reaches(situation)
    yield from _told_by_the_daemon(config)


def _slurmctld_reaches(situation: HostFacts) -> Finding:
    """Return whether slurmctld's user gets to the daemon, which needs rights on every folder above the socket."""
    subject, path = "slurmctld to daemon", situation.config.daemon.plugin_socket_path
    name = situation.conf.get("slurmuser", "").partition("(")[0] or situation.config.cluster.slurm_user
    user = service_user(name)
    if user is None or not user.can_be_asked:
        return skip(subject, f"only root may ask as {name}", AS_ROOT)

    def question() -> str:
        # Not a decision, which would be recorded: that another verb is refused shows who listens there.
        reply = exchange(Path(path), Message("ping"), PING_SECONDS)
        return "" if reply.verb == "refused" else f"the daemon answers with {reply.verb}"

    answer = user.ask(question)
    if answer:
        fix = f'chmod 755 {Path(path).parent}; [cluster] slurm_user = "{user.name}"; systemctl restart slurm-energyd'
        return fail(subject, f"slurmctld asks as {user.name} at {path}: {answer}", fix)
    return ok(subject, f"{user.name} gets to {path}")


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


def _told_by_the_daemon(config: Config) -> Iterator[Finding]:
    """Yield what only the running daemon knows; it tells root and SlurmUser alone."""
    try:
        document = _status(config)
    except SlurmEnergyError as error:
        yield skip("daemon's status", str(error), START)
        return
    if "store" not in document:
        yield skip("daemon's status", "it shows an ordinary user little", AS_ROOT)
        return
    store = document["store"]
    trouble = (store.get("error") or store.get("problem")) if isinstance(store, dict) else None
    if trouble:
        yield fail("daemon's database", str(trouble), "see `database` here, then journalctl -u slurm-energyd")
    yield journal_finding(lambda: _journal_bytes(config))
    daemon = document.get("daemon")
    daemon = daemon if isinstance(daemon, dict) else {}
    if daemon.get("journal_dropped"):
        yield warn(
            "journal",
            f"{daemon['journal_dropped']} decisions were lost while the disk was full",
            f"make room in {config.daemon.state_directory}, then systemctl restart slurm-energyd",
        )
    yield _reader_finding(config, daemon)
    yield _skipped_rows(daemon.get("snapshot_rows_skipped"))
    yield from waiting_job_findings(config, daemon)


def _reader_finding(config: Config, daemon: dict[str, Any]) -> Finding:
    """Return how Slurm is read, and why not in another way."""
    subject, reader, note = "reader of Slurm", daemon.get("reader") or "none yet", daemon.get("reader_note")
    if note:
        fix = "take pyslurm of Slurm's own series, start slurmrestd, or set cluster.reader = 'commands'"
        return warn(subject, f"{reader}: {note}", fix)
    if config.cluster.reader != "auto":
        return ok(subject, f"{reader}, as cluster.reader says")
    if reader == "pyslurm":
        return ok(subject, "pyslurm")
    missing = "pyslurm is not installed in the daemon's environment"
    if reader == "commands":
        missing += "; cluster.slurmrestd_url is not set"
    return ok(subject, f"{reader}: {missing}")


def waiting_job_findings(config: Config, daemon: dict[str, Any]) -> Iterator[Finding]:
    """Yield whether waiting jobs are decided again where the site wants it."""
    subject, wanted = "waiting jobs", config.routing.redecide
    if wanted == "off":
        return
    if daemon.get("redecide_note"):
        yield warn(
            subject,
            f"routing.redecide is {wanted}, but {daemon['redecide_note']}",
            "run slurm-energyd as SlurmUser (User= of its unit), or set routing.redecide = 'clock' or 'off'",
        )
    else:
        yield ok(subject, f"decided again ({wanted}), {daemon.get('tracked_jobs', 0)} of them known")
    if not config.daemon.report_host:
        yield warn(
            subject,
            "nodes cannot fetch the newest clock: daemon.report_host is empty, the one of the submission holds",
            "set daemon.report_host and node.daemon_address",
        )


def _status(config: Config) -> dict[str, Any]:
    request = Message("query", {"what": "status"})
    return json_document(asked(config.daemon.socket_path, request, STATUS_SECONDS))


def _journal_bytes(config: Config) -> int | None:
    try:
        found = _status(config)["daemon"]["journal_waiting_bytes_on_disk"]
    except (SlurmEnergyError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _skipped_rows(skipped: object) -> Finding:
    """Return whether all that Slurm answered could be read: what could not is missing from each decision."""
    subject = "rows of Slurm"
    if not isinstance(skipped, dict) or not skipped:
        return ok(subject, "every node, partition and job could be read")
    words = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
    fix = (
        "look at the GRES, State and names of these rows with scontrol show node and show partition; "
        "if Slurm takes them, report it as a fault of slurm-energy"
    )
    verdict = warn if all(str(reason).startswith("job") for reason in skipped) else fail
    return verdict(subject, f"not read, so unknown to every decision: {words}", fix)


def _policy_process(condition: str) -> Finding:
    if condition == "ready":
        return ok("policy process", condition)
    return warn("policy process", condition, "see journalctl -u slurm-energyd; one that loads is ready in some seconds")


def _snapshot(config: Config, age_text: str | None) -> Finding:
    fix = "see journalctl -u slurm-energyd: squeue or sinfo fail or are too slow for it"
    try:
        age = float(age_text or "")
    except ValueError:
        return fail("cluster snapshot", "there is none yet: jobs go through unchanged", fix)
    limit = config.daemon.snapshot_max_age_seconds
    if age > limit:
        return fail("cluster snapshot", f"{age:.0f} s old, over {limit:g} s it is not used", fix)
    return ok("cluster snapshot", f"{age:.1f} s old")


def _port(subject: str, address: tuple[str, int], host: str) -> Finding:
    if not host:
        return skip(
            subject,
            "daemon.report_host is empty: the daemon takes no reports from nodes",
            'report_host = "0.0.0.0" under [daemon], then systemctl restart slurm-energyd',
        )
    target = host if host not in {"0.0.0.0", "::", "*"} else address[0]  # noqa: S104  # a comparison, nothing is bound
    return _connects(subject, (target, address[1]), START)


def _connects(subject: str, address: tuple[str, int], fix: str) -> Finding:
    where = f"{address[0]} port {address[1]}"
    try:
        with socket.create_connection(address, timeout=PING_SECONDS):
            return ok(subject, f"{where} answers")
    except OSError as error:
        return fail(subject, f"{where}: {error.strerror or error}", fix)


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
        fix = "start slurm-energyd there, and let the port through the firewall"
        yield _connects("daemon's address", address, fix)


def _learned_policy(config: Config) -> Finding:
    """Return whether what a learned policy needs is there; a site that has chosen another one may lack it."""
    subject, missing = "learned policy", missing_modules()
    choice = chosen_policy(config)
    if config.policy.name == AUTOMATIC and not missing and choice.note:
        return warn(subject, choice.note, "fix that, or set policy.name")
    fault = _checkpoint_fault(config) if config.policy.name in LEARNED and not missing else None
    if fault:
        return fail(subject, fault, "fix that, or choose another policy.name")
    if not missing:
        return ok(subject, f"torch is installed, policy.name {config.policy.name}")
    text = f"{', '.join(missing)} not installed"
    fix = f"{INSTALL} into the daemon's environment, then systemctl reload slurm-energyd"
    if config.policy.name == AUTOMATIC:
        return warn(subject, f"{text}: policy {config.policy.baseline} decides", fix)
    if config.policy.name in LEARNED:
        return fail(subject, f"{text}: policy {config.policy.name} cannot be loaded", fix)
    return ok(subject, f"{text}, and policy {config.policy.name} needs none of it")


def _checkpoint_fault(config: Config) -> str:
    """Return what is wrong with the checkpoint's files for the daemon's user, or for this one where root is needed."""
    user = service_user(config.cluster.slurm_user)
    if user is None or not user.can_be_asked:
        return next(learned_faults(config), "")
    return user.ask(lambda: next(learned_faults(config), ""))


def _authentication(situation: HostFacts) -> Finding:
    if situation.config.node.authentication == "hmac":
        return _key(Path(situation.config.node.hmac_key_path), situation)
    made = run_command(["munge", "--no-input"])
    if not made.ok:
        fix = "systemctl start munge; the same munge.key on every host"
        return fail("munge", made.complaint or "no credential", fix)
    return ok("munge", "makes credentials")


def _delivery(situation: HostFacts) -> Finding:
    """Return whether the daemon accepts the messages of this node: the one test of key, clock and address together."""
    subject = "delivery"
    if os.geteuid() != 0:
        return skip(subject, "only root may send as the hooks do", AS_ROOT)
    if not situation.config.node.daemon_address:
        return skip(subject, "node.daemon_address is empty", "see daemon's address")
    from slurm_energy.node.commands import deliver_status  # noqa: PLC0415  # what flush itself does

    try:
        deliver_status(situation.environment)
    except SlurmEnergyError as error:
        return fail(subject, f"the daemon did not accept a message from this host: {error}", delivery_fix(str(error)))
    return ok(subject, "the daemon accepts the messages of this node")


def delivery_fix(reason: str) -> str:
    """Return what helps when a message of a node was not authenticated."""
    for word, fix in _DELIVERY_FIXES.items():
        if word in reason:
            return fix
    return "slurm-energy-hook flush (as root, on the node) says more"


def _key(path: Path, situation: HostFacts) -> Finding:
    if not (situation.is_controller or situation.is_node):
        return ok("report key", "not needed on a login host")
    try:
        status = path.stat()
    except OSError as error:
        fix = f"head -c 64 /dev/urandom > {path}; chmod 600 {path}; the same file on every host"
        return fail("report key", f"{path}: {error.strerror}", fix)
    if status.st_mode & 0o007:
        return fail("report key", f"{path} is open to all users", f"chmod 640 {path}, and make a new key")
    if status.st_size < 32:
        return fail("report key", f"{path} has {status.st_size} bytes, 32 are needed", "make a longer one")
    return ok("report key", f"{path}, {status.st_size} bytes")


def service(unit: str, fix: str) -> Finding:
    """Return whether a systemd unit is active."""
    result = run_command(["systemctl", "is-active", unit])
    state = result.stdout.strip()
    if not state or "not been booted" in result.complaint:
        return skip(
            unit, result.complaint or "systemd does not run here", "see that this host starts it in its own way"
        )
    if state in {"active", "activating"}:
        return ok(unit, state)
    return fail(unit, state, fix)
