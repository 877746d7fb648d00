"""Sixteen faults at eight moments of a job: no job is lost, no node drained, no clock left, nothing counted twice.

The short form takes each fault once and each moment twice; SLURM_ENERGY_TRIAL=long takes all 128 cells (a quarter of an
hour).
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from energy_lab import drained, locked_clocks, reports, until, workload
from lab_fixtures import EXACT, PATIENT, require_lab

from slurm_energy.lab.cluster import Lab, LabSpec, PartitionSpec, start_lab
from slurm_energy.lab.jobs import show_jobs, submit, wait_for
from slurm_energy.lab.simgpu.layout import Fault

pytestmark = pytest.mark.lab

NODE = "a100-2"
TIME_SCALE = 60.0
ARGUMENTS = ["-p", "a100", "-w", NODE, "--gres=gpu:1", "-t", "5", "--requeue", "-o", "/dev/null"]
WORK_SECONDS = 90.0
"""Of device time; a second and a half on the clock of the wall."""
SLURM_SAVES_SECONDS = 6.0
"""slurmctld itself forgets a job that is younger than this when it is killed."""


Breaking = Callable[[Lab], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab whose timer repairs often."""
    require_lab(energy=True)
    spec = LabSpec(
        name=f"cells-{os.getpid()}",
        partitions=(PartitionSpec(name="a100", nodes=2, gpus_per_node=4),),
        settings=EXACT,
        plugin_settings=PATIENT,
        time_scale=TIME_SCALE,
        repair_seconds=5,
    )
    with start_lab(spec, owned=True) as running:
        yield running


# Each fault is in force inside its block.


def _kill(lab: Lab, pattern: str) -> int:
    """End the lab's processes whose command line matches, each by its number, and return how many there were."""
    listed = lab.run(["pgrep", "-f", pattern]).stdout.split()
    for pid in listed:
        lab.run(["kill", "-KILL", pid])
    return len(listed)


