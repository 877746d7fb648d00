"""Node hints on a real slurmctld: nodes with the feature come first, and no job waits for them or is refused for it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from energy_lab import story, until, when_decided
from lab_fixtures import PATIENT, lab_spec, require_lab

from slurm_energy.domain.report import DecisionRecord
from slurm_energy.lab.cluster import Lab, PartitionSpec, start_lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
PARTITIONS = (PartitionSpec(name="a100", nodes=2, gpus_per_node=2), PartitionSpec(name="a40", nodes=1, gpus_per_node=2))
FEATURES = {"a100-1": "plain", "a100-2": "nvlink", "a40-1": "ib"}
SETTINGS: dict[str, dict[str, Any]] = {
    "policy": {"name": "gnn", "checkpoint": "hinting", "timeout_milliseconds": 150},
    "routing": {"node_hints": True},
    "daemon": {"snapshot_interval_seconds": 0.5},
}
LINES = (
    "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=60,ignore_prefer_validation",
)
"""Without the last one the plugin gives no hint."""
ONE = ["-p", "a100", "--gres=gpu:1", "-t", "5"]
WHOLE = ["-p", "a100", "--gres=gpu:2", "-t", "5"]


@pytest.fixture(scope="module")
def hinting_lab() -> Iterator[Lab]:
    """A lab whose policy hints at what a job's name says; left to itself, Slurm takes a100-1 before a100-2."""
    require_lab(energy=True)
    spec = lab_spec(
        name=f"hints-{os.getpid()}",
        partitions=PARTITIONS,
        daemon=False,
        settings=SETTINGS,
        plugin_settings=PATIENT,
        slurm_conf_lines=LINES,
    )
    with start_lab(spec, owned=True) as lab:
        yield from _with_hinting_daemon(lab)


def _with_hinting_daemon(lab: Lab) -> Iterator[Lab]:
    for node, feature in FEATURES.items():
        change = [f"NodeName={node}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}"]
        lab.run(["scontrol", "update", *change], check=True)
    as_slurm = ["setpriv", "--reuid", "slurm", "--regid", "slurm", "--init-groups", "--"]  # it has no home in a lab
    program = [sys.executable, str(HERE / "daemon_with_hints.py"), str(lab.layout.energy_config)]
    argv, environment = lab.command([*as_slurm, *program])
    log_path = lab.layout.log / "energyd.log"
    with log_path.open("w") as log:
        daemon = subprocess.Popen(argv, env={**environment, "PYTHONPATH": str(HERE)}, stdout=log, stderr=log)
    try:
        lab.await_daemon()
        until("policy", lambda: "policy loaded" in log_path.read_text())
        yield lab
    finally:
        daemon.terminate()
        daemon.wait(timeout=120)


def hinted(lab: Lab, feature: str, arguments: Sequence[str] = ONE) -> int:
    """Submit a job for which the policy prefers a feature, until the policy itself has answered."""
    return when_decided(
        lambda: submit(lab, ["-J", f"hint-{feature}", *arguments], wrap="true"),
        lambda job_id: "AdminComment" in show_job(lab, job_id) and not baseline_decided(lab, job_id),
    )


def baseline_decided(lab: Lab, job_id: int) -> bool:
    return any(reason.code.startswith("POLICY_") for reason in decision_of(lab, job_id).reasons)


def decision_of(lab: Lab, job_id: int) -> DecisionRecord:
    def look() -> DecisionRecord | None:
        record = story(lab, job_id)
        return None if record is None else record.decision

    return until(f"decision of job {job_id}", look)


def preference(lab: Lab, job_id: int) -> str | None:
    """Return a waiting job's --prefer: scontrol shows it of no other, and its one-line form hides it."""
    shown = lab.run(["scontrol", "show", "job", str(job_id)], check=True).stdout
    assert "JobState=PENDING" in shown
    found = re.search(r"^\s*Prefer=(\S+)$", shown, re.MULTILINE)
    return None if found is None else found.group(1)


def landed(lab: Lab, job_id: int, timeout: float = 30.0) -> str:
    return wait_for(lab, job_id, {"COMPLETED"}, timeout=timeout)[0]["NodeList"]


def released(lab: Lab, job_id: int) -> str:
    """Release a held job and return the node on which it ran."""
    lab.run(["scontrol", "release", str(job_id)], check=True)
    return landed(lab, job_id)


def test_a_job_without_a_hint_is_left_to_slurm(hinting_lab: Lab) -> None:
    job = submit(hinting_lab, [*ONE, "--hold"], wrap="true")
    assert preference(hinting_lab, job) is None
    assert released(hinting_lab, job) == "a100-1"


def test_the_preferred_node_is_used_first(hinting_lab: Lab) -> None:
    job = hinted(hinting_lab, "nvlink", [*ONE, "--hold"])
    assert preference(hinting_lab, job) == "nvlink"
    assert released(hinting_lab, job) == "a100-2"
    assert decision_of(hinting_lab, job).prefer == "nvlink"


@pytest.mark.parametrize(
    ("feature", "arguments"),
    [("nowhere", ONE), ("ib", ONE), ("nvlink", ["-p", "a100", "-N2", "--gres=gpu:1", "-t", "5"])],
    ids=["no-such-feature", "another-partition", "too-few-nodes"],
)
def test_a_feature_with_which_slurm_would_refuse_the_job_does_not_pass_the_guard(
    hinting_lab: Lab, feature: str, arguments: list[str]
) -> None:
    job = hinted(hinting_lab, feature, arguments)
    assert landed(hinting_lab, job).startswith("a100-")
    decision = decision_of(hinting_lab, job)
    assert decision.prefer is None
    assert any(note.startswith(f"the policy preferred node feature {feature}") for note in decision.notes)


@pytest.mark.parametrize(
    "own", [["-w", "a100-1"], ["-x", "a100-2"], ["-C", "plain"]], ids=["named", "excluded", "constraint"]
)
def test_what_the_user_said_of_the_nodes_stands_alone(hinting_lab: Lab, own: list[str]) -> None:
    job = hinted(hinting_lab, "nvlink", [*ONE, *own, "--hold"])
    assert preference(hinting_lab, job) is None
    assert released(hinting_lab, job) == "a100-1"


def test_the_users_own_preference_stands(hinting_lab: Lab) -> None:
    job = hinted(hinting_lab, "nvlink", [*ONE, "--prefer=plain", "--hold"])
    assert preference(hinting_lab, job) == "plain"
    assert released(hinting_lab, job) == "a100-1"


def test_no_job_is_held_up_for_the_preferred_node(hinting_lab: Lab) -> None:
    lab = hinting_lab
    preferred = submit(lab, [*WHOLE, "-w", "a100-2", "--energy=off"], wrap="sleep 60")
    wait_for(lab, preferred, {"RUNNING"})
    try:
        assert landed(lab, hinted(lab, "nvlink")) == "a100-1"
        other = submit(lab, [*WHOLE, "-w", "a100-1", "--energy=off"], wrap="sleep 8")
        wait_for(lab, other, {"RUNNING"})
        assert landed(lab, hinted(lab, "nvlink")) == "a100-1"
        assert show_job(lab, preferred)["JobState"] == "RUNNING"
    finally:
        lab.run(["scancel", str(preferred)])
