"""Graphs that are tables of text: edge and adjacency lists, CSV, exports of graph databases, GraphML, OGB, SQL."""

import csv
import gzip
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import DataFileError, StoreError
from slurm_energy.hyperscale.graph import MASKS, UNLABELLED, RawGraph, TrainingGraph, training_graph
from slurm_energy.hyperscale.ingestion.arrays import masks_of, whole_labels

MAX_LINE = 1_000_000
_SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
_ID = ("id", ":id", "_id", "node", "vertex")
_LABEL = ("label", "y", "class", ":label", "target_class")
_SPLIT = ("split", "set")
_FROM = ("source", "src", "from", ":start_id", "u")
_TO = ("target", "dst", "to", ":end_id", "v")
_MISSING = frozenset({"", "na", "nan", "null", "none", "?"})


def edges(path: Path) -> TrainingGraph:
    """Read an edge list; labels and features come from NAME.nodes.csv beside it."""
    pairs = _pairs(path)
    return _with_vertices(pairs, path.with_suffix(".nodes.csv"), path)


def _pairs(path: Path) -> list[tuple[str, str]]:
    found = []
    for number, line in _lines(path):
        words = re.split(r"[\s,;]+", line)
        if len(words) not in {2, 3}:
            raise DataFileError(f"{path} line {number}: {line[:60]!r} is not two vertices and at most a weight")
        found.append((words[0], words[1]))
    return found


