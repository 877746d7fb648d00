"""What the daemon reads and writes: settings, state folder, journal, database.

Asked as the user that the daemon runs as: root may open what the service may not.
"""

import os
import pwd
import select
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, skip, warn
from slurm_energy.cli.records import sqlite_path
from slurm_energy.config import Config
from slurm_energy.errors import SchemaVersionError, SlurmEnergyError

ANSWER_SECONDS = 20.0
MAX_ANSWER_BYTES = 65_536
AS_ROOT = "run doctor as root"
LOCK_SECONDS = 5.0
DRAIN_SECONDS = 6.0
_DRAIN_POLL_SECONDS = 0.5
REJECTED_NAME = "rejected.jsonl"
_READ_FIX = "chmod 644 it: the daemon must read it, and users may"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUser:
    """An account that a service runs as."""

    name: str
    user_id: int
    group_id: int

    @property
    def can_be_asked(self) -> bool:
        """Whether this process may ask as this user: it is root, or the user itself."""
        return os.geteuid() in (0, self.user_id)

    def ask(self, question: Callable[[], str]) -> str:
        """Return what a question answers when it is asked as this user, in a process of its own.

        The question returns nothing when all is well, and what is wrong in words otherwise; an OSError or an error of
        this package is an answer as well. One that hangs is ended, and that is the answer.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _answer(self, question, writer)
        os.close(writer)
        try:
            answer = _read(reader)
        finally:
            os.close(reader)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if not answer:
            return f"no answer within {ANSWER_SECONDS:g} s: a file system that hangs?"
        return answer[1:]


def service_user(name: str) -> ServiceUser | None:
    """Return an account by name or number, None when there is none."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        return None
    return ServiceUser(name=entry.pw_name, user_id=entry.pw_uid, group_id=entry.pw_gid)


def _answer(user: ServiceUser, question: Callable[[], str], writer: int) -> None:
    """Be the child: become the user, answer, and leave without Python's own end."""
    text = "it could not be asked"
    try:
        if os.geteuid() != user.user_id:
            os.setgroups(os.getgrouplist(user.name, user.group_id))
            os.setresgid(user.group_id, user.group_id, user.group_id)
            os.setresuid(user.user_id, user.user_id, user.user_id)
        text = question()
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    except SlurmEnergyError as error:
        text = str(error)
    except Exception as error:  # noqa: BLE001  # the child must answer whatever happens: silence would mean a hang
        text = f"{type(error).__name__}: {error}"
    finally:
        with suppress(OSError):
            os.write(writer, b"=" + text.encode("utf-8", "replace")[:MAX_ANSWER_BYTES])
        os._exit(0)


