"""Who is a job's slurmstepd and who only bears its name; which slurmd is this node's."""

import os
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.ids import JobId, Sluid
from slurm_energy.node.hooks import run_prolog
from slurm_energy.node.processes import read_slurmd
from slurm_energy.node.steps import Presence, StepWatch, live_jobs

OWN = os.geteuid()
OTHER = OWN + 1000
JOB = "s0123456789ABC"
SLURMD = "0::/system.slice/slurmd.service\n"
SCOPE = "0::/system.slice/slurmstepd.scope"


class Proc:
    """A /proc of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def start(
        self,
        title: str,
        *,
        pid: int = 40,
        user: int = OWN,
        effective: int = OWN,
        cgroup: str = SLURMD,
        exe: str | None = "/usr/sbin/slurmstepd",
        pids: str = "40",
        parent: int = 1,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(title.replace("|", "\0").encode() + b"\0")
        (folder / "stat").write_text(f"{pid} (x) S {parent} {' '.join(['0'] * 17)} 100 0\n")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{user}\t{effective}\t{OWN}\t{OWN}\nNSpid:\t{pids}\n")
        (folder / "cgroup").write_text(cgroup)
        if exe is not None:
            (folder / "exe").symlink_to(exe)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.mark.parametrize(
    ("title", "cgroup", "names"),
    [
        ("slurmstepd: [7.batch]", SLURMD, {7}),
        ("slurmstepd: [7.extern]", f"{SCOPE}/job_7/step_extern/slurm\n", {7}),
        ("slurmstepd: [7.0+1]", "4:devices:/slurm/uid_1000/job_7/step_0\n3:cpuset:/slurm/uid_1000/job_7\n", {7}),
        ("slurmstepd: [7.batch stepmgr]", f"{SCOPE}/job_7/step_batch/slurm\n", {7}),
        ("slurmstepd: [7.interactive]", f"{SCOPE}/{JOB}/step_interactive/slurm\n", {7, JOB}),
        (f"slurmstepd: [{JOB}.batch]", f"{SCOPE}/{JOB}/step_batch/slurm\n", {JOB}),
        (f"slurmstepd: [{JOB}.0]", SLURMD, {JOB}),
        (f"slurmstepd: [{JOB}.batch]", f"{SCOPE}/job_7/step_batch/slurm\n", {7, JOB}),
        (f"slurmstepd: [{JOB}:namespace]", SLURMD, set()),
        ("slurmstepd infinity", SLURMD, set()),
        ("/usr/sbin/slurmstepd", SLURMD, set()),
        ("xslurmstepd: [7.batch]", SLURMD, set()),
    ],
)
def test_titles_of_every_release_name_their_job(proc: Proc, title: str, cgroup: str, names: set[object]) -> None:
    proc.start(title, cgroup=cgroup)
    assert live_jobs(proc.root) == names


def test_step_that_bears_its_users_rights_for_a_moment_is_alive(proc: Proc) -> None:
    proc.start("slurmstepd: [7.batch]", effective=OTHER)
    assert live_jobs(proc.root) == {7}


def test_step_whose_program_was_updated_is_alive(proc: Proc) -> None:
    proc.start("slurmstepd: [7.batch]", exe="/usr/sbin/slurmstepd (deleted)")
    assert live_jobs(proc.root) == {7}


@pytest.mark.parametrize(
    "disguise",
    [
        {"user": OTHER, "effective": OTHER, "exe": "/usr/bin/sleep"},
        {"user": OTHER, "effective": OWN, "exe": None},  # a set-uid program under such a title
        {"exe": "/usr/bin/sleep"},
        {"cgroup": f"{SCOPE}/job_8/step_batch/user/task_0\n"},
        {"cgroup": "4:devices:/slurm/uid_1000/job_8/step_0\n"},
        {"cgroup": "4:devices:/slurm/uid_1/job_7/step_0\n3:cpuset:/slurm/uid_1/job_8/step_0\n"},
        {"pids": "40\t1"},  # root of a container
    ],
)
def test_process_that_only_bears_the_name_keeps_no_job_alive(proc: Proc, disguise: dict[str, object]) -> None:
    proc.start("slurmstepd: [7.batch]", **disguise)  # type: ignore[arg-type]  # the fields of one disguise
    assert live_jobs(proc.root) == frozenset()
    assert StepWatch(JobId(7), proc.root).look(0.0) is Presence.UNSEEN


def test_sluid_of_another_job_is_not_this_jobs(proc: Proc) -> None:
    proc.start(f"slurmstepd: [{JOB}.batch]", cgroup=f"{SCOPE}/s9999999999999/step_batch\n")
    assert live_jobs(proc.root) == frozenset()


def test_watch_finds_the_steps_of_a_job_by_its_sluid(proc: Proc) -> None:
    proc.start(f"slurmstepd: [{JOB}.batch]", cgroup=f"{SCOPE}/{JOB}/step_batch/slurm\n")
    assert StepWatch(JobId(7), proc.root, Sluid(JOB)).look(0.0) is Presence.RUNNING
    assert StepWatch(JobId(7), proc.root).look(0.0) is Presence.UNSEEN


def test_job_that_lives_under_its_sluid_is_not_taken_as_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0", entry(), SLURM_JOB_SLUID=JOB))
    bench.live = frozenset[JobId | Sluid]({Sluid(JOB)})
    run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
    assert bench.locks()[0] is None  # a clock that both did not ask for
    assert bench.spool.read_state(JobId(7)) is not None


def test_slurmd_that_started_the_hook_is_this_nodes(proc: Proc) -> None:
    proc.start("slurmd|-N|other", pid=30, exe="/opt/slurm/sbin/slurmd")
    proc.start("slurmstepd launcher", pid=31, parent=30)
    proc.start("sh", pid=os.getpid(), parent=31, exe="/bin/dash")
    found = read_slurmd("n1", proc.root)
    assert found is not None and (found.pid, found.executable) == (30, "/opt/slurm/sbin/slurmd")


def test_timer_finds_the_slurmd_of_its_node(proc: Proc) -> None:
    for pid, node in ((30, "n1"), (32, "n2")):
        proc.start(f"slurmd|-N|{node}", pid=pid, exe="/usr/sbin/slurmd (deleted)")
        proc.start(f"slurmd|-N|{node}", pid=pid + 1, exe="/usr/sbin/slurmd", parent=pid)
    found = read_slurmd("n2", proc.root)
    assert found is not None and (found.pid, found.executable) == (32, "/usr/sbin/slurmd")
    assert read_slurmd("n3", proc.root) is None


def test_only_slurmd_of_the_host_is_its_nodes(proc: Proc) -> None:
    proc.start("slurmdbd", pid=29, exe="/usr/sbin/slurmdbd")
    proc.start("slurmd|-D", pid=30, exe="/usr/sbin/slurmd-wlm")
    found = read_slurmd("n1", proc.root)
    assert found is not None and found.pid == 30


def test_of_several_containers_that_share_their_processes_each_has_its_own_slurmd(proc: Proc) -> None:
    for pid, host in ((30, "uts:[1]"), (32, "uts:[2]")):
        proc.start("slurmd|-D", pid=pid, exe="/usr/sbin/slurmd")
        (proc.root / str(pid) / "ns").mkdir()
        (proc.root / str(pid) / "ns/uts").symlink_to(host)
    assert read_slurmd("n1", proc.root) is None
    (proc.root / "self/ns").mkdir(parents=True)
    (proc.root / "self/ns/uts").symlink_to("uts:[2]")
    found = read_slurmd("n1", proc.root)
    assert found is not None and found.pid == 32
