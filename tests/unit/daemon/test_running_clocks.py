"""A power budget: which running jobs give way to it, by how much, and what becomes of errors of the curves."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config import PowerConfig
from slurm_energy.daemon.doors.power import BudgetSeries, RunningClocks, read_power_status
from slurm_energy.domain.ids import GpuTypeName, JobId, NodeName
from slurm_energy.errors import WireError
from slurm_energy.wire.running_power import (
    ClockOrder,
    RunningPower,
    decode_order,
    decode_running_power,
    encode_order,
    encode_running_power,
)

A100, UNKNOWN = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("accelerator-x")


def stated(job_id: int = 7, **changes: Any) -> RunningPower:
    found = RunningPower(
        job_id=JobId(job_id),
        node=NodeName("n1"),
        gpu_type=A100,
        num_gpus=1,
        watts=400.0,
        clock_mhz=1410,
        decided_clock_mhz=1410,
        default_clock_mhz=1410,
        lowest_clock_mhz=210,
        may_lower=True,
    )
    return replace(found, **changes)


@dataclass
class Site:
    """Jobs on boards of their own, of which the daemon knows only what their nodes state."""

    folder: Path
    budget_watts: float
    jobs: list[RunningPower]
    exponent: float = 2.0
    """Power above 60 W of a GPU goes with this power of the clock: not as in the curves that the daemon has."""
    seconds: float = 1000.0
    orders: dict[tuple[str, int], ClockOrder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = PowerConfig(budget_watts=self.budget_watts)
        self.budget = BudgetSeries(config)
        self.clocks = RunningClocks(config, self.budget, self.folder, lambda: self.seconds)
        self.full = {(job.node, job.job_id): job.watts or 0.0 for job in self.jobs}

    def set_budget(self, watts: float) -> None:
        self.budget._config = replace(self.budget._config, budget_watts=watts)

    def watts(self, job: RunningPower) -> float:
        idle = 60.0 * job.num_gpus
        full = self.full[job.node, job.job_id]
        share: float = (job.clock_mhz / job.decided_clock_mhz) ** self.exponent
        return min(idle, full) + max(full - idle, 0.0) * share

    def ask(self, rounds: int = 1) -> None:
        """Let every node ask, and set what it is answered."""
        for _ in range(rounds):
            for at, job in enumerate(self.jobs):
                order = self.clocks.answer(replace(job, watts=self.watts(job)))
                clock = job.decided_clock_mhz if order.clock_mhz is None else order.clock_mhz
                self.jobs[at] = replace(job, clock_mhz=clock)
                self.orders[job.node, job.job_id] = order
                self.seconds += 1.1
            self.seconds += 4.0

    @property
    def drawn(self) -> float:
        return sum(self.watts(job) for job in self.jobs)


def test_without_a_budget_every_job_keeps_its_clock(tmp_path: Path) -> None:
    site = Site(tmp_path, 0.0, [stated(job) for job in range(1, 5)])
    site.ask(3)
    assert {order.clock_mhz for order in site.orders.values()} == {None}


def test_a_budget_with_room_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, 1700.0, [stated(job) for job in range(1, 5)])
    site.ask(3)
    assert site.drawn == 1600.0


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("gpu_type", [A100, UNKNOWN, None])
def test_half_the_power_is_kept_whatever_the_boards_do_and_given_back(
    tmp_path: Path, gpu_type: GpuTypeName | None, exponent: float
) -> None:
    site = Site(tmp_path, 1600.0, [stated(job, gpu_type=gpu_type) for job in range(1, 5)], exponent)
    site.ask()
    site.set_budget(800.0)
    site.ask(4)
    assert 0.85 * 800.0 <= site.drawn <= 800.0
    site.set_budget(1700.0)
    site.ask(8)
    assert [job.clock_mhz for job in site.jobs] == [1410] * 4


def test_clocks_do_not_move_up_and_down_under_a_steady_budget(tmp_path: Path) -> None:
    site = Site(tmp_path, 1000.0, [stated(job) for job in range(1, 5)])
    site.ask(4)
    seen = [job.clock_mhz for job in site.jobs]
    site.ask(10)
    assert [job.clock_mhz for job in site.jobs] == seen


def test_a_job_whose_clock_stays_counts_and_the_others_give_more(tmp_path: Path) -> None:
    site = Site(tmp_path, 1000.0, [stated(1, may_lower=False), stated(2), stated(3), stated(4)])
    site.ask(4)
    assert site.jobs[0].clock_mhz == 1410
    assert site.drawn <= 1000.0


def test_a_job_on_two_nodes_has_one_clock(tmp_path: Path) -> None:
    jobs = [stated(1), stated(1, node=NodeName("n2"), watts=250.0), stated(2)]
    site = Site(tmp_path, 700.0, jobs)
    site.ask(4)
    assert site.jobs[0].clock_mhz == site.jobs[1].clock_mhz < 1410
    assert site.drawn <= 700.0


def test_a_decided_clock_is_never_raised(tmp_path: Path) -> None:
    site = Site(tmp_path, 5000.0, [stated(1, clock_mhz=1200, decided_clock_mhz=1200, watts=300.0)])
    site.ask(4)
    assert site.jobs[0].clock_mhz == 1200


def test_a_job_that_is_heard_of_no_more_leaves_its_power_to_others(tmp_path: Path) -> None:
    site = Site(tmp_path, 800.0, [stated(1), stated(2), stated(3)])
    site.ask(4)
    assert site.jobs[0].clock_mhz < 1410
    del site.jobs[1:]
    site.ask(10)
    assert site.jobs[0].clock_mhz == 1410


def test_a_budget_that_cannot_be_kept_takes_the_lowest_clocks_and_is_said(tmp_path: Path) -> None:
    site = Site(tmp_path, 10.0, [stated(1), stated(2)])
    site.ask(4)
    assert [job.clock_mhz for job in site.jobs] == [210, 210]
    status = read_power_status(tmp_path)
    assert status is not None
    assert status["lowered"] == 2
    assert float(str(status["missing_watts"])) > 50.0


@given(
    full=st.lists(st.floats(20.0, 700.0), min_size=1, max_size=12),
    share=st.floats(0.3, 1.2),
    exponent=st.floats(0.5, 3.0),
    fixed=st.sets(st.integers(0, 11)),
)
def test_a_budget_is_kept_within_3_percent_or_nothing_is_left_to_lower(
    tmp_path_factory: pytest.TempPathFactory, full: list[float], share: float, exponent: float, fixed: set[int]
) -> None:
    jobs = [stated(at + 1, watts=watts, may_lower=at not in fixed) for at, watts in enumerate(full)]
    site = Site(tmp_path_factory.getbasetemp(), share * sum(full), jobs, exponent)
    site.ask(6)
    movable = [job for at, job in enumerate(site.jobs) if at not in fixed]
    at_lowest = all(job.clock_mhz == 210 or site.full[job.node, job.job_id] <= 80.0 for job in movable)
    assert site.drawn <= 1.03 * share * sum(full) or at_lowest


def test_a_series_holds_by_time_and_its_ends_hold_on(tmp_path: Path) -> None:
    path = tmp_path / "budget.csv"
    path.write_text("starts_at,watts\n2026-03-01T00:00:00+00:00,900\n2026-03-01T06:00:00+00:00,400\n")
    now = 1772323200.0  # 2026-03-01T00:00:00Z
    moment = [now]
    series = BudgetSeries(PowerConfig(budget_series=str(path), other_watts=100.0), lambda: moment[0])
    series.read()
    for at, watts in ((now - 60.0, 800.0), (now + 60.0, 800.0), (now + 7 * 3600.0, 300.0), (now + 1e6, 300.0)):
        moment[0] = at
        assert series.watts() == watts


def test_a_series_that_cannot_be_read_any_more_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    path = tmp_path / "budget.csv"
    path.write_text("starts_at,watts\n2026-03-01T00:00:00+00:00,900\n")
    series = BudgetSeries(PowerConfig(budget_series=str(path)))
    series.read()
    for content in ("", "starts_at,kW\n2026-03-01T00:00:00+00:00,9\n", "starts_at,watts\nyesterday,9\n"):
        path.write_text(content)
        series.read()
        assert series.problem
        assert series.watts() == 900.0
    path.unlink()
    series.read()
    assert "cannot be read" in series.problem


def test_what_is_stated_and_ordered_survives_the_wire() -> None:
    assert decode_running_power(encode_running_power(stated(gpu_type=None, watts=None))) == stated(
        gpu_type=None, watts=None
    )
    for order in (
        ClockOrder(clock_mhz=1290, lease_seconds=30.0, ask_seconds=4.0),
        ClockOrder(clock_mhz=None, lease_seconds=30.0, ask_seconds=4.0),
    ):
        assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize(
    "changes",
    [
        {"watts": 1e9},
        {"watts": -1.0},
        {"num_gpus": 0},
        {"num_gpus": 10**9},
        {"clock_mhz": 0},
        {"lowest_clock_mhz": 2000},
        {"decided_clock_mhz": 1500},
        {"node": NodeName("")},
        {"node": NodeName("x" * 300)},
        {"may_lower": "yes"},
        {"job_id": JobId(0)},
    ],
)
def test_a_statement_out_of_its_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_running_power(encode_running_power(stated(**changes)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "power",
        "power 1290 30 31",
        "power -5 30 4",
        "power 1290 nan 4",
        "power 1290 inf 4",
        "power 99999 30 4",
        "power 1290 30 0",
        "power 1290 1e9 4",
        "power 1290 30 4 5",
        "power \u0663 x y",
        "1290 30 4 power",
    ],
)
def test_an_order_out_of_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_order(text)
