"""Start the process that holds a lab's namespaces, and follow how the lab comes up."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.host import SYSTEM_PATH
from slurm_energy.lab.layout import Layout

SCRIPTS = Path(__file__).resolve().parent
_POLL_SECONDS = 0.05
_TAIL_LINES = 15

Progress = Callable[[str], None]


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


def launch(layout: Layout, *, owned: bool, keep: bool) -> Launcher:
    """Start a lab's namespaces around a prepared folder."""
    reader, writer = os.pipe() if owned else (os.open(os.devnull, os.O_RDONLY), None)
    try:
        process = subprocess.Popen(
            [
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
    told = 0
    while True:
        ended = launcher.process.poll() is not None
        steps = _lines(layout.log / "start.log")
        for step in steps[told:]:
            if step == "up":
                return
            progress(step)
        told = len(steps)
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
