"""Clocks of one job where the site's bound is held in the mean: each is given the tables of the site's own runs."""

from collections.abc import Iterator
from dataclasses import replace

from slurm_energy.config import GuardConfig
from slurm_energy.domain.decision import ClockChoice
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.operating_point import ClockTable
from slurm_energy.estimation.site_clocks import MAX_RATIO_OF_BOUND, SiteClocks
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import landing_types

TRIAL_MARGIN = 0.01
"""Slowdown beyond the expected one up to which a trial may go: what all jobs take together is the site's to plan."""


def with_site_clocks(case: Case, clocks: SiteClocks, guard: GuardConfig) -> Case:
    """Return the case with what the site's runs say of clocks; a job with a bound of its own stays as it is.

    Args:
        case: The job at the site, with all places where it may start.
        clocks: The site's.
        guard: Its margins.
    """
    if not case.clock_terms.by_mean:
        return case
    tables: dict[GpuTypeName, ClockTable] = {}
    for gpu_type in landing_types(case.candidates):
        watts = None if case.work is None else case.work.watts(gpu_type)
        table = clocks.table(gpu_type, watts, case.learned_clocks.get(gpu_type), case.max_slowdown)
        if table is not None:
            tables[gpu_type] = table
    if not tables:
        return case
    # The price of time keeps the mean; beyond it a job is only kept from what is far off.
    users = case.job.user_id, case.job.user_name
    return replace(
        case,
        site_tables=tables,
        max_slowdown=MAX_RATIO_OF_BOUND * case.max_slowdown,
        limit_room=clocks.limits.room(users, guard.time_limit_margin, guard.max_added_timeouts),
    )


def trial_limit(gpu_type: GpuTypeName, case: Case, room: float) -> float:
    """Return up to which slowdown clocks may be tried in a job of a site whose bound is held in the mean.

    Args:
        gpu_type: Of the GPUs.
        case: The job's.
        room: What limits, deadline and the job's bound leave.
    """
    table = case.site_tables.get(gpu_type)
    point = None if table is None else table.best(max(room, 0.0))
    return room if point is None else min(room, point.slowdown + TRIAL_MARGIN)


def site_clock_notes(gpu_type: GpuTypeName, case: Case, choice: ClockChoice | None) -> Iterator[str]:
    """Yield what a clock rests on that the site's runs chose."""
    if choice is None or gpu_type not in case.site_tables:
        return
    learned = case.learned_clocks.get(gpu_type)
    basis = (
        "predicted from other programs, none was tried in runs of this name"
        if learned is None
        else f"by what runs of this site measured and clocks tried in {max(learned.runs, 1)} of this name"
    )
    yield (
        f"{gpu_type}: {choice.sm_clock_mhz} MHz {basis}: "
        f"{choice.predicted_slowdown:.1%} longer expected, which the site's bound allows in the mean over jobs"
    )
