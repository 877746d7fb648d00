"""Measure trainings over workers of unequal speed: each contribution alone and together, beside other set-ups.

Workers are processes, each under a quota of one CPU (cgroup). Set-ups run in turn, so that what else the machine does
meets all of them; ratios are of epochs in the same round.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pymetis
import torch
from torch import Tensor

from research.hyperscale.graphs import mesh, power_law
from slurm_energy.hyperscale.part_files import write_parts
from slurm_energy.hyperscale.training import TrainSettings

SPEEDS = (0.4, 0.2, 0.1)
"""Of one CPU, for each worker."""
CGROUP = Path("/sys/fs/cgroup/cpu")
GRAPHS: Mapping[str, Callable[[int], dict[str, Tensor]]] = {"power-law": power_law, "mesh": mesh}
LEARNED = ("exact", "whole")
SETTINGS = TrainSettings(num_layers=3, hidden_channels=64, dropout=0.0, evaluate_every=10_000, checkpoint_every=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """One way to train."""

    says: str
    parts: str
    """`random` or `metis`."""
    weighted: bool = False
    fused: bool = False
    stale: bool = False
    hoisted: bool = True
    """Whether the first layer's sums are made once, where sums are sparse products."""


TRADITIONAL = SetUp(says="traditional: random equal parts, all halos first, message passing", parts="random")
SET_UPS: Mapping[str, SetUp] = {
    "traditional": TRADITIONAL,
    "weights": SetUp(says="only: parts in proportion to speed", parts="random", weighted=True),
    "metis": SetUp(says="only: METIS, equal parts", parts="metis"),
    "stale": SetUp(says="only: halos an epoch stale", parts="random", stale=True),
    "sparse": SetUp(says="only: sums as sparse products, overlapped", parts="random", fused=True, hoisted=False),
    "fusion": SetUp(says="only: the same, and the first layer's sums made once", parts="random", fused=True),
    "pipe": SetUp(says="METIS weighted, stale smoothed halos", parts="metis", weighted=True, stale=True),
    "pipe-sparse": SetUp(
        says="METIS weighted, stale smoothed halos, sparse products",
        parts="metis",
        weighted=True,
        stale=True,
        fused=True,
        hoisted=False,
    ),
    "exact": SetUp(says="all but stale halos", parts="metis", weighted=True, fused=True),
    "whole": SetUp(says="all together", parts="metis", weighted=True, fused=True, stale=True),
}


def part_of_vertex(graph: Mapping[str, Tensor], set_up: SetUp) -> Tensor:
    """Return the part of every vertex."""
    count = len(graph["x"])
    shares = np.array(SPEEDS if set_up.weighted else (1.0,) * len(SPEEDS)) / sum(
        SPEEDS if set_up.weighted else (1.0,) * len(SPEEDS)
    )
    if set_up.parts == "random":
        return torch.from_numpy(np.random.default_rng(1).choice(len(SPEEDS), size=count, p=shares))
    edges = graph["edge_index"].numpy()
    order = np.argsort(edges[0], kind="stable")
    starts = np.searchsorted(edges[0][order], np.arange(count + 1))
    weights = (starts[1:] - starts[:-1] + 1).tolist()
    _, found = pymetis.part_graph(
        len(SPEEDS), xadj=starts, adjncy=edges[1][order], vweights=weights, tpwgts=shares.tolist(), recursive=False
    )
    return torch.tensor(found)


def case_of(name: str, parts: Path, epochs: int) -> dict[str, Any]:
    """Return what a worker takes."""
    one = SET_UPS[name]
    kept = 0.0 if one.hoisted and one.fused else 1e-9  # features that are left out, if ever so few, do not stay
    changed = {"epochs": epochs, "stale_halos": one.stale, "smoothing": 0.5, "input_dropout": kept}
    settings = {**asdict(SETTINGS), **changed}
    return {"name": name, "settings": settings, "unfused": not one.fused, "parts": str(parts)}


