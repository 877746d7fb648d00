"""A clock that is locked for no live job is given back by one repair, whatever was lost of what was known of it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError
from slurm_energy.node.energy import Heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.recovery import ABSENT_SECONDS, LOST_EPILOG_SECONDS, STARTING_SECONDS, UNANSWERED_SECONDS
from slurm_energy.node.repair import run_repair

SEVEN = JobId(7)
LOCKED = (210, 1275)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A node on which job 7 has locked two clocks, and whose epilog never came."""
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    assert bench.locks() == [LOCKED, LOCKED, None, None]
    assert bench.recorded() == {"GPU-0000": 7, "GPU-0001": 7}
    bench.clock.advance(2 * STARTING_SECONDS)
    return bench


def repair(bench: Bench) -> bool:
    return run_repair(bench.context(), everything=False)


def lose_state(bench: Bench) -> None:
    bench.spool.state_path(SEVEN).unlink()


def damage_state(bench: Bench) -> None:
    bench.spool.state_path(SEVEN).write_bytes(b"{")


def lose_active(bench: Bench) -> None:
    shutil.rmtree(bench.spool.active)


def lose_spool(bench: Bench) -> None:
    shutil.rmtree(bench.spool.root)


@pytest.mark.parametrize("lose", [lose_state, damage_state, lose_active, lose_spool])
def test_lost_state_loses_no_lock(bench: Bench, lose: Callable[[Bench], None]) -> None:
    lose(bench)
    repair(bench)
    assert bench.locks() == [None] * 4
    assert bench.recorded() == {}
    assert any("GPU-0001: its clock was locked for job 7 and no state" in line for line in bench.lines)
    bench.lines.clear()
    assert repair(bench)
    assert bench.lines == []


@pytest.mark.parametrize("lose", [lose_state, lose_spool])
def test_job_that_lives_keeps_its_clock_though_its_state_was_lost(bench: Bench, lose: Callable[[Bench], None]) -> None:
    lose(bench)
    bench.live = frozenset({SEVEN})
    assert repair(bench)
    assert bench.locks()[:2] == [LOCKED, LOCKED]
    run_epilog(bench.context(), bench.hook(7, "0,1"))
    assert (bench.locks(), bench.recorded()) == ([None] * 4, {})


def test_next_prolog_on_the_gpu_gives_a_lost_lock_back(bench: Bench) -> None:
    lose_spool(bench)
    run_prolog(bench.context(), bench.hook(8, "0"))
    assert bench.locks()[:2] == [None, LOCKED]
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_damaged_record_is_given_back_where_no_state_accounts_for_it(bench: Bench) -> None:
    lose_spool(bench)
    (bench.root / "run" / "n1" / "GPU-0000.json").write_bytes(b"?")
    repair(bench)
    assert bench.locks() == [None] * 4


def test_lost_record_is_no_loss_while_there_is_a_state(bench: Bench) -> None:
    shutil.rmtree(bench.root / "run")
    bench.slurm_states[7] = ""
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_lost_lock_that_cannot_be_given_back_is_tried_again(bench: Bench) -> None:
    lose_spool(bench)
    bench.gpus[0].faults["unlock_sm_clock"] = DeviceError("not now")
    assert not repair(bench)
    assert bench.locks()[:2] == [LOCKED, None]
    bench.gpus[0].faults.clear()
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_site_lock_comes_back_in_place_of_a_lost_one(bench: Bench) -> None:
    object.__setattr__(bench.node, "site_locked_clocks_mhz", {"a100": 1350})
    lose_spool(bench)
    assert repair(bench)
    assert bench.locks()[:2] == [(210, 1350)] * 2


def test_record_of_an_earlier_boot_is_no_lock(bench: Bench) -> None:
    lose_spool(bench)
    bench.boot_id = "boot-2"
    calls = [len(gpu.calls) for gpu in bench.gpus]
    assert repair(bench)
    assert [len(gpu.calls) for gpu in bench.gpus] == calls
    assert bench.recorded() == {}


