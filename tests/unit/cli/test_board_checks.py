"""The doctor's word on a node's boards: which each of Slurm's GPUs is, and their power limits."""

import pytest

from slurm_energy.cli.doctor.finding import Finding, Verdict
from slurm_energy.cli.doctor.gpu_checks import Board, board_checks, mapping_checks
from slurm_energy.config import Config
from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.node.allocation import gpu_mapping
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu

A100 = "a100-sxm4-80gb"


def findings(
    *watts: float | None, gpu_type: str | None = A100, limits: dict[str, float] | None = None
) -> list[Finding]:
    name = None if gpu_type is None else GpuTypeName(gpu_type)
    boards = [Board(gpu_type=name, limit_watts=limit) for limit in watts]
    return list(board_checks(Config(gpu_power_limits_watts=limits or {}), {"": boards}))


def test_on_the_controller_the_nodes_are_named_whose_boards_keep_their_default_clock() -> None:
    boards = {
        name: [Board(gpu_type=GpuTypeName(A100), limit_watts=watts)] for name, watts in (("g1", 500.0), ("g2", 400.0))
    }
    (finding,) = board_checks(Config(), boards)
    assert finding.verdict is Verdict.FAIL
    assert "the default clock stays on g1" in finding.found and "g2" not in finding.found


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


def identity(order: tuple[int, ...], minors: tuple[int, ...], problem: str = "") -> list[Finding]:
    devices = [
        GpuIdentity(
            index=index,
            uuid=GpuUuid(f"GPU-{index}"),
            name="NVIDIA H200",
            minor_number=minor,
            gpu_type=None,
            pci_bus_id=f"00000000:0{index}:00.0",
        )
        for index, minor in enumerate(minors)
    ]
    gpus = tuple(SlurmGpu(gpu_type="h200", device_file=f"/dev/nvidia{minor}") for minor in order)
    told = GpuOrder(gpus=gpus, ways=("slurmd -G", "gres.conf"), problem=problem)
    return list(mapping_checks(gpu_mapping(devices, told, "auto", lambda path: int(path.removeprefix("/dev/nvidia")))))


def test_doctor_shows_which_gpu_each_of_slurms_numbers_is() -> None:
    (finding,) = identity((0, 1), (0, 1))
    assert finding.verdict is Verdict.OK
    assert finding.found == (
        "0 = h200: /dev/nvidia0, index 0, 00000000:00:00.0, GPU-0; "
        "1 = h200: /dev/nvidia1, index 1, 00000000:01:00.0, GPU-1 (by slurmd -G and gres.conf)"
    )


def test_doctor_finds_minor_numbers_that_are_not_the_drivers_order() -> None:
    shown, moved = identity((7, 6), (7, 6))
    assert shown.found.startswith("0 = h200: /dev/nvidia7, index 0")
    assert moved.verdict is Verdict.WARN and "/dev/nvidia7 is the driver's index 0, and 2 GPUs are so" in moved.found


@pytest.mark.parametrize(
    ("order", "minors", "problem", "reason"),
    [
        ((0, 1), (0, 1), "restart slurmd: it started with others", "restart slurmd"),
        ((0, 1), (0,), "", "position 1: the driver shows no GPU with minor number 1"),
        ((), (0,), "", "Slurm counts no GPU here"),
    ],
)
def test_gpu_that_is_not_proven_is_a_fault(
    order: tuple[int, ...], minors: tuple[int, ...], problem: str, reason: str
) -> None:
    (finding,) = identity(order, minors, problem)
    assert finding.verdict is Verdict.FAIL and reason in finding.found and "no clock is set" in finding.found


def test_gpu_that_slurm_does_not_count_is_named() -> None:
    _, forgotten = identity((0,), (0, 1))
    assert forgotten.verdict is Verdict.WARN and "does not count 1 GPUs of this node: GPU-1" in forgotten.found
