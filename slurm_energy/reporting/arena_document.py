"""A comparison as JSON; every key says its unit, see docs/reference/arena.md."""

import json
from dataclasses import asdict
from typing import Any

from slurm_energy import __version__
from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.run import RunRecord
from slurm_energy.evaluation.arena.summary import (
    CONFIDENCE,
    ArenaSummary,
    Estimate,
    PolicySummary,
    bound_figures_of,
    figures_of,
)
from slurm_energy.reporting.arena_context import RunContext

FORMAT = "slurm-energy-arena"
FORMAT_VERSION = 1


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
