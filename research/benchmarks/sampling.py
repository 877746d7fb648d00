"""Measure what sampling saves and costs: operations counted, and the arena's score, on a cluster of 256 GPU nodes.

    python -m research.benchmarks.sampling --write docs/reference/benchmarks-sampling.md

One network is trained to decide as a rule does whose prices follow the cluster's state. It then runs with the whole
graph and with samples of it, on arrivals that it has not seen.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from research.benchmarks.operations import count_operations
from slurm_energy.evaluation.arena.comparison import run_arena
from slurm_energy.evaluation.arena.plan import ArenaPlan, seeds_from
from slurm_energy.evaluation.arena.summary import Estimate, paired_difference_percent
from slurm_energy.evaluation.decision_speed.synthetic_cluster import ClusterSize, synthetic_cluster
from slurm_energy.evaluation.metrics import Metrics
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.learning.imitation import ImitationSettings
from slurm_energy.learning.imitation_training import TrainingPlan, train
from slurm_energy.policy.gnn.ablation.sampled_state import sampled_blocks
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.gnn.serving import load_network
from slurm_energy.policy.gnn.start_options import job_columns
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world.file import WORLDS_FOLDER, find_world

TEACHER = "adaptive-price:run=600"
GOAL_SAVED, GOAL_WORSE_PERCENT = 0.85, 3.0
RATES = (0.06, 0.12, 0.25, 0.5)
STATES = 10


def world_of_256_nodes(folder: Path) -> Path:
    """Write `tum128` with twice its GPU nodes and twice its arrivals; return the file."""
    shipped = WORLDS_FOLDER
    text = (shipped / "tum128.toml").read_text(encoding="utf-8")
    pools, found = re.subn(
        r"^(\[pools\.(?:k40c|c2070)[^\]]*\]\ndevice = .*\nnodes = )(\d+)$",
        lambda match: f"{match[1]}{2 * int(match[2])}",
        text,
        flags=re.MULTILINE,
    )
    assert found == 4, f"{found} pools of GPU nodes were found, 4 are needed"
    text = re.sub(r"^rate_per_second = .*$", "rate_per_second = 0.24", pools, flags=re.MULTILINE)
    text = text.replace('name = "tum128"', 'name = "tum256"')
    path = folder / "tum256.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "tum128.json").write_bytes((shipped / "tum128.json").read_bytes())
    return path


def operations(network: HierarchicalNetwork, rate: float | None) -> float:
    """Return the mean operations of working out the state of a synthetic cluster of 256 nodes from nothing."""
    counts = []
    for seed in range(STATES):
        graph = ClusterGraph()
        graph.update(synthetic_cluster(ClusterSize(nodes=256, gpus_per_node=6, pending=200), seed, 1e9))
        if rate is None:
            blocks, weights = whole_blocks(graph), None
        else:
            config = replace(network.config, sampling="sampled", sampling_rate=rate)
            blocks, weights = sampled_blocks(graph, config, np.random.default_rng(seed))
        with torch.no_grad():
            counts.append(count_operations(lambda b=blocks, w=weights: network.state(b, w)))  # type: ignore[misc]  # bound now
    return mean(counts)


class Beside(GnnPolicy):
    """Does what the whole graph says, and notes how far the samples of it are from that."""

    def __init__(self, network: HierarchicalNetwork) -> None:
        super().__init__(network, ClusterGraph(), version="whole")
        self._sampled = {rate: NetworkChooser(with_sampling(network, rate), ClusterGraph()) for rate in RATES}
        self.distances: dict[float, list[float]] = {rate: [] for rate in RATES}
        """Total variation between the two distributions over the options, of each decision."""
        self.equal: dict[float, list[bool]] = {rate: [] for rate in RATES}
        """Whether both would do the same."""

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Decide by the whole graph; ask the samples too."""
        placement = super().place(job, view)
        chooser = self._chooser
        assert chooser.snapshot is not None
        options = self._reader.options(job, view, chooser.graph.partition_index, with_clocks=False)
        plain, vector = [one.option for one in options], job_columns(job, view, chooser.graph.facts)
        whole = chooser.choose(vector, plain)
        if whole is not None and len(plain) > 1:
            for rate, other in self._sampled.items():
                other.follow_at_once(chooser.snapshot)
                part = other.choose(vector, plain)
                assert part is not None
                gaps = [abs(one - two) for one, two in zip(whole.probabilities, part.probabilities, strict=True)]
                self.distances[rate].append(0.5 * sum(gaps))
                self.equal[rate].append(whole.option == part.option)
        return placement


def with_sampling(network: HierarchicalNetwork, rate: float) -> HierarchicalNetwork:
    """Return a network of the same weights that works out a sample."""
    sampled = create_network(replace(network.config, sampling="sampled", sampling_rate=rate), seed=0)
    sampled.load_state_dict(network.state_dict())
    return sampled.eval()


def compared(network: HierarchicalNetwork, path: Path, hours: float) -> Beside:
    """Return the rule after a run on arrivals of its own."""
    world, rule = find_world(str(path)), Beside(network)
    settings = {**world.workload_settings, "hours": hours}
    run(world, create_workload(world.workload, settings, seed=101), rule, horizon_seconds=hours * 3600.0)
    return rule


