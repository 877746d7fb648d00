"""Windows of a trial of a clock: which are used, what they cost and by what power is read."""

import json
from pathlib import Path

import pytest
from node_bench import Bench
from trial_bench import TABLE, ZERO, Detector, begin, play, sensitive, trials, tried_clock

from slurm_energy.errors import DeviceError, DeviceNotSupported
from slurm_energy.node.energy import GpuSamples


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_window_that_was_held_up_is_not_used(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock is None)
    bench.clock.advance(300.0)  # a call that hung in the driver, or a process that was stopped
    run.step()
    run.step()
    assert bench.gpus[0].lock == TABLE
    assert run.events == ["clock trial given up: a window was held up"]


def test_a_trial_that_was_held_up_counts_and_costs_and_the_next_begins_with_the_default_clock(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    clock = bench.gpus[0].lock
    assert clock is not None
    cost, number = run._ladder.cost_seconds, len(run.trials)
    bench.clock.advance(300.0)
    run.step()
    run.step()
    assert run._ladder.cost_seconds >= cost + 300.0 * (1410.0 / clock[1] - 1410.0 / TABLE[1])
    assert len(run.trials) == number + 1
    assert run.trials[-1].reason == "a window was held up"

    between = bench.gpus[0].lock
    assert play(bench, run, 4 * 3600.0)[:2] == [between, None]


def test_time_in_which_the_job_was_suspended_earns_no_trial(bench: Bench) -> None:
    begin(bench, clocks={})
    run = trials(bench, sensitive(1.0))
    sums = GpuSamples()
    end = bench.clock.monotonic + 4 * 3600.0
    while bench.clock.monotonic < end:
        run.step()
        bench.clock.advance(10.0)
        sums.utilisation_samples += 1
        run.follow_load({ZERO: sums})
    assert run.trials == []
    assert bench.gpus[0].lock is None


def test_an_idle_gpu_answers_nothing(bench: Bench) -> None:
    begin(bench)
    bench.gpus[0].busy = 0.05
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    assert (run.kept_clock_mhz, bench.gpus[0].lock, run.ended) == (None, TABLE, True)


def test_where_there_is_no_instant_power_the_counter_is_read_and_else_only_at_both_ends(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    reads = bench.gpus[0].calls.count("energy_joules")
    assert reads < 20

    other = Bench(bench.root / "other")
    other.gpus[0].faults["instant_power_watts"] = DeviceNotSupported("field 186")
    begin(other)
    run = trials(other, sensitive(0.2))
    play(other, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    assert other.gpus[0].calls.count("energy_joules") > 1000
    assert other.gpus[0].calls.count("instant_power_watts") == 1
    assert run.trials[0].watts > 100.0


def test_a_reading_that_fails_now_and_then_is_a_gap_and_one_unsupported_is_not_asked_for_again(bench: Bench) -> None:
    begin(bench)
    bench.gpus[0].faults["memory_utilisation"] = [DeviceError("lost")] * 50
    bench.gpus[0].faults["pcie_received_bytes_per_second"] = DeviceNotSupported("no")
    detector = Detector(bench, sensitive(0.2))
    run = trials(bench, sensitive(0.2))
    run._ask = detector  # type: ignore[assignment]
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    before = detector.pairs[0]["before"]
    assert before["work_rates"]["memory_utilisation"][:50] == [None] * 50
    assert set(before["work_rates"]["pcie_bytes"]) == {None}
    assert bench.gpus[0].calls.count("pcie_received_bytes_per_second") == 1
    assert json.loads(json.dumps(detector.pairs)) == detector.pairs


def test_readings_that_take_long_give_up_pcie_first_and_then_trials(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    bench.gpus[0].on_call = lambda name: bench.clock.advance(0.06) if name == "pcie_received_bytes_per_second" else None
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    assert run.trials and bench.gpus[0].calls.count("pcie_received_bytes_per_second") < 5

    bench.gpus[0].on_call = lambda _name: bench.clock.advance(0.05)
    play(bench, run, 8 * 3600.0, until=lambda: run.ended)
    assert run.ended and "a reading takes" in run.events[-1]
    assert bench.gpus[0].lock == (TABLE if run.kept_clock_mhz is None else (210, run.kept_clock_mhz))


def test_no_window_begins_that_would_cost_more_than_the_samplers_share_of_a_core(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2), cpu=lambda: 200.0)
    assert play(bench, run, 4 * 3600.0) == [TABLE]