@contextmanager
def _repeatedly(act: Callable[[], object]) -> Iterator[None]:
    """Do something again and again until the block ends."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(0.05):
            act()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def daemon_killed(lab: Lab) -> Iterator[None]:
    lab.kill_daemon()
    try:
        yield
    finally:
        lab.start_daemon()


@contextmanager
def daemon_hung(lab: Lab) -> Iterator[None]:
    lab.pause_daemon()
    try:
        yield
    finally:
        lab.resume_daemon()
        lab.await_daemon()


@contextmanager
def recorder_killed(lab: Lab) -> Iterator[None]:
    until("recorder to kill", lambda: _kill(lab, "slurm_energy.daemon.recorder.process import"))
    yield


@contextmanager
def queue_reader_killed(lab: Lab) -> Iterator[None]:
    until("reader of the queue to kill", lambda: _kill(lab, "slurm_energy.daemon.snapshot.process import"))
    yield
    lab.await_daemon()


@contextmanager
def database_locked(lab: Lab) -> Iterator[None]:
    connection = sqlite3.connect(lab.layout.database, timeout=20, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextmanager
def database_moved_away(lab: Lab) -> Iterator[None]:
    aside = lab.layout.database.with_suffix(".aside")
    lab.layout.database.rename(aside)
    try:
        yield
    finally:
        aside.replace(lab.layout.database)


@contextmanager
def slurmctld_killed(lab: Lab) -> Iterator[None]:
    time.sleep(SLURM_SAVES_SECONDS)
    pid = int((lab.layout.pids / "slurmctld.pid").read_text())
    lab.run(["kill", "-KILL", str(pid)], check=True)
    time.sleep(0.2)
    lab.restart_slurmctld()
    yield


@contextmanager
def slurmd_killed(lab: Lab) -> Iterator[None]:
    lab.kill_slurmd(NODE)
    time.sleep(0.2)
    lab.start_slurmd(NODE)
    yield


@contextmanager
def prolog_killed(lab: Lab) -> Iterator[None]:
    with _repeatedly(lambda: _kill(lab, "slurm_energy.node.main.* prolog")):
        yield


@contextmanager
def epilog_killed(lab: Lab) -> Iterator[None]:
    with _repeatedly(lambda: _kill(lab, "slurm_energy.node.main.* epilog")):
        yield


@contextmanager
def sampler_killed(lab: Lab) -> Iterator[None]:
    with _repeatedly(lambda: _kill(lab, "slurm_energy.node.main.* sample")):
        yield


@contextmanager
def spool_is_a_file(lab: Lab) -> Iterator[None]:
    spool = lab.layout.hooks_spool / NODE
    aside = spool.with_suffix(".aside")
    if spool.exists():
        spool.rename(aside)
    spool.write_text("not a folder\n")
    try:
        yield
    finally:
        spool.unlink()
        if aside.exists():
            aside.rename(spool)


@contextmanager
def log_hangs(lab: Lab) -> Iterator[None]:
    """A pipe that no process reads stands for a log on a file system that hangs."""
    log = lab.layout.log / "hooks.log"
    aside = log.with_suffix(".aside")
    if log.exists():
        log.rename(aside)
    os.mkfifo(log)
    try:
        yield
    finally:
        log.unlink()
        if aside.exists():
            aside.rename(log)


@contextmanager
def gpu_refuses(lab: Lab) -> Iterator[None]:
    with ExitStack() as opened:
        state = opened.enter_context(lab.gpu_state(NODE))
        for gpu in state.gpus:
            gpu.set_fault(Fault.NO_PERMISSION)
            opened.callback(gpu.set_fault, Fault.NO_PERMISSION, on=False)
        yield


@contextmanager
def _replaced(paths: list[Path], change: Callable[[str], str]) -> Iterator[None]:
    texts = {path: path.read_text() for path in paths}
    for path, text in texts.items():
        path.write_text(change(text))
    try:
        yield
    finally:
        for path, text in texts.items():
            path.write_text(text)


@contextmanager
def interpreter_gone(lab: Lab) -> Iterator[None]:
    scripts = sorted(path for path in lab.layout.hooks.rglob("*") if path.is_file() and "slurm-energy" in path.name)
    assert scripts, "no hook script was found"
    with _replaced(scripts, lambda text: text.replace("/python", "/python-that-is-gone")):
        yield


@contextmanager
def settings_broken(lab: Lab) -> Iterator[None]:
    with _replaced([lab.layout.energy_config], lambda _text: "[node\nspool_directory = \x00\n"):
        yield


FAULTS = (
    daemon_killed,
    daemon_hung,
    recorder_killed,
    queue_reader_killed,
    database_locked,
    database_moved_away,
    slurmctld_killed,
    slurmd_killed,
    prolog_killed,
    epilog_killed,
    sampler_killed,
    spool_is_a_file,
    log_hangs,
    gpu_refuses,
    interpreter_gone,
    settings_broken,
)
LOSE_A_READING = {
    prolog_killed,
    epilog_killed,
    sampler_killed,
    spool_is_a_file,
    log_hangs,
    interpreter_gone,
    settings_broken,
    slurmd_killed,
}
"""Faults of the node's own hooks: such a job may end without a measurement, and never with two."""


# Each moment submits a job with the fault in force at one time of its life, and returns the job's number.


def _submit(lab: Lab, fault: Breaking, *more: str) -> int:
    seconds = WORK_SECONDS if fault is not slurmctld_killed else WORK_SECONDS + 1.5 * SLURM_SAVES_SECONDS * TIME_SCALE
    return submit(lab, [*ARGUMENTS, *more], wrap=workload(seconds))


def _running(lab: Lab, fault: Breaking) -> int:
    """Submit a job and wait for its batch step: a slurmd that dies before it has started one loses the job itself."""
    job = _submit(lab, fault)
    wait_for(lab, job, {"RUNNING"})
    until("batch step", lambda: lab.run(["pgrep", "-f", rf"slurmstepd: \[{job}\.batch"]).stdout)
    return job


def at_submission(lab: Lab, fault: Breaking) -> int:
    with fault(lab):
        return _submit(lab, fault)


