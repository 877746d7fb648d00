"""Graphs from files and databases: the same graph whatever the format, and an error that names what is wrong."""

import gzip
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured_data import MEASURED
from torch_geometric.data import Data

from slurm_energy.errors import DataFileError
from slurm_energy.hyperscale.graph import MASKS, TrainingGraph
from slurm_energy.hyperscale.ingestion import FORMATS, read_graph

PLANETOID = MEASURED / "planetoid_cora_citeseer"
NODES = "id,label,split,a,b\nx,1,train,1,3\ny,0,val,0,4\nz,1,test,2,\nw,0,train,0,0\n"
EDGES = [("x", "y"), ("y", "z"), ("z", "z"), ("x", "y"), ("w", "x")]
EXPECTED = {(0, 1), (1, 0), (1, 2), (2, 1), (3, 0), (0, 3)}


def pairs(graph: TrainingGraph) -> set[tuple[int, int]]:
    return {(int(one), int(two)) for one, two in graph.data.edge_index.t().tolist()}


def edge_list(folder: Path) -> Path:
    path = folder / "g.edges"
    path.write_text("# a comment\n" + "".join(f"{one} {two}\n" for one, two in EDGES))
    (folder / "g.nodes.csv").write_text(NODES)
    return path


def adjacency(folder: Path) -> Path:
    path = folder / "g.adj"
    path.write_text("x: y y\ny z\nz: z\nw: x\n")
    (folder / "g.nodes.csv").write_text(NODES)
    return path


def csv_folder(folder: Path) -> Path:
    (folder / "nodes.csv").write_text(NODES)
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{one},{two}\n" for one, two in EDGES))
    return folder


def database_export(folder: Path) -> Path:
    head = "paper:ID(Paper),class:LABEL,split,a:float,b:float"
    (folder / "nodes.csv").write_text(NODES.replace("id,label,split,a,b", head).replace("class:LABEL", ":LABEL"))
    rows = "".join(f"{one},{two},CITES\n" for one, two in EDGES)
    (folder / "relationships.csv").write_text(":START_ID(Paper),:END_ID(Paper),:TYPE\n" + rows)
    return folder


def graphml(folder: Path) -> Path:
    keys = "".join(f'<key id="k{name}" for="node" attr.name="{name}"/>' for name in ("label", "split", "a", "b"))
    nodes = ""
    for row in NODES.splitlines()[1:]:
        identity, *values = row.split(",")
        data = "".join(
            f'<data key="k{name}">{value}</data>'
            for name, value in zip(("label", "split", "a", "b"), values, strict=True)
            if value
        )
        nodes += f'<node id="{identity}">{data}</node>'
    edges = "".join(f'<edge source="{one}" target="{two}"/>' for one, two in EDGES)
    path = folder / "g.graphml"
    path.write_text(
        f'<?xml version="1.0"?><graphml>{keys}<graph edgedefault="undirected">{nodes}{edges}</graph></graphml>'
    )
    return path


def sql(folder: Path) -> Path:
    base = sqlite3.connect(folder / "g.db")
    base.execute("create table paper (id text, label int, split text, a float, b float)")
    base.execute("create table cites (one text, two text)")
    for row in NODES.splitlines()[1:]:
        base.execute("insert into paper values (?, ?, ?, ?, ?)", [value or None for value in row.split(",")])
    base.executemany("insert into cites values (?, ?)", EDGES)
    base.commit()
    path = folder / "g.toml"
    path.write_text(
        f'url = "sqlite:///{folder / "g.db"}"\nnodes = "select * from paper"\nedges = "select one, two from cites"\n'
    )
    return path


@pytest.mark.parametrize("make", [edge_list, adjacency, csv_folder, database_export, graphml, sql])
def test_the_same_graph_comes_from_every_format_of_text(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    found = read_graph(make(tmp_path))
    assert pairs(found) == EXPECTED
    assert found.data.y.tolist() == [1, 0, 1, 0]
    assert found.num_classes == 2
    assert [found.data[name].tolist().index(True) for name in MASKS] == [0, 1, 2]
    # The missing value is the mean of its column, then each row is divided by its sum.
    expected = torch.tensor([[1.0, 3.0], [0.0, 4.0], [2.0, 7.0 / 3.0], [0.0, 0.0]])
    sums = expected.sum(dim=1, keepdim=True).clamp(min=1e-9)
    assert torch.allclose(found.data.x, expected / sums, atol=1e-6)
    assert any("1 missing values" in note for note in found.notes)


def arrays(**changes: Any) -> dict[str, Any]:
    ring = np.arange(10)
    made = {
        "edge_index": np.stack([ring, (ring + 1) % 10]),
        "y": ring % 2,
        "x": np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32),
    }
    return {**made, **changes}


@pytest.mark.parametrize("kind", ["npz", "npy", "pyg", "ogb"])
def test_arrays_without_a_split_get_one_and_features_are_standardised(tmp_path: Path, kind: str) -> None:
    made = arrays()
    path = tmp_path / "g"
    path.mkdir()
    if kind == "npz":
        path = tmp_path / "g.npz"
        np.savez(path, **made)
    elif kind == "npy":
        for name, values in made.items():
            np.save(path / f"{name}.npy", values)
    elif kind == "pyg":
        path = tmp_path / "g.pt"
        torch.save(Data(**{name: torch.from_numpy(values) for name, values in made.items()}), path)
    else:
        (path / "raw").mkdir()
        tables = {
            "edge": made["edge_index"].T,
            "node-feat": made["x"],
            "node-label": made["y"].reshape(-1, 1),
            "num-node-list": np.array([[10]]),
        }
        for name, values in tables.items():
            with gzip.open(path / "raw" / f"{name}.csv.gz", "wt") as file:
                np.savetxt(file, values, delimiter=",", fmt="%.9g")
    found = read_graph(path)
    assert found.data.edge_index.shape == (2, 20)
    assert torch.allclose(found.data.x.mean(dim=0), torch.zeros(3), atol=1e-5)
    assert [int(found.data[name].sum()) for name in MASKS] == [6, 2, 2]


