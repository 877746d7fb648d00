"""One request and one reply over TCP, for nodes' reports; one deadline for the whole exchange."""

import socket
import time

from slurm_energy.errors import DaemonUnavailable, DeadlineExceeded, WireError
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode


def exchange_tcp(address: tuple[str, int], request: Message, deadline_seconds: float) -> Message:
    """Send a request and return the short reply.

    Raises:
        DaemonUnavailable: nothing listens there, or the connection broke.
        DeadlineExceeded: no whole reply in time.
        WireError: the reply is malformed or too long.
    """
    end = time.monotonic() + deadline_seconds
    where = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=deadline_seconds) as connection:
            connection.settimeout(_left(end, where))
            connection.sendall(encode(request))
            connection.shutdown(socket.SHUT_WR)
            return decode(_receive(connection, end, where), MAX_DECIDE_BYTES)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the daemon at {where} gave no whole answer within {deadline_seconds:g} s") from error
    except OSError as error:
        raise DaemonUnavailable(f"no daemon answers at {where}: {error.strerror or error}") from error


def _left(end: float, where: str) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"the daemon at {where} gave no whole answer in time")
    return left


def _receive(connection: socket.socket, end: float, where: str) -> bytes:
    received = bytearray()
    while len(received) <= MAX_DECIDE_BYTES:
        connection.settimeout(_left(end, where))
        chunk = connection.recv(65_536)
        if not chunk:
            return bytes(received)
        received += chunk
    raise WireError(f"the daemon's reply is over {MAX_DECIDE_BYTES} bytes")
