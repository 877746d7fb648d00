"""A comparison as JSON, and what stands beside its figures; every key says its unit, see docs/reference/arena.md."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slurm_energy import __version__
from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.arena.clock_sweep import SweepResult
from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.plan import ArenaPlan, world_of_plan
from slurm_energy.evaluation.arena.run import RunRecord
from slurm_energy.evaluation.arena.summary import (
    CONFIDENCE,
    ArenaSummary,
    Estimate,
    PolicySummary,
    bound_figures_of,
    figures_of,
)
from slurm_energy.reporting.visible import visible

_PACKAGES = ("numpy", "scipy")
_MAX_KINDS = 8
FORMAT = "slurm-energy-arena"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """How a comparison came about."""

    command: str
    """As it was typed."""
    created_at_seconds: float
    """Unix time."""
    wall_seconds: float
    notes: tuple[str, ...] = ()
    """A sentence each."""
    versions: Mapping[str, str] = field(default_factory=dict)


def software_versions() -> dict[str, str]:
    """Return the versions on which figures may depend."""
    found = {"slurm-energy": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def notes_of(result: ArenaResult, assumptions: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what a reader has to know to read the figures rightly, a sentence each."""
    plan, runs = result.plan, result.runs
    notes = list(assumptions)
    if plan.compat:
        notes.append(
            "Arrivals and choices are drawn from one stream, as the published simulator does: policies do not meet the "
            "same jobs, so no paired differences are given."
        )
    if result.runs and not result.of(plan.reference_policy):
        notes.append(f"The reference {plan.reference_policy} has no run: there are no differences.")
    if plan.warm_up_seconds > 0.0:
        notes.append(f"The first {plan.warm_up_seconds / 3600.0:g} hours of every run are simulated and not counted.")
    notes += _knowledge(plan)
    if len(plan.seeds) == 1:
        notes.append("One seed: there are no intervals, and small differences mean nothing.")
    elif len(plan.seeds) < 8:
        notes.append(f"{len(plan.seeds)} seeds: intervals from so few are narrower than they should be.")
    if not plan.is_generated and len(plan.seeds) > 1:
        notes.append("The jobs are those of a file for every seed: seeds change only what is drawn in addition to it.")
    if any(record.metrics.unfinished_jobs for record in runs):
        notes.append(
            "Times are means over finished jobs. Jobs were left unfinished, so compare energy per unit of work and not "
            "totals; --drain runs until no job is left."
        )
        if any(len(record.kinds) > 1 for record in runs):
            notes.append(
                "Units of several kinds are added up, and policies left different jobs unfinished: energy per unit is "
                "of different mixtures of work. Compare what is above the bound, or use --drain."
            )
    notes += _refused(runs)
    bad_rows = max((record.bad_rows for record in runs), default=0)
    if bad_rows:
        notes.append(f"{bad_rows} bad rows of the file were left out.")
    notes += [
        f"{sweep.policy} runs as {sweep.rule}: found with seed {sweep.seed}, which is not among those compared, in "
        f"{sweep.runs} runs of {sweep.seconds / 3600.0:g} h.{_untried(sweep)}"
        for sweep in result.sweeps
    ]
    return tuple(notes)


def _knowledge(plan: ArenaPlan) -> tuple[str, ...]:
    """Return what policies knew of jobs: more than a site knows, or as much; nothing where the world's file is gone."""
    try:
        knowledge = world_of_plan(plan).knowledge
    except (ConfigError, EvaluationError):
        return ()
    if knowledge == "truth":
        note = (
            "Rules know each job's kind, its own curves and its length, which no site knows: figures say what they "
            "could do. Policies of the daemon know what ended runs of a job's name measured."
        )
        return (note,)
    knowing = [
        text for text in plan.policies if text.partition(":")[0] == "clairvoyant" or text.startswith("clairvoyant/")
    ]
    others = f" {', '.join(knowing)} alone {'knows' if len(knowing) == 1 else 'know'} the truth." if knowing else ""
    return (f"Policies know what a site knows, with {plan.history_days:g} days of ended runs.{others}",)


