from pathlib import Path

import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.node.slurm_gpus import configured_gpus, node_gres, parse_gres_conf, parse_slurmd
from slurm_energy.slurm.conf_file import logical_lines

GRES = r"""
# site
AutoDetect=off
NodeName=n[1-2],x7 Name=gpu Type=a100 File=/dev/nvidia[0-1] # first pair
nodename=n1 NAME=gpu type=a100 \
   file=/dev/nvidia7,/dev/nvidia5
NodeName=n[01-03] Name = gpu File=/dev/nvidia9
Name=nic File=/dev/nvidia3
NodeName=n2 Name=shard Count=8
NodeName=m1 Name=gpu MultipleFiles=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap21
"""


def write(folder: Path, gres_conf: str | None, gres: str = "gpu:4", node: str = "n1") -> Path:
    conf = folder / "slurm.conf"
    conf.write_text(f"ClusterName=x\nNodeName={node} CPUs=8 Gres={gres} State=UNKNOWN\nPartitionName=p Nodes=ALL\n")
    if gres_conf is not None:
        (folder / "gres.conf").write_text(gres_conf)
    return conf


def files(folder: Path, gres_conf: str, gres: str = "gpu:4") -> tuple[str, ...] | None:
    gpus = configured_gpus(write(folder, gres_conf, gres), "n1").gpus
    return None if gpus is None else tuple(gpu.device_file.removeprefix("/dev/nvidia") for gpu in gpus)


def test_lines_of_this_node_are_read_in_order() -> None:
    def of(node: str) -> list[str]:
        return [file for record in parse_gres_conf(list(logical_lines(GRES)), node).records for file in record.files]

    assert of("n1") == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia7", "/dev/nvidia5"]
    assert of("x7") == ["/dev/nvidia0", "/dev/nvidia1"]
    assert of("n02") == ["/dev/nvidia9"]
    assert of("m1") == ["/dev/nvidia3"]
    assert "no GPU of node other" in parse_gres_conf(list(logical_lines(GRES)), "other").problem


def test_gres_conf_tells_whether_gpus_are_shared() -> None:
    assert parse_gres_conf(list(logical_lines(GRES)), "n2").shares_gpus
    assert not parse_gres_conf(list(logical_lines(GRES)), "n1").shares_gpus


def test_types_come_in_the_order_of_slurm_conf(tmp_path: Path) -> None:
    text = "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1]\nNodeName=n1 Name=gpu Type=a40 File=/dev/nvidia[2-3]\n"
    assert files(tmp_path, text, "gpu:a40:2,gpu:a100:2") == ("2", "3", "0", "1")
    assert files(tmp_path, text, "gpu:a100:2,gpu:a40:2") == ("0", "1", "2", "3")


def test_lines_that_begin_with_name_come_before_those_of_the_node(tmp_path: Path) -> None:
    text = "NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia[2-3]\n"
    assert files(tmp_path, text) == ("2", "3", "0", "1")


def test_type_of_digits_is_a_type(tmp_path: Path) -> None:
    text = "Name=gpu Type=3090 File=/dev/nvidia[2-3]\nName=gpu Type=4090 File=/dev/nvidia[0-1]\n"
    assert files(tmp_path, text, "gpu:4090:2,gpu:3090:no_consume:2(S:0-1)") == ("0", "1", "2", "3")


def test_more_files_than_slurm_conf_counts_are_left_out(tmp_path: Path) -> None:
    assert files(tmp_path, "Name=gpu File=/dev/nvidia[0-3]\n", "gpu:3") == ("0", "1", "2")


