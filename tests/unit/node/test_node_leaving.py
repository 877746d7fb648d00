"""Leaving a node: every clock of ours is put back, what is not delivered stays, and nothing else is touched."""

import shutil
from pathlib import Path

import pytest
from node_bench import Bench, FakeDriver, entry

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.hooks import run_prolog
from slurm_energy.node.repair import REASON, close_every_job, left_in, remove_spool


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_clocks_under_running_jobs_are_put_back_and_their_reports_say_why_they_end(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    run_prolog(bench.context(), bench.hook(8, "2", entry()))
    assert close_every_job(bench.context())
    assert bench.locks() == [None] * 4
    assert sorted(report.job_id for report in bench.reports()) == [7, 8]
    assert all(any(REASON in event for event in report.events) for report in bench.reports())
    assert bench.spool.read_state(JobId(7)) is None


def test_a_clock_that_is_not_ours_stays_as_it_is(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[3].lock_sm_clock(210, 900)
    assert close_every_job(bench.context())
    assert bench.locks()[3] == (210, 900)


def test_without_a_driver_what_is_left_to_restore_stays_in_the_spool_and_is_named(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    well, bench.driver = bench.driver, FakeDriver(bench.gpus, DeviceError("no driver"))
    assert not close_every_job(bench.context())
    (pending,) = (path for path in left_in(bench.context()) if path.parent.name == "pending")
    bench.driver = well
    assert close_every_job(bench.context())
    assert bench.locks()[0] is None
    assert not pending.exists()


def test_reports_that_wait_are_left_and_named(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    close_every_job(bench.context())
    assert [path.parent.name for path in left_in(bench.context())] == ["reports"]


def test_a_job_that_cannot_be_closed_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))

    def full_disk(*_arguments: object) -> None:
        raise SpoolError("No space left on device")

    monkeypatch.setattr("slurm_energy.node.spool.Spool.write_report", full_disk)
    assert not close_every_job(bench.context())
    assert [path.parent.name for path in left_in(bench.context())] == ["active"]


def test_a_node_that_never_had_a_job_has_no_spool_and_gets_none(bench: Bench) -> None:
    assert close_every_job(bench.context())
    assert left_in(bench.context()) == ()
    assert not bench.spool.root.exists()


def test_the_spool_goes_and_files_of_others_in_its_folder_stay(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    close_every_job(bench.context())
    for path in left_in(bench.context()):
        path.unlink()
    spool = bench.spool
    for path in (spool.host_meter, spool.host_meter_lock, spool.host_power, spool.host_power_lock):
        path.write_text("")
    other = bench.spool.root / "notes"
    other.write_text("of somebody")
    remove_spool(bench.context())
    assert [path.name for path in bench.spool.root.iterdir()] == ["notes"]
    other.unlink()
    remove_spool(bench.context())
    assert not bench.spool.root.exists()


def test_a_clock_whose_state_was_lost_is_put_back_by_its_second_record(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    assert bench.locks()[0] is not None
    shutil.rmtree(bench.spool.root)
    assert close_every_job(bench.context())
    assert bench.locks() == [None] * 4
    remove_spool(bench.context())
    assert not bench.spool.root.exists()
    assert not (bench.root / "run" / "n1").exists()
