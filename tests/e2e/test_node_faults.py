"""What is lost or hangs on a node, on real daemons: no job waits or fails, no node drains, no clock stays locked."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from energy_lab import await_reports, drained, locked_clocks, reports, submit_decided, until, workload
from lab_fixtures import EXACT, PATIENT, SMALL, lab_spec, require_lab

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.lab.cluster import Lab, start_lab
from slurm_energy.lab.jobs import submit, wait_for
from slurm_energy.lab.simgpu.layout import Fault

pytestmark = pytest.mark.lab

NODE = "a100-1"
ONE_GPU = ["-p", "a100", "-w", NODE, "--gres=gpu:1", "-t", "5"]
REPAIR_EVERY_SECONDS = 4
SLURMD_TIMEOUT_SECONDS = 20
"""Until slurmctld gives up a node whose slurmd is dead, and its job with it; a minute in other labs."""
REPAIR_SECONDS = 120.0
"""Until a repair is seen; a busy machine takes its time."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab of one node whose timer repairs often."""
    require_lab(energy=True)
    spec = lab_spec(
        name=f"node-faults-{os.getpid()}",
        partitions=SMALL,
        settings=EXACT,
        plugin_settings=PATIENT,
        repair_seconds=REPAIR_EVERY_SECONDS,
        slurm_conf_lines=(f"SlurmdTimeout={SLURMD_TIMEOUT_SECONDS}",),
    )
    with start_lab(spec, owned=True) as running:
        yield running


@contextmanager
def no_epilog(lab: Lab) -> Iterator[None]:
    """Let epilogs end without doing anything, as where a node lost them."""
    script = lab.layout.hooks / "epilog.d" / "50-slurm-energy.sh"
    text = script.read_text()
    script.write_text("#!/bin/sh\nexit 0\n")
    try:
        yield
    finally:
        script.write_text(text)


def locked_nodes(lab: Lab) -> list[str]:
    return sorted({node for node, _ in locked_clocks(lab)})


def locked_job(lab: Lab, seconds: float) -> int:
    """Start a job and return its number once its clock is locked."""
    job = submit_decided(lab, ONE_GPU, wrap=workload(seconds))
    wait_for(lab, job, {"RUNNING"})
    until("lock", lambda: locked_nodes(lab) == [NODE])
    return job


def unlocked(lab: Lab) -> None:
    until("end of the lock", lambda: not locked_clocks(lab), REPAIR_SECONDS)


def test_a_lost_epilog_is_repaired_though_no_other_job_comes(lab: Lab) -> None:
    with no_epilog(lab):
        job = locked_job(lab, 300)
        wait_for(lab, job, {"COMPLETED"})
        time.sleep(1.0)
        unlocked(lab)
    report = await_reports(lab, job)[0]
    assert QualityFlag.TRUNCATED in report.gpus[0].flags or report.gpus[0].joules is None
    assert any("closed without an epilog" in event for event in report.events)


def remove_spool(lab: Lab) -> None:
    """Remove the node's spool under a running sampler, which may write a file between two steps of the removal."""
    spool = lab.layout.hooks_spool / NODE

    def is_gone() -> bool:
        shutil.rmtree(spool, ignore_errors=True)
        return not spool.exists()

    until("a removed spool", is_gone)


def test_a_removed_spool_and_a_lost_epilog_leave_no_clock(lab: Lab) -> None:
    with no_epilog(lab):
        job = locked_job(lab, 300)
        remove_spool(lab)
        time.sleep(3.0)
        assert locked_nodes(lab) == [NODE], "a live job lost its clock"
        wait_for(lab, job, {"COMPLETED"})
        unlocked(lab)


def test_a_removed_spool_does_not_keep_the_epilog_from_giving_the_clock_back(lab: Lab) -> None:
    job = locked_job(lab, 300)
    remove_spool(lab)
    wait_for(lab, job, {"COMPLETED"})
    unlocked(lab)
    report = await_reports(lab, job)[0]
    assert report.gpus[0].joules is None


def test_a_job_that_ends_while_slurmd_is_dead_leaves_no_clock(lab: Lab) -> None:
    job = locked_job(lab, 300)
    lab.kill_slurmd(NODE)
    try:
        unlocked(lab)
    finally:
        lab.start_slurmd(NODE)
    wait_for(lab, job, {"COMPLETED", "NODE_FAIL", "FAILED"}, timeout=300)
    assert len(await_reports(lab, job)) == 1
    until("nodes that take jobs", lambda: drained(lab) == {})


