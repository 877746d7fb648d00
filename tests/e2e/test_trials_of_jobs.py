"""Clocks tried in running jobs under a real slurmctld, against curves that the product never sees.

Device time runs six times as fast as the wall, and windows are 30 s of it: on real GPUs they are 60 s.
"""

import sys
import time
from collections.abc import Callable

import pytest
from energy_lab import await_reports, locked_clocks, story, submit_decided, until, workload

from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import GpuTypeName, JobId
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit, wait_for
from slurm_energy.node.processes import read_identity
from slurm_energy.node.spool import Spool

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

V100 = GpuTypeName("v100-pcie-16gb")
PARTITIONS = (PartitionSpec(name="v100", nodes=1, gpus_per_node=4),)
BOUND = 0.05
SECONDS = 1500.0
SETTINGS = {
    "policy": {"name": "oracle", "clock_trials": "on"},
    "node": {"trial_window_seconds": 30.0, "sample_interval_seconds": 0.5},
}


def truth(trial: ClockTrial, profile: str) -> float:
    """Return the slowdown of the simulator's own curve."""
    return next(curve for curve in curves_of(V100) if curve.workload == profile).slowdown(trial.sm_clock_mhz)


COUNTING = f"""{sys.executable} - <<'END' &
import time
from slurm_energy.progress import StepMeter
with StepMeter() as meter:
    for _ in meter.steps(range(10_000)):
        time.sleep(0.2)
END
"""


def start(lab: Lab, name: str, profile: str, rhythm: str, *more: str, seconds: float = SECONDS, head: str = "") -> int:
    command = f"{head}{workload(seconds, profile)} --rhythm {rhythm} --period 0.9 --jitter 0.02 --seed {len(name)}"
    return submit_decided(lab, ["-J", name, "--gres=gpu:1", "-t", "600", *more], wrap=command)


def finished(lab: Lab, job: int) -> NodeReport:
    wait_for(lab, job, {"COMPLETED"}, timeout=600)
    return await_reports(lab, job)[0]


def test_a_job_whose_work_repeats_finds_its_clock_and_the_next_one_begins_with_it(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings=SETTINGS, time_scale=6.0)
    jobs = {
        "periodic": start(lab, "periodic", "lstm", "iterations"),
        "aperiodic": start(lab, "aperiodic", "dgemm", "aperiodic"),
        "timer": start(lab, "timer", "dgemm", "timer"),
        "refused": start(lab, "refused", "lstm", "iterations", "--energy-trials=off", head=COUNTING),
    }
    reports = {name: finished(lab, job) for name, job in jobs.items()}
    table = reports["refused"].gpus[0].applied_clock_mhz
    assert table is not None and reports["refused"].trials == ()

    counted = [event for event in reports["refused"].events if event.startswith("progress: ")]
    assert counted and " steps of 0.2" in counted[0] and " J" in counted[0]

    periodic = reports["periodic"]
    kept = [trial for trial in periodic.trials if trial.kept]
    assert kept and periodic.gpus[0].applied_clock_mhz == kept[-1].sm_clock_mhz
    assert min(trial.sm_clock_mhz for trial in periodic.trials) < table
    for trial in periodic.trials:
        if trial.slowdown is not None and trial.error is not None:
            assert trial.slowdown == pytest.approx(truth(trial, "lstm"), abs=3.0 * trial.error + 0.005)
    assert truth(kept[-1], "lstm") <= BOUND + 0.005

    # Power without a rhythm answers nothing, and a timer of the host nothing dangerous.
    assert all(trial.slowdown is None for trial in reports["aperiodic"].trials)
    assert reports["aperiodic"].gpus[0].applied_clock_mhz == table
    for trial in reports["timer"].trials:
        assert trial.slowdown is None or truth(trial, "dgemm") - trial.slowdown <= 0.02
    assert locked_clocks(lab) == {}
    shown = lab.run(["slurm-energy", "explain", str(jobs["periodic"])], user="alice", check=True).stdout
    assert "Clocks tried while it ran" in shown and "by its power" in shown

    lab.stop_daemon()
    lab.start_daemon()  # it looks at the trials when it begins, and soon after jobs ended

    def begun() -> int | None:
        number = submit(lab, ["--hold", "-J", "periodic", "--gres=gpu:1", "-t", "600"], wrap="true")
        time.sleep(3.0)
        record = story(lab, number)
        lab.run(["scancel", str(number)], check=True)
        clocks = () if record is None or record.decision is None else record.decision.clocks
        return clocks[0].sm_clock_mhz if clocks and clocks[0].sm_clock_mhz != table else None

    # It begins with the clock of least energy that all answers together are sure of.
    learned = until("decision with a clock that was learned", begun)
    (tried, *_) = [trial for trial in periodic.trials if trial.sm_clock_mhz == learned and trial.slowdown is not None]
    assert truth(tried, "lstm") <= BOUND + 0.005


def test_a_sampler_killed_in_a_trial_leaves_no_job_at_another_clock_for_long(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(partitions=PARTITIONS, energy=True, settings=SETTINGS, time_scale=6.0)
    job = start(lab, "killed", "lstm", "iterations", seconds=3000.0)
    spool = Spool(lab.layout.hooks_spool / "v100-1")
    table = until("clock of the job", lambda: next(iter(locked_clocks(lab).values()), None))
    until("trial", lambda: spool.trial_path(JobId(job)).exists() and locked_clocks(lab) == {}, 200)
    identity = read_identity(spool.sampler_path(JobId(job)))
    assert identity is not None
    lab.run(["kill", "-KILL", str(identity.pid)], check=True)
    assert until("decided clock", lambda: next(iter(locked_clocks(lab).values()), None), 120) == table
    lab.run(["scancel", str(job)], check=True)
    await_reports(lab, job)
    assert locked_clocks(lab) == {}
