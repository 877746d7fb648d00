import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.prepare import describe, recall
from slurm_energy.lab.spec import LabSpec, PartitionSpec, parse_partition


def test_default_lab_is_three_partitions_of_ten_nodes_with_56_gpus() -> None:
    spec = LabSpec()

    assert [partition.name for partition in spec.partitions] == ["a100", "a40", "v100"]
    assert len(spec.node_names) == 10
    assert sum(partition.nodes * partition.gpus_per_node for partition in spec.partitions) == 56


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a100:4x4", PartitionSpec(name="a100", nodes=4, gpus_per_node=4)),
        ("fast:1x8:h100", PartitionSpec(name="fast", nodes=1, gpus_per_node=8, gpu_type="h100")),
    ],
)
def test_partition_text_gives_the_partition(text: str, expected: PartitionSpec) -> None:
    assert parse_partition(text) == expected


@pytest.mark.parametrize("text", ["", "a100", "a100:4", "a100:0x4", "a100:4x17", "a100:65x1", "A;rm:1x1", "a:1x1:B C"])
def test_partition_text_outside_its_bounds_is_refused_with_the_value(text: str) -> None:
    with pytest.raises(LabError):
        parse_partition(text)


@pytest.mark.parametrize("name", ["", "Lab", "-lab", "a/b", "a b", "x" * 32, "lab\n"])
def test_lab_name_that_is_no_plain_word_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="lab name"):
        LabSpec(name=name)


def test_partition_named_twice_is_refused() -> None:
    twice = (PartitionSpec(name="a", nodes=1, gpus_per_node=1), PartitionSpec(name="a", nodes=2, gpus_per_node=1))

    with pytest.raises(LabError, match="each name once"):
        LabSpec(partitions=twice)


@pytest.mark.parametrize("line", ["KillWait", "KillWait=3\nProlog=/bin/rm"])
def test_slurm_conf_line_that_is_not_one_setting_is_refused(line: str) -> None:
    with pytest.raises(LabError, match="not one Key=value"):
        LabSpec(slurm_conf_lines=(line,))


def test_repairs_without_a_pause_are_refused() -> None:
    with pytest.raises(LabError, match="one second is the least"):
        LabSpec(repair_seconds=0)


def test_unknown_node_is_refused_with_the_known_ones() -> None:
    spec = LabSpec(partitions=(PartitionSpec(name="a40", nodes=2, gpus_per_node=1),))

    assert spec.partition_of("a40-2").name == "a40"
    with pytest.raises(LabError, match="a40-1, a40-2"):
        spec.partition_of("a40-3")


def test_specification_survives_its_description(tmp_path: object) -> None:
    spec = LabSpec(
        name="x-1",
        accounting=True,
        time_scale=10.0,
        repair_seconds=7,
        settings={"policy": {"name": "oracle"}},
        slurm_conf_lines=("KillWait=9",),
        keep=True,
    )

    assert recall(describe(spec)) == spec


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"partitions": 3}'])
def test_description_that_is_damaged_is_a_lab_error(text: str) -> None:
    with pytest.raises(LabError, match="description"):
        recall(text)
