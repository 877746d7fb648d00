"""Bounds of runs in which a policy decided what a job's request leaves open."""

from dataclasses import replace

import pytest

from slurm_energy.evaluation.arena.run_bounds import RunBounds, bounds_of_run
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world

LAB = shipped_world("lab")
SITE = replace(shipped_world("mixed-hidden"), workload="", workload_settings={"kinds": "lammps"})
HOUR = 3600.0


def bounds(outcome: Outcome, world: object, jobs: list[Job]) -> RunBounds:
    found = bounds_of_run(world, jobs, outcome, metrics_of(outcome, world, jobs), stationary=False, open_end=False)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_work_of_open_jobs_fits_wherever_they_may_run() -> None:
    jobs = [
        Job(job_id=n, submitted_seconds=0.0, true_units=1e6, gpu_counts=(4,), partitions=("a100",), open=True)
        for n in range(1, 9)
    ]
    policy = create_contender("daemon/auto:open=1,max_slowdown=2")
    outcome = run(LAB, Workload(name="open", jobs=tuple(jobs)), policy, horizon_seconds=10 * HOUR)
    assert set(outcome.place.tolist()) > {0}, "some run outside of a100"
    assert bounds(outcome, LAB, jobs).gap_percent >= 0.0


@pytest.mark.parametrize("policy", ["daemon/slurm-default", "daemon/slurm-default:gpu_count=off"])
def test_a_number_that_was_fixed_does_not_change_what_other_policies_could_have_reached(policy: str) -> None:
    jobs = [
        Job(
            job_id=n,
            submitted_seconds=0.0,
            true_units=1e4,
            kind="lammps",
            gpu_counts=(1, 2, 4, 8),
            asked_gpus=8,
            time_limit_seconds=24 * HOUR,
        )
        for n in range(1, 5)
    ]
    outcome = run(SITE, Workload(name="ranges", jobs=tuple(jobs)), create_contender(policy), horizon_seconds=40 * HOUR)
    assert set(outcome.state) == {"COMPLETED"}
    found = bounds(outcome, SITE, jobs)
    for job in jobs:
        assert len(job.gpu_counts) == 1, "fixed in the run"
        job.gpu_counts, job.range_counts = job.range_counts, ()
        job.time_limit_seconds, job.asked_limit_seconds = job.asked_limit_seconds, 0.0
    assert found == bounds(outcome, SITE, jobs)
