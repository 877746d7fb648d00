"""A small graph in parts, trained by ranks in processes of their own."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from daemon_support import free_port
from torch import Tensor

from slurm_energy.hyperscale.part_files import write_parts
from slurm_energy.hyperscale.training import TrainSettings

WORKER = """
import json, os, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.hyperscale.lost_ranks import RankPresence
from slurm_energy.hyperscale.training import TrainedRun, TrainSettings, train
from slurm_energy.rendezvous import process_group, rendezvous
torch.set_num_threads(1)
place = rendezvous(os.environ)

def ended(case, store):
    epochs = []
    def on_epoch(report):
        epochs.append(report)
        if case.get("dies") == [place.number, report.epoch]:
            os._exit(3)
        if case.get("raises") == [place.number, report.epoch]:
            raise MemoryError
    def reallocate(report, now):
        return tuple(case["moves"][1]) if case.get("moves") and report.epoch == case["moves"][0] else None
    folder = Path(case["folder"])
    run = TrainedRun(parts_file=Path(case["parts"]), folder=folder, presence=RankPresence(place, store),
        rank_of_part=tuple(case["rank_of_part"]), on_epoch=on_epoch, reallocate=reallocate,
        resumes=case.get("resumes", False), should_stop=lambda: len(epochs) + 1 == case.get("stops"))
    end = train(TrainSettings(**case["settings"]), run)
    if place.number == 0:
        save_file(dict(end.weights), folder / f"weights-{case['name']}.safetensors")
    return {"epochs": end.epochs, "complete": end.is_complete, "accuracy": dict(end.accuracy),
        "losses": [one.loss for one in epochs], "sent": [one.sent_bytes for one in epochs]}

with process_group(place, wait_seconds=100.0) as store:
    try:
        print(json.dumps([ended(case, store) for case in json.loads(sys.argv[1])]))
    except SlurmEnergyError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
"""


def small_graph(vertices: int = 90, classes: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Return a graph with loops, double edges and vertices without an edge; features tell the class."""
    made = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (vertices,), generator=made)
    x = torch.randn(vertices, 7, generator=made) + 1.5 * torch.nn.functional.one_hot(y, 7)
    edges = torch.randint(vertices - 5, (2, 6 * vertices), generator=made)
    edges = torch.cat([edges, edges.flip(0)[:, : 5 * vertices], torch.tensor([[0, 3, 3], [0, 4, 4]])], dim=1)
    draw = torch.rand(vertices, generator=made)
    masks = {"train_mask": draw < 0.5, "val_mask": (draw >= 0.5) & (draw < 0.7), "test_mask": draw >= 0.7}
    return {"x": x, "y": y, "edge_index": edges, **masks}


def written(folder: Path, graph: dict[str, Tensor], num_parts: int, seed: int = 2) -> tuple[Path, Tensor]:
    """Write a graph with a random part for each vertex; return the file and the parts."""
    made = torch.Generator().manual_seed(seed)
    parts = torch.randint(num_parts, (len(graph["x"]),), generator=made)
    path = folder / "parts.safetensors"
    write_parts(path, graph, parts, int(graph["y"].max()) + 1)
    return path, parts


def case(
    parts: Path, rank_of_part: list[int], settings: TrainSettings, name: str = "one", **more: object
) -> dict[str, object]:
    """Return one training, which writes into the folder of its parts."""
    given = {"parts": str(parts), "folder": str(parts.parent), "rank_of_part": rank_of_part}
    return {**given, "settings": asdict(settings), "name": name, **more}


def run_ranks(count: int, *cases: dict[str, object]) -> list[subprocess.CompletedProcess[str]]:
    """Train one case after the other on some ranks, and return how each rank ended."""
    base = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(cases)],
            env={**base, "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    ends = []
    try:
        for process in running:
            out, err = process.communicate(timeout=250.0)
            ends.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return ends
