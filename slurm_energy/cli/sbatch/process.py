"""Find the real sbatch and run it between the caller's own streams.

Never this wrapper itself, also when it is installed under the name sbatch. Bytes go through unchanged, signals once,
the exit status as it is.
"""

import errno
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from slurm_energy.errors import SlurmError

GUARD_VARIABLE = "SLURM_ENERGY_SBATCH_CALLER"
"""Number of the wrapper's process; set only when what is found is a script, which might call us back."""
EXPLAIN_VARIABLE = "SLURM_ENERGY_EXPLAIN_CALLER"
"""Number of the wrapper's process for the SPANK plugin: it asks for a line with figures then, and takes this away."""
FEATURES_VARIABLE = "SLURM_ENERGY_SCRIPT_FEATURES"
"""The same number and what is sent of the job's script, for the SPANK plugin, which takes this away too."""
_MARKS = (b"slurm_energy.cli.energy_sbatch", b"energy-sbatch", b"energy_sbatch")
_HEAD_BYTES = 4096
_MAX_ANCESTORS = 64
_CHUNK_BYTES = 65_536
_KEPT_BYTES = 65_536
_STDERR = 2
_MAX_HELD_LINES = 64
_MAY_BE_HELD = re.compile(rb"s(?:b(?:a(?:t(?:c(?:h(?::[^\n]{0,600})?)?)?)?)?)?\Z")
"""The beginning of a line of sbatch's, which may still become one that is held back."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these to the whole foreground group: sbatch has had its own already."""


def find_sbatch(bin_directory: str, environment: Mapping[str, str]) -> str:
    """Return the path of the real sbatch: in the configured folder, else the first on PATH that is not this wrapper.

    Raises:
        SlurmError: there is none, or this process was started by another wrapper on its way to sbatch.
    """
    _refuse_recursion(environment)
    searched = bin_directory or environment.get("PATH", os.defpath)
    for path in _candidates(searched):
        if os.access(path, os.X_OK) and os.path.isfile(path) and not is_wrapper(path):  # noqa: PTH113  # pathlib costs 10 ms at each submission
            return path
    raise SlurmError(
        f"sbatch is not found in {searched}: set cluster.slurm_bin_directory in slurm-energy.toml, or put it on PATH"
    )


def _candidates(searched: str) -> Iterator[str]:
    for directory in searched.split(os.pathsep):
        yield os.path.join(directory or ".", "sbatch")  # noqa: PTH118  # as above


def is_wrapper(path: str) -> bool:
    """Return whether the file is this wrapper, a copy of it, or a script that calls it."""
    if os.path.realpath(path) == os.path.realpath(sys.argv[0]):
        return True
    head = _head(path)
    return head.startswith(b"#!") and any(mark in head for mark in _MARKS)


def child_environment(
    path: str, environment: Mapping[str, str], *, explain: bool, features: str = ""
) -> dict[str, str]:
    """Return the environment for sbatch: the caller's, with the guard for a script.

    Args:
        path: sbatch.
        environment: The caller's.
        explain: Whether a line on the decision is wanted.
        features: What is sent of the job's script; empty for nothing.
    """
    child = dict(environment)
    child.pop(GUARD_VARIABLE, None)
    child.pop(EXPLAIN_VARIABLE, None)
    child.pop(FEATURES_VARIABLE, None)
    if features:
        child[FEATURES_VARIABLE] = f"{os.getpid()} {features}"
    if explain:
        child[EXPLAIN_VARIABLE] = str(os.getpid())
    if _head(path).startswith(b"#!"):
        child[GUARD_VARIABLE] = str(os.getpid())
    return child


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # as above
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _refuse_recursion(environment: Mapping[str, str]) -> None:
    guard = environment.get(GUARD_VARIABLE)
    if guard is not None and guard in _ancestors():
        raise SlurmError(
            "energy-sbatch was called by itself: the sbatch on PATH leads back to it; "
            "set cluster.slurm_bin_directory in slurm-energy.toml to the folder of Slurm's own sbatch"
        )


def _ancestors() -> Iterator[str]:
    process = str(os.getppid())
    for _ in range(_MAX_ANCESTORS):
        if process in {"0", "1"}:
            return
        yield process
        try:
            with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123  # as above
                process = file.read().rpartition(b")")[2].split()[1].decode("ascii")
        except (OSError, IndexError):
            return


@dataclass(frozen=True, slots=True)
class SbatchResult:
    """How sbatch ended, and the beginning of what it said."""

    wait_status: int
    stdout: bytes
    stderr: bytes
    held: tuple[bytes, ...] = ()
    """Lines of stderr that were kept back."""

    @property
    def exit_code(self) -> int:
        """The exit code; negative signal number when a signal ended it."""
        return os.waitstatus_to_exitcode(self.wait_status)