def trained(cases: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Train one case after the other; yield what the ranks say of each as soon as they do."""
    cgroup = CGROUP / f"hyperscale-{os.getpid()}"
    cgroup.mkdir(exist_ok=True)
    given = json.dumps({"speeds": SPEEDS, "cgroup": str(cgroup), "cases": list(cases)})
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(23_000 + os.getpid() % 5000)}
    base |= {"WORLD_SIZE": str(len(SPEEDS)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "research.hyperscale.worker", given]
    running = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(len(SPEEDS))
    ]
    try:
        for _ in cases:
            yield [json.loads(process.stdout.readline()) for process in running if process.stdout is not None]
    finally:
        for process in running:
            process.kill()
            process.wait()
        for rank in range(len(SPEEDS)):
            (cgroup / f"rank{rank}").rmdir()
        cgroup.rmdir()


def measure(kind: str, vertices: int, *, rounds: int, epochs: int, learned_epochs: int) -> Iterator[dict[str, Any]]:
    """Yield after each round what every set-up takes: seconds and CPU seconds of an epoch, bytes, memory, accuracy."""
    graph = GRAPHS[kind](vertices)
    shape = {"vertices": len(graph["x"]), "edges": graph["edge_index"].shape[1]}
    found: dict[str, dict[str, list[float]]] = {key: {} for key in SET_UPS}
    accuracy: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd() / "build") as folder:
        files: dict[tuple[str, bool], Path] = {}
        for one in SET_UPS.values():
            if (one.parts, one.weighted) not in files:
                path = Path(folder) / f"{one.parts}-{one.weighted}"
                write_parts(path, graph, part_of_vertex(graph, one), 8)
                files[one.parts, one.weighted] = path
        names = [*[name for _ in range(rounds) for name in SET_UPS], *LEARNED]
        lengths = [epochs] * (rounds * len(SET_UPS)) + [learned_epochs] * len(LEARNED)
        at = [files[SET_UPS[name].parts, SET_UPS[name].weighted] for name in names]
        cases = [case_of(*one) for one in zip(names, at, lengths, strict=True)]
        for number, ranks in enumerate(trained(cases), 1):
            name = ranks[0]["name"]
            if number > rounds * len(SET_UPS):
                accuracy[name] = ranks[0]["test"]
            else:
                figures = {
                    "seconds": median(ranks[0]["seconds"][1:]),
                    "cpu_seconds": sum(median(rank["cpu_seconds"][1:]) for rank in ranks),
                    "sent_bytes": ranks[0]["sent_bytes"][-1],
                    "memory_bytes": sum(rank["memory_bytes"] for rank in ranks),
                }
                for figure, value in figures.items():
                    found[name].setdefault(figure, []).append(value)
                print(kind, name, {figure: round(value, 3) for figure, value in figures.items()}, flush=True)
            if number % len(SET_UPS) == 0 or number == len(cases):
                yield {"shape": shape, "figures": found, "accuracy": accuracy, "learned_epochs": learned_epochs}


def tables(document: Mapping[str, Any]) -> str:
    """Return the page's part on training."""
    lines: list[str] = []
    for kind, graph in document.items():
        figures, shape = graph["figures"], graph["shape"]
        lines += [
            f"### A {kind} graph of {shape['vertices']:,} vertices and {shape['edges']:,} edges",
            "",
            "| set-up | s an epoch | faster than traditional | CPU s an epoch | MB sent | MB of the workers |",
            "|---|---|---|---|---|---|",
        ]
        for key, one in SET_UPS.items():
            own = figures[key]
            lines.append(
                f"| {one.says} | {median(own['seconds']):.2f} | {_ratio(figures, 'traditional', key)} | "
                f"{median(own['cpu_seconds']):.2f} | {median(own['sent_bytes']) / 1e6:.1f} | "
                f"{median(own['memory_bytes']) / 1e6:.0f} |"
            )
        if graph["accuracy"]:
            right = {name: f"{one:.1%}" for name, one in graph["accuracy"].items()}
            figures_of = f"{right['exact']} with exact halos, {right['whole']} with stale ones."
            lines += ["", f"Accuracy after {graph['learned_epochs']} epochs: {figures_of}"]
        lines += ["", "| all together against | times as fast | share of its memory |", "|---|---|---|"]
        for key in ("metis", "pipe", "pipe-sparse"):
            memory = median(figures["whole"]["memory_bytes"]) / median(figures[key]["memory_bytes"])
            lines.append(f"| {SET_UPS[key].says} | {_ratio(figures, key, 'whole')} | {memory:.2f} |")
        lines.append("")
    return "\n".join(lines)


def _ratio(figures: Mapping[str, Any], slow: str, fast: str) -> str:
    """Return how many times as fast: median of the rounds, and their range."""
    pairs = zip(figures[slow]["seconds"], figures[fast]["seconds"], strict=True)
    ratios: Sequence[float] = sorted(one / other for one, other in pairs)
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
