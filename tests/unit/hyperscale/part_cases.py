"""A small graph by parts in one process: rank 0 of one, and halves of a graph without a process group."""

from pathlib import Path

import torch
from torch import Tensor

from slurm_energy.hyperscale.part_files import write_parts


def small_graph(vertices: int = 60, classes: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Return a graph with loops, double edges and vertices without an edge."""
    made = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (vertices,), generator=made)
    x = torch.randn(vertices, 7, generator=made)
    edges = torch.randint(vertices - 5, (2, 5 * vertices), generator=made)
    edges = torch.cat([edges, torch.tensor([[0, 3, 3], [0, 4, 4]])], dim=1)
    draw = torch.rand(vertices, generator=made)
    masks = {"train_mask": draw < 0.5, "val_mask": (draw >= 0.5) & (draw < 0.7), "test_mask": draw >= 0.7}
    return {"x": x, "y": y, "edge_index": edges, **masks}


def parts_file(folder: Path, graph: dict[str, Tensor], num_parts: int) -> Path:
    """Write a graph with a random part for each vertex."""
    parts = torch.randint(num_parts, (len(graph["x"]),), generator=torch.Generator().manual_seed(2))
    path = folder / "parts.safetensors"
    write_parts(path, graph, parts, 3)
    return path