class _HeldLines:
    """Holds back lines that are to be said later; all else passes as it comes, unfinished lines too."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.held: list[bytes] = []
        self._pattern = pattern
        self._begun = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take what came; return what is to be written now."""
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        passed = bytearray()
        for line in lines:
            if self._pattern.match(line):
                self.held.append(line)
            else:
                passed += line + b"\n"
        if not _MAY_BE_HELD.match(self._begun):
            passed += self._begun
            self._begun = b""
        return bytes(passed)

    def rest(self) -> bytes:
        """Return what is left at the end."""
        rest, self._begun = self._begun, b""
        if rest and self._pattern.match(rest):
            self.held.append(rest)
            return b""
        return rest


class _Signals:
    """Passes signals on to sbatch while it runs."""

    def __init__(self) -> None:
        self.child = 0
        self._early: list[int] = []

    def install(self) -> None:
        """Take over the signals that are not ignored: who ignores them wants sbatch to ignore them, too."""
        for number in (*_FORWARDED, *_FROM_TERMINAL):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def started(self, child: int) -> None:
        """Pass on what came before sbatch had a process number."""
        self.child = child
        for number in self._early:
            self._send(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number in _FROM_TERMINAL and _in_foreground():
            if not self.child:  # sbatch was not there yet to get it from the terminal
                self._early.append(number)
            return
        if self.child:
            self._send(number)
        else:
            self._early.append(number)

    def _send(self, number: int) -> None:
        try:
            os.kill(self.child, number)
        except ProcessLookupError:
            self.child = 0


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def open_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed, so that no pipe takes its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open("/dev/null", os.O_RDWR)


def run_between_streams(
    path: str, arguments: Sequence[bytes], environment: Mapping[str, str], hold: re.Pattern[bytes]
) -> SbatchResult:
    """Run a program with the caller's stdin, copy its stdout and stderr as they come, and wait for it.

    Args:
        path: The program.
        arguments: Without its own name.
        environment: Its environment.
        hold: Lines of stderr that are kept back; they begin as sbatch's own messages do.
    """
    open_standard_streams()
    signals = _Signals()
    signals.install()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        child = os.posix_spawn(
            path,
            [os.path.basename(os.fsencode(path)), *arguments],  # noqa: PTH119  # as a shell would name it in messages
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, err_write, 2)],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these two; sbatch must not
        )
    finally:
        os.close(out_write)
        os.close(err_write)
    signals.started(child)
    lines = _HeldLines(hold)
    kept = _copy_until_end(child, {out_read: 1, err_read: 2}, lines)
    _, status = os.waitpid(child, 0)
    return SbatchResult(
        wait_status=status, stdout=kept[out_read], stderr=kept[err_read], held=tuple(lines.held[:_MAX_HELD_LINES])
    )


def _copy_until_end(child: int, targets: dict[int, int], lines: _HeldLines) -> dict[int, bytes]:
    """Copy each source to its target until sbatch has ended, not until a process it left behind closes the pipe."""
    kept = dict.fromkeys(targets, b"")
    open_sources = set(targets)
    poll = select.poll()
    for source in targets:
        poll.register(source, select.POLLIN)
    end_of_child = _pidfd(child)
    if end_of_child is not None:
        poll.register(end_of_child, select.POLLIN)
    ended = False
    while open_sources:
        ready = [descriptor for descriptor, _ in poll.poll(0 if ended else None)]
        if end_of_child in ready:
            poll.unregister(end_of_child)
            ended = True
        sources = [descriptor for descriptor in ready if descriptor in open_sources]
        if ended and not sources and end_of_child not in ready:
            break
        for source in sources:
            chunk = os.read(source, _CHUNK_BYTES)
            if not chunk:
                poll.unregister(source)
                open_sources.discard(source)
                continue
            passed = lines.feed(chunk) if targets[source] == _STDERR else chunk
            kept[source] = (kept[source] + passed)[:_KEPT_BYTES]
            _write_all(targets[source], passed)
    _write_all(_STDERR, lines.rest())
    return kept


def _pidfd(child: int) -> int | None:
    try:
        return os.pidfd_open(child)
    except OSError:  # a kernel before 5.3
        return None


def _write_all(target: int, chunk: bytes) -> None:
    """Write everything; a reader who went away does not stop sbatch, which may have submitted already."""
    rest = memoryview(chunk)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(target, select.POLLOUT)
            waiting.poll()
        except OSError:
            return


def end_as(outcome: SbatchResult) -> int:
    """Return sbatch's exit code; if a signal ended it, end by the same signal (128 + number where that fails)."""
    code = outcome.exit_code
    if code >= 0:
        return code
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))  # one core file is enough, and sbatch left it
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
