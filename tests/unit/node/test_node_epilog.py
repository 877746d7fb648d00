import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from node_bench import Bench, FakeDriver, FakeGpu, entry

from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.errors import DeviceError, DeviceNotSupported, SpoolError
from slurm_energy.node.energy import GpuSamples, Heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def leave_heartbeat(bench: Bench, job_id: int, **sums: Any) -> None:
    job = bench.spool.read_state(JobId(job_id))
    assert job is not None
    heartbeat = Heartbeat(
        job_id=job_id,
        started_at_seconds=job.started_at_seconds,
        at_seconds=bench.clock.now,
        at_monotonic_seconds=bench.clock.monotonic,
        gpus={uuid: GpuSamples(**sums) for uuid in job.uuids},
    )
    bench.spool.write_heartbeat(heartbeat, durable=False)


def test_joules_are_the_difference_of_the_counter(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,2", entry()))
    bench.clock.advance(100)
    run_epilog(bench.context(), bench.hook(7, "0,2", SLURM_JOB_EXIT_CODE2="3:0"))
    report = bench.reports()[0]
    assert (report.job_id, report.exit_code, report.user_id, report.partition) == (7, 3, 1000, "a100")
    assert report.ended_at_seconds - report.started_at_seconds == pytest.approx(100)
    for gpu in report.gpus:
        assert (gpu.joules, gpu.source, gpu.scope) == (pytest.approx(20_000.0), EnergySource.COUNTER, EnergyScope.GPU)
        assert gpu.coverage_seconds == pytest.approx(100)
        assert (gpu.asked_clock_mhz, gpu.applied_clock_mhz, gpu.default_clock_mhz) == (1275, 1275, 1410)
        assert gpu.flags == (QualityFlag.CLOCK_UNVERIFIED,)
    assert bench.locks() == [None] * 4
    assert list(bench.spool.active.iterdir()) == []


def test_clocks_are_restored_before_anything_else(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[0].calls.clear()
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.gpus[0].calls[0] == "unlock_sm_clock"


def test_power_limit_that_an_administrator_changed_meanwhile_stays(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[0].limit_watts = 250.0
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert (bench.gpus[0].limit_watts, bench.locks()[0]) == (250.0, None)
    assert "set_power_limit" not in bench.gpus[0].calls


def test_power_that_cannot_be_read_any_more_leaves_nothing_to_restore(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    for name in ("power_watts", "power_limit_watts"):
        bench.gpus[0].faults[name] = DeviceNotSupported("not supported")
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.flags, bench.locks()[0]) == (pytest.approx(2000.0), (QualityFlag.CLOCK_UNVERIFIED,), None)
    assert list(bench.spool.pending.iterdir()) == []


def test_reset_that_raises_once_then_works_is_clean(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[0].faults["unlock_sm_clock"] = [DeviceError("GPU is busy")]
    run_epilog(bench.context(), bench.hook(7, "0"))
    report = bench.reports()[0]
    assert bench.locks()[0] is None
    assert QualityFlag.RESTORE_FAILED not in report.gpus[0].flags
    assert any("try 1" in event for event in report.events)


def test_restore_that_fails_is_flagged_kept_and_done_by_repair(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    bench.gpus[0].faults["unlock_sm_clock"] = DeviceError("GPU is lost")
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0,1"))
    flags = {gpu.gpu_uuid: gpu.flags for gpu in bench.reports()[0].gpus}
    assert QualityFlag.RESTORE_FAILED in flags["GPU-0000"] and QualityFlag.RESTORE_FAILED not in flags["GPU-0001"]
    assert bench.locks()[:2] == [(210, 1275), None]
    assert not run_repair(bench.context(), everything=False)
    bench.gpus[0].faults.clear()
    assert run_repair(bench.context(), everything=False)
    assert bench.locks()[0] is None
    assert len(bench.reports()) == 1


def test_pending_restore_never_touches_a_gpu_that_a_job_holds(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[0].faults["unlock_sm_clock"] = DeviceError("GPU is lost")
    run_epilog(bench.context(), bench.hook(7, "0"))
    run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
    bench.gpus[0].faults.clear()
    assert not run_repair(bench.context(), everything=False)
    assert bench.locks()[0] == (210, 1200)
    run_epilog(bench.context(), bench.hook(8, "0"))
    assert run_repair(bench.context(), everything=False)
    assert bench.locks()[0] is None


def test_second_epilog_is_harmless(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_epilog(bench.context(), bench.hook(7, "0"))
    before = bench.reports()
    bench.gpus[0].lock = (210, 900)  # the next job's
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.reports() == before
    assert bench.locks()[0] == (210, 900)


def test_epilog_reports_the_restart_count_of_its_prolog(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    bench.clock.advance(1)
    run_epilog(bench.context(), bench.hook(7, "0", SLURM_JOB_RESTART_COUNT="1"))
    assert [report.restart_count for report in bench.reports()] == [0]


@pytest.mark.parametrize("where", ["driver", "allocation", "state"])
def test_attempt_whose_prolog_left_nothing_is_reported_where_an_earlier_one_ran(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.clock.advance(5)
    run_epilog(bench.context(), bench.hook(7, "0", SLURM_JOB_RESTART_COUNT="1"))
    again = bench.hook(7, "0", entry(), SLURM_JOB_RESTART_COUNT="1")
    with monkeypatch.context() as patch:
        if where == "driver":  # as a deadline that kills the hook there
            patch.setattr(FakeDriver, "__enter__", _cut_off)
        elif where == "allocation":
            patch.setattr(FakeDriver, "gpus", _unreadable)
        else:
            patch.setattr(type(bench.spool), "write_state", _cut_off)
        with suppress(SpoolError):
            run_prolog(bench.context(), again)
    bench.clock.advance(5)
    run_epilog(bench.context(), again)
    run_epilog(bench.context(), again)
    by_restart = {report.restart_count: report.gpus[0].joules for report in bench.reports()}
    assert by_restart == {0: pytest.approx(1000.0), 1: None}
    assert len(bench.reports()) == 2


def test_delivered_report_is_not_made_again_when_the_job_comes_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.spool), "forget", _cut_off)
        with suppress(SpoolError):
            run_epilog(bench.context(), bench.hook(7, "0"))
    for path in bench.spool.waiting_reports():
        path.unlink()  # delivered
    run_prolog(bench.context(), bench.hook(7, "0", entry(), SLURM_JOB_RESTART_COUNT="1"))
    run_epilog(bench.context(), bench.hook(7, "0", SLURM_JOB_RESTART_COUNT="1"))
    assert [report.restart_count for report in bench.reports()] == [1]


def test_mark_that_cannot_be_removed_does_not_keep_a_prolog_from_repairing(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.boot_id = "boot-2"
    (bench.spool.done / "8" / "in the way").mkdir(parents=True)
    with suppress(SpoolError):
        run_prolog(bench.context(), bench.hook(8, "1", entry()))
    assert bench.locks()[0] is None


def _cut_off(*anything: object) -> None:
    raise SpoolError("the hook was cut off here")


def _unreadable(*anything: object) -> None:
    raise DeviceError("the driver lost its GPUs")


def test_epilog_without_a_state_invents_nothing(bench: Bench) -> None:
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "1", entry()))
    run_epilog(bench.context(), bench.hook(7, "1", entry()))
    reports = bench.reports()
    assert len(reports) == 1
    gpu = reports[0].gpus[0]
    assert (gpu.gpu_uuid, gpu.joules, gpu.source) == ("GPU-0001", None, EnergySource.NONE)
    assert gpu.flags == (QualityFlag.INCOMPLETE,)
    assert "unlock_sm_clock" not in bench.gpus[1].calls


def test_epilog_of_a_job_without_gpus_leaves_no_trace(bench: Bench) -> None:
    run_epilog(bench.context(), bench.hook(7, ""))
    assert not bench.spool.root.exists() and bench.driver.opened == 0


def test_epilog_finds_its_state_even_without_gpu_variables(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_epilog(bench.context(), bench.hook(7, ""))
    assert bench.locks()[0] is None


def test_driver_that_cannot_be_opened_leaves_the_restore_pending(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.driver = FakeDriver(bench.gpus, DeviceError("driver not loaded"))
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert gpu.joules is None and QualityFlag.RESTORE_FAILED in gpu.flags and "driver not loaded" in gpu.reason
    bench.driver = FakeDriver(bench.gpus)
    assert run_repair(bench.context(), everything=False)
    assert bench.locks()[0] is None


def test_full_disk_restores_the_clock_and_keeps_the_state(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpoolError, match="No space left"):
        run_epilog(bench.context(), bench.hook(7, "0"))
    monkeypatch.setattr(os, "write", real)
    assert bench.locks()[0] is None
    assert bench.spool.read_state(JobId(7)) is not None
    bench.clock.advance(3600)
    assert run_repair(bench.context(), everything=True)
    assert [report.job_id for report in bench.reports()] == [7]


def test_counter_reset_takes_the_samples(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    bench.clock.advance(100)
    bench.gpus[0].reset_counter()
    leave_heartbeat(bench, 7, polled_joules=19_000.0, sampled_seconds=99.0)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.source, gpu.counter_joules) == (19_000.0, EnergySource.POLLED, None)
    assert gpu.flags == (QualityFlag.COUNTER_RESET,)


def test_counter_and_power_both_missing_is_unknown_with_a_reason(bench: Bench) -> None:
    bench.gpus[0].faults["energy_joules"] = DeviceNotSupported("energy counter: not supported on P100")
    run_prolog(bench.context(), bench.hook(7, "0"))
    bench.clock.advance(100)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert gpu.joules is None and "P100" in gpu.reason
    assert QualityFlag.COUNTER_UNSUPPORTED in gpu.flags


def test_dead_node_is_closed_from_its_last_heartbeat(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.clock.advance(50)
    leave_heartbeat(
        bench, 7, polled_joules=9_900.0, sampled_seconds=49.5, counter_joules=11_000.0, counter_at_seconds=5_050.0
    )
    bench.clock.advance(500)
    bench.boot_id = "boot-2"
    assert run_repair(bench.context(), everything=False)
    report = bench.reports()[0]
    gpu = report.gpus[0]
    assert (gpu.joules, gpu.coverage_seconds) == (10_000.0, pytest.approx(50.0))
    assert gpu.flags == (QualityFlag.CLOCK_UNVERIFIED, QualityFlag.TRUNCATED)
    assert report.ended_at_seconds - report.started_at_seconds == pytest.approx(50.0)


def test_heartbeat_of_an_earlier_attempt_is_not_taken(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    stale = Heartbeat(job_id=7, started_at_seconds=1.0, gpus={GpuUuid("GPU-0000"): GpuSamples(polled_joules=1e6)})
    bench.spool.write_heartbeat(stale, durable=False)
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.reports()[0].gpus[0].polled_joules is None


def test_corrupt_state_is_put_aside_and_reported_unknown(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    bench.spool.state_path(JobId(7)).write_bytes(b'{"format": 1, "job_id": 7')
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert QualityFlag.INCOMPLETE in bench.reports()[0].gpus[0].flags
    assert [path.name for path in bench.spool.rejected.iterdir()] == ["7.json"]


def test_repair_all_takes_only_old_jobs_without_a_process(bench: Bench) -> None:
    for job_id, gpu in ((7, "0"), (8, "1")):
        run_prolog(bench.context(), bench.hook(job_id, gpu, entry()))
    bench.clock.advance(700)
    run_prolog(bench.context(), bench.hook(9, "2", entry()))
    bench.live = frozenset({JobId(8)})
    assert run_repair(bench.context(), everything=False)
    assert bench.locks() == [(210, 1275)] * 3 + [None]
    assert run_repair(bench.context(), everything=True)
    assert bench.locks() == [None, (210, 1275), (210, 1275), None]


def test_epilog_that_was_cut_off_is_finished_by_repair(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.spool.mark_ending(JobId(7), bench.moment())
    bench.clock.monotonic += 30
    run_repair(bench.context(), everything=False)
    assert bench.locks()[0] == (210, 1275)
    bench.clock.monotonic += 60
    assert run_repair(bench.context(), everything=False)
    assert bench.locks()[0] is None


def test_hook_that_is_held_up_after_a_reading_does_not_make_energy_implausible(bench: Bench) -> None:
    class HeldUp(FakeGpu):
        delays: ClassVar[list[float]] = [5.0, 0.0]

        def energy_joules(self) -> float:
            joules = super().energy_joules()
            self.clock.advance(self.delays.pop(0))
            return joules

    bench.gpus[0] = HeldUp(clock=bench.clock, watts=390.0)
    bench.driver = FakeDriver(bench.gpus)
    run_prolog(bench.context(), bench.hook(7, "0"))
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.coverage_seconds) == (15 * 390.0, 15.0)
    assert gpu.flags == ()
