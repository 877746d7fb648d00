from dataclasses import replace
from math import exp, inf, nan
from typing import Any

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import MeasuredRun, WorkEstimate
from slurm_energy.errors import ValueRangeError

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")
RUN = MeasuredRun(user=1000, name="train", gpu_type=A100, gpus=2, seconds=60.0, watts=300.0, ended_at_seconds=0.0)
WORK = WorkEstimate(
    runs_by_type={A100: 3},
    gpu_types=(A100, A40),
    log_seconds=(1.0, 2.0),
    log_seconds_doubt=((0.0, 0.2), (0.2, 0.0)),
    log_watts=(5.5, 5.0),
)


@pytest.mark.parametrize("changes", [{"gpus": 0}, {"seconds": 0.0}, {"seconds": nan}, {"watts": inf}, {"watts": -1.0}])
def test_a_run_that_cannot_be_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueRangeError, match="measured run of 'train'"):
        replace(RUN, **changes)


def test_ratios_are_between_types() -> None:
    assert WORK.time_ratio(A40, A100) == pytest.approx(exp(1.0))
    assert WORK.time_ratio(A100, A40) == pytest.approx(exp(-1.0))
    assert WORK.watts_ratio(A40, A100) == pytest.approx(exp(-0.5))
    assert WORK.doubt(A40, A100) == 0.2
    assert WORK.watts(A100) == pytest.approx(exp(5.5))


def test_another_number_of_gpus_adds_to_the_doubt_between_types_only() -> None:
    wider = WORK.for_gpus(4)
    assert wider.doubt(A40, A100) == pytest.approx((0.2**2 + 0.15**2) ** 0.5)
    assert wider.doubt(A40, A40) == 0.0
    assert WORK.for_gpus(1) is WORK


def test_a_type_that_is_not_known_is_none() -> None:
    assert WORK.doubt(GpuTypeName("t4"), A100) is None
    assert WORK.doubt(A100, GpuTypeName("t4")) is None
    assert WORK.watts(GpuTypeName("t4")) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"log_seconds": (1.0,)},
        {"log_watts": (1.0, 2.0, 3.0)},
        {"log_seconds_doubt": ((0.0, 0.2),)},
        {"log_seconds_doubt": ((0.0,), (0.2, 0.0))},
        {"gpu_types": (A100, A100)},
        {"log_seconds": (1.0, nan)},
        {"log_watts": (1.0, inf)},
        {"log_seconds": (1.0, 1e6)},
    ],
    ids=str,
)
def test_an_estimate_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueRangeError, match="work estimate"):
        replace(WORK, **changes)
