"""One run of a command of Slurm: its output in pieces as they come, its time and its size bounded."""

import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from slurm_energy.errors import SlurmError

MAX_OUTPUT_BYTES = 1 << 30
_MAX_COMPLAINT_BYTES = 64 * 1024
_PIECE_BYTES = 1 << 18


def run_command(
    command: Sequence[str], take: Callable[[bytes], None], *, environment: Mapping[str, str], timeout_seconds: float
) -> None:
    """Run a command to its end and give its output to `take`; it has ended when this returns or raises.

    Raises:
        OSError: it cannot be started.
        SlurmError: it gave no answer in time, printed too much, or ended with an error.
    """
    end = time.monotonic() + timeout_seconds
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            complaint = _follow(process, take, end)
            code = process.wait(max(0.0, end - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise SlurmError(f"{shown(command)} gave no answer within {timeout_seconds:g} s") from None
        except _TooMuch as error:
            raise SlurmError(f"{shown(command)} printed {error} bytes, over {MAX_OUTPUT_BYTES}") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    if code != 0:
        said = " ".join(complaint.decode("utf-8", "replace").split())[:300]
        raise SlurmError(f"{shown(command)} ended with {code}: {said}")


def shown(command: Sequence[str]) -> str:
    """Return a command for a message: its name without its folder, and its arguments."""
    return " ".join((command[0].rpartition("/")[2], *command[1:]))[:120]


class _TooMuch(Exception):  # control flow of this module; the message is the number of bytes
    pass


def _follow(process: "subprocess.Popen[bytes]", take: Callable[[bytes], None], end: float) -> bytes:
    """Read both outputs until they are closed; return what was said on the second.

    Raises:
        TimeoutError: they are not closed in time.
        _TooMuch: the first is larger than any answer.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    total, complaint = 0, b""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready and time.monotonic() >= end:
                raise TimeoutError
            for key, _ in ready:
                piece = key.fileobj.read(_PIECE_BYTES)  # type: ignore[union-attr]  # a file, as registered
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    complaint = (complaint + piece)[:_MAX_COMPLAINT_BYTES]
                else:
                    total += len(piece)
                    if total > MAX_OUTPUT_BYTES:
                        raise _TooMuch(total)
                    take(piece)
    return complaint
