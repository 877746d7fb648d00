import pytest
from energy_records import NO_READING, make_report

from slurm_energy.cli.billing import billing_weights, with_gpu_weight
from slurm_energy.domain.report import EnergyReport, EnergySum, EnergyUse, GroupEnergyRecord


def partition(name: str, watts: float | None, hours: float) -> GroupEnergyRecord:
    seconds = hours * 3600.0
    joules = None if watts is None else watts * seconds
    return GroupEnergyRecord(
        group=name, jobs=1, jobs_without_energy=0, gpu=EnergySum(joules=joules, readings=1), host=NO_READING,
        use=EnergyUse(covered_gpu_seconds=seconds),
    )  # fmt: skip


def report(*groups: GroupEnergyRecord) -> EnergyReport:
    return make_report(kind="partition", groups=groups)


def test_weights_are_in_the_ratio_of_measured_powers() -> None:
    weights, left_out = billing_weights(report(partition("a100", 250.0, 100.0), partition("a40", 125.0, 20.0)))
    assert [(one.partition, one.weight, one.mean_watts) for one in weights] == [
        ("a100", 2.0, 250.0),
        ("a40", 1.0, 125.0),
    ]
    assert left_out == []


def test_a_partition_of_which_too_little_is_known_gets_no_weight_and_moves_no_other() -> None:
    weights, left_out = billing_weights(
        report(partition("a100", 250.0, 100.0), partition("a2", 10.0, 9.9), partition("cpu", None, 0.0))
    )
    assert [(one.partition, one.weight) for one in weights] == [("a100", 1.0)]
    assert left_out == ["a2", "cpu"]


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ("", "GRES/gpu=2"),
        ("(null)", "GRES/gpu=2"),
        ("CPU=1.0,Mem=0.25G,GRES/gpu=4", "CPU=1.0,Mem=0.25G,GRES/gpu=2"),
        ("gres/gpu:a100=3,CPU=1", "CPU=1,GRES/gpu=2"),
    ],
)
def test_other_weights_of_a_partition_stay(present: str, wanted: str) -> None:
    assert with_gpu_weight(present, 2.0) == wanted
