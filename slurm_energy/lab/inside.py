"""Processes of a lab: start the one that holds its namespaces, run commands inside, see what lives there."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.host import SYSTEM_PATH
from slurm_energy.lab.layout import Layout

SCRIPTS = Path(__file__).resolve().parent
_POLL_SECONDS = 0.05
_TAIL_LINES = 15
Progress = Callable[[str], None]


def namespace_argv(init_pid: int) -> list[str]:
    """Return the start of a command line that enters the namespaces of a lab's process 1.

    --root, because entering a mount namespace leaves a chroot, in which this process may be.
    """
    own = Path("/proc/self/ns/net").readlink() == Path(f"/proc/{init_pid}/ns/net").readlink()
    kinds = ["--mount", "--uts", "--ipc", "--pid", "--root", *([] if own else ["--net"])]
    return ["nsenter", "--target", str(init_pid), *kinds, "--"]


def user_argv(user: str | None, home: Path, argv: Sequence[str]) -> list[str]:
    """Return a command line that runs `argv` as a user in his home; None is root."""
    become = [] if user is None else ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
    return [*become, "env", "-C", str(home), *argv]


def user_environment(user: str | None, home: Path, base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fresh login: nothing of the caller's own but TERM."""
    name = user or "root"
    fresh = {"HOME": str(home), "USER": name, "LOGNAME": name, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
    return {"TERM": os.environ.get("TERM", "dumb")} | fresh | dict(base) | dict(extra)


def run_with_limit(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float, standard_input: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a command; when the time is over, end its whole process group.

    Raises:
        LabError: it did not end in time; the message has what it wrote.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if standard_input is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        env=dict(environment),
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(standard_input, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise LabError(
                f"{' '.join(argv[-6:])} did not end within {timeout:g} s; it wrote {output[-500:]!r} {errors[-500:]!r}"
            ) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def is_init_of(pid: int, directory: Path) -> bool:
    """Return whether process `pid` is process 1 of the lab in `directory`, and not another process with its number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/entry.sh") for word in words) and os.fsencode(directory) in words


def has_ended(pid: int) -> bool:
    """Return whether a PID namespace's process 1 has ended, and so every other process in it.

    Its command line is empty a while before that: the kernel first ends all others, and then makes it a zombie.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


@dataclass(slots=True)
class Launcher:
    """The process outside that holds a lab's namespaces.

    An owned lab hangs on `lifeline`, a pipe whose writing end only this process has: when this process ends,
    however it ends, the kernel closes the pipe and the launcher kills the lab.
    """

    process: "subprocess.Popen[bytes]"
    lifeline: int | None

    def kill(self) -> None:
        """End the launcher, and the lab with it, at once."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """Wait for the launcher's end and let the pipe go."""
        self.process.wait(timeout=20)
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None


def launch(layout: Layout, *, owned: bool, keep: bool, entry: Sequence[str] = ()) -> Launcher:
    """Start a lab's namespaces around a prepared folder; `entry` leads into another root file system."""
    reader, writer = os.pipe() if owned else (os.open(os.devnull, os.O_RDONLY), None)
    try:
        process = subprocess.Popen(
            [
                *entry,
                "/bin/sh",
                str(SCRIPTS / "launch.sh"),
                str(layout.directory),
                "owned" if owned else "detached",
                "keep" if keep else "remove",
            ],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        if writer is not None:
            os.close(writer)
        raise
    finally:
        os.close(reader)
    return Launcher(process=process, lifeline=writer)


def follow(layout: Layout, launcher: Launcher, limit_seconds: float, progress: Progress) -> None:
    """Wait until every daemon of a lab answers, and tell each step.

    Raises:
        LabError: a step failed or the time is over; the message has the end of the logs.
    """
    end = time.monotonic() + limit_seconds
    reported = 0
    while True:
        ended = launcher.process.poll() is not None
        steps = _lines(layout.log / "start.log")
        for step in steps[reported:]:
            if step == "up":
                return
            progress(step)
        reported = len(steps)
        last = steps[-1] if steps else "starting"
        if ended:
            raise LabError(f"the lab in {layout.directory} {last}:\n{failure_text(layout)}")
        if time.monotonic() > end:
            raise LabError(
                f"the lab in {layout.directory} is not up after {limit_seconds:g} s, it is still {last}:\n"
                f"{failure_text(layout)}"
            )
        time.sleep(_POLL_SECONDS)


def failure_text(layout: Layout) -> str:
    """Return the ends of the logs that tell why a start failed."""
    parts = []
    for path in log_paths(layout):
        lines = _lines(path)
        if path.name == "entry.log":
            parts += lines[-_TAIL_LINES:]
        else:
            parts += [f"{path.name}: {line}" for line in lines if "error" in line.lower() or "fatal" in line][-3:]
    return "\n".join(parts) or "no log was written"


def log_paths(layout: Layout) -> tuple[Path, ...]:
    """Return every log of a lab that exists, the lab's own first."""
    own = [layout.log / "start.log", layout.log / "entry.log"]
    others = sorted([*layout.log.glob("*.log"), *(layout.directory / "munge").glob("*.log")])
    return tuple(path for path in dict.fromkeys([*own, *others]) if path.exists())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
