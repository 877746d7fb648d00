"""Partitions on a real slurmctld: the user's word stands, routing happens only where the site opens it."""

import time
from collections.abc import Callable

import pytest
from energy_lab import on_terminal, submit_decided, when_decided

from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a40", nodes=1, gpus_per_node=4),
    PartitionSpec(name="a100", nodes=1, gpus_per_node=4),
)
SNAPSHOT_SECONDS = 3.0
"""After so long the daemon has seen what was submitted."""
HELD = ["--hold", "--gres=gpu:1", "-t", "5"]


def test_a_job_that_names_no_partition_stays_in_the_default_one_while_routing_is_closed(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True)
    assert show_job(lab, submit_decided(lab, HELD, wrap="true"))["Partition"] == "a40"
    named = submit_decided(lab, [*HELD, "-p", "a40"], wrap="true")
    assert show_job(lab, named)["Partition"] == "a40"


def test_with_open_routing_the_cheapest_partition_is_chosen_but_a_named_one_stands(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": {"open": True}})
    # The A100 does the measured programs in about a third of the A40's time and for less energy.
    assert show_job(lab, submit_decided(lab, HELD, wrap="true"))["Partition"] == "a100,a40"
    assert show_job(lab, submit_decided(lab, [*HELD, "-p", "a40"], wrap="true"))["Partition"] == "a40"
    assert show_job(lab, submit_decided(lab, [*HELD, "-p", "a40,a100"], wrap="true"))["Partition"] == "a100,a40"
    assert show_job(lab, submit(lab, [*HELD, "--energy=off"], wrap="true"))["Partition"] == "a40"


def test_a_job_never_waits_for_a_cheaper_partition(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": {"open": True}})
    full = submit(lab, ["-p", "a100", "--gres=gpu:4", "-t", "5", "--energy=off"], wrap="sleep 600")
    wait_for(lab, full, {"RUNNING"})
    later = submit_decided(lab, ["-p", "a40,a100", "--gres=gpu:1", "-t", "5", "--begin=now+0"], wrap="true")
    rows = wait_for(lab, later, {"COMPLETED"}, timeout=300)
    assert rows[0]["Partition"] == "a40"


def test_jobs_that_do_not_wait_for_room_move_nobodys_jobs(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": {"open": True}})
    for more in (["--hold"], ["--begin=now+1hour"]):
        options = [*more, "-p", "a100", "--gres=gpu:1", "-t", "5", "--energy=off"]
        thirty = "for i in $(seq 30); do sbatch $* --wrap true; done"
        lab.run(["sh", "-c", thirty, "sh", *options], user="alice", check=True)
    first = submit(lab, ["-p", "a40", "--gres=gpu:1", "-t", "5", "--energy=off"], wrap="sleep 60")
    submit(lab, ["-p", "a100", "--gres=gpu:4", "-t", "5", "--energy=off", "-d", f"afterok:{first}"], wrap="true")
    time.sleep(SNAPSHOT_SECONDS)
    job = submit_decided(lab, ["-p", "a40,a100", "--gres=gpu:1", "-t", "5"], wrap="sleep 5")
    assert wait_for(lab, job, {"RUNNING", "COMPLETED"})[0]["Partition"] == "a100"


def test_the_line_says_which_partition_is_tried_first_and_nothing_of_one_that_went_down(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"daemon": {"snapshot_interval_seconds": 30.0}})
    argv = ["sbatch", "-p", "a40,a100", "--gres=gpu:1", "-t", "5", "--hold", "--wrap", "true"]
    said = when_decided(lambda: on_terminal(lab, argv).stderr, bool)
    assert "another choice of partition and a lower GPU clock" in said
    lab.run(["scontrol", "update", "PartitionName=a100", "State=DRAIN"], check=True)
    said = when_decided(lambda: on_terminal(lab, argv).stderr, bool)
    assert "a lower GPU clock" in said
    assert "partition" not in said