def test_published_arrays_and_raw_files_are_the_same_graph() -> None:
    plain, raw = read_graph(PLANETOID / "cora.npz"), read_graph(PLANETOID / "Cora")
    for found in (plain, raw):
        assert found.data.num_nodes == 2708 and found.num_classes == 7
        assert [int(found.data[name].sum()) for name in MASKS] == [140, 500, 1000]
    assert pairs(plain) == pairs(raw) and len(pairs(plain)) == 2 * 5278
    assert torch.equal(plain.data.y, raw.data.y)
    assert torch.allclose(plain.data.x, raw.data.x, atol=1e-6)
    citeseer = read_graph(PLANETOID / "citeseer.npz")
    assert citeseer.data.num_nodes == 3327 and citeseer.num_classes == 6


class Evil:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (print, ("run",))


@pytest.mark.parametrize("which", ["planetoid", "pyg", "npz"])
def test_nothing_in_a_file_is_run(tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]) -> None:
    if which == "planetoid":
        for name in ("x", "y", "tx", "ty", "allx", "ally", "graph"):
            (tmp_path / f"ind.a.{name}").write_bytes(pickle.dumps(Evil()))
        (tmp_path / "ind.a.test.index").write_text("1\n")
        path = tmp_path
    elif which == "pyg":
        path = tmp_path / "g.pt"
        torch.save(Evil(), path)
    else:
        path = tmp_path / "g.npz"
        np.savez(path, x=np.array([Evil()], dtype=object))
    with pytest.raises(DataFileError):
        read_graph(path)
    assert "run" not in capsys.readouterr().out


def test_entities_of_xml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.graphml"
    path.write_text('<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><graphml>&b;</graphml>')
    with pytest.raises(DataFileError, match="entities or a document type"):
        read_graph(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"edge_index": np.array([[0, 1], [1, 10]])}, "names vertex 10, there are 0 to 9"),
        ({"edge_index": np.array([[0, -1], [1, 2]])}, "names vertex -1"),
        ({"edge_index": np.zeros((2, 0), dtype=np.int64)}, "there is no edge"),
        ({"y": np.full(10, -1)}, "no vertex has a label"),
        ({"y": np.array([0.5] * 10)}, "not whole numbers"),
        ({"y": np.zeros((10, 3))}, "a vertex has 3 labels"),
        ({"y": np.zeros(0, dtype=np.int64)}, "0 vertices"),
        ({"x": np.zeros((9, 3), dtype=np.float32)}, "9 rows of features for 10 vertices"),
        ({"x": np.full((10, 3), np.inf, dtype=np.float32)}, "feature 0 of vertex 0 is infinite"),
    ],
)
def test_arrays_that_are_no_graph_are_an_error(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, **arrays(**changes))
    with pytest.raises(DataFileError, match=said):
        read_graph(path)


def test_an_adjacency_matrix_must_be_square(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    sparse: dict[str, Any] = {
        "adj_data": np.ones(1),
        "adj_indices": np.zeros(1, dtype=int),
        "adj_indptr": np.array([0, 1, 1]),
    }
    np.savez(path, **sparse, adj_shape=np.array([2, 3]), labels=np.array([0, 1]))
    with pytest.raises(DataFileError, match="2 by 3, not square"):
        read_graph(path)


@pytest.mark.parametrize(
    ("edges", "nodes", "said"),
    [
        ("x q\n", NODES, "names vertex 'q', which has no row"),
        ("x y 1 2\n", NODES, "line 1"),
        ("x\n", NODES, "line 1"),
        ("", NODES, "there is no edge"),
        ("x y\n", "id,label\nx,0\nx,1\n", "stands in two rows"),
        ("x y\n", "id,label,a\nx,0,one\ny,1,2\n", "line 2: a is 'one'"),
        ("x y\n", "id,a\nx,0\ny,1\n", "none of the columns label"),
        ("x y\n", "id,label\nx,0,1\ny,1\n", "line 2 has 3 columns"),
        ("x y\n", "", "no line"),
    ],
)
def test_a_list_that_is_no_graph_is_an_error(tmp_path: Path, edges: str, nodes: str, said: str) -> None:
    path = tmp_path / "g.edges"
    path.write_text(edges)
    (tmp_path / "g.nodes.csv").write_text(nodes)
    with pytest.raises(DataFileError, match=said):
        read_graph(path)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_not_of_a_format_is_an_error_and_no_traceback(tmp_path: Path, name: str) -> None:
    garbage = tmp_path / "g.bin"
    garbage.write_bytes(bytes(range(256)) * 4)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (garbage, empty, tmp_path / "absent"):
        with pytest.raises(DataFileError):
            read_graph(path, name)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="format 'matlab' is not one of npz, npy, edges"):
        read_graph(tmp_path, "matlab")
