"""A candidate's whole way under a real slurmctld: history, retrain, shadow, canary, active, with kill -9 between.

Device time runs thirty times as fast as the wall. The users' programs are described nowhere: what is known of their
clocks comes from runs at two of them.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from energy_lab import await_reports, until, workload

from slurm_energy.errors import LabError
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]

USERS = ("ann", "ben", "cat", "dan", "eva", "fay")
PARTITIONS = (PartitionSpec(name="a100", nodes=2, gpus_per_node=8),)
SETTINGS: dict[str, dict[str, Any]] = {
    "policy": {"name": "oracle", "max_slowdown": 0.12},
    "nightly": {
        "min_jobs": 20,
        "replayed_jobs": 20,
        "workers": 1,
        "max_minutes": 4.0,
        "promote": "automatic",
        "canary_share": 0.4,
        "canary_period_hours": 0.012,
        "shadow_decisions": 8,
        "max_stage_days": 0.05,
        "late_milliseconds": 200.0,
    },
}
SECONDS = 600.0


def rounds(lab: Lab, count: int, tasks: int, *more: str) -> list[int]:
    """Submit one array for each user, so often, and return the numbers."""
    found = []
    for _, user in itertools.product(range(count), USERS):
        options = ["-J", "train", "--gres=gpu:1", "-t", "60", f"--array=1-{tasks}", *more]
        found.append(submit(lab, options, wrap=workload(SECONDS), user=user))
    return found


def run_out(lab: Lab, limit_seconds: float = 600.0) -> None:
    """Wait until no job is left."""

    def is_empty() -> bool:
        return not lab.run(["squeue", "-h", "-o", "%i"], check=True).stdout.strip()

    until("end of all jobs", is_empty, limit_seconds)


def listed(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.run(["slurm-energy", "policy", "list", "--json"], check=True).stdout)
    return found


def stage(lab: Lab) -> str | None:
    try:
        found = listed(lab)["candidates"]
    except (LabError, ValueError):
        return None
    return found[0]["stage"] if found else None


def joules(lab: Lab, jobs: list[int]) -> float:
    """Return the median energy of the jobs' runs."""
    found = [report.gpus[0].joules for job in jobs for report in await_reports(lab, job)]
    return statistics.median(value for value in found if value is not None)


def test_a_night_of_recurring_programs_becomes_the_live_policy(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(energy=True, partitions=PARTITIONS, settings=SETTINGS, time_scale=30.0, users=USERS)
    rounds(lab, 1, 5, "--energy=off")
    before = rounds(lab, 1, 5)
    run_out(lab)
    usual = joules(lab, before)

    def retrained() -> dict[str, Any] | None:
        """Return a candidate once the reports of enough names have come."""
        done = lab.run(["slurm-energy", "retrain", "--seed", "1", "--json", "--no-judge"], check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found if found["figures"]["named_clocks"] >= 4 else None

    made = until("clocks of four names", retrained, 180.0)
    lab.run(["slurm-energy", "policy", "promote", made["candidate"], "--yes"], check=True)
    until("challenger in shadow", lambda: stage(lab) == "shadow", 60.0)
    lab.kill_daemon()
    lab.start_daemon()
    time.sleep(6.0)
    rounds(lab, 2, 1)
    until("canary", lambda: stage(lab) != "shadow", 180.0)
    assert stage(lab) == "canary", lab.run(["slurm-energy", "policy", "show", made["candidate"]]).stdout
    run_out(lab)
    lab.kill_daemon()
    lab.start_daemon()
    time.sleep(6.0)
    for _ in range(12):
        rounds(lab, 1, 3)
        run_out(lab)
        if stage(lab) != "canary":
            break
    page = lab.run(["slurm-energy", "policy", "show", made["candidate"]]).stdout
    print(page)
    until("decision on the canary", lambda: stage(lab) != "canary", 120.0)
    assert stage(lab) == "active", page
    time.sleep(6.0)
    after = rounds(lab, 1, 3)
    run_out(lab)
    assert joules(lab, after) < 0.98 * usual
    assert listed(lab)["champion"] == made["candidate"]
