"""Node hints on a real slurmctld: nodes with the feature come first, and no job waits for them or is refused for it."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from energy_lab import story, until

from slurm_energy.domain.report import DecisionRecord
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
PARTITIONS = (PartitionSpec(name="a100", nodes=2, gpus_per_node=2), PartitionSpec(name="a40", nodes=1, gpus_per_node=2))
FEATURES = {"a100-1": "plain", "a100-2": "nvlink", "a40-1": "ib"}
SETTINGS = {
    "policy": {"name": "gnn", "checkpoint": "hinting", "timeout_milliseconds": 40},
    "routing": {"node_hints": True},
    "daemon": {"snapshot_interval_seconds": 0.5},
}
ONE = ["-p", "a100", "--gres=gpu:1", "-t", "5"]
WHOLE = ["-p", "a100", "--gres=gpu:2", "-t", "5"]


@pytest.fixture
def hinting_lab(new_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two nodes of different features in the first partition; Slurm takes the one without the hint's feature first."""
    lab = new_lab(partitions=PARTITIONS, energy=True, daemon=False, settings=SETTINGS)
    for node, feature in FEATURES.items():
        change = [f"NodeName={node}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}"]
        lab.run(["scontrol", "update", *change], check=True)
    as_slurm = ["setpriv", "--reuid", "slurm", "--regid", "slurm", "--init-groups", "--"]  # it has no home here
    program = [sys.executable, str(HERE / "daemon_with_hints.py"), str(lab.layout.energy_config)]
    argv, environment = lab.command([*as_slurm, *program])
    with (lab.layout.log / "energyd.log").open("w") as log:
        daemon = subprocess.Popen(argv, env={**environment, "PYTHONPATH": str(HERE)}, stdout=log, stderr=log)
    try:
        import time

        time.sleep(6)
        print((lab.layout.log / "energyd.log").read_text()[-3000:], daemon.poll())
        lab.await_daemon()
        until("policy", lambda: lab.ping().get("policy_condition", "ready") == "ready")
        yield lab
    finally:
        print((lab.layout.log / "energyd.log").read_text()[-3000:])
        daemon.terminate()
        daemon.wait(timeout=20)


def hinted(lab: Lab, feature: str, arguments: Sequence[str] = ONE, seconds: float = 1.0) -> int:
    """Submit a job for which the policy prefers a feature."""
    return submit(lab, ["-J", f"hint-{feature}", *arguments], wrap=f"sleep {seconds:g}")


def decision_of(lab: Lab, job_id: int) -> DecisionRecord:
    record = until(f"decision of job {job_id}", lambda: story(lab, job_id))
    return until(f"decision of job {job_id}", lambda: record.decision or (story(lab, job_id) or record).decision)


def preference(lab: Lab, job_id: int) -> str | None:
    """Return the job's --prefer as slurmctld has it."""
    return show_job(lab, job_id).get("Prefer")


def test_a_hinted_job_takes_the_preferred_node_if_it_is_free_and_any_other_if_not(hinting_lab: Lab) -> None:
    lab = hinting_lab
    print(lab.ping())
    plain = submit(lab, ONE, wrap="sleep 1")
    assert wait_for(lab, plain, {"COMPLETED"})[0]["NodeList"] == "a100-1"
    job = hinted(lab, "nvlink")
    print(lab.run(["scontrol", "show", "job", "-d", str(job)]).stdout)
    assert wait_for(lab, job, {"COMPLETED"})[0]["NodeList"] == "a100-2"
    blocker = hinted(lab, "nvlink", WHOLE, 30)
    print(lab.run(["scontrol", "show", "job", "-d", str(blocker)]).stdout)
    other = hinted(lab, "nvlink")
    print(lab.run(["scontrol", "show", "job", "-d", str(other)]).stdout)
    assert wait_for(lab, other, {"COMPLETED"}, timeout=15)[0]["NodeList"] == "a100-1"
    print(decision_of(lab, job))
