"""The Lua fall-back, under Lua 5.1 with a stand-in for Slurm's own table."""

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_energy.wire.codec import Message, decode, encode

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "plugin/lua/job_submit.lua"
LUA = shutil.which("lua5.1")
PATIENT_SECONDS = 60.0
"""The script's own deadline, a twentieth of a second, is kept where it is what a test is about."""
Behaviour = Callable[[socket.socket], None]


def has_lua_socket() -> bool:
    command = [LUA or "", "-e", 'require "socket"; require "socket.unix"']
    return LUA is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not has_lua_socket(), reason="needs lua5.1 and lua-socket")


class Daemon:
    """Takes one connection after the other and lets `behave` speak to it."""

    def __init__(self, path: Path, behave: Behaviour) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self._behave = behave
        self._stopping = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        held = []
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                held.append(connection)
                raw = b""
                while not raw.endswith(b"\nend\n") and (more := connection.recv(65536)):
                    raw += more
                self.requests.append(raw)
                with contextlib.suppress(OSError):
                    self._behave(connection)
        for connection in held:
            connection.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()


Start = Callable[[Behaviour], Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    daemons: list[Daemon] = []

    def begin(behave: Behaviour) -> Daemon:
        daemons.append(Daemon(tmp_path / "energyd.sock", behave))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.stop()


UNTOLD = "ENFORCES_ALL_LIMITS,HAS_JOB_DEFAULTS,VALIDATES_PREFERENCES,HAS_PARTITION_ASSOCIATIONS"
"""What a site may say that Slurm does not tell a script."""


def submit(
    path: Path, job: str, times: int = 1, absent: str = UNTOLD, *, patient: bool = True
) -> list[tuple[str, ...]]:
    command = [LUA or "", str(HERE / "lua_driver.lua"), str(PLUGIN), str(path), job, str(times), absent]
    command += [str(PATIENT_SECONDS)] if patient else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def answer(**fields: str) -> Behaviour:
    raw = encode(Message("ok", {"decision_id": "abcdefgh1", **fields}))

    def behave(connection: socket.socket) -> None:
        connection.sendall(raw)

    return behave


def test_partition_comment_and_message_are_applied(
    start: Start,
) -> None:
    daemon = start(answer(partition="a40", admin_comment="energy:abcdefgh1", message="13 % less"))
    assert submit(daemon.path, "plain") == [
        ("user", "energy: 13 % less"),
        ("rc", "0"),
        ("partition", "a40,a100"),
        ("admin_comment", "seen; energy:abcdefgh1"),
        ("modify", "0"),
    ]
    fields = decode(daemon.requests[0]).fields
    assert fields["name"] == 'a"b\n%41\udcff'
    assert fields["uid"] == "5"
    assert fields["time_limit"] == "90"
    assert fields["energy_mode"] == "saver"
    assert not {"time_min", "ntasks_per_node", "interactive"} & fields.keys()


def test_without_a_terminal_nothing_is_said(start: Start) -> None:
    daemon = start(answer(partition="a40", message="13 % less"))
    lines = submit(daemon.path, "piped")
    assert ("partition", "a40,a100") in lines
    assert not [line for line in lines if line[0] == "user"]
    assert "energy_explain" not in decode(daemon.requests[0]).fields
    assert ("user", "energy: 13 % less") in submit(daemon.path, "explained")
    assert decode(daemon.requests[1]).fields["energy_explain"] == "1"


def test_features_of_a_script_are_sent_in_their_form_alone(start: Start) -> None:
    daemon = start(answer(partition="a40"))
    submit(daemon.path, "explained")
    assert decode(daemon.requests[0]).fields["script"] == "v=1;model=bert"


def test_a_partition_outside_the_users_list_is_not_applied(
    start: Start,
) -> None:
    daemon = start(answer(partition="a40,v100", admin_comment="energy:abcdefgh1", message="v100 first"))
    lines = submit(daemon.path, "plain")
    assert ("partition", "a100,a40") in lines
    assert ("admin_comment", "seen; energy:abcdefgh1 partition-kept") in lines
    assert not any(line[0] == "user" for line in lines)


@pytest.mark.parametrize(
    ("own", "named", "then"),
    [
        ("a100,a40,v100", "v100", "v100,a100,a40"),
        ("a100,a40", "a100", "a100,a40"),
        ("short,a40", "a40", "a40,short"),
        ("a100,short", "short", "a100,short"),
        ("a100,small", "small", "a100,small"),
        ("a100,drained", "drained", "a100,drained"),
        ("a100,a40,drained", "a40", "a40,a100,drained"),
        ("drained,a40", "a40", "drained,a40"),
        ("high,a40", "a40", "high,a40"),
        ("a40,high", "high", "high,a40"),
        ("a100,limited", "limited", "a100,limited"),
        ("limited,a100", "a100", "limited,a100"),
        ("a100,a40,reserved", "a40", "a100,a40,reserved"),
        ("a100,closed", "a100", "a100,closed"),
        ("a100,a40,closed", "a40", "a100,a40,closed"),
        ("a100,whole", "whole", "whole,a100"),
    ],
)
def test_an_answer_goes_first_where_slurm_takes_the_list_all_the_same(
    start: Start, own: str, named: str, then: str
) -> None:
    daemon = start(answer(partition=named))
    assert ("partition", then) in submit(daemon.path, own)


def test_a_job_without_a_time_limit_is_not_put_where_there_is_one(start: Start) -> None:
    daemon = start(answer(partition="two_hours"))
    assert ("partition", "two_hours,a100") in submit(daemon.path, "a100,two_hours")
    assert ("partition", "a100,two_hours") in submit(daemon.path, "unlimited")


def test_as_it_is_shipped_the_last_partition_stays_the_last_and_none_is_added(start: Start) -> None:
    daemon = start(answer(partition="a40"))
    assert ("partition", "a100,a40") in submit(daemon.path, "a100,a40", absent="")
    assert ("partition", "a40,a100,v100") in submit(daemon.path, "a100,a40,v100", absent="")
    assert ("partition", "nil") in submit(daemon.path, "empty", absent="")


@pytest.mark.parametrize("named", ["drained", "short", "high", "limited", "reserved", "closed", "whole"])
def test_a_partition_unlike_the_default_one_is_not_added(start: Start, named: str) -> None:
    daemon = start(answer(partition=named))
    assert ("partition", "nil") in submit(daemon.path, "empty")


def test_the_line_for_a_job_that_stays_is_told_where_it_stays(start: Start) -> None:
    daemon = start(answer(partition="drained", message="drained first", message_in_place="13 % less"))
    assert ("user", "energy: 13 % less") in submit(daemon.path, "a100,drained")


def preferred(lines: list[tuple[str, ...]]) -> str | None:
    return next((line[1] for line in lines if line[0] == "prefer"), None)


def test_a_feature_is_preferred_where_the_user_said_nothing_of_the_nodes(start: Start) -> None:
    daemon = start(answer(prefer="rack:3"))
    assert preferred(submit(daemon.path, "hinted")) == "rack:3"


@pytest.mark.parametrize(
    "job", ["constrained", "immediate", "excluding", "named", "reserved", "threaded", "component", "raising"]
)
def test_no_feature_is_preferred_where_he_did_or_slurm_does_not_tell(start: Start, job: str) -> None:
    daemon = start(answer(prefer="rack:3"))
    assert preferred(submit(daemon.path, job)) is None


def test_no_feature_is_preferred_where_slurm_may_refuse_the_job_for_it(start: Start) -> None:
    daemon = start(answer(prefer="rack:3"))
    known = UNTOLD.replace("VALIDATES_PREFERENCES,", "")
    assert preferred(submit(daemon.path, "hinted", absent=known)) is None


def test_a_job_with_gpus_keeps_its_partitions_where_they_may_have_job_defaults(start: Start) -> None:
    daemon = start(answer(partition="a40"))
    known = UNTOLD.replace("HAS_JOB_DEFAULTS,", "")
    assert ("partition", "a100,a40") in submit(daemon.path, "plain", absent=known)
    assert ("partition", "a40,a100") in submit(daemon.path, "a100,a40", absent=known)


def test_the_users_own_preference_stands_and_is_sent(start: Start) -> None:
    daemon = start(answer(prefer="rack:3"))
    assert preferred(submit(daemon.path, "preferring")) == "mine"
    assert decode(daemon.requests[0]).fields["prefer"] == "mine"


def test_no_feature_of_a_partition_that_was_not_applied_is_preferred(start: Start) -> None:
    daemon = start(answer(prefer="rack:3", partition="v100"))
    assert preferred(submit(daemon.path, "plain")) is None


@pytest.mark.parametrize("feature", ["a&b", "a*2", "a b", "x" * 65])
def test_more_than_one_feature_is_not_preferred(start: Start, feature: str) -> None:
    daemon = start(answer(prefer=feature))
    assert preferred(submit(daemon.path, "hinted")) is None


@pytest.mark.parametrize(("job", "partition"), [("empty", "a40,a100"), ("raising", "a40,a100")])
def test_missing_fields_and_fields_that_raise_are_borne(start: Start, job: str, partition: str) -> None:
    daemon = start(answer(partition="a40"))
    assert ("partition", partition) in submit(daemon.path, job)
    assert decode(daemon.requests[0]).fields["uid"] == "1000"


def wait(connection: socket.socket) -> None:
    time.sleep(0.3)


def trickle(connection: socket.socket) -> None:
    for byte in encode(Message("ok", {"decision_id": "abcdefgh1", "partition": "a40"})):
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


@pytest.mark.parametrize(
    "behave",
    [
        wait,
        trickle,
        lambda connection: connection.sendall(b"<html>500</html>\nend\n"),
        lambda connection: connection.sendall(b"slurm-energy/1 ok\npartition=a40\n") or connection.close(),
        lambda connection: connection.sendall(b"slurm-energy/1 ok\npartition=a40\npartition=a40\nend\n"),
        lambda connection: connection.sendall(b"slurm-energy/1 refused\nreason=no\nend\n"),
        lambda connection: connection.sendall(b"x" * 100_000),
    ],
    ids=["hangs", "trickles", "garbage", "cut-off", "repeated-key", "refused", "pours"],
)
def test_a_bad_answer_leaves_the_job_unchanged(start: Start, behave: Behaviour) -> None:
    daemon = start(behave)
    begun = time.monotonic()
    lines = submit(daemon.path, "plain", patient=False)
    assert time.monotonic() - begun < PATIENT_SECONDS
    assert ("rc", "0") in lines
    assert ("partition", "a100,a40") in lines
    assert ("admin_comment", "seen") in lines
    assert lines[0][0] == "error"


def test_an_absent_daemon_is_named_once_and_asked_no_more_after_three_failures(tmp_path: Path) -> None:
    lines = submit(tmp_path / "nobody.sock", "plain", times=20)
    assert lines.count(("rc", "0")) == 20
    errors = [line for line in lines if line[0] == "error"]
    assert len(errors) == 1
    assert errors[0][1].startswith("energy: 1 jobs left unchanged; last: ")


def test_a_partition_list_too_long_to_send_is_not_asked_about(
    start: Start,
) -> None:
    daemon = start(answer(partition="a40"))
    lines = submit(daemon.path, "long")
    assert lines[0][0] == "error"
    assert "partition is too long" in lines[0][1]
    assert daemon.requests == []
