"""Waiting jobs that are decided again, on a real slurmctld: moved, resized, and left alone where others changed them.

The a40 partition is first full as the a100 one is; when it empties, jobs that named no partition are sent there.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from energy_lab import drained, story, submit_decided, until, when_decided
from lab_fixtures import EXACT, StartLab
from test_gpu_count import CountingDaemon

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.report import ExplainRecord
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, show_jobs, submit, wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a100", nodes=1, gpus_per_node=8),
    PartitionSpec(name="a40", nodes=1, gpus_per_node=8, gpu_type="a40"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    **EXACT,
    "policy": {"name": "oracle", "max_slowdown": 0.5, "min_saving_per_slowdown": 0.0},
    "routing": {"open": True, "less_gpu_memory": True, "redecide": "on", "redecide_seconds": 1.0},
}
SHORT = ["-t", "30", "-o", "/dev/null"]


@pytest.fixture
def lab(new_lab: StartLab) -> Iterator[Lab]:
    started = new_lab(partitions=PARTITIONS, energy=True, settings=SETTINGS)
    yield started
    assert not drained(started)


def fill(lab: Lab, partition: str) -> int:
    """Fill a partition for the time of a test; return the job that does."""
    job = submit(lab, ["-J", "fill", "-p", partition, "--gres=gpu:8", "-t", "600", "--energy=off"], wrap="sleep 3000")
    wait_for(lab, job, {"RUNNING"})
    return job


def partition_of(lab: Lab, job_id: int) -> str:
    return show_job(lab, job_id)["Partition"]


def cancel(lab: Lab, *jobs: int) -> None:
    lab.run(["scancel", *map(str, jobs)], check=True)


def daemon_log(lab: Lab) -> str:
    return (lab.layout.log / "energyd.log").read_text()


def changed_story(lab: Lab, job_id: int) -> ExplainRecord | None:
    record = story(lab, job_id)
    return record if record is not None and record.decision is not None and record.decision.changes else None


def test_a_waiting_job_goes_where_room_appears_and_gets_its_clock_there(lab: Lab) -> None:
    filling = [fill(lab, name) for name in ("a100", "a40")]
    mine = submit_decided(lab, ["-J", "mine", "--gres=gpu:2", *SHORT], wrap="sleep 5")
    own = {
        "named": submit_decided(lab, ["-J", "named", "-p", "a100", "--gres=gpu:1", *SHORT], wrap="true"),
        "held": submit_decided(lab, ["-J", "held", "--hold", "--gres=gpu:1", *SHORT], wrap="true"),
        "array": submit_decided(lab, ["-J", "array", "--array=1-2", "--gres=gpu:1", *SHORT], wrap="true"),
        "later": submit_decided(lab, ["-J", "later", "--begin=now+1hour", "--gres=gpu:1", *SHORT], wrap="true"),
        "after": submit_decided(
            lab, ["-J", "after", f"--dependency=afterok:{mine}", "--gres=gpu:1", *SHORT], wrap="true"
        ),
        "users": submit_decided(lab, ["-J", "users", "--gres=gpu:1", *SHORT], wrap="true"),
        "opted": submit(lab, ["-J", "opted", "--energy=off", "--gres=gpu:1", *SHORT], wrap="true"),
        "apart": submit(lab, ["-J", "apart", "--gres=gpu:1", *SHORT, ":", "--gres=gpu:1"], wrap="true"),
    }
    lab.run(["scontrol", "update", f"JobId={own['users']}", "TimeLimit=20"], user="alice", check=True)
    time.sleep(5)  # a few looks at the full cluster: nothing is to be changed
    assert partition_of(lab, mine) == "a100"
    before = {name: show_jobs(lab, job_id) for name, job_id in own.items() if name != "after"}
    cancel(lab, filling[1])
    row = wait_for(lab, mine, {"RUNNING", "COMPLETED"}, timeout=300)[0]
    assert row["NodeList"].startswith("a40"), daemon_log(lab)
    for name, rows in before.items():
        now = show_jobs(lab, own[name])
        assert [one["Partition"] for one in now] == [one["Partition"] for one in rows] == ["a100"] * len(rows), name
        assert [one["Priority"] == "0" for one in now] == [one["Priority"] == "0" for one in rows], name
    wait_for(lab, mine, {"COMPLETED"}, timeout=300)
    record = until("the changed decision", lambda: changed_story(lab, mine))
    assert record.decision is not None
    last = record.decision.changes[-1]
    assert (last.outcome, last.partitions) == ("changed", ("a40", "a100"))
    told = lab.run(["slurm-energy", "explain", str(mine)], check=True).stdout
    assert "Decided again while it waited" in told
    assert "a40, a100" in told
    gpus = until("the node's report", lambda: (story(lab, mine) or record).gpus)
    decided = {clock.gpu_type: clock.sm_clock_mhz for clock in record.decision.clocks}
    assert {gpu.asked_clock_mhz for gpu in gpus} == {decided[GpuTypeName("a40")]}, "the node fetched the newest clock"
    assert "Traceback" not in daemon_log(lab)


def want(lab: Lab, count: int) -> None:
    """Tell the daemon how many GPUs a job named `count-told` is to have."""
    path = lab.layout.energy_config.with_name("wanted-count")
    new = path.with_suffix(".new")
    new.write_text(f"{count}\n")
    new.replace(path)


def test_a_waiting_jobs_number_of_gpus_follows_what_is_known_until_it_starts(new_lab: StartLab) -> None:
    settings = {**SETTINGS, "routing": {"redecide": "on", "redecide_seconds": 1.0}}
    lab = new_lab(partitions=PARTITIONS[:1], energy=True, daemon=False, settings=settings)
    with CountingDaemon(lab):
        filling = fill(lab, "a100")
        step = "srun -n1 sh -c 'echo step $CUDA_VISIBLE_DEVICES'"
        script = f"#!/bin/sh\necho batch $SLURM_ENERGY_GPUS $SLURM_GPUS_ON_NODE\n{step}\n"
        want(lab, 4)
        forms = [
            "--gres=gpu:4",
            "--gpus=4 -N1",
            "--gpus-per-node=4 -N1",
            "--gres=gpu:4 -N1 -n4",
            "--gpus=4 -N1 --mem-per-gpu=10",
        ]
        jobs = [
            when_decided(
                lambda form=form: submit(  # type: ignore[misc]  # the form of this turn
                    lab,
                    ["-J", "count-told", "-t", "20", "-o", "told-%j", "--energy-gpus=1,2,4,8", *form.split()],
                    script=script,
                ),
                lambda job_id: "AdminComment" in show_job(lab, job_id),
            )
            for form in forms
        ]
        want(lab, 2)
        simple = jobs[:3]
        for job_id in simple:
            until("two GPUs", lambda job_id=job_id: show_job(lab, job_id)["TimeLimit"] == "00:40:00")  # type: ignore[misc]
        want(lab, 8)  # more than asked for: as asked for
        until("four GPUs", lambda: ":4" in show_job(lab, simple[0]).get("TresPerNode", ""))
        assert show_job(lab, simple[0])["TimeLimit"] == "00:20:00"
        cancel(lab, filling)
        for job_id in jobs:
            wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
        said = [(lab.layout.home("alice") / f"told-{job_id}").read_text() for job_id in jobs]
        assert all(re.match(r"batch (\d) \1\n", text) for text in said), said
        assert [len(text.splitlines()[1].split(",")) for text in said[:3]] == [
            int(text.split()[1]) for text in said[:3]
        ]
        assert [text.split()[1] for text in said[3:]] == ["4", "4"], "their tasks or memory would have to follow"
    assert not drained(lab)


def test_kill_of_the_daemon_while_it_changes_jobs_leaves_each_of_them_whole(lab: Lab) -> None:
    filling = [fill(lab, name) for name in ("a100", "a40")]
    jobs = [submit(lab, ["-J", f"job{n}", "--gres=gpu:1", *SHORT], wrap="true") for n in range(40)]
    time.sleep(4)
    cancel(lab, filling[1])
    until("the first change", lambda: any(partition_of(lab, one) != "a100" for one in jobs[:8]))
    lab.kill_daemon()
    rows = [show_job(lab, job_id) for job_id in jobs]
    assert {row["Partition"] for row in rows} <= {"a100", "a40,a100", "a40"}
    assert all(row["JobState"] != "PENDING" or row["Priority"] != "0" for row in rows)
    cancel(lab, filling[0])
    for job_id in jobs:
        wait_for(lab, job_id, {"COMPLETED"}, timeout=300)


def test_a_changed_job_that_a_new_limit_would_hold_is_put_back_and_runs(new_lab: StartLab) -> None:
    """A limit on run time that was not there at the submission: Slurm takes the change, and would then hold the job."""
    lab = new_lab(
        partitions=PARTITIONS[:1],
        energy=True,
        daemon=False,
        accounting=True,
        settings={**SETTINGS, "routing": {"redecide": "on", "redecide_seconds": 1.0}},
        slurm_conf_lines=("AccountingStorageEnforce=associations,limits,qos",),
    )
    for words in (
        "add account plain",
        "add qos small",
        "add user alice account=plain",
        "modify user alice where account=plain set qos+=small",
    ):
        lab.run(["sacctmgr", "-i", *words.split()], check=True)
    shown = ["scontrol", "-o", "show", "assoc_mgr"]
    until("alice's account in slurmctld", lambda: "Account=plain UserName=alice" in lab.run(shown).stdout)
    with CountingDaemon(lab):
        filling = fill(lab, "a100")
        want(lab, 4)
        arguments = ["-J", "count-told", "--gres=gpu:4", "-N1", "--energy-gpus=1,2,4", "-A", "plain", "-q", "small"]
        job_id = submit_decided(lab, [*arguments, *SHORT], wrap="true")
        lab.run(["sacctmgr", "-i", "modify", "qos", "small", "set", "MaxWall=30"], check=True)
        until("the limit in slurmctld", lambda: "MaxWallPJ=30" in lab.run(shown).stdout)
        want(lab, 2)

        def put_back() -> bool:
            record = changed_story(lab, job_id)
            changes = () if record is None or record.decision is None else record.decision.changes
            return any(change.note.startswith("put back") for change in changes)

        until("the change put back", put_back)
        assert show_job(lab, job_id)["TresPerNode"].endswith(":4")
        assert show_job(lab, job_id)["TimeLimit"] == "00:30:00"
        cancel(lab, filling)
        wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
    assert not drained(lab)