def test_included_lines_stand_where_their_include_does(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("NodeName=n1 Name=gpu Type=a40 File=/dev/nvidia3\n")
    text = "Include more.conf\nNodeName=n1 Name = gpu Type = a40 File = /dev/nvidia2\n"
    assert files(tmp_path, text, "gpu:a40:2") == ("3", "2")
    found = configured_gpus(tmp_path / "slurm.conf", "n1")
    assert tmp_path / "more.conf" in found.files


def test_slices_are_counted_by_their_board(tmp_path: Path) -> None:
    text = "Name=gpu Type=1g MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap[1-2]\n" * 2
    gpus = configured_gpus(write(tmp_path, text, "gpu:1g:2"), "n1").gpus
    assert gpus is not None and [(gpu.device_file, gpu.is_slice) for gpu in gpus] == [("/dev/nvidia1", True)] * 2


BOARD_LAST = "/dev/nvidia-caps/nvidia-cap[1-2],/dev/nvidia1"
TWO_BOARDS = "/dev/nvidia0,/dev/nvidia1"


def test_the_board_of_a_slice_is_found_wherever_it_stands_among_its_files(tmp_path: Path) -> None:
    stated = configured_gpus(write(tmp_path, f"Name=gpu Type=1g MultipleFiles={BOARD_LAST}\n", "gpu:1g:1"), "n1").gpus
    counted = parse_slurmd(f"slurmd: Gres Name=gpu Type=1g Count=1 Index=0 ID=7696487 File={BOARD_LAST} (null)\n").gpus
    for gpus in (stated, counted):
        assert gpus is not None and [(gpu.device_file, gpu.is_slice) for gpu in gpus] == [("/dev/nvidia1", True)]


def test_one_device_of_several_boards_is_no_known_gpu(tmp_path: Path) -> None:
    found = configured_gpus(write(tmp_path, f"Name=gpu MultipleFiles={TWO_BOARDS}\n", "gpu:1"), "n1")
    assert found.gpus is None and "several GPUs, /dev/nvidia0, /dev/nvidia1" in found.problem
    with pytest.raises(ValueRangeError, match="several GPUs"):
        parse_slurmd(f"slurmd: Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File={TWO_BOARDS} (null)\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AutoDetect=nvml\n", "AutoDetect=nvml"),
        ("AutoDetect=off\nNodeName=n1 AutoDetect=nvidia\n", "AutoDetect=nvidia"),
        ("Name=gpu Count=4\n", "without File="),
        ("Name=gpu File=/dev/nvidia[0-3]\ngarbage == = [[[\n", "not understood"),
        ("NodeName=n2 Name=gpu File=/dev/nvidia0\n", "no GPU of node n1"),
        ("Name=gpu File=/dev/nvidia0\nInclude gone.conf\n", "cannot be read"),
        (None, "does not exist"),
    ],
)
def test_order_that_the_files_do_not_state_is_none(tmp_path: Path, text: str | None, reason: str) -> None:
    found = configured_gpus(write(tmp_path, text), "n1")
    assert found.gpus is None and reason in found.problem


def test_detection_for_another_node_is_not_this_nodes(tmp_path: Path) -> None:
    text = "NodeName=n9 AutoDetect=nvml\nNodeName=n1 Name=gpu File=/dev/nvidia[0-3]\n"
    assert files(tmp_path, text) == ("0", "1", "2", "3")


def test_gpus_that_slurmd_reads_from_a_list_are_not_stated(tmp_path: Path) -> None:
    (tmp_path / "fake_gpus.conf").write_text("a100|8|0-7|-1|/dev/nvidia0\n")
    assert files(tmp_path, "Name=gpu File=/dev/nvidia0\n") is None


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        (["NodeName=n[1-2] Gres=gpu:a100:2,shard:8"], (("a100", 2),)),
        (["NodeName=DEFAULT Gres=gpu:2", "NodeName=n1 CPUs=4"], ((None, 2),)),
        (["NodeName=n1 Gres=gpu"], ((None, 1),)),
        (["NodeName=n1 CPUs=1", "NodeName=n1 Gres=gpu:2"], None),
        (["NodeName=n2 Gres=gpu:2"], None),
    ],
)
def test_gres_of_a_node_in_slurm_conf(lines: list[str], counts: object) -> None:
    assert node_gres(lines, "n1") == counts


@pytest.mark.parametrize("files", ["/dev/nvidia[0-999999999]", "/dev/nvidia[0", "/dev/nvidia[a-b]"])
def test_list_that_is_endless_or_malformed_makes_the_order_unknown(tmp_path: Path, files: str) -> None:
    found = configured_gpus(write(tmp_path, f"Name=gpu File={files}\n"), "n1")
    assert found.gpus is None and "not understood: node list" in found.problem
    assert tmp_path / "gres.conf" in found.files
