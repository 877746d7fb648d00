"""Every command, run by an ordinary user, in every state that its files can be in: never a traceback.

The short form takes with each state every ninth command, with the next state the next ninth, and with files in order
all of them; SLURM_ENERGY_TRIAL=long takes every command in every state.
"""

import os
import shutil
import socket
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from ordinary_user import OrdinaryUser

from slurm_energy.cli import reference
from slurm_energy.cli.main import cli

WORDS: dict[str, tuple[str, ...]] = {
    "arena run": ("--world", "nonesuch"),
    "bench decision": ("--decisions", "0", "--seconds", "0", "--checkpoint", "/nonexistent"),
    "calibrate": ("--data", "/nonexistent"),
    "config check": ("{config}",),
    "database backup": ("/nonexistent/copy.sqlite",),
    "database prune": ("--before", "1d", "--dry-run"),
    "explain": ("7",),
    "lab demo": (),
    "report job": ("7",),
    "train": ("--world", "nonesuch"),
    "twin replay": ("--sacct", "{config}"),
    "twin workload": ("--world", "nonesuch"),
}
"""Words behind a command that needs some; any other is run bare, a new one, too."""
OTHERS = (
    ("slurm-energyd",),
    ("slurm-energyd", "--check-config"),
    ("energy-sbatch", "/nonexistent.sh"),
    ("energy-sbatch", "--energy=saver", "/nonexistent.sh"),
    ("energy-sbatch", "--energy-dry-run", "/nonexistent.sh"),
    ("slurm-energy-hook", "repair"),
    ("slurm-energy-hook", "flush"),
    ("slurm-energy-hook", "prolog"),
    ("slurm-energy-hook", "nonsense"),
)
READS_DATABASE = {"report job", "report jobs", "report users", "report partitions", "report cluster", "database status"}
ASKS_DAEMON = {"status", "decisions"}
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can close a file to another user")


