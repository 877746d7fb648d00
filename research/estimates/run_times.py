"""Run times of the Philly trace in the order in which they happened: what each estimator said of the next job."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from time import process_time
from zlib import crc32

from slurm_energy.energy_model.calibration.files import read_rows
from slurm_energy.estimation.run_time import RUNS_PER_NAME, EndedRun, RunTimeModel, RunTimes

_LIMITS_HOURS = (1.0, 4.0, 12.0, 24.0, 48.0, 96.0, 168.0, 336.0, 1200.0)
_JUDGED_FROM = 0.5
"""Share of the trace that is only seen."""
_EACH = 15
"""Of the rest, one of so many is asked about."""
_LOOKED_EACH = 20
"""Questions between two looks at all runs together; the daemon looks every five minutes."""
_SEVERAL = 5


@dataclass(frozen=True, slots=True)
class TracedJob:
    """One job of the trace, with a limit as users set them."""

    submitted_seconds: float
    seconds: float
    user: str
    name: str
    limit_seconds: float


def read_philly(data: Path) -> list[TracedJob]:
    """Return the trace's jobs by submission.

    It names neither user nor job: a virtual cluster stands for a user, its number of GPUs and its hour of the week for
    a name. It has no limit: the next step above the run time, or one to three steps more, by a hash of the row.
    """
    columns = ("submit_time", "duration_s", "num_gpus", "vc")
    found = []
    for number, row in enumerate(read_rows(data / "philly_trace" / "philly_jobs.csv", columns)):
        seconds = row.number("duration_s", 0.0)
        if seconds <= 0.0:
            continue
        at = datetime.fromisoformat(row.text("submit_time"))
        user, gpus = row.text("vc"), row.count("num_gpus", 1)
        steps = [hours for hours in _LIMITS_HOURS if 3600.0 * hours >= seconds] or [_LIMITS_HOURS[-1]]
        limit = 3600.0 * steps[min(crc32(f"{user}{number // 20}".encode()) % 4, len(steps) - 1)]
        name = f"{gpus} {at.hour // 6} {at.toordinal() // 3}"
        found.append(TracedJob(at.timestamp(), min(seconds, limit), user, name, limit))
    return sorted(found, key=lambda job: job.submitted_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeScore:
    """How run times were estimated."""

    underestimates: float
    """Share of jobs that ran longer than the upper end."""
    middle_error: float
    """Median factor between middle and truth."""
    room: float
    """Median of the upper end over the truth."""
    loss: float
    """Mean pinball loss of the logarithm at 0.95 of the upper end."""
    num: int


def judge_run_times(jobs: Sequence[TracedJob]) -> dict[str, RunTimeScore]:
    """Return the score of each estimator, each job estimated from those that had ended when it was submitted."""
    said: dict[str, list[tuple[float, float, float]]] = {}
    history, ended = RunTimes(), list[tuple[float, int]]()
    model = history.model()
    begins = int(len(jobs) * _JUDGED_FROM)
    for number, job in enumerate(jobs):
        while ended and ended[0][0] <= job.submitted_seconds:
            done = jobs[heapq.heappop(ended)[1]]
            cut_off = done.seconds >= done.limit_seconds
            history.add(
                EndedRun(
                    user=done.user,
                    name=done.name,
                    seconds=done.seconds,
                    limit_seconds=done.limit_seconds,
                    cut_off=cut_off,
                    submitted_at_seconds=done.submitted_seconds,
                    ended_at_seconds=done.submitted_seconds + done.seconds,
                )
            )
        if number >= begins and number % _EACH == 0:
            if number % (_EACH * _LOOKED_EACH) == 0:
                model = history.model()
            own = tuple(history.names.get((job.user, job.name), ()))[-RUNS_PER_NAME:]
            for label, middle, upper in _answers(job, model, own):
                said.setdefault(label, []).append((middle, upper, job.seconds))
        heapq.heappush(ended, (job.submitted_seconds + job.seconds, number))
    return {label: _score(rows) for label, rows in said.items()}


def run_times_table(data: Path) -> str:
    """Return the scores as a table, and what one estimate costs."""
    jobs = read_philly(data)
    start = process_time()
    scores = judge_run_times(jobs)
    lines = [
        "| estimator | jobs | ran past upper end | upper end over truth, median | middle off by a factor | loss |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for label, one in scores.items():
        figures = f"{one.room:.1f} | {one.middle_error:.1f} | {one.loss:.2f}"
        lines.append(f"| {label} | {one.num} | {100 * one.underestimates:.1f} % | {figures} |")
    lines.append(f"\nAll of it took {process_time() - start:.0f} s of CPU time.")
    return "\n".join(lines)


def _answers(job: TracedJob, model: RunTimeModel, own: Sequence[EndedRun]) -> Iterator[tuple[str, float, float]]:
    known = model.of_runs(own) if own else model.of_other_jobs(job.user)
    if known is None:
        return
    _, middle, upper = known.quantiles(job.limit_seconds)
    seconds = [run.seconds for run in own]
    yield "distribution, all jobs", middle, upper
    yield "user's limit, all jobs", job.limit_seconds, job.limit_seconds
    for label, enough in (
        (f"names with {_SEVERAL} runs or more", len(own) >= _SEVERAL),
        ("names with runs", bool(own)),
    ):
        if enough:
            yield f"distribution, {label}", middle, upper
            yield f"mean of user and name, {label}", fmean(seconds), fmean(seconds)
            yield f"longest of user and name, {label}", *longest_of_name(seconds)
    if not own:
        yield "distribution, first run of a name", middle, upper


def longest_of_name(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median of earlier runs, and the longest with a margin of 1/n where they are few.

    The longest of n runs is passed by the next with probability 1/(n + 1) if they are alike and independent.
    """
    longest = max(seconds)
    return median(seconds), longest if len(seconds) >= 19 else longest * (1.0 + 1.0 / len(seconds))


def _score(rows: Sequence[tuple[float, float, float]]) -> RunTimeScore:
    logs = [math.log(truth / upper) for _, upper, truth in rows]
    return RunTimeScore(
        underestimates=fmean(float(truth > upper * (1.0 + 1e-9)) for _, upper, truth in rows),
        middle_error=math.exp(median(abs(math.log(truth / middle)) for middle, _, truth in rows)),
        room=median(upper / truth for _, upper, truth in rows),
        loss=fmean(0.95 * max(one, 0.0) + 0.05 * max(-one, 0.0) for one in logs),
        num=len(rows),
    )
