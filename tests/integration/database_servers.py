"""Private database servers for tests: own data folder, Unix socket only, stopped by their own process id."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import create_engine, text

START_SECONDS = 90.0
MEMORY_BYTES = 1 << 30


class ServerMissing(Exception):
    """The server's programs are not installed."""


@dataclass(slots=True)
class Server:
    """A running server; `admin_url` and `template` lead to its databases through the socket."""

    process: subprocess.Popen[bytes]
    folder: Path
    admin_url: str
    template: str
    stop_signal: int
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def url(self, database: str) -> str:
        return self.template.format(database=database)

    def create_database(self) -> str:
        name = f"energy_test_{next(self.numbers)}"
        self._run(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        self._run(f"DROP DATABASE {name}")

    def dump(self, database: str) -> bytes:
        """Return what the server's own program writes as a backup, which drops each table before it makes it."""
        if self._is_postgresql:
            return self._command("pg_dump", "--clean", "--if-exists", *self._options, database)
        return self._command("mariadb-dump", *self._options, database)

    def restore(self, database: str, dump: bytes) -> None:
        """Read a backup into a database that may be in use."""
        if self._is_postgresql:
            more = ["--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction"]
            self._command("psql", *more, *self._options, database, given=dump)
        else:
            self._command("mariadb", *self._options, database, given=dump)

    @property
    def _is_postgresql(self) -> bool:
        return self.template.startswith("postgresql")

    @property
    def _options(self) -> list[str]:
        if self._is_postgresql:
            return [f"--host={self.folder}", "--username=energy"]
        return ["--no-defaults", f"--socket={self.folder / 's'}", "--user=root"]

    def _command(self, name: str, *arguments: str, given: bytes = b"") -> bytes:
        program = shutil.which(name)
        if program is None:
            raise ServerMissing(f"{name} is missing: apt-get install postgresql-client mariadb-client")
        done = subprocess.run([program, *arguments], input=given, capture_output=True, timeout=60, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout

    def _run(self, statement: str) -> None:
        engine = create_engine(self.admin_url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def wait_until_ready(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._run("SELECT 1")
                return
            except Exception as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the server did not start: {error}\n{tail}") from error
            time.sleep(0.1)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


Starter = Callable[[], Server]


def start_postgresql() -> Server:
    """Start PostgreSQL as the user `postgres` (it refuses root), without TCP."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = programs[-1].parent if programs else None
    if found is None:
        which = shutil.which("initdb")
        if which is None:
            raise ServerMissing("PostgreSQL's initdb is missing: apt-get install postgresql")
        found = Path(which).parent
    folder, user = _own_folder("postgres")
    data, log = folder / "data", folder / "log"
    _run_as(user, [str(found / "initdb"), "-D", str(data), "-U", "energy", "-A", "trust", "--no-sync", "-E", "UTF8"])
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    options += ["-c", "max_connections=120", "-c", "shared_buffers=32MB"]
    process = _start_as(user, [str(found / "postgres"), "-D", str(data), *options], log)
    template = f"postgresql+psycopg://energy@/{{database}}?host={quote(str(folder))}"
    server = Server(process, folder, template.format(database="postgres"), template, signal.SIGINT)
    server.wait_until_ready(log)
    return server


def start_mariadb() -> Server:
    """Start MariaDB as the user `nobody` (or this one), without TCP; the programs alone bring no user `mysql`."""
    daemon, install = _program("mariadbd", "/usr/sbin"), _program("mariadb-install-db", "/usr/bin")
    folder, user = _own_folder("nobody")
    data, log, socket = folder / "data", folder / "log", folder / "s"
    common = ["--no-defaults", f"--datadir={data}"]
    _run_as(user, [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"])
    options = [f"--socket={socket}", "--skip-networking", f"--pid-file={folder / 'pid'}", "--max-connections=120"]
    options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
    # As Debian ships it: what this package needs it must set by itself.
    options += ["--character-set-server=latin1"]
    process = _start_as(user, [daemon, *common, *options], log)
    template = f"mariadb+pymysql://root@localhost/{{database}}?unix_socket={quote(str(socket))}"
    server = Server(process, folder, template.format(database="mysql"), template, signal.SIGTERM)
    server.wait_until_ready(log)
    return server


def _program(name: str, usual: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=usual)
    if found is None:
        raise ServerMissing(f"MariaDB's {name} is missing: apt-get install mariadb-server-core")
    return found


def _own_folder(user_name: str) -> tuple[Path, pwd.struct_passwd]:
    """Return a short path (a socket's is at most 107 bytes) that belongs to the user the server runs as."""
    user = pwd.getpwnam(user_name) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    place = _place()
    for left in place.glob("energy-db-*-*"):  # of a test run that was killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"energy-db-{os.getpid()}-", dir=place))
    os.chown(folder, user.pw_uid, user.pw_gid)
    return folder, user


def _place() -> Path:
    """Return a folder in memory if there is room in it: a server that makes tables would wait for the disk."""
    memory = Path("/dev/shm")  # the databases are gone with the tests
    with suppress(OSError):
        found = os.statvfs(memory)
        if os.access(memory, os.W_OK | os.X_OK) and found.f_bavail * found.f_frsize > MEMORY_BYTES:
            return memory
    return Path("/tmp")


def _identity(user: pwd.struct_passwd) -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _run_as(user: pwd.struct_passwd, command: list[str]) -> None:
    done = subprocess.run(command, cwd="/", capture_output=True, timeout=120, check=False, **_identity(user))  # type: ignore[call-overload]  # keyword set depends on the user
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]!r} {done.stderr[-1000:]!r}")


def _start_as(user: pwd.struct_passwd, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # keyword set depends on the user
            # With the tests the server ends, even when they are killed.
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            **_identity(user),
        )
