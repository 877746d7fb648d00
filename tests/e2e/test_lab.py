import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_energy.errors import DaemonUnavailable, LabError, WireError
from slurm_energy.lab.cluster import Lab, LabSpec, find_labs, open_lab, start_lab
from slurm_energy.lab.host import inspect_host, unusable_reason
from slurm_energy.lab.jobs import show_job, submit, wait_for
from slurm_energy.lab.layout import labs_root

pytestmark = pytest.mark.lab

StartLab = Callable[..., Lab]

GONE_SECONDS = 10.0
"""The kernel ends a killed lab at once; a machine on which other labs run may take a while to clear it away."""

OWNER = """
import sys, time
from slurm_energy.lab.cluster import LabSpec, PartitionSpec, start_lab
spec = LabSpec(name=sys.argv[1], energy=False, partitions=(PartitionSpec(name="a100", nodes=1, gpus_per_node=2),))
lab = start_lab(spec, owned=sys.argv[2] == "owned")
lab.run(["sbatch", "--wrap", "setsid sleep 1000 & sleep 1000"], user="alice", check=True)
print(lab.init_pid, flush=True)
if sys.argv[2] == "owned":
    time.sleep(1000)
"""


def pid_namespace(lab: Lab) -> str:
    return str(Path(f"/proc/{lab.init_pid}/ns/pid").readlink())


def processes_of(pid_namespace: str) -> list[int]:
    """Return the processes, by their numbers outside, that live in a PID namespace such as `pid:[4026532]`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                link = str((folder / "ns" / "pid").readlink())
            except OSError:
                continue
            if link == pid_namespace:
                found.append(int(folder.name))
    return sorted(found)


def mounts_below(directory: Path) -> list[str]:
    """Return the mount points below a folder that this process sees."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory)]


def mount_points() -> list[str]:
    """Mount points that any process of this machine sees."""
    points: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            points.update(line.split()[4] for line in (folder / "mountinfo").read_text().splitlines())
        except OSError:
            continue
    return sorted(points)


def await_no_process(namespace: str, seconds: float) -> float:
    begin = time.monotonic()
    while processes_of(namespace):
        assert time.monotonic() - begin < seconds, f"still alive: {processes_of(namespace)}"
        time.sleep(0.05)
    return time.monotonic() - begin


@pytest.mark.alone
def test_ten_nodes_are_idle_within_20_seconds_and_gone_after_stop(unused_name: str) -> None:
    steps: list[str] = []
    begin = time.monotonic()

    lab = start_lab(LabSpec(name=unused_name, energy=False), progress=steps.append, owned=True)
    seconds = time.monotonic() - begin
    status, namespace = lab.status(), pid_namespace(lab)
    lab.stop()

    assert seconds < 20
    assert sorted({node.state for node in status.nodes}) == ["idle"]
    assert len(status.nodes) == 10
    assert status.problem == ""
    assert "starting slurmctld" in steps
    assert processes_of(namespace) == []
    assert not [point for point in mount_points() if str(lab.directory) in point]
    assert not lab.directory.exists()


def test_job_sees_the_gpu_that_it_asked_for(plain_lab: Lab) -> None:
    job = submit(
        plain_lab, ["--gres=gpu:1"], wrap='echo "$CUDA_VISIBLE_DEVICES $SLURMD_NODENAME"; id -un', user="alice"
    )

    (row,) = wait_for(plain_lab, job, {"COMPLETED"})

    assert row["UserId"].startswith("alice(")
    assert row["Partition"] == "a100"
    output = plain_lab.layout.home("alice") / f"slurm-{job}.out"
    assert output.read_text().splitlines() == ["0 a100-1", "alice"]


def test_job_that_names_a_gpu_type_and_partition_gets_both(plain_lab: Lab) -> None:
    job = submit(plain_lab, ["--gres=gpu:a40:8", "-p", "a40"], wrap='echo "$CUDA_VISIBLE_DEVICES"', user="bob")

    wait_for(plain_lab, job, {"COMPLETED"})

    output = plain_lab.layout.home("bob") / f"slurm-{job}.out"
    assert output.read_text() == "0,1,2,3,4,5,6,7\n"


def test_job_without_its_submitters_environment_gets_that_of_the_users_login(plain_lab: Lab) -> None:
    home = plain_lab.layout.home("alice")
    (home / ".profile").write_text("export SAID_AT_LOGIN=yes\n")
    job = submit(plain_lab, ["--export=NONE", "-o", f"{home}/login.out"], wrap='echo "$SAID_AT_LOGIN"')
    wait_for(plain_lab, job, {"COMPLETED"}, timeout=300)
    assert (home / "login.out").read_text() == "yes\n"


def test_array_and_failure_are_told_apart(plain_lab: Lab) -> None:
    job = submit(plain_lab, ["--array=0-2"], wrap="exit $SLURM_ARRAY_TASK_ID")

    rows = wait_for(plain_lab, job)

    assert sorted(row["JobState"] for row in rows) == ["COMPLETED", "FAILED", "FAILED"]
    with pytest.raises(LabError, match=f"job {job} ended as"):
        wait_for(plain_lab, job, {"COMPLETED"})