def test_clock_that_nobody_here_locked_is_left_alone(bench: Bench) -> None:
    bench.gpus[3].lock = (210, 900)  # an administrator's
    lose_spool(bench)
    repair(bench)
    assert bench.locks() == [None, None, None, (210, 900)]


@pytest.mark.parametrize("state", ["", "COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT"])
def test_lost_epilog_is_found_at_once_where_slurm_says_that_the_job_is_over(bench: Bench, state: str) -> None:
    bench.slurm_states[7] = state
    assert repair(bench)
    assert (bench.locks(), bench.recorded()) == ([None] * 4, {})
    (report,) = bench.reports()
    assert (report.job_id, QualityFlag.TRUNCATED in report.gpus[0].flags) == (7, True)


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED"])
def test_job_without_a_process_that_slurm_says_is_running_keeps_everything(bench: Bench, state: str) -> None:
    bench.slurm_states[7] = state
    for _ in range(100):
        bench.clock.advance(300)
        assert repair(bench)
    assert (bench.locks()[:2], bench.reports()) == ([LOCKED, LOCKED], [])


@pytest.mark.parametrize(("state", "seconds"), [("COMPLETING", ABSENT_SECONDS), (None, UNANSWERED_SECONDS)])
def test_job_without_a_process_is_over_after_a_time_where_slurm_does_not_say_so(
    bench: Bench, state: str | None, seconds: float
) -> None:
    bench.slurm_states[7] = state
    repair(bench)
    bench.clock.advance(seconds - 1)
    repair(bench)
    assert bench.locks()[0] == LOCKED
    bench.clock.advance(2)
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_time_without_a_process_begins_anew_when_one_was_seen(bench: Bench) -> None:
    repair(bench)
    bench.clock.advance(UNANSWERED_SECONDS)
    bench.live = frozenset({SEVEN})
    repair(bench)
    bench.live = frozenset()
    bench.clock.advance(UNANSWERED_SECONDS)
    repair(bench)
    assert bench.locks()[0] == LOCKED


def test_end_that_the_sampler_saw_needs_no_word_of_slurm(bench: Bench) -> None:
    job = bench.spool.read_state(SEVEN)
    assert job is not None
    heartbeat = Heartbeat(
        job_id=7,
        started_at_seconds=job.started_at_seconds,
        at_monotonic_seconds=bench.clock.monotonic,
        final=True,
        over=True,
    )
    bench.spool.write_heartbeat(heartbeat, durable=False)
    repair(bench)
    assert bench.locks()[0] == LOCKED  # its epilog may be on its way
    bench.clock.advance(LOST_EPILOG_SECONDS + 1)
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_job_that_just_began_is_not_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.slurm_states[7] = ""
    assert repair(bench)
    assert bench.locks()[0] == LOCKED


@pytest.mark.parametrize("jump_seconds", [-400 * 86_400.0, -200.0, 200.0, 400 * 86_400.0])
def test_wall_clock_that_jumps_makes_no_job_old_and_none_young(bench: Bench, jump_seconds: float) -> None:
    bench.spool.mark_ending(SEVEN, bench.moment())
    bench.clock.now += jump_seconds
    for everything in (False, True):
        run_repair(bench.context(), everything=everything)
        assert bench.locks()[0] == LOCKED
    bench.clock.monotonic += LOST_EPILOG_SECONDS + 1
    assert repair(bench)
    assert bench.locks() == [None] * 4


def test_second_record_is_kept_for_locks_only_and_ends_with_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0"))
    assert not (tmp_path / "run").exists()
    run_prolog(bench.context(), bench.hook(8, "1", entry()))
    assert bench.recorded() == {"GPU-0001": 8}
    run_epilog(bench.context(), bench.hook(8, "1"))
    assert bench.recorded() == {}


def test_second_record_is_there_before_the_clock_is_locked(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    seen: list[dict[str, int | None]] = []
    bench.gpus[0].on_call = lambda name: seen.append(bench.recorded()) if name == "lock_sm_clock" else None
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    assert seen[0] == {"GPU-0000": 7}
