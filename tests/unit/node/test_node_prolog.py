import errno
import os
from pathlib import Path

import pytest
from node_bench import DECISION, Bench, entry, order_of

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import EnergyScope, QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied, SpoolError
from slurm_energy.node.hooks import run_epilog, run_prolog


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_clocks_of_exactly_the_allocated_gpus_are_locked(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "1,2", entry()))
    assert bench.locks() == [None, (210, 1275), (210, 1275), None]
    assert {call for gpu in (bench.gpus[0], bench.gpus[3]) for call in gpu.calls} == set()


def test_a_job_with_another_number_of_gpus_than_was_decided_for_keeps_the_default_clock(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "1,2", entry() + ";gpus=4", SLURM_JOB_NODELIST="n1"))
    assert bench.locks() == [None, None, None, None]
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    assert "decided for 4 GPUs, the job has 2: default clock kept" in job.events
    run_prolog(bench.context(), bench.hook(8, "0", entry() + ";gpus=1", SLURM_JOB_NODELIST="n1"))
    assert bench.locks()[0] == (210, 1275)


def test_state_is_on_disk_before_anything_is_changed(bench: Bench) -> None:
    seen = []
    bench.gpus[0].on_call = lambda name: seen.append((name, bench.spool.read_state(JobId(7))))
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    at_lock = next(state for name, state in seen if name == "lock_sm_clock")
    assert at_lock is not None and not at_lock.ready
    saved = at_lock.gpus[0]
    assert (saved.target_clock_mhz, saved.saved.power_limit_watts, saved.saved.highest_clock_mhz) == (1275, 400.0, 1410)


def test_prolog_waits_for_the_disk_once_its_work_is_done_for_file_and_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = []

    def sync(_: int) -> None:
        job = bench.spool.read_state(JobId(7))
        ready.append((bench.locks()[0], job is not None and job.ready))

    monkeypatch.setattr(os, "fsync", sync)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    assert ready == [((210, 1275), False), ((210, 1275), True)]


def test_saved_state_holds_what_was_asked_applied_and_read(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry(time_limit_minutes=60)))
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    gpu = job.gpus[0]
    assert (job.ready, job.decision_id, job.time_limit_minutes, job.restart_count) == (True, DECISION, 60, 0)
    assert (gpu.asked_clock_mhz, gpu.applied_clock_mhz, gpu.counter_joules, gpu.flags) == (1275, 1275, 1000.0, ())
    assert bench.samplers == [7]


@pytest.mark.parametrize("mode", [EnergyMode.OFF, EnergyMode.OBSERVE])
def test_no_clock_is_set_when_the_user_wants_none(bench: Bench, mode: EnergyMode) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry(mode=mode)))
    assert bench.locks() == [None] * 4
    assert bench.spool.read_state(JobId(7)) is not None


@pytest.mark.parametrize("forged", ["v=1;id=abc", "v=2;id=abcdef0123;mode=balanced", "\x1b[31m", "x" * 5000, "v=1"])
def test_malformed_decision_changes_nothing_and_is_noted(bench: Bench, forged: str) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", forged))
    job = bench.spool.read_state(JobId(7))
    assert bench.locks() == [None] * 4
    assert job is not None and any("decision entry" in event for event in job.events)


def test_job_without_gpus_opens_no_driver(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, ""))
    assert bench.driver.opened == 0
    assert not bench.spool.root.exists()


def test_clock_of_the_type_that_was_allocated_is_taken(bench: Bench) -> None:
    bench.gpus[0].gpu_type = "a40"
    run_prolog(bench.context(), bench.hook(7, "0,1", entry({"a100-sxm4-80gb": 1275, "a40": 1200})))
    assert bench.locks()[:2] == [(210, 1200), (210, 1275)]


def test_clock_outside_the_table_is_refused_with_its_bounds(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry({"a100-sxm4-80gb": 2500})))
    job = bench.spool.read_state(JobId(7))
    assert job is not None and job.gpus[0].flags == (QualityFlag.CLOCK_REFUSED,)
    assert any("2500 MHz" in event and "210 to 1410" in event for event in job.events)
    assert bench.locks()[0] is None


def test_each_board_is_held_against_the_limit_that_the_decision_assumed(bench: Bench) -> None:
    bench.gpus[0].limit_watts = 500.0
    run_prolog(bench.context(), bench.hook(7, "0,1", entry(watts={"a100-sxm4-80gb": 400})))
    assert bench.locks()[:2] == [None, (210, 1275)]
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    assert [gpu.flags for gpu in job.gpus] == [(QualityFlag.CLOCK_REFUSED,), ()]
    assert [event for event in job.events if "board limit 500 W" in event and "GPU-0000" in event]
    run_epilog(bench.context(), bench.hook(7, "0,1"))
    assert bench.locks() == [None] * 4
    assert bench.gpus[0].limit_watts == 500.0


def test_board_that_does_not_tell_its_limit_gets_its_clock(bench: Bench) -> None:
    bench.gpus[0].faults["power_limit_watts"] = DeviceNotSupported("no")
    run_prolog(bench.context(), bench.hook(7, "0", entry(watts={"a100-sxm4-80gb": 100})))
    assert bench.locks()[0] == (210, 1275)


