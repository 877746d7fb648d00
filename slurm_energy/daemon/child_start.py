"""The first steps of every child process: its socket, its logging, its end together with the daemon."""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1


NICENESS = 10
"""Children give way to the answering process, which has a job submission waiting for it."""
ANSWERING_NICENESS = 0
"""Of a child that the answering process itself waits for."""


class Stopped(BaseException):
    """SIGTERM came; a BaseException so that nothing on the way swallows it."""


def connect_to_parent(argv: list[str], niceness: int = NICENESS) -> socket.socket:
    """Return the socket to the daemon, whose number is the first argument; this process then ends with the daemon."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(niceness)
    parent = os.getppid()
    connection = socket.socket(fileno=int(argv[0]))
    if parent == 1:  # the daemon died before prctl took effect
        raise Stopped
    return connection


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGTERM and the daemon's end be the end of what is done here; a SIGTERM that comes after it does nothing.

    The daemon also asks a child to end that is doing so already: raised while the interpreter shuts down, `Stopped`
    would be a traceback in the log and nothing else.
    """
    try:
        yield
    except (Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def give_way() -> None:
    """Run behind the answering process from now on, as children do that it does not wait for."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def set_up_logging(level: str, process_name: str) -> None:
    """Log to stderr, which the daemon's supervisor keeps; one line an event."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format=f"%(levelname)s {process_name} %(name)s %(message)s",
        force=True,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    threading.current_thread().name = process_name


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped
