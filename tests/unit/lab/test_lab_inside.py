import os
import sys
import time
from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab import inside
from slurm_energy.lab.jobs import parse_job_lines


def test_command_that_exceeds_its_time_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    script = f"echo begun; sleep 60 & echo $! > {pid_file}; wait"

    with pytest.raises(LabError, match=r"did not end within 0.5 s.*begun"):
        inside.run_with_limit(["sh", "-c", script], {"PATH": os.environ["PATH"]}, 0.5, None)

    child = int(pid_file.read_text())
    end = time.monotonic() + 120
    while not inside.has_ended(child):
        assert time.monotonic() < end, f"child {child} lives on"


def test_output_input_and_exit_code_come_back_as_they_are() -> None:
    done = inside.run_with_limit(["sh", "-c", "cat; echo bad >&2; exit 7"], {"PATH": os.environ["PATH"]}, 10, "täxt\n")

    assert (done.returncode, done.stdout, done.stderr) == (7, "täxt\n", "bad\n")


def test_stranger_with_the_labs_process_number_is_not_taken_for_the_lab(tmp_path: Path) -> None:
    assert not inside.is_init_of(os.getpid(), tmp_path)
    assert not inside.is_init_of(2**22 + 1, tmp_path)


def test_user_gets_a_fresh_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "1")

    environment = inside.user_environment("alice", Path("/home/alice"), {"PATH": "/bin"}, {"EXTRA": "x"})

    assert environment["HOME"] == "/home/alice"
    assert (environment["USER"], environment["PATH"], environment["EXTRA"]) == ("alice", "/bin", "x")
    assert "SECRET_OF_THE_CALLER" not in environment


def test_user_command_drops_roots_rights_before_it_starts() -> None:
    argv = inside.user_argv("bob", Path("/h"), ["sbatch", "--wrap", "a b"])

    assert argv[:7] == ["setpriv", "--reuid", "bob", "--regid", "bob", "--init-groups", "--"]
    assert argv[7:] == ["env", "-C", "/h", "sbatch", "--wrap", "a b"]


def test_zombie_counts_as_ended() -> None:
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    end = time.monotonic() + 120
    while not inside.has_ended(process):
        assert time.monotonic() < end
    os.waitpid(process, 0)
    assert inside.has_ended(process)


def test_job_fields_keep_blanks_and_equal_signs_of_their_values() -> None:
    line = (
        "JobId=7 JobName=a b c UserId=alice(20001) JobState=COMPLETED Reason=None "
        "Command=/tmp/x y.sh --opt=3 TresPerNode=gres:gpu:1 AdminComment=energy:abc \n"
    )

    (fields,) = parse_job_lines(line)

    assert fields["JobName"] == "a b c"
    assert fields["JobState"] == "COMPLETED"
    assert fields["Command"] == "/tmp/x y.sh --opt=3"
    assert fields["AdminComment"].strip() == "energy:abc"
