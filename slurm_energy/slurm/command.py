"""Run a command of Slurm, its time and its output bounded; read a long JSON answer row by row; ask for one job.

Output comes in pieces: neither the text of an answer nor its rows are ever held as a whole.
"""

import codecs
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress

from slurm_energy.domain.ids import JobId, NodeName
from slurm_energy.errors import SlurmError

MAX_OUTPUT_BYTES = 1 << 30
_MAX_COMPLAINT_BYTES = 64 * 1024
_PIECE_BYTES = 1 << 18
ANSWER_SECONDS = 10.0
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"
_UNKNOWN = "Invalid job id"
_Steps = Generator[None, None, None]
_BLANK = " \t\r\n"
_BEHIND_A_VALUE = frozenset(_BLANK) | frozenset(",:]}")
_END = "the text ends too early"


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


def job_on_node(job_id: JobId, node: NodeName, bin_directory: str, slurm_conf: str) -> str | None:
    """Return the state of the job on this node, such as RUNNING; empty when it holds it no more; None without answer.

    Args:
        job_id: Slurm's own number, of an array's task too.
        node: Slurm's name of the node.
        bin_directory: Folder of squeue; empty: found through PATH.
        slurm_conf: Path of slurm.conf; empty: Slurm's default.
    """
    name = f"{bin_directory}/squeue" if bin_directory else "squeue"
    environment = {"PATH": os.environ.get("PATH") or _PATH, "LC_ALL": "C.UTF-8"}
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    asked = ["--noheader", "--states=all", f"--jobs={job_id}", f"--nodelist={node}", "--format=%A %T"]
    pieces: list[bytes] = []
    try:
        run_command([name, *asked], pieces.append, environment=environment, timeout_seconds=ANSWER_SECONDS)
    except SlurmError as error:
        return "" if _UNKNOWN in str(error) else None
    except OSError:
        return None
    lines = b"".join(pieces).decode("utf-8", "replace").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    if any(len(row) != 2 or not row[0].isdecimal() for row in rows):
        return None
    # Beside the leader of an array squeue names its other tasks.
    return next((state for number, state in rows if number == str(job_id)), "")


def admin_comments(
    job_ids: Sequence[JobId], bin_directory: str, slurm_conf: str, *, timeout_seconds: float
) -> dict[JobId, str]:
    """Return the admin comments of jobs; a job without one, or all where there is no answer, are left out.

    Args:
        job_ids: Slurm's own numbers, of arrays' tasks too.
        bin_directory: Folder of squeue; empty: found through PATH.
        slurm_conf: Path of slurm.conf; empty: Slurm's default.
        timeout_seconds: How long squeue may take.
    """
    name = f"{bin_directory}/squeue" if bin_directory else "squeue"
    environment = {"PATH": os.environ.get("PATH") or _PATH, "LC_ALL": "C.UTF-8"}
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    numbers = ",".join(str(job_id) for job_id in job_ids)
    asked = ["--noheader", "--states=all", f"--jobs={numbers}", "--Format=JobID:20,AdminComment:200"]
    pieces: list[bytes] = []
    try:
        run_command([name, *asked], pieces.append, environment=environment, timeout_seconds=timeout_seconds)
    except (SlurmError, OSError):
        return {}
    found: dict[JobId, str] = {}
    for line in b"".join(pieces).decode("utf-8", "replace").splitlines():
        number, _, comment = line.partition(" ")
        if number.isdecimal() and comment.strip():
            found[JobId(int(number))] = comment.strip()
    return found


class JsonRows:
    """Takes the bytes of one JSON object in pieces of any size and hands on the rows of one list in it.

    Bytes that are no UTF-8 become U+FFFD and control characters in strings are let through: Slurm prints both where a
    user has put them into a name.
    """

    def __init__(self, key: str, take: Callable[[object, str], None]) -> None:
        """Begin.

        Args:
            key: Under which the object has the list.
            take: Gets each element of it, and the text that it was read from.
        """
        self.document: object = None
        """Known after `close`: all else that the object holds, with an empty list where the rows were. An answer that
        is no object is here as it is."""
        self._key = key
        self._take = take
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._begin = 0
        """Of the value that was read last."""
        self._pieces: list[str] = []
        self._waiting = 0
        """Characters in `_pieces`."""
        self._wanted = 1
        """Characters that must have come before it is worth looking again."""
        self._ended = False
        self._steps: _Steps | None = self._read()

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            ValueError: they are no JSON.
            RecursionError: they are nested too deeply.
        """
        self._add(self._decode(data))

    def close(self) -> None:
        """Take the end.

        Raises:
            ValueError: the text was no JSON, or not all of it.
            RecursionError: it is nested too deeply.
        """
        self._ended = True
        self._add(self._decode(b"", final=True))

    def _add(self, text: str) -> None:
        self._pieces.append(text)
        self._waiting += len(text)
        if self._steps is None or not (self._ended or self._waiting >= self._wanted):
            return
        self._text = "".join((self._text[self._at :], *self._pieces))
        self._at, self._pieces, self._waiting, self._wanted = 0, [], 0, 1
        steps, self._steps = self._steps, None  # after an error nothing more is read
        try:
            next(steps)
            self._steps = steps
        except StopIteration:
            self._text = ""

    def _read(self) -> _Steps:
        if (yield from self._next()) == "{":
            self._at += 1
            self.document = yield from self._object()
        else:
            self.document = yield from self._value()
        if (yield from self._next()):
            raise ValueError(f"text follows the JSON value: {self._shown()}")

    def _object(self) -> Generator[None, None, dict[str, object]]:
        """Read an object whose opening brace has been read."""
        found: dict[str, object] = {}
        if (yield from self._next()) == "}":
            self._at += 1
            return found
        while True:
            key = yield from self._value()
            if not isinstance(key, str):
                raise ValueError(f"a key must be a string: {key!r:.60}")
            yield from self._one_of(":")
            if key == self._key and (yield from self._next()) == "[":
                self._at += 1
                yield from self._rows()
                found[key] = []
            else:
                found[key] = yield from self._value()
            if (yield from self._one_of(",}")) == "}":
                return found

    def _rows(self) -> _Steps:
        """Read the list whose opening bracket has been read."""
        if (yield from self._next()) == "]":
            self._at += 1
            return
        while True:
            row = yield from self._value()
            self._take(row, self._text[self._begin : self._at])
            if (yield from self._one_of(",]")) == "]":
                return

    def _value(self) -> Generator[None, None, object]:
        """Read a value of any kind; it is whole when a mark or a blank follows: `2` could continue as `2.5e3`."""
        if not (yield from self._next()):
            raise ValueError(_END)
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except ValueError:
                if self._ended:
                    raise
            else:
                if self._text[end : end + 1] in _BEHIND_A_VALUE or self._ended:
                    self._begin, self._at = self._at, end
                    return value
            # At least as much again: a value of n characters is then looked at log n times, not n / piece times.
            self._wanted = max(1, len(self._text) - self._at)
            yield

    def _next(self) -> Generator[None, None, str]:
        """Return the next character that is no blank without taking it, `""` at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANK:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            yield

    def _one_of(self, characters: str) -> Generator[None, None, str]:
        """Take one of some characters and return it."""
        found = yield from self._next()
        if not found or found not in characters:
            raise ValueError(f"{' or '.join(characters)} is missing at {self._shown()}" if found else _END)
        self._at += 1
        return found

    def _shown(self) -> str:
        return repr(self._text[self._at : self._at + 40])