def test_mig_gpu_gets_no_clock(bench: Bench) -> None:
    bench.gpus[0].mig = True
    hook = bench.hook(7, "0", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa-bbbb")
    run_prolog(bench.context(), hook)
    assert bench.locks()[0] is None
    job = bench.spool.read_state(JobId(7))
    assert job is not None and [gpu.mig for gpu in job.gpus] == [True]


def test_missing_permission_warns_and_the_job_starts(bench: Bench) -> None:
    bench.gpus[0].faults["lock_sm_clock"] = DevicePermissionDenied("no")
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    job = bench.spool.read_state(JobId(7))
    assert job is not None and job.ready
    assert set(job.gpus[0].flags) == {QualityFlag.CLOCK_REFUSED, QualityFlag.NO_PERMISSION}
    assert not job.gpus[0].clock_changed


def test_unsupported_lock_and_application_clock_still_measure(bench: Bench) -> None:
    for name in ("lock_sm_clock", "application_clock_mhz", "power_limit_watts"):
        bench.gpus[0].faults[name] = DeviceNotSupported("V100")
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.reports()[0].gpus[0].joules == pytest.approx(2000.0)
    assert "set_power_limit" not in bench.gpus[0].calls


def test_lock_that_fails_once_is_tried_again(bench: Bench) -> None:
    bench.gpus[0].faults["lock_sm_clock"] = [DeviceError("busy")]
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    job = bench.spool.read_state(JobId(7))
    assert job is not None and job.gpus[0].flags == ()
    assert bench.locks()[0] == (210, 1275)


def test_nothing_is_changed_when_the_state_cannot_be_saved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.spool.prepare()

    def full(descriptor: int, content: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpoolError, match="No space left"):
        run_prolog(bench.context(), bench.hook(7, "0", entry()))
    monkeypatch.undo()
    assert bench.locks() == [None] * 4
    assert list(bench.spool.active.iterdir()) == []


def test_two_jobs_of_one_user_on_one_node_stay_apart(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "1", entry({"a100-sxm4-80gb": 1200})))
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.locks() == [None, (210, 1200), None, None]
    assert bench.spool.read_state(JobId(8)) is not None
    assert [gpu.gpu_uuid for gpu in bench.reports()[0].gpus] == ["GPU-0000"]


def test_prolog_restores_what_a_job_left_on_the_gpu_it_gets(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    bench.clock.advance(30)
    run_prolog(bench.context(), bench.hook(8, "0"))
    assert bench.locks() == [None] * 4
    lost = bench.reports()[0]
    assert (lost.job_id, lost.gpus[0].joules) == (7, None)
    assert {QualityFlag.TRUNCATED, QualityFlag.INCOMPLETE} <= set(lost.gpus[0].flags)
    assert bench.spool.read_state(JobId(7)) is None


def test_prolog_leaves_a_job_on_other_gpus_alone(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "1"))
    assert bench.locks()[0] == (210, 1275)
    assert bench.reports() == []


def test_after_a_reboot_the_next_job_of_anyone_finds_the_default_clock(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.boot_id = "boot-2"
    bench.gpus[0].limit_watts = 350.0  # what the site sets at boot
    run_prolog(bench.context(), bench.hook(8, "1"))
    assert bench.locks() == [None] * 4
    assert bench.gpus[0].limit_watts == 350.0
    assert QualityFlag.TRUNCATED in bench.reports()[0].gpus[0].flags


def test_requeued_job_that_lost_its_epilog_makes_two_attempts(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.clock.advance(5)
    run_prolog(bench.context(), bench.hook(7, "1", entry(), SLURM_JOB_RESTART_COUNT="1"))
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "1", SLURM_JOB_RESTART_COUNT="1"))
    by_restart = {report.restart_count: report for report in bench.reports()}
    assert by_restart[0].gpus[0].joules is None
    assert by_restart[1].gpus[0].joules == pytest.approx(2000.0)
    assert bench.locks() == [None] * 4


def test_shared_gpu_keeps_its_clock_and_both_jobs_know(bench: Bench) -> None:
    bench.order = order_of(0, 1, 2, 3, shares=True)
    run_prolog(bench.context(), bench.hook(7, "0"))
    run_prolog(bench.context(), bench.hook(8, "0", entry()))
    assert bench.locks() == [None] * 4
    job = bench.spool.read_state(JobId(8))
    assert job is not None and QualityFlag.SHARED_GPU in job.gpus[0].flags
    bench.clock.advance(10)
    run_epilog(bench.context(), bench.hook(7, "0"))
    first = bench.reports()[0].gpus[0]
    assert (first.scope, first.joules) == (EnergyScope.SHARED_ESTIMATE, None)


def test_job_whose_process_lives_is_never_taken_as_over_and_its_clock_binds_no_other_job(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    bench.live = frozenset({JobId(7)})
    run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
    assert bench.locks()[:2] == [None, (210, 1275)]
    assert bench.spool.read_state(JobId(7)) is not None


@pytest.mark.parametrize("key", ["a100-sxm4-80gb", "a100", "A100_SXM4"])
def test_site_lock_is_never_exceeded_and_comes_back(tmp_path: Path, key: str) -> None:
    node = NodeConfig(spool_directory=str(tmp_path / "spool"), log_path="", site_locked_clocks_mhz={key: 1350})
    bench = Bench(tmp_path, node=node)
    bench.gpus[0].lock = bench.gpus[1].lock = (210, 1350)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "1", entry({"a100-sxm4-80gb": 1395})))
    assert bench.locks()[:2] == [(210, 1275), (210, 1350)]
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.locks()[:2] == [(210, 1350), (210, 1350)]


def test_switch_off_of_clocks_measures_only(tmp_path: Path) -> None:
    node = NodeConfig(spool_directory=str(tmp_path / "spool"), log_path="", set_clocks=False)
    bench = Bench(tmp_path, node=node)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    job = bench.spool.read_state(JobId(7))
    assert bench.locks() == [None] * 4
    assert job is not None and job.decision_id == DECISION and job.gpus[0].counter_joules == 1000.0
