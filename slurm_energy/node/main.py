"""slurm-energy-hook: what slurmd runs before and after each job, and timers run between.

The work is done by a child process. A call that hangs in the GPU driver or in a file system cannot be interrupted by
a signal handler, so this process waits with a deadline, kills the child and exits 0: a job never fails or waits longer
for us. It opens no file itself, and waits neither for stderr nor for the child's end. What the child had changed by
then is in its saved state, and the next prolog or repair puts it back.
"""

import errno
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable

USAGE = """\
Run one of slurm-energy's node hooks.

usage: slurm-energy-hook prolog | epilog        run by slurmd (Prolog=, Epilog=); always exit 0
       slurm-energy-hook flush [--soon] [--node NAME]
                                                deliver waiting reports to the daemon; --soon: after a moment that
                                                differs from node to node, once for all that wait; epilog starts it
       slurm-energy-hook repair [--all] [--node NAME]
                                                put back what crashed hooks left; --all: of every job without a process
       slurm-energy-hook sample JOB [--node NAME]
                                                the sampler; prolog starts it
example: slurm-energy-hook repair --all
"""
FIRST_LIMIT_SECONDS = 5.0
"""Until the child has read the configured limit; the same variable as for the configuration overrides it."""
LOG_SECONDS = 0.5
"""How long the log may take when the work is done or given up: inside the limit, of which it gets a fifth at most."""
SHOW_SECONDS = 0.1
"""How long a file that stands in for stderr may take; after that nothing is written to it any more."""
REAP_ATTEMPTS = 20
REAP_PAUSE_SECONDS = 0.001
"""For a child that closed its files and is about to be gone: only this process may collect it."""
_LIMIT_VARIABLE = "SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS"
CPU_JOBS_VARIABLE = "SLURM_ENERGY_NODE_CPU_JOBS"
"""The setting `node.cpu_jobs`: `install` puts it into the hook script, so that without it no file is read for a job
that has no GPU."""
_VERBS = frozenset({"prolog", "epilog", "flush", "repair", "sample"})
_ON_PATH = frozenset({"prolog", "epilog"})
_GPU_VARIABLES = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
SYSTEM_LOG = "/dev/log"
_DAEMON_ERROR = 27
"""Facility and severity of a line of the system log (RFC 5424, 6.2.1: 3 * 8 + 3)."""
_hanging: set[int] = set()
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def main() -> None:
    """Run the command line and leave at once, without Python's own end, which can block or fail."""
    os._exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Return the exit code: 0 for prolog and epilog whatever happens; else 0 done, 1 not all done, 2 wrong usage."""
    verb = arguments[0] if arguments else ""
    options = parse_options(verb, arguments[1:])
    if verb in {"-h", "--help", "help"}:
        _show(USAGE, 1)
        return 0
    if verb not in _VERBS or (options is None and verb not in _ON_PATH):
        _show(USAGE, 2)
        return 2
    if options and "node" in options:
        os.environ["SLURMD_NODENAME"] = options["node"]  # what it stands for when slurmd does not run us
    if verb == "prolog" and not any(os.environ.get(name) for name in (*_GPU_VARIABLES, CPU_JOBS_VARIABLE)):
        return 0
    status = 1
    try:
        status = _sample(options or {}) if verb == "sample" else _supervise(verb, options or {})
    except BaseException as error:  # noqa: BLE001  # the hook's outermost call: nothing may reach slurmd
        _show(f"slurm-energy-hook {verb}: {error!r}\n", 2)
    return 0 if verb in _ON_PATH else status


def parse_options(verb: str, arguments: list[str]) -> dict[str, str] | None:
    """Return the options, None when they are wrong for the verb."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--node" and rest:
            options["node"] = rest.pop(0)
        elif word == "--all" and verb == "repair":
            options["all"] = ""
        elif word == "--soon" and verb == "flush":
            options["soon"] = ""
        elif verb == "sample" and "job" not in options and word.isdecimal():
            options["job"] = word
        else:
            return None
    return None if verb == "sample" and "job" not in options else options


