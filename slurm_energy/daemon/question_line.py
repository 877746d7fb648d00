"""Our end of the line on which a policy process is asked."""

import socket
import time
from collections.abc import Callable

from slurm_energy.daemon.channel import number_of, pack_numbered, unpack_numbered
from slurm_energy.daemon.frames import PolicyQuestion, PolicyReply
from slurm_energy.errors import WireError

MAX_REPLY_BYTES = 64 * 1024


class QuestionLine:
    """Our end of the socket on which a policy process is asked, one question at a time.

    The socket keeps messages apart, so that none is ever half sent; an answer to an earlier question, whose time was
    over, is known by its number and dropped.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._number = 0
        self.late_answers = 0

    def ask(self, question: PolicyQuestion, limit_seconds: float) -> PolicyReply | None:
        """Return the answer, None when there is none in time.

        Raises:
            OSError: the other end is gone, or the question is too large for the socket.
            WireError: what came is no answer.
        """
        end = self._clock() + limit_seconds
        self._number += 1
        self._connection.setblocking(False)
        try:
            self._connection.send(pack_numbered(self._number, question))
            while (left := end - self._clock()) > 0.0:
                self._connection.settimeout(left)
                message = self._connection.recv(MAX_REPLY_BYTES + 1)
                if not message:
                    raise ConnectionResetError("the policy's process has gone")
                if len(message) > MAX_REPLY_BYTES:
                    raise WireError(f"the policy's answer is over {MAX_REPLY_BYTES} bytes")
                if number_of(message) == self._number:
                    return _reply(message)
                self.late_answers += 1
        except (BlockingIOError, TimeoutError):
            pass
        return None

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()


def _reply(message: bytes) -> PolicyReply:
    reply = unpack_numbered(message)
    if not isinstance(reply, PolicyReply):
        raise WireError(f"the policy's process sent a {type(reply).__name__}, not an answer")
    return reply
