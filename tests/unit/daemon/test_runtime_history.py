import pytest

from slurm_energy.daemon.frames import MAX_ITEMS
from slurm_energy.daemon.runtime_history import runtime_estimate, runtime_estimates, runtime_parts
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.store.history import RuntimeSample


def sample(name: str, seconds: float, ended: float = 0.0) -> RuntimeSample:
    return RuntimeSample(
        user_id=1000,
        name=name,
        ended_at_seconds=ended,
        run_seconds=seconds * 1.05,
        default_clock_seconds=seconds,
        gpu_count=1,
    )


@pytest.mark.parametrize(
    ("runs", "middle", "upper"),
    [([100.0], 100.0, 200.0), ([100.0, 120.0], 110.0, 180.0), ([100.0] * 18 + [150.0], 100.0, 150.0)],
)
def test_few_runs_give_a_wider_bound_than_many(runs: list[float], middle: float, upper: float) -> None:
    assert runtime_estimate(runs) == RuntimeEstimate(seconds=middle, upper_seconds=upper, source="history")


def test_estimates_are_of_the_default_clock_and_latest_names_come_first() -> None:
    samples = [sample("a", 100.0, ended=5.0), sample("a", 140.0, ended=1.0), sample("b", 10.0, ended=9.0)]
    assert [(name, estimate.seconds) for _, name, estimate in runtime_estimates(samples)] == [("b", 10.0), ("a", 120.0)]


def test_the_table_travels_in_small_parts_and_an_empty_one_too() -> None:
    table = runtime_estimates([sample(f"job{number:04d}", 10.0) for number in range(MAX_ITEMS + 1)])
    first, last = runtime_parts(table)
    assert (len(first.estimates), first.first, first.last) == (MAX_ITEMS, True, False)
    assert (len(last.estimates), last.first, last.last) == (1, False, True)
    (empty,) = runtime_parts([])
    assert (empty.estimates, empty.first, empty.last) == ((), True, True)
