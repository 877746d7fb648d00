"""One figure of merit for a scenario: what a run cost, in joules, for each unit of work.

    cost = (J + V S + M miss_joules + budget_factor A) / U

J is the energy of the whole cluster, S the time that users wait in s, M the deadlines missed, A the energy above the
power budget, U the work done, all of the counted time. A job's user waits from its submission to its end; that of a
task graph until its last task has ended. Time still running at the border counts up to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.arena.run import ArenaRun
from slurm_energy.evaluation.arena.run_bounds import counted_load
from slurm_energy.evaluation.bounds.demand import stationary_model
from slurm_energy.evaluation.bounds.steady_state import least_extra_power
from slurm_energy.evaluation.metrics import joules_above_budget, system_seconds
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Merit:
    """What a scenario's cost is made of; fixed before any learned policy ran."""

    time_watts: float = 20.0
    """V: what a second of one user's waiting is worth, the price rule's own in world chsac."""
    of_graphs: bool = False
    """Whether the user waits for a whole graph: the jobs that have one name."""
    miss_joules: float = 0.0
    """Of each deadline that is missed."""
    budget_factor: float = 0.0
    """What a joule above the power budget costs on top of itself."""

    def __post_init__(self) -> None:
        for name in ("time_watts", "miss_joules", "budget_factor"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueRangeError(f"merit {name}={getattr(self, name)} is not a finite number from 0 up")

    @property
    def formula(self) -> str:
        """The cost in words."""
        whom = "graph" if self.of_graphs else "job"
        parts = ["energy", f"{self.time_watts:g} W x time of each {whom} from submission to end"]
        if self.miss_joules:
            parts.append(f"{self.miss_joules / 1e3:,.0f} kJ for each missed deadline")
        if self.budget_factor:
            parts.append(f"{self.budget_factor:g} x energy above the budget")
        return "(" + " + ".join(parts) + ") / unit"


def merit_figures(run: ArenaRun, merit: Merit) -> dict[str, float]:
    """Return `cost_joules_per_unit`, its parts by name, and the bound of it; nothing for a run without work."""
    units = run.record.metrics.true_units
    if units <= 0.0:
        return {}
    parts = {
        "cost_energy": run.outcome.total_joules,
        "cost_time": merit.time_watts * user_seconds(run.outcome, run.jobs, of_graphs=merit.of_graphs),
        "cost_misses": merit.miss_joules * run.record.metrics.deadline_misses,
        "cost_above_budget": merit.budget_factor * (joules_above_budget(run.outcome, run.world) or 0.0),
    }
    found = {f"{name}_joules_per_unit": joules / units for name, joules in parts.items()}
    bound = least_cost_joules_per_unit(run, merit)
    return {
        "cost_joules_per_unit": sum(parts.values()) / units,
        **found,
        **({} if bound is None else {"bound_cost_joules_per_unit": bound}),
    }


def user_seconds(outcome: Outcome, jobs: Sequence[Job], *, of_graphs: bool) -> float:
    """Return the time that users wait in the counted time: for each job, or for each graph of jobs with one name."""
    if not of_graphs:
        return float(np.sum(system_seconds(outcome)))
    ends: dict[str, tuple[float, float]] = {}
    for job, end in zip(jobs, np.minimum(outcome.ended_seconds, outcome.end_seconds).tolist(), strict=True):
        first, last = ends.get(job.name, (job.submitted_seconds, end))
        ends[job.name] = min(first, job.submitted_seconds), max(last, end)
    start = outcome.counted_from_seconds
    return sum(max(0.0, last - max(first, start)) for first, last in ends.values())


def least_cost_joules_per_unit(run: ArenaRun, merit: Merit) -> float | None:
    """Return a cost that no policy can go below with the work of this run, None where the programme has no answer.

    The linear programme of the bounds with V added to the power of every job that runs. Waiting before the start and
    all penalties are left out; so is the time of graphs, of which several tasks run at once.
    """
    load, _ = counted_load(run.world, run.jobs, run.outcome)
    kinds = tuple(sorted(load.units_per_second_by_kind))
    model = stationary_model(run.world, kinds, load.gpu_counts_by_kind, prune=False)
    price = 0.0 if merit.of_graphs else merit.time_watts
    activities = replace(model.activities, extra_watts=model.activities.extra_watts + price * model.activities.jobs)
    rates = model.loads(load.units_per_second_by_kind)
    solution = least_extra_power(replace(model, activities=activities), rates)
    return None if solution is None else float((model.base_watts + solution.value) / rates.sum())
