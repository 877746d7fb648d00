import pwd
from collections.abc import Callable, Iterator

import pytest

from slurm_energy.daemon.recorder import recorder
from slurm_energy.daemon.recorder.recorder import login_name, with_login_name
from slurm_energy.domain.job import JobRequest

UNKNOWN = 4_000_000_000


@pytest.fixture(autouse=True)
def _nobody_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recorder, "_login_names", {})
    yield


def test_root_has_a_name_and_an_unknown_number_has_none() -> None:
    assert (login_name(0), login_name(UNKNOWN), login_name(2**70)) == ("root", None, None)


@pytest.mark.parametrize("name", [None, "", "0"])
def test_missing_name_is_filled_in(name: str | None) -> None:
    assert with_login_name(JobRequest(user_id=0, user_name=name)).user_name == "root"


def test_name_that_slurm_gave_stays() -> None:
    job = JobRequest(user_id=0, user_name="toor")
    assert with_login_name(job) is job


def test_unknown_number_changes_nothing() -> None:
    assert with_login_name(JobRequest(user_id=UNKNOWN)) == JobRequest(user_id=UNKNOWN)
    named = JobRequest(user_id=UNKNOWN, user_name=str(UNKNOWN))
    assert with_login_name(named) == named


def test_directory_is_asked_once_for_a_known_user_and_its_failure_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answers(real: Callable[[int], pwd.struct_passwd], user_id: int) -> pwd.struct_passwd:
        asked.append(user_id)
        if len(asked) == 1:
            raise OSError("the directory does not answer")
        return real(user_id)

    real = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", lambda user_id: answers(real, user_id))
    assert [login_name(0) for _ in range(4)] == [None, "root", "root", "root"]
    assert asked == [0, 0]