def _read(reader: int) -> str:
    end = time.monotonic() + ANSWER_SECONDS
    answer = b""
    while (left := end - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        chunk = os.read(reader, MAX_ANSWER_BYTES + 1)
        if not chunk:
            break
        answer += chunk
    return answer.decode("utf-8", "replace")


def storage_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield whether the daemon's user can use what the daemon needs."""
    config = situation.config
    user = service_user(config.cluster.slurm_user)
    if user is None:
        yield fail(
            "daemon's user",
            f"cluster.slurm_user is {config.cluster.slurm_user!r}, and this host has no such user",
            "set slurm_user under [cluster] in slurm-energy.toml to the SlurmUser of slurm.conf",
        )
        return
    yield _slurm_user(situation, user)
    yield _asked(
        user,
        "daemon's program",
        sys.executable,
        _program_fault,
        "install slurm-energy in a folder that every user may read",
    )
    yield _asked(user, "daemon's settings", str(situation.config_file), _readable(situation.config_file), _READ_FIX)
    yield _state_directory(config, user)
    yield _database(config, user)
    yield from _rejected(config)
    if config.node.authentication == "hmac":
        path = Path(config.node.hmac_key_path)
        fix = f"chgrp {_group(user)} {path}; chmod 640 {path}"
        yield _asked(user, "daemon's report key", f"{path} is open to {user.name}", _readable(path), fix)


def _slurm_user(situation: HostFacts, user: ServiceUser) -> Finding:
    """Return whether slurmctld asks as a user whom the daemon answers."""
    theirs = situation.conf.get("slurmuser", "").partition("(")[0]
    if theirs in ("", user.name, str(user.user_id), "root"):
        return ok("daemon's user", user.name)
    return fail(
        "daemon's user",
        f"cluster.slurm_user is {user.name}, slurmctld runs as {theirs}: its questions are refused",
        f'set slurm_user = "{theirs}" under [cluster] in slurm-energy.toml, install again, restart slurm-energyd',
    )


def _asked(user: ServiceUser, subject: str, good: str, question: Callable[[], str], fix: str) -> Finding:
    """Return what a question answers when the daemon's user asks it."""
    if not user.can_be_asked:
        return skip(subject, f"only root may ask as {user.name}", AS_ROOT)
    answer = user.ask(question)
    return fail(subject, f"{user.name} cannot use it: {answer}", fix) if answer else ok(subject, good)


def _program_fault() -> str:
    """Return what of this installation the asking user cannot read, nothing when he can run it."""
    for path in (sys.executable, __file__):
        if not os.access(path, os.R_OK):
            return f"{path}: Permission denied"
    return ""


def _readable(path: Path) -> Callable[[], str]:
    def question() -> str:
        try:
            with path.open("rb") as file:
                file.read(1)
        except FileNotFoundError:
            return ""
        return ""

    return question


def _state_directory(config: Config, user: ServiceUser) -> Finding:
    path, subject = Path(config.daemon.state_directory), "state directory"
    fix = f"chown -R {user.name}: {path}; chmod 750 {path}; systemctl restart slurm-energyd"
    try:
        status = path.stat()
    except PermissionError:
        return skip(subject, f"{path} is not open to this user", AS_ROOT)
    except OSError as error:
        return fail(subject, f"{path}: {error.strerror}", f"mkdir -p {path}; {fix}")
    if not stat.S_ISDIR(status.st_mode):
        return fail(subject, f"{path} is no folder", f"move it away; mkdir -p {path}; {fix}")
    if status.st_mode & 0o002:
        return fail(subject, f"every user may write to {path} (mode {status.st_mode & 0o7777:04o})", fix)
    found = _asked(user, subject, f"{path}, open to {user.name}", lambda: _not_ours(path), fix)
    if found.verdict == "ok" and status.st_uid != user.user_id:
        return warn(subject, f"{path} belongs to uid {status.st_uid}, the daemon runs as {user.name}", fix)
    return found


def _not_ours(folder: Path) -> str:
    """Return what of the state folder this process cannot write, nothing when it can write all."""
    for place in (folder, folder / "journal", folder / "nodes"):
        if place.is_dir():
            probe = place / f".doctor-{os.getpid()}"
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.close(descriptor)
            probe.unlink()
    files = [folder / "slurm-energyd.lock", *(folder / "journal").glob("*")]
    closed = [path for path in files if path.is_file() and not os.access(path, os.R_OK | os.W_OK)]
    return f"{closed[0]}: Permission denied" if closed else ""


def _database(config: Config, user: ServiceUser) -> Finding:
    subject, upgrade = "database", f"sudo -u {user.name} slurm-energy database upgrade"
    path = sqlite_path(config.store.url)
    try:
        missing = path is not None and not path.exists()
    except OSError:
        return skip(subject, f"{path} is not open to this user", AS_ROOT)
    if missing:
        return fail(subject, f"{path} does not exist", f"start slurm-energyd, or {upgrade}")
    if not user.can_be_asked:
        return skip(subject, f"only root may ask as {user.name}", AS_ROOT)
    answer = user.ask(lambda: _unusable(config, path))
    kind, _, words = answer.partition(":")
    if not answer:
        return ok(subject, f"{user.name} reads and writes it, its schema is this version's")
    if kind == "locked":
        return fail(subject, f"another process has held its lock for {LOCK_SECONDS:g} s", f"end it: fuser -v {path}")
    if kind == "schema":
        return fail(subject, words, f"systemctl stop slurm-energyd; {upgrade}; systemctl start slurm-energyd")
    if path is None:
        return fail(subject, f"{user.name} cannot use it: {answer}", "check store.url, and that the server runs")
    fix = f"chown {user.name}: {path}* {path.parent}; chmod 640 {path}; if it is damaged, restore a backup"
    return fail(subject, f"{path}: {user.name} cannot use it: {answer}", fix)


def _unusable(config: Config, path: Path | None) -> str:
    """Return why this process cannot read and write the database, with a kind in front where that matters."""
    from slurm_energy.cli.records import read_database  # noqa: PLC0415  # SQL only when it is needed

    if path is not None:
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=LOCK_SECONDS)) as connection:
                connection.isolation_level = None
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            if "locked" in str(error):
                return f"locked:{error}"
            return str(error)
    try:
        read_database(config.store, lambda _session: None)
    except SchemaVersionError as error:
        return f"schema:{error}"
    return ""


def _rejected(config: Config) -> Iterator[Finding]:
    path = Path(config.daemon.state_directory) / "journal" / REJECTED_NAME
    try:
        size = path.stat().st_size
    except OSError:
        return
    if size:
        yield warn(
            "entries set aside",
            f"{path} has {size} bytes that no database took",
            "report them as a fault of slurm-energy, then move the file away",
        )


def journal_finding(waiting_bytes: Callable[[], int | None], pause: Callable[[float], None] = time.sleep) -> Finding:
    """Return whether what waits on the disk gets into the database.

    Args:
        waiting_bytes: Asks the daemon how much waits; None: it does not tell.
        pause: Waits.
    """
    subject = "journal"
    first = left = waiting_bytes()
    waited = 0.0
    while left and waited < DRAIN_SECONDS and left >= (first or 0):
        pause(_DRAIN_POLL_SECONDS)
        waited += _DRAIN_POLL_SECONDS
        left = waiting_bytes()
    if left is None:
        return skip(subject, "the daemon does not tell what waits", "systemctl restart slurm-energyd")
    if not left:
        return ok(subject, "all of it is in the database")
    if left < (first or 0):
        return ok(subject, f"{left} bytes wait and get fewer")
    return fail(
        subject,
        f"{left} bytes of decisions and reports wait for the database and do not get fewer",
        "see `database` here, and journalctl -u slurm-energyd: it says why; nothing is lost while they wait",
    )


def _group(user: ServiceUser) -> int:
    return user.group_id
