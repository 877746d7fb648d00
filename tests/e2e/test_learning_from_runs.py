"""Runs on a real slurmctld teach the daemon what a job name costs where: the next job of that name is sent by it."""

import time
from collections.abc import Callable

import pytest
from energy_lab import await_reports, story, until, when_decided, workload

from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.relative_speed import relative_speed
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a40", nodes=1, gpus_per_node=4),
    PartitionSpec(name="a100", nodes=1, gpus_per_node=4),
)
RUNS = 3
SECONDS = 2400.0
"""Of the device: long enough for the seconds that launching takes to be a small share of the run."""
SNAPSHOT_SECONDS = 3.0
"""Until the daemon has seen that a job is gone."""


def test_a_program_that_gains_nothing_from_the_fast_type_is_no_longer_sent_there(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings={"routing": {"open": True}})
    assert _sent_to(lab, "light")[1] == "a100"

    speed = relative_speed(GpuTypeName("a40"), GpuTypeName("a100-sxm4-80gb"))
    assert speed is not None
    jobs = [
        # As much work as makes a run half as long as on the A100: the program is faster on the cheap GPU. A laboratory
        # on a busy machine adds seconds to runs, which must not turn that round.
        submit(lab, ["-J", "light", "-p", name, "--gres=gpu:1", "-t", "60"], wrap=workload(SECONDS * share))
        for name, share in (("a40", 0.5 * speed), ("a100", 1.0))
        for _ in range(RUNS)
    ]
    for job in jobs:
        wait_for(lab, job, {"COMPLETED"}, timeout=300)
        await_reports(lab, job)
    until("accounting of all jobs", lambda: all(_has_ended(lab, job) for job in jobs))

    lab.stop_daemon()
    lab.start_daemon()  # it looks at the runs when it begins, and every ten minutes from then on

    def sent() -> int | None:
        number, partition = _sent_to(lab, "light")
        return number if partition == "a40" else None

    number = until("job of that name in the cheap partition", sent)
    assert _sent_to(lab, "other")[1] == "a100"
    record = until("decision", lambda: story(lab, number))
    assert record.decision is not None
    # It is left where Slurm starts it: the default partition, which is where it costs the least.
    assert record.decision.partitions in {None, (PartitionName("a40"),)}


def _sent_to(lab: Lab, name: str) -> tuple[int, str]:
    """Return number and partition of a job that is not let run, and that leaves no trace in the queue."""

    def attempt() -> tuple[int, dict[str, str]]:
        number = submit(lab, ["--hold", "-J", name, "--gres=gpu:1", "-t", "60"], wrap="true")
        shown = show_job(lab, number)
        lab.run(["scancel", str(number)], check=True)
        time.sleep(SNAPSHOT_SECONDS)
        return number, shown

    number, shown = when_decided(attempt, lambda made: "AdminComment" in made[1])
    return number, shown["Partition"].partition(",")[0]


def _has_ended(lab: Lab, job: int) -> bool:
    record = story(lab, job)
    return record is not None and record.job.state == "COMPLETED"