def while_it_waits(lab: Lab, fault: Breaking) -> int:
    job = _submit(lab, fault, "--hold")
    with fault(lab):
        time.sleep(0.5)
    lab.run(["scontrol", "release", str(job)], check=True)
    return job


def at_its_start(lab: Lab, fault: Breaking) -> int:
    job = _submit(lab, fault, "--hold")
    with fault(lab):
        lab.run(["scontrol", "release", str(job)], check=True)
        wait_for(lab, job, {"RUNNING", "COMPLETING", "COMPLETED"})
    return job


def while_it_runs(lab: Lab, fault: Breaking) -> int:
    job = _running(lab, fault)
    with fault(lab):
        time.sleep(0.3)
    return job


def at_its_end(lab: Lab, fault: Breaking) -> int:
    job = _running(lab, fault)
    with fault(lab):
        wait_for(lab, job, {"COMPLETED"})
    return job


def all_its_life(lab: Lab, fault: Breaking) -> int:
    with fault(lab):
        job = _submit(lab, fault)
        wait_for(lab, job, {"COMPLETED"})
    return job


def an_array(lab: Lab, fault: Breaking) -> int:
    with fault(lab):
        job = _submit(lab, fault, "--array=1-3")
        wait_for(lab, job, {"COMPLETED"}, timeout=300)
    return job


def run_again(lab: Lab, fault: Breaking) -> int:
    job = _running(lab, fault)
    with fault(lab):
        lab.run(["scontrol", "requeue", str(job)])
        time.sleep(1)
    # A job that is requeued waits two minutes unless it is told otherwise.
    until("requeued job", lambda: show_jobs(lab, job)[0]["JobState"] in {"PENDING", "RUNNING", "COMPLETED"})
    lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    return job


MOMENTS = (at_submission, while_it_waits, at_its_start, while_it_runs, at_its_end, all_its_life, an_array, run_again)
LONG = os.environ.get("SLURM_ENERGY_TRIAL") == "long"
CELLS = [
    pytest.param(fault, moment, id=f"{fault.__name__}-{moment.__name__}")
    for row, fault in enumerate(FAULTS)
    for column, moment in enumerate(MOMENTS)
    if LONG or column == (3 * row + row // 8) % len(MOMENTS)
]


def test_the_short_form_takes_each_fault_once_and_each_moment_twice() -> None:
    short = [(3 * row + row // 8) % len(MOMENTS) for row in range(len(FAULTS))]
    assert sorted(short) == sorted(2 * list(range(len(MOMENTS))))


@pytest.mark.parametrize(("fault", "moment"), CELLS)
def test_a_fault_reaches_no_job(lab: Lab, fault: Breaking, moment: Callable[..., int]) -> None:
    job = moment(lab, fault)
    rows = wait_for(lab, job, {"COMPLETED"}, timeout=150)
    # The job's last element may still be in its epilog.
    until("end of the hooks", lambda: not lab.run(["pgrep", "-f", "slurm_energy.node.main.* (prolog|epilog)"]).stdout)
    assert drained(lab) == {}
    next_job = submit(lab, ["-p", "a100", "-w", NODE, "--gres=gpu:4", "-t", "5", "--energy=off"], wrap=workload(30))
    wait_for(lab, next_job, {"COMPLETED"})
    assert until("clocks as the site had them", lambda: not locked_clocks(lab))
    assert drained(lab) == {}
    numbers = [int(row["JobId"]) for row in rows]
    until("report of the next job", lambda: reports(lab, next_job))
    if fault not in LOSE_A_READING:
        until("report of each job", lambda: all(_measured(lab, number) for number in numbers))
    for number in numbers:
        attempts = [(report.restart_count, report.node) for report in reports(lab, number)]
        assert len(attempts) == len(set(attempts)), f"job {number} was counted twice: {attempts}"


def _measured(lab: Lab, job_id: int) -> bool:
    """Return whether some attempt of a job has its energy."""
    return any(gpu.joules is not None for report in reports(lab, job_id) for gpu in report.gpus)
