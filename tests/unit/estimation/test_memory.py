"""Which pairs fit in a GPU's memory, from those that ran and those that did not."""

import pytest
from measured_data import MEASURED

from research.estimates.data import read_tried_pairs
from research.estimates.tables import GAVEL_MEMORY_GIGABYTES
from slurm_energy.estimation.memory import MeasuredMemory, TriedTogether, fit_memory
from slurm_energy.estimation.rates import Work


@pytest.fixture(scope="module")
def tried() -> list[TriedTogether]:
    return [
        TriedTogether(
            works=pair.works,
            gpu_type=pair.gpu_type,
            gpu_memory_gigabytes=GAVEL_MEMORY_GIGABYTES[pair.gpu_type],
            fits=pair.fits,
        )
        for pair in read_tried_pairs(MEASURED)
    ]


def test_pairs_too_large_for_a_type_are_recognised_from_other_types(tried: list[TriedTogether]) -> None:
    model = fit_memory([one for one in tried if one.gpu_type != "p100"])
    asked = [one for one in tried if one.gpu_type == "p100"]
    too_large = [model.chance_to_fit(one.works, "p100", 16.0) < 0.5 for one in asked]
    assert sum(large for large, one in zip(too_large, asked, strict=True) if not one.fits) >= 6
    assert sum(large for large, one in zip(too_large, asked, strict=True) if one.fits) <= 5


def test_measured_memory_follows_the_batch_size() -> None:
    peaks = [MeasuredMemory(work=Work(f"t{n}", "transformer", n), gigabytes=0.9 + n / 8.0) for n in (16, 32, 128)]
    model = fit_memory([], peaks)
    found = model.memory(Work("new", "transformer", 64))
    assert found.middle == pytest.approx(8.9, rel=0.1)
    assert found.lower < 8.9 < found.upper


def test_an_outlier_among_readings_does_not_move_the_line_far() -> None:
    peaks = [MeasuredMemory(work=Work("t", "lm", 32), gigabytes=4.0) for _ in range(9)]
    model = fit_memory([], [*peaks, MeasuredMemory(work=Work("t", "lm", 32), gigabytes=400.0)])
    assert model.memory(Work("t", "lm", 32)).middle == pytest.approx(4.0, rel=0.15)


def test_nothing_known_is_a_wide_guess_and_no_error() -> None:
    model = fit_memory([], [MeasuredMemory(work=Work("", ""), gigabytes=float("nan"))])
    found = model.memory(Work("x" * 10_000, "", float("inf")))
    assert found.upper > 5.0 * found.lower
    assert 0.0 < model.chance_to_fit([Work("a"), Work("b")], "?", 16.0) < 1.0
    assert model.chance_to_fit([Work("a")], "?", float("nan")) == 0.5
