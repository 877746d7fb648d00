"""Read how many steps a job's own program says it has done: a small file that its user writes and root reads.

The user may put anything there: a link, a pipe, another's file, gigabytes, a mount. So nothing is opened before it is
known to be a plain file of the job's user in the folder itself, a read is bounded, and nothing in it is believed beyond
a number that grows. From two windows of counts follows the slowdown between them.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, isfinite, sqrt

from slurm_energy.domain.ids import JobId

MAX_BYTES = 128
MAX_STEPS = 1 << 53
MAX_FUTURE_SECONDS = 0.01
"""A step that ends later than now by more has no time of its own."""
MIN_COUNTS = 6
BLOCKS = 8
MAX_ERROR = 0.008
"""As of the detector: a slowdown is answered only when its standard error is at most this."""
FLOOR_ERROR = 0.001
SLACK = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Steps that a program says it has done, and when the last one ended."""

    steps: int
    at_seconds: float
    """Monotonic time of this machine."""


def progress_name(job_id: JobId) -> str:
    """Return the name of a job's file in the folder for progress."""
    return f"slurm-energy-progress.{job_id}"


@dataclass(slots=True, kw_only=True)
class StepCounter:
    """What a job's program has counted so far, as far as this node could follow it."""

    file: "ProgressFile"
    first: StepCount | None = None
    last: StepCount | None = None
    window: list[StepCount] | None = None
    """Where counts of a window that is measured are kept, too."""

    def look(self, now_seconds: float) -> None:
        """Take in a count that grew; one that fell begins again."""
        count = self.file.read(now_seconds)
        if count is None:
            return
        if self.last is None or count.steps < self.last.steps:
            self.first = count
        self.last = count
        if self.window is not None:
            self.window.append(count)

    def note(self, watts: float | None) -> str:
        """Return what a step took, empty where none were counted; `watts` is the mean power of the job's GPUs."""
        first, last = self.first, self.last
        if first is None or last is None or last.steps <= first.steps:
            return f"progress file not read: {self.file.problem}" if self.file.problem else ""
        steps = last.steps - first.steps
        seconds = (last.at_seconds - first.at_seconds) / steps
        note = f"progress: {steps} steps of {seconds:.3g} s"
        return note if watts is None else f"{note} and about {watts * seconds:.4g} J"


class ProgressFile:
    """One job's file; it may appear, change and disappear at any time."""

    def __init__(self, folder: str, job_id: JobId, user_id: int) -> None:
        self._folder = folder
        self._name = progress_name(job_id)
        self._user_id = user_id
        self._last: StepCount | None = None
        self.problem = ""
        """Why the file that is there is not read; empty while there is none, or it is."""

    def read(self, now_seconds: float) -> StepCount | None:
        """Return the count if it grew since the last look, else None.

        A count that fell begins a new measurement: it is returned, and the caller sees that it is lower.
        """
        content = self._content()
        found = None if content is None else _parse(content, now_seconds)
        if found is None or (self._last is not None and found.steps == self._last.steps):
            return None
        if self._last is not None and found.steps > self._last.steps and found.at_seconds <= self._last.at_seconds:
            found = StepCount(steps=found.steps, at_seconds=now_seconds)
        self._last = found
        return found

    def remove(self) -> None:
        """Remove what the job left, if it is its user's."""
        with suppress(OSError):
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
                if status.st_uid == self._user_id and not stat.S_ISDIR(status.st_mode):
                    os.unlink(self._name, dir_fd=folder)
            finally:
                os.close(folder)

    def _content(self) -> bytes | None:
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            self.problem = _folder_problem(os.fstat(folder))
            if self.problem:
                return None
            try:
                handle = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                return None
            try:
                # First whether something is mounted there: a file system of the user's own may never answer a stat.
                self.problem = (
                    "something is mounted on it"
                    if _mount_number(handle) != _mount_number(folder)
                    else _file_problem(os.fstat(handle), self._user_id)
                )
                return None if self.problem else _read_behind(handle)
            finally:
                os.close(handle)
        except OSError as error:
            self.problem = f"it cannot be read: {error.strerror}"
            return None
        finally:
            os.close(folder)


