"""The doctor's word on the power limits of a node's boards."""

import pytest

from slurm_energy.cli.doctor.board_checks import Board, board_checks
from slurm_energy.cli.doctor.finding import Finding, Verdict
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName

A100 = "a100-sxm4-80gb"


def findings(
    *watts: float | None, gpu_type: str | None = A100, limits: dict[str, float] | None = None
) -> list[Finding]:
    name = None if gpu_type is None else GpuTypeName(gpu_type)
    boards = [Board(gpu_type=name, limit_watts=limit) for limit in watts]
    return list(board_checks(Config(gpu_power_limits_watts=limits or {}), boards))


@pytest.mark.parametrize(
    ("watts", "limits"), [(400.0, {}), (405.0, {}), (500.0, {"a100": 500.0}), (500.0, {A100: 500.0})]
)
def test_boards_as_the_configuration_or_the_catalogue_says_are_in_order(watts: float, limits: dict[str, float]) -> None:
    assert [finding.verdict for finding in findings(watts, watts, limits=limits)] == [Verdict.OK]


def test_board_above_the_assumed_limit_is_a_fault_with_the_line_that_mends_it() -> None:
    (finding,) = findings(400.0, 500.0)
    assert finding.verdict is Verdict.FAIL
    assert "500 W, clocks are chosen for 400 W: the default clock stays" in finding.found
    assert f'"{A100}" = 500 under [gpu_power_limits_watts]' in finding.fix


def test_board_below_the_assumed_limit_is_a_warning() -> None:
    (finding,) = findings(400.0, limits={"a100": 500.0})
    assert finding.verdict is Verdict.WARN
    assert f'"{A100}" = 400' in finding.fix and "unless other boards of this type have 500 W" in finding.fix


def test_boards_that_do_not_tell_are_skipped() -> None:
    assert [finding.verdict for finding in findings(None, None)] == [Verdict.SKIP]


@pytest.mark.parametrize("gpu_type", [None, "h100-sxm5-80gb"])
def test_types_without_chosen_clocks_are_not_mentioned(gpu_type: str | None) -> None:
    assert findings(123.0, gpu_type=gpu_type) == []


def test_limits_for_gpus_that_nobody_knows_are_a_fault() -> None:
    (finding,) = findings(400.0, limits={"nonesuch": 400.0})
    assert finding.verdict is Verdict.FAIL
    assert "nonesuch" in finding.found and finding.fix
