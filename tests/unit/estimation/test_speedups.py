"""Speed-ups over numbers of GPUs of applications that were not shown."""

import pytest
from measured_data import MEASURED

from research.estimates.data import read_elasticflow, read_pollux
from slurm_energy.estimation.rates import Work
from slurm_energy.estimation.scaling import GpuLayout, MeasuredSpeedup, fit_scaling_model


@pytest.fixture(scope="module")
def measured() -> list[MeasuredSpeedup]:
    return [*read_elasticflow(MEASURED), *read_pollux(MEASURED, batches=2)]


def test_one_measured_count_tells_the_others_of_an_application_never_seen(measured: list[MeasuredSpeedup]) -> None:
    mine = [row for row in measured if row.work.family == "vgg16"]
    model = fit_scaling_model([row for row in measured if row.work.family != "vgg16"])
    model = model.refined([row for row in mine if row.spread.gpus == 4])
    errors, inside = [], 0
    asked = [row for row in mine if row.spread.gpus != 4]
    for row in asked:
        (found,) = model.speedups(row.work, [row.spread])
        errors.append(abs(found.middle / row.speedup - 1.0))
        inside += 0.97 * found.lower <= row.speedup <= 1.03 * found.upper
    assert sum(errors) / len(errors) < 0.12
    assert inside >= 0.85 * len(asked)


def test_one_gpu_is_one_and_doubt_falls_with_measurements(measured: list[MeasuredSpeedup]) -> None:
    model = fit_scaling_model(measured)
    new, spreads = Work("new", "new", 64), [GpuLayout(count, total_batch_fixed=True) for count in (1, 2, 8, 64)]
    before = model.speedups(new, spreads)
    after = model.refined([MeasuredSpeedup(work=new, spread=spreads[1], speedup=1.8)]).speedups(new, spreads)
    assert before[0].lower == before[0].middle == before[0].upper == 1.0
    assert after[1].middle == pytest.approx(1.8, rel=0.1)
    for one, two in zip(before[1:], after[1:], strict=True):
        assert two.upper - two.lower < one.upper - one.lower
        assert two.lower <= two.middle <= two.upper <= two.gpus


def test_impossible_counts_and_speedups_are_borne() -> None:
    bad = [MeasuredSpeedup(work=Work(""), spread=GpuLayout(8), speedup=speedup) for speedup in (0.0, float("nan"), 1e9)]
    model = fit_scaling_model(bad)
    found = model.speedups(Work("x" * 10_000), [GpuLayout(-1), GpuLayout(0), GpuLayout(10**9, 10**6)])
    assert [one.middle for one in found[:2]] == [1.0, 1.0]
    assert 0.0 < found[2].lower <= found[2].upper
    assert fit_scaling_model([]).speedups(Work(""), []) == []
