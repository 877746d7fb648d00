from collections.abc import Sequence

import pytest
from node_bench import order_of

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.node.allocation import MappedGpu, device_minor, gpu_mapping
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu


def devices(minors: Sequence[int | None]) -> list[GpuIdentity]:
    return [
        GpuIdentity(
            index=index,
            uuid=GpuUuid(f"GPU-{index}"),
            name="NVIDIA H200",
            minor_number=minor,
            gpu_type=None,
            pci_bus_id=f"00000000:{index:02X}:00.0",
        )
        for index, minor in enumerate(minors)
    ]


def minor_of(path: str) -> int | None:
    number = path.removeprefix("/dev/nvidia")
    return int(number) if number.isdecimal() else None


def test_each_position_has_file_minor_index_uuid_and_bus() -> None:
    order = GpuOrder(gpus=(SlurmGpu(gpu_type="h200", device_file="/dev/nvidia1"),), ways=("slurmd -G",))
    mapping = gpu_mapping(devices([1, 0]), order, "auto", minor_of)
    first, second = mapping.gpus
    assert first == MappedGpu(
        position=0,
        slurm_type="h200",
        device_file="/dev/nvidia1",
        minor_number=1,
        index=0,
        uuid=GpuUuid("GPU-0"),
        pci_bus_id="00000000:00:00.0",
        name="NVIDIA H200",
        ways=("slurmd -G",),
    )
    assert first.proven
    assert (second.position, second.uuid, second.proven) == (None, "GPU-1", False)
    assert mapping.positions == {0: first} and not mapping.problem


def test_minors_that_run_against_the_index_are_followed() -> None:
    mapping = gpu_mapping(devices(range(7, -1, -1)), order_of(7, 6, 5, 4, 3, 2, 1, 0), "auto", minor_of)
    assert [(gpu.position, gpu.minor_number, gpu.index) for gpu in mapping.gpus] == [
        (number, 7 - number, number) for number in range(8)
    ]
    assert all(gpu.proven for gpu in mapping.gpus)


def test_minors_that_another_boot_gave_out_lead_to_the_gpus_that_have_them_now() -> None:
    order = order_of(0, 1)
    before, after = (gpu_mapping(devices(minors), order, "auto", minor_of) for minors in ([0, 1], [1, 0]))
    assert [gpu.uuid for gpu in before.gpus] == ["GPU-0", "GPU-1"]
    assert [gpu.uuid for gpu in after.gpus] == ["GPU-1", "GPU-0"]


def test_problem_of_the_order_proves_no_position() -> None:
    mapping = gpu_mapping(devices([0, 1]), order_of(0, 1, problem="changed"), "auto", minor_of)
    assert mapping.problem == "changed" and not any(gpu.proven for gpu in mapping.gpus)


@pytest.mark.parametrize("minors", [[None, None], [5, 6], [0, 0]])
def test_driver_that_does_not_show_the_minor_proves_nothing(minors: Sequence[int | None]) -> None:
    mapping = gpu_mapping(devices(minors), order_of(0), "auto", minor_of)
    assert not mapping.gpus[0].proven and "minor number 0 (/dev/nvidia0)" in mapping.gpus[0].problem


def test_file_that_does_not_tell_its_minor_proves_nothing() -> None:
    order = GpuOrder(gpus=(SlurmGpu(gpu_type=None, device_file="/dev/gpu-a"),), ways=("slurmd -G",))
    (first, *_) = gpu_mapping(devices([0]), order, "auto", minor_of).gpus
    assert not first.proven and first.problem == "/dev/gpu-a does not tell which GPU it is"


def test_site_that_trusts_its_files_is_taken_at_its_word() -> None:
    stated = order_of(1, 0).gpus
    silent = GpuOrder(problem="slurmd did not answer", stated=stated)
    mapping = gpu_mapping(devices([0, 1]), silent, "gres-conf", minor_of)
    assert [gpu.uuid for gpu in mapping.gpus if gpu.proven] == ["GPU-1", "GPU-0"]
    assert mapping.gpus[0].ways == ("node.gpu_numbering = 'gres-conf'",)
    contradicted = GpuOrder(problem="they differ", ways=("slurmd -G",), gpus=order_of(0, 1).gpus, stated=stated)
    assert gpu_mapping(devices([0, 1]), contradicted, "gres-conf", minor_of).problem == "they differ"
    assert "do not state" in gpu_mapping(devices([0, 1]), GpuOrder(problem="x"), "gres-conf", minor_of).problem


@pytest.mark.parametrize("path", ["/dev/null0", "/etc/passwd", "/dev/null", "/nowhere/nvidia0"])
def test_file_that_is_no_gpus_tells_no_minor(path: str) -> None:
    assert device_minor(path) is None