def test_hosts_own_files_and_mounts_are_not_those_of_the_lab(plain_lab: Lab) -> None:
    shown = plain_lab.run(["cat", "/etc/passwd", "/proc/sys/kernel/hostname"], check=True).stdout

    assert "alice of the lab" in shown
    assert shown.endswith("localhost\n")
    assert "of the lab" not in Path("/etc/passwd").read_text()
    assert plain_lab.run(["test", "-S", "/run/munge/munge.socket.2"]).returncode == 0
    assert mounts_below(plain_lab.directory) == []


def test_command_inside_that_hangs_is_ended(plain_lab: Lab) -> None:
    with pytest.raises(LabError, match="did not end within 1 s"):
        plain_lab.run(["sleep", "432"], user="alice", timeout=1)

    assert plain_lab.run(["pgrep", "-f", "^sleep 432"]).stdout == ""


def test_node_whose_slurmd_was_killed_comes_back(new_lab: StartLab) -> None:
    lab = new_lab()

    lab.kill_slurmd("a100-1")
    assert lab.run(["pgrep", "-x", "slurmd"]).stdout == ""
    lab.start_slurmd("a100-1")

    job = submit(lab, ["--gres=gpu:4"], wrap="true")
    assert wait_for(lab, job, {"COMPLETED"})[0]["BatchHost"]
    assert show_job(lab, job)["JobState"] == "COMPLETED"


def test_two_labs_run_at_once_with_jobs_of_their_own(new_lab: StartLab) -> None:
    first, second = new_lab(), new_lab()

    submit(first, ["-J", "one"], wrap="sleep 100")
    job = submit(second, ["-J", "two"], wrap="sleep 100")
    wait_for(second, job, {"RUNNING"})

    assert first.run(["squeue", "-h", "-o", "%j"], check=True).stdout == "one\n"
    assert second.run(["squeue", "-h", "-o", "%j"], check=True).stdout == "two\n"
    assert {first.name, second.name} <= {lab.name for lab in find_labs()}
    first.stop()
    assert not first.alive
    assert [node.state for node in second.status().nodes] == ["mixed"]


def test_lab_without_private_network_and_device_nodes_takes_free_ports_and_terminals(new_lab: StartLab) -> None:
    if unusable_reason() is not None or not Path("/dev/tty3").exists():
        pytest.skip(unusable_reason() or "this machine has no /dev/tty3 to stand in for a GPU")
    host = replace(inspect_host(accounting=False, energy=False), network="host", devices="tty")

    first, second = new_lab(host=host), new_lab(host=host)

    for lab in (first, second):
        job = submit(lab, ["--gres=gpu:2"], wrap='echo "$CUDA_VISIBLE_DEVICES"')
        wait_for(lab, job, {"COMPLETED"})
        assert (lab.layout.home("alice") / f"slurm-{job}.out").read_text() == "0,1\n"


def test_lab_below_a_folder_that_only_root_may_enter_serves_ordinary_users(new_lab: StartLab, tmp_path: Path) -> None:
    closed = tmp_path / "c"
    closed.mkdir(mode=0o700)
    (closed / "secret").write_text("x")

    lab = new_lab(directory=closed / "lab")

    job = submit(lab, ["--gres=gpu:1"], wrap=f"ls {closed}", user="bob")
    wait_for(lab, job, {"COMPLETED"})
    assert (closed / "lab" / "home" / "bob" / f"slurm-{job}.out").read_text() == "lab\n"
    assert open_lab(lab.name).directory == closed / "lab"
    lab.stop()
    assert sorted(path.name for path in closed.iterdir()) == ["secret"]


def test_jobs_workload_moves_the_energy_of_its_gpus_only(new_lab: StartLab) -> None:
    lab = new_lab(time_scale=600.0)

    job = submit(lab, ["--gres=gpu:2"], wrap="simgpu-workload --seconds-at-default 600")
    wait_for(lab, job, {"COMPLETED"})

    with lab.gpu_state("a100-1") as state:
        energies = [gpu.reading().energy_joules for gpu in sorted(state.gpus, key=lambda gpu: gpu.minor_number)]
    assert min(energies[:2]) > 1.5 * max(energies[2:]) > 0


def test_second_lab_of_the_same_name_is_refused_and_the_first_stays(new_lab: StartLab) -> None:
    lab = new_lab()

    with pytest.raises(LabError, match="runs already"):
        new_lab(name=lab.name)

    assert [node.state for node in lab.status().nodes] == ["idle"]


def test_start_that_fails_says_why_and_leaves_nothing(new_lab: StartLab, unused_name: str) -> None:
    with pytest.raises(LabError, match="job_submit/nonsense"):
        new_lab(name=unused_name, slurm_conf_lines=("JobSubmitPlugins=nonsense",))

    assert not (labs_root() / unused_name).exists()
    assert unused_name not in [lab.name for lab in find_labs()]


