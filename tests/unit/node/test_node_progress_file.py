"""The file in which a job's program counts its steps is its user's, and anything may be in its place."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy.domain.ids import JobId
from slurm_energy.node.trials.progress_file import (
    ProgressFile,
    StepCount,
    StepCounter,
    slowdown_by_steps,
    step_seconds,
)

JOB = JobId(7)
USER = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "shm"
    place.mkdir(mode=0o700)
    place.chmod(0o1777)
    return place


def path(folder: Path) -> Path:
    return folder / "slurm-energy-progress.7"


def write(folder: Path, content: bytes, mode: int = 0o600) -> None:
    path(folder).write_bytes(content)
    path(folder).chmod(mode)


def read(folder: Path, user: int = USER, now: float = 100.0) -> tuple[StepCount | None, str]:
    file = ProgressFile(str(folder), JOB, user)
    return file.read(now), file.problem


def test_a_count_is_read_with_the_time_of_its_step(folder: Path) -> None:
    write(folder, b"12 99.5 12\n")
    assert read(folder) == (StepCount(steps=12, at_seconds=99.5), "")


def test_a_plain_number_as_a_shell_writes_it_has_the_time_of_the_look(folder: Path) -> None:
    write(folder, b"12\nanything after it")
    assert read(folder) == (StepCount(steps=12, at_seconds=100.0), "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"12",  # half written
        b"12 99.5 13\n",  # written while it was read
        b"-3\n",
        b"inf\n",
        b"nan 1\n",
        b"1e9\n",
        b"12.5\n",
        b"9" * 17 + b"\n",
        b"99999999999999999999 1\n",
        "\u0661\u0662\n".encode(),  # digits, but not ASCII's
        b"\x00\xff\xfe" * 200,
        b"\x7fELF" + os.urandom(4096),
        b"1 2 3 4\n",
        b"12\x00\n",
    ],
)
def test_what_is_no_count_is_none(folder: Path, content: bytes) -> None:
    write(folder, content)
    assert read(folder) == (None, "")


@pytest.mark.parametrize("time", [b"inf", b"nan", b"-1e300", b"1e300", b"101.5", b"x", b"-5000"])
def test_a_time_that_cannot_be_is_the_time_of_the_look(folder: Path, time: bytes) -> None:
    write(folder, b"12 " + time + b"\n")
    assert read(folder)[0] == StepCount(steps=12, at_seconds=100.0)


def test_of_a_huge_file_only_the_beginning_is_read(folder: Path) -> None:
    write(folder, b"")
    with path(folder).open("r+b") as file:
        file.write(b"5 99\n")
        file.truncate(1 << 40)
    assert read(folder)[0] == StepCount(steps=5, at_seconds=99.0)


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12\n")
    path(folder).symlink_to(tmp_path / "secret")
    assert read(folder) == (None, "it is no plain file")


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
def test_a_pipe_a_socket_or_a_device_is_never_opened(folder: Path, kind: int) -> None:
    try:
        os.mknod(path(folder), kind | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user makes no devices")
    assert read(folder) == (None, "it is no plain file")


def test_a_folder_is_no_file(folder: Path) -> None:
    path(folder).mkdir()
    assert read(folder) == (None, "it is no plain file")


def test_anothers_file_and_one_that_others_can_write_are_not_read(folder: Path) -> None:
    write(folder, b"12\n")
    assert read(folder, user=USER + 1)[1] == f"it belongs to user {USER}, the job to {USER + 1}"
    path(folder).chmod(0o666)
    assert read(folder) == (None, "others can write to it")


def test_a_folder_in_which_users_replace_each_others_files_is_not_used(folder: Path) -> None:
    write(folder, b"12\n")
    folder.chmod(0o777)
    if USER == 0:
        assert read(folder) == (
            None,
            "the folder for progress lets users replace each other's files: it needs the sticky bit",
        )
    else:
        assert read(folder) == (None, "the folder for progress is not root's")


def test_no_file_and_no_folder_are_no_problem(folder: Path, tmp_path: Path) -> None:
    assert read(folder) == (None, "")
    assert read(tmp_path / "none") == (None, "")


def test_a_file_on_another_mount_is_not_asked_anything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, b"12\n")
    numbers: Iterator[str] = iter(["31", "30"])
    monkeypatch.setattr("slurm_energy.node.trials.progress_file._mount_number", lambda _descriptor: next(numbers))
    asked: list[int] = []
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        asked.append(descriptor)
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    assert read(folder) == (None, "something is mounted on it")
    assert len(asked) == 1  # the folder


def test_descriptors_are_closed_whatever_was_found(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # of this process
    for content in (b"12\n", b"", b"\x00"):
        write(folder, content)
        read(folder)
    path(folder).unlink()
    read(folder)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # as above


def test_only_what_grew_is_told_and_a_count_that_fell_begins_again(folder: Path) -> None:
    counter = StepCounter(file=ProgressFile(str(folder), JOB, USER))
    for now, content in ((1.0, b"5 1\n"), (2.0, b"5 1\n"), (3.0, b"9 3\n"), (4.0, b"2 4\n"), (5.0, b"4 5\n")):
        write(folder, content)
        counter.look(now)
    assert (counter.first, counter.last) == (StepCount(steps=2, at_seconds=4.0), StepCount(steps=4, at_seconds=5.0))
    assert counter.note(watts=300.0) == "progress: 2 steps of 0.5 s and about 150 J"
    assert counter.note(watts=None) == "progress: 2 steps of 0.5 s"


def test_a_time_that_goes_back_is_the_time_of_the_look(folder: Path) -> None:
    file = ProgressFile(str(folder), JOB, USER)
    write(folder, b"5 90\n")
    file.read(100.0)
    write(folder, b"6 80\n")
    assert file.read(101.0) == StepCount(steps=6, at_seconds=101.0)


def test_the_file_is_removed_if_it_is_the_jobs_users(folder: Path, tmp_path: Path) -> None:
    write(folder, b"1\n")
    ProgressFile(str(folder), JOB, USER + 1).remove()
    assert path(folder).exists()
    ProgressFile(str(folder), JOB, USER).remove()
    assert not path(folder).exists()
    (tmp_path / "kept").write_bytes(b"")
    path(folder).symlink_to(tmp_path / "kept")
    ProgressFile(str(folder), JOB, USER).remove()
    assert (tmp_path / "kept").exists()


def counts(seconds: float, steps: int = 40, wobble: float = 0.0) -> list[StepCount]:
    return [StepCount(steps=n, at_seconds=n * seconds + wobble * seconds * (n % 3)) for n in range(steps)]


def test_steps_tell_the_slowdown_exactly() -> None:
    found = slowdown_by_steps(counts(1.0), counts(1.04), highest=0.1)
    assert not isinstance(found, str)
    assert found[0] == pytest.approx(0.04, abs=1e-9)
    assert found[1] <= 0.002


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (counts(1.0, steps=3), "too few steps"),
        (counts(1.5), "no slowdown that the clocks can make"),
        (counts(0.5), "no slowdown that the clocks can make"),
        (counts(1.0, steps=12, wobble=0.4), "vary too much"),
        ([*counts(1.0, steps=8), StepCount(steps=2, at_seconds=9.0)], "too few steps"),
    ],
)
def test_steps_that_cannot_tell_do_not(after: list[StepCount], reason: str) -> None:
    found = slowdown_by_steps(counts(1.0), after, highest=0.1)
    assert isinstance(found, str) and reason in found


def test_the_same_time_for_several_counts_says_nothing() -> None:
    assert step_seconds([StepCount(steps=n, at_seconds=5.0) for n in range(20)]) is None
