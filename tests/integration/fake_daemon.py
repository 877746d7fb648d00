"""A daemon that answers every request with what the test gave it."""

import socket
import threading
from pathlib import Path

from slurm_energy.wire.codec import Message, decode, encode


class FakeDaemon:
    """Listens at a unix socket in a thread of its own; `None` as reply accepts and stays silent."""

    def __init__(self, path: Path, reply: Message | None) -> None:
        self.path = path
        self.requests: list[Message] = []
        self._reply = reply
        self._silent: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            received = b""
            while not received.endswith(b"\nend\n"):
                chunk = connection.recv(65536)
                if not chunk:
                    break
                received += chunk
            if received:
                self.requests.append(decode(received))
            if self._reply is None:
                self._silent.append(connection)
                continue
            connection.sendall(encode(self._reply))
            connection.close()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._silent:
            connection.close()
        self._thread.join(60)
