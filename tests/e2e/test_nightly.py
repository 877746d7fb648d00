"""A candidate's whole way under a real slurmctld: history, retrain, shadow, canary, active and back.

The daemon is killed after each step: what decides afterwards is what the database says. Device time runs thirty times
as fast as the wall. The program waits for its host, so that a lower clock costs it no time: starting and ending a run,
which takes the longer the more this machine does, is not taken for a slowdown.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from energy_lab import submit_decided, until, workload

from slurm_energy.errors import LabError
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]

USERS = ("alice", "ben", "cat", "dan", "eva", "fay")
PARTITIONS = (PartitionSpec(name="v100", nodes=2, gpus_per_node=8),)
SETTINGS: dict[str, dict[str, Any]] = {
    "policy": {"name": "oracle", "max_slowdown": 0.3, "min_saving_per_slowdown": 0.0},
    "nightly": {
        "min_jobs": 20,
        "replayed_jobs": 20,
        "workers": 1,
        "max_minutes": 4.0,
        "promote": "off",
        "canary_share": 0.4,
        "canary_period_hours": 0.012,
        "shadow_decisions": 8,
        "max_stage_days": 0.05,
        "late_milliseconds": 200.0,
    },
}
SECONDS = 300.0


def rounds(lab: Lab, count: int, tasks: int, *more: str) -> list[int]:
    """Submit one array for each user, so often, and return the numbers."""
    found = []
    for _, user in itertools.product(range(count), USERS):
        options = ["-J", "train", "--gres=gpu:1", "-t", "60", f"--array=1-{tasks}", *more]
        found.append(submit(lab, options, wrap=workload(SECONDS, "host"), user=user))
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


def await_serving(lab: Lab, key: str, candidate: str) -> None:
    """Wait until the answering process has a candidate, also after it was killed."""

    def has_it() -> bool:
        done = lab.run(["slurm-energy", "status", "--json"])
        return done.returncode == 0 and json.loads(done.stdout)["daemon"].get(key) == candidate

    until(f"{key} {candidate}", has_it)


def decided_by(lab: Lab, job: int) -> str:
    """Return the version of the policy that decided a job, as `explain` says it."""
    found = json.loads(lab.run(["slurm-energy", "explain", str(job), "--json"], check=True).stdout)
    return str(found["decision"]["policy_version"])


def test_a_candidate_goes_its_whole_way_and_back_with_the_daemon_killed_at_each_step(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(energy=True, partitions=PARTITIONS, settings=SETTINGS, time_scale=30.0, users=USERS)
    rounds(lab, 1, 4, "--energy=off")
    run_out(lab)
    rounds(lab, 1, 4)
    run_out(lab)

    def retrained() -> dict[str, Any] | None:
        done = lab.run(["slurm-energy", "retrain", "--seed", "1", "--json", "--no-judge"], timeout=600.0)
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        return found if found.get("candidate") else None

    made = until("candidate", retrained, 600.0)
    name = made["candidate"]
    for step, key in (
        ("shadow", "policy_challenger"),
        ("canary", "policy_challenger"),
        ("active", "policy_champion"),
    ):
        lab.run(["slurm-energy", "policy", "promote", name, "--yes"], check=True)
        lab.kill_daemon()
        lab.start_daemon()
        await_serving(lab, key, name)
        assert stage(lab) == step
        jobs = [
            submit_decided(lab, ["-J", "train", "--gres=gpu:1", "-t", "60"], wrap=workload(30.0, "host"))
            for _ in range(2)
        ]
        run_out(lab)
        versions = [until("decision", lambda job=job: decided_by(lab, job), 60.0) for job in jobs]  # type: ignore[misc]
        if step == "shadow":
            assert not any(version.endswith(name) for version in versions), "nothing of a shadow is applied"
        if step == "active":
            assert all(version.endswith(name) for version in versions)
    lab.run(["slurm-energy", "policy", "rollback", "--yes", "--comment", "a trial"], check=True)
    lab.kill_daemon()
    lab.start_daemon()
    job = submit_decided(lab, ["-J", "train", "--gres=gpu:1", "-t", "60"], wrap=workload(30.0, "host"))
    run_out(lab)
    assert not until("decision", lambda: decided_by(lab, job), 60.0).endswith(name)
    page = lab.run(["slurm-energy", "policy", "show", name], check=True).stdout
    print(page)
    for move in (
        "new -> candidate",
        "candidate -> shadow",
        "shadow -> canary",
        "canary -> active",
        "active -> rejected",
    ):
        assert move in page
