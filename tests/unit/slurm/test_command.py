import os
import time
from pathlib import Path

import pytest

from slurm_energy.errors import SlurmError
from slurm_energy.slurm import command as command_module
from slurm_energy.slurm.command import run_command

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def run(script: str, timeout_seconds: float = 10.0) -> bytes:
    """Return what a shell script prints."""
    pieces: list[bytes] = []
    run_command(["/bin/sh", "-c", script], pieces.append, environment=ENVIRONMENT, timeout_seconds=timeout_seconds)
    return b"".join(pieces)


def test_output_of_any_length_comes_whole_and_in_order() -> None:
    assert run("seq 1 200000") == b"".join(b"%d\n" % number for number in range(1, 200_001))
    assert run("true") == b""


def test_a_command_that_fills_both_its_outputs_is_read_from_both() -> None:
    script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"
    assert len(run(script)) == 300_000


def test_an_error_shows_the_code_and_the_complaint_without_the_folder() -> None:
    with pytest.raises(SlurmError, match=r"^sh -c echo 'no  contact' >&2; exit 3 ended with 3: no contact$"):
        run("echo 'no  contact' >&2; exit 3")


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "echo begun; exec sleep 600",
        "exec >&- 2>&-; exec sleep 600",
        "sleep 30 & exit 0",
        "while :; do echo x; sleep 0.01; done",
    ],
    ids=["silent", "begun", "closed", "left-behind", "endless"],
)
def test_a_command_that_does_not_come_to_its_end_is_given_up_in_time(script: str) -> None:
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"gave no answer within 0\.5 s"):
        run(script, timeout_seconds=0.5)
    assert time.monotonic() - began < 300.0


def test_a_command_has_ended_when_it_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(SlurmError):
        run(f"echo $$ > {tmp_path}/pid; exec sleep 600", timeout_seconds=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_too_much_output_is_refused_before_it_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "MAX_OUTPUT_BYTES", 1_000_000)
    with pytest.raises(SlurmError, match="over 1000000"):
        run("exec cat /dev/zero")


def test_a_taker_s_exception_ends_the_command() -> None:
    def take(_data: bytes) -> None:
        raise KeyError("x")

    began = time.monotonic()
    with pytest.raises(KeyError):
        run_command(["/bin/sh", "-c", "echo x; exec sleep 600"], take, environment=ENVIRONMENT, timeout_seconds=30.0)
    assert time.monotonic() - began < 300.0
