"""A named partition as a preference on a real slurmctld: its user's word stands, and no job is refused or stuck."""

import json
from collections.abc import Iterator

import pytest
from energy_lab import await_reports, drained, on_terminal, story, submit_decided, until, when_decided
from lab_fixtures import StartLab

from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a40", nodes=1, gpus_per_node=4),
    PartitionSpec(name="a100", nodes=1, gpus_per_node=4),
)
HELD = ["--hold", "--gres=gpu:1", "-t", "5", "-p", "a40"]
SHORT = ["--gres=gpu:1", "-t", "5", "-p", "a40", "-o", "/dev/null"]


@pytest.fixture
def lab(new_lab: StartLab) -> Iterator[Lab]:
    started = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": {"open": True}})
    yield started
    assert not drained(started)


def partition_of(lab: Lab, *arguments: str) -> str:
    return show_job(lab, submit_decided(lab, [*HELD, *arguments], wrap="true"))["Partition"]


def test_who_leaves_his_partition_open_has_others_tried_first_and_keeps_his_own(lab: Lab) -> None:
    assert partition_of(lab) == "a40"
    assert partition_of(lab, "--energy-open=off") == "a40"
    assert partition_of(lab, "--energy-open=on") == "a100,a40"
    assert partition_of(lab, "--energy-open") == "a100,a40"
    refused = lab.run(["sbatch", *HELD, "--energy-open=maybe", "--wrap", "true"], user="alice")
    assert refused.returncode != 0
    assert "--energy-open=maybe is not on or off" in refused.stderr
    line = "#!/bin/sh\n#SBATCH --energy-open\n#SBATCH -p a40 --gres=gpu:1 -t 5 --hold\ntrue\n"
    said = when_decided(lambda: on_terminal(lab, ["sbatch", "--parsable"], script=line), lambda one: bool(one.stderr))
    job = int(said.stdout.split()[0])
    assert show_job(lab, job)["Partition"] == "a100,a40"


def test_a_job_that_was_left_open_starts_in_its_own_partition_where_the_other_is_full_or_gone(lab: Lab) -> None:
    mine = submit_decided(lab, [*HELD, "--energy-open"], wrap="sleep 2")
    assert show_job(lab, mine)["Partition"] == "a100,a40"
    full = submit(lab, ["-p", "a100", "--gres=gpu:4", "-t", "5", "--energy=off"], wrap="sleep 300")
    wait_for(lab, full, {"RUNNING"})
    lab.run(["scontrol", "update", "PartitionName=a100", "State=DOWN"], check=True)
    lab.run(["scontrol", "release", str(mine)], check=True)
    assert wait_for(lab, mine, {"COMPLETED"}, timeout=300)[0]["Partition"] == "a40"


def test_kill_9_of_the_daemon_leaves_what_was_opened_as_it_is_and_what_comes_as_it_was_asked(lab: Lab) -> None:
    before = submit_decided(lab, [*HELD, "--energy-open"], wrap="sleep 2")
    lab.kill_daemon()
    during = submit(lab, [*SHORT, "--energy-open"], wrap="sleep 2")
    assert show_job(lab, during)["Partition"] == "a40", "no answer came"
    lab.run(["scontrol", "release", str(before)], check=True)
    assert wait_for(lab, before, {"COMPLETED"}, timeout=300)[0]["Partition"] == "a100"
    wait_for(lab, during, {"COMPLETED"}, timeout=300)
    lab.start_daemon()
    assert partition_of(lab, "--energy-open") == "a100,a40"


def test_the_invitation_is_said_explained_and_summed_up_by_user(lab: Lab) -> None:
    argv = ["sbatch", *SHORT, "--wrap", "sleep 3"]
    said = when_decided(lambda: on_terminal(lab, argv).stderr, lambda text: "--energy-open" in text)
    assert "left open (--energy-open), the job could use less energy in another partition" in said
    job = submit_decided(lab, SHORT, wrap="sleep 3")
    wait_for(lab, job, {"COMPLETED"}, timeout=300)
    await_reports(lab, job)
    until("the decision", lambda: story(lab, job))
    shown = lab.run(["slurm-energy", "explain", str(job)], check=True).stdout
    assert "--energy-open could have saved about" in " ".join(shown.split())
    document = json.loads(lab.run(["slurm-energy", "report", "open", "--json"], user="alice", check=True).stdout)
    (alice,) = document["groups"]
    assert alice["user"] == "alice"
    assert alice["named_jobs"] >= 1
    slow = json.loads(lab.run(["slurm-energy", "report", "slowdown", "--json"], user="alice", check=True).stdout)
    assert slow["total"]["jobs"] >= 1
    assert slow["measured_from"] == "where Slurm would have started the job, at the default clock"


def test_a_site_may_open_named_partitions_and_a_user_may_close_his(new_lab: StartLab) -> None:
    routing = {"open": True, "open_by_default": True}
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": routing})
    assert partition_of(lab) == "a100,a40"
    assert partition_of(lab, "--energy-open=off") == "a40"
    assert partition_of(lab, "--array=1-2") == "a40"
    assert partition_of(lab, "-w", "a40-1") == "a40"
