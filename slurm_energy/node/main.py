"""slurm-energy-hook: what slurmd runs before and after each job, and timers run between.

The work is done by a child process. A call that hangs in the GPU driver cannot be interrupted by a signal handler,
so this process waits with a deadline, kills the child and exits 0: a job never fails or waits longer for us. What the
child had changed by then is in its saved state, and the next prolog or repair puts it back.
"""

import gc
import os
import select
import signal
import sys
import time

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
_LIMIT_VARIABLE = "SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS"
_VERBS = frozenset({"prolog", "epilog", "flush", "repair", "sample"})
_ON_PATH = frozenset({"prolog", "epilog"})
_GPU_VARIABLES = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
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
    if verb == "prolog" and not any(os.environ.get(name) for name in _GPU_VARIABLES):
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
    from slurm_energy.node.commands import run_sample  # noqa: PLC0415  # after the signal mask

    return run_sample(options, os.environ)


def _supervise(verb: str, options: dict[str, str]) -> int:
    if verb in _ON_PATH:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work(verb, options, writer)
    os.close(writer)
    return _watch(child, reader, verb)


def _work(verb: str, options: dict[str, str], writer: int) -> None:
    """Be the child: never returns, and holds none of slurmd's files, on whose end slurmd would wait."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.closerange(3, writer)
        os.closerange(writer + 1, 1024)
        gc.disable()  # a process of a tenth of a second needs no collector, and starts faster without
        from slurm_energy.node.commands import Progress, execute  # noqa: PLC0415  # under the deadline

        progress = Progress(writer)
        try:
            status = execute(verb, options, os.environ, progress)
        except Exception as error:  # noqa: BLE001  # the hook's outermost call, child's side
            progress.echo(f"{verb}: {type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _watch(child: int, reader: int, verb: str) -> int:
    """Pass on what the child says until it ends or its time is over."""
    started = time.monotonic()
    words = {"T": f"{_first_limit_seconds()}", "S": "starting", "F": ""}
    buffer = b""
    while True:
        left = started + float(words["T"]) - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return _give_up(child, verb, words)
        chunk = os.read(reader, 65_536)
        if not chunk:
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            kind, text = line[:1].decode("ascii", "replace"), line[1:].decode("utf-8", "replace")
            if kind == "L":
                _show(f"slurm-energy-hook {text}\n", 2)
            else:
                words[kind] = text
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _first_limit_seconds() -> float:
    try:
        return min(max(float(os.environ.get(_LIMIT_VARIABLE, FIRST_LIMIT_SECONDS)), 0.5), 60.0)
    except ValueError:
        return FIRST_LIMIT_SECONDS


def _give_up(child: int, verb: str, words: dict[str, str]) -> int:
    os.kill(child, signal.SIGKILL)
    job = os.environ.get("SLURM_JOB_ID", "")
    about = f"job {job}: " if verb in _ON_PATH and job.isdecimal() else ""
    what = f"gave up after {words['T']} s while {words['S']}"
    text = f"{verb}: {about}{what}; the next prolog or repair puts settings right"
    _show(f"slurm-energy-hook {text}\n", 2)
    from slurm_energy.node.log import append_line  # noqa: PLC0415  # rarely needed

    append_line(words["F"], text)
    return 1


def _show(text: str, descriptor: int) -> None:
    try:  # noqa: SIM105  # contextlib would be one more import
        os.write(descriptor, text.encode("utf-8", "replace"))
    except OSError:
        pass


if __name__ == "__main__":
    main()
