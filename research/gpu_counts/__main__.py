"""Energy and turnaround of rules for numbers of GPUs, against every job with the number that it asks for.

    python -m research.gpu_counts [--seeds 5] [--hours 48]

64 A100 on 8 nodes, hosts and their suspension counted; the work scales as ElasticFlow's applications (13 curves, two of
them hardly faster on two GPUs). Jobs ask for 1, 2, 4 or 8 GPUs, and may run with 1 to 8: all of them, or three of ten.
Names are run again and again, so that there are runs to learn from; nothing is given to the rules but these.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from zlib import crc32

import numpy as np

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.adapters.served import served_policy
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import load_world

CURVES = Path(__file__).parents[1] / "calibration" / "scaling.json"
RANGE = (1, 2, 3, 4, 5, 6, 7, 8)
ASKED = (1, 2, 4, 8)
MEDIAN_SECONDS, SIGMA = 7200.0, 1.0
"""Of a job's work on one GPU; assumed."""
NAMES_PER_KIND, NAME_SPREAD = 12, 0.2
LOADS, SHARES = (0.3, 0.6, 0.9), (1.0, 0.3)
RULES = ("asked", "at most 4", "by runs", "by runs, clocks", "by cost, V=20", "by cost, V=300", "total-cost")


def world_text(curves: list[dict[str, object]]) -> str:
    """Return a world of one A100 pool whose kinds scale as the curves say."""
    kinds = "\n".join(
        f'{kind_name(curve)} = {{ curve = "bloom-backward-stages-0-6", scaling = {{ efficiency = {{ '
        + ", ".join(f"{count} = {value}" for count, value in efficiency(curve).items())
        + " } } }"
        for curve in curves
    )
    return f"""
name = "gpu-counts"
source = "ElasticFlow (ASPLOS 2023) scaling; Perseus (SOSP 2024) clocks; hosts as in philly-a100"
unit_device = "a100"
[scheduling]
order = "fifo"
backfill = "easy"
backfill_interval_seconds = 30
backfill_depth = 500
[workload]
name = "poisson"
[workload.settings]
rate_per_second = 0.001
[devices.a100]
curves = "a100-sxm4-80gb"
points = "readings"
clocks_mhz = {{ low = 870, high = 1410, step = 45 }}
power_limit_watts = 400
free_watts = 60
context_watts = 85
floor_watts = 85
memory_gib = 80
[devices.a100.kinds]
{kinds}
[pools.a100]
device = "a100"
nodes = 8
gpus_per_node = 8
cpus_per_node = 128
memory_gib_per_node = 1024
host_idle_watts = 941
host_busy_watts = 1619

suspend = {{ idle_seconds = 900, resume_seconds = 300, suspended_watts = 20, resume_watts = 1421 }}
[partitions.a100]
pools = ["a100"]
is_default = true
"""


def kind_name(curve: dict[str, object]) -> str:
    """Return `bert-64`."""
    return f"{str(curve['model']).replace('_', '-')}-{curve['batch_size']}"


def efficiency(curve: dict[str, object]) -> dict[int, float]:
    """Return the measured efficiency up to a node's GPUs."""
    given = curve["efficiency_by_count"]
    assert isinstance(given, dict)
    return {int(count): float(value) for count, value in given.items() if int(count) <= max(RANGE)}


def jobs(curves: list[dict[str, object]], load: float, share: float, hours: float, seed: int) -> Workload:
    """Return arrivals whose work fills such a share of the cluster with the numbers of GPUs that are asked for."""
    random = np.random.default_rng(seed)
    gpu_seconds = fmean(
        MEDIAN_SECONDS * np.exp(SIGMA**2 / 2) / efficiency(curve).get(asked, 1.0) for curve in curves for asked in ASKED
    )
    rate = load * 64 / gpu_seconds
    times, now = [], 0.0
    while (now := now + float(random.exponential(1.0 / rate))) < hours * 3600.0:
        times.append(now)
    found = []
    for number, time in enumerate(times, start=1):
        curve = curves[int(random.integers(len(curves)))]
        name = int(random.integers(NAMES_PER_KIND))
        # A name's runs are about as long as one another, and ask for one number of GPUs.
        own = np.random.default_rng([seed, name, crc32(kind_name(curve).encode())])
        size = MEDIAN_SECONDS * np.exp(SIGMA * own.normal()) * np.exp(NAME_SPREAD * random.normal())
        asked = ASKED[int(own.integers(len(ASKED)))]
        ranged = random.random() < share
        found.append(
            Job(
                job_id=number,
                submitted_seconds=time,
                true_units=float(size),
                kind=kind_name(curve),
                name=f"{kind_name(curve)}-n{chr(97 + name)}",
                user="ann",
                gpu_counts=RANGE if ranged else (asked,),
                asked_gpus=asked if ranged else 0,
            )
        )
    return Workload(name="gpu-counts", jobs=tuple(found))


def rule_of(name: str) -> PlacementRule:
    """Return a rule by the name that the table gives it."""
    policy = PolicyConfig()
    if name == "total-cost":
        return create_rule("total-cost")
    if name == "asked":
        return served_policy("slurm-default", Config(policy=replace(policy, gpu_count="off")))
    if name == "at most 4":
        return served_policy("slurm-default", Config(policy=replace(policy, learn_from_runs=False)))
    if name.startswith("by cost, "):
        return served_policy(f"total-cost:{name.partition(', ')[2]}", Config(policy=policy))
    return served_policy("oracle" if "clocks" in name else "slurm-default", Config(policy=policy))


def figures(world: World, curves: list[dict[str, object]], seeds: int, hours: float) -> Iterator[str]:
    """Yield the lines of the table."""
    for share in SHARES:
        for load in LOADS:
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
            for seed in range(seeds):
                for name in RULES:
                    outcome = run(world, jobs(curves, load, share, hours, seed), rule_of(name), seed=seed)
                    turnaround = float((outcome.ended_seconds - outcome.submitted_seconds).mean())
                    found[name].append((outcome.total_joules, turnaround))
            for name in RULES[1:]:
                energy, wait = (
                    [
                        100.0 * (one[at] / asked[at] - 1.0)
                        for one, asked in zip(found[name], found["asked"], strict=True)
                    ]
                    for at in (0, 1)
                )
                yield (
                    f"| {share:.0%} | {load} | {name} | {fmean(energy):+.1f} ± {stdev(energy) if seeds > 1 else 0:.1f} "
                    f"| {fmean(wait):+.1f} ± {stdev(wait) if seeds > 1 else 0:.1f} |"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hours", type=float, default=48.0)
    given = parser.parse_args()
    known = [one for one in json.loads(CURVES.read_text())["curves"] if one["gpu"] == "a100"]
    with TemporaryDirectory() as folder:
        path = Path(folder, "gpu-counts.toml")
        path.write_text(world_text(known))
        print("| jobs with a range | load | rule | energy, % | turnaround, % |")
        print("|---|---|---|---|---|")
        for line in figures(load_world(path), known, given.seeds, given.hours):
            print(line, flush=True)
