"""The process of energy-sbatch: exit codes, signals, streams, and which sbatch it starts."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_sbatch import FakeSbatch
from sbatch_wrapper import WRAPPER, environment, submit, wait_for_call


@pytest.fixture
def fake(tmp_path: Path) -> FakeSbatch:
    return FakeSbatch(tmp_path / "fake")


@pytest.mark.parametrize(
    "output", [b"4243\n", b"4243;north\n", b"", b"no newline", b"\x00\xff\r\n\x1b[0m", b"x" * 3_000_000]
)
def test_stdout_is_what_sbatch_printed(fake: FakeSbatch, output: bytes) -> None:
    fake.lay_out("stdout", output)
    assert submit(fake, b"--parsable", b"job.sh").stdout == output


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_code_is_sbatchs(fake: FakeSbatch, code: int) -> None:
    fake.lay_out("rc", str(code).encode())
    assert submit(fake, b"job.sh").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_death_by_signal_is_passed_on(fake: FakeSbatch, number: signal.Signals) -> None:
    fake.lay_out("die_by_signal", str(int(number)).encode())
    assert submit(fake, b"job.sh").returncode == -number


def test_an_unreadable_configuration_is_no_reason_to_refuse_a_job(fake: FakeSbatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[nonsense]\n", encoding="utf-8")
    result = submit(fake, b"job.sh", more={"SLURM_ENERGY_CONFIG": str(broken)})
    assert (result.returncode, fake.calls) == (0, [[b"job.sh"]])


def test_installed_as_sbatch_it_finds_the_real_one(fake: FakeSbatch, tmp_path: Path) -> None:
    front = tmp_path / "front"
    front.mkdir()
    script = front / "sbatch"
    script.write_text(
        f"#!{sys.executable}\nfrom slurm_energy.cli.energy_sbatch import main\nraise SystemExit(main())\n"
    )
    script.chmod(0o755)
    other = tmp_path / "other"
    other.mkdir()
    (other / "sbatch").write_text('#!/bin/sh\nexec energy-sbatch "$@"\n')
    (other / "sbatch").chmod(0o755)
    path = {**environment(fake), "PATH": f"{front}:{other}:{fake.bin}:/usr/bin:/bin"}
    result = subprocess.run([script, "job.sh"], env=path, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, fake.calls) == (0, b"Submitted batch job 4242\n", [[b"job.sh"]])


def test_a_circle_through_a_script_ends_with_a_clear_error(fake: FakeSbatch, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.write_text("from slurm_energy.cli.energy_sbatch import main\nraise SystemExit(main())\n")
    fake.install("sbatch", f'#!/bin/sh\n"{sys.executable}" "{hidden}" "$@"\n')
    result = submit(fake, b"job.sh")
    assert result.returncode == 1
    assert b"was called by itself" in result.stderr
    assert b"cluster.slurm_bin_directory" in result.stderr


def test_no_sbatch_at_all_is_a_clear_error(fake: FakeSbatch, tmp_path: Path) -> None:
    result = submit(fake, b"job.sh", more={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr.startswith(f"energy-sbatch: sbatch is not found in {tmp_path}: set cluster.".encode())


def test_the_configured_folder_wins_over_path(fake: FakeSbatch, tmp_path: Path) -> None:
    more = {"SLURM_ENERGY_CLUSTER_SLURM_BIN_DIRECTORY": str(fake.bin), "PATH": str(tmp_path)}
    assert submit(fake, b"job.sh", more=more).returncode == 0
    assert fake.calls == [[b"job.sh"]]


def test_a_process_left_behind_by_sbatch_does_not_hold_the_wrapper(fake: FakeSbatch) -> None:
    fake.lay_out("background", b"1")
    result = subprocess.Popen([*WRAPPER, "job.sh"], stdout=subprocess.PIPE, env=environment(fake))
    assert result.wait(timeout=120) == 0
    fake.lay_out("background", b"")  # until then it lives
    assert result.stdout is not None
    assert result.stdout.readline() == b"Submitted batch job 4242\n"
    result.stdout.close()


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_not_stop_a_submission(fake: FakeSbatch, redirection: str) -> None:
    command = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *WRAPPER, "job.sh"]
    result = subprocess.run(command, env=environment(fake), capture_output=True, timeout=60, check=False)
    assert (result.returncode, fake.calls) == (0, [[b"job.sh"]])


def test_output_can_go_to_a_reader_that_left(fake: FakeSbatch) -> None:
    fake.lay_out("stdout", b"y\n" * 500_000)
    process = subprocess.Popen([*WRAPPER, "job.sh"], stdout=subprocess.PIPE, env=environment(fake))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_wrapper_reaches_sbatch_once(fake: FakeSbatch, number: signal.Signals) -> None:
    fake.lay_out("linger", b"20")
    process = subprocess.Popen([*WRAPPER, "--wait", "job.sh"], env=environment(fake), start_new_session=True)
    wait_for_call(fake)
    process.send_signal(number)
    assert process.wait(timeout=120) == 0
    assert fake.recorded("signals") == str(int(number)).encode()


def test_ctrl_c_on_a_terminal_reaches_sbatch_once(fake: FakeSbatch) -> None:
    fake.lay_out("linger", b"20")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(WRAPPER[0], [*WRAPPER, "--wait", "job.sh"], environment(fake))
    try:
        wait_for_call(fake)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(child, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert fake.recorded("signals") == b"2"


def test_the_wrapper_starts_without_heavy_modules(fake: FakeSbatch) -> None:
    probe = (
        "import sys, slurm_energy.cli.energy_sbatch, slurm_energy.cli.sbatch.options, "
        "slurm_energy.cli.sbatch.dry_run, slurm_energy.cli.daemon_line\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'click', 'rich', 'torch', 'sqlalchemy', "
        "'jinja2', 'asyncio', 'pynvml', 'alembic'}))"
    )
    result = subprocess.run([sys.executable, "-c", probe], env=environment(fake), capture_output=True, check=True)
    assert result.stdout == b"[]\n"