@dataclass
class Files:
    """One user's view: a folder with settings, a database and a socket, in order until a state breaks something."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    stdout: str = "kept"
    cwd: str = "/"
    opened: list[Any] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "etc" / "slurm-energy.toml"

    @property
    def database(self) -> Path:
        return self.folder / "lib" / "energy.sqlite"

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "d.sock"

    @property
    def spool(self) -> Path:
        return self.folder / "spool"


def files_in_order(folder: Path) -> Files:
    for name in ("etc", "lib", "run", "spool", "home", "bin"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o777)
    folder.chmod(0o755)
    files = Files(folder)
    files.config.write_text(
        f'[cluster]\nslurm_bin_directory = "{folder}/bin"\nslurm_conf = "{folder}/etc/slurm.conf"\n'
        f'[daemon]\nsocket_path = "{files.socket}"\nreport_host = "127.0.0.1"\nreport_port = 1\n'
        f'state_directory = "{folder}/lib"\n[store]\nurl = "sqlite:///{files.database}"\nbusy_timeout_seconds = 0.5\n'
        f'[node]\nspool_directory = "{files.spool}"\nlog_path = "{folder}/hook.log"\n'
        f'daemon_address = "127.0.0.1:1"\nauthentication = "hmac"\nhmac_key_path = "{folder}/etc/key"\n'
        '[policy]\nname = "oracle"\n'
    )
    files.env = {
        "SLURM_ENERGY_CONFIG": str(files.config),
        "HOME": str(folder / "home"),
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "SLURM_ENERGY_LAB_ROOT": str(folder / "home" / "labs"),
        "TMPDIR": str(folder / "home"),
    }
    return files


State = Callable[[Files], None]
Line = tuple[str, list[str]]
"""A command by its name, and what is typed."""


def as_it_should_be(files: Files) -> None:
    _database(files)


def config_missing(files: Files) -> None:
    files.config.unlink()


def config_closed(files: Files) -> None:
    files.config.chmod(0o000)


def config_folder_closed(files: Files) -> None:
    files.config.parent.chmod(0o700)


def config_not_toml(files: Files) -> None:
    files.config.write_bytes(b"[cluster\n\xff\xfe name = \x00")


def config_empty_name(files: Files) -> None:
    files.config.write_text('[cluster]\nname = 7\n[nonsense]\n"\\u001b[31m" = 1\n')


def config_a_folder(files: Files) -> None:
    files.config.unlink()
    files.config.mkdir()


def config_a_loop(files: Files) -> None:
    files.config.unlink()
    files.config.symlink_to(files.config.name)


def _database(files: Files) -> None:
    from slurm_energy.config import StoreConfig
    from slurm_energy.store.schema import upgrade
    from slurm_energy.store.session import open_engine

    engine = open_engine(StoreConfig(url=f"sqlite:///{files.database}"))
    upgrade(engine)
    engine.dispose()
    files.database.chmod(0o644)


def database_closed(files: Files) -> None:
    _database(files)
    files.database.chmod(0o000)


def database_folder_closed(files: Files) -> None:
    _database(files)
    files.database.parent.chmod(0o700)


def database_read_only(files: Files) -> None:
    _database(files)
    files.database.chmod(0o444)
    files.database.parent.chmod(0o755)


def database_no_sqlite(files: Files) -> None:
    files.database.write_bytes(b"this is no database, and longer than a page " * 200)


def database_empty(files: Files) -> None:
    files.database.touch()


def database_a_folder(files: Files) -> None:
    files.database.mkdir()


def database_older(files: Files) -> None:
    _database(files)
    with sqlite3.connect(files.database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()


def database_locked(files: Files) -> None:
    _database(files)
    connection = sqlite3.connect(files.database, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("BEGIN EXCLUSIVE")
    files.opened.append(connection)


def database_of_another_kind(files: Files) -> None:
    files.env["SLURM_ENERGY_STORE_URL"] = "postgresql+psycopg://energy:secret@127.0.0.1:1/energy"


def _listening(files: Files, mode: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(files.socket))
    listening.listen(64)
    files.socket.chmod(mode)
    files.opened.append(listening)
    return listening


def socket_closed(files: Files) -> None:
    _listening(files, 0o000)


def socket_folder_closed(files: Files) -> None:
    _listening(files, 0o666)
    files.socket.parent.chmod(0o700)


def socket_hangs(files: Files) -> None:
    _listening(files, 0o666)


def socket_dead(files: Files) -> None:
    _listening(files, 0o666).close()


def socket_a_file(files: Files) -> None:
    files.socket.write_text("no socket")


def spool_closed(files: Files) -> None:
    files.spool.chmod(0o700)


def spool_a_file(files: Files) -> None:
    files.spool.rmdir()
    files.spool.write_text("no folder")


def home_missing(files: Files) -> None:
    del files.env["HOME"]


def home_of_nobody(files: Files) -> None:
    files.env["HOME"] = "/nonexistent"


def terminal_of_20_columns(files: Files) -> None:
    files.env |= {"COLUMNS": "20", "LINES": "5", "TERM": "dumb"}


def locale_c(files: Files) -> None:
    files.env |= {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


def locale_latin(files: Files) -> None:
    files.env |= {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONIOENCODING": "latin-1"}


def reader_gone(files: Files) -> None:
    files.stdout = "reader-gone"


def output_closed(files: Files) -> None:
    files.stdout = "closed"


def output_full(files: Files) -> None:
    files.stdout = "full"


def folder_closed(files: Files) -> None:
    (files.folder / "private").mkdir(mode=0o700)
    files.cwd = str(files.folder / "private")


def slurm_missing(files: Files) -> None:
    files.env["PATH"] = str(files.folder / "bin")


def slurm_hostile(files: Files) -> None:
    for name in ("scontrol", "sinfo", "squeue", "sbatch", "munge", "systemctl"):
        script = files.folder / "bin" / name
        script.write_text("#!/bin/sh\nprintf '\\377\\033[31m{\"nodes\": NaN\\n' \nexit 1\n")
        script.chmod(0o755)


def environment_hostile(files: Files) -> None:
    files.env |= {"SLURM_ENERGY_NODE_TIME_SCALE": "nan", "SLURM_CONF": "\udcff/\n", "COLUMNS": "many"}


STATES: tuple[State, ...] = (
    as_it_should_be, config_missing, config_closed, config_folder_closed, config_not_toml, config_empty_name,
    config_a_folder, config_a_loop, database_closed, database_folder_closed, database_read_only, database_no_sqlite,
    database_empty, database_a_folder, database_older, database_locked, database_of_another_kind, socket_closed,
    socket_folder_closed, socket_hangs, socket_dead, socket_a_file, spool_closed, spool_a_file, home_missing,
    home_of_nobody, terminal_of_20_columns, locale_c, locale_latin, reader_gone, output_closed, output_full,
    folder_closed, slurm_missing, slurm_hostile, environment_hostile,
)  # fmt: skip
NEEDS_ROOT = {
    config_closed, config_folder_closed, database_closed, database_folder_closed, database_read_only, socket_closed,
    socket_folder_closed, spool_closed, folder_closed,
}  # fmt: skip
CHANGES_HELP = {
    config_closed, terminal_of_20_columns, locale_c, reader_gone, output_closed, output_full,
    folder_closed,
}  # fmt: skip
LONG = os.environ.get("SLURM_ENERGY_TRIAL") == "long"
SHARE = 9
"""One command of so many is run with each state in the short form."""


def leaves() -> list[str]:
    """Return every command that does something, by its words."""
    return [
        " ".join(path[1:])
        for path, command in reference.walk(cli, ("slurm-energy",))
        if not isinstance(command, click.Group)
    ]


def in_short_form(number: int, lines: Sequence[Line]) -> list[Line]:
    """Return the lines that the state of this number takes: all of the first one, a share of the others."""
    return list(lines) if number == 0 else list(lines[number % SHARE :: SHARE])


def command_lines(files: Files, *, helps: bool) -> Iterator[Line]:
    for words in leaves():
        more = [word.format(config=files.config) for word in WORDS.get(words, ())]
        yield words, ["slurm-energy", *words.split(), *more]
        if helps:
            yield f"{words} --help", ["slurm-energy", *words.split(), "--help"]
    for argv in OTHERS:
        yield " ".join(argv), list(argv)


@pytest.fixture(scope="module")
def user() -> Iterator[OrdinaryUser]:
    """Return who runs the commands."""
    with OrdinaryUser() as ready:
        yield ready


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user can reach, which pytest's own are not."""
    place = Path(tempfile.mkdtemp(prefix="slurm-energy-user-"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_no_command_leaves_an_ordinary_user_with_a_traceback(folder: Path, user: OrdinaryUser, state: State) -> None:
    if state in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("only root can close a file to another user")
    files = files_in_order(folder)
    state(files)
    lines = list(command_lines(files, helps=state in CHANGES_HELP))
    lines = lines if LONG else in_short_form(STATES.index(state), lines)
    results = user.run({"argv": argv, "env": files.env, "cwd": files.cwd, "stdout": files.stdout} for _, argv in lines)
    for opened in files.opened:
        opened.close()
    faults = []
    for (name, _argv), result in zip(lines, results, strict=True):
        said = result["out"] + result["err"]
        if result["code"] not in (0, 1, 2):
            faults.append(f"{name}: exit code {result['code']}: {said[-600:]}")
        elif "Traceback" in said or "Exception ignored" in said or "internal error" in said:
            faults.append(f"{name}: {said[-900:]}")
        elif result["code"] and not said.strip() and files.stdout == "kept":
            faults.append(f"{name}: exit code {result['code']} without a word")
    assert not faults, "\n\n".join(faults)
    assert len(results) == len(lines)


def test_the_short_form_takes_every_command_with_a_ninth_of_the_states(folder: Path) -> None:
    lines = list(command_lines(files_in_order(folder), helps=False))
    counts = Counter(name for number in range(len(STATES)) for name, _ in in_short_form(number, lines))
    assert in_short_form(0, lines) == lines
    assert set(counts) == {name for name, _ in lines}
    assert min(counts.values()) >= len(STATES) // SHARE


@pytest.mark.parametrize(
    ("state", "commands", "names", "next_step"),
    [
        pytest.param(config_missing, ASKS_DAEMON, "{config}", "SLURM_ENERGY_CONFIG", id="config_missing"),
        pytest.param(config_closed, ASKS_DAEMON, "{config}", "chmod", id="config_closed", marks=ROOT),
        pytest.param(config_folder_closed, ASKS_DAEMON, "{config}", "chmod", id="config_folder_closed", marks=ROOT),
        pytest.param(config_not_toml, ASKS_DAEMON, "{config}", "config check", id="config_not_toml"),
        pytest.param(config_a_folder, ASKS_DAEMON, "{config}", "a folder", id="config_a_folder"),
        pytest.param(socket_closed, ASKS_DAEMON, "{socket}", "daemon.socket_mode", id="socket_closed", marks=ROOT),
        pytest.param(socket_hangs, ASKS_DAEMON, "{socket}", "journalctl", id="socket_hangs"),
        pytest.param(socket_dead, ASKS_DAEMON, "{socket}", "slurm-energyd running", id="socket_dead"),
        pytest.param(database_closed, READS_DATABASE, "{database}", "slurm-energyd", id="db_closed", marks=ROOT),
        pytest.param(database_no_sqlite, READS_DATABASE, "{database}", "no SQLite database", id="db_no_sqlite"),
        pytest.param(database_older, READS_DATABASE, "0001", "slurm-energy database upgrade", id="db_older"),
        pytest.param(database_locked, READS_DATABASE, "{database}", "try again", id="db_locked"),
    ],
)
def test_the_message_names_the_thing_and_the_next_step(
    folder: Path, user: OrdinaryUser, state: State, commands: set[str], names: str, next_step: str
) -> None:
    files = files_in_order(folder)
    state(files)
    lines = [(name, argv) for name, argv in command_lines(files, helps=False) if name in commands]
    results = user.run({"argv": argv, "env": files.env, "cwd": files.cwd, "stdout": files.stdout} for _, argv in lines)
    for opened in files.opened:
        opened.close()
    thing = names.format(config=files.config, socket=files.socket, database=files.database)
    for (name, _argv), result in zip(lines, results, strict=True):
        assert result["code"] == 1, (name, result)
        said = result["out"] + result["err"]
        assert thing in said, (name, said)
        assert next_step in said, (name, said)


def test_the_runner_itself_shows_a_traceback_where_there_is_one(user: OrdinaryUser) -> None:
    wrong, broken = user.run(
        [
            {"argv": ["slurm-energy", "--nonsense"], "env": {}},
            {"argv": ["slurm-energy", "--traceback", "--config", "/nonexistent.toml", "status"], "env": {}},
        ]
    )
    assert (wrong["code"], "No such option" in wrong["err"]) == (2, True)
    assert (broken["code"], "Traceback" in broken["err"]) == (98, True)
