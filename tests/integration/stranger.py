"""A foreign client at the daemon's doors: arguments `KIND HOST PORT` or `KIND SOCKET UID`; runs until killed."""

import os
import socket
import sys
import time
from collections.abc import Callable

HEAD = b"slurm-energy/1 report\nauth=hmac\ntimestamp=1.0\nnonce=" + b"0" * 32 + b"\nmac=" + b"0" * 64 + b"\nbody="
LIMIT = 2 * 1024 * 1024 - 4096


def main() -> None:
    kind, *where = sys.argv[1:]
    if len(where) == 2 and where[0].startswith("/"):
        os.setgroups([])
        os.setgid(int(where[1]))
        os.setuid(int(where[1]))

        def connect() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(2.0)
            connection.connect(where[0])
            return connection
    else:
        os.nice(10)  # a stranger has a machine of his own

        def connect() -> socket.socket:
            return socket.create_connection((where[0], int(where[1])), timeout=2.0)

    while True:
        try:
            KINDS[kind](connect)
        except OSError:
            time.sleep(0.002)


def hold(connect: Callable[[], socket.socket]) -> None:
    """Hold as many connections as there are, each with the beginning of a message."""
    held = []
    for _ in range(1000):
        try:
            held.append(connect())
            held[-1].sendall(b"slurm-energy/1 rep")
        except OSError:
            time.sleep(0.005)
    time.sleep(1.0)


def slow(connect: Callable[[], socket.socket]) -> None:
    """Send byte by byte on a hundred connections."""
    held = [connect() for _ in range(100)]
    for _ in range(1000):
        for connection in held:
            connection.send(b"s" if _ else b"slurm-energy/1 ")
        time.sleep(0.01)


def flood(connect: Callable[[], socket.socket]) -> None:
    """Connect and go."""
    connect().close()


def talk(connect: Callable[[], socket.socket]) -> None:
    """Ask, and wait for the answer."""
    _send(connect(), b"slurm-energy/1 preview\ntres_per_node=gres:gpu:1\nend\n")


def large(connect: Callable[[], socket.socket]) -> None:
    """Send 16 MB."""
    _send(connect(), HEAD + b"x" * 16_000_000 + b"\nend\n")


def deep(connect: Callable[[], socket.socket]) -> None:
    """Send nested JSON, as large as is taken."""
    _send(connect(), HEAD + b"[" * LIMIT + b"\nend\n")


def escapes(connect: Callable[[], socket.socket]) -> None:
    """Send nothing but escapes."""
    _send(connect(), HEAD + b"%41" * (LIMIT // 3) + b"\nend\n")


def lines(connect: Callable[[], socket.socket]) -> None:
    """Send nothing but keys."""
    _send(connect(), b"slurm-energy/1 report\n" + b"".join(b"k%d=\n" % n for n in range(150_000)) + b"end\n")


def _send(connection: socket.socket, data: bytes) -> None:
    with connection:
        connection.sendall(data)
        while connection.recv(65_536):
            pass


KINDS = {function.__name__: function for function in (hold, slow, flood, talk, large, deep, escapes, lines)}

if __name__ == "__main__":
    main()