def adjacency(path: Path) -> TrainingGraph:
    """Read an adjacency list, `VERTEX: NEIGHBOUR NEIGHBOUR`; labels and features as of an edge list."""
    pairs: list[tuple[str, str]] = []
    for number, line in _lines(path):
        vertex, colon, rest = line.partition(":")
        words = re.split(r"[\s,;]+", f"{vertex} {rest}".strip()) if colon else re.split(r"[\s,;]+", line)
        if not words[0]:
            raise DataFileError(f"{path} line {number}: {line[:60]!r} begins with no vertex")
        pairs.extend((words[0], word) for word in words[1:])
    return _with_vertices(pairs, path.with_suffix(".nodes.csv"), path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if len(line) > MAX_LINE:
                raise DataFileError(f"{path} line {number} is over {MAX_LINE} characters")
            text = line.strip()
            if text and text[0] not in "#%":
                yield number, text


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a text file, also a compressed one."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    else:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file


def csv_folder(path: Path) -> TrainingGraph:
    """Read a folder with nodes.csv and edges.csv, or the CSV export of a graph database (`:ID`, `:START_ID`)."""
    if not path.is_dir():
        raise DataFileError(f"{path}: CSV needs a folder with nodes.csv and edges.csv")
    nodes = _first(path, ("nodes.csv", "nodes.csv.gz", "vertices.csv"))
    edges = _first(path, ("edges.csv", "edges.csv.gz", "relationships.csv"))
    rows = _rows(edges)
    head = next(rows)
    source, target = _column(head, _FROM, edges), _column(head, _TO, edges)
    return _with_vertices([(row[source], row[target]) for row in rows], nodes, path)


def _first(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataFileError(f"{folder}: none of {', '.join(names)} is there")


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the head and then the rows of a CSV file, each as long as the head."""
    with _opened(path) as file:
        width = 0
        try:
            for number, row in enumerate(csv.reader(file), start=1):
                width = width or len(row)
                if row and len(row) != width:
                    raise DataFileError(f"{path} line {number} has {len(row)} columns, its head has {width}")
                if row:
                    yield row
        except csv.Error as error:
            raise DataFileError(f"{path}: not CSV: {error}") from error
    if not width:
        raise DataFileError(f"{path}: there is no line in it")


def _column(head: Sequence[str], names: Sequence[str], path: Path) -> int:
    """Return the column of one of the names; a graph database writes `name:TYPE`, `:ID(Space)`."""
    plain = [re.sub(r"\(.*\)", "", word).strip().lower() for word in head]
    for name in names:
        for at, word in enumerate(plain):
            if word == name or (name.startswith(":") and word.endswith(name)):
                return at
    raise DataFileError(f"{path}: none of the columns {', '.join(names)} is in its head {', '.join(head)[:120]}")


def _with_vertices(
    pairs: Iterable[tuple[str, str]], nodes: Path, path: Path, *, directed: bool = False
) -> TrainingGraph:
    """Return the graph of named vertices whose labels, split and features are a CSV file's."""
    if not nodes.is_file():
        raise DataFileError(f"{path}: labels and features are expected in {nodes}, which is not there")
    rows = _rows(nodes)
    return _of_rows(pairs, next(rows), list(rows), path, nodes, directed=directed)


def _of_rows(
    pairs: Iterable[tuple[str, str]],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    path: Path,
    nodes: Path,
    *,
    directed: bool,
) -> TrainingGraph:
    identity, label = _column(head, _ID, nodes), _column(head, _LABEL, nodes)
    split = next((at for at, word in enumerate(head) if word.strip().lower() in _SPLIT), None)
    others = [at for at in range(len(head)) if at not in {identity, label, split}]
    numbers = {row[identity]: at for at, row in enumerate(rows)}
    if len(numbers) != len(rows):
        raise DataFileError(f"{nodes}: a vertex stands in two rows")
    edges = [(_number(one, numbers, path), _number(two, numbers, path)) for one, two in pairs]
    classes: dict[str, int] = {}
    words = [row[label].strip() for row in rows]
    whole = all(word.isdigit() for word in words if word.lower() not in _MISSING)
    for word in sorted({word for word in words if word.lower() not in _MISSING}, key=int if whole else str):
        classes[word] = len(classes)
    labels = np.array([classes.get(word, UNLABELLED) for word in words], dtype=np.int64)
    masks = None
    if split is not None:
        sets = np.array([_SPLITS.get(row[split].strip().lower(), UNLABELLED) for row in rows])
        masks = {name: sets == at for at, name in enumerate(MASKS)}
    features = np.full((len(rows), len(others)), np.nan, dtype=np.float32)
    for at, row in enumerate(rows):
        for column, place in enumerate(others):
            text = row[place].strip()
            if text.lower() not in _MISSING:
                try:
                    features[at, column] = float(text)
                except ValueError:
                    raise DataFileError(
                        f"{nodes} line {at + 2}: {head[place]} is {text[:40]!r}, a number is needed"
                    ) from None
    raw = RawGraph(
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        num_vertices=len(rows),
        features=features if others else None,
        labels=labels,
        masks=masks,
    )
    return training_graph(raw, str(path), directed=directed)


def _number(name: str, numbers: dict[str, int], path: Path) -> int:
    try:
        return numbers[name]
    except KeyError:
        raise DataFileError(f"{path}: an edge names vertex {name[:60]!r}, which has no row") from None


def graphml(path: Path) -> TrainingGraph:
    """Read GraphML: attributes of nodes mean what columns of nodes.csv mean."""
    keys: dict[str, str] = {}
    rows: dict[str, dict[str, str]] = {}
    pairs: list[tuple[str, str]] = []
    at: list[str] = []
    state = {"node": "", "key": "", "text": ""}

    def start(tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        at.append(name)
        if name == "key" and attributes.get("for") in {"node", "all", None}:
            keys[attributes["id"]] = attributes.get("attr.name", attributes["id"])
        elif name == "node":
            state["node"] = attributes["id"]
            rows[attributes["id"]] = {}
        elif name == "edge":
            pairs.append((attributes["source"], attributes["target"]))
        elif name == "data":
            state.update(key=attributes.get("key", ""), text="")

    def text(found: str) -> None:
        if at and at[-1] == "data" and len(state["text"]) < MAX_LINE:
            state["text"] += found

    def end(_tag: str) -> None:
        if at.pop() == "data" and at and at[-1] == "node" and state["key"] in keys:
            rows[state["node"]][keys[state["key"]]] = state["text"]

    def refuse(*_given: object) -> None:
        raise DataFileError(f"{path}: declares entities or a document type, which no graph needs")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (expat.ExpatError, KeyError) as error:
        raise DataFileError(f"{path}: not GraphML: {error}") from error
    head = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = [[identity, *(row.get(name, "") for name in head)] for identity, row in rows.items()]
    return _of_rows(pairs, ["id", *head], table, path, path, directed=False)


def ogb(path: Path) -> TrainingGraph:
    """Read the folder of an OGB set of one graph: raw/edge.csv.gz, node-feat, node-label, and split/*."""
    raw = path / "raw"
    counts = _table(raw / "num-node-list.csv.gz")
    if len(counts) != 1:
        raise DataFileError(f"{path}: it holds {len(counts)} graphs; one graph with labelled vertices is needed")
    count = int(counts[0, 0])
    splits = sorted((path / "split").glob("*/train.csv.gz"))
    masks = None
    if splits:
        indices = [_table(splits[0].parent / f"{name}.csv.gz").reshape(-1) for name in ("train", "valid", "test")]
        masks = masks_of(count, indices, path)
    features = raw / "node-feat.csv.gz"
    found = RawGraph(
        edges=_table(raw / "edge.csv.gz").astype(np.int64).T,
        num_vertices=count,
        features=_table(features).astype(np.float32) if features.is_file() else None,
        labels=whole_labels(_table(raw / "node-label.csv.gz"), path),
        masks=masks,
    )
    return training_graph(found, str(path))


def _table(path: Path) -> NDArray[np.float64]:
    """Return a CSV file of numbers without a head; an empty or missing word is NaN."""
    rows = [[np.nan if word.strip().lower() in _MISSING else _float(word, path) for word in row] for row in _rows(path)]
    return np.array(rows, dtype=np.float64)


def _float(word: str, path: Path) -> float:
    try:
        return float(word)
    except ValueError:
        raise DataFileError(f"{path}: {word[:40]!r} is not a number") from None


def description(path: Path) -> TrainingGraph:
    """Read what a TOML file names: `edges` and `nodes` as CSV files beside it, or queries of a database at `url`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataFileError(f"{path}: not TOML: {error}") from error
    unknown = set(table) - {"url", "nodes", "edges", "directed"}
    if unknown or not all(isinstance(table.get(name), str) for name in ("nodes", "edges")):
        raise DataFileError(f"{path}: nodes and edges are needed, url and directed are allowed, it has {sorted(table)}")
    directed = table.get("directed") is True
    if "url" in table:
        return _sql(path, str(table["url"]), table["nodes"], table["edges"], directed=directed)
    rows = _rows(path.parent / table["edges"])
    head = next(rows)
    source, target = _column(head, _FROM, path), _column(head, _TO, path)
    pairs = [(row[source], row[target]) for row in rows]
    return _with_vertices(pairs, path.parent / table["nodes"], path, directed=directed)


def _sql(path: Path, url: str, nodes: str, edges: str, *, directed: bool) -> TrainingGraph:
    from slurm_energy.store.session import query_results  # noqa: PLC0415  # SQL only where it is needed

    try:
        (head, vertices), (ends, lines) = query_results(url, (nodes, edges))
    except StoreError as error:
        raise DataFileError(f"{path}: the database gave no graph: {error}") from error
    if len(ends) < 2:
        raise DataFileError(f"{path}: the query of edges gives {len(ends)} column, 2 are needed")
    rows = [[_text(value) for value in row] for row in vertices]
    pairs = [(_text(row[0]), _text(row[1])) for row in lines]
    return _of_rows(pairs, head, rows, path, path, directed=directed)


def _text(value: object) -> str:
    return "" if value is None else str(value)
