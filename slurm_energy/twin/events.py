"""The queue of future events: (time, order of making, kind, subject, version), earliest first."""

from collections.abc import Callable
from heapq import heappush
from math import inf

from slurm_energy.twin.job_run import JobRun

FINISH, BEGIN, REACH, CALL, BACKGROUND = range(5)
"""FINISH and BEGIN concern a job and mean nothing when its version has moved on; REACH is a routed job's arrival at its
place; CALL calls its subject with the time; BACKGROUND is a CALL that alone keeps no run going."""

Call = Callable[[float], None]
Event = tuple[float, int, int, JobRun | Call, int]


def _never(now: float) -> None:
    """Stand for what the event at the end of time would do."""
    raise AssertionError(f"the end of time came at {now} s")


class Events:
    """A heap of events; events of the same time keep the order in which they were made.

    The last one never comes, so that there is always a next one to look at.
    """

    __slots__ = ("background", "heap", "made")

    def __init__(self) -> None:
        self.heap: list[Event] = [(inf, 0, BACKGROUND, _never, 0)]
        self.made = 0
        self.background = 1
        """Background events in the heap, with the one that never comes."""

    @property
    def only_background(self) -> bool:
        """Whether nothing is to come that keeps a run going."""
        return len(self.heap) == self.background

    def add_job(self, time: float, kind: int, run: JobRun) -> None:
        """Add an event of a job."""
        self.made += 1
        heappush(self.heap, (time, self.made, kind, run, run.version))

    def add_call(self, time: float, call: Call, *, background: bool = False) -> None:
        """Add a call."""
        self.made += 1
        self.background += background
        heappush(self.heap, (time, self.made, BACKGROUND if background else CALL, call, 0))
