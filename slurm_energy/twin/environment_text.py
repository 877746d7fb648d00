"""A run as a few lines of text."""

from collections.abc import Sequence
from math import inf

from slurm_energy.twin.engine import Engine
from slurm_energy.twin.job import Job
from slurm_energy.twin.places import Place

_MOST_PLACES = 16


def cluster_text(engine: Engine, places: Sequence[Place], job: Job | None) -> str:
    """Return time, power, queue, the job in question, and a bar of held devices for each place."""
    view = engine.view
    held = sum(len(pool.runs) for pool in view.pools)
    budget = "" if view.power_budget_watts == inf else f" of {view.power_budget_watts / 1000.0:.1f} kW"
    power = f"{view.power_watts / 1000.0:.1f} kW{budget}"
    lines = [
        f"t={engine.now:.0f} s  power={power}  running={held}  waiting={view.num_waiting}",
        "no job is asked about" if job is None else f"job {job.job_id}: {_job_text(job, engine.now)}",
    ]
    for place in places[:_MOST_PLACES]:
        info = place.info
        share = 1.0 - view.free_gpus[place.index] / info.total_gpus
        bar = "#" * round(10.0 * share)
        lines.append(f"{info.name:>16.16} [{bar:<10}] {view.free_gpus[place.index]:>5} of {info.total_gpus} free")
    if len(places) > _MOST_PLACES:
        lines.append(f"and {len(places) - _MOST_PLACES} places more")
    return "\n".join(lines)


def _job_text(job: Job, now: float) -> str:
    counts = f"{job.gpu_counts[0]}" if len(job.gpu_counts) == 1 else f"{job.gpu_counts[0]} to {job.gpu_counts[-1]}"
    left = "" if job.deadline_seconds == inf else f", deadline in {job.deadline_seconds - now:.0f} s"
    waits = f"waits {now - job.submitted_seconds:.0f} s"
    return f"{job.kind}, {job.estimated_units:.4g} units, {counts} devices, {waits}{left}"
