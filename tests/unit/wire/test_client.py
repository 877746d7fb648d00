import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_energy.errors import DaemonUnavailable, DeadlineExceeded, WireError
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message, encode


@contextmanager
def listener(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serve one connection in a thread."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)

        def run() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_reply_in_pieces_is_put_together(tmp_path: Path) -> None:
    reply = Message("ok", {"decision_id": "0123456789abcdef"})

    def serve(connection: socket.socket) -> None:
        connection.recv(65_536)
        for byte in encode(reply):
            connection.sendall(bytes([byte]))

    with listener(tmp_path / "s", serve):
        assert exchange(tmp_path / "s", Message("ping"), 5.0) == reply


def _fill_queue(path: Path) -> list[socket.socket]:
    """Connect until the listener's queue is full."""
    held: list[socket.socket] = []
    while True:
        connection = socket.socket(socket.AF_UNIX)
        held.append(connection)
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except BlockingIOError:
            return held


def test_a_full_queue_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    path, reply = tmp_path / "s", Message("ok", {"decision_id": "0123456789abcdef"})
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        held = _fill_queue(path)
        with pytest.raises(DeadlineExceeded, match=r"no whole answer within 0\.05 s"):
            exchange(path, Message("ping"), 0.05)

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.setblocking(True)
                    if connection.recv(65_536):
                        connection.sendall(encode(reply))
                        return

        for connection in held:
            connection.close()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert exchange(path, Message("ping"), 5.0) == reply
        thread.join(5)


def test_a_daemon_that_never_answers_costs_no_more_than_the_deadline(tmp_path: Path) -> None:
    done = threading.Event()

    def serve(_connection: socket.socket) -> None:
        done.wait(5)

    with listener(tmp_path / "s", serve):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"no whole answer within 0\.1 s"):
            exchange(tmp_path / "s", Message("ping"), 0.1)
        assert time.monotonic() - began < 1.0
        done.set()


def test_a_daemon_that_drips_bytes_costs_no_more_than_the_deadline(tmp_path: Path) -> None:
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        while not done.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with listener(tmp_path / "s", serve):
        with pytest.raises(DeadlineExceeded):
            exchange(tmp_path / "s", Message("ping"), 0.2)
        done.set()


def test_garbage_is_a_malformed_reply(tmp_path: Path) -> None:
    with listener(tmp_path / "s", lambda connection: connection.sendall(b"<html>\nend\n")), pytest.raises(WireError):
        exchange(tmp_path / "s", Message("ping"), 5.0)


def test_an_answer_given_before_the_request_was_read_still_counts(tmp_path: Path) -> None:
    large = Message("report", {"body": "x" * 1_000_000})
    refusal = b"slurm-energy/1 refused\nreason=no\nend\n"
    for number in range(20):
        with listener(tmp_path / f"{number}", lambda connection: connection.sendall(refusal)):
            assert exchange(tmp_path / f"{number}", large, 5.0) == Message("refused", {"reason": "no"})


def test_a_connection_closed_early_is_a_malformed_reply(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"slurm-energy/1 ok\n")

    with listener(tmp_path / "s", serve), pytest.raises(WireError, match="cut off"):
        exchange(tmp_path / "s", Message("ping"), 5.0)


def test_without_a_daemon_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="is slurm-energyd running"):
        exchange(tmp_path / "absent", Message("ping"), 1.0)
