"""A GPU that several jobs hold (shard, MPS) has no lock that one of them did not agree to, and none after the last."""

import itertools
from pathlib import Path

import pytest
from node_bench import Bench, entry, order_of

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError
from slurm_energy.node import hooks
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.lock_records import LockRecords
from slurm_energy.node.repair import run_repair

FAST, SLOW = entry({"a100-sxm4-80gb": 1200}), entry({"a100-sxm4-80gb": 900})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.order = order_of(0, 1, 2, 3, shares=True)
    return bench


def begin(bench: Bench, job_id: int, decision: str | None) -> None:
    run_prolog(bench.context(), bench.hook(job_id, "0", decision))


def end(bench: Bench, job_id: int) -> None:
    run_epilog(bench.context(), bench.hook(job_id, "0"))


@pytest.mark.parametrize("second", [None, FAST, SLOW])
def test_clock_is_given_back_when_a_second_job_comes(bench: Bench, second: str | None) -> None:
    begin(bench, 7, FAST)
    assert bench.locks()[0] == (210, 1200)
    begin(bench, 8, second)
    assert (bench.locks()[0], bench.recorded()) == (None, {})


@pytest.mark.parametrize("order", list(itertools.permutations([7, 8, 9])))
@pytest.mark.parametrize("decisions", [(FAST, SLOW, None), (None, FAST, SLOW), (SLOW, SLOW, SLOW)])
def test_nothing_is_locked_while_shared_and_after_the_last_one(
    bench: Bench, order: tuple[int, ...], decisions: tuple[str | None, ...]
) -> None:
    for job_id, decision in zip((7, 8, 9), decisions, strict=True):
        begin(bench, job_id, decision)
    for job_id in order:
        assert bench.locks()[0] is None
        end(bench, job_id)
    assert (bench.locks(), bench.recorded()) == ([None] * 4, {})
    assert sorted(report.job_id for report in bench.reports()) == [7, 8, 9]
    begin(bench, 10, SLOW)
    assert bench.locks()[0] == (210, 900)  # alone again


def test_row_of_the_first_job_says_that_its_clock_ended(bench: Bench) -> None:
    begin(bench, 7, FAST)
    begin(bench, 8, None)
    for job_id in (7, 8):
        end(bench, job_id)
    first, second = bench.reports()
    assert QualityFlag.SHARED_GPU in first.gpus[0].flags
    assert any("another job came to share it, and the clock was given back" in event for event in first.events)
    assert any("is shared with job 7: that job's clock was given back" in event for event in second.events)


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["give_shared_back", "plan_job"])
def test_prolog_of_the_second_job_that_is_killed_leaves_nothing_locked_after_the_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    begin(bench, 7, FAST)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hooks, where, killed)
        begin(bench, 8, None)
    for job_id in (8, 7):
        end(bench, job_id)
    assert (bench.locks(), bench.recorded()) == ([None] * 4, {})


def test_clock_that_could_not_be_given_back_to_a_second_job_is_given_back_by_repair(bench: Bench) -> None:
    begin(bench, 7, FAST)
    bench.gpus[0].faults["unlock_sm_clock"] = DeviceError("not now")
    begin(bench, 8, None)
    bench.live = frozenset({JobId(7), JobId(8)})
    assert not run_repair(bench.context(), everything=False)
    assert bench.locks()[0] == (210, 1200)
    bench.gpus[0].faults.clear()
    assert run_repair(bench.context(), everything=False)
    assert bench.locks()[0] is None
    opened = bench.driver.opened
    assert run_repair(bench.context(), everything=False)
    assert bench.driver.opened == opened


def test_lost_epilog_of_the_first_job_does_not_take_the_clock_of_a_later_one(bench: Bench) -> None:
    begin(bench, 7, FAST)
    begin(bench, 8, None)
    end(bench, 8)
    bench.clock.advance(3600)
    bench.live = frozenset({JobId(9)})
    bench.slurm_states[7] = "COMPLETED"
    run_repair(bench.context(), everything=False)
    begin(bench, 9, SLOW)
    run_repair(bench.context(), everything=False)
    assert bench.locks()[0] == (210, 900)
    end(bench, 9)
    assert bench.locks() == [None] * 4


def test_mig_gpu_is_never_locked(bench: Bench) -> None:
    bench.gpus[0].mig = True
    begin(bench, 7, FAST)
    begin(bench, 8, SLOW)
    assert "lock_sm_clock" not in bench.gpus[0].calls


def test_clock_is_given_back_without_a_second_record_too(bench: Bench) -> None:
    bench.lock_records = LockRecords(None)
    begin(bench, 7, FAST)
    begin(bench, 8, None)
    assert bench.locks()[0] is None
    calls = bench.gpus[0].calls.count("unlock_sm_clock")
    begin(bench, 9, None)
    assert bench.gpus[0].calls.count("unlock_sm_clock") == calls
