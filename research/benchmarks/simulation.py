"""Measure the simulated cluster: a week of the published world, the Philly trace, and the cost of one event.

    python -m research.benchmarks.simulation --write docs/reference/benchmarks-twin.md

CPU seconds of one process, not wall time. The yardstick is a short loop that knows nothing but the published world
under its default policy: no machine is faster for us and slower for it.
"""

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from slurm_energy.policy.placement import Discipline
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Workload, plain_job
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import option_table, places_of
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload, load_workload, shared_stream_source
from slurm_energy.twin.world import Partition, Pool, World
from slurm_energy.twin.world.device_model import DeviceModel, Load
from slurm_energy.twin.world.file import shipped_world

ROOT = Path(__file__).parents[1]
RUNNING = (1_000, 10_000, 100_000, 1_000_000)
WEEK_SECONDS = 604_800.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: CPU seconds, events, peak memory of the process."""

    cpu_seconds: float
    jobs: int
    peak_mebibytes: float


def measured(work: Callable[[], Outcome]) -> tuple[Cost, Outcome]:
    """Return what a run costs."""
    before = time.process_time()
    outcome = work()
    seconds = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return Cost(seconds, len(outcome.job_id), peak), outcome


def published_week(compat: bool) -> Outcome:
    """Run seven days of the published world under its default policy, arrivals drawn on the way or made before."""
    world = shipped_world("chsac")
    if compat:
        source = shared_stream_source(world.workload_settings, 123)
        return run(world, source, create_rule("dp"), horizon_seconds=WEEK_SECONDS, random=source.random)
    workload = create_workload(world.workload, world.workload_settings, 123)
    return run(world, workload, create_rule("dp"), horizon_seconds=WEEK_SECONDS)


def yardstick() -> float:
    """Return CPU seconds of a bare loop over the same week: heap, random numbers and additions, nothing kept."""
    world = shipped_world("chsac")
    places = places_of(world)
    table = option_table(world, "training", range(1, 9), places=places)
    rates = table.seconds_per_unit[:, :, 3].tolist()
    extra = (table.watts - table.free_watts)[:, :, 3].tolist()
    before = time.process_time()
    heap: list[tuple[float, int, int, int, int, float]] = []
    draw, made = random.Random(123), 0
    free, queues = [place.pool.gpus_per_node for place in places], [list[float]() for _ in places]
    heads, power, last, joules = [0] * 8, 0.0, 0.0, 0.0
    for ingress in range(8):
        heappush(heap, (draw.expovariate(0.02), made, 0, ingress, 0, 0.0))
        made += 1
    while heap[0][0] <= WEEK_SECONDS:
        now, _, kind, place, gpus, amount = heappop(heap)
        joules += power * (now - last)
        last = now
        if kind == 0:
            size, to = draw.lognormvariate(log(50_000.0), 0.4), draw.choice(range(8))
            heappush(heap, (now + 0.1, made, 1, to, 0, size))
            heappush(heap, (now + draw.expovariate(0.02), made + 1, 0, place, 0, 0.0))
            made += 2
            continue
        if kind == 1:
            queues[place].append(amount)
        else:
            free[place] += gpus
            power -= amount
        while free[place] and heads[place] < len(queues[place]):
            size, take = queues[place][heads[place]], min(free[place], 8)
            heads[place] += 1
            free[place] -= take
            power += extra[place][take - 1]
            heappush(heap, (now + size * rates[place][take - 1], made, 2, place, take, extra[place][take - 1]))
            made += 1
    return time.process_time() - before


def steady_cluster(running: int) -> tuple[World, Workload]:
    """Return a cluster on which about so many jobs of one GPU run at once, and three times as many jobs in all."""
    device = DeviceModel(
        name="gpu",
        relative_clocks=(0.6, 1.0),
        loads={"training": Load(watts=(150.0, 300.0), seconds_per_unit=(1.5, 1.0))},
        free_watts=40.0,
        context_watts=60.0,
    )
    world = World(
        name="steady",
        devices={"gpu": device},
        pools=(Pool(name="pool", device="gpu", nodes=1, gpus_per_node=int(running * 1.2)),),
        partitions=(Partition(name="all", pools=("pool",)),),
        discipline=Discipline(order="fifo", backfill="none"),
    )
    draw, jobs, now = random.Random(1), [], 0.0
    for number in range(max(300_000, 5 * running // 4)):
        now += draw.expovariate(running / 3600.0)
        jobs.append(plain_job(number, now, draw.expovariate(1 / 3600.0), "training", (1,), 0))
    return world, Workload(name="steady", jobs=tuple(jobs))


def event_cost(running: int) -> float:
    """Return CPU microseconds for each event (an arrival or an end) with so many jobs running."""
    world, workload = steady_cluster(running)
    cost, outcome = measured(lambda: run(world, workload, create_rule("slurm-default")))
    assert all(state == "COMPLETED" for state in outcome.state)
    return cost.cpu_seconds / (2 * cost.jobs) * 1e6


def philly(path: Path, rule: str) -> tuple[Cost, Outcome]:
    """Run the Philly trace on its cluster."""
    workload = load_workload(path)
    world = shipped_world("philly-a100")
    return measured(lambda: run(world, workload, create_rule(rule)))


def plot(costs: dict[int, float], path: Path) -> None:
    """Draw cost per event over running jobs."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(list(costs), list(costs.values()), marker="o", label="measured")
    first = costs[RUNNING[0]]
    axes.plot(
        list(costs),
        [first * log(number) / log(RUNNING[0]) for number in costs],
        linestyle="--",
        color="grey",
        label="as the logarithm of running jobs",
    )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("jobs that run at once")
    axes.set_ylabel("CPU time per event [µs]")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    mpl.rcParams["svg.hashsalt"] = "slurm-energy"
    figure.savefig(path, metadata={"Date": None})