def _untried(sweep: SweepResult) -> str:
    if not sweep.untried:
        return ""
    names = ", ".join(visible(name) for name in sweep.untried)
    return f" No clock of {names} changed anything, as no job ran there: the highest is left."


def _refused(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield what is to be said of jobs that could run nowhere."""
    most = max(runs, key=_num_refused, default=None)
    if most is None or not _num_refused(most):
        return
    count, jobs = _num_refused(most), most.metrics.jobs
    whole = "every figure is of no work" if count == jobs else "figures are of the others"
    yield f"{count:,} of {jobs:,} jobs were refused, since nothing in the world could run them: {whole}."
    if most.unknown_kinds:
        shown = ", ".join(visible(kind) for kind in most.unknown_kinds[:_MAX_KINDS])
        more = f" and {len(most.unknown_kinds) - _MAX_KINDS} more" if len(most.unknown_kinds) > _MAX_KINDS else ""
        yield (
            f"No device of the world has curves for work of kind {shown}{more}: give the devices such kinds, or the "
            "jobs others."
        )


def _num_refused(record: RunRecord) -> int:
    return record.metrics.jobs_by_state.get("REJECTED", 0)


def arena_document(result: ArenaResult, summary: ArenaSummary, context: RunContext) -> dict[str, Any]:
    """Return the document: what was run, summaries, single runs, failures."""
    plan = result.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": dict(context.versions),
        "program_version": __version__,
        "command": context.command,
        "created_at_seconds": context.created_at_seconds,
        "wall_seconds": context.wall_seconds,
        "plan": {
            "world": plan.world,
            "world_name": result.world_name,
            "workload_file": None if plan.workload is None else str(plan.workload),
            "sacct_file": None if plan.sacct is None else str(plan.sacct),
            "policies": list(plan.policies),
            "reference": summary.reference,
            "seeds": list(plan.seeds),
            "horizon_seconds": plan.horizon_seconds,
            "warm_up_seconds": plan.warm_up_seconds,
            "history_days": plan.history_days,
            "drain": plan.drain,
            "compat": plan.compat,
            "skip_bad": plan.skip_bad,
        },
        "notes": list(context.notes),
        "confidence_share": CONFIDENCE,
        "bound_joules_per_unit": _estimate(summary.bound_joules_per_unit),
        "sweeps": [asdict(sweep) for sweep in result.sweeps],
        "summaries": [_summary(found) for found in summary.policies],
        "runs": [_run(record) for record in result.runs],
        "failures": [asdict(failure) for failure in result.failed],
    }


def render_arena_json(result: ArenaResult, summary: ArenaSummary, context: RunContext) -> str:
    """Return the document as text."""
    return json.dumps(arena_document(result, summary, context), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _summary(found: PolicySummary) -> dict[str, Any]:
    return {
        "policy": found.policy,
        "rule": found.rule,
        "seeds": list(found.seeds),
        "figures": {name: _estimate(value) for name, value in found.figures.items()},
        "differences_percent": {name: _estimate(value) for name, value in found.differences_percent.items()},
        "waiting_jobs_at_day_end": list(found.waiting_at_day_end),
    }


def _run(record: RunRecord) -> dict[str, Any]:
    return {
        "policy": record.policy,
        "rule": record.rule,
        "seed": record.seed,
        "workload": record.workload_name,
        "workload_source": record.workload_source,
        "bad_rows": record.bad_rows,
        "figures": figures_of(record.metrics),
        "jobs_by_state": dict(record.metrics.jobs_by_state),
        "waiting_jobs_at_day_end": list(record.metrics.waiting_at_day_end),
        "bounds": bound_figures_of(record.bounds),
        "samples": {
            "end_seconds": list(record.samples.seconds),
            "mean_power_watts": list(record.samples.mean_watts),
            "waiting_jobs": list(record.samples.waiting_jobs),
        },
        "frontier": None
        if record.frontier is None
        else {
            "mean_run_seconds": list(record.frontier.mean_run_seconds),
            "joules_per_unit": list(record.frontier.joules_per_unit),
        },
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)
