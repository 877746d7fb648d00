"""A comparison as tables of text, the same for terminal and HTML, printed in a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from slurm_energy.evaluation.arena.summary import ArenaSummary, Estimate, PolicySummary
from slurm_energy.reporting.arena.document import RunContext
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.visible import visible

NOTHING = "-"
BOUND_NAME = "bound"
_MAX_DAYS = 10
NAME_WIDTH = 24
WIDTH = 120
LEGEND = (
    "Means over seeds ± the longer arm of the 95 % interval. Done: completed. Open: unfinished at the end. Other: "
    "timed out, failed, cancelled or refused. Active: energy charged to jobs, per unit. vs ref: difference in J/unit "
    "from {reference}, same seeds. >bound: above the least energy for the work that was done. >front: above the "
    "energy-latency frontier at the policy's own mean turnaround. Wait all: unfinished jobs' wait until the end "
    "counted in. Slowdn: mean bounded slowdown, against the run at the default clock."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaTable:
    """One table; the first column is text, the others are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_reference: tuple[bool, ...]
    """By row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PolicyColumn:
    heading: str
    cell: Callable[[PolicySummary], str]
    always: bool = False
    """Kept although no policy has anything in it."""
    bound: str = ""
    """What the bound's row says."""


def arena_tables(summary: ArenaSummary) -> tuple[ArenaTable, ...]:
    """Return the tables of a comparison; columns in which nothing stands are left out."""
    if not summary.policies:
        return ()
    bound = summary.bound_joules_per_unit
    tables = [
        _table("Work and energy", summary, _main_columns(summary), with_bound=bound is not None),
        _table("Times of finished jobs, s", summary, _time_columns()),
        _table("Cluster and decisions", summary, _cluster_columns()),
        _queue_table(summary),
    ]
    return tuple(table for table in tables if table is not None and len(table.headings) > 1)


