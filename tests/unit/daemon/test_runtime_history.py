from collections.abc import Callable
from math import log

import pytest

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, RuntimePart, table_parts
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.estimation.job_history import ANY_USER, NEVER_RAN, CompareTypes, expected_run_time, timed_names
from slurm_energy.policy.site.comparison import MAX_LOG_STD, TypeComparison
from slurm_energy.store.past_runs import RuntimeSample

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")


def compare_by(work: WorkEstimate | None = None) -> Callable[[int, str], CompareTypes]:
    return lambda _user_id, _name: TypeComparison(limits=CATALOGUE_LIMITS, work=work).cost


def sample(
    name: str,
    seconds: float,
    ended: float = 0.0,
    gpu_type: GpuTypeName | None = None,
    *,
    user: int = 1000,
    limit: float | None = None,
    cut_off: bool = False,
) -> RuntimeSample:
    return RuntimeSample(
        user_id=user,
        name=name,
        submitted_at_seconds=ended - seconds,
        limit_seconds=limit,
        cut_off=cut_off,
        ended_at_seconds=ended,
        run_seconds=seconds * 1.05,
        default_clock_seconds=seconds,
        gpu_count=1,
        gpu_type=gpu_type,
    )


def test_few_runs_give_a_wider_bound_than_many() -> None:
    few, many = (estimate(*(sample("a", 100.0, ended=float(n)) for n in range(number))) for number in (1, 20))
    assert few.seconds == many.seconds == pytest.approx(100.0)
    assert few.upper_seconds > many.upper_seconds > 100.0
    assert (few.runs, many.runs, few.source) == (1, 20, "history")


def test_estimates_are_of_the_default_clock_and_latest_names_come_first() -> None:
    samples = [sample("a", 140.0, ended=5.0), sample("a", 140.0, ended=1.0), sample("b", 10.0, ended=9.0)]
    table, _ = timed_names(samples, compare_by())
    assert [(name, round(run_time.estimate().seconds, 6)) for _, name, run_time in table] == [("b", 10.0), ("a", 140.0)]


def test_what_users_make_of_limits_stands_for_names_that_never_ran() -> None:
    samples = [sample(f"job{number}", 1800.0, limit=3600.0, user=1000 + number // 3) for number in range(6)]
    table, model = timed_names(samples, compare_by())
    known = {(user, name): run_time for user, name, run_time in table}
    assert {(1000, NEVER_RAN), (1001, NEVER_RAN), (ANY_USER, NEVER_RAN)} <= set(known)
    habits = expected_run_time(known[1000, NEVER_RAN], 7200.0)
    assert habits is not None and (round(habits.seconds, 6), habits.source) == (3600.0, "user")
    assert expected_run_time(known[1000, NEVER_RAN], None) is None
    corrected, _ = timed_names(samples[:1], compare_by(), model)
    assert [name for _, name, _ in corrected] == ["job0"]


def test_runs_that_were_cut_off_count_as_longer() -> None:
    whole = estimate(*(sample("a", seconds) for seconds in (90.0, 110.0)), sample("a", 100.0))
    cut = estimate(*(sample("a", seconds) for seconds in (90.0, 110.0)), sample("a", 100.0, cut_off=True))
    assert cut.seconds > whole.seconds


def test_the_table_travels_in_small_parts_and_an_empty_one_too() -> None:
    table, _ = timed_names([sample(f"job{number:04d}", 10.0) for number in range(MAX_ITEMS + 1)], compare_by())
    first, last = table_parts(RuntimePart, table)
    assert (len(first.estimates), first.first, first.last) == (MAX_ITEMS, True, False)
    assert (len(last.estimates), last.first, last.last) == (1, False, True)
    (empty,) = table_parts(RuntimePart, [])
    assert (empty.estimates, empty.first, empty.last) == ((), True, True)


def work(doubt: float) -> WorkEstimate:
    """Return work that takes twice as long on an A40."""
    return WorkEstimate(
        runs_by_type={A100: 2, A40: 2},
        gpu_types=(A100, A40),
        log_seconds=(0.0, log(2.0)),
        log_seconds_doubt=((0.0, doubt), (doubt, 0.0)),
        log_watts=(0.0, 0.0),
    )


def estimate(*samples: RuntimeSample, doubt: float | None = 0.0) -> RuntimeEstimate:
    table, _ = timed_names(samples, compare_by(None if doubt is None else work(doubt)))
    ((_, _, found),) = table
    return found.estimate()


def test_runs_on_one_type_speak_of_it() -> None:
    assert estimate(sample("a", 100.0, gpu_type=A40), doubt=None).gpu_type == A40
    assert estimate(sample("a", 100.0)).gpu_type is None


def test_runs_on_several_types_are_brought_to_the_one_that_most_were_on() -> None:
    mixed = [sample("a", 200.0, gpu_type=A40), *(sample("a", 100.0, gpu_type=A100) for _ in range(2))]
    found = estimate(*mixed)
    assert (found.gpu_type, round(found.seconds, 6)) == (A100, 100.0)
    assert found.upper_seconds == pytest.approx(estimate(*(sample("a", 100.0) for _ in range(3))).upper_seconds)


@pytest.mark.parametrize("doubt", [None, MAX_LOG_STD + 0.01], ids=["nothing known", "too much doubt"])
def test_without_runs_to_compare_by_the_worst_of_the_tables_counts(doubt: float | None) -> None:
    worst = relative_cost(A40, A100)
    assert worst is not None
    mixed = [*(sample("a", 200.0, gpu_type=A40) for _ in range(2)), sample("a", 100.0, gpu_type=A100)]
    found = estimate(*mixed, doubt=doubt)
    on_one = estimate(*(sample("a", seconds) for seconds in (200.0, 200.0, 100.0 * worst.worst_time_ratio)))
    assert found.gpu_type == A40
    assert found.upper_seconds == pytest.approx(on_one.upper_seconds)
    # The other way round tables never make a run shorter.
    mixed = [*(sample("a", 100.0, gpu_type=A100) for _ in range(2)), sample("a", 200.0, gpu_type=A40)]
    as_they_are = estimate(*(sample("a", seconds) for seconds in (100.0, 100.0, 200.0)))
    assert estimate(*mixed, doubt=doubt).upper_seconds == pytest.approx(as_they_are.upper_seconds)


def test_a_run_of_unknown_type_leaves_the_estimate_without_one() -> None:
    found = estimate(sample("a", 200.0, gpu_type=A40), sample("a", 100.0))
    assert (found.gpu_type, round(found.seconds, 6)) == (None, 100.0)