def _read_behind(handle: int) -> bytes:
    """Return the beginning of the file that a path handle stands for: no other can have come in its place."""
    descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, MAX_BYTES, 0)
    finally:
        os.close(descriptor)


def _folder_problem(status: os.stat_result) -> str:
    if status.st_uid != 0:
        return "the folder for progress is not root's"
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return "the folder for progress lets users replace each other's files: it needs the sticky bit"
    return ""


def _file_problem(status: os.stat_result, user_id: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is no plain file"
    if status.st_uid != user_id:
        return f"it belongs to user {status.st_uid}, the job to {user_id}"
    if status.st_mode & 0o022:
        return "others can write to it"
    return ""


def _mount_number(descriptor: int) -> str:
    """Return which mount a handle lies on, without asking its file system."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:  # noqa: PTH123  # one line of a small file
        return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")


def _parse(content: bytes, now_seconds: float) -> StepCount | None:
    """Return the count in the first line, `STEPS [MONOTONIC SECONDS [STEPS]]`; None when there is none."""
    line, newline, _ = content.partition(b"\n")
    words = line.split()
    if not newline or not 1 <= len(words) <= 3 or not words[0].isdigit() or len(words[0]) > 16:
        return None
    steps = int(words[0])
    if steps > MAX_STEPS or (len(words) == 3 and words[2] != words[0]):
        return None
    at_seconds = now_seconds
    if len(words) > 1:
        with suppress(ValueError):
            said = float(words[1])
            if isfinite(said) and now_seconds - 3600.0 < said <= now_seconds + MAX_FUTURE_SECONDS:
                at_seconds = said
    return StepCount(steps=steps, at_seconds=at_seconds)


def step_seconds(counts: Sequence[StepCount]) -> tuple[float, float] | None:
    """Return the time of one step and its relative standard error; None when the counts say nothing.

    A count that fell in between belongs to another loop: then nothing is said.
    """
    if len(counts) < MIN_COUNTS or any(one.steps >= two.steps for one, two in pairwise(counts)):
        return None
    total = (counts[-1].at_seconds - counts[0].at_seconds) / (counts[-1].steps - counts[0].steps)
    edges = sorted({round(part * (len(counts) - 1) / BLOCKS) for part in range(BLOCKS + 1)})
    blocks = []
    for begin, end in pairwise(edges):
        blocks.append((counts[end].at_seconds - counts[begin].at_seconds) / (counts[end].steps - counts[begin].steps))
    if total <= 0.0 or min(blocks) <= 0.0:
        return None
    mean = sum(blocks) / len(blocks)
    variance = sum((block - mean) ** 2 for block in blocks) / (len(blocks) - 1)
    return total, sqrt(variance / len(blocks)) / mean


def slowdown_by_steps(
    before: Sequence[StepCount], after: Sequence[StepCount], highest: float
) -> tuple[float, float] | str:
    """Return slowdown and standard error, or why they are not known.

    Args:
        before: Counts in a window at the default clock.
        after: Counts in a window at a lower clock.
        highest: The slowdown of work that the clock alone paces.
    """
    one, two = step_seconds(before), step_seconds(after)
    if one is None or two is None:
        return "the program counted too few steps"
    slowdown = two[0] / one[0] - 1.0
    error = (1.0 + slowdown) * hypot(one[1], two[1], FLOOR_ERROR)
    if error > MAX_ERROR:
        return f"steps vary too much: standard error {100.0 * error:.1f} points"
    if not -SLACK - 2.0 * error <= slowdown <= highest + SLACK + 2.0 * error:
        return f"{100.0 * slowdown:.1f} % by the program's steps is no slowdown that the clocks can make"
    return min(max(slowdown, 0.0), highest), error