def score(metrics: Metrics) -> float:
    """Return energy per unit of work times mean turnaround, J s / unit: lower is better."""
    assert metrics.joules_per_unit is not None and metrics.turnaround is not None
    return metrics.joules_per_unit * metrics.turnaround.mean_seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Train, run, count, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="page to write")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours of each test run (default 1)")
    parser.add_argument("--training-hours", type=float, default=3.0, help="simulated hours to learn from (default 3)")
    parser.add_argument("--seeds", type=int, default=5, help="test arrivals (default 5)")
    parser.add_argument("--epochs", type=int, default=10, help="of training (default 10)")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        page = measure(Path(name), (given.training_hours, given.hours), given.seeds, given.epochs)
    if given.write is not None:
        given.write.write_text(page, encoding="utf-8")
    sys.stdout.write(page)
    return 0


def measure(folder: Path, lengths: tuple[float, float], seeds: int, epochs: int) -> str:
    """Return the page; the lengths are those of training and test runs in simulated hours."""
    training_hours, hours = lengths
    world, checkpoint = world_of_256_nodes(folder), folder / "checkpoint"
    began = time.monotonic()
    trained = train(
        TrainingPlan(
            world=str(world),
            teacher=TEACHER,
            hours=training_hours,
            every=6,
            settings=ImitationSettings(epochs=epochs, batch_size=8),
            threads=2,
        ),
        checkpoint,
        report_epoch=lambda epoch: print(
            f"epoch {epoch.epoch} agrees {epoch.agreement:.1%}", file=sys.stderr, flush=True
        ),
    )
    training_seconds = time.monotonic() - began
    network, _ = load_network(checkpoint)
    whole = f"gnn:checkpoint={checkpoint}"
    policies = (whole, *(f"{whole},sampling={rate}" for rate in RATES), TEACHER, "slurm-default", "masked-random")
    result = run_arena(
        ArenaPlan(
            policies=policies,
            world=str(world),
            seeds=seeds_from(1, seeds),
            horizon_seconds=hours * 3600.0,
            reference=whole,
        ),
        workers=2,
        tell=lambda doing, done, of: print(doing, done, of, file=sys.stderr, flush=True),
    )
    assert not result.failed, result.failed
    scores = {
        policy: [score(run.metrics) for run in sorted(result.runs, key=lambda run: run.seed) if run.policy == policy]
        for policy in policies
    }
    all_operations = operations(network, None)
    rows = {
        rate: (
            1.0 - operations(network, rate) / all_operations,
            paired_difference_percent(scores[f"{whole},sampling={rate}"], scores[whole]),
        )
        for rate in RATES
    }
    beside = compared(network, world, min(hours, 0.5))
    others = [(name, paired_difference_percent(scores[name], scores[whole])) for name in policies[len(RATES) + 1 :]]
    return render(rows, others, beside, trained.metrics, training_seconds, (hours, seeds, all_operations))


def render(
    rows: Mapping[float, tuple[float, Estimate | None]],
    others: Sequence[tuple[str, Estimate | None]],
    beside: Beside,
    trained: Mapping[str, float],
    training_seconds: float,
    run: tuple[float, int, float],
) -> str:
    """Return the page as Markdown."""
    hours, seeds, all_operations = run
    lines = [
        "# What sampling saves and costs",
        "",
        "Written by `python -m research.benchmarks.sampling`. World: `tum128`, 256 GPU nodes, twice its arrivals. The",
        f"network learned from `{TEACHER}` ({trained['decisions']:.0f} decisions, {training_seconds:.0f} s, agrees in",
        f"{trained['agreement']:.1%}). Score: energy per unit of work x mean turnaround, {seeds} test arrivals of",
        f"{hours:g} h each, paired, 95 % interval. Operations: multiplications and additions really done to work the",
        f"state out again, counted on synthetic clusters of 256 nodes x 6 GPUs; whole: {all_operations:.3g}.",
        "",
        f"Goal: at least {GOAL_SAVED:.0%} fewer operations at no more than {GOAL_WORSE_PERCENT:g} % worse score.",
        "",
        "Same decision: share of the decisions of a run of the whole graph in which the sample would do the same.",
        "Distance: half the sum of the differences of the probabilities of all options, mean over those decisions.",
        "",
        "| network | operations saved | score against the whole graph | same decision | distance |",
        "|---|---:|---:|---:|---:|",
        "| whole graph | 0.0% | | | |",
        *(
            f"| sampled, rate {rate} | {saved:.1%} | {interval(change)} | {mean(beside.equal[rate]):.1%} | "
            f"{mean(beside.distances[rate]):.4f} |"
            for rate, (saved, change) in rows.items()
        ),
        "",
        "| for comparison | score against the whole graph |",
        "|---|---:|",
        *(f"| `{name}` | {interval(change)} |" for name, change in others),
        "",
    ]
    return "\n".join(lines)


def interval(change: Estimate | None) -> str:
    """Return a difference with its interval."""
    if change is None:
        return ""
    return f"{change.mean:+.2f} % ({change.low:+.2f} to {change.high:+.2f})"


if __name__ == "__main__":
    sys.exit(main())
