"""What breaks must not reach the jobs: hooks lost, slurmd killed, faulty GPUs, forged entries, names of any bytes."""

import time
from contextlib import ExitStack

import pytest
from energy_lab import await_reports, drained, locked_clocks, story, submit_decided, until, workload

from slurm_energy.domain.energy import EnergySource, QualityFlag
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import submit, wait_for
from slurm_energy.lab.simgpu.layout import Fault

pytestmark = pytest.mark.lab

BREAKER_SECONDS = 1.0
"""Of the shared lab."""


@pytest.fixture
def rested(lab: Lab) -> Lab:
    """The lab with a closed circuit breaker."""
    time.sleep(BREAKER_SECONDS + 0.2)
    return lab


def test_a_forged_decision_entry_is_removed(rested: Lab) -> None:
    forged = "v=1;id=forged0000000000;mode=saver;clocks=a100-sxm4-80gb:210"
    names = (
        "SPANK_ENERGY_DECISION",
        "ENERGY_DECISION",
        "SPANK_SPANK_ENERGY_DECISION",
        "_SLURM_SPANK_OPTION_ENERGY_DECISION",
    )
    for arguments in ([], ["--energy=off"], ["--export=ALL,SPANK_ENERGY_DECISION=" + forged.replace(",", ";")]):
        job = submit(
            rested,
            ["-p", "a100", "--gres=gpu:1", "-t", "5", *arguments],
            wrap=workload(90),
            env=dict.fromkeys(names, forged),
        )
        wait_for(rested, job, {"COMPLETED"})
        report = await_reports(rested, job)[0]
        assert report.decision_id != "forged0000000000"
        assert {gpu.asked_clock_mhz for gpu in report.gpus} != {210}


def test_a_daemon_that_was_away_gets_the_reports_later(rested: Lab) -> None:
    job = submit(rested, ["-p", "a100", "--gres=gpu:1", "-t", "5"], wrap=workload(120))
    wait_for(rested, job, {"RUNNING"})
    rested.stop_daemon()
    wait_for(rested, job, {"COMPLETED"})
    time.sleep(3)
    rested.start_daemon()
    assert await_reports(rested, job)[0].gpus[0].joules is not None


def test_slurmd_killed_during_a_job_leaves_no_clock_behind(lab: Lab) -> None:
    job = submit_decided(lab, ["-p", "a100", "-w", "a100-3", "--gres=gpu:1", "-t", "5"], wrap=workload(240))
    wait_for(lab, job, {"RUNNING"})
    until("lock", lambda: [node for node, _ in locked_clocks(lab)] == ["a100-3"])
    lab.kill_slurmd("a100-3")
    time.sleep(5)
    lab.start_slurmd("a100-3")
    wait_for(lab, job, {"COMPLETED", "NODE_FAIL", "FAILED"}, timeout=300)
    next_job = submit(lab, ["-p", "a100", "-w", "a100-3", "--gres=gpu:4", "-t", "5", "--energy=off"], wrap=workload(30))
    wait_for(lab, next_job, {"COMPLETED"}, timeout=300)
    assert locked_clocks(lab) == {}
    assert await_reports(lab, job)
    assert drained(lab) == {}


def test_a_lost_epilog_is_repaired_by_the_next_prolog(lab: Lab) -> None:
    script = lab.layout.hooks / "epilog.d" / "50-slurm-energy.sh"
    text = script.read_text()
    script.write_text("#!/bin/sh\nexit 0\n")
    try:
        lost = submit_decided(lab, ["-p", "a100", "-w", "a100-4", "--gres=gpu:1", "-t", "5"], wrap=workload(300))
        wait_for(lab, lost, {"COMPLETED"})
        time.sleep(1.5)
        assert [node for node, _ in locked_clocks(lab)] == ["a100-4"]
    finally:
        script.write_text(text)
    other = submit(lab, ["-p", "a100", "-w", "a100-4", "--gres=gpu:4", "-t", "5", "--energy=off"], wrap=workload(30))
    wait_for(lab, other, {"COMPLETED"})
    assert locked_clocks(lab) == {}
    report = await_reports(lab, lost)[0]
    assert QualityFlag.TRUNCATED in report.gpus[0].flags or report.gpus[0].joules is None
    clean = await_reports(lab, other)[0]
    assert all(gpu.joules is not None for gpu in clean.gpus)


@pytest.mark.parametrize(
    ("fault", "source"),
    [
        (Fault.ENERGY_UNSUPPORTED, EnergySource.POLLED),
        (Fault.ENERGY_STUCK, EnergySource.POLLED),
        (Fault.NO_PERMISSION, EnergySource.COUNTER),
        (Fault.CLOCK_ERROR, EnergySource.COUNTER),
    ],
    ids=str,
)
def test_a_faulty_gpu_never_fails_its_job_and_its_joules_say_where_they_come_from(
    lab: Lab, fault: Fault, source: EnergySource
) -> None:
    with ExitStack() as opened:
        states = [opened.enter_context(lab.gpu_state(node)) for node in lab.spec.partitions[2].node_names]
        gpus = [gpu for state in states for gpu in state.gpus]
        for gpu in gpus:
            gpu.set_fault(fault)
            opened.callback(gpu.set_fault, fault, on=False)
        job = submit_decided(lab, ["-p", "v100", "--gres=gpu:1", "-t", "5"], wrap=workload(480))
        wait_for(lab, job, {"COMPLETED"})
        measured = await_reports(lab, job)[0].gpus[0]
    assert measured.source is source
    assert measured.joules is not None
    assert measured.joules > 0
    if source is EnergySource.COUNTER:
        assert {QualityFlag.NO_PERMISSION, QualityFlag.CLOCK_REFUSED} & set(measured.flags)
    assert until("restored clocks", lambda: not locked_clocks(lab))
    assert drained(lab) == {}


@pytest.mark.parametrize("name", [r"caf\351", r"\377\376", r"a\033[31mb"], ids=["latin-1", "no-text", "escape"])
def test_a_job_named_with_any_bytes_stops_neither_the_reading_of_the_queue_nor_its_own_account(
    rested: Lab, name: str
) -> None:
    command = f"sbatch --parsable -p a100 --gres=gpu:1 -t 5 -J \"$(printf '{name}')\" --wrap '{workload(60)}'"
    job = int(rested.run(["sh", "-c", command], user="alice", check=True).stdout.strip().partition(";")[0])
    report = await_reports(rested, job)[0]
    assert report.gpus[0].joules is not None and report.gpus[0].joules > 0.0

    def ended() -> bool:
        """Return whether the queue, in which the name stands, was read until the job was seen to end."""
        record = story(rested, job)
        return record is not None and record.job.state == "COMPLETED"

    until("end of the job in the database", ended)
