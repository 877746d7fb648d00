from collections.abc import Callable
from math import log

import pytest

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, RuntimePart, table_parts
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.estimation.job_history import CompareTypes, runtime_estimate, runtime_estimates
from slurm_energy.policy.site.comparison import MAX_LOG_STD, TypeComparison
from slurm_energy.store.past_runs import RuntimeSample

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")


def compare_by(work: WorkEstimate | None = None) -> Callable[[int, str], CompareTypes]:
    return lambda _user_id, _name: TypeComparison(limits=CATALOGUE_LIMITS, work=work).cost


def sample(name: str, seconds: float, ended: float = 0.0, gpu_type: GpuTypeName | None = None) -> RuntimeSample:
    return RuntimeSample(
        user_id=1000,
        name=name,
        ended_at_seconds=ended,
        run_seconds=seconds * 1.05,
        default_clock_seconds=seconds,
        gpu_count=1,
        gpu_type=gpu_type,
    )


@pytest.mark.parametrize(
    ("runs", "middle", "upper"),
    [([100.0], 100.0, 200.0), ([100.0, 120.0], 110.0, 180.0), ([100.0] * 18 + [150.0], 100.0, 150.0)],
)
def test_few_runs_give_a_wider_bound_than_many(runs: list[float], middle: float, upper: float) -> None:
    assert runtime_estimate(runs) == RuntimeEstimate(seconds=middle, upper_seconds=upper, source="history")


def test_estimates_are_of_the_default_clock_and_latest_names_come_first() -> None:
    samples = [sample("a", 100.0, ended=5.0), sample("a", 140.0, ended=1.0), sample("b", 10.0, ended=9.0)]
    assert [(name, estimate.seconds) for _, name, estimate in runtime_estimates(samples, compare_by())] == [
        ("b", 10.0),
        ("a", 120.0),
    ]


def test_the_table_travels_in_small_parts_and_an_empty_one_too() -> None:
    table = runtime_estimates([sample(f"job{number:04d}", 10.0) for number in range(MAX_ITEMS + 1)], compare_by())
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
    ((_, _, found),) = runtime_estimates(samples, compare_by(None if doubt is None else work(doubt)))
    return found


def test_runs_on_one_type_speak_of_it() -> None:
    assert estimate(sample("a", 100.0, gpu_type=A40), doubt=None).gpu_type == A40
    assert estimate(sample("a", 100.0)).gpu_type is None


def test_runs_on_several_types_are_brought_to_the_one_that_most_were_on() -> None:
    mixed = [sample("a", 200.0, gpu_type=A40), *(sample("a", 100.0, gpu_type=A100) for _ in range(2))]
    found = estimate(*mixed)
    assert (found.gpu_type, found.seconds) == (A100, 100.0)
    assert found.upper_seconds == pytest.approx(100.0 * (1.0 + 1.0 / 3.0))


@pytest.mark.parametrize("doubt", [None, MAX_LOG_STD + 0.01], ids=["nothing known", "too much doubt"])
def test_without_runs_to_compare_by_the_worst_of_the_tables_counts(doubt: float | None) -> None:
    worst = relative_cost(A40, A100)
    assert worst is not None
    mixed = [*(sample("a", 200.0, gpu_type=A40) for _ in range(2)), sample("a", 100.0, gpu_type=A100)]
    found = estimate(*mixed, doubt=doubt)
    assert found.gpu_type == A40
    assert found.upper_seconds == pytest.approx(100.0 * worst.worst_time_ratio * (1.0 + 1.0 / 3.0))
    # The other way round tables never make a run shorter.
    mixed = [*(sample("a", 100.0, gpu_type=A100) for _ in range(2)), sample("a", 200.0, gpu_type=A40)]
    assert estimate(*mixed, doubt=doubt).upper_seconds == pytest.approx(200.0 * (1.0 + 1.0 / 3.0))


def test_a_run_of_unknown_type_leaves_the_estimate_without_one() -> None:
    found = estimate(sample("a", 200.0, gpu_type=A40), sample("a", 100.0))
    assert (found.gpu_type, found.seconds) == (None, 150.0)
