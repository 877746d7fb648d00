"""One workload in the laboratory (real slurmctld, simulated GPUs) and in its twin, and what differs.

Times of a laboratory run are wall seconds after its first moment; the twin's are device seconds, TIME_SCALE as many.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import fmean, quantiles

from energy_lab import reports, until

from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit
from slurm_energy.lab.slurm_files import CPUS_PER_NODE
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.twin.engine import run
from slurm_energy.twin.job import Job, Workload
from slurm_energy.twin.outcome import Outcome
from slurm_energy.twin.world import World
from slurm_energy.twin.world_file import shipped_world

TIME_SCALE = 60.0
PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=1, gpus_per_node=8),
    PartitionSpec(name="v100", nodes=1, gpus_per_node=4),
)
BACKFILL_SECONDS = 1.0
# As the laboratory's own, but: one reservation per partition, which is EASY; without it every waiting job has one. And
# no rounding of times: the usual 30 and 60 s of wall time are half and a whole hour of device time.
SCHEDULER_PARAMETERS = (
    "batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=1,bf_window_linear=1,"
    "bf_job_part_count_reserve=1,default_queue_depth=1000,bf_max_job_test=1000"
)
# debug2 logs the end of each epilog.
SLURM_CONF_LINES = (f"SchedulerParameters={SCHEDULER_PARAMETERS}", "SlurmctldDebug=debug2")

_COUNTS = {"a100": (1, 1, 1, 2, 2, 3, 4), "a40": (1, 1, 2, 2, 3, 4, 6, 8), "v100": (1, 1, 1, 2, 4)}
_KINDS = ("training", "compute", "memory", "host")
_EVENTS = {
    "submitted": re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) "),
    "started": re.compile(r"(?:sched: Allocate|sched/backfill: _start_job: Started) JobId=(\d+) "),
    "ended": re.compile(r"_job_complete: JobId=(\d+) done"),
    "released": re.compile(r"_slurm_rpc_epilog_complete: JobId=(\d+) "),
}
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabJob:
    """What is submitted. Times are wall seconds."""

    offset_seconds: float
    work_seconds: float
    """At the default clock."""
    gpus: int
    partition: str
    kind: str
    limit_minutes: int

    @property
    def cpus(self) -> int:
        """CPUs in proportion to GPUs: Slurm packs nodes by CPUs, the twin by GPUs."""
        return self.gpus * CPUS_PER_NODE // _partition(self.partition).gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What came of one job. Times are wall seconds after the run's first moment."""

    submitted: float
    started: float
    ended: float
    released: float
    """When its devices could be given to another job: in the laboratory, the end of the epilog."""
    joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A workload's run in the laboratory."""

    jobs: tuple[JobRecord, ...]
    cluster_joules: float
    """Of all GPUs, by the simulator's exact counters."""
    device_seconds: float
    """How long those counters were watched."""
    by_backfill: int
    """Jobs that the backfill scheduler started although one of their partition before them waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What Slurm and the hooks take of wall time; 60-fold in device time."""

    launch_seconds: float
    """Mean time from allocation to the first instruction, and from the last one to the recorded end."""
    release_seconds: float
    """Mean time from the recorded end to free devices."""
    cycle_spread_seconds: float
    """Range that holds the middle 80 % of launch and release together."""

    @property
    def noise_seconds(self) -> float:
        """By how much two starts may differ that would swap in another run: one pass and the spread of one job."""
        return BACKFILL_SECONDS + self.cycle_spread_seconds


def mixed_jobs(count: int, seed: int, mean_gap_seconds: float) -> tuple[LabJob, ...]:
    """Return jobs over all partitions, widths and kinds of work that queue up; users ask for far too much time."""
    random = Random(seed)
    jobs = []
    offset = 0.0
    for _ in range(count):
        partition = random.choices(("a100", "a40", "v100"), (8, 8, 3))[0]
        jobs.append(
            LabJob(
                offset_seconds=offset,
                work_seconds=round(random.uniform(5.0, 20.0), 1),
                gpus=random.choice(_COUNTS[partition]),
                partition=partition,
                kind=random.choice(_KINDS),
                limit_minutes=random.choice((1, 1, 2, 3)),
            )
        )
        offset += random.expovariate(1.0 / mean_gap_seconds)
    return tuple(jobs)


def run_in_lab(lab: Lab, jobs: Sequence[LabJob], limit_seconds: float) -> LabRun:
    """Submit the jobs at their offsets, wait for all ends and reports, and return what Slurm's log and SQL say."""
    before = _exact_joules(lab)
    begin, ids = time.time(), []
    for job in jobs:
        time.sleep(max(0.0, begin + job.offset_seconds - time.time()))
        arguments = ["-p", job.partition, f"--gres=gpu:{job.gpus}", "-c", str(job.cpus), "-t", str(job.limit_minutes)]
        seconds = job.work_seconds * TIME_SCALE
        work = f"simgpu-workload --quiet --profile {job.kind} --seconds-at-default {seconds:g}"
        ids.append(submit(lab, [*arguments, "-o", "/dev/null"], wrap=work))
    log = lab.layout.log / "slurmctld.log"
    times = until("end of all jobs", lambda: _all_times(log, ids), limit_seconds)
    after = _exact_joules(lab)
    joules = until("report of every job", lambda: _all_joules(lab, ids))
    records = tuple(
        JobRecord(**{name: times[name][job_id] - begin for name in _EVENTS}, joules=joules[job_id]) for job_id in ids
    )
    return LabRun(
        jobs=records,
        cluster_joules=after[0] - before[0],
        device_seconds=after[1] - before[1],
        by_backfill=_overtaking(jobs, records),
    )


