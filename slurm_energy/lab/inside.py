"""Run commands inside a lab's namespaces, and see which processes live there."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_energy.errors import LabError


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
    """Return whether process `pid` is process 1 of the lab in `directory`, and not a stranger with its number."""
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


def processes_of(pid_namespace: str) -> list[int]:
    """Return the processes, by their numbers outside, that live in a PID namespace such as `pid:[4026532]`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                link = str((folder / "ns" / "pid").readlink())
            except OSError:
                continue
            if link == pid_namespace:
                found.append(int(folder.name))
    return sorted(found)


def mounts_below(directory: Path) -> list[str]:
    """Return the mount points below a folder that this process sees."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory)]