def test_killed_caller_takes_his_lab_along(unused_name: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, unused_name, "owned"], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert int(owner.stdout.readline()) > 1
        lab = open_lab(unused_name)
        namespace = pid_namespace(lab)
        assert len(processes_of(namespace)) > 5
        owner.send_signal(signal.SIGKILL)

    await_no_process(namespace, GONE_SECONDS)

    assert not [point for point in mount_points() if str(lab.directory) in point]
    end = time.monotonic() + GONE_SECONDS
    while lab.directory.exists():
        assert time.monotonic() < end, "the folder stays"
        time.sleep(0.05)


def test_detached_lab_outlives_its_caller_until_it_is_stopped(unused_name: str) -> None:
    subprocess.run(
        [sys.executable, "-c", OWNER, unused_name, "detached"], check=True, timeout=60, stdout=subprocess.PIPE
    )
    lab = open_lab(unused_name)
    namespace = pid_namespace(lab)

    assert lab.run(["squeue", "-h"], check=True).stdout != ""
    lab.stop()

    assert processes_of(namespace) == []
    assert not lab.directory.exists()
    with pytest.raises(LabError, match="no lab"):
        open_lab(unused_name)


@pytest.mark.alone
def test_accounting_lab_is_up_within_35_seconds_and_counts_gpus(new_lab: StartLab, unused_name: str) -> None:
    begin = time.monotonic()
    lab = new_lab(name=unused_name, accounting=True)
    seconds = time.monotonic() - begin

    job = submit(lab, ["--gres=gpu:2"], wrap="true", user="bob")
    wait_for(lab, job, {"COMPLETED"})

    assert seconds < 35
    sacct = ["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "User,Account,State,AllocTRES,ConsumedEnergyRaw"]
    end = time.monotonic() + 120
    while "COMPLETED" not in (said := lab.run(sacct, check=True).stdout):
        assert time.monotonic() < end, said
        time.sleep(0.2)
    user, account, _state, tres, energy = said.strip().split("|")
    assert (user, account, energy) == ("bob", "lab", "")
    assert {"gres/gpu=2", "gres/gpu:a100=2"} <= set(tres.split(","))


def test_lab_with_the_product_decides_as_soon_as_it_is_up(lab: Lab) -> None:
    done = lab.run(["sbatch", "--parsable", "--gres=gpu:1", "--wrap", "true"], user="alice", check=True)
    (row,) = wait_for(lab, int(done.stdout), {"COMPLETED"})

    assert "snapshot_age_seconds" in (lab.status().daemon or {})
    assert row["AdminComment"].startswith("energy:")
    assert done.stderr == ""


def test_lab_with_the_product_runs_the_hooks_around_each_job(lab: Lab) -> None:
    job = submit(lab, ["--gres=gpu:1", "-p", "v100"], wrap="simgpu-workload --seconds-at-default 60")
    wait_for(lab, job, {"COMPLETED"})

    end = time.monotonic() + 120
    while not all(f"{word}: job {job}:" in (lab.layout.log / "hooks.log").read_text() for word in ("prolog", "epilog")):
        assert time.monotonic() < end, (lab.layout.log / "hooks.log").read_text()
        time.sleep(0.1)


def test_daemon_that_is_stopped_killed_or_paused_answers_again_when_it_is_started(new_lab: StartLab) -> None:
    lab = new_lab(energy=True)

    for end, again in (
        (lab.stop_daemon, lab.start_daemon),
        (lab.kill_daemon, lab.start_daemon),
        (lab.pause_daemon, lab.resume_daemon),
    ):
        end()
        with pytest.raises((DaemonUnavailable, WireError)):
            lab.ping()
        again()
        assert "version" in lab.ping()
    lab.restart_slurmctld()
    assert [node.state for node in lab.status().nodes] == ["idle"]


def test_start_that_is_interrupted_leaves_nothing(unused_name: str) -> None:
    folder = labs_root() / unused_name
    argv = [sys.executable, "-c", OWNER, unused_name, "detached"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as caller:
        end = time.monotonic() + 120
        while not (folder / "run" / "init.pid").exists():
            assert time.monotonic() < end
            time.sleep(0.005)
        caller.send_signal(signal.SIGINT)
        _, errors = caller.communicate(timeout=120)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not folder.exists()
    with pytest.raises(LabError, match="no lab"):
        open_lab(unused_name)


def test_shell_is_interactive_and_the_users_own(plain_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no escape sequences around the answers
    said = bytearray()

    def collect(descriptor: int) -> bytes:
        part = os.read(descriptor, 4096)
        said.extend(part)
        return part

    child, descriptor = pty.fork()
    if child == 0:
        os._exit(plain_lab.shell("bob"))
    os.write(descriptor, b"id -un; pwd; tty; exit 3\n")
    with contextlib.suppress(OSError):  # the terminal is gone
        while collect(descriptor):
            pass
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 3
    assert {"bob", str(plain_lab.layout.home("bob"))} <= set(said.decode().replace("\r", "").split("\n"))
