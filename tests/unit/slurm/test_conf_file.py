"""Slurm's files as its daemons read them, and what they call a host."""

from pathlib import Path

import pytest

from slurm_energy.slurm.conf_file import ConfFiles, own_node_name


def test_included_files_stand_in_place_of_their_line_and_may_be_named_by_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=Alps # ours\nInclude nodes-%c.conf\nPartitionName=p \\\n Nodes=n1\n"
    )
    (tmp_path / "nodes-alps.conf").write_text(f'# nothing\ninclude "{tmp_path}/more.conf"\n')
    (tmp_path / "more.conf").write_text("NodeName=n1\n")
    reading = ConfFiles(folder=tmp_path)
    lines = reading.lines(tmp_path / "slurm.conf")
    assert [line.split() for line in lines] == [["ClusterName=Alps"], ["NodeName=n1"], ["PartitionName=p", "Nodes=n1"]]
    assert [path.name for path in reading.files] == ["slurm.conf", "nodes-alps.conf", "more.conf"]


@pytest.mark.parametrize(
    ("lines", "host", "name"),
    [
        ("NodeName=gpu[01-04] CPUs=2", "gpu03.cluster.local", "gpu03"),
        ("NodeName=gpu[01-04] NodeHostname=rack[5-8]-ib", "rack7-ib", "gpu03"),
        ("NodeName=gpu01.cluster.local", "gpu01.cluster.local", "gpu01.cluster.local"),
        ("NodeName=a NodeHostName=rack1\nNodeName=b nodehostname=rack1", "rack1", "a"),
        ("NodeName=DEFAULT CPUs=2\nNodeName=gpu01 NodeAddr=rack1", "rack1", None),
        ("NodeName=gpu[01-02] NodeHostname=rack[1-3]", "rack1", None),
        ("NodeName=gpu[01", "gpu01", None),
        ("PartitionName=gpu01 Nodes=ALL", "gpu01", None),
    ],
)
def test_a_host_has_the_node_name_that_slurmd_finds_for_it(
    tmp_path: Path, lines: str, host: str, name: str | None
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{lines}\n")
    assert own_node_name(tmp_path / "slurm.conf", host) == name
