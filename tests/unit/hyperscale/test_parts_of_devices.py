"""Parts for devices: in proportion to their speed, and with fewer halo rows than a random one."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from slurm_energy.errors import ConfigError, DataFileError
from slurm_energy.hyperscale.graph import TrainingGraph
from slurm_energy.hyperscale.ingestion import read_graph
from slurm_energy.hyperscale.partitioning import partition
from slurm_energy.hyperscale.parts import Device

DEVICES = tuple(
    Device(name=str(speed), speed_edges_per_second=float(speed), memory_bytes=1 << 30) for speed in (4, 2, 2)
)


def ring(vertices: int = 4000) -> TrainingGraph:
    drawn = torch.Generator().manual_seed(0)
    number = torch.randperm(vertices, generator=drawn)
    edges = torch.cat([torch.stack([number, number.roll(step)]) for step in (0, 1, 2)], dim=1)
    return TrainingGraph(data=Data(edge_index=edges, num_nodes=vertices), num_classes=2, source="a ring")


@pytest.mark.parametrize("method", ["metis", "independent-sets", "spectral", "random", None])
def test_parts_are_in_proportion_to_speed(method: str | None) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    graph = ring()
    found = partition(graph, DEVICES, method)
    shares = torch.bincount(found.part_of_vertex, minlength=3) / 4000
    assert shares.tolist() == pytest.approx([0.5, 0.25, 0.25], abs=0.03)
    source, target = found.part_of_vertex[graph.data.edge_index]
    cut = float((source != target).float().mean())
    most = 0.1 if method == "spectral" else 0.02  # it refines nothing
    assert cut > 0.3 if method == "random" else cut < most


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="not one of metis, independent-sets, spectral, random"):
        partition(ring(9), DEVICES, "magic")


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    path.write_text("no arrays")
    with pytest.raises(DataFileError, match="not an npz file of plain arrays"):
        read_graph(path)
