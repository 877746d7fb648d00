"""Runs a laboratory's workload in the twin, and says in which of two orders jobs started."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

import numpy as np
from lab_run import BACKFILL_SECONDS, JobRecord, LabRun
from mixed_jobs import TIME_SCALE, LabJob, partition_named
from numpy.typing import NDArray

from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import shipped_world

_REPETITIONS = 100
# Latencies of a repetition lie so many times as far from their mean as the measured ones.
_SPREAD = 2.0
_DRIFT_SECONDS = 0.2
_JUST_BEFORE_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinRun:
    """A workload's run in the twin; times of its records are wall seconds."""

    jobs: tuple[JobRecord, ...]
    cluster_joules: float
    """Of all GPUs, for as much device time as the laboratory's were watched."""


def run_in_twin(jobs: Sequence[LabJob], lab_run: LabRun, rule: str) -> TwinRun:
    """Return what the twin makes of the jobs, given when they were submitted, mean latencies and Slurm's passes."""
    world, release = _world(lab_run), fmean(lab_run.release_seconds)
    submitted = [record.submitted for record in lab_run.jobs]
    phase = lab_run.pass_phase_seconds
    outcome = _outcome(world, jobs, submitted, phase, rule)
    free_watts = sum(world.devices[pool.device].free_watts * pool.nodes * pool.gpus_per_node for pool in world.pools)
    started, released = _wall(outcome.started_seconds, phase), _wall(outcome.ended_seconds, phase)
    held_joules = [world.devices[job.partition].free_watts * job.gpus * release * TIME_SCALE for job in jobs]
    return TwinRun(
        jobs=tuple(
            JobRecord(
                submitted=submitted[row],
                started=float(started[row]),
                ended=float(released[row] - release),
                released=float(released[row]),
                joules=float(outcome.energy_joules[row] - held_joules[row]),
            )
            for row in range(len(jobs))
        ),
        cluster_joules=outcome.total_joules + free_watts * (lab_run.cluster_seconds - outcome.end_seconds),
    )


def settled_pairs(
    jobs: Sequence[LabJob], lab_run: LabRun, rule: str, *, reserves_nodes: bool = True
) -> list[tuple[int, int]]:
    """Return the pairs (first, second) of jobs that start in this order whatever the noise of latencies.

    The twin is run with the mean latencies, then 100 times with each job's latency drawn anew from the measured ones,
    at twice their distance from the mean, and with Slurm's passes up to 0.2 s earlier or later. A pair is settled when
    all these runs agree on it. `reserves_nodes` False has the textbook's reservations, of GPUs in place of nodes.
    """
    totals = [sum(pair) for pair in zip(lab_run.launch_seconds, lab_run.release_seconds, strict=True)]
    mean = fmean(totals)
    random = Random(1)
    world = replace(_world(lab_run), backfill_reserves_nodes=reserves_nodes)
    submitted = [record.submitted for record in lab_run.jobs]
    phase = lab_run.pass_phase_seconds
    starts = [_outcome(world, jobs, submitted, phase, rule).started_seconds]
    for _ in range(_REPETITIONS):
        noisy = [
            replace(job, work_seconds=max(0.1, job.work_seconds + _SPREAD * (random.choice(totals) - mean)))
            for job in jobs
        ]
        drifted = phase + random.uniform(-_DRIFT_SECONDS, _DRIFT_SECONDS)
        starts.append(_outcome(world, noisy, submitted, drifted, rule).started_seconds)
    at = np.array(starts)  # [runs, jobs]
    before = (at[:, :, None] < at[:, None, :]).all(axis=0)  # [jobs, jobs]
    return [(int(first), int(second)) for first, second in np.argwhere(before)]


def _world(lab_run: LabRun) -> World:
    """Return the shipped world with this laboratory's nodes and latencies.

    A job's devices stay taken through the epilog: the twin has that time in front of the work, with the launch, and
    `run_in_twin` takes it off again. The GPUs idle in both.
    """
    world = shipped_world("lab")
    return replace(
        world,
        pools=tuple(replace(pool, nodes=partition_named(pool.name).nodes) for pool in world.pools),
        launch_seconds=(fmean(lab_run.launch_seconds) + fmean(lab_run.release_seconds)) * TIME_SCALE,
        backfill_interval_seconds=BACKFILL_SECONDS * TIME_SCALE,
    )


def _outcome(
    world: World, jobs: Sequence[LabJob], submitted: Sequence[float], phase_seconds: float, rule: str
) -> Outcome:
    """Run the jobs in the twin; its time 0 is one pass before `phase_seconds`, so that its passes are Slurm's.

    The twin looks at a job when it comes, Slurm in its next pass: jobs come just before that. Times are wall seconds.
    """
    passes = np.ceil((np.asarray(submitted) - phase_seconds) / BACKFILL_SECONDS) + 1.0
    seen = np.maximum(passes * BACKFILL_SECONDS - _JUST_BEFORE_SECONDS, 0.0)
    rows = tuple(
        Job(
            job_id=number,
            submitted_seconds=float(second * TIME_SCALE),
            # A unit is a second of an A100; the laboratory counts seconds of the GPU that the job got, on each of them.
            true_units=job.work_seconds
            * TIME_SCALE
            * job.gpus
            / world.devices[job.partition].loads[job.kind].seconds_per_unit[-1],
            kind=job.kind,
            gpu_counts=(job.gpus,),
            time_limit_seconds=job.limit_minutes * 60.0 * TIME_SCALE,
            partitions=(job.partition,),
            cpus=job.cpus,
        )
        for number, (job, second) in enumerate(zip(jobs, seen, strict=True), start=1)
    )
    return run(world, Workload(name="mixed", jobs=rows), create_rule(rule))


def _wall(seconds: NDArray[np.float64], phase_seconds: float) -> NDArray[np.float64]:
    """Return the twin's times as wall seconds after the laboratory run's first moment."""
    return seconds / TIME_SCALE + phase_seconds - BACKFILL_SECONDS
