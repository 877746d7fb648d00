"""The collector of cycles during a run: it comes seldom, it still comes, and everything is put back."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pytest
from small_worlds import Answers, FirstFit, make_job, make_world, run_jobs

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement
from slurm_energy.twin.engine import simulation
from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.engine.simulation import YOUNG_OBJECTS, seldom_collected
from slurm_energy.twin.workloads.registry import create_workload

BEFORE = (701, 11, 9)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """Start from thresholds that no default could be mistaken for."""
    found, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(*BEFORE)
    yield
    gc.set_threshold(*found)
    if enabled:
        gc.enable()


def test_collector_comes_seldom_inside_and_as_before_outside() -> None:
    with seldom_collected():
        assert gc.get_threshold() == (YOUNG_OBJECTS, *BEFORE[1:])
    assert gc.get_threshold() == BEFORE


def test_an_error_puts_the_thresholds_back() -> None:
    with pytest.raises(ZeroDivisionError), seldom_collected():
        _ = 1 / 0
    assert gc.get_threshold() == BEFORE


def test_blocks_within_blocks_put_back_what_the_first_found() -> None:
    with seldom_collected():
        with seldom_collected():
            pass
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    assert gc.get_threshold() == BEFORE


def test_blocks_that_overlap_in_any_order_put_back_what_the_first_found() -> None:
    """A block that was entered inside another and is left after it must not put back the raised threshold."""
    entered, leave = Event(), Event()

    def other() -> None:
        with seldom_collected():
            entered.set()
            leave.wait(10.0)

    thread = Thread(target=other)
    with ExitStack() as stack:
        stack.enter_context(seldom_collected())
        thread.start()
        entered.wait(10.0)
        stack.close()
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
        leave.set()
        thread.join()
    assert gc.get_threshold() == BEFORE


@pytest.mark.parametrize("threshold", [0, YOUNG_OBJECTS + 1])
def test_a_collector_that_comes_more_seldom_or_never_is_left_alone(threshold: int) -> None:
    gc.set_threshold(threshold, 5, 5)
    with seldom_collected():
        assert gc.get_threshold() == (threshold, 5, 5)
    assert gc.get_threshold() == (threshold, 5, 5)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with seldom_collected():
        assert not gc.isenabled()
    assert not gc.isenabled()


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_that_a_rule_makes_are_collected_during_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "YOUNG_OBJECTS", 2_000)
    alive: weakref.WeakSet[_Cycle] = weakref.WeakSet()
    most = 0

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        nonlocal most
        for _ in range(100):
            alive.add(_Cycle())
        most = max(most, len(alive))
        return FirstFit().place(job, view)

    run_jobs(make_world(), [make_job(number, float(number), 0.5) for number in range(200)], Answers(place=place))
    assert most < 5_000


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_puts_the_thresholds_back(fails: bool) -> None:
    seen: list[int] = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append(gc.get_threshold()[0])
        if fails:
            raise ZeroDivisionError
        return FirstFit().place(job, view)

    try:
        run_jobs(make_world(), [make_job(1)], Answers(place=place))
    except ZeroDivisionError:
        assert fails
    assert seen == [YOUNG_OBJECTS]
    assert gc.get_threshold() == BEFORE


def test_making_a_workload_puts_the_thresholds_back() -> None:
    create_workload("poisson", {"hours": 0.1}, 1)
    assert gc.get_threshold() == BEFORE


def _living(of_class: type[Any]) -> int:
    return sum(type(each) is of_class for each in gc.get_objects())


@pytest.mark.slow
def test_memory_of_a_run_is_given_back_without_the_collector() -> None:
    """Jobs that ended, that run and that wait alike."""
    gc.collect()
    gc.disable()
    runs, jobs = _living(JobRun), _living(Job)
    outcome = run_jobs(
        make_world(), [make_job(number, float(number), 9.0, 3) for number in range(300)], horizon_seconds=450.0
    )
    assert {*outcome.state} == {"COMPLETED", "RUNNING", "PENDING"}
    assert (_living(JobRun), _living(Job)) == (runs, jobs)