def alone(name: str, *arguments: str) -> dict[str, float]:
    """Run one measurement in a process of its own, so that memory and heap are its own; return its figures."""
    command = [sys.executable, "-m", "research.benchmarks.simulation", "--only", name, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def only(name: str, argument: str) -> dict[str, float]:
    """Return the figures of one measurement."""
    if name in ("week", "published-week"):
        cost, outcome = measured(lambda: published_week(compat=name == "published-week"))
        return {
            "cpu_seconds": cost.cpu_seconds,
            "peak_mebibytes": cost.peak_mebibytes,
            "completed": sum(state == "COMPLETED" for state in outcome.state),
        }
    if name == "yardstick":
        return {"cpu_seconds": yardstick()}
    if name == "event":
        return {"microseconds": event_cost(int(argument))}
    cost, outcome = philly(Path(argument), name)
    return {
        "cpu_seconds": cost.cpu_seconds,
        "peak_mebibytes": cost.peak_mebibytes,
        "jobs": cost.jobs,
        "balance_error": outcome.balance_error,
    }


def page(repeats: int, trace: Path, picture: Path) -> str:
    """Measure everything and return the page."""
    weeks = [alone("week") for _ in range(repeats)]
    published = [alone("published-week") for _ in range(repeats)]
    bare = [alone("yardstick")["cpu_seconds"] for _ in range(repeats)]
    costs = {number: alone("event", "--argument", str(number))["microseconds"] for number in RUNNING}
    plot(costs, picture)
    week = median(row["cpu_seconds"] for row in weeks)
    growth = costs[RUNNING[-1]] / costs[RUNNING[0]]
    lines = [
        "# Benchmarks of the simulated cluster",
        "",
        f"Written by `make bench`. CPU seconds, each measurement in a process of its own; medians of {repeats}.",
        "",
        f"- Date: {time.strftime('%Y-%m-%d')}; Python {platform.python_version()}.",
        "",
        "| what | figure | goal |",
        "|---|---:|---|",
        f"| 7 days of world chsac under dp, {int(weeks[0]['completed']):,} jobs completed | {week:.2f} s | ≤ 1.5 s |",
        f"| the same over a bare loop of the same week ({median(bare):.2f} s) | {week / median(bare):.1f} times | |",
        f"| its peak memory | {max(row['peak_mebibytes'] for row in weeks):.0f} MiB | ≤ 300 MB |",
        (
            "| the same week with the published order of random numbers (`--compat`), "
            f"{int(published[0]['completed']):,} jobs completed "
            f"| {median(row['cpu_seconds'] for row in published):.2f} s | |"
        ),
    ]
    for rule in ("slurm-default", "fcfs"):
        if trace.exists():
            row = alone(rule, "--argument", str(trace))
            what = "FIFO + EASY backfill" if rule == "slurm-default" else "FIFO"
            lines += [
                f"| {int(row['jobs']):,} Philly jobs under {what} | {row['cpu_seconds']:.1f} s | ≤ 30 s |",
                f"| its peak memory | {row['peak_mebibytes']:.0f} MiB | ≤ 300 MB |",
                f"| its energy balance | {row['balance_error']:.0e} | ≤ 1e-9 |",
            ]
    lines += [f"| one event with {number:,} jobs running | {cost:.1f} µs | |" for number, cost in costs.items()]
    logarithm = log(RUNNING[-1]) / log(RUNNING[0])
    lines += [
        f"| growth over that range | {growth:.2f} times | at most the logarithm's, {logarithm:.2f} times |",
        "",
        f"![CPU time per event over running jobs]({picture.name})",
        "",
        "The published simulator walks over all running jobs at every event. Here power is kept by differences: an",
        "event is a push and a pop of the heap, some additions, and memory that no cache holds any more.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file to write the page to; its picture lies beside it")
    parser.add_argument("--trace", type=Path, default=ROOT / "../shared/data/philly_trace/philly_jobs.csv")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--argument", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(only(arguments.only, arguments.argument)))
        return
    picture = (arguments.write or Path("benchmarks-twin.md")).with_suffix(".svg")
    text = page(arguments.repeats, arguments.trace, picture)
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
