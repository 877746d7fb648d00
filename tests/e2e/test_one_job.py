"""One job end to end on a real slurmctld: decided, applied, measured, stored, shown, undone."""

import json
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from energy_lab import (
    DEFAULT_A100_MHZ,
    await_reports,
    drained,
    locked_clocks,
    node_states,
    on_terminal,
    story,
    submit_decided,
    until,
    when_decided,
    workload,
)

from slurm_energy.domain.decision import DecisionEntry, Reason
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, QualityFlag
from slurm_energy.domain.report import JobEnergyRecord
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_job, submit, wait_for
from slurm_energy.reporting.energy_table import job_energy_text

pytestmark = pytest.mark.lab

DUMP = '#!/bin/sh\n/usr/bin/env > "{folder}/$SLURM_JOB_ID.$SLURMD_NODENAME.{hook}"\nexit 0\n'


@pytest.fixture
def hook_environments(lab: Lab) -> Path:
    """Let every prolog and epilog leave its environment in a folder."""
    folder = lab.directory / "environments"
    folder.mkdir(exist_ok=True)
    for hook in ("prolog", "epilog"):
        script = lab.layout.hooks / f"{hook}.d" / "90-dump.sh"
        script.write_text(DUMP.format(folder=folder, hook=hook))
        script.chmod(0o755)
    return folder


def environment_of(folder: Path, job_id: int, node: str, hook: str) -> dict[str, str]:
    path = folder / f"{job_id}.{node}.{hook}"
    text = until(f"{hook} of job {job_id}", lambda: path.read_text() if path.exists() else None)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_a_decision_reaches_prolog_and_epilog_and_the_database(lab: Lab, hook_environments: Path) -> None:
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5"], wrap=workload(60))
    wait_for(lab, job, {"COMPLETED"})
    shown = show_job(lab, job)
    entries = {
        hook: DecisionEntry.decode(
            environment_of(hook_environments, job, shown["NodeList"], hook)["SPANK_ENERGY_DECISION"]
        )
        for hook in ("prolog", "epilog")
    }
    assert entries["prolog"] == entries["epilog"]
    assert shown["AdminComment"] == f"energy:{entries['prolog'].decision_id}"
    report = await_reports(lab, job)[0]
    assert report.decision_id == entries["prolog"].decision_id
    record = until("decision", lambda: story(lab, job))
    assert record.decision is not None
    assert record.decision.policy == "oracle"
    assert Reason.USER_PARTITION in {reason.code for reason in record.decision.reasons}


def test_the_clock_changes_on_exactly_the_jobs_gpus_and_comes_back(lab: Lab) -> None:
    assert until("quiet lab", lambda: not locked_clocks(lab))
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:2", "-t", "5"], wrap=workload(240))
    until("locked clocks", lambda: len(locked_clocks(lab)) > 1)
    during = locked_clocks(lab)
    node = show_job(lab, job)["NodeList"]
    wait_for(lab, job, {"COMPLETED"})
    report = await_reports(lab, job)[0]
    assert {node for node, _ in during} == {node}
    assert {uuid for _, uuid in during} == {gpu.gpu_uuid for gpu in report.gpus}
    assert len(during) == 2
    for gpu in report.gpus:
        assert gpu.applied_clock_mhz == gpu.asked_clock_mhz == during[node, gpu.gpu_uuid][1]
        assert gpu.applied_clock_mhz < DEFAULT_A100_MHZ
        assert gpu.observed_clock_mhz is not None
        assert abs(gpu.observed_clock_mhz - gpu.applied_clock_mhz) <= 15
    assert locked_clocks(lab) == {}


@pytest.mark.parametrize(("partition", "gpus"), [("a100", 1), ("a40", 3), ("v100", 2)])
def test_stored_joules_are_the_difference_of_the_simulated_counters(lab: Lab, partition: str, gpus: int) -> None:
    for _ in range(3):  # the sum of the samples is off where a busy machine holds up the sampler
        if all(gpu.polled_joules == pytest.approx(gpu.joules, rel=0.15) for gpu in _counted(lab, partition, gpus)):
            return
    pytest.fail("three times the sum of the samples was not the difference of the counter")


