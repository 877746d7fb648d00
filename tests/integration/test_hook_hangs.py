"""What hangs must not hold a hook: every file it opens, its stderr, and a child that the kernel cannot end.

A hook that hangs for ever is told by the time-out of `subprocess.run`, which is far above every limit here.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n1"}
LIMIT = "SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS"
PATIENCE_SECONDS = 30
"""Shorter than the limit, so that a test which waits for it fails."""
VERBS = ("prolog", "epilog")
HOOK = [sys.executable, "-I", "-m", "slurm_energy.node.main"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A node whose driver cannot be opened, with a limit that nothing here should come near."""
    return {**JOB, "SLURM_ENERGY_CONFIG": str(configure(tmp_path, tmp_path / "log")), LIMIT: "40"}


def configure(folder: Path, log: Path) -> Path:
    path = folder / "slurm-energy.toml"
    path.write_text(
        f'[node]\nspool_directory = "{folder}/spool"\nrun_directory = "{folder}/run"\nlog_path = "{log}"\n'
        'nvml_library = "/nonexistent/libnvidia-ml.so.1"\n'
    )
    return path


def run(verb: str, environment: dict[str, str], *, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the hook, `before` first: what it makes hang."""
    command = [*HOOK, verb]
    if before:
        code = f"import os, signal, sys, time\nfrom slurm_energy.node import main\n{before}\nmain.main()"
        command = [sys.executable, "-I", "-c", code, verb]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.parametrize("verb", VERBS)
def test_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path, environment: dict[str, str], verb: str) -> None:
    os.mkfifo(tmp_path / "log")
    done = run(verb, environment)
    assert done.returncode == 0
    assert "gave up" not in done.stderr
    assert f"slurm-energy-hook {verb}: job 7: " in done.stderr


@pytest.mark.parametrize("verb", [*VERBS, "repair", "flush"])
def test_log_that_hangs_does_not_stop_the_work(tmp_path: Path, environment: dict[str, str], verb: str) -> None:
    (tmp_path / "spool").mkdir(mode=0o700)
    before = "from slurm_energy.node import log\nlog.append_lines = lambda *given: signal.pause()"
    done = run(verb, environment, before=before)
    assert (done.returncode, "gave up" in done.stderr) == (0, False)
    if verb == "epilog":
        assert list((tmp_path / "spool" / "reports").iterdir()) != []


@pytest.mark.parametrize("verb", VERBS)
def test_work_and_log_that_both_hang_end_at_the_limit(environment: dict[str, str], verb: str) -> None:
    before = (
        "from slurm_energy.node import commands, log\nlog.append_lines = lambda *given: signal.pause()\n"
        "commands._run = lambda *given: signal.pause()"
    )
    done = run(verb, {**environment, LIMIT: "1.0"}, before=before)
    assert done.returncode == 0
    assert f"{verb}: job 7: gave up after 1.0 s" in done.stderr


def test_deadline_is_told_in_the_log_with_what_was_said_before(tmp_path: Path, environment: dict[str, str]) -> None:
    before = (
        "from slurm_energy.node import commands\n"
        "commands._run = lambda verb, options, environment, context, said: "
        "(context.log.write('so far'), context.stage('hanging'), signal.pause())"
    )
    done = run("prolog", {**environment, LIMIT: "8.0"}, before=before)
    assert done.returncode == 0
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("Z prolog: so far")
    assert "Z prolog: job 7: gave up after 8.0 s while hanging; the next prolog" in second


@pytest.mark.parametrize("name", ["active/7.json", "locks/GPU-0.lock", "done/7", "active/7.beat", "active/7.shared"])
@pytest.mark.parametrize("verb", [*VERBS, "repair", "flush"])
def test_pipe_in_the_spool_is_not_waited_for(tmp_path: Path, environment: dict[str, str], verb: str, name: str) -> None:
    path = tmp_path / "spool" / name
    path.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "spool").chmod(0o700)
    os.mkfifo(path)
    done = run(verb, environment)
    assert "gave up" not in done.stderr
    assert done.returncode in ({0} if verb in VERBS else {0, 1})


@pytest.mark.parametrize("verb", VERBS)
def test_configuration_that_is_a_pipe_ends_at_the_limit(tmp_path: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "slurm-energy.toml")
    environment = {
        **JOB,
        "SLURM_ENERGY_CONFIG": str(tmp_path / "slurm-energy.toml"),
        LIMIT: "1.0",
    }
    done = run(verb, environment)
    assert (done.returncode, "gave up after 1.0 s while starting" in done.stderr) == (0, True)


@pytest.mark.parametrize("verb", VERBS)
def test_deadline_before_the_configuration_is_read_is_told_in_the_system_log(tmp_path: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "slurm-energy.toml")
    environment = {**JOB, "SLURM_ENERGY_CONFIG": str(tmp_path / "slurm-energy.toml"), LIMIT: "2.0"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system_log:
        system_log.bind(str(tmp_path / "log.sock"))
        system_log.setblocking(False)  # the hook has ended by then
        done = run(verb, environment, before=f"main.SYSTEM_LOG = {str(tmp_path / 'log.sock')!r}")
        said = system_log.recv(4096).decode()
    assert done.returncode == 0
    assert said.startswith(f"<27>slurm-energy: {verb}: job 7: gave up after 2.0 s while starting; ")


@pytest.mark.parametrize("verb", VERBS)
def test_stderr_that_nobody_reads_holds_nothing_up(environment: dict[str, str], verb: str) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    try:
        done = subprocess.run(
            [*HOOK, verb], env=environment, stdout=writer, stderr=writer, timeout=PATIENCE_SECONDS, check=False
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0


def test_stderr_that_is_a_file_is_written(tmp_path: Path, environment: dict[str, str]) -> None:
    with (tmp_path / "stderr").open("wb") as file:
        done = subprocess.run([*HOOK, "prolog"], env=environment, stderr=file, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0
    assert "slurm-energy-hook prolog: job 7" in (tmp_path / "stderr").read_text()


@pytest.fixture
def left_over(tmp_path: Path) -> Iterator[Path]:
    """A file of processes that the hook could not end; they are ended here."""
    path = tmp_path / "children"
    yield path
    for pid in path.read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("verb", VERBS)
def test_child_that_cannot_be_killed_is_not_waited_for(environment: dict[str, str], left_over: Path, verb: str) -> None:
    before = (
        "from slurm_energy.node import commands\n"
        "commands._run = lambda *given: signal.pause()\n"
        "os.kill = lambda *given: None\n"  # as for a process that hangs in the driver
        "fork = os.fork\n"
        "def noted():\n"
        "    pid = fork()\n"
        f"    open({str(left_over)!r}, 'a').write(f'{{pid}}\\n') if pid else None\n"
        "    return pid\n"
        "os.fork = noted"
    )
    done = run(
        verb, {**environment, LIMIT: "1.0"}, before=before
    )  # also returns at the end of file of both its pipes only
    assert (done.returncode, "gave up after 1.0 s" in done.stderr) == (0, True)
    assert left_over.read_text().split() != []


@pytest.mark.parametrize("verb", VERBS)
def test_child_that_is_killed_from_outside_exits_0_and_is_told(environment: dict[str, str], verb: str) -> None:
    before = (
        "from slurm_energy.node import commands\ncommands._run = lambda *given: os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = run(verb, environment, before=before)
    assert (done.returncode, f"{verb}: job 7: was killed while" in done.stderr) == (0, True)


def test_whoever_ignores_the_end_of_children_gets_0_too(environment: dict[str, str]) -> None:
    before = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    assert run("prolog", environment, before=before).returncode == 0
    assert run("repair", environment, before=before).returncode == 0
