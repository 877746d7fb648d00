"""Energy and turnaround of jobs that are decided again while they wait, against decisions at submission alone.

    python -m research.queue_time [--seeds 3] [--hours 24]

The laboratory's cluster in the simulated world (a100, a40 and v100 partitions, a100 the default one), routing open,
jobs that name no partition, policies as the installed product serves them: what is known of a job is what runs of its
name have shown. Changes are against decisions at submission alone.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, stdev

from slurm_energy.config import Config
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.twin.adapters.served import served_policy
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import shipped_world

RATES = (0.014, 0.018, 0.022)
"""Jobs a second: about 1, 1.25 and 1.5 times what the cluster can do."""
INTERVAL_SECONDS = 60.0
WAYS = ("at submission", "again while it waits")


def rule_of(way: str, policy: str) -> PlacementRule:
    """Return the rule of a row."""
    config = Config()
    routing = replace(config.routing, open=True, less_gpu_memory=True)
    if way == "again while it waits":
        routing = replace(routing, redecide="on", redecide_seconds=INTERVAL_SECONDS)
    return served_policy(policy, replace(config, routing=routing))


def figures(world: World, policy: str, seeds: int, hours: float) -> Iterator[str]:
    """Yield the lines of the table."""
    for rate in RATES:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for seed in range(seeds):
            for way in WAYS:
                settings = {**world.workload_settings, "rate_per_second": rate, "hours": hours}
                jobs = create_workload(world.workload, settings, seed)
                outcome = run(world, jobs, rule_of(way, policy), seed=seed)
                turnaround = float((outcome.ended_seconds - outcome.submitted_seconds).mean())
                found[way].append((outcome.total_joules, turnaround))
        for way in WAYS[1:]:
            energy, wait = (
                [100.0 * (one[at] / base[at] - 1.0) for one, base in zip(found[way], found[WAYS[0]], strict=True)]
                for at in (0, 1)
            )
            spread = [stdev(values) if seeds > 1 else 0.0 for values in (energy, wait)]
            yield (
                f"| {policy} | {rate:g} | {way} | {fmean(energy):+.1f} ± {spread[0]:.1f} "
                f"| {fmean(wait):+.1f} ± {spread[1]:.1f} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24.0)
    given = parser.parse_args()
    print("| policy | jobs/s | decided | energy, % | turnaround, % |")
    print("|---|---|---|---|---|")
    for name in ("oracle",):
        for line in figures(shipped_world("lab"), name, given.seeds, given.hours):
            print(line, flush=True)
