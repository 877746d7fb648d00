import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.relative_speed import relative_cost, relative_speed

A100, A40, V100 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40"), GpuTypeName("v100-sxm2-16gb")


def test_a40_against_a100_comes_from_the_same_measured_workloads() -> None:
    cost = relative_cost(A40, A100)
    assert cost is not None
    assert cost.source == "measured"
    assert 2.2 < cost.time_ratio < 2.8
    assert 2.5 < cost.worst_time_ratio < 3.2
    assert 1.4 < cost.energy_ratio < 1.9


def test_v100_is_compared_by_specification_and_marked_so() -> None:
    cost = relative_cost(V100, A100)
    assert cost is not None
    assert cost.source == "specification"
    assert cost.time_ratio <= cost.worst_time_ratio


def test_every_type_of_the_catalogue_can_be_compared_with_every_other() -> None:
    for one in CATALOG:
        for other in CATALOG:
            cost = relative_cost(one, other)
            assert cost is not None, (one, other)
            assert 0.0 < cost.time_ratio <= cost.worst_time_ratio * (1.0 + 1e-9)


def test_h100_is_faster_than_a100_by_every_figure_of_the_sheets() -> None:
    cost = relative_cost(GpuTypeName("h100-sxm5-80gb"), A100)
    assert cost is not None
    assert cost.source == "specification"
    assert cost.worst_time_ratio == pytest.approx(2040 / 3360)


def test_double_precision_counts_in_the_worst_time_of_a_type_that_hardly_has_any() -> None:
    cost = relative_cost(GpuTypeName("l40s"), V100)
    assert cost is not None
    assert cost.time_ratio < 1.0
    assert cost.worst_time_ratio == pytest.approx(7.834 / 1.431, rel=1e-3)


@pytest.mark.parametrize(("one", "other"), [(A100, A40), (A100, V100), (A40, V100)])
def test_exchange_of_the_two_types_inverts_time_and_energy(one: GpuTypeName, other: GpuTypeName) -> None:
    there, back = relative_cost(one, other), relative_cost(other, one)
    assert there is not None and back is not None
    assert there.time_ratio * back.time_ratio == pytest.approx(1.0)
    assert there.energy_ratio * back.energy_ratio == pytest.approx(1.0)
    assert there.worst_time_ratio * back.worst_time_ratio >= 1.0


def test_board_that_its_limit_holds_back_is_less_far_ahead() -> None:
    free = relative_cost(A40, A100, BoardLimits(site_watts={A100: 500.0}))
    held = relative_cost(A40, A100, BoardLimits(site_watts={A100: 400.0}))
    assert free is not None and held is not None
    assert held == relative_cost(A40, A100)
    assert held.time_ratio < free.time_ratio
    assert held.energy_ratio > free.energy_ratio


def test_type_against_itself_is_one() -> None:
    assert relative_speed(A40, A40) == 1.0


@pytest.mark.parametrize("name", ["mi300x", "gpu"])
def test_type_that_cannot_be_compared_is_none(name: str) -> None:
    assert relative_cost(GpuTypeName(name), A100) is None
    assert relative_speed(A100, GpuTypeName(name)) is None
