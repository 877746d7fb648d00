"""One run of one policy in one case: its figures by name. What a worker process does."""

from collections.abc import Sequence

import numpy as np

from research.results.cases import Case
from research.results.failure_recovery import WatchedRule, can_fail, recovery_figures
from research.results.merit import merit_figures
from research.results.slurm_place import SlurmPlaceRule, slurm_place_figures
from slurm_energy.evaluation.arena.plan import world_of_plan
from slurm_energy.evaluation.arena.run import ArenaRun, finished_run
from slurm_energy.evaluation.arena.run_bounds import frontier_excess_percent
from slurm_energy.evaluation.arena.summary import bound_figures_of, figures_of
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.outcome import Outcome

_DAY_SECONDS = 86_400.0
_KEPT = frozenset(
    {
        "jobs",
        "unfinished_jobs",
        "total_joules",
        "true_units",
        "joules_per_unit",
        "system_job_seconds",
        "makespan_seconds",
        "energy_time_product_joule_seconds",
        "mean_wait_seconds",
        "mean_turnaround_seconds",
        "mean_bounded_slowdown",
        "completed_jobs",
        "mean_decision_seconds",
        "p95_bounded_slowdown",
        "deadline_misses",
        "gpu_utilisation_share",
        "seconds_above_power_budget",
        "bound_joules_per_unit",
        "bound_gap_percent",
        "bound_arrivals_joules_per_unit",
    }
)


def measured_run(case: Case, policy: str, rule_text: str, seed: int) -> dict[str, float]:
    """Return the figures of a run; one that it cannot give is missing.

    Raises:
        SlurmEnergyError: the run cannot be, or is below a bound.
    """
    has_failures = bool(case.undisturbed) and can_fail(world_of_plan(case.plan))
    watched = WatchedRule(create_contender(rule_text)) if has_failures else None
    if world_of_plan(case.plan).knowledge == "site":
        watched = SlurmPlaceRule(create_contender(rule_text))
    run = finished_run(case.plan, policy, rule_text, seed, rule=watched)
    every = figures_of(run.record.metrics) | bound_figures_of(run.record.bounds)
    found = {name: float(value) for name, value in every.items() if name in _KEPT}
    found |= _queue_figures(run) | _bound_figures(found) | wide_job_figures(run.outcome, run.jobs)
    if isinstance(watched, SlurmPlaceRule):
        found |= slurm_place_figures(watched, run.world, run.jobs, run.outcome)
    elif watched is not None:
        found |= recovery_figures(watched, run.outcome)
    found["timeouts"] = float(run.record.metrics.jobs_by_state.get("TIMEOUT", 0))
    if case.frontier:
        excess = frontier_excess_percent(run.world, run.jobs, run.outcome)
        found |= {} if excess is None else {"frontier_excess_percent": excess}
        if found["true_units"] > 0.0:
            mean_units = sum(job.true_units for job in run.jobs) / len(run.jobs)
            found["system_turnaround_seconds"] = found["system_job_seconds"] * mean_units / found["true_units"]
    if case.merit is not None:
        found |= merit_figures(run, case.merit)
        if "bound_cost_joules_per_unit" in found:
            found["cost_above_bound_percent"] = 100.0 * (
                found["cost_joules_per_unit"] / found["bound_cost_joules_per_unit"] - 1.0
            )
    return found


def wide_job_figures(outcome: Outcome, jobs: Sequence[Job]) -> dict[str, float]:
    """Return the time per unit of work of jobs that may use several devices, a job the unit; nothing without any.

    `hours_per_wide_job` is the mean time of those that were completed, from submission to end: the inverse of the
    throughput of as many jobs in the system (Little's law). What is completed while jobs come would not do: that is
    what comes, at any speed, as long as the queue does not grow. Policies with the same arrivals have the same jobs.
    """
    may_be_wide = np.array([job.gpu_counts[-1] > 1 for job in jobs], dtype=bool)
    counted = may_be_wide & (np.array(outcome.state) == "COMPLETED") & outcome.is_counted
    if not counted.any():
        return {}
    seconds = (outcome.ended_seconds - outcome.submitted_seconds)[counted]
    return {"hours_per_wide_job": float(seconds.mean()) / 3600.0}


def _queue_figures(run: ArenaRun) -> dict[str, float]:
    """Return waiting jobs at the ends of counted days, the end of the warm-up the first of them."""
    first = int(run.outcome.counted_from_seconds // _DAY_SECONDS) - 1
    waiting = run.record.metrics.waiting_at_day_end[max(0, first) :]
    if not waiting:
        return {}
    days = run.outcome.counted_seconds / _DAY_SECONDS
    per_day = run.record.metrics.jobs / days
    growth = 100.0 * max(0, waiting[-1] - waiting[0]) / per_day if per_day else 0.0
    return {
        "first_queue_at_day_end": float(waiting[0]),
        "last_queue_at_day_end": float(waiting[-1]),
        "longest_queue_at_day_end": float(max(waiting)),
        "queue_growth_percent": growth,
    }


def _bound_figures(found: dict[str, float]) -> dict[str, float]:
    """Return the least energy of the run's work under any policy, and how far the run is above it."""
    least = found.get("bound_arrivals_joules_per_unit")
    if least is None or least <= 0.0:
        return {}
    joules = least * found["true_units"]
    return {
        "bound_arrivals_joules": joules,
        "above_arrivals_bound_percent": 100.0 * (found["total_joules"] / joules - 1.0),
    }