def latencies_of(jobs: Sequence[LabJob], lab_run: LabRun, slowdowns: Mapping[str, float] | None = None) -> Latencies:
    """Return the mean latencies of a run; `slowdowns` are those of lowered clocks, by partition and kind."""
    factor = slowdowns or {}
    launches = [
        record.ended - record.started - job.work_seconds * factor.get(f"{job.partition}/{job.kind}", 1.0)
        for job, record in zip(jobs, lab_run.jobs, strict=True)
    ]
    releases = [record.released - record.ended for record in lab_run.jobs]
    tenths = quantiles([a + b for a, b in zip(launches, releases, strict=True)], n=10)
    return Latencies(
        launch_seconds=fmean(launches),
        release_seconds=fmean(releases),
        cycle_spread_seconds=tenths[8] - tenths[0],
    )


def lab_world(latencies: Latencies) -> World:
    """Return the shipped world with this laboratory's nodes and latencies.

    A job's devices stay taken through the epilog: the twin has that time in front of the work, with the launch, and
    `run_in_twin` takes it off again. Neither launch nor epilog holds a GPU context, so the device idles as a free one.
    """
    world = shipped_world("lab")
    return replace(
        world,
        pools=tuple(replace(pool, nodes=_partition(pool.name).nodes) for pool in world.pools),
        devices={name: replace(device, context_watts=device.free_watts) for name, device in world.devices.items()},
        launch_seconds=(latencies.launch_seconds + latencies.release_seconds) * TIME_SCALE,
        backfill_interval_seconds=BACKFILL_SECONDS * TIME_SCALE,
    )


def run_in_twin(
    world: World, jobs: Sequence[LabJob], submitted: Iterable[float], rule: PlacementRule, release_seconds: float
) -> tuple[JobRecord, ...]:
    """Return what the twin makes of the jobs, submitted at the wall seconds given; in wall seconds too."""
    outcome = outcome_in_twin(world, jobs, submitted, rule)
    records = []
    for row, job in enumerate(jobs):
        released = outcome.ended_seconds[row] / TIME_SCALE
        idle_watts = world.devices[job.partition].free_watts
        records.append(
            JobRecord(
                submitted=outcome.submitted_seconds[row] / TIME_SCALE,
                started=outcome.started_seconds[row] / TIME_SCALE,
                ended=released - release_seconds,
                released=released,
                joules=outcome.energy_joules[row] - idle_watts * job.gpus * release_seconds * TIME_SCALE,
            )
        )
    return tuple(records)


def outcome_in_twin(
    world: World,
    jobs: Sequence[LabJob],
    submitted: Iterable[float],
    rule: PlacementRule,
    horizon_seconds: float | None = None,
) -> Outcome:
    """Run the jobs in the twin. A unit is a second of an A100, over all GPUs of the job together."""
    rows = []
    for number, (job, second) in enumerate(zip(jobs, submitted, strict=True), start=1):
        load = world.devices[job.partition].loads[job.kind]
        rows.append(
            Job(
                job_id=number,
                submitted_seconds=second * TIME_SCALE,
                true_units=job.work_seconds * TIME_SCALE * job.gpus / load.seconds_per_unit[-1],
                kind=job.kind,
                gpu_counts=(job.gpus,),
                time_limit_seconds=job.limit_minutes * 60.0 * TIME_SCALE,
                partitions=(job.partition,),
                cpus=job.cpus,
            )
        )
    return run(world, Workload(name="mixed", jobs=tuple(rows)), rule, horizon_seconds=horizon_seconds)


def swapped_pairs(
    first: Sequence[JobRecord], second: Sequence[JobRecord], noise_seconds: float
) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs whose starts are clearly apart in `first` and in the other order in `second`.

    The Kendall distance over the pairs whose starts in `first` differ by more than the noise, as a list of the pairs
    that count, and how many pairs were compared.
    """
    starts = sorted((record.started, number) for number, record in enumerate(first))
    swapped, compared = [], 0
    for place, (start, number) in enumerate(starts):
        for later, other in starts[place + 1 :]:
            if later - start > noise_seconds:
                compared += 1
                if second[other].started < second[number].started:
                    swapped.append((number, other))
    return swapped, compared


def _partition(name: str) -> PartitionSpec:
    return next(partition for partition in PARTITIONS if partition.name == name)


def _all_times(log: Path, ids: Sequence[int]) -> dict[str, dict[int, float]] | None:
    """Return the time of every event of every job, or None while one is missing."""
    times: dict[str, dict[int, float]] = {name: {} for name in _EVENTS}
    for line in log.read_text().splitlines():
        for name, pattern in _EVENTS.items():
            found, stamp = pattern.search(line), _STAMP.match(line)
            if found and stamp:
                times[name][int(found[1])] = datetime.fromisoformat(stamp[1]).timestamp()
    return times if all(job_id in times[name] for name in _EVENTS for job_id in ids) else None


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


def _exact_joules(lab: Lab) -> tuple[float, float]:
    """Return the true energy of all GPUs so far, and the mean of their device times."""
    readings = []
    for node in lab.spec.node_names:
        with lab.gpu_state(node) as state:
            readings += [gpu.reading() for gpu in state.gpus]
    return sum(each.energy_joules for each in readings), fmean(each.device_seconds for each in readings)


def _overtaking(jobs: Sequence[LabJob], records: Sequence[JobRecord]) -> int:
    """Return how many jobs started while one of their partition that was submitted before them waited."""
    return sum(
        any(
            other.partition == job.partition and records[before].started > records[number].started
            for before, other in enumerate(jobs[:number])
        )
        for number, job in enumerate(jobs)
    )
