from collections.abc import Collection, Sequence

import pytest
from node_bench import order_of

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.node.allocation import Allocation, Numbering, find_gpus, gpu_mapping
from slurm_energy.node.gpu_order import GpuOrder
from slurm_energy.slurm.hook_env import parse_hook_environment


def devices(minors: Sequence[int], mig: Collection[int]) -> list[GpuIdentity]:
    return [
        GpuIdentity(
            index=index,
            uuid=GpuUuid(f"GPU-{index}"),
            name="x",
            minor_number=minor,
            gpu_type=None,
            mig_enabled=index in mig,
        )
        for index, minor in enumerate(minors)
    ]


def find(
    gpus: str | None,
    *,
    minors: Sequence[int] = (0, 1, 2, 3),
    order: Sequence[int] | GpuOrder = (0, 1, 2, 3),
    numbering: Numbering = "auto",
    mig: Collection[int] = (),
    parent: str | None = None,
    visible: str = "",
) -> Allocation:
    environment = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": visible}
    if gpus is not None:
        environment["SLURM_JOB_GPUS"] = gpus

    def mig_parent(uuid: str) -> GpuUuid:
        if parent is None:
            raise DeviceError("unknown")
        return GpuUuid(parent)

    hook = parse_hook_environment(environment)
    known = devices(minors, mig)
    told = order if isinstance(order, GpuOrder) else order_of(*order)
    mapping = gpu_mapping(known, told, numbering, lambda path: int(path.removeprefix("/dev/nvidia")))
    return find_gpus(hook, known, mapping, mig_parent)


def uuids(allocation: Allocation) -> list[str]:
    return [gpu.uuid for gpu in allocation.gpus]


def test_minor_number_is_billed_to_the_gpu_that_has_it() -> None:
    assert uuids(find("0", minors=(3, 2, 1, 0))) == ["GPU-3"]


def test_position_is_not_the_minor_number() -> None:
    assert uuids(find("0", minors=(4, 5, 6, 7), order=(4, 5, 6, 7))) == ["GPU-0"]


def test_job_of_the_second_type_gets_the_gpu_that_slurmd_counts_there() -> None:
    # a40 on nvidia[2-3] comes first in Gres= of slurm.conf, whatever the order of lines in gres.conf
    assert uuids(find("0", order=(2, 3, 0, 1))) == ["GPU-2"]
    assert uuids(find("2", order=(2, 3, 0, 1))) == ["GPU-0"]


def test_gpus_that_slurmd_lists_against_their_minors_are_found_by_its_list() -> None:
    assert uuids(find("0,1", order=(3, 2, 1, 0))) == ["GPU-3", "GPU-2"]


def test_two_jobs_that_each_see_device_zero_get_different_gpus() -> None:
    assert uuids(find("0", visible="0")) != uuids(find("1", visible="0"))


def test_prolog_without_cuda_visible_devices_uses_slurms_numbers() -> None:
    assert uuids(find("1,2")) == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(("numbering", "expected"), [("index", "GPU-1"), ("minor", "GPU-2")])
def test_site_can_say_what_the_numbers_mean(numbering: Numbering, expected: str) -> None:
    silent = GpuOrder(problem="slurmd is not found")
    assert uuids(find("1", minors=(3, 2, 1, 0), order=silent, numbering=numbering)) == [expected]


def test_word_of_the_site_that_slurmd_contradicts_is_not_believed() -> None:
    allocation = find("1", minors=(3, 2, 1, 0), order=(3, 2, 1, 0), numbering="minor")
    assert allocation.gpus == () and "slurmd -G counts /dev/nvidia2" in allocation.unknown


@pytest.mark.parametrize("numbering", ["auto", "index", "minor", "gres-conf"])
def test_number_of_no_gpu_is_named_and_never_guessed(numbering: Numbering) -> None:
    allocation = find("9", numbering=numbering)
    assert allocation.gpus == () and allocation.unknown.startswith("gpu identity unknown: ")
    assert allocation.unknown_names == ("unknown-9",)


def test_nothing_is_found_while_the_order_is_not_known() -> None:
    allocation = find("0,2", order=GpuOrder(problem="slurmd did not answer"))
    assert allocation.gpus == () and allocation.unknown == "gpu identity unknown: slurmd did not answer"
    assert allocation.unknown_names == ("unknown-0", "unknown-2")


def test_gpu_that_the_driver_lost_is_never_replaced_by_another() -> None:
    allocation = find("1", minors=(0, 2, 3))
    assert allocation.gpus == () and "no GPU with minor number 1 (/dev/nvidia1)" in allocation.unknown


def test_two_devices_with_one_minor_number_prove_nothing() -> None:
    assert find("1", minors=(0, 1, 1, 3)).unknown


def test_identifiers_and_numbers_that_lead_to_different_gpus_prove_nothing() -> None:
    allocation = find("0", visible="GPU-2")
    assert allocation.gpus == () and "GPU-0, CUDA_VISIBLE_DEVICES to GPU-2" in allocation.unknown


def test_identifiers_and_numbers_that_agree_in_another_order_are_one_proof() -> None:
    assert set(uuids(find("0,1", visible="GPU-1,GPU-0"))) == {"GPU-0", "GPU-1"}


def test_identifiers_prove_where_the_order_is_not_known() -> None:
    allocation = find("0,1", order=GpuOrder(problem="slurmd did not answer"), visible="GPU-3,GPU-2")
    assert uuids(allocation) == ["GPU-3", "GPU-2"] and not allocation.unknown


def test_one_identifier_of_two_does_not_prove_the_other() -> None:
    allocation = find("0,1", order=GpuOrder(problem="slurmd did not answer"), visible="GPU-3")
    assert allocation.gpus == () and allocation.unknown


def test_mig_identifier_leads_to_its_board_as_a_slice() -> None:
    allocation = find(None, mig={1}, parent="GPU-1", visible="MIG-aaaa")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}


def test_two_slices_of_one_board_are_one_gpu() -> None:
    allocation = find("1,2", mig={1}, order=(0, 1, 1), parent="GPU-1", visible="MIG-aaaa,MIG-bbbb")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}


def test_slices_are_found_by_the_board_that_slurmd_counts_them_on() -> None:
    allocation = find("0,2", mig={1}, order=(1, 1, 0))
    assert uuids(allocation) == ["GPU-1", "GPU-0"] and allocation.mig == {"GPU-1"}


def test_of_two_devices_asked_for_the_one_visible_slice_counts_with_a_note() -> None:
    allocation = find("0,1", mig={1}, parent="GPU-1", visible="MIG-aaaa")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}
    assert "names 2 devices, CUDA_VISIBLE_DEVICES 1 with MIG" in allocation.problems[0]


@pytest.mark.parametrize("visible", ["MIG-aaaa", "1,MIG-aaaa", "GPU-0", "0"])
def test_numbers_stay_when_what_is_visible_tells_nothing_else(visible: str) -> None:
    parent = None if visible == "MIG-aaaa" else "GPU-1"  # a slice that nobody finds hides no GPU
    assert uuids(find("0,1", mig={1}, parent=parent, visible=visible)) == ["GPU-0", "GPU-1"]


def test_unknown_mig_identifier_is_named() -> None:
    allocation = find(None, visible="MIG-aaaa")
    assert allocation.gpus == () and "MIG-aaaa" in allocation.unknown
    assert allocation.unknown_names == ("unknown-MIG-aaaa",)


def test_gpu_identifiers_alone_are_enough() -> None:
    assert uuids(find(None, visible="GPU-2,GPU-0")) == ["GPU-2", "GPU-0"]
