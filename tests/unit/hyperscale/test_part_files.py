"""A graph by parts on disk: what a rank reads is what was written, and bad input says what is wrong."""

from pathlib import Path

import pytest
import torch
from part_cases import parts_file, small_graph
from safetensors import safe_open
from safetensors.torch import save_file

from slurm_energy.errors import DataFileError
from slurm_energy.hyperscale.part_files import read_holding, read_sizes, write_parts


def test_parts_together_are_the_graph(tmp_path: Path) -> None:
    graph = small_graph()
    path = parts_file(tmp_path, graph, 4)
    sizes = read_sizes(path)
    with safe_open(path, "pt") as file:
        order = file.get_tensor("order")
    assert sizes.num_parts == 4
    assert sum(sizes.edges_of(part) for part in range(4)) == graph["edge_index"].shape[1]
    edges = []
    for part in range(4):
        held = read_holding(path, sizes, (part,))
        torch.testing.assert_close(held.features, graph["x"][order[held.vertices]])
        assert torch.equal(held.labels, graph["y"][order[held.vertices]])
        assert torch.equal(held.masks["val_mask"], graph["val_mask"][order[held.vertices]])
        edges += order[held.edge_index].T.tolist()
    assert sorted(edges) == sorted(graph["edge_index"].T.tolist())


def test_several_parts_are_read_as_one_in_any_order_of_asking(tmp_path: Path) -> None:
    path = parts_file(tmp_path, small_graph(), 4)
    sizes = read_sizes(path)
    both = read_holding(path, sizes, (3, 1))
    assert both.parts == (1, 3)
    assert torch.equal(both.vertices, torch.sort(both.vertices).values)
    assert len(both.vertices) == sum(len(read_holding(path, sizes, (part,)).vertices) for part in (1, 3))
    assert len(read_holding(path, sizes, ()).vertices) == 0


@pytest.mark.parametrize("parts", [(4,), (-1,), (1, 1)])
def test_parts_that_do_not_exist_are_refused(tmp_path: Path, parts: tuple[int, ...]) -> None:
    path = parts_file(tmp_path, small_graph(), 4)
    with pytest.raises(DataFileError, match="has parts 0 to 3, each is held once"):
        read_holding(path, read_sizes(path), parts)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x", torch.empty(0, 7), "without vertices"),
        ("x", torch.full((60, 7), float("nan")), "not finite"),
        ("y", torch.zeros(59, dtype=torch.int64), "`y` must have one value for each of 60 vertices"),
        ("y", torch.full((60,), 3), "labels of training vertices must be 0 to 2"),
        ("edge_index", torch.tensor([[0], [60]]), "the graph has vertices 0 to 59"),
        ("edge_index", torch.tensor([[-1], [0]]), "the graph has vertices 0 to 59"),
        ("train_mask", torch.zeros(60, dtype=torch.bool), "no vertex is in train_mask"),
    ],
)
def test_a_graph_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, name: str, value: torch.Tensor, words: str
) -> None:
    graph = {**small_graph(), name: value}
    with pytest.raises(DataFileError, match=words):
        write_parts(tmp_path / "parts", graph, torch.zeros(60, dtype=torch.int64), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    other, text, damaged = tmp_path / "other", tmp_path / "text", tmp_path / "damaged"
    save_file({"x": torch.zeros(2)}, other)
    text.write_text("no tensors")
    whole = parts_file(tmp_path, small_graph(), 2).read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFileError, match="is not a file of parts"):
        read_sizes(other)
    for path in (text, damaged, tmp_path / "missing"):
        with pytest.raises(DataFileError, match="parts cannot be read"):
            read_sizes(path)


@pytest.mark.parametrize("offsets", ["[0, 70]", "[0, 50, 40]", "[1, 2]", "{}", '["a"]', "[0"])
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, offsets: str) -> None:
    path = parts_file(tmp_path, small_graph(), 2)
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={**header, "vertex_offsets": offsets})
    with pytest.raises(DataFileError, match=str(path)):
        read_sizes(path)
