"""Whether scripts make estimates better, on a site whose users name and write as people do."""

from collections import defaultdict
from collections.abc import Callable
from math import log
from statistics import mean, median

from slurm_energy.estimation.job_groups import job_group
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.workloads.registry import create_workload

SITE: dict[str, float | int | str] = {
    "hours": 96.0,
    "ingresses": 1,
    "rate_per_second": 0.004,
    "kinds": "resnet50,bert,lammps",
    "names_per_kind": 4,
    "size_sigma": 1.5,
    "users": 8,
}


def by_name(job: Job) -> str:
    return job.name


def by_script(job: Job) -> str:
    return job_group(job.name, None if job.script is None else job.script.key or None)


def errors(jobs: tuple[Job, ...], group_of: Callable[[Job], str]) -> list[float]:
    """Return how far the logarithm of each job's work is from the middle of the last ones of its group."""
    before: dict[tuple[str, str], list[float]] = defaultdict(list)
    found = []
    for job in jobs:
        earlier = before[job.user, group_of(job)]
        if earlier:
            found.append(abs(log(job.true_units) - log(median(earlier[-20:]))))
        earlier.append(job.true_units)
    return found


def test_jobs_put_together_by_their_scripts_are_more_alike_and_more_of_them_are_known() -> None:
    jobs = create_workload("daily", SITE, 3).jobs
    named, scripted = errors(jobs, by_name), errors(jobs, by_script)
    assert mean(scripted) < 0.85 * mean(named)
    assert len(scripted) > len(named)
