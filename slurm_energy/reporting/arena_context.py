"""What stands beside a comparison's figures: command, time, versions, and what a reader has to know."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from slurm_energy import __version__
from slurm_energy.evaluation.arena.clock_sweep import SweepResult
from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.run import RunRecord
from slurm_energy.reporting.visible import visible

_PACKAGES = ("numpy", "scipy")
_MOST_KINDS = 8


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
    if len(plan.seeds) == 1:
        notes.append("One seed: there are no intervals, and small differences mean nothing.")
    elif len(plan.seeds) < 8:
        notes.append(f"{len(plan.seeds)} seeds: intervals from so few are narrower than they should be.")
    if not plan.is_generated and len(plan.seeds) > 1:
        notes.append("The jobs are those of a file for every seed: seeds change what is drawn beside it, nothing else.")
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
        shown = ", ".join(visible(kind) for kind in most.unknown_kinds[:_MOST_KINDS])
        more = f" and {len(most.unknown_kinds) - _MOST_KINDS} more" if len(most.unknown_kinds) > _MOST_KINDS else ""
        yield (
            f"No device of the world has curves for work of kind {shown}{more}: give the devices such kinds, or the "
            "jobs others."
        )


def _num_refused(record: RunRecord) -> int:
    return record.metrics.jobs_by_state.get("REJECTED", 0)