def _counted(lab: Lab, partition: str, gpus: int) -> tuple[GpuEnergy, ...]:
    """Run a job and return the energy of its GPUs, which is what the simulated counters say."""
    until("quiet lab", lambda: not locked_clocks(lab))
    nodes = lab.spec.node_names
    before = {node: _energies(lab, node) for node in nodes}
    job = submit(lab, ["-p", partition, f"--gres=gpu:{gpus}", "-t", "5"], wrap=workload(300))
    wait_for(lab, job, {"COMPLETED"})
    report = await_reports(lab, job)[0]
    after = _energies(lab, report.node)
    assert len(report.gpus) == gpus
    for gpu in report.gpus:
        seconds_before, joules_before, _ = before[report.node][gpu.gpu_uuid]
        seconds_after, joules_after, idle_watts = after[gpu.gpu_uuid]
        idle_seconds = seconds_after - seconds_before - gpu.coverage_seconds
        expected = joules_after - joules_before - idle_watts * idle_seconds
        assert gpu.source is EnergySource.COUNTER
        assert gpu.scope is EnergyScope.GPU
        assert gpu.joules == pytest.approx(expected, rel=0.01)
        assert QualityFlag.INCOMPLETE not in gpu.flags
    return report.gpus


def _energies(lab: Lab, node: str) -> dict[str, tuple[float, float, float]]:
    """Return device time, true joules and idle watts of each GPU of a node."""
    with lab.gpu_state(node) as state:
        readings = {gpu.uuid: gpu.reading() for gpu in state.gpus}
    return {
        uuid: (reading.device_seconds, reading.energy_joules, reading.power_watts) for uuid, reading in readings.items()
    }


def test_a_node_whose_minor_numbers_differ_bills_the_gpu_the_job_really_had(lab: Lab) -> None:
    job = submit(lab, ["-p", "v100", "--gres=gpu:1", "-t", "5"], wrap=workload(300, "memory"))
    wait_for(lab, job, {"RUNNING"})
    node = show_job(lab, job)["NodeList"]
    with lab.gpu_state(node) as state:
        busy = until("a loaded GPU", lambda: {gpu.uuid for gpu in state.gpus if gpu.loads})
        assert [gpu.minor_number for gpu in state.gpus] != sorted(gpu.minor_number for gpu in state.gpus)
    wait_for(lab, job, {"COMPLETED"})
    assert {gpu.gpu_uuid for gpu in await_reports(lab, job)[0].gpus} == busy


@pytest.mark.timeout(600)
def test_an_array_of_fifty_is_one_decision_and_fifty_energy_rows(lab: Lab) -> None:
    array = submit_decided(
        lab, ["-p", "a40", "--gres=gpu:1", "-t", "5", "--array=1-50%16", "-o", "/dev/null"], wrap=workload(20)
    )
    rows = wait_for(lab, array, {"COMPLETED"}, timeout=240)
    ids = [int(row["JobId"]) for row in rows]
    assert len(set(ids)) == 50
    stored = [report for number in ids for report in await_reports(lab, number, seconds=240)]
    assert len(stored) == 50
    assert len({report.decision_id for report in stored}) == 1
    unknown = [(report.job_id, gpu.reason, gpu.flags) for report in stored for gpu in report.gpus if gpu.joules is None]
    assert unknown == []
    assert drained(lab) == {}


def test_host_energy_of_a_job_without_gpus_is_not_awaited(lab: Lab) -> None:
    job = submit(lab, ["-p", "a100", "-n1", "-t", "5"], wrap="/usr/bin/sleep 2")
    wait_for(lab, job, {"COMPLETED"})

    def ended() -> JobEnergyRecord | None:
        found = story(lab, job)
        return found.job if found is not None and found.job.ended_at_seconds is not None else None

    record = until("end of the job in the database", ended)
    assert (record.gpu_count, record.gpu.readings, record.host.readings) == (0, 0, 0)
    assert job_energy_text(record, record.gpu, time.time()) == "no GPU"
    assert job_energy_text(record, record.host, time.time()) == "not measured: no GPU"


def test_two_jobs_on_one_node_keep_apart(lab: Lab) -> None:
    arguments = ["-p", "a100", "-w", "a100-2", "-t", "5"]
    slowed = submit_decided(lab, [*arguments, "--gres=gpu:2"], wrap=workload(480))
    wait_for(lab, slowed, {"RUNNING"})
    refused = submit(lab, [*arguments, "--gres=gpu:1", "--energy=off"], wrap=workload(60))
    wait_for(lab, refused, {"COMPLETED"})
    await_reports(lab, refused)
    held = {uuid for node, uuid in locked_clocks(lab) if node == "a100-2"}
    wait_for(lab, slowed, {"COMPLETED"})
    of_slowed = {gpu.gpu_uuid for gpu in await_reports(lab, slowed)[0].gpus}
    of_refused = {gpu.gpu_uuid for gpu in await_reports(lab, refused)[0].gpus}
    assert held == of_slowed
    assert not of_slowed & of_refused
    assert locked_clocks(lab) == {}


