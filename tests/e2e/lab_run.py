"""Runs a workload in a laboratory and reads from slurmctld's log, SQL and the simulated GPUs what came of it."""

import cmath
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from energy_lab import reports, until
from mixed_jobs import PARTITIONS, TIME_SCALE, LabJob

from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import submit

BACKFILL_SECONDS = 1.0
# As the laboratory's own, but: one reservation per partition, which is EASY; without it every waiting job has one. And
# no rounding of times: the usual 60 s of wall time are an hour of device time, and looking ahead coarsens itself.
_SCHEDULER_PARAMETERS = (
    "batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=1,bf_window_linear=1,"
    "bf_job_part_count_reserve=1,default_queue_depth=1000,bf_max_job_test=1000"
)
_EVENTS = {
    "submitted": re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) "),
    "started": re.compile(r"(?:sched: Allocate|sched/backfill: _start_job: (?:HETJOB: )?Started) JobId=(\d+) "),
    "ended": re.compile(r"_job_complete: JobId=(\d+) done"),
    "released": re.compile(r"_slurm_rpc_epilog_complete: JobId=(\d+) "),
}
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What came of one job. Times are wall seconds after the run's first moment."""

    submitted: float
    started: float
    ended: float
    released: float
    """When its devices could be given to another job: in the laboratory, at the end of the epilog."""
    joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A workload's run in the laboratory. Latencies are wall seconds: TIME_SCALE times as much device time."""

    jobs: tuple[JobRecord, ...]
    cluster_joules: float
    """Of all GPUs, by the simulator's exact counters."""
    cluster_seconds: float
    """For how much device time."""
    launch_seconds: tuple[float, ...]
    """Of each job: from the allocation to the first instruction, and from the last one to the recorded end."""
    release_seconds: tuple[float, ...]
    """Of each job: from the recorded end to free devices."""
    pass_phase_seconds: float
    """Slurm looks at new jobs, and backfills, this long after the run's first moment plus whole BACKFILL_SECONDS."""


def comparison_spec(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the fixture `new_lab` takes for a laboratory whose scheduler works as the twin's does."""
    return {
        "partitions": PARTITIONS,
        "energy": True,
        "time_scale": TIME_SCALE,
        "settings": {"policy": policy},
        # debug2 logs the end of each epilog.
        # From 26.05 on a start by backfill is logged under that flag.
        "slurm_conf_lines": (
            f"SchedulerParameters={_SCHEDULER_PARAMETERS}",
            "SlurmctldDebug=debug2",
            "DebugFlags=HetJob",
        ),
    }


def run_in_lab(
    lab: Lab, jobs: Sequence[LabJob], limit_seconds: float, slowdown: Mapping[tuple[str, str], float]
) -> LabRun:
    """Submit the jobs at their offsets, wait for their ends and reports, and return what is known of them.

    Args:
        lab: Empty.
        jobs: In the order of their offsets.
        limit_seconds: Of wall time, for all ends after the last submission.
        slowdown: By partition and kind of work, where clocks are lowered.
    """
    joules_before, seconds_before = _exact_counters(lab)
    begin = time.time()
    ids = [_submit_at(lab, job, begin + job.offset_seconds) for job in jobs]
    log = lab.layout.log / "slurmctld.log"
    times = until("end of all jobs", lambda: _all_times(log, ids), limit_seconds)
    joules_after, seconds_after = _exact_counters(lab)
    joules = until("report of every job", lambda: _all_joules(lab, ids))
    records = tuple(
        JobRecord(**{name: times[name][job_id] - begin for name in _EVENTS}, joules=joules[job_id]) for job_id in ids
    )
    return LabRun(
        jobs=records,
        cluster_joules=joules_after - joules_before,
        cluster_seconds=seconds_after - seconds_before,
        launch_seconds=tuple(
            record.ended - record.started - job.work_seconds * slowdown.get((job.partition, job.kind), 1.0)
            for job, record in zip(jobs, records, strict=True)
        ),
        release_seconds=tuple(record.released - record.ended for record in records),
        pass_phase_seconds=_pass_phase(log, begin),
    )


def _submit_at(lab: Lab, job: LabJob, second: float) -> int:
    time.sleep(max(0.0, second - time.time()))
    arguments = ["-p", job.partition, f"--gres=gpu:{job.gpus}", "-c", str(job.cpus), "-t", str(job.limit_minutes)]
    seconds = job.work_seconds * TIME_SCALE
    work = f"simgpu-workload --quiet --profile {job.kind} --seconds-at-default {seconds:g}"
    return submit(lab, [*arguments, "-o", "/dev/null"], wrap=work)


def _all_times(log: Path, ids: Sequence[int]) -> dict[str, dict[int, float]] | None:
    """Return the time of every event of every job, or None while one is missing."""
    times: dict[str, dict[int, float]] = {name: {} for name in _EVENTS}
    for line in log.read_text().splitlines():
        stamp = _STAMP.match(line)
        for name, pattern in _EVENTS.items():
            found = pattern.search(line)
            if found and stamp:
                times[name][int(found[1])] = datetime.fromisoformat(stamp[1]).timestamp()
    return times if all(job_id in times[name] for name in _EVENTS for job_id in ids) else None


def _pass_phase(log: Path, begin: float) -> float:
    """Return the mean phase of the backfill scheduler's starts, on the circle of one interval."""
    starts = [
        datetime.fromisoformat(stamp[1]).timestamp() - begin
        for line in log.read_text().splitlines()
        if "_start_job: Started" in line and (stamp := _STAMP.match(line))
    ]
    turns = sum(cmath.exp(2j * cmath.pi * second / BACKFILL_SECONDS) for second in starts)
    return cmath.phase(turns) / (2.0 * cmath.pi) % 1.0 * BACKFILL_SECONDS


def _all_joules(lab: Lab, ids: Sequence[int]) -> dict[int, float] | None:
    """Return the energy of every job as it is stored, or None while a report is missing."""
    found: dict[int, float] = {}
    for job_id in ids:
        gpus = [gpu for report in reports(lab, job_id) for gpu in report.gpus]
        if not gpus:
            return None
        unknown = [gpu.reason for gpu in gpus if gpu.joules is None]
        assert not unknown, f"energy of job {job_id} is unknown: {unknown}"
        found[job_id] = sum(gpu.joules or 0.0 for gpu in gpus)
    return found


def _exact_counters(lab: Lab) -> tuple[float, float]:
    """Return the true energy of all GPUs so far, and the mean of their device times."""
    readings = []
    for node in lab.spec.node_names:
        with lab.gpu_state(node) as state:
            readings += [gpu.reading() for gpu in state.gpus]
    return sum(each.energy_joules for each in readings), fmean(each.device_seconds for each in readings)