@pytest.mark.parametrize("name", ["10-slow.sh", "90-slow.sh"], ids=["after ours", "before ours"])
@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_a_job_that_is_taken_back_while_its_prolog_runs_leaves_no_clock(lab: Lab, verb: str, name: str) -> None:
    began = lab.directory / "slow-prolog-began"
    slow = lab.layout.hooks / "prolog.d" / name  # Slurm runs them from Z to A
    slow.write_text(f"#!/bin/sh\ntouch {began}\nsleep 4\nexit 0\n")
    slow.chmod(0o755)
    try:
        job = submit_decided(lab, [*ONE_GPU, "--requeue"], wrap=workload(60))
        until("a prolog that runs", began.exists)
        lab.run(["scancel", str(job)] if verb == "cancel" else ["scontrol", "requeue", str(job)], check=True)
        until("an idle node", lambda: "idle" in lab.run(["sinfo", "-h", "-n", NODE, "-o", "%T"]).stdout)
    finally:
        slow.unlink()
        began.unlink(missing_ok=True)
    unlocked(lab)
    if verb == "requeue":
        lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
        wait_for(lab, job, {"COMPLETED"}, timeout=300)
        await_reports(lab, job)
    else:
        wait_for(lab, job, {"CANCELLED"})
    attempts = [(report.restart_count, report.node) for report in reports(lab, job)]
    assert len(attempts) == len(set(attempts))
    assert drained(lab) == {} and not locked_clocks(lab)


def test_an_allocation_without_a_step_keeps_its_clock(lab: Lab) -> None:
    """Between its steps a job has no process on the node; Slurm says that it is not over."""
    lab.run(["sh", "-c", f"salloc {' '.join(ONE_GPU)} -J idle sleep 60 >/dev/null 2>&1 &"], check=True)
    until("lock", lambda: locked_nodes(lab) == [NODE])
    time.sleep(2.5 * REPAIR_EVERY_SECONDS)  # two repairs
    assert locked_nodes(lab) == [NODE]
    lab.run(["scancel", "--name=idle"], check=True)
    unlocked(lab)


def test_an_ignored_lock_is_told_once_the_job_loads_the_gpu(lab: Lab) -> None:
    with ExitStack() as opened:
        state = opened.enter_context(lab.gpu_state(NODE))
        for gpu in state.gpus:
            gpu.set_fault(Fault.CLOCK_IGNORED)
            opened.callback(gpu.set_fault, Fault.CLOCK_IGNORED, on=False)
        job = submit_decided(lab, ONE_GPU, wrap=workload(900))
        wait_for(lab, job, {"COMPLETED"})
        report = await_reports(lab, job)[0]
    row = report.gpus[0]
    assert row.asked_clock_mhz is not None and row.observed_clock_mhz is not None
    assert row.asked_clock_mhz < row.observed_clock_mhz
    assert (row.applied_clock_mhz, QualityFlag.CLOCK_IGNORED in row.flags) == (None, True)


def test_a_log_that_is_a_pipe_holds_no_job(lab: Lab) -> None:
    log = lab.layout.log / "hooks.log"
    kept = log.with_name("hooks.log.kept")
    log.rename(kept)
    os.mkfifo(log)
    try:
        job = submit(lab, ONE_GPU, wrap=workload(60))
        wait_for(lab, job, {"COMPLETED"}, timeout=300)
        assert await_reports(lab, job)[0].gpus[0].joules is not None
    finally:
        kept.replace(log)
    assert drained(lab) == {}


def test_a_spool_that_everybody_can_write_to_is_refused_and_the_job_runs(lab: Lab) -> None:
    spool = lab.layout.hooks_spool / NODE
    spool.mkdir(mode=0o700, exist_ok=True)
    spool.chmod(0o777)
    try:
        job = submit_decided(lab, ONE_GPU, wrap=workload(120))
        wait_for(lab, job, {"RUNNING", "COMPLETED"})
        wait_for(lab, job, {"COMPLETED"})
        assert locked_clocks(lab) == {}
    finally:
        spool.chmod(0o700)
    assert f"{spool} is refused: others can write to it" in (lab.layout.log / "hooks.log").read_text()
    assert drained(lab) == {}


def test_a_driver_that_hangs_drains_no_node_where_slurmd_gives_hooks_less_time_than_we_do(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(
        energy=True, slurm_conf_lines=("PrologEpilogTimeout=8",), settings={"node": {"time_limit_seconds": 30.0}}
    )
    with lab.gpu_state(NODE) as state:
        for gpu in state.gpus:
            gpu.set_fault(Fault.ENERGY_BLOCKS)
            gpu.set_fault(Fault.CLOCK_BLOCKS)
    job = submit(lab, ["-p", "a100", "--gres=gpu:4", "-t", "5"], wrap="true")
    wait_for(lab, job, {"COMPLETED"})
    assert drained(lab) == {}
    said = "".join(path.read_text() for path in lab.log_paths() if path.is_file())
    assert f"prolog: job {job}: gave up after 4.8 s" in said