def test_energy_off_changes_nothing_and_is_still_accounted_for(lab: Lab) -> None:
    job = submit(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5", "--energy=off"], wrap=workload(120))
    wait_for(lab, job, {"RUNNING"})
    time.sleep(0.3)
    assert locked_clocks(lab) == {}
    wait_for(lab, job, {"COMPLETED"})
    gpu = await_reports(lab, job)[0].gpus[0]
    assert gpu.joules is not None
    assert gpu.applied_clock_mhz is None


def test_a_requeued_job_is_one_job_with_two_attempts(lab: Lab) -> None:
    job = submit(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5", "--requeue"], wrap=workload(240))
    wait_for(lab, job, {"RUNNING"})
    time.sleep(1.0)
    lab.run(["scontrol", "requeue", str(job)], check=True)
    await_reports(lab, job)  # the first attempt has left its node
    until("a queued second attempt", lambda: show_job(lab, job)["JobState"] == "PENDING")
    # A report comes at once now: slurmd may still be in the first attempt's epilog, and would run no second prolog.
    until("idle nodes", lambda: set(node_states(lab).values()) == {"idle"})
    time.sleep(2.0)
    lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)  # Slurm would wait two minutes
    wait_for(lab, job, {"COMPLETED"}, timeout=300)
    stored = await_reports(lab, job, count=2)
    assert sorted(report.restart_count for report in stored) == [0, 1]
    record = until("story", lambda: story(lab, job))
    assert record.job.attempts == 2
    known = [gpu.joules for report in stored for gpu in report.gpus]
    assert record.job.gpu.joules == pytest.approx(sum(joules for joules in known if joules is not None))


ANNOUNCED = (
    "energy: if accepted: a lower GPU clock (what it saves for this job is not known, somewhat longer run); "
    "opt out with --energy=off\n"
)


def test_a_terminal_is_told_of_the_decision_without_digits(lab: Lab) -> None:
    arguments = ["-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"]

    def told(*argv: str) -> CompletedProcess[str]:
        return when_decided(lambda: on_terminal(lab, argv), lambda done: "energy:" in done.stderr)

    spoken = told("sbatch", "--parsable", *arguments, "--wrap", "true")
    assert spoken.stdout.strip().isdigit()
    assert spoken.stderr == f"sbatch: {ANNOUNCED}"
    assert not any(letter.isdigit() for letter in spoken.stderr)
    quiet = on_terminal(lab, ["sbatch", "--energy-quiet", *arguments, "--wrap", "true"])
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert f"srun: {ANNOUNCED}" in told("srun", "-p", "a100", "--gres=gpu:1", "-t", "5", "hostname").stderr
    assert f"salloc: {ANNOUNCED}" in told("salloc", "-p", "a100", "--gres=gpu:1", "-t", "5", "true").stderr


def test_a_program_that_reads_what_sbatch_says_reads_what_slurm_alone_says(lab: Lab) -> None:
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"], wrap="true")
    assert show_job(lab, job)["AdminComment"].startswith("energy:")
    done = lab.run(
        ["sbatch", "-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null", "--wrap", "true"], user="alice"
    )
    assert done.stdout.startswith("Submitted batch job ")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_refused_submission_was_promised_nothing(lab: Lab) -> None:
    refused = ["sbatch", "-p", "a100", "--gres=gpu:1", "-t", "5", "-w", "nosuch", "-o", "/dev/null", "--wrap", "true"]
    done = when_decided(lambda: on_terminal(lab, refused), lambda done: "energy:" in done.stderr)
    assert done.returncode != 0
    assert ANNOUNCED in done.stderr
    assert "Batch job submission failed" in done.stderr
    explained = lab.run(["energy-sbatch", *refused[1:]], user="alice")
    assert "energy:" not in explained.stderr.replace("sbatch: error: Batch job submission failed", "")
    assert explained.returncode == done.returncode


def test_report_and_explain_show_a_person_his_own_jobs_only(lab: Lab) -> None:
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5", "-J", "mine $(id)\x1b[31m"], wrap=workload(90))
    wait_for(lab, job, {"COMPLETED"})
    await_reports(lab, job)
    table = lab.run(["slurm-energy", "report", "job", str(job)], user="alice", check=True)
    assert "\x1b[31m" not in table.stdout
    document = json.loads(
        lab.run(["slurm-energy", "report", "job", str(job), "--json"], user="alice", check=True).stdout
    )
    assert json.dumps(document).count(str(job)) >= 1
    told = lab.run(["slurm-energy", "explain", str(job)], user="alice", check=True).stdout
    for word in ("1290", "1410", "oracle"):
        assert word in told
    other = lab.run(["slurm-energy", "explain", str(job)], user="bob")
    assert other.returncode == 1
    assert "1290" not in other.stdout