def estimate_text(found: Estimate | None, digits: int = 4) -> str:
    """Return `9.074 ± 0.012`: mean and the longer arm of its interval; the mean alone with one seed."""
    if found is None:
        return NOTHING
    mean = number_text(found.mean, digits)
    arm = _arm(found)
    return mean if arm is None else f"{mean} ± {_arm_text(arm, len(mean.partition('.')[2]))}"


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, whole ones with separators for thousands."""
    if value == 0.0:
        return "0"
    whole = len(f"{abs(value):.0f}")
    if abs(value) < 1.0:
        return f"{value:.{digits - 1}f}" if abs(value) >= 10.0 ** (1 - digits) else f"{value:.1e}"
    return f"{value:,.{max(0, digits - whole)}f}"


def signed_text(found: Estimate | None) -> str:
    """Return a difference in per cent with its sign and interval."""
    if found is None:
        return NOTHING
    arm = _arm(found)
    return f"{found.mean:+.2f}" if arm is None else f"{found.mean:+.2f} ± {_arm_text(arm, 2)}"


def _arm(found: Estimate) -> float | None:
    if found.low is None or found.high is None:
        return None
    return max(found.mean - found.low, found.high - found.mean)


def _arm_text(arm: float, decimals: int) -> str:
    """Return the arm, never as 0 when it is not."""
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if 0.0 < arm < least / 2.0 else f"{arm:,.{decimals}f}"


def _main_columns(summary: ArenaSummary) -> list[_PolicyColumn]:
    bound = summary.bound_joules_per_unit
    return [
        _PolicyColumn(heading="Done", cell=_mean("completed_jobs", 0), always=True),
        _PolicyColumn(heading="Open", cell=_mean("unfinished_jobs", 0), always=True),
        _PolicyColumn(heading="Other", cell=_unless_zero("ended_otherwise_jobs")),
        _PolicyColumn(
            heading="J/unit",
            cell=lambda found: estimate_text(found.figures.get("joules_per_unit")),
            always=True,
            bound=NOTHING if bound is None else estimate_text(bound),
        ),
        _PolicyColumn(heading="Active", cell=_mean("active_joules_per_unit")),
        _PolicyColumn(heading="Publ.", cell=_mean("published_joules_per_unit")),
        _PolicyColumn(
            heading="vs ref %", cell=lambda found: signed_text(found.differences_percent.get("joules_per_unit"))
        ),
        _PolicyColumn(heading=">bound %", cell=_percent("bound_gap_percent")),
        _PolicyColumn(heading=">front %", cell=_percent("bound_frontier_turnaround_gap_percent")),
        _PolicyColumn(heading="Run s", cell=_mean("mean_run_seconds")),
        _PolicyColumn(heading="Turn s", cell=_mean("mean_turnaround_seconds")),
    ]


def _time_columns() -> list[_PolicyColumn]:
    columns = [
        _PolicyColumn(heading=heading, cell=_mean(f"{part}_{name}_seconds"))
        for name, label in (("wait", "Wait"), ("run", "Run"), ("turnaround", "Turn"))
        for part, heading in (("mean", label), ("p95", "p95"), ("p99", "p99"))
    ]
    return [
        *columns,
        _PolicyColumn(heading="Wait all", cell=_mean("mean_wait_so_far_seconds")),
        _PolicyColumn(heading="Slowdn", cell=_mean("mean_bounded_slowdown", 3)),
        _PolicyColumn(heading="p95", cell=_mean("p95_bounded_slowdown", 3)),
    ]


def _cluster_columns() -> list[_PolicyColumn]:
    return [
        _PolicyColumn(heading="Total MWh", cell=_scaled("total_joules", 3.6e9)),
        _PolicyColumn(heading="Jobs MWh", cell=_scaled("active_joules", 3.6e9)),
        _PolicyColumn(heading="kW", cell=_scaled("mean_power_watts", 1e3)),
        _PolicyColumn(heading="Span h", cell=_scaled("makespan_seconds", 3600.0)),
        _PolicyColumn(heading="TJ s", cell=_scaled("energy_time_product_joule_seconds", 1e12)),
        _PolicyColumn(heading="GPU %", cell=_share("gpu_utilisation_share")),
        _PolicyColumn(heading="CPU %", cell=_share("cpu_utilisation_share")),
        _PolicyColumn(heading="Susp. h", cell=_unless_zero("suspended_node_hours")),
        _PolicyColumn(heading="Misses", cell=_misses),
        _PolicyColumn(heading="Clamped", cell=_mean("clamped_decisions", 0), always=True),
        _PolicyColumn(heading="Declined", cell=_unless_zero("declined_decisions")),
        _PolicyColumn(heading="Restarts", cell=_unless_zero("restarts")),
        _PolicyColumn(heading=">budget s", cell=_mean("seconds_above_power_budget", 0)),
        _PolicyColumn(heading="kg CO2", cell=_scaled("carbon_grams", 1e3)),
        _PolicyColumn(heading="Cost", cell=_mean("cost")),
        _PolicyColumn(heading="Decide us", cell=_scaled("mean_decision_seconds", 1e-6, 2)),
    ]


def _queue_table(summary: ArenaSummary) -> ArenaTable | None:
    """Return the queue at the ends of days, up to the last at which a job waited; of many days some, evenly spaced."""
    waiting = [day for found in summary.policies for day, jobs in enumerate(found.waiting_at_day_end) if jobs]
    if not waiting:
        return None
    days = max(waiting) + 1
    step = -(-days // _MAX_DAYS)
    columns = [_PolicyColumn(heading=f"Day {day + 1}", cell=_queue(day)) for day in range(days - 1, -1, -step)][::-1]
    return _table("Jobs that wait at the end of a day", summary, columns)


def _queue(day: int) -> Callable[[PolicySummary], str]:
    def cell(found: PolicySummary) -> str:
        return f"{found.waiting_at_day_end[day]:,.0f}" if day < len(found.waiting_at_day_end) else NOTHING

    return cell


def _table(
    title: str, summary: ArenaSummary, columns: Sequence[_PolicyColumn], *, with_bound: bool = False
) -> ArenaTable:
    policies = summary.policies
    cells = [(column, [column.cell(found) for found in policies]) for column in columns]
    kept = [(column, texts) for column, texts in cells if column.always or any(text != NOTHING for text in texts)]
    rows = [(found.policy, *(texts[index] for _, texts in kept)) for index, found in enumerate(policies)]
    if with_bound:
        rows.append((BOUND_NAME, *(column.bound for column, _ in kept)))
    return ArenaTable(
        title=title,
        headings=("Policy", *(column.heading for column, _ in kept)),
        rows=tuple(rows),
        is_reference=(*(found.policy == summary.reference for found in policies), *((False,) if with_bound else ())),
    )


def _mean(name: str, digits: int = 4) -> Callable[[PolicySummary], str]:
    return _scaled(name, 1.0, digits)


def _scaled(name: str, unit: float, digits: int = 4) -> Callable[[PolicySummary], str]:
    def cell(found: PolicySummary) -> str:
        estimate = found.figures.get(name)
        return NOTHING if estimate is None else number_text(estimate.mean / unit, digits or 1)

    return cell


def _unless_zero(name: str) -> Callable[[PolicySummary], str]:
    def cell(found: PolicySummary) -> str:
        estimate = found.figures.get(name)
        return NOTHING if estimate is None or estimate.mean == 0.0 else number_text(estimate.mean, 1)

    return cell


def _share(name: str) -> Callable[[PolicySummary], str]:
    def cell(found: PolicySummary) -> str:
        estimate = found.figures.get(name)
        return NOTHING if estimate is None else f"{100.0 * estimate.mean:.1f}"

    return cell


def _percent(name: str) -> Callable[[PolicySummary], str]:
    def cell(found: PolicySummary) -> str:
        estimate = found.figures.get(name)
        return NOTHING if estimate is None else f"{estimate.mean:+.2f}"

    return cell


def _misses(found: PolicySummary) -> str:
    jobs, misses = found.figures.get("deadline_jobs"), found.figures.get("deadline_misses")
    if jobs is None or misses is None or jobs.mean == 0.0:
        return NOTHING
    return number_text(misses.mean, 3)


def print_arena(summary: ArenaSummary, context: RunContext, console: Console) -> None:
    """Print tables, failures and notes; texts of users are shown as they are."""
    for table in arena_tables(summary):
        console.print(Text(table.title, style="bold"))
        print_fitted(_fitted_table(table), console)
        console.print()
    if summary.policies:
        console.print(Text(visible(LEGEND.format(reference=summary.reference)), style="dim"))
    for note in context.notes:
        console.print(Text(visible(note), style="dim"))


def _fitted_table(table: ArenaTable) -> FittedTable:
    """Return a table whose last columns go first where a terminal has no room."""
    first, *numbers = table.headings
    columns = [
        FittedColumn(heading=first, shortest=14),
        *(FittedColumn(heading=heading, is_number=True, rank=at) for at, heading in enumerate(numbers)),
    ]
    styles = [
        "bold" if is_reference else "italic" if row[0] == BOUND_NAME else None
        for row, is_reference in zip(table.rows, table.is_reference, strict=True)
    ]
    rows = [(visible(row[0], NAME_WIDTH), *row[1:]) for row in table.rows]
    return FittedTable(columns=columns, rows=rows, styles=styles)
