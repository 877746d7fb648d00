"""One rank of measured trainings, on a quota of the CPU: `python -m research.hyperscale.worker CASES`.

The traditional set-up is here as well: torch_geometric's own message passing over own and halo vertices, after all halo
rows have arrived, in every layer.
"""

import ctypes
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from slurm_energy.hyperscale.halo import Weights, post, wait
from slurm_energy.hyperscale.layers import LAYERS, LayerInput
from slurm_energy.hyperscale.lost_ranks import RankPresence
from slurm_energy.hyperscale.training import EpochReport, TrainedRun, TrainSettings, train
from slurm_energy.rendezvous import process_group, rendezvous

PERIOD_MICROSECONDS = 20_000
_lists: dict[int, tuple[Tensor, Tensor]] = {}


def message_passing(conv: Any, values: Tensor, given: LayerInput) -> Tensor:
    """Return GCN's layer as torch_geometric computes it, on rows that have all arrived."""
    rows = wait(post(values, given.channel), given.channel)
    edges, weight = _edge_list(given)
    mapped = conv.lin(torch.cat([values, rows]))
    sums: Tensor = conv.propagate(edges, x=mapped, edge_weight=weight)[: len(values)]
    result: Tensor = sums + conv.bias
    return result


def _edge_list(given: LayerInput) -> tuple[Tensor, Tensor]:
    assert isinstance(given.edges, Weights)
    if id(given.edges) not in _lists:
        own, halo = given.edges.own.to_sparse(), given.edges.halo.to_sparse()
        source = torch.cat([own.indices()[1], halo.indices()[1] + given.graph.num_own])
        target = torch.cat([own.indices()[0], halo.indices()[0] + given.graph.num_interior])
        _lists[id(given.edges)] = torch.stack([source, target]), torch.cat([own.values(), halo.values()])
    return _lists[id(given.edges)]


def limit_cpu(folder: Path, share: float) -> None:
    """Put this process under a quota of one CPU, and before others where they want the same time."""
    folder.mkdir(exist_ok=True)
    for group in (folder.parent, folder):
        (group / "cpu.shares").write_text("50000")
    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
    (folder / "cpu.cfs_quota_us").write_text(str(max(1000, int(share * PERIOD_MICROSECONDS))))
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def main() -> None:
    """Train one case after the other and print what each took, a line each."""
    warnings.filterwarnings("ignore", "Sparse CSR tensor support")
    torch.set_num_threads(1)
    place = rendezvous(os.environ)
    cases = json.loads(sys.argv[1])
    with process_group(place) as store:
        presence = RankPresence(place, store)
        folder, share = Path(cases["cgroup"]), cases["speeds"][place.number]

        def limit() -> None:
            limit_cpu(folder / f"rank{place.number}", share)

        for case in cases["cases"]:
            (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
            print(json.dumps(trained(case, presence, limit)), flush=True)


def trained(case: Mapping[str, Any], presence: RankPresence, limit: Callable[[], None]) -> dict[str, Any]:
    """Train once, and return what it took; the quota begins after the first epoch, which sets everything up."""
    reports: list[EpochReport] = []
    cpu = [time.process_time()]

    def on_epoch(report: EpochReport) -> None:
        reports.append(report)
        cpu.append(time.process_time())
        if report.epoch == 1:
            limit()

    _lists.clear()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory("VmRSS")
    run = TrainedRun(
        parts_file=Path(case["parts"]),
        folder=Path(case["parts"]).parent,
        presence=presence,
        rank_of_part=tuple(range(presence.count)),
        layers={**LAYERS, GCNConv: message_passing} if case["unfused"] else LAYERS,
        on_epoch=on_epoch,
    )
    end = train(TrainSettings(**case["settings"]), run)
    return {
        "name": case["name"],
        "seconds": [one.seconds for one in reports],
        "cpu_seconds": [later - earlier for earlier, later in pairwise(cpu)],
        "sent_bytes": [one.sent_bytes for one in reports],
        "memory_bytes": _memory("VmHWM") - before,
        "test": end.accuracy["test_mask"],
    }


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not tell {name}")


if __name__ == "__main__":
    main()
