from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from slurm_energy.device.base import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.node.allocation import Allocation, Numbering, find_gpus, read_node_gres
from slurm_energy.node.gres_conf import NodeGres, expand_hostlist, parse_gres_conf
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
    files: tuple[str, ...] = (),
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
    return find_gpus(hook, devices(minors, mig), NodeGres(gpu_files=files), numbering, mig_parent)


def uuids(allocation: Allocation) -> list[str]:
    return [gpu.uuid for gpu in allocation.gpus]


def test_minor_number_is_billed_to_the_gpu_that_has_it() -> None:
    files = tuple(f"/dev/nvidia{number}" for number in range(4))
    assert uuids(find("0", minors=(3, 2, 1, 0), files=files)) == ["GPU-3"]


def test_position_is_not_the_minor_number() -> None:
    files = tuple(f"/dev/nvidia{number}" for number in range(4, 8))
    assert uuids(find("0", minors=(4, 5, 6, 7), files=files)) == ["GPU-0"]


def test_two_jobs_that_each_see_device_zero_get_different_gpus() -> None:
    assert uuids(find("0", visible="0")) != uuids(find("1", visible="0"))


def test_prolog_without_cuda_visible_devices_uses_slurms_numbers() -> None:
    assert uuids(find("1,2")) == ["GPU-1", "GPU-2"]


def test_detected_gpus_are_positions_in_ascending_minor_order() -> None:
    assert uuids(find("0,3", minors=(6, 4, 7, 5))) == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(("numbering", "expected"), [("index", "GPU-1"), ("minor", "GPU-2")])
def test_site_can_say_what_the_numbers_mean(numbering: Numbering, expected: str) -> None:
    assert uuids(find("1", minors=(3, 2, 1, 0), numbering=numbering)) == [expected]


@pytest.mark.parametrize("numbering", ["auto", "index", "minor", "gres-conf"])
def test_number_of_no_gpu_is_named_and_never_guessed(numbering: Numbering) -> None:
    allocation = find("9", numbering=numbering)
    assert allocation.gpus == () and "9" in allocation.problems[0]


def test_mig_identifier_leads_to_its_board_as_a_slice() -> None:
    allocation = find(None, mig={1}, parent="GPU-1", visible="MIG-aaaa")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}


def test_two_slices_of_one_board_are_one_gpu() -> None:
    allocation = find("1", mig={1}, parent="GPU-1", visible="MIG-aaaa,MIG-bbbb")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}


def test_of_two_devices_asked_for_the_one_visible_slice_counts_with_a_note() -> None:
    allocation = find("0,1", mig={1}, parent="GPU-1", visible="MIG-aaaa")
    assert uuids(allocation) == ["GPU-1"] and allocation.mig == {"GPU-1"}
    assert "names 2 devices, CUDA_VISIBLE_DEVICES 1 with MIG" in allocation.problems[0]


@pytest.mark.parametrize("visible", ["MIG-aaaa", "2,MIG-aaaa", "GPU-0", "0"])
def test_numbers_stay_when_what_is_visible_tells_nothing_else(visible: str) -> None:
    parent = None if visible == "MIG-aaaa" else "GPU-1"  # a slice that nobody finds hides no GPU
    assert uuids(find("0,1", mig={1}, parent=parent, visible=visible)) == ["GPU-0", "GPU-1"]


def test_unknown_mig_identifier_is_named() -> None:
    allocation = find(None, visible="MIG-aaaa")
    assert allocation.gpus == () and "MIG-aaaa" in allocation.problems[0]


def test_gpu_identifiers_alone_are_enough() -> None:
    assert uuids(find(None, visible="GPU-2,GPU-0")) == ["GPU-2", "GPU-0"]


GRES = r"""
# site
AutoDetect=off
NodeName=n[1-2],x7 Name=gpu Type=a100 File=/dev/nvidia[0-1] # first pair
nodename=n1 NAME=gpu type=a100 \
   file=/dev/nvidia7,/dev/nvidia5
NodeName=n[01-03] Name=gpu File=/dev/nvidia9
Name=nic File=/dev/nvidia3
NodeName=n2 Name=shard Count=8
NodeName=m1 Name=gpu MultipleFiles=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap21
garbage == = [[[
"""


def test_gres_conf_lists_this_nodes_files_in_order() -> None:
    assert parse_gres_conf(GRES, "n1").gpu_files == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia7", "/dev/nvidia5")
    assert parse_gres_conf(GRES, "x7").gpu_files == ("/dev/nvidia0", "/dev/nvidia1")
    assert parse_gres_conf(GRES, "n02").gpu_files == ("/dev/nvidia9",)
    assert parse_gres_conf(GRES, "m1").gpu_files == ("/dev/nvidia3",)
    assert parse_gres_conf(GRES, "other") == NodeGres()


def test_gres_conf_tells_whether_gpus_are_shared() -> None:
    assert parse_gres_conf(GRES, "n2").shares_gpus
    assert not parse_gres_conf(GRES, "n1").shares_gpus


def test_line_without_a_node_is_for_every_node() -> None:
    assert parse_gres_conf("Name=gpu File=/dev/nvidia[0-3]", "any").minor_of_position(3) == 3


def test_position_beyond_the_list_has_no_minor() -> None:
    gres = NodeGres(gpu_files=("/dev/nvidia4", "/dev/dri/renderD"))
    assert (gres.minor_of_position(0), gres.minor_of_position(1), gres.minor_of_position(2)) == (4, None, None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("n[1", ["n1"]),
        ("", []),
        ("n[9-1]", []),
    ],
)
def test_hostlist(text: str, names: list[str]) -> None:
    assert list(expand_hostlist(text)) == names


def test_enormous_range_ends(tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text("NodeName=n[0-999999999] Name=gpu File=/dev/nvidia[0-999999999]\n")
    assert len(read_node_gres(str(tmp_path / "slurm.conf"), "n5").gpu_files) == 4096


def test_missing_gres_conf_says_nothing(tmp_path: Path) -> None:
    assert read_node_gres(str(tmp_path / "slurm.conf"), "n1") == NodeGres()
