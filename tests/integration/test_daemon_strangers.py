"""What foreign hosts at the report port and users at the unix socket can cost a submission, and a node's report."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from daemon_support import RunningDaemon, running_daemon
from test_daemon_reports import make_report, signed

from slurm_energy.errors import SlurmEnergyError, WireError
from slurm_energy.wire.codec import Message, decode, encode

DEADLINE_SECONDS = 0.05
SUBMISSIONS = 75
STRANGERS = ("hold", "slow", "flood", "large", "deep", "escapes", "lines")
USERS = ("hold", "slow", "flood", "talk", "large")
ALICE = 60_001


@contextmanager
def strangers(*commands: Sequence[str]) -> Iterator[None]:
    script = str(Path(__file__).with_name("stranger.py"))
    running = [subprocess.Popen([sys.executable, script, *command], stderr=subprocess.DEVNULL) for command in commands]
    try:
        time.sleep(1.0)  # until they are at it
        assert [process.poll() for process in running] == [None] * len(running)
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()


def decided(daemon: RunningDaemon) -> int:
    """Return how many of some submissions are decided within the plugin's deadline."""
    in_time = 0
    for _ in range(SUBMISSIONS):
        with suppress(SlurmEnergyError):
            in_time += daemon.decide(DEADLINE_SECONDS).verb == "ok"
        time.sleep(0.01)
    return in_time


def report(daemon: RunningDaemon, job_id: int, *, at_root: bool) -> Message:
    """Return the reply to a report, sent as a node's root does or as an older release did."""
    with socket.socket() as connection:
        if at_root:
            for port in range(700, 1000):
                try:
                    connection.bind(("", port))
                    break
                except OSError:
                    continue
        connection.settimeout(120.0)
        connection.connect(("127.0.0.1", daemon.port))
        connection.sendall(encode(signed([make_report(job_id)])))
        reply = b""
        while chunk := connection.recv(65_536):
            reply += chunk
        return decode(reply)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon in a folder that everybody may enter."""
    directory = Path(tempfile.mkdtemp(prefix="energyd-strangers-"))
    directory.chmod(0o755)
    try:
        with running_daemon(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def undisturbed(daemon: RunningDaemon) -> int:
    """How many submissions are decided in time on this machine when nothing disturbs."""
    found = decided(daemon)
    assert found > SUBMISSIONS // 2, "the machine is too busy to tell anything"
    return found


@pytest.mark.alone
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_at_the_report_port_costs_no_submission_its_decision(
    daemon: RunningDaemon, undisturbed: int, kind: str
) -> None:
    command = (kind, "127.0.0.1", str(daemon.port))
    with strangers(command, command):
        found = decided(daemon)
    print(f"\n{kind} at the report port: {found} of {SUBMISSIONS} decided, {undisturbed} undisturbed")
    assert found >= 0.8 * undisturbed


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", USERS)
def test_a_user_at_the_unix_socket_costs_no_submission_its_decision(
    daemon: RunningDaemon, undisturbed: int, kind: str
) -> None:
    with strangers((kind, str(daemon.socket_path), str(ALICE))):
        found = decided(daemon)
    print(f"\n{kind} at the unix socket: {found} of {SUBMISSIONS} decided, {undisturbed} undisturbed")
    assert found >= 0.8 * undisturbed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the ports of a node's root")
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_node_delivers_its_report_while_strangers_hold_the_port(daemon: RunningDaemon, kind: str) -> None:
    number = 100 + STRANGERS.index(kind)
    command = (kind, "127.0.0.1", str(daemon.port))
    with strangers(command, command):
        assert report(daemon, number, at_root=True).fields == {"accepted": "1"}


def test_strangers_who_only_hold_connections_keep_nobody_out(daemon: RunningDaemon) -> None:
    with strangers(("hold", "127.0.0.1", str(daemon.port))):
        for _ in range(5):  # whoever is sent away tries again, as a node's timer does
            try:
                reply = report(daemon, 200, at_root=False)
                break
            except (ConnectionResetError, WireError):  # closed before or after the request was sent
                continue
        assert reply.fields == {"accepted": "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_cannot_connect_where_slurmctld_waits(daemon: RunningDaemon) -> None:
    path = str(daemon.plugin_socket_path)
    look = f"import os, socket; os.setuid({ALICE}); socket.socket(socket.AF_UNIX).connect({path!r})"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


def test_a_decision_is_also_given_where_people_ask_to_a_plugin_that_was_installed_before(daemon: RunningDaemon) -> None:
    assert "entry" in daemon.ask("decide", {"uid": "1000", "tres_per_node": "gres:gpu:1"}).fields


def test_a_request_that_comes_in_pieces_is_answered(daemon: RunningDaemon) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120.0)
        connection.connect(str(daemon.plugin_socket_path))
        for piece in (b"slurm-energy/1 decide\n", b"uid=1000\ntres_per_node=gres:gpu:1\n", b"end\n"):
            connection.sendall(piece)
            time.sleep(0.05)
        assert b"entry=" in connection.recv(65_536)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_answered_while_one_holds_connections(daemon: RunningDaemon) -> None:
    with strangers(("hold", str(daemon.socket_path), str(ALICE))):
        # A busy machine gives the door little time: then the queue at the socket is full, and is waited for.
        for _ in range(5):
            assert daemon.ask("ping", deadline_seconds=30.0).verb == "ok"