def _sample(options: dict[str, str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.closerange(3, 1024)
    os.chdir("/")
    from slurm_energy.node import quick_start  # noqa: PLC0415  # after the signal mask, like all that follows

    quick_start.install()
    from slurm_energy.node.commands import run_sample  # noqa: PLC0415

    return run_sample(options, os.environ)


def _supervise(verb: str, options: dict[str, str]) -> int:
    if verb in _ON_PATH:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
    started = time.monotonic()
    while (
        opened := os.open(os.devnull, os.O_RDWR)
    ) < 3:  # whoever closed one of the first three would get the pipe there
        pass
    os.close(opened)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work(verb, options, writer)
    os.close(writer)
    return _watch(child, reader, verb, started)


def _work(verb: str, options: dict[str, str], writer: int) -> None:
    """Be the child: never returns, and holds none of slurmd's files, on whose end slurmd would wait."""
    status = 1
    try:
        _let_go(writer)
        gc.disable()  # a process of a tenth of a second needs no collector, and starts faster without
        from slurm_energy.node import quick_start  # noqa: PLC0415  # under the deadline, like all that follows

        quick_start.install(without_typing=verb in _ON_PATH)
        from slurm_energy.node.commands import ProgressPipe, execute  # noqa: PLC0415

        progress = ProgressPipe(writer)
        try:
            status = execute(verb, options, os.environ, progress)
        except Exception as error:  # noqa: BLE001  # the hook's outermost call, child's side
            progress.echo(f"{verb}: {type(error).__name__}: {error}")
        progress.finish(status)
    finally:
        os._exit(status)


def _let_go(writer: int) -> None:
    """Close every file but one: slurmd waits until no process holds its pipe, and a child may hang for ever."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, writer)
    os.closerange(writer + 1, 1024)


def _watch(child: int, reader: int, verb: str, started: float) -> int:
    """Pass on what the child says until its result is there or its time is over.

    Nothing here can block: not the log, not stderr, not even a child that the kernel cannot end.
    """
    words = {"T": f"{_first_limit_seconds()}", "S": "starting", "F": ""}
    said: list[str] = []
    result: int | None = None
    why = ""
    buffer = b""
    while True:
        limit = float(words["T"])
        # What is left after the work is for the log. The result is in by then: a log that hangs costs only itself.
        end = started + limit - (_last_words_seconds(limit) if result is None else 0.0)
        left = end - time.monotonic() if result is None else min(end - time.monotonic(), LOG_SECONDS)
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            why = f"gave up after {words['T']} s"
            break
        chunk = os.read(reader, 65_536)
        if not chunk:
            why = "was killed"
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            kind, text = line[:1].decode("ascii", "replace"), line[1:].decode("utf-8", "replace")
            if kind == "L":
                said.append(text)
                _show(f"slurm-energy-hook {text}\n", 2)
            elif kind == "X":
                result = int(text)
            else:
                words[kind] = text
    _end(child)
    if result is None:
        result = 1
        _last_words(verb, f"{why} while {words['S']}", words["F"], said, _last_words_seconds(float(words["T"])))
    return result


def _end(child: int) -> None:
    """Kill the child unless it has ended, and wait a moment for its end, not longer: one in the driver has none."""
    try:
        for attempt in range(REAP_ATTEMPTS):
            if os.waitpid(child, os.WNOHANG)[0] == child:
                return
            if attempt == 1:
                os.kill(child, signal.SIGKILL)
            time.sleep(REAP_PAUSE_SECONDS)
    except OSError:  # it ended just now, or the parent of this process ignores the ends of children
        pass


def _first_limit_seconds() -> float:
    try:
        return min(max(float(os.environ.get(_LIMIT_VARIABLE, FIRST_LIMIT_SECONDS)), 0.5), 60.0)
    except ValueError:
        return FIRST_LIMIT_SECONDS


def _last_words_seconds(limit_seconds: float) -> float:
    """Return the part of the time limit that is kept for saying that it struck."""
    return min(LOG_SECONDS, 0.2 * limit_seconds)


def _last_words(verb: str, what: str, log_path: str, said: list[str], seconds: float) -> None:
    job = os.environ.get("SLURM_JOB_ID", "")
    about = f"job {job}: " if verb in _ON_PATH and job.isdecimal() else ""
    text = f"{verb}: {about}{what}; the next prolog or repair puts settings right"
    _show(f"slurm-energy-hook {text}\n", 2)

    def log() -> None:
        from slurm_energy.node.log import append_lines  # noqa: PLC0415  # rarely needed, and may hang

        append_lines(log_path, [*said, text])

    def system_log() -> None:  # slurmd shows what a hook that succeeds writes in its debug log only
        import socket  # noqa: PLC0415  # rarely needed

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(f"<{_DAEMON_ERROR}>slurm-energy: {text}".encode("utf-8", "replace"), SYSTEM_LOG)

    left = seconds - SHOW_SECONDS if seconds > 2 * SHOW_SECONDS else seconds
    _try(log if log_path else system_log, left, None)


def _show(text: str, descriptor: int) -> None:
    """Write as much as goes without waiting: a pipe that is not read must not hold slurmd up."""
    content = text.encode("utf-8", "replace")
    try:
        if _is_stream(descriptor):
            while content and select.select([], [descriptor], [], 0)[1]:
                # A pipe that takes anything takes this much at once.
                content = content[os.write(descriptor, content[: select.PIPE_BUF]) :]
        elif descriptor not in _hanging and os.readlink(f"/proc/self/fd/{descriptor}") != os.devnull:  # noqa: PTH115
            done = _try(lambda: os.write(descriptor, content), SHOW_SECONDS, descriptor)
            _hanging.update(() if done else (descriptor,))
    except (OSError, ValueError):
        pass


def _is_stream(descriptor: int) -> bool:
    """Return whether it is a pipe, socket or terminal, without asking a file system that may hang."""
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError as error:
        return error.errno == errno.ESPIPE
    return False


def _try(act: Callable[[], object], seconds: float, kept: int | None) -> bool:
    """Do in a process of its own what may hang in a file system, wait no longer than this, and return whether it ended.

    Args:
        act: What to do.
        seconds: How long to wait.
        kept: The one of slurmd's files that it needs.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                if descriptor != kept:
                    os.dup2(null, descriptor)
            os.closerange(3, writer)
            act()
        finally:
            os._exit(0)
    os.close(writer)
    ended = bool(select.select([reader], [], [], seconds)[0])  # end of file
    if ended or kept is None:
        _end(child)  # else what it was to say is said when the file system answers
    os.close(reader)
    return ended


if __name__ == "__main__":
    main()
