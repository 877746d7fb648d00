"""What energy-sbatch reads of a job's script: in a process of its own, and never longer than the site's limit.

That process may hang on a file system that is away, run out of memory, or fail on a script that was made for it: the
submission goes on without. It has none of the caller's streams, so that no reader of those waits for it.
"""

import contextlib
import os
import resource
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli.sbatch.process import open_standard_streams
from slurm_energy.config import Config

if TYPE_CHECKING:
    from slurm_energy.slurm.sbatch_options import Takes

_MAX_MEMORY_BYTES = 1 << 30
"""Beyond what the caller has mapped already: a fork begins with all of that."""
_MAX_CPU_SECONDS = 1
_MAX_LIFE_SECONDS = 2.0
_MAX_DESCRIPTORS = 65_536
_MAX_ANSWER_BYTES = 65_536
_NEVER_SUBMITS = frozenset({b"--help", b"-h", b"--usage", b"--version", b"-V"})


def sent_features(words: Sequence[bytes], config: Config) -> str:
    """Return what is sent of the script that sbatch's arguments name, encoded; empty for nothing.

    Nothing is read for another user, nor with more rights than the submitting user has.
    """
    is_own = os.getuid() == os.geteuid()
    if config.script.read == "off" or not is_own or _NEVER_SUBMITS.intersection(words):
        return ""
    texts = [os.fsdecode(word) for word in words]
    limit_seconds = config.script.time_limit_milliseconds / 1000.0
    try:
        return last_line_within(lambda: _encoded_features(texts, config), limit_seconds)
    except (OSError, MemoryError):  # no descriptor, process or memory left: the job goes without
        return ""


def last_line_within(lines: Callable[[], Iterator[str]], limit_seconds: float) -> str:
    """Return the last line that a function yields within a time, run in a child that is ended then.

    Args:
        lines: Called in the child; what it raises ends it.
        limit_seconds: By the wall clock, from now on.
    """
    open_standard_streams()
    end = time.monotonic() + limit_seconds
    source, target = os.pipe()
    child = -1
    try:
        child = os.fork()
        if child == 0:
            _be_child(lines, target)
        os.close(target)
        target = -1
        answer = _read_until(source, end)
    finally:
        for descriptor in (source, target):
            if descriptor >= 0:
                os.close(descriptor)
        if child > 0:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(OSError):  # one that hangs in the kernel is not waited for
                os.waitpid(child, os.WNOHANG)
    whole = answer.rpartition(b"\n")[0]
    return whole.rpartition(b"\n")[2].decode("ascii", "ignore")


def _read_until(source: int, end: float) -> bytes:
    answer = b""
    poll = select.poll()  # select has no room for the numbers of callers with many files open
    poll.register(source, select.POLLIN)
    while len(answer) < _MAX_ANSWER_BYTES:
        left = end - time.monotonic()
        if left <= 0.0 or not poll.poll(left * 1000.0):
            break
        chunk = os.read(source, 4096)
        if not chunk:
            break
        answer += chunk
    return answer


def _be_child(lines: Callable[[], Iterator[str]], target: int) -> None:
    """Write the lines and end; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _MAX_LIFE_SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, bound in (
            (resource.RLIMIT_AS, _mapped_bytes() + _MAX_MEMORY_BYTES),
            (resource.RLIMIT_CPU, _MAX_CPU_SECONDS),
        ):
            _, hard = resource.getrlimit(kind)
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (bound if hard < 0 else min(bound, hard), hard))
        nowhere = os.open("/dev/null", os.O_RDWR)
        for stream in (1, 2):  # standard input may be the script
            os.dup2(nowhere, stream)
        os.closerange(3, target)  # a lock that the caller holds is no lock of ours
        os.closerange(target + 1, _MAX_DESCRIPTORS)
        for line in lines():
            os.write(target, line.encode("ascii") + b"\n")
    finally:
        os._exit(0)


def _mapped_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    return 0


def _encoded_features(words: Sequence[str], config: Config) -> Iterator[str]:
    from slurm_energy.estimation.script.features import script_features  # noqa: PLC0415  # in the child alone
    from slurm_energy.estimation.script.reading import SourceReader  # noqa: PLC0415

    found = submitted_script(words, os.environ)
    if found is None:
        return
    text, arguments, directory = found
    reader = SourceReader(
        Path(directory), reads_programs=config.script.read != "script", reads_configurations=config.script.read == "all"
    )
    for features in script_features(text, arguments, os.environ, reader):
        yield features.encode()


def submitted_script(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, tuple[str, ...], str] | None:
    """Return the script's text, its arguments and where the job will run; None where sbatch's arguments name none.

    Standard input is looked at only where it is a file, without moving on in it: sbatch reads it after us.

    Raises:
        SlurmEnergyError: the arguments cannot be read, or the script cannot.
    """
    from slurm_energy.estimation.script.reading import MAX_TOTAL_BYTES, SourceReader  # noqa: PLC0415
    from slurm_energy.slurm.sbatch_options import ENERGY_OPTIONS, split_arguments  # noqa: PLC0415

    split = split_arguments(words, {**ENERGY_OPTIONS, **_unknown_options(words)})
    given = {option.name: option.value for option in split.options}
    if "uid" in given and os.getuid() == 0:
        return None  # submitted for another user, who may not read what root may
    directory = given.get("chdir") or environment.get("PWD") or os.getcwd()  # noqa: PTH109  # pathlib is not imported
    if "wrap" in given:
        return given["wrap"] or "", (), directory
    if split.rest:
        path = script_path(split.rest[0], given.get("chdir"))
        raw = SourceReader(Path()).read_bytes(str(path))
        text = None if raw is None or b"\x00" in raw else raw.decode("utf-8", "replace")
    else:
        if not stat.S_ISREG(os.fstat(0).st_mode):
            return None
        text = os.pread(0, MAX_TOTAL_BYTES, os.lseek(0, 0, os.SEEK_CUR)).decode("utf-8", "replace")
    return None if text is None else (text, split.rest[1:], directory)


def script_path(name: str, directory: str | None) -> Path:
    """Return the script as sbatch finds it: the path as given, or a bare name in the folder, then on PATH."""
    here = Path(directory or ".")
    if "/" in name:
        return Path(name)
    for folder in (here, *map(Path, os.environ.get("PATH", "").split(os.pathsep))):
        if (folder / name).is_file():
            return folder / name
    return here / name


def _unknown_options(words: Sequence[str]) -> Mapping[str, "Takes"]:
    """Return options that sbatch's table lacks, such as those of a site's own plugins, as if they took no word."""
    from slurm_energy.errors import ValueRangeError  # noqa: PLC0415  # in the child alone
    from slurm_energy.slurm.sbatch_options import LONG_OPTIONS, Takes, full_name  # noqa: PLC0415

    unknown = {}
    for word in words:
        name = word[2:].partition("=")[0]
        if not word.startswith("--") or not name:
            continue
        try:
            full_name(name, LONG_OPTIONS)
        except ValueRangeError:
            unknown[name] = Takes.OPTIONAL
    return unknown
